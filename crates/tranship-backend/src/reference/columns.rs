//! `slice`, `tile` and `join`: values moved as they are.

use tranship_program::ops::Slice;

/// `x` is `[rows, width]`; of each of `op.heads` parts of a row the columns `op.from .. op.to`.
pub(super) fn slice(op: &Slice, x: &[f32], width: usize) -> Vec<f32> {
    let parts = x.chunks_exact(width / op.heads as usize);
    parts.flat_map(|part| part[op.from as usize..op.to as usize].iter().copied()).collect()
}

/// `x` is `[rows, width]`; each row `times` times side by side.
pub(super) fn tile(times: u64, x: &[f32], width: usize) -> Vec<f32> {
    x.chunks_exact(width).flat_map(|row| row.repeat(times as usize)).collect()
}

/// Rows from before the step, then the step's own.
pub(super) fn join(rows: &[f32], new: &[f32]) -> Vec<f32> {
    [rows, new].concat()
}
