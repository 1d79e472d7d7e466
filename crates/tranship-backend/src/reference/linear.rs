//! `linear`: rows times a transposed matrix, plus a bias.

/// `x` is `[rows, width]`, `w` `[out, width]`, `b` `[out]`.
pub(super) fn run(x: &[f32], w: &[f32], b: Option<&[f32]>, width: usize) -> Vec<f32> {
    let mut y = Vec::with_capacity(x.len() / width * (w.len() / width));
    for row in x.chunks_exact(width) {
        for (o, weights) in w.chunks_exact(width).enumerate() {
            let sum: f64 = row.iter().zip(weights).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            y.push((sum + b.map_or(0.0, |b| f64::from(b[o]))) as f32);
        }
    }
    y
}
