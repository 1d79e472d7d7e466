//! `compress`, `choose` and `compressed_attend`: rows of many positions made one, and attention over them.

use super::attend::Seen;
use super::route::top;
use super::softmax::{Scores, dot};
use tranship_program::ops::{Choose, Compress, CompressedAttend};

/// What stands for no row among those chosen.
const NONE: u32 = u32::MAX;

/// `kv` and `gate` are `[before + n, cols]`, `bias` `[rate, cols]`; the result `[n, cols]`, or half as wide with
/// overlap.
pub(super) fn compress(
    op: &Compress,
    [kv, gate, bias]: [&[f32]; 3],
    cols: usize,
    position: usize,
    rows: usize,
) -> Vec<f32> {
    let rate = op.rate as usize;
    let (width, reach) = if op.overlap { (cols / 2, 2 * rate) } else { (cols, rate) };
    let mut y = vec![0.0; rows * width];
    for (i, y) in y.chunks_exact_mut(width).enumerate() {
        let end = position + i + 1;
        if !end.is_multiple_of(rate) {
            continue;
        }
        // Row i of the step is row reach − 1 + i of the operands, so the reach of row i starts at row i. Without a span
        // before, it is the second half of it.
        let first = if op.overlap && end < reach { rate } else { 0 };
        for (c, y) in y.iter_mut().enumerate() {
            let column = |t: usize| if op.overlap && t >= rate { width + c } else { c };
            let at = |t: usize| (i + t) * cols + column(t);
            let score = |t: usize| f64::from(gate[at(t)]) + f64::from(bias[t % rate * cols + column(t)]);
            let scores = Scores::new((first..reach).map(|t| (t, score(t))), None);
            *y = scores.mean(|t| f64::from(kv[at(t)])) as f32;
        }
    }
    y
}

/// `q` is `[n, heads · dim]`, `c` `[rows, dim]`, `w` `[n, heads]`; the result `[n, top_k]`.
pub(super) fn choose(op: &Choose, [q, c, w]: [&[f32]; 3], dim: usize, position: usize) -> Vec<u32> {
    let (heads, top_k) = (op.heads as usize, op.top_k as usize);
    let mut chosen = Vec::new();
    for (i, (q, w)) in q.chunks_exact(heads * dim).zip(w.chunks_exact(heads)).enumerate() {
        let score = |row: &[f32]| -> f64 {
            let head = |(q, &w): (&[f32], &f32)| f64::from(w) * op.scale * dot(q, row).max(0.0);
            q.chunks_exact(dim).zip(w).map(head).sum()
        };
        let whole = c.chunks_exact(dim).take(whole_rows(op.rate, position + i));
        let best = top(top_k, whole.map(score).enumerate());
        let found = best.len();
        chosen.extend(best.into_iter().map(|j| j as u32));
        chosen.extend(std::iter::repeat_n(NONE, top_k - found));
    }
    chosen
}

/// `q` is `[n, heads · dim]`, `kv` `[before + n, dim]`, `c` `[rows, dim]`, `sinks` `[heads]`, `chosen` `[n, k]` with `k`
/// above 0; the result as `q`.
pub(super) fn attend(
    op: &CompressedAttend,
    [q, kv, c, sinks]: [&[f32]; 4],
    chosen: Option<(&[u32], usize)>,
    dim: usize,
    seen: &Seen,
    position: usize,
) -> Vec<f32> {
    let mut y = Vec::with_capacity(q.len());
    for (i, query) in q.chunks_exact(op.heads as usize * dim).enumerate() {
        let whole = whole_rows(op.rate, position + i).min(c.len() / dim);
        let compressed: Vec<usize> = match chosen {
            None => (0..whole).collect(),
            Some((chosen, k)) => {
                let row = chosen[i * k..][..k].iter().map(|&j| j as usize);
                row.filter(|&j| j < whole).collect()
            }
        };
        // Rows are numbered through: compressed ones first, then those of the window.
        let all = c.len() / dim;
        let rows = || compressed.iter().copied().chain(seen.rows(i).map(|j| all + j));
        let row = |j: usize| if j < all { &c[j * dim..][..dim] } else { &kv[(j - all) * dim..][..dim] };
        for (query, &sink) in query.chunks_exact(dim).zip(sinks) {
            let scored = rows().map(|j| (j, op.scale * dot(query, row(j))));
            let scores = Scores::new(scored, Some(f64::from(sink)));
            y.extend((0..dim).map(|d| scores.mean(|j| f64::from(row(j)[d])) as f32));
        }
    }
    y
}

/// Compressed rows that are whole at a position.
fn whole_rows(rate: u64, position: usize) -> usize {
    (position + 1) / usize::try_from(rate).unwrap_or(usize::MAX)
}
