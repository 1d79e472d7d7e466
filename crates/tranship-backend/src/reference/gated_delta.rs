//! `gated_delta`: a memory that decays, and moves towards the value of each key.

use tranship_program::ops::GatedDelta;

/// Takes one row in: `k` `[key_heads · key_dim]`, `v` `[heads · value_dim]`, `g` `[heads]` or `[heads · key_dim]`, `beta`
/// `[heads]`; `s` is `[heads, key_dim, value_dim]`.
pub(super) fn advance(op: &GatedDelta, s: &mut [f32], [k, v, g, beta]: [&[f32]; 4]) {
    let (heads, key_dim) = (op.heads as usize, k.len() / op.key_heads as usize);
    let value_dim = v.len() / heads;
    for (h, s) in s.chunks_exact_mut(key_dim * value_dim).enumerate() {
        let k = &k[key_head(op, h) * key_dim..][..key_dim];
        let decay = |d: usize| f64::from(if g.len() == heads { g[h] } else { g[h * key_dim + d] }).exp();
        let decay: Vec<f64> = (0..key_dim).map(decay).collect();
        for j in 0..value_dim {
            let kept = |d: usize| decay[d] * f64::from(s[d * value_dim + j]);
            let found: f64 = (0..key_dim).map(|d| kept(d) * f64::from(k[d])).sum();
            let delta = f64::from(beta[h]) * (f64::from(v[h * value_dim + j]) - found);
            for d in 0..key_dim {
                let next = decay[d] * f64::from(s[d * value_dim + j]) + f64::from(k[d]) * delta;
                s[d * value_dim + j] = next as f32;
            }
        }
    }
}

/// What one row reads of the memory: `q` is `[key_heads · key_dim]`, the result `[heads · value_dim]`.
pub(super) fn read(op: &GatedDelta, s: &[f32], q: &[f32]) -> Vec<f32> {
    let (heads, key_dim) = (op.heads as usize, q.len() / op.key_heads as usize);
    let value_dim = s.len() / heads / key_dim;
    let mut y = Vec::with_capacity(heads * value_dim);
    for (h, s) in s.chunks_exact(key_dim * value_dim).enumerate() {
        let q = &q[key_head(op, h) * key_dim..][..key_dim];
        for j in 0..value_dim {
            let sum: f64 = (0..key_dim).map(|d| f64::from(s[d * value_dim + j]) * f64::from(q[d])).sum();
            y.push((op.scale * sum) as f32);
        }
    }
    y
}

/// The key head of a head.
fn key_head(op: &GatedDelta, head: usize) -> usize {
    head / (op.heads / op.key_heads) as usize
}
