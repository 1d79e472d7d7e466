//! GGUF files of the delta rule and of latent attention: Qwen3-Next, Qwen3.5, Kimi Linear, and DeepSeek-V3
//! (`deepseek2`).
//!
//! Defaults of absent keys beside those of all architectures, as the format's reader defines them: without
//! `attention.recurrent_layers`, all but the last of each `full_attention_interval` (4) are delta rules;
//! `expert_shared_feed_forward_length` is `feed_forward_length`; `leading_dense_block_count` is 0;
//! `attention.q_lora_rank` may be absent. A file that does not name its `expert_gating_func` is one of DeepSeek-V2,
//! whose softmax is not supported here. What the format has no key for is fixed: weights of the chosen experts add to
//! 1, but in `deepseek2`, which has a key for it; the epsilon of compressed rows and queries is 1e-6, as in the
//! families' own configurations; ranks of Kimi's gates are the size of a head.
//!
//! Decays are stored as negative rates, and gains whole. Value heads of Qwen3.5 are stored in turns of their key
//! heads. What expands compressed rows is one tensor in older files, `attn_kv_b`, and two since: `attn_k_b`, whose
//! axes are exchanged, and so not to be had from block encodings, and `attn_v_b`. `yarn_log_multiplier` of `deepseek2`
//! is a tenth of what it is elsewhere, and scales scores; where it is written, cosine and sine are not scaled.

use super::attention::Sizes;
use super::gguf::Gguf;
use super::gguf_layers::{
    self, Count, NORM_AFTER_ATTENTION, biases, eps, expert_width, names, rope, silu, spec, windowless,
};
use super::{LAYERS, TAPS, WIDTH, delta, value};
use crate::{
    Attention, DeltaDecay, DeltaGate, DeltaProjections, Experts, Ffn, GatedDeltaNet, LatentAttention,
    LayerSpec, Mixer, ModelError, ModelSpec, Names, Part, QkNorm, RopeSpec,
};
use tranship_program::ops::{DecayForm, RopeStyle, Scaling};

/// Of the normalizations within latent attention.
const LATENT_EPS: f64 = 1e-6;

/// `general.architecture: "qwen3next"`: older files have all projections by key head, newer ones only the gates.
pub(super) fn qwen3next(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let count = Count::of(gguf)?;
    let older = (0..count.layers).any(|layer| gguf.has(&format!("blk.{layer}.ssm_in.weight")));
    let projections = if older { DeltaProjections::ByKeyHead } else { DeltaProjections::GatesByKeyHead };
    let experts = Ffn::Experts(qwen_experts(gguf)?);
    qwen(gguf, projections, |_| Ok(experts.clone()))
}

/// `general.architecture: "qwen35"`
pub(super) fn qwen35(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    qwen(gguf, DeltaProjections::InTurns, |layer| silu(gguf, layer))
}

/// `general.architecture: "qwen35moe"`
pub(super) fn qwen35moe(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let experts = Ffn::Experts(qwen_experts(gguf)?);
    qwen(gguf, DeltaProjections::InTurns, |_| Ok(experts.clone()))
}

fn qwen_experts(gguf: &Gguf<'_>) -> Result<Experts, ModelError> {
    let experts = gguf_layers::experts(gguf, expert_width(gguf)?, gguf_layers::softmax(gguf)?)?;
    let width = match gguf.above_zero("expert_shared_feed_forward_length", &WIDTH)? {
        Some(width) => width,
        None => Count::of(gguf)?.size(gguf, "feed_forward_length")?,
    };
    Ok(Experts { shared: gguf_layers::shared(width, &experts, true), ..experts })
}

