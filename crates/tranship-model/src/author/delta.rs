//! The gated delta rule (Gated DeltaNet, 2024; by channel: Kimi Linear, 2025): short convolutions of queries, keys and
//! values, each with its ring, a memory for each head, and a gated normalization of what is read from it.

use super::sheet::Sheet;
use crate::{DeltaDecay, DeltaGate, DeltaProjections, GatedDeltaNet, ModelError, Part};
use tranship_program::Op;

/// Added to the sum of squares when queries and keys are brought to length 1.
const L2_EPS: f64 = 1e-6;

/// Writes the mixer over `x`, an expression of rows `[n, hidden]`; gives the expression of its output.
pub(super) fn write(delta: &GatedDeltaNet, x: &str, sheet: &mut Sheet<'_>) -> Result<String, ModelError> {
    let &GatedDeltaNet { key_heads, heads, key_dim, value_dim, .. } = delta;
    let hidden = sheet.hidden();
    sheet.position();
    sheet.title(format!(
        "gated delta rule: {heads} memories of {key_dim} × {value_dim}, {key_heads} heads of queries and keys"
    ));
    let h = sheet.bind("h", x);
    let Projected { q, k, v, gate, beta, decay } = project(delta, &h, sheet)?;
    let convs = [
        (("q", Part::ConvQuery, key_heads, key_dim), q),
        (("k", Part::ConvKey, key_heads, key_dim), k),
        (("v", Part::ConvValue, heads, value_dim), v),
    ];
    for ((name, part, heads, dim), x) in convs {
        convolve(delta.taps, name, part, [heads, dim], &x, sheet)?;
    }
    let unit = |x: &str| format!("l2_norm({x}, heads: {key_heads}, eps: {L2_EPS})");
    let memory = [("head", heads), ("key", key_dim), ("value", value_dim)];
    let s = sheet.carry("s", &memory, "a memory for each head");
    sheet.weight("rate", &[heads], Part::DecayRate)?;
    let decays = match delta.decay {
        DeltaDecay::Head => heads,
        DeltaDecay::Channel { .. } => heads.saturating_mul(key_dim),
    };
    sheet.weight("dt_bias", &[decays], Part::DecayBias)?;
    let form = super::sheet::attrs(&Op::LogDecay(delta.form));
    sheet.say(format!("g = log_decay({decay}, rate, dt_bias, {form})"));
    let scale = (key_dim as f64).sqrt().recip();
    let (mut q, mut k, mut of) = (unit("qc"), unit("kc"), key_heads);
    if delta.projections == DeltaProjections::InTurns && key_heads > 1 && heads > key_heads {
        let times = heads / key_heads;
        (q, k, of) = (format!("tile({q}, times: {times})"), format!("tile({k}, times: {times})"), heads);
    }
    let attrs = format!("heads: {heads}, key_heads: {of}, scale: {scale}");
    sheet.say(format!("o, {s}[..] = gated_delta({s}[..], {q}, {k}, vc, g, sigmoid({beta}), {attrs})"));
    sheet.weight("o_gain", &[value_dim], Part::MemoryNorm)?;
    let normed = format!("rms_norm(o, o_gain, eps: {}, heads: {heads})", delta.eps);
    let width = heads.saturating_mul(value_dim);
    sheet.linear(&format!("{normed} * {gate}"), "wo", Part::MemoryOutput, [hidden, width], None)
}

/// Expressions of the projections.
struct Projected {
    q: String,
    k: String,
    v: String,
    gate: String,
    beta: String,
    decay: String,
}

