//! GGUF files of the delta rule, of latent attention and of compressed rows: Qwen3-Next, Qwen3.5, Kimi Linear,
//! DeepSeek-V3 (`deepseek2`) and DeepSeek-V4 (`deepseek4`).
//!
//! Defaults of absent keys beside those of all architectures, as the format's reader defines them: without
//! `attention.recurrent_layers`, all but the last of each `full_attention_interval` (4) are delta rules;
//! `expert_shared_feed_forward_length` is `feed_forward_length`; `leading_dense_block_count` is 0;
//! `attention.q_lora_rank` may be absent. A file that does not name its `expert_gating_func` is one of DeepSeek-V2,
//! whose softmax is not supported here; in `deepseek4`, `swiglu_clamp_shexp` is `swiglu_clamp_exp`, and a bound of no
//! more than a millionth is none. What the format has no key for is fixed: weights of the chosen experts add to
//! 1, but in `deepseek2`, which has a key for it; the epsilon of compressed rows and queries is 1e-6, as in the
//! families' own configurations; ranks of Kimi's gates are the size of a head.
//!
//! Decays are stored as negative rates, and gains whole. Value heads of Qwen3.5 are stored in turns of their key
//! heads. What expands compressed rows is one tensor in older files, `attn_kv_b`, and two since: `attn_k_b`, whose
//! axes are exchanged, and so not to be had from block encodings, and `attn_v_b`. `yarn_log_multiplier` of `deepseek2`
//! is a tenth of what it is elsewhere, and scales scores; where it is written, cosine and sine are not scaled.
//!
//! In `deepseek4` they never are, and layers that only slide are not stretched. Its `attention.compress_ratios` may have
//! entries for layers beyond the last; a layer compresses at no rate, at 4 (with overlap, and an indexer) or at 128. The
//! first `hash_layer_count` layers have a table of the experts of each token.

use super::attention::Sizes;
use super::gguf::Gguf;
use super::gguf_layers::{
    self, Count, NORM_AFTER_ATTENTION, biases, eps, expert_width, names, rope, silu, spec, windowless,
};
use super::{EPS, LAYERS, TAPS, THETA, WIDTH, deepseek, delta, unsupported, value};
use crate::{
    Attention, CompressedAttention, Compressor, DeltaDecay, DeltaGate, DeltaProjections, Experts, Ffn,
    GatedDeltaNet, HyperConnections, Indexer, LatentAttention, LayerSpec, Mixer, ModelError, ModelSpec,
    Names, Part, QkNorm, RopeSpec,
};
use tranship_program::ops::{DecayForm, RopeStyle, Route, RouteBias, Scaling, Score};

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
    let recurrent = count.recurrent(gguf, 4)?;
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

/// `general.architecture: "deepseek4"`
pub(super) fn deepseek4(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let count = Count::of(gguf)?;
    let rates = rates(gguf, count)?;
    let attention = shared_rows(gguf)?;
    let compressed_theta = gguf.real("attention.compress_rope_freq_base", &THETA)?;
    let top_k = gguf.whole("attention.indexer.top_k", &(1..=1 << 16))?;
    let indexer = Indexer {
        heads: gguf.whole("attention.indexer.head_count", &WIDTH)?,
        head_dim: gguf.whole("attention.indexer.key_length", &(attention.rope.dims..=*WIDTH.end()))?,
        top_k,
    };
    let hashed = gguf.whole("hash_layer_count", &(0..=count.layers as u64))? as usize;
    let experts = hashable_experts(gguf, count)?;
    let streams = gguf.whole("hyper_connection.count", &(2..=64))?;
    let hyper = HyperConnections {
        iterations: gguf.whole("hyper_connection.sinkhorn_iterations", &(1..=1000))?,
        eps: gguf.real("hyper_connection.epsilon", &EPS)?,
    };
    let spec = spec(gguf, names().with(DEEPSEEK4), |layer| {
        let compressor = match rates[layer] {
            0 => None,
            rate @ 4 => Some(Compressor { rate, overlap: true, indexer: Some(indexer.clone()) }),
            rate => Some(Compressor { rate, overlap: false, indexer: None }),
        };
        let (theta, scaling) = match compressor {
            None => (attention.rope.theta, Scaling::None),
            Some(_) => (compressed_theta, deepseek::plain_yarn(attention.rope.scaling.clone())),
        };
        let rope = RopeSpec { theta, scaling, ..attention.rope.clone() };
        let mixer = CompressedAttention { rope, compressor, ..attention.clone() };
        let mut experts = experts[layer].clone();
        if layer < hashed {
            experts.routing.by_token = true;
            experts.routing.route.bias = None;
        }
        Ok(LayerSpec::new(Mixer::Compressed(mixer), Ffn::Experts(experts)))
    })?;
    gguf.only("embedding_length_out", spec.hidden.saturating_mul(streams))?;
    Ok(ModelSpec { streams, hyper: Some(hyper), ..spec })
}

/// Tokens for a compressed row of each layer, 0 of layers without.
fn rates(gguf: &Gguf<'_>, count: Count) -> Result<Vec<u64>, ModelError> {
    let path = gguf.path("attention.compress_ratios");
    let mut rates: Vec<u64> = gguf.checkpoint.metadata().require(&path)?;
    if rates.len() < count.layers {
        return Err(value(path, format!("a rate for each of {} layers", count.layers), rates.len()));
    }
    rates.truncate(count.layers);
    match rates.iter().find(|rate| ![0, 4, 128].contains(*rate)) {
        Some(other) => Err(unsupported(path, other, "0, 4, 128")),
        None => Ok(rates),
    }
}