/// Qwen's layers: delta rules, and attention whose output is gated.
fn qwen(
    gguf: &Gguf<'_>,
    projections: DeltaProjections,
    ffn: impl Fn(usize) -> Result<Ffn, ModelError>,
) -> Result<ModelSpec, ModelError> {
    windowless(gguf)?;
    let count = Count::of(gguf)?;
    let recurrent = match count.flags(gguf, "attention.recurrent_layers")? {
        Some(flags) => flags,
        None => {
            let interval = gguf.whole_or("full_attention_interval", &LAYERS)?.unwrap_or(4);
            (1..=count.layers as u64).map(|layer| !layer.is_multiple_of(interval)).collect()
        }
    };
    let delta = qwen_delta(gguf, projections)?;
    let sizes = Sizes::of_gguf(gguf)?;
    let rope = rope(gguf, sizes.head_dim, RopeStyle::Half)?;
    let attention = Attention { qk_norm: QkNorm::Head, gated: true, ..sizes.attention(Some(rope)) };
    let biases = biases(gguf)?;
    spec(gguf, qwen_names(&delta), |layer| {
        let mixer = match recurrent[layer] {
            true => Mixer::GatedDelta(delta.clone()),
            false => Mixer::Attention(Attention { biases, ..attention.clone() }),
        };
        Ok(LayerSpec::new(mixer, ffn(layer)?))
    })
}

fn qwen_delta(gguf: &Gguf<'_>, projections: DeltaProjections) -> Result<GatedDeltaNet, ModelError> {
    let size = |key| gguf.whole(key, &WIDTH);
    let (heads_key, keys_key, width_key) = ("ssm.time_step_rank", "ssm.group_count", "ssm.inner_size");
    let (heads, key_heads, width) = (size(heads_key)?, size(keys_key)?, size(width_key)?);
    if !heads.is_multiple_of(key_heads) {
        let wanted = format!("a divisor of the {heads} of `{}`", gguf.path(heads_key));
        return Err(value(gguf.path(keys_key), wanted, key_heads));
    }
    if !width.is_multiple_of(heads) {
        return Err(value(gguf.path(width_key), format!("a multiple of the {heads} heads"), width));
    }
    Ok(GatedDeltaNet {
        key_heads,
        heads,
        key_dim: size("ssm.state_size")?,
        value_dim: width / heads,
        taps: gguf.whole("ssm.conv_kernel", &TAPS)?,
        projections,
        decay: DeltaDecay::Head,
        gate: DeltaGate::Silu,
        form: DecayForm::Negative,
        eps: eps(gguf)?,
    })
}

fn qwen_names(delta: &GatedDeltaNet) -> Names {
    let names = names().with(NORM_AFTER_ATTENTION).with(QWEN);
    delta::mixed(names, delta, "blk.{layer}.attn_qkv.{}", "blk.{layer}.ssm_conv1d.{}")
}

const QWEN: &[(Part, &str)] = &[
    (Part::DeltaMix, "blk.{layer}.ssm_in.{}"),
    (Part::DeltaGates, "blk.{layer}.ssm_ba.{}"),
    (Part::Beta, "blk.{layer}.ssm_beta.{}"),
    (Part::Decay, "blk.{layer}.ssm_alpha.{}"),
    (Part::DecayRate, "blk.{layer}.ssm_a"),
    (Part::DecayBias, "blk.{layer}.ssm_dt.bias"),
    (Part::OutputGate, "blk.{layer}.attn_gate.{}"),
    (Part::MemoryNorm, "blk.{layer}.ssm_norm.{}"),
    (Part::MemoryOutput, "blk.{layer}.ssm_out.{}"),
];

/// `general.architecture: "kimi-linear"`: layers without key and value heads are delta rules, the others latent
/// attention without positions.
pub(super) fn kimi_linear(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let count = Count::of(gguf)?;
    let key_heads = count.sizes(gguf, "attention.head_count_kv")?;
    let (latent, delta) = (latent(gguf, false)?, kimi_delta(gguf, count)?);
    let names = latent_names(gguf, count, &latent, names().with(KIMI));
    let route = gguf_layers::grouped(gguf, false, true)?;
    let experts = gguf_layers::experts(gguf, expert_width(gguf)?, route)?;
    let ffn = after_dense(gguf, experts)?;
    spec(gguf, names, |layer| {
        let mixer = match key_heads[layer] {
            0 => Mixer::GatedDelta(delta.clone()),
            _ => Mixer::Latent(latent.clone()),
        };
        Ok(LayerSpec::new(mixer, ffn(layer)?))
    })
}

