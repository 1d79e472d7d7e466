//! `attend`: causal attention, one query at a time.

use super::softmax::{Scores, dot};
use std::ops::Range;
use tranship_program::ops::Attend;

/// Which rows of the keys the queries see.
pub(super) struct Seen {
    /// The row of the keys that is the first query's own.
    pub(super) own: usize,
    /// The first row at a position that there is.
    pub(super) first: usize,
    /// Rows that a query sees at the most, its own included.
    pub(super) window: usize,
}

impl Seen {
    /// Rows of keys that start `before` rows before the step, or at position 0, under a window.
    pub(super) fn new(before: Option<u64>, position: usize, window: Option<u64>) -> Seen {
        let window = window.map_or(usize::MAX, |w| usize::try_from(w).unwrap_or(usize::MAX));
        match before {
            None => Seen { own: position, first: 0, window },
            Some(before) => {
                let own = usize::try_from(before).unwrap_or(usize::MAX);
                Seen { own, first: own.saturating_sub(position), window }
            }
        }
    }

    /// The rows that query `i` sees.
    pub(super) fn rows(&self, i: usize) -> Range<usize> {
        let end = self.own + i + 1;
        end.saturating_sub(self.window).max(self.first)..end
    }
}

/// Queries, keys, values and sinks.
pub(super) struct Operands<'a> {
    /// `[n, heads · head_dim]`
    pub(super) q: &'a [f32],
    /// `[rows, kv_heads · head_dim]`
    pub(super) k: &'a [f32],
    /// `[rows, kv_heads · value_dim]`
    pub(super) v: &'a [f32],
    /// `[heads]`, or none.
    pub(super) sinks: &'a [f32],
    /// Elements of a row of `k`.
    pub(super) k_cols: usize,
    /// Elements of a row of `v`.
    pub(super) v_cols: usize,
}

/// `[n, heads · value_dim]`
pub(super) fn run(op: &Attend, on: &Operands<'_>, seen: &Seen) -> Vec<f32> {
    let (heads, kv_heads) = (op.heads as usize, op.kv_heads as usize);
    let (dim, value_dim) = (on.k_cols / kv_heads, on.v_cols / kv_heads);
    let mut y = Vec::new();
    for (i, query) in on.q.chunks_exact(heads * dim).enumerate() {
        for (h, query) in query.chunks_exact(dim).enumerate() {
            let group = h / (heads / kv_heads);
            let score = |j: usize| {
                let score = op.scale * dot(query, &on.k[j * on.k_cols + group * dim..][..dim]);
                op.softcap.map_or(score, |cap| cap * (score / cap).tanh())
            };
            let sink = on.sinks.get(h).map(|s| f64::from(*s));
            let scores = Scores::new(seen.rows(i).map(|j| (j, score(j))), sink);
            let value = |j: usize| &on.v[j * on.v_cols + group * value_dim..][..value_dim];
            y.extend((0..value_dim).map(|d| scores.mean(|j| f64::from(value(j)[d])) as f32));
        }
    }
    y
}
