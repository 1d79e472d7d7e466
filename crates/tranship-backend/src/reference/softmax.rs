//! What the attentions share: products of rows, and a softmax over rows that are numbered.

/// `Σ a · b`
pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// The softmax over scores of rows, in their order, and of a sink.
pub(super) struct Scores {
    weights: Vec<(usize, f64)>,
    total: f64,
}

impl Scores {
    /// Of rows with their scores; the sink takes part and has no row.
    pub(super) fn new(scores: impl Iterator<Item = (usize, f64)>, sink: Option<f64>) -> Scores {
        let mut weights: Vec<(usize, f64)> = scores.collect();
        let most = weights.iter().map(|(_, s)| *s).chain(sink).fold(f64::NEG_INFINITY, f64::max);
        for (_, score) in &mut weights {
            *score = (*score - most).exp();
        }
        let total = weights.iter().map(|(_, w)| *w).chain(sink.map(|s| (s - most).exp())).sum();
        Scores { weights, total }
    }

    /// The mean of what rows have, weighted: 0 of no rows.
    pub(super) fn mean(&self, of: impl Fn(usize) -> f64) -> f64 {
        if self.weights.is_empty() {
            return 0.0;
        }
        self.weights.iter().map(|(j, w)| w * of(*j)).sum::<f64>() / self.total
    }
}
