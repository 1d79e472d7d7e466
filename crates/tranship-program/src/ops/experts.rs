//! `experts(x, r, gate, up, down, …)`: the feed-forward parts that a row is routed to, weighted and added:
//! `y[i] = Σ_e r[i][e] · down_e · act(gate_e · x[i], up_e · x[i])` over the experts with `r[i][e] ≠ 0`.
//!
//! `x` is `[n, in]`, `r` `[n, experts]` as `route` gives it, `gate` and `up` are `[experts, width, in]`, `down`
//! `[experts, out, width]`; the result is `[n, out]`. Three more operands are biases: of the gate and of `up` `[experts,
//! width]`, of `down` `[experts, out]`. Without a gate (`experts(x, r, up, down)`), `act` is of `up_e · x` alone.
//!
//! With `limit` `l`, gates are at most `l` and what is gated is within `−l .. l` before anything else. `act` is
//! `silu(g) · u`, `gelu(g) · u`, `gelu_tanh(g) · u`, `relu2` (`relu(u)²`, without a gate), or `swish` with `alpha`:
//! `g · sigmoid(alpha · g) · (u + 1)` (gpt-oss, 2025). Under a policy with 8-bit activation blocks, `x` meets
//! block-encoded weights as blocks, and so does what meets `down`.

use super::{Call, Op};
use crate::{Attr, Dim, Kind, ProgramError, Shape};

/// The attributes of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a row, at the most.
    pub top_k: u64,
    /// What is between the projections.
    pub act: ExpertAct,
    /// The bound of what goes into it.
    pub limit: Option<f64>,
    /// Whether there is a gate.
    pub gated: bool,
    /// Whether there are biases.
    pub biased: bool,
}

/// What is between the projections of an expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertAct {
    /// `silu(g) · u`
    Silu,
    /// `gelu(g) · u`, the exact one
    Gelu,
    /// `gelu(g) · u`, the tanh form
    GeluTanh,
    /// `relu(u)²`
    Relu2,
    /// `g · sigmoid(alpha · g) · (u + 1)`
    Swish {
        /// What the gate is multiplied by inside the sigmoid.
        alpha: f64,
    },
}

impl Experts {
    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let word = match self.act {
            ExpertAct::Silu => "silu",
            ExpertAct::Gelu => "gelu",
            ExpertAct::GeluTanh => "gelu_tanh",
            ExpertAct::Relu2 => "relu2",
            ExpertAct::Swish { .. } => "swish",
        };
        let mut attrs = vec![("top_k", Attr::Number(self.top_k as f64)), ("act", Attr::Word(word.into()))];
        if let ExpertAct::Swish { alpha } = self.act {
            attrs.push(("alpha", Attr::Number(alpha)));
        }
        attrs.extend(self.limit.map(|limit| ("limit", Attr::Number(limit))));
        attrs
    }
}

pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    let (gated, biased) = match call.count_operands() {
        0..=4 => (false, false),
        5 => (true, false),
        _ => (true, true),
    };
    let names: &[&str] = match (gated, biased) {
        (false, _) => &["x", "r", "up", "down"],
        (_, false) => &["x", "r", "gate", "up", "down"],
        _ => &["x", "r", "gate", "up", "down", "gate_bias", "up_bias", "down_bias"],
    };
    let kinds: Vec<(&str, Kind)> = names.iter().map(|name| (*name, Kind::Float)).collect();
    call.operands(&kinds, 0)?;
    let top_k = call.count("top_k")?;
    let act = match call.word_or("act", &["silu", "gelu", "gelu_tanh", "relu2", "swish"])? {
        Some("gelu") => ExpertAct::Gelu,
        Some("gelu_tanh") => ExpertAct::GeluTanh,
        Some("relu2") => ExpertAct::Relu2,
        Some("swish") => ExpertAct::Swish { alpha: call.number("alpha", 1e-6..=1e6)? },
        _ => ExpertAct::Silu,
    };
    call.hold_attrs((act == ExpertAct::Relu2) != gated, "`act: relu2` without a gate, and no other")?;
    let limit = call.number_or("limit", 1e-6..=1e9)?;
    let (x, r) = (call.shape(0), call.shape(1));
    call.hold(x.rows() == Dim::N && r.rows() == Dim::N, "x [n, in] and r [n, experts]")?;
    let (experts, input) = (r.cols(), x.cols());
    call.hold_attrs(top_k <= experts, "`top_k` at most the experts")?;
    let ups = 2 + usize::from(gated);
    let up = sizes(call.shape(ups - usize::from(gated)));
    let down = sizes(call.shape(ups + 1));
    let fits = up.len() == 3 && up[0] == experts && up[2] == input && call.shape(ups).cols() == up[1] * up[2];
    call.hold(fits && sizes(call.shape(ups)) == up, "gate and up [experts, width, in]")?;
    let fits = down.len() == 3 && down[0] == experts && down[2] == up[1];
    call.hold(fits, "down [experts, out, width]")?;
    if biased {
        for (i, width) in [(5, up[1]), (6, up[1]), (7, down[1])] {
            call.hold(
                sizes(call.shape(i)) == [experts, width],
                "biases [experts, width] and [experts, out]",
            )?;
        }
    }
    Ok((Op::Experts(Experts { top_k, act, limit, gated, biased }), Shape::matrix(Dim::N, down[1])))
}

fn sizes(shape: &Shape) -> Vec<u64> {
    shape.0.iter().map(|axis| if let Dim::Fixed(size) = axis.size { size } else { 0 }).collect()
}
