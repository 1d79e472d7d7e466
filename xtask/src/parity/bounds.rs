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

use super::measure::Figures;

/// The bounds of one policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Of the largest difference.
    pub max: f64,
    /// Of the root mean square.
    pub rms: f64,
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

/// The root mean square that a policy may have; one without a number of its own is held to that of `parity`.
fn of_policy(policy: &str) -> f64 {
    match policy {
        "serving" => 0.04,
        "quantized" => 0.08,
        _ => PARITY,
    }
}

impl Bound {
    fn new(rms: f64, deviation: f64, exact: bool) -> Bound {
        Bound { max: LARGEST * rms, rms, kl: (rms * deviation).powi(2) / 2.0, exact }
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
        let rms = BESIDE * reference.rms + PARITY;
        let kl = BESIDE.powi(2) * reference.kl + Bound::of("parity", 1.0).kl;
        Bound { rms: self.rms.min(rms), kl: self.kl.min(kl), ..self }
    }

    /// Whether figures are within the bounds.
    pub fn holds(&self, figures: &Figures) -> bool {
        figures.max <= self.max && figures.rms <= self.rms && figures.kl <= self.kl
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
}
