//! Element-wise functions of a vector that are made of the exponential: sigmoid, softplus, tanh, the two forms of GELU.
//!
//! Each keeps small results to a few units in the last place, not only large ones: where a formula would subtract two
//! nearly equal numbers, another takes its place. NaN stays NaN.

use super::exp::exp;
use crate::arch::Simd;

/// `1 / (1 + e^(−x))`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// `x · sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(x, s.add(s.splat(1.0), e))
}

/// `ln(1 + e^x) = max(x, 0) + ln(1 + e^(−|x|))`.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), s.abs(x)));
    s.add(s.max(s.splat(0.0), x), ln_1p(s, e))
}

/// `ln(1 + e)` for `e` from 0 to 1: `2 · artanh(z)` with `z = e / (2 + e)`, at most a third; its series.
#[inline(always)]
fn ln_1p<S: Simd>(s: S, e: S::F) -> S::F {
    let z = s.div(e, s.add(s.splat(2.0), e));
    let square = s.mul(z, z);
    let mut p = s.splat(2.0 / 15.0);
    for c in [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0] {
        p = s.fma(p, square, s.splat(c));
    }
    s.mul(p, z)
}

/// `tanh(x)`: the Taylor series up to the thirteenth power where `|x| < 0.4`, else `±(1 − 2 / (e^(2|x|) + 1))`.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let size = s.abs(x);
    // Beyond, the result is 1, and the exponential would be of no account.
    let e = exp(s, s.min(s.splat(40.0), s.add(size, size)));
    let high = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))));
    let high = s.select_ge(x, s.splat(0.0), high, s.sub(s.splat(0.0), high));
    let square = s.mul(x, x);
    let mut p = s.splat(21_844.0 / 6_081_075.0);
    for c in [-1_382.0 / 155_925.0, 62.0 / 2_835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 0.0] {
        p = s.fma(p, square, s.splat(c));
    }
    s.select_ge(size, s.splat(0.4), high, s.fma(p, x, x))
}

/// `x/2 · (1 + tanh(u)) = x · sigmoid(2u)` with `u = √(2/π) · (x + 0.044715 x³)`.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let inner = s.fma(s.mul(s.mul(x, x), s.splat(0.044_715)), x, x);
    // −2 · √(2/π). The cube of a great number is none, and must not be lost; NaN is, as a second operand.
    let exponent = s.mul(inner, s.splat(-1.595_769));
    let e = exp(s, s.max(s.splat(-100.0), s.min(s.splat(100.0), exponent)));
    s.div(x, s.add(s.splat(1.0), e))
}

/// `x/2 · (1 + erf(x/√2))`, as `max(x, 0) − |x|/2 · erfc(t)` with `t = |x|/√2`.
///
/// `erfc(t) = e^(−t²) · q · P(q)` with `q = 1 / (1 + t/2)`: `P` is the Chebyshev fit of degree 10 for `t` up to 14, whose
/// error is below 4e-9.
#[inline(always)]
pub(crate) fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    const P: [f32; 11] = [
        0.038_617_21,
        -0.208_440_28,
        0.427_942_2,
        -0.361_043_6,
        0.047_659_09,
        -0.009_407_974,
        0.074_107_55,
        0.180_184_03,
        0.246_131_15,
        0.282_158_14,
        0.282_092_5,
    ];
    let (one, size) = (s.splat(1.0), s.abs(x));
    // 1 / (2 √2).
    let q = s.div(one, s.fma(s.min(s.splat(19.0), size), s.splat(0.353_553_4), one));
    let mut p = s.splat(P[0]);
    for c in &P[1..] {
        p = s.fma(p, q, s.splat(*c));
    }
    let half = s.mul(size, s.splat(0.5));
    // The square of a great number is none.
    let e = exp(s, s.sub(s.splat(0.0), s.min(s.splat(100.0), s.mul(half, size))));
    s.fnma(s.mul(half, e), s.mul(p, q), s.max(s.splat(0.0), x))
}
