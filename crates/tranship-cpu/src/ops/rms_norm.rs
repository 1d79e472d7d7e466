//! `rms_norm`: each row over the root of its mean square, times a gain.
//!
//! A row is one thread's, and its sum runs over four vectors in an order that its width alone decides.

use super::Out;
use crate::arch::{Isa, Kernel, Simd};
use crate::pool::Share;
use std::ops::Range;

/// `y = x / sqrt(mean(x²) + eps) · gain`, row by row.
#[derive(Clone, Copy)]
pub(crate) struct RmsNorm<'a> {
    /// `[rows, width]`.
    pub(crate) x: &'a [f32],
    /// `[width]`.
    pub(crate) gain: &'a [f32],
    pub(crate) eps: f32,
    /// `[rows, width]`.
    pub(crate) y: Out<'a>,
}

impl RmsNorm<'_> {
    /// This thread's share of the rows.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        assert_eq!(self.x.len(), self.y.len(), "as many values out as in");
        let rows = share.range(self.x.len() / self.gain.len(), 1);
        isa.dispatch(Rows { op: *self, rows });
    }
}

struct Rows<'a> {
    op: RmsNorm<'a>,
    rows: Range<usize>,
}

impl Kernel for Rows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RmsNorm { x, gain, eps, y } = self.op;
        let width = gain.len();
        for row in self.rows {
            let x = &x[row * width..(row + 1) * width];
            // SAFETY: each row belongs to one thread.
            let y = unsafe { y.range(row * width..(row + 1) * width) };
            let scale = 1.0 / (sum_of_squares(s, x) / width as f32 + eps).sqrt();
            let scale = s.splat(scale);
            for at in (0..width).step_by(S::LANES) {
                let n = S::LANES.min(width - at);
                // SAFETY: `n` values from `at` on are within `x`, `gain` and `y`.
                unsafe {
                    let v = s.load_part(x.as_ptr().add(at), n);
                    let g = s.load_part(gain.as_ptr().add(at), n);
                    s.store_part(y.as_mut_ptr().add(at), s.mul(s.mul(v, scale), g), n);
                }
            }
        }
    }
}

/// `Σ x²`, over four vectors of sums.
#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let mut at = 0;
    while at < x.len() {
        let n = S::LANES.min(x.len() - at);
        // SAFETY: `n` values from `at` on are within `x`.
        let v = unsafe { s.load_part(x.as_ptr().add(at), n) };
        let sum = &mut sums[at / S::LANES % 4];
        *sum = s.fma(v, v, *sum);
        at += S::LANES;
    }
    s.reduce_add(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}
