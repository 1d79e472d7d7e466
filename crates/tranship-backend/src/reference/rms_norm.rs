//! `rms_norm` and `l2_norm`: parts of rows over the root of their mean square, or of their sum of squares.

use super::softmax::dot;
use tranship_program::ops::{L2Norm, RmsNorm};

/// `x` is `[rows, width]`, `g` `[width]`, `[width / heads]`, or empty.
pub(super) fn rms(op: &RmsNorm, x: &[f32], g: Option<&[f32]>, width: usize) -> Vec<f32> {
    let part = width / op.heads as usize;
    let mut gains = g.map(|g| g.iter().cycle());
    let mut y = Vec::with_capacity(x.len());
    for part in x.chunks_exact(part) {
        let scale = 1.0 / (dot(part, part) / part.len() as f64 + op.eps).sqrt();
        let mut gain = || gains.as_mut().and_then(Iterator::next).map_or(1.0, |&g| op.offset + f64::from(g));
        y.extend(part.iter().map(|&v| (f64::from(v) * scale * gain()) as f32));
    }
    y
}

/// `x` is `[rows, width]`.
pub(super) fn l2(op: &L2Norm, x: &[f32], width: usize) -> Vec<f32> {
    let mut y = Vec::with_capacity(x.len());
    for part in x.chunks_exact(width / op.heads as usize) {
        let scale = 1.0 / (dot(part, part) + op.eps).sqrt();
        y.extend(part.iter().map(|&v| (f64::from(v) * scale) as f32));
    }
    y
}