/// Attention over rows that are key and value in one, as it is in all layers but for what is compressed.
fn shared_rows(gguf: &Gguf<'_>) -> Result<CompressedAttention, ModelError> {
    let Sizes { heads, kv_heads, head_dim } = Sizes::of_gguf(gguf)?;
    if kv_heads != 1 {
        return Err(unsupported(gguf.path("attention.head_count_kv"), kv_heads, "1"));
    }
    let groups_key = "attention.output_group_count";
    let output_groups = gguf.whole(groups_key, &(1..=heads))?;
    if !heads.is_multiple_of(output_groups) {
        return Err(value(gguf.path(groups_key), format!("a divisor of the {heads} heads"), output_groups));
    }
    Ok(CompressedAttention {
        heads,
        head_dim,
        query_rank: gguf.whole("attention.q_lora_rank", &WIDTH)?,
        window: gguf.whole("attention.sliding_window", &(1..=1 << 31))?,
        scale: (head_dim as f64).sqrt().recip(),
        rope: rope(gguf, head_dim, RopeStyle::Interleaved)?,
        output_groups,
        output_rank: gguf.whole("attention.output_lora_rank", &WIDTH)?,
        compressor: None,
    })
}

/// The experts of each layer, beside a part that all rows go to; chosen by score and bias.
fn hashable_experts(gguf: &Gguf<'_>, count: Count) -> Result<Vec<Experts>, ModelError> {
    /// The number of `sqrt(softplus(x))` in the format.
    const SQRT_SOFTPLUS: u64 = 4;
    let key = "expert_gating_func";
    let found = gguf.whole(key, &(0..=u64::MAX))?;
    if found != SQRT_SOFTPLUS {
        return Err(unsupported(gguf.path(key), found, "4: the root of the softplus of scores"));
    }
    let normalize = gguf.flag("expert_weights_norm")?;
    let route = Route {
        score: Score::SqrtSoftplus,
        bias: Some(RouteBias::Choice),
        normalize,
        eps: if normalize { 1e-20 } else { 0.0 },
        ..gguf_layers::softmax(gguf)?
    };
    let experts = gguf_layers::experts(gguf, count.size(gguf, "expert_feed_forward_length")?, route)?;
    let shared = gguf_layers::shared_count(gguf, &experts)?;
    let (key, range) = ("swiglu_clamp_exp", 0.0..=1e9);
    let limits = count.reals(gguf, key, &range)?;
    let limits = limits.ok_or_else(|| gguf.absent(key, "an f32, or an array with one for each layer"))?;
    let shared_limits = count.reals(gguf, "swiglu_clamp_shexp", &range)?.unwrap_or_else(|| limits.clone());
    let limit = |bound: f64| Some(bound).filter(|bound| *bound > 1e-6);
    let of_layer = |(own, all): (f64, f64)| {
        let mut shared = shared.clone();
        if let Some(shared) = &mut shared {
            shared.ffn.limit = limit(all);
        }
        Experts { limit: limit(own), shared, ..experts.clone() }
    };
    Ok(limits.into_iter().zip(shared_limits).map(of_layer).collect())
}

const DEEPSEEK4: &[(Part, &str)] = &[
    (Part::HeadStreams, "output_hc_fn.{}"),
    (Part::HeadStreamsBase, "output_hc_base.{}"),
    (Part::HeadStreamsScale, "output_hc_scale.{}"),
    (Part::MixerStreams, "blk.{layer}.hc_attn_fn.{}"),
    (Part::MixerStreamsBase, "blk.{layer}.hc_attn_base.{}"),
    (Part::MixerStreamsScale, "blk.{layer}.hc_attn_scale.{}"),
    (Part::FfnStreams, "blk.{layer}.hc_ffn_fn.{}"),
    (Part::FfnStreamsBase, "blk.{layer}.hc_ffn_base.{}"),
    (Part::FfnStreamsScale, "blk.{layer}.hc_ffn_scale.{}"),
    (Part::QueryDown, "blk.{layer}.attn_q_a.{}"),
    (Part::QueryDownNorm, "blk.{layer}.attn_q_a_norm.{}"),
    (Part::QueryUp, "blk.{layer}.attn_q_b.{}"),
    (Part::Row, "blk.{layer}.attn_kv.{}"),
    (Part::RowNorm, "blk.{layer}.attn_kv_a_norm.{}"),
    (Part::OutputDown, "blk.{layer}.attn_output_a.{}"),
    (Part::Output, "blk.{layer}.attn_output_b.{}"),
    (Part::CompressorRow, "blk.{layer}.attn_compressor_kv.{}"),
    (Part::CompressorGate, "blk.{layer}.attn_compressor_gate.{}"),
    (Part::CompressorBias, "blk.{layer}.attn_compressor_ape.{}"),
    (Part::CompressorNorm, "blk.{layer}.attn_compressor_norm.{}"),
    (Part::IndexerRow, "blk.{layer}.indexer_compressor_kv.{}"),
    (Part::IndexerGate, "blk.{layer}.indexer_compressor_gate.{}"),
    (Part::IndexerBias, "blk.{layer}.indexer_compressor_ape.{}"),
    (Part::IndexerNorm, "blk.{layer}.indexer_compressor_norm.{}"),
    (Part::IndexerQuery, "blk.{layer}.indexer.attn_q_b.{}"),
    (Part::IndexerWeights, "blk.{layer}.indexer.proj.{}"),
    (Part::RouterTable, "blk.{layer}.ffn_gate_tid2eid.{}"),
];