fn kimi_delta(gguf: &Gguf<'_>, count: Count) -> Result<GatedDeltaNet, ModelError> {
    let heads = count.size(gguf, "attention.head_count")?;
    let dim = gguf.whole("kda.head_dim", &WIDTH)?;
    Ok(GatedDeltaNet {
        key_heads: heads,
        heads,
        key_dim: dim,
        value_dim: dim,
        taps: gguf.whole("ssm.conv_kernel", &TAPS)?,
        projections: DeltaProjections::Apart,
        decay: DeltaDecay::Channel { rank: dim },
        gate: DeltaGate::Sigmoid { rank: dim },
        form: DecayForm::Negative,
        eps: eps(gguf)?,
    })
}

const KIMI: &[(Part, &str)] = &[
    (Part::MemoryQuery, "blk.{layer}.attn_q.{}"),
    (Part::MemoryKey, "blk.{layer}.attn_k.{}"),
    (Part::MemoryValue, "blk.{layer}.attn_v.{}"),
    (Part::ConvQuery, "blk.{layer}.ssm_conv1d_q.{}"),
    (Part::ConvKey, "blk.{layer}.ssm_conv1d_k.{}"),
    (Part::ConvValue, "blk.{layer}.ssm_conv1d_v.{}"),
    (Part::Beta, "blk.{layer}.ssm_beta.{}"),
    (Part::DecayDown, "blk.{layer}.ssm_f_a.{}"),
    (Part::DecayUp, "blk.{layer}.ssm_f_b.{}"),
    (Part::DecayRate, "blk.{layer}.ssm_a"),
    (Part::DecayBias, "blk.{layer}.ssm_dt.bias"),
    (Part::OutputGateDown, "blk.{layer}.ssm_g_a.{}"),
    (Part::OutputGateUp, "blk.{layer}.ssm_g_b.{}"),
    (Part::MemoryNorm, "blk.{layer}.ssm_norm.{}"),
    (Part::MemoryOutput, "blk.{layer}.attn_output.{}"),
];

/// `general.architecture: "deepseek2"`
pub(super) fn deepseek2(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let (count, latent) = (Count::of(gguf)?, latent(gguf, true)?);
    let normalize = gguf.flag_or("expert_weights_norm", false)?;
    let route = gguf_layers::grouped(gguf, false, normalize)?;
    let experts = gguf_layers::experts(gguf, expert_width(gguf)?, route)?;
    let ffn = after_dense(gguf, experts)?;
    let names = latent_names(gguf, count, &latent, names());
    spec(gguf, names, |layer| Ok(LayerSpec::new(Mixer::Latent(latent.clone()), ffn(layer)?)))
}

/// Experts beside a part that all rows go to, after `leading_dense_block_count` layers without.
fn after_dense<'a>(
    gguf: &'a Gguf<'a>,
    experts: Experts,
) -> Result<impl Fn(usize) -> Result<Ffn, ModelError> + use<'a>, ModelError> {
    let dense = gguf.whole_or("leading_dense_block_count", &(0..=*LAYERS.end()))?.unwrap_or(0) as usize;
    let shared = gguf_layers::shared_count(gguf, &experts)?;
    let experts = Ffn::Experts(Experts { shared, ..experts });
    Ok(move |layer| if layer < dense { silu(gguf, layer) } else { Ok(experts.clone()) })
}

