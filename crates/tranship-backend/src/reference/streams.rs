//! `stream_gates`, `stream_collapse` and `stream_expand`: several residual streams.

use super::elementwise::sigmoid;
use tranship_program::ops::StreamGates;

/// `h` is `[n, (2 + S) · S]`, or `[n, S]` with one `scale`; `base` one row of it.
pub(super) fn gates(op: &StreamGates, h: &[f32], base: &[f32], scale: &[f32]) -> Vec<f32> {
    let streams = op.streams as usize;
    let mut y = Vec::with_capacity(h.len());
    for row in h.chunks_exact(base.len()) {
        let at = |i: usize, part: usize| f64::from(scale[part]) * f64::from(row[i]) + f64::from(base[i]);
        y.extend((0..streams).map(|i| (sigmoid(at(i, 0)) + op.eps) as f32));
        if scale.len() == 1 {
            continue;
        }
        y.extend((streams..2 * streams).map(|i| (2.0 * sigmoid(at(i, 1))) as f32));
        let mix: Vec<f64> = (2 * streams..row.len()).map(|i| at(i, 2)).collect();
        y.extend(normalized(op, mix).into_iter().map(|m| m as f32));
    }
    y
}

/// A mixing matrix `[S, S]` whose rows and columns add to about 1.
fn normalized(op: &StreamGates, mut mix: Vec<f64>) -> Vec<f64> {
    let streams = op.streams as usize;
    for row in mix.chunks_exact_mut(streams) {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = row.iter().map(|m| (m - most).exp()).sum();
        row.iter_mut().for_each(|m| *m = (*m - most).exp() / total + op.eps);
    }
    for round in 0..op.iterations {
        if round > 0 {
            for row in mix.chunks_exact_mut(streams) {
                let sum: f64 = row.iter().sum();
                row.iter_mut().for_each(|m| *m /= sum + op.eps);
            }
        }
        for s in 0..streams {
            let sum: f64 = mix.iter().skip(s).step_by(streams).sum();
            mix.iter_mut().skip(s).step_by(streams).for_each(|m| *m /= sum + op.eps);
        }
    }
    mix
}

/// `x` is `[n, S · hidden]`, `gates` `[n, width]` with at least `S` in a row; the result `[n, hidden]`.
pub(super) fn collapse(streams: usize, x: &[f32], gates: &[f32], cols: usize, width: usize) -> Vec<f32> {
    let hidden = cols / streams;
    let mut y = Vec::with_capacity(x.len() / streams);
    for (x, gates) in x.chunks_exact(cols).zip(gates.chunks_exact(width)) {
        let sum = |d: usize| -> f64 {
            (0..streams).map(|s| f64::from(gates[s]) * f64::from(x[s * hidden + d])).sum()
        };
        y.extend((0..hidden).map(|d| sum(d) as f32));
    }
    y
}

/// `x` is `[n, S · hidden]`, `y` `[n, hidden]`, `gates` `[n, (2 + S) · S]`; the result as `x`.
pub(super) fn expand(streams: usize, x: &[f32], y: &[f32], gates: &[f32], cols: usize) -> Vec<f32> {
    let hidden = cols / streams;
    let gates = gates.chunks_exact((2 + streams) * streams);
    let mut z = Vec::with_capacity(x.len());
    for ((x, y), gates) in x.chunks_exact(cols).zip(y.chunks_exact(hidden)).zip(gates) {
        let (post, mix) = gates[streams..].split_at(streams);
        for s in 0..streams {
            for d in 0..hidden {
                let mixed =
                    (0..streams).map(|t| f64::from(mix[t * streams + s]) * f64::from(x[t * hidden + d]));
                let mixed: f64 = mixed.sum();
                z.push((f64::from(post[s]) * f64::from(y[d]) + mixed) as f32);
            }
        }
    }
    z
}
