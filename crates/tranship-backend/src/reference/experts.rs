//! `experts`: the feed-forward parts that each row is routed to, weighted and added.

use super::elementwise::{gelu, gelu_tanh, relu2, sigmoid, silu};
use super::softmax::dot;
use crate::{BackendError, round_to};
use tranship_dtype::DType;
use tranship_program::ops::{ExpertAct, Experts};

/// The matrices of all experts, with their biases where there are some: `gate` and `up` `[experts, width, in]`, `down`
/// `[experts, out, width]`, biases `[experts, width]` and `[experts, out]`. What is not there is empty.
pub(super) struct Banks<'a> {
    pub(super) gate: &'a [f32],
    pub(super) up: &'a [f32],
    pub(super) down: &'a [f32],
    pub(super) biases: [&'a [f32]; 3],
    /// Elements of an input row.
    pub(super) input: usize,
    /// Elements between the projections.
    pub(super) width: usize,
    /// Elements of a result.
    pub(super) out: usize,
    /// Whether `x` came as 8-bit blocks: then what meets `down` is rounded to such blocks, if it is whole blocks.
    pub(super) blocks: bool,
}

/// `x` is `[n, in]`, `r` `[n, experts]`; the result `[n, out]`.
///
/// # Errors
/// A value that cannot be rounded to blocks.
pub(super) fn run(op: &Experts, banks: &Banks<'_>, x: &[f32], r: &[f32]) -> Result<Vec<f32>, BackendError> {
    let experts = banks.down.len() / (banks.out * banks.width);
    let mut y = Vec::new();
    for (row, r) in x.chunks_exact(banks.input).zip(r.chunks_exact(experts)) {
        let mut sum = vec![0f64; banks.out];
        for (e, &weight) in r.iter().enumerate().filter(|(_, w)| **w != 0.0) {
            let hidden = hidden(op, banks, e, row)?;
            let down = banks.down[e * banks.out * banks.width..].chunks_exact(banks.width);
            for (o, (sum, down)) in sum.iter_mut().zip(down).enumerate() {
                let part: f64 = down.iter().zip(&hidden).map(|(&w, h)| f64::from(w) * h).sum();
                *sum += f64::from(weight) * (part + at(banks.biases[2], e * banks.out + o));
            }
        }
        y.extend(sum.into_iter().map(|v| v as f32));
    }
    Ok(y)
}

/// What meets `down` of expert `e`.
fn hidden(op: &Experts, banks: &Banks<'_>, e: usize, row: &[f32]) -> Result<Vec<f64>, BackendError> {
    let one = |i: usize| {
        let unit = e * banks.width + i;
        let project = |bank: &[f32], bias: &[f32]| {
            dot(row, &bank[unit * banks.input..][..banks.input]) + at(bias, unit)
        };
        let mut u = project(banks.up, banks.biases[1]);
        let mut g = if op.gated { project(banks.gate, banks.biases[0]) } else { 0.0 };
        if let Some(limit) = op.limit {
            (g, u) = (g.min(limit), u.clamp(-limit, limit));
        }
        match op.act {
            ExpertAct::Silu => silu(g) * u,
            ExpertAct::Gelu => gelu(g) * u,
            ExpertAct::GeluTanh => gelu_tanh(g) * u,
            ExpertAct::Relu2 => relu2(u),
            ExpertAct::Swish { alpha } => g * sigmoid(alpha * g) * (u + 1.0),
        }
    };
    let hidden: Vec<f64> = (0..banks.width).map(one).collect();
    if !banks.blocks || !banks.width.is_multiple_of(DType::Q8_1.block_len()) {
        return Ok(hidden);
    }
    let mut rounded: Vec<f32> = hidden.iter().map(|h| *h as f32).collect();
    round_to(DType::Q8_1, "experts", &mut rounded)?;
    Ok(rounded.into_iter().map(f64::from).collect())
}

/// A bias, or 0 where there is none.
fn at(bias: &[f32], i: usize) -> f64 {
    bias.get(i).map_or(0.0, |&b| f64::from(b))
}
