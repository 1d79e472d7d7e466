//! A gated short convolution (LFM2, 2025): `out(c · conv(b · x))`, with the ring of the convolution's inputs.

use super::sheet::Sheet;
use crate::{ModelError, Part, ShortConv};

/// Writes the mixer over `x`, an expression of rows `[n, hidden]`; gives the expression of its output.
pub(super) fn write(mixer: &ShortConv, x: &str, sheet: &mut Sheet<'_>) -> Result<String, ModelError> {
    let &ShortConv { taps, biased } = mixer;
    let hidden = sheet.hidden();
    let before = taps.saturating_sub(1);
    let bias = |name| biased.then_some(name);
    sheet.position();
    sheet.title(format!("short convolution: {taps} taps"));
    let h = sheet.bind("h", x);
    let b = sheet.linear(&h, "wb", Part::ShortGate, [hidden, hidden], bias("bb"))?;
    let input = sheet.linear(&h, "wx", Part::ShortInput, [hidden, hidden], bias("bx"))?;
    sheet.say(format!("gated = {b} * {input}"));
    let axes = [("position", before), ("channel", hidden)];
    let joined = sheet.window("conv", &axes, "gated", "inputs that the convolution still reaches");
    sheet.weight("conv_t", &[hidden, taps], Part::ShortConv)?;
    let mut operands = format!("{joined}, conv_t");
    if biased {
        sheet.bias("conv_b", hidden, Part::ShortConv)?;
        operands += ", conv_b";
    }
    let c = sheet.linear(&h, "wc", Part::ShortOutGate, [hidden, hidden], bias("bc"))?;
    sheet.say(format!("y = {c} * conv({operands})"));
    sheet.keep("conv", before, "gated");
    sheet.linear("y", "wo", Part::MemoryOutput, [hidden, hidden], bias("bo"))
}
