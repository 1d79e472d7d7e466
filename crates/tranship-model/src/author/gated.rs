//! The dense feed-forward part (gated: Shazeer, 2020): `down(act(gate(x)) * up(x))`, or `down(act(up(x)))`.

use super::sheet::Sheet;
use crate::{Activation, Gated, ModelError, Part};

/// What a dense part's matrices are called, in the program and in the checkpoint.
pub(super) struct Parts {
    /// Before the names in the program.
    pub prefix: &'static str,
    pub gate: Part,
    pub up: Part,
    pub down: Part,
}

impl Parts {
    /// Of a layer's own part.
    pub const OWN: Parts = Parts { prefix: "", gate: Part::Gate, up: Part::Up, down: Part::Down };
    /// Of the one that all rows go to beside their experts.
    pub const SHARED: Parts =
        Parts { prefix: "shared_", gate: Part::SharedGate, up: Part::SharedUp, down: Part::SharedDown };
}

/// Writes the part over `x`, an expression of rows `[n, hidden]`; gives the expression of its output.
pub(super) fn write(
    gated: &Gated,
    x: &str,
    parts: &Parts,
    sheet: &mut Sheet<'_>,
) -> Result<String, ModelError> {
    let &Gated { width, activation, biases, limit, .. } = gated;
    let hidden = sheet.hidden();
    let prefix = parts.prefix;
    let named = |name: &str| format!("{prefix}{name}");
    let act = function(activation);
    if prefix.is_empty() {
        let kind = if gated.gated { "gated feed-forward" } else { "feed-forward" };
        sheet.title(format!("{kind}: {width} wide, {act}"));
    }
    let f = sheet.bind("f", x);
    let (b_gate, b_up, b_down) = (named("b_gate"), named("b_up"), named("b_down"));
    let up_bias = biases.up.then_some(b_up.as_str());
    let u = named("u");
    if gated.gated {
        let bias = biases.gate.then_some(b_gate.as_str());
        let gate = sheet.linear(&f, &named("w_gate"), parts.gate, [width, hidden], bias)?;
        let up = sheet.linear(&f, &named("w_up"), parts.up, [width, hidden], up_bias)?;
        let (gate, up) = match limit {
            Some(l) => (format!("clamp({gate}, max: {l})"), format!("clamp({up}, min: -{l}, max: {l})")),
            None => (gate, up),
        };
        sheet.say(format!("{u} = {act}({gate}) * {up}"));
    } else {
        let up = sheet.linear(&f, &named("w_up"), parts.up, [width, hidden], up_bias)?;
        sheet.say(format!("{u} = {act}({up})"));
    }
    let bias = biases.down.then_some(b_down.as_str());
    sheet.linear(&u, &named("w_down"), parts.down, [hidden, width], bias)
}

/// The operation of an activation.
fn function(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu | Activation::Swish { .. } => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::Relu2 => "relu2",
    }
}
