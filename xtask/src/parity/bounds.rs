//! How far each policy may be from the all-F32 reference.
//!
//! Errors are in standard deviations of the reference's logits, over all rows of a prompt. What a policy costs follows
//! from where it rounds, on the two- and three-layer fixtures whose logits have a deviation of about 1:
//!
//! * `parity` rounds nowhere but in F32 arithmetic (2⁻²⁴), in sums of tens to hundreds of terms: 1e-5 is usual.
//! * `serving` rounds every activation to BF16: 2⁻⁹ at most and 2⁻⁹/√3 ≈ 1.1e-3 in the mean, relative. About ten such
//!   values lie in a row's path through a layer, and errors of the residual rows pass on whole: √30 · 1.1e-3 ≈ 0.006.
//! * `quantized` rounds the inputs of each linear to 8-bit blocks of 32: a step of the block's largest magnitude
//!   (about 2.2 deviations) over 127, so 0.017/√12 ≈ 0.005 relative to the row, in seven linears of a layer that lie
//!   four deep: √12 · 0.005 ≈ 0.017. F16 caches (2⁻¹¹) vanish beside it.
//!
//! A difference of `e` deviations in the mean moves a softmax of unit-deviation logits by `KL ≈ e²/2`. The bounds are
//! a little over twice what the reference interpreter itself shows under each policy on the worst fixture, so that a
//! wrong scale, a missing term or a rounding that is done twice stands out.

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

/// The largest error of a logit under `parity`: both sides round to F32 in every operation, in other orders.
pub const PARITY_MAX: f64 = 2e-4;

impl Bound {
    /// The bounds of a policy; a policy without bounds of its own is held to those of `parity`.
    pub fn of(policy: &str) -> Bound {
        match policy {
            "serving" => Bound { max: 0.1, rms: 0.02, kl: 2e-4, exact: false },
            "quantized" => Bound { max: 0.2, rms: 0.04, kl: 8e-4, exact: false },
            _ => Bound { max: PARITY_MAX, rms: PARITY_MAX / 4.0, kl: 1e-8, exact: true },
        }
    }

    /// What a hand-off between two policies may cost: what each of them may. Under one policy, what it may.
    pub fn of_pair(from: &str, to: &str) -> Bound {
        let (a, b) = (Bound::of(from), Bound::of(to));
        if from == to {
            return Bound { exact: false, ..a };
        }
        // Errors of logits add; KL goes with their square, so its root does.
        let kl = (a.kl.sqrt() + b.kl.sqrt()).powi(2);
        Bound { max: a.max + b.max, rms: a.rms + b.rms, kl, exact: false }
    }

    /// Whether figures are within the bounds.
    pub fn holds(&self, figures: &Figures) -> bool {
        figures.max <= self.max && figures.rms <= self.rms && figures.kl <= self.kl
    }
}
