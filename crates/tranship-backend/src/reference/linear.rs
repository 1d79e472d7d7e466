//! `linear`: rows times a transposed matrix, plus a bias.

use super::softmax::dot;

/// `x` is `[rows, width]` of `groups` equal groups, `w` `[out, width / groups]`, `b` `[out]` or empty.
pub(super) fn run(x: &[f32], w: &[f32], b: &[f32], width: usize, groups: usize) -> Vec<f32> {
    let part = width / groups;
    let outs = w.len() / part / groups;
    let mut y = Vec::with_capacity(x.len() / width * (w.len() / part));
    for row in x.chunks_exact(width) {
        for (o, weights) in w.chunks_exact(part).enumerate() {
            let sum = dot(&row[o / outs * part..][..part], weights);
            y.push((sum + b.get(o).map_or(0.0, |&b| f64::from(b))) as f32);
        }
    }
    y
}
