//! Element-wise operations.

use super::erf::erfc;
use std::f64::consts::{FRAC_2_PI, SQRT_2};
use tranship_program::ops::Unary;

/// `1 / (1 + e^(−x))`
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `x · sigmoid(x)`
pub(super) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// `x/2 · (1 + erf(x/√2))`
pub(super) fn gelu(x: f64) -> f64 {
    if x == f64::NEG_INFINITY { 0.0 } else { 0.5 * x * erfc(-x / SQRT_2) }
}

/// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`
pub(super) fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044_715 * x * x * x)).tanh())
}

/// `max(x, 0)²`
pub(super) fn relu2(x: f64) -> f64 {
    x.max(0.0) * x.max(0.0)
}

/// A function of each element.
pub(super) fn unary(op: Unary, x: &[f32]) -> Vec<f32> {
    map(x, |x| match op {
        Unary::Gelu => gelu(x),
        Unary::GeluTanh => gelu_tanh(x),
        Unary::Sigmoid => sigmoid(x),
        Unary::Softplus => softplus(x),
        Unary::Relu2 => relu2(x),
        Unary::Softcap(cap) => cap * (x / cap).tanh(),
        Unary::Scale(by) => by * x,
        Unary::Clamp { min, max } => {
            x.max(min.unwrap_or(f64::NEG_INFINITY)).min(max.unwrap_or(f64::INFINITY))
        }
    })
}

/// `f` of each element.
pub(super) fn map(x: &[f32], f: impl Fn(f64) -> f64) -> Vec<f32> {
    x.iter().map(|&v| f(f64::from(v)) as f32).collect()
}

/// `f` of each element of `a` and what it meets in `b`: one `row` that meets every row of `a`, or a number for each of
/// so many equal parts of `a`, with equal shapes one for each element.
pub(super) fn zip(a: &[f32], b: &[f32], row: bool, f: impl Fn(f64, f64) -> f64) -> Vec<f32> {
    let f = |(&a, &b): (&f32, &f32)| f(f64::from(a), f64::from(b)) as f32;
    if row {
        return a.iter().zip(b.iter().cycle()).map(f).collect();
    }
    let part = a.len() / b.len().max(1);
    a.chunks_exact(part.max(1)).zip(b).flat_map(|(part, b)| part.iter().map(move |a| f((a, b)))).collect()
}
