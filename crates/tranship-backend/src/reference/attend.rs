//! `attend`: causal softmax attention with grouped heads, one query at a time.

use tranship_program::ops::Attend;

/// `q` is `[rows, width]`, `k` and `v` the cache's rows `[position + rows, kv_heads · head_dim]`.
pub(super) fn run(op: &Attend, q: &[f32], k: &[f32], v: &[f32], width: usize, position: usize) -> Vec<f32> {
    let (heads, kv_heads) = (op.heads as usize, op.kv_heads as usize);
    let dim = width / heads;
    let stride = kv_heads * dim;
    let mut y = vec![0.0; q.len()];
    for (i, (query, out)) in q.chunks_exact(width).zip(y.chunks_exact_mut(width)).enumerate() {
        for (h, (query, out)) in query.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate() {
            let offset = h / (heads / kv_heads) * dim;
            let seen = position + i + 1;
            let dot = |j: usize| -> f64 {
                let key = &k[j * stride + offset..][..dim];
                query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>() * op.scale
            };
            let scores: Vec<f64> = (0..seen).map(dot).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (d, out) in out.iter_mut().enumerate() {
                let sum: f64 =
                    weights.iter().enumerate().map(|(j, w)| w * f64::from(v[j * stride + offset + d])).sum();
                *out = (sum / total) as f32;
            }
        }
    }
    y
}