fn project(delta: &GatedDeltaNet, h: &str, sheet: &mut Sheet<'_>) -> Result<Projected, ModelError> {
    let &GatedDeltaNet { key_heads, heads, key_dim, value_dim, .. } = delta;
    let hidden = sheet.hidden();
    let (k_width, v_width) = (key_heads.saturating_mul(key_dim), heads.saturating_mul(value_dim));
    if delta.projections == DeltaProjections::ByKeyHead {
        // Of each key head: its query, its key, the values and the gates of its value heads.
        let values = (heads / key_heads.max(1)).saturating_mul(value_dim);
        let width = key_dim.saturating_add(values).saturating_mul(2).saturating_mul(key_heads);
        let mixed = sheet.linear(h, "w_mix", Part::DeltaMix, [width, hidden], None)?;
        sheet.say(format!("mix = {mixed}"));
        let (beta, decay) = gates_by_key_head(delta, h, sheet)?;
        let part = |x: &str, from: u64, width: u64| {
            format!("slice({x}, heads: {key_heads}, from: {from}, to: {})", from.saturating_add(width))
        };
        let v_from = key_dim.saturating_mul(2);
        let z = part("mix", v_from.saturating_add(values), values);
        return Ok(Projected {
            q: part("mix", 0, key_dim),
            k: part("mix", key_dim, key_dim),
            v: part("mix", v_from, values),
            gate: format!("silu({z})"),
            beta,
            decay,
        });
    }
    let q = sheet.linear(h, "wq", Part::MemoryQuery, [k_width, hidden], None)?;
    let k = sheet.linear(h, "wk", Part::MemoryKey, [k_width, hidden], None)?;
    let v = sheet.linear(h, "wv", Part::MemoryValue, [v_width, hidden], None)?;
    let (beta, by_head) = if delta.projections == DeltaProjections::GatesByKeyHead {
        let (beta, decay) = gates_by_key_head(delta, h, sheet)?;
        (beta, Some(decay))
    } else {
        (sheet.linear(h, "w_beta", Part::Beta, [heads, hidden], None)?, None)
    };
    let decay = match delta.decay {
        DeltaDecay::Head => match by_head {
            Some(decay) => decay,
            None => sheet.linear(h, "w_decay", Part::Decay, [heads, hidden], None)?,
        },
        DeltaDecay::Channel { rank } => {
            let down = sheet.linear(h, "w_decay_down", Part::DecayDown, [rank, hidden], None)?;
            let width = heads.saturating_mul(key_dim);
            sheet.linear(&down, "w_decay_up", Part::DecayUp, [width, rank], None)?
        }
    };
    let gate = match delta.gate {
        DeltaGate::Silu => {
            let z = sheet.linear(h, "wz", Part::OutputGate, [v_width, hidden], None)?;
            format!("silu({z})")
        }
        DeltaGate::Sigmoid { rank } => {
            let down = sheet.linear(h, "wz_down", Part::OutputGateDown, [rank, hidden], None)?;
            let z = sheet.linear(&down, "wz_up", Part::OutputGateUp, [v_width, rank], None)?;
            format!("sigmoid({z})")
        }
    };
    Ok(Projected { q, k, v, gate, beta, decay })
}

/// Expressions of `beta` and of the decay, of one projection by key head.
fn gates_by_key_head(
    delta: &GatedDeltaNet,
    h: &str,
    sheet: &mut Sheet<'_>,
) -> Result<(String, String), ModelError> {
    let &GatedDeltaNet { key_heads, heads, .. } = delta;
    let own = heads / key_heads.max(1);
    let shape = [heads.saturating_mul(2), sheet.hidden()];
    let gates = sheet.linear(h, "w_gates", Part::DeltaGates, shape, None)?;
    sheet.say(format!("ba = {gates}"));
    let part =
        |from: u64| format!("slice(ba, heads: {key_heads}, from: {from}, to: {})", from.saturating_add(own));
    Ok((part(0), part(own)))
}

/// Writes a short convolution of rows of `heads · dim` channels, with its ring, and `silu` of it as `{name}c`.
fn convolve(
    taps: u64,
    name: &str,
    part: Part,
    [heads, dim]: [u64; 2],
    x: &str,
    sheet: &mut Sheet<'_>,
) -> Result<(), ModelError> {
    let before = taps.saturating_sub(1);
    let new = format!("{name}p");
    sheet.say(format!("{new} = {x}"));
    let ring = format!("conv_{name}");
    let axes = [("position", before), ("head", heads), ("dim", dim)];
    let joined = sheet.window(&ring, &axes, &new, "inputs that the convolution still reaches");
    let weight = format!("conv_{name}_t");
    sheet.weight(&weight, &[heads.saturating_mul(dim), taps], part)?;
    sheet.say(format!("{name}c = silu(conv({joined}, {weight}))"));
    sheet.keep(&ring, before, &new);
    Ok(())
}
