//! The state-space step of Mamba-2 (Dao and Gu, 2024): a short convolution with a ring for each of its three inputs, a
//! memory for each head, a gate, and a normalization in groups.

use super::sheet::{Sheet, attrs};
use crate::{ModelError, Part, StateSpace};
use tranship_program::Op;
use tranship_program::ops;

/// Writes the mixer over `x`, an expression of rows `[n, hidden]`; gives the expression of its output.
pub(super) fn write(mixer: &StateSpace, x: &str, sheet: &mut Sheet<'_>) -> Result<String, ModelError> {
    let &StateSpace { heads, head_dim, groups, state, proj_bias, .. } = mixer;
    let hidden = sheet.hidden();
    let width = heads.saturating_mul(head_dim);
    let bias = |name| proj_bias.then_some(name);
    sheet.position();
    sheet.title(format!("state space: {heads} memories of {head_dim} × {state}, {groups} groups"));
    let h = sheet.bind("h", x);
    let z = sheet.linear(&h, "wz", Part::OutputGate, [width, hidden], bias("bz"))?;
    let inputs = [
        ("x", ("wx", Part::StateInput, "bx"), Part::ConvInput, [("head", heads), ("dim", head_dim)]),
        ("b", ("wb", Part::StateB, "bb"), Part::ConvB, [("group", groups), ("state", state)]),
        ("c", ("wc", Part::StateC, "bc"), Part::ConvC, [("group", groups), ("state", state)]),
    ];
    for (name, (weight, part, bias_name), conv, axes) in inputs {
        let [(_, outer), (_, inner)] = axes;
        let channels = outer.saturating_mul(inner);
        let projected = sheet.linear(&h, weight, part, [channels, hidden], bias(bias_name))?;
        convolve(mixer, name, conv, axes, &projected, sheet)?;
    }
    let dt = sheet.linear(&h, "w_dt", Part::StateStep, [heads, hidden], bias("b_dt"))?;
    sheet.weight("dt_bias", &[heads], Part::DecayBias)?;
    let dt = format!("softplus({dt} + dt_bias)");
    let (least, most) = mixer.dt_limits;
    let limits: Vec<String> = [("min", least), ("max", most)]
        .into_iter()
        .filter_map(|(key, limit)| limit.map(|limit| format!("{key}: {limit}")))
        .collect();
    let dt = if limits.is_empty() { dt } else { format!("clamp({dt}, {})", limits.join(", ")) };
    let memory = [("head", heads), ("dim", head_dim), ("state", state)];
    let s = sheet.carry("s", &memory, "a memory for each head");
    sheet.weight("rate", &[heads], Part::DecayRate)?;
    sheet.weight("skip", &[heads], Part::StateSkip)?;
    let op = attrs(&Op::StateSpace(ops::StateSpace { heads, groups, form: mixer.form }));
    sheet.say(format!("o, {s}[..] = state_space({s}[..], x_in, b_in, c_in, {dt}, rate, skip, {op})"));
    sheet.weight("o_gain", &[width], Part::MemoryNorm)?;
    let (eps, parts) = (mixer.eps, mixer.norm_groups);
    let gated = format!("rms_norm(o * silu({z}), o_gain, eps: {eps}, heads: {parts})");
    sheet.linear(&gated, "wo", Part::MemoryOutput, [hidden, width], bias("bo"))
}

/// Writes a short convolution with its ring, and `silu` of it.
fn convolve(
    mixer: &StateSpace,
    name: &str,
    part: Part,
    axes: [(&str, u64); 2],
    x: &str,
    sheet: &mut Sheet<'_>,
) -> Result<(), ModelError> {
    let before = mixer.taps.saturating_sub(1);
    let channels = axes[0].1.saturating_mul(axes[1].1);
    let new = format!("{name}p");
    sheet.say(format!("{new} = {x}"));
    let ring = format!("conv_{name}");
    let joined = sheet.window(
        &ring,
        &[("position", before), axes[0], axes[1]],
        &new,
        "inputs that the convolution still reaches",
    );
    let weight = format!("conv_{name}_t");
    sheet.weight(&weight, &[channels, mixer.taps], part)?;
    let mut operands = format!("{joined}, {weight}");
    if mixer.conv_bias {
        let bias = format!("conv_{name}_b");
        sheet.bias(&bias, channels, part)?;
        operands += &format!(", {bias}");
    }
    sheet.say(format!("{name}_in = silu(conv({operands}))"));
    sheet.keep(&ring, before, &new);
    Ok(())
}
