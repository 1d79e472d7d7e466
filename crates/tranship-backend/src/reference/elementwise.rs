//! Element-wise operations.

/// `x · sigmoid(x)`.
pub(super) fn silu(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&v| (f64::from(v) / (1.0 + f64::exp(-f64::from(v)))) as f32).collect()
}

/// `f` of each element of `a` and its counterpart in `b`; a shorter `b` is one row that meets every row of `a`.
pub(super) fn zip(a: &[f32], b: &[f32], f: impl Fn(f64, f64) -> f64) -> Vec<f32> {
    a.iter().zip(b.iter().cycle()).map(|(&a, &b)| f(f64::from(a), f64::from(b)) as f32).collect()
}
