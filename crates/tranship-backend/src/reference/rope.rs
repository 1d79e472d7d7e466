//! `rope`: pairs of elements turned by an angle that grows with the position.

use crate::RopeTable;
use tranship_program::ops::{Rope, RopeStyle};

/// `x` is `[rows, width]` with `op.heads` heads in a row; the first row is that of `position`.
pub(super) fn run(op: &Rope, table: &RopeTable, x: &[f32], width: usize, position: usize) -> Vec<f32> {
    let pairs = table.pairs();
    let (mut cos, mut sin) = (vec![0.0; pairs], vec![0.0; pairs]);
    let mut y = x.to_vec();
    for (i, row) in y.chunks_exact_mut(width).enumerate() {
        table.fill(position + i, &mut cos, &mut sin);
        for head in row.chunks_exact_mut(width / op.heads as usize) {
            let head = &mut head[op.skip as usize..];
            for pair in 0..pairs {
                let (a, b) = match op.style {
                    RopeStyle::Half => (pair, pair + pairs),
                    RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                };
                let (c, s) = (f64::from(cos[pair]), f64::from(sin[pair]));
                let (u, v) = (f64::from(head[a]), f64::from(head[b]));
                head[a] = (u * c - v * s) as f32;
                head[b] = (u * s + v * c) as f32;
            }
        }
    }
    y
}
