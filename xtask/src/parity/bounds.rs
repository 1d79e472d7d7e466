//! How far each policy may be from the all-F32 reference.
//!
//! Errors are in standard deviations of the reference's logits, over all rows of a prompt. One number for each policy
//! bounds their root mean square; the others follow from it:
//!
//! * the largest of some thousand errors is seven times their root mean square on the fixtures, so eight are allowed;
//! * errors of `e` in a softmax over logits of deviation `σ` move it by `KL ≈ (e·σ)²/2`.
//!
//! What the policies cost, on fixtures of two and three layers with logits of deviation 1:
//!
//! * `parity` rounds in F32 arithmetic alone (2⁻²⁴ relative), in sums of up to hundreds of terms: 2e-6.
//! * `serving` rounds each activation to BF16, 1.1e-3 of it in the mean. About ten values lie one behind the other in a
//!   layer, the errors of the residual rows pass on whole, and the softmax of attention and the gate multiply what
//!   reaches them: 0.009 to 0.023.
//! * `quantized` rounds what each linear takes to 8-bit blocks of 32, in steps of the block's largest magnitude over
//!   127: 5e-3 of a row in the mean, through the same paths: 0.017 to 0.046 where weights are block-encoded. F16 caches
//!   (2⁻¹¹) vanish beside it.
//!
//! The bounds are a little under twice the worst of these. A backend that is not the reference is held closer: under
//! a policy it may cost [`BESIDE`] times what the reference interpreter does under that policy on the same model and
//! prompt. Rounding at other places costs as much again as rounding at the same ones; a wrong scale, a term that is
//! missing or a value that is rounded twice costs more.
//!
//! # Models that choose
//!
//! A router that takes the best few of its experts, and an indexer that takes the best few rows, are not continuous:
//! where two scores are nearer to each other than what a policy rounds, another one is taken, and the row is that of
//! another computation. The fixtures are random and tiny, so that this is far more frequent in them than in a trained
//! model: of 48 rows, through two to four layers of five experts, up to a quarter meet such a choice, and the largest error
//! is up to 1.3 deviations. No bound of the largest error would say anything, and `parity`, which rounds in F32 alone,
//! never changes a choice there: it is held to its own bound in full, bit for bit.
//!
//! Under the other policies, models that choose are held by row. Most rows keep their choices, and are as near as those of
//! any model; a row that does not is somewhere else, and the rows after it see a little of it. So, of the root mean
//! squares within each row:
//!
//! * that of the median row may be what the policy may cost any model (found: 0.007 to 0.028 under `serving`);
//! * that of the row which three quarters do not exceed, `QUARTILE` times that (found: 0.093 at most, of 0.12): no more
//!   than a quarter of the rows are far away;
//! * that over all rows, `ASTRAY` times that (found: 0.121 at most, of 0.24), and the largest error and KL as they follow
//!   from it. If all rows were those of another text, it would be 1.4.
//!
//! Another backend is held to the reference in its median row, since it is not the same rows that are off in both.
//!
//! # A page of prose
//!
//! Rounding moves what a trained model makes of a token up and down alike, so that over a page it nearly cancels: its
//! perplexity moves by far less than its logits do. `parity` is held to 1e-4 of another implementation's figure (found:
//! 2e-6, which is how far that figure is written out), `serving` to 2e-3 (found: 3e-4). The trained fixture's weights are
//! BF16, which no policy rounds, so that `quantized` rounds its caches to F16 alone, and is held to 5e-4 (found: 5e-6).

use super::measure::Figures;
use tranship_model::{CompressedAttention, Ffn, Mixer, ModelSpec};

/// The bounds of one policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Of the largest difference.
    pub max: f64,
    /// Of the root mean square.
    pub rms: f64,
    /// Of the root mean square within the median row.
    pub median: f64,
    /// Of the root mean square within the row that three quarters of the rows do not exceed.
    pub quartile: f64,
    /// Of the mean KL, in nats.
    pub kl: f64,
    /// Whether splits must leave every bit as it is.
    pub exact: bool,
}

/// The largest error over the root mean square.
const LARGEST: f64 = 8.0;

/// The root mean square that `parity` may have: with [`LARGEST`], 2e-4 for the largest error.
const PARITY: f64 = 2.5e-5;

/// What another backend may cost, beside the reference under the same policy.
pub const BESIDE: f64 = 1.3;

/// What the row that three quarters do not exceed may cost in a model that chooses, beside what a policy may.
const QUARTILE: f64 = 3.0;

/// What all rows together may cost in a model that chooses, beside what a policy may.
const ASTRAY: f64 = 6.0;

/// Whether a model takes the best few of some scores, so that rounding changes what a row is made of.
pub fn chooses(spec: &ModelSpec) -> bool {
    let indexes = |c: &CompressedAttention| c.compressor.as_ref().is_some_and(|c| c.indexer.is_some());
    spec.layers.iter().any(|layer| {
        matches!(layer.ffn, Some(Ffn::Experts(_)))
            || matches!(&layer.mixer, Some(Mixer::Compressed(attention)) if indexes(attention))
    })
}

