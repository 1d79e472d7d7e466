//! `log_decay`: the logarithm of a decay between 0 and 1.

use super::elementwise::softplus;
use tranship_program::ops::DecayForm;

/// `x` is `[n, heads · dim]`, `a` `[heads]`, `bias` `[heads · dim]`.
pub(super) fn run(form: DecayForm, x: &[f32], a: &[f32], bias: &[f32]) -> Vec<f32> {
    let dim = bias.len() / a.len();
    let decay = |(i, &x): (usize, &f32)| {
        let c = i % bias.len();
        (-form.rate(f64::from(a[c / dim])) * softplus(f64::from(x) + f64::from(bias[c]))) as f32
    };
    x.iter().enumerate().map(decay).collect()
}