/// Latent attention; `turned` says whether the shared key is rotated.
fn latent(gguf: &Gguf<'_>, turned: bool) -> Result<LatentAttention, ModelError> {
    let count = Count::of(gguf)?;
    let heads = count.size(gguf, "attention.head_count")?;
    // Without the keys of heads as they are expanded, in older files, the plain ones say their sizes.
    let key = |mla, plain| if gguf.get(mla).is_some() { mla } else { plain };
    let key_key = key("attention.key_length_mla", "attention.key_length");
    let value_key = key("attention.value_length_mla", "attention.value_length");
    let whole_key = gguf.whole(key_key, &(2..=*WIDTH.end()))?;
    let rope_dim = gguf.whole("rope.dimension_count", &(1..=whole_key - 1))?;
    let value_dim = gguf.whole(value_key, &WIDTH)?;
    for (key, dim) in [(key_key, whole_key), (value_key, value_dim)] {
        if heads.checked_mul(dim).is_none_or(|width| width > *WIDTH.end()) {
            return Err(value(
                gguf.path(key),
                format!("at most {} elements in {heads} heads", WIDTH.end()),
                dim,
            ));
        }
    }
    let (rope, factor) = if turned { turned_key(gguf, rope_dim)? } else { (None, 1.0) };
    Ok(LatentAttention {
        heads,
        query_rank: gguf.above_zero("attention.q_lora_rank", &WIDTH)?,
        latent: gguf.whole("attention.kv_lora_rank", &WIDTH)?,
        key_dim: whole_key - rope_dim,
        rope_dim,
        value_dim,
        scale: (whole_key as f64).sqrt().recip() * factor,
        rope,
        eps: LATENT_EPS,
        biased: false,
    })
}

/// The positions of the shared key, and what scores are multiplied by for YaRN's sake: `m²` with
/// `m = 0.1 · mscale_all_dim · ln(factor) + 1`.
fn turned_key(gguf: &Gguf<'_>, rope_dim: u64) -> Result<(Option<RopeSpec>, f64), ModelError> {
    let rope = rope(gguf, rope_dim, RopeStyle::Interleaved)?;
    let all = gguf.real_or("rope.scaling.yarn_log_multiplier", &(0.0..=1e12))?.unwrap_or(0.0) * 10.0;
    let Scaling::Yarn { factor, original, beta_fast, beta_slow, whole, .. } = rope.scaling else {
        return Ok((Some(rope), 1.0));
    };
    if all == 0.0 {
        return Ok((Some(rope), 1.0));
    }
    let m = 0.1 * all * factor.max(1.0).ln() + 1.0;
    let scaling = Scaling::Yarn { factor, original, beta_fast, beta_slow, magnitude: 1.0, whole };
    Ok((Some(RopeSpec { scaling, ..rope }), m * m))
}

/// The names of latent attention: its two projections down are rows of one tensor.
fn latent_names(gguf: &Gguf<'_>, count: Count, latent: &LatentAttention, names: Names) -> Names {
    let (rank, all) = (latent.latent, latent.latent.saturating_add(latent.rope_dim));
    let mut names = names.with(&[
        (Part::QueryDown, "blk.{layer}.attn_q_a.{}"),
        (Part::QueryDownNorm, "blk.{layer}.attn_q_a_norm.{}"),
        (Part::QueryUp, "blk.{layer}.attn_q_b.{}"),
        (Part::LatentNorm, "blk.{layer}.attn_kv_a_norm.{}"),
        (Part::LatentUp, "beside(blk.{layer}.attn_k_b.{}^T, blk.{layer}.attn_v_b.{})"),
    ]);
    names.set(Part::Latent, format!("blk.{{layer}}.attn_kv_a_mqa.{{}}[0..{rank}]"));
    names.set(Part::SharedKey, format!("blk.{{layer}}.attn_kv_a_mqa.{{}}[{rank}..{all}]"));
    if (0..count.layers).any(|layer| gguf.has(&format!("blk.{layer}.attn_kv_b.weight"))) {
        names.set(Part::LatentUp, "blk.{layer}.attn_kv_b.{}");
    }
    names
}
