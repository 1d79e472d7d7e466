//! The dense gated feed-forward part (Shazeer, 2020): `down(act(gate(x)) * up(x))`.

use super::sheet::Sheet;
use crate::{Activation, Gated, ModelError, Part};

/// Writes the part over `x`, an expression of rows `[n, hidden]`; gives the expression of its output.
pub(super) fn write(gated: &Gated, x: &str, sheet: &mut Sheet<'_>) -> Result<String, ModelError> {
    let &Gated { width, activation, biases } = gated;
    let hidden = sheet.hidden();
    let bias = |given: bool, name| given.then_some(name);
    let act = match activation {
        Activation::Silu => "silu",
    };
    sheet.title(format!("gated feed-forward: {width} wide, {act}"));
    sheet.say(format!("f = {x}"));
    let gate = sheet.linear("f", "w_gate", Part::Gate, [width, hidden], bias(biases.gate, "b_gate"))?;
    let up = sheet.linear("f", "w_up", Part::Up, [width, hidden], bias(biases.up, "b_up"))?;
    sheet.say(format!("u = {act}({gate}) * {up}"));
    sheet.linear("u", "w_down", Part::Down, [hidden, width], bias(biases.down, "b_down"))
}
