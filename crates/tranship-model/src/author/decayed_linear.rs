//! Linear attention with a fixed decay for each head (Lightning Attention; MiniMax-01, 2025).

use super::sheet::Sheet;
use crate::{DecayedLinearAttention, ModelError, Part};

/// Writes the mixer over `x`, an expression of rows `[n, hidden]`; gives the expression of its output.
pub(super) fn write(
    mixer: &DecayedLinearAttention,
    x: &str,
    sheet: &mut Sheet<'_>,
) -> Result<String, ModelError> {
    let &DecayedLinearAttention { heads, head_dim, rate, eps } = mixer;
    let hidden = sheet.hidden();
    let width = heads.saturating_mul(head_dim);
    sheet.title(format!("decayed linear attention: {heads} memories of {head_dim} × {head_dim}"));
    let memory = [("head", heads), ("key", head_dim), ("value", head_dim)];
    let s = sheet.carry("s", &memory, "a memory for each head");
    let h = sheet.bind("h", x);
    let mixed = sheet.linear(&h, "w_mix", Part::LinearMix, [width.saturating_mul(3), hidden], None)?;
    sheet.say(format!("mix = silu({mixed})"));
    let part = |i: u64| {
        let (from, to) = (i.saturating_mul(head_dim), (i + 1).saturating_mul(head_dim));
        format!("slice(mix, heads: {heads}, from: {from}, to: {to})")
    };
    let (q, k, v) = (part(0), part(1), part(2));
    sheet.say(format!("o, {s}[..] = decayed_linear({s}[..], {q}, {k}, {v}, heads: {heads}, rate: {rate})"));
    sheet.weight("o_gain", &[width], Part::MemoryNorm)?;
    let gate = sheet.linear(&h, "wz", Part::OutputGate, [width, hidden], None)?;
    let gated = format!("rms_norm(o, o_gain, eps: {eps}) * sigmoid({gate})");
    sheet.linear(&gated, "wo", Part::MemoryOutput, [hidden, width], None)
}
