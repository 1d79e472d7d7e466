//! Memory that each thread keeps for kernels: grown when first asked for more, then reused.

use std::cell::Cell;

thread_local! {
    static KEPT: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// A cache line, for its alignment.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Gives `f` at least `floats` floats, aligned to a cache line, with whatever was last in them.
///
/// A call within a call gets memory of its own, and the greater is kept.
pub(crate) fn with_scratch<R>(floats: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut lines = KEPT.take();
    let wanted = floats.div_ceil(16);
    if lines.len() < wanted {
        lines.resize(wanted, Line([0.0; 16]));
    }
    // SAFETY: `Line` is `repr(C)` around sixteen floats without padding, so the lines are one array of floats.
    let all = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<f32>(), lines.len() * 16) };
    let result = f(all);
    let inner = KEPT.take();
    KEPT.set(if inner.len() > lines.len() { inner } else { lines });
    result
}

/// Splits aligned scratch into pieces, each aligned to a cache line.
pub(crate) struct Pieces<'a>(pub(crate) &'a mut [f32]);

impl<'a> Pieces<'a> {
    /// The next `floats` floats.
    pub(crate) fn take(&mut self, floats: usize) -> &'a mut [f32] {
        let (piece, rest) = std::mem::take(&mut self.0).split_at_mut(piece(floats));
        self.0 = rest;
        piece
    }
}

/// The floats that [`Pieces::take`] uses up for `floats`.
pub(crate) const fn piece(floats: usize) -> usize {
    floats.next_multiple_of(16)
}
