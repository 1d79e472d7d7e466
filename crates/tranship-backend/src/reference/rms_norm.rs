//! `rms_norm`: each row over the root of its mean square, times a gain.

use tranship_program::ops::RmsNorm;

/// `x` is `[rows, width]`, `g` `[width]`.
pub(super) fn run(op: &RmsNorm, x: &[f32], g: &[f32]) -> Vec<f32> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(g.len()) {
        let square: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let scale = 1.0 / (square / row.len() as f64 + op.eps).sqrt();
        y.extend(row.iter().zip(g).map(|(&v, &g)| (f64::from(v) * scale * f64::from(g)) as f32));
    }
    y
}
