//! The exponential of a vector: what softmax and SiLU are made of.

use crate::arch::Simd;

/// Below this the result is no longer exact, but a tiny positive number; `exp(-87)` is 1.6e-38.
const LEAST: f32 = -87.0;
/// Above this the result would overflow.
const MOST: f32 = 88.0;

/// `exp(x)` in each lane, within 2 units in the last place for `x` from -87 to 88, and clamped to that range; NaN of
/// NaN and of infinity, so that a value that is lost shows in all that comes of it.
///
/// `x = n · ln 2 + r` with an integer `n` and `|r| ≤ ln 2 / 2`; `exp(r)` is its Taylor series up to the seventh
/// power, whose rest is below 5e-9, and `2^n` is made from its bits.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // Zero, or NaN where `x` is not finite: clamping alone would hide that.
    let lost = s.mul(x, s.splat(0.0));
    let x = s.min(s.max(x, s.splat(LEAST)), s.splat(MOST));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts: the first has 15 bits, so that its product with `n` is exact.
    let r = s.fnma(n, s.splat(0.693_145_75), x);
    let r = s.fnma(n, s.splat(1.428_606_8e-6), r);
    let mut p = s.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = s.fma(p, r, s.splat(c));
    }
    // From -126 to 127: all powers of two that there are.
    s.fma(p, s.exp2i(n), lost)
}
