//! Cosines and sines of a rotary embedding, computed for the positions of a step.

use tranship_program::ops::Rope;

/// The frequencies of one rotary embedding.
///
/// Angles and functions are computed in F64 and rounded once to F32: a position's row is the same in whatever
/// step, and after whatever context, it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    frequencies: Vec<f64>,
    magnitude: f64,
    back: usize,
    inverse: bool,
}

impl RopeTable {
    /// The frequencies of `rope`, divided by `divisors` (`dims / 2` values) where there are some.
    pub fn new(rope: &Rope, divisors: Option<&[f32]>) -> RopeTable {
        let mut frequencies = rope.frequencies();
        for (frequency, divisor) in frequencies.iter_mut().zip(divisors.unwrap_or_default()) {
            *frequency /= f64::from(*divisor);
        }
        let back = usize::try_from(rope.back).unwrap_or(usize::MAX);
        RopeTable { frequencies, magnitude: rope.magnitude(), back, inverse: rope.inverse }
    }

    /// Pairs of elements that are rotated: `dims / 2`.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Writes cosine and sine of each pair for the row at `position`, times the embedding's magnitude: with `back`, the
    /// row stands so many positions before, at 0 at the least, and the sine is negative where angles are. Both slices
    /// hold [`RopeTable::pairs`] values. `skip` is the caller's matter.
    pub fn fill(&self, position: usize, cos: &mut [f32], sin: &mut [f32]) {
        let position = position.saturating_sub(self.back);
        let turn = if self.inverse { -self.magnitude } else { self.magnitude };
        for ((frequency, cos), sin) in self.frequencies.iter().zip(cos).zip(sin) {
            let (s, c) = (position as f64 * frequency).sin_cos();
            *cos = (c * self.magnitude) as f32;
            *sin = (s * turn) as f32;
        }
    }
}