/// The root mean square that a policy may have; one without a number of its own is held to that of `parity`.
fn of_policy(policy: &str) -> f64 {
    match policy {
        "serving" => 0.04,
        "quantized" => 0.08,
        _ => PARITY,
    }
}

/// How far a page's perplexity may be from the one in F32, as a part of it.
pub fn of_page(policy: &str) -> f64 {
    match policy {
        "serving" => 2e-3,
        "quantized" => 5e-4,
        _ => 1e-4,
    }
}

impl Bound {
    fn new(rms: f64, deviation: f64, exact: bool) -> Bound {
        let kl = (rms * deviation).powi(2) / 2.0;
        // No row is held by itself but by its largest error.
        Bound { max: LARGEST * rms, rms, median: f64::INFINITY, quartile: f64::INFINITY, kl, exact }
    }

    /// The bounds for a model that chooses: by row, but where nothing but F32 arithmetic rounds.
    pub fn by_row(self, deviation: f64) -> Bound {
        if self.rms <= PARITY {
            return self;
        }
        let (median, quartile) = (self.rms, QUARTILE * self.rms);
        Bound { median, quartile, ..Bound::new(ASTRAY * self.rms, deviation, self.exact) }
    }

    /// The bounds of a policy, for logits of a standard deviation.
    pub fn of(policy: &str, deviation: f64) -> Bound {
        let rms = of_policy(policy);
        Bound::new(rms, deviation, rms == PARITY)
    }

    /// What a hand-off between two policies may cost: what both of them may. Under one policy, what it may.
    pub fn of_pair(from: &str, to: &str, deviation: f64) -> Bound {
        let both = if from == to { of_policy(from) } else { of_policy(from) + of_policy(to) };
        Bound::new(both, deviation, false)
    }

    /// The bounds, tightened to what the reference costs under the same policy on the same prompt.
    pub fn beside(self, reference: &Figures) -> Bound {
        if self.median.is_finite() {
            return Bound { median: self.median.min(BESIDE * reference.median + PARITY), ..self };
        }
        let rms = BESIDE * reference.rms + PARITY;
        let kl = BESIDE.powi(2) * reference.kl + Bound::of("parity", 1.0).kl;
        Bound { rms: self.rms.min(rms), kl: self.kl.min(kl), ..self }
    }

    /// Whether figures are within the bounds.
    pub fn holds(&self, figures: &Figures) -> bool {
        let rows = figures.median <= self.median && figures.quartile <= self.quartile;
        figures.max <= self.max && figures.rms <= self.rms && figures.kl <= self.kl && rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_from_one_number() {
        let parity = Bound::of("parity", 1.0);
        assert_eq!((parity.max, parity.exact), (2e-4, true));
        assert_eq!(Bound::of("serving", 2.0).kl, 0.04f64.powi(2) * 2.0);
        assert_eq!(Bound::of_pair("serving", "serving", 1.0).max, Bound::of("serving", 1.0).max);
        assert!((Bound::of_pair("serving", "quantized", 1.0).rms - 0.12).abs() < 1e-12);
    }

    #[test]
    fn a_backend_is_held_to_what_the_reference_costs() {
        let reference = Figures { max: 0.1, rms: 0.02, kl: 2e-4, ..Figures::default() };
        let bound = Bound::of("quantized", 1.0).beside(&reference);
        assert!(bound.holds(&Figures { rms: 0.025, kl: 3e-4, ..reference }));
        assert!(!bound.holds(&Figures { rms: 0.03, ..reference }));
        assert!(!bound.holds(&Figures { kl: 4e-4, ..reference }));
        assert!(!bound.holds(&Figures { max: f64::NAN, ..reference }));
    }

    #[test]
    fn where_rows_choose_most_of_them_are_held() {
        let bound = Bound::of("serving", 1.0).by_row(1.0);
        assert_eq!((bound.median, bound.quartile, bound.rms), (0.04, 0.12, 0.24));
        let few =
            Figures { max: 1.5, rms: 0.2, median: 0.02, quartile: 0.03, kl: 0.01, ..Figures::default() };
        assert!(bound.holds(&few) && !Bound::of("serving", 1.0).holds(&few));
        assert!(!bound.holds(&Figures { median: 0.05, quartile: 0.05, ..few }), "every row is a little off");
        assert!(!bound.holds(&Figures { quartile: 0.3, ..few }), "too many rows are elsewhere");
        let reference = Figures { median: 0.02, rms: 0.3, ..few };
        assert!(bound.beside(&reference).holds(&few));
        assert!(!bound.beside(&reference).holds(&Figures { median: 0.03, ..few }));
        // What rounds in F32 alone takes no other choice.
        for parity in [Bound::of("parity", 1.0), Bound::of_pair("parity", "parity", 1.0)] {
            assert_eq!(parity.by_row(1.0), parity);
        }
    }
}
