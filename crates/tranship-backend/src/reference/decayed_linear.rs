//! `decayed_linear`: a memory of keys and values, with a fixed decay for each head.

use tranship_program::ops::DecayedLinear;

/// Takes one row in: `k` `[heads · key_dim]`, `v` `[heads · value_dim]`; `s` is `[heads, key_dim, value_dim]`.
pub(super) fn advance(op: &DecayedLinear, s: &mut [f32], k: &[f32], v: &[f32]) {
    let heads = op.heads as usize;
    let (key_dim, value_dim) = (k.len() / heads, v.len() / heads);
    for (h, s) in s.chunks_exact_mut(key_dim * value_dim).enumerate() {
        let decay = op.decay(h as u64);
        for (d, s) in s.chunks_exact_mut(value_dim).enumerate() {
            let key = f64::from(k[h * key_dim + d]);
            for (s, &v) in s.iter_mut().zip(&v[h * value_dim..]) {
                *s = (decay * f64::from(*s) + key * f64::from(v)) as f32;
            }
        }
    }
}

/// What one row reads of the memory: `q` is `[heads · key_dim]`, the result `[heads · value_dim]`.
pub(super) fn read(op: &DecayedLinear, s: &[f32], q: &[f32]) -> Vec<f32> {
    let heads = op.heads as usize;
    let key_dim = q.len() / heads;
    let value_dim = s.len() / heads / key_dim;
    let mut y = Vec::with_capacity(heads * value_dim);
    for (s, q) in s.chunks_exact(key_dim * value_dim).zip(q.chunks_exact(key_dim)) {
        let sum = |j: usize| (0..key_dim).map(|d| f64::from(s[d * value_dim + j]) * f64::from(q[d])).sum();
        y.extend((0..value_dim).map(|j| -> f64 { sum(j) }).map(|y| y as f32));
    }
    y
}
