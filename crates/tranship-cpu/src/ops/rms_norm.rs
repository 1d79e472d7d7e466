//! `rms_norm`: each row, or each of its equal parts, over the root of its mean square, times a gain; `l2_norm`: over its
//! length.
//!
//! A part is one thread's, and its sum runs over four vectors in an order that its width alone decides.

use super::Out;
use crate::arch::{Isa, Kernel, Simd};
use crate::pool::Share;
use std::ops::Range;

/// `y = x / sqrt(mean(x²) + eps) · (offset + gain)`, part by part.
#[derive(Clone, Copy)]
pub(crate) struct RmsNorm<'a> {
    /// `[rows, width]`.
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    /// Equal parts of a row that are normalized each on its own.
    pub(crate) heads: usize,
    /// `[width]`, or `[width / heads]` for every part.
    pub(crate) gain: Option<&'a [f32]>,
    /// Added to the gain.
    pub(crate) offset: f32,
    pub(crate) eps: f32,
    /// `[rows, width]`; may be where `x` is.
    pub(crate) y: Out<'a>,
}

/// `y = x / sqrt(Σ x² + eps)`, part by part.
#[derive(Clone, Copy)]
pub(crate) struct L2Norm<'a> {
    /// `[rows, width]`.
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    /// Equal parts of a row that are normalized each on its own.
    pub(crate) heads: usize,
    pub(crate) eps: f32,
    /// `[rows, width]`; may be where `x` is.
    pub(crate) y: Out<'a>,
}

impl RmsNorm<'_> {
    /// This thread's share of the parts of all rows.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        let dim = self.width / self.heads;
        let fits = |gain: &[f32]| gain.len() == self.width || gain.len() == dim;
        assert!(self.gain.is_none_or(fits), "a gain for each element of a row or of a part");
        let (x, gain, y) = (self.x, self.gain, self.y);
        let parts = share.range(x.len() / dim, 1);
        isa.dispatch(Parts { x, dim, over: dim as f32, gain, offset: self.offset, eps: self.eps, y, parts });
    }
}

impl L2Norm<'_> {
    /// This thread's share of the parts of all rows.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        let (x, dim, y) = (self.x, self.width / self.heads, self.y);
        let parts = share.range(x.len() / dim, 1);
        isa.dispatch(Parts { x, dim, over: 1.0, gain: None, offset: 0.0, eps: self.eps, y, parts });
    }
}

/// Parts of `dim` elements, `x / sqrt(Σ x² / over + eps)`.
struct Parts<'a> {
    x: &'a [f32],
    dim: usize,
    over: f32,
    gain: Option<&'a [f32]>,
    offset: f32,
    eps: f32,
    y: Out<'a>,
    parts: Range<usize>,
}

impl Kernel for Parts<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert_eq!(self.x.len(), self.y.len(), "as many values out as in");
        let dim = self.dim;
        let offset = s.splat(self.offset);
        for part in self.parts {
            let x = &self.x[part * dim..(part + 1) * dim];
            // SAFETY: each part belongs to one thread.
            let y = unsafe { self.y.range(part * dim..(part + 1) * dim) };
            let scale = s.splat(1.0 / (sum_of_squares(s, x) / self.over + self.eps).sqrt());
            let gain = self.gain.map(|gain| &gain[part * dim % gain.len()..][..dim]);
            for at in (0..dim).step_by(S::LANES) {
                let n = S::LANES.min(dim - at);
                // SAFETY: `n` values from `at` on are within `x`, the gain and `y`.
                unsafe {
                    let mut v = s.mul(s.load_part(x.as_ptr().add(at), n), scale);
                    if let Some(gain) = gain {
                        v = s.mul(v, s.add(offset, s.load_part(gain.as_ptr().add(at), n)));
                    }
                    s.store_part(y.as_mut_ptr().add(at), v, n);
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
