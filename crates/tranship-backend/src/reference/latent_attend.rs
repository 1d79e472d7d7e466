//! `latent_attend`: attention over latent rows, each expanded to keys and values in F64.

use super::softmax::{Scores, dot};
use tranship_program::ops::LatentAttend;

/// The sizes of a row of each operand.
pub(super) struct Sizes {
    /// Of a query: `heads · (key_dim + rope_dim)`.
    pub(super) q: usize,
    /// Of a latent row.
    pub(super) latent: usize,
    /// Of a key that all heads share.
    pub(super) rope: usize,
}

/// `q` is `[n, heads · (key_dim + rope_dim)]`, `c` `[rows, latent]`, `r` `[rows, rope_dim]`, `w` `[heads · (key_dim +
/// value_dim), latent]`; the result `[n, heads · value_dim]`.
pub(super) fn run(op: &LatentAttend, sizes: &Sizes, [q, c, r, w]: [&[f32]; 4], position: usize) -> Vec<f32> {
    let (heads, key_dim) = (op.heads as usize, op.key_dim as usize);
    let per_head = w.len() / sizes.latent / heads;
    // Of each row, for each head its key and its value.
    let expand = |row: &[f32]| w.chunks_exact(sizes.latent).map(|w| dot(w, row)).collect::<Vec<f64>>();
    let expanded: Vec<Vec<f64>> = c.chunks_exact(sizes.latent).map(expand).collect();
    let mut y = Vec::new();
    for (i, query) in q.chunks_exact(sizes.q).enumerate() {
        for (h, query) in query.chunks_exact(key_dim + sizes.rope).enumerate() {
            let (plain, turned) = query.split_at(key_dim);
            let score = |j: usize| {
                let key = &expanded[j][h * per_head..][..key_dim];
                let own: f64 = plain.iter().zip(key).map(|(&q, k)| f64::from(q) * k).sum();
                op.scale * (own + dot(turned, &r[j * sizes.rope..][..sizes.rope]))
            };
            let scores = Scores::new((0..position + i + 1).map(|j| (j, score(j))), None);
            let value = |d: usize| scores.mean(|j| expanded[j][h * per_head + d]) as f32;
            y.extend((key_dim..per_head).map(value));
        }
    }
    y
}
