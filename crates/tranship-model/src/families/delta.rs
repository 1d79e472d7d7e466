//! Families of the gated delta rule: Qwen3-Next, Qwen3.5 and Kimi Linear.
//!
//! Defaults of absent keys, as `transformers` defines them: `rope_theta` (10000), `partial_rotary_factor` (0.25, in the
//! Qwen families), `attention_bias` and `tie_word_embeddings` (false), `decoder_sparse_step` (1), `mlp_only_layers`
//! (none), `norm_topk_prob` and `moe_renormalize` (true), `q_lora_rank` (none). `layer_types` follows from
//! `full_attention_interval`, and in Kimi Linear from the two lists of `linear_attn_config`, which count from 1. All
//! else must be there.
//!
//! Gains of the Qwen families are given by their distance from 1, but for the one of what is read from a memory.
//! Weights of Qwen3.5's experts always add to 1. A released Qwen3.5 is a composite: its language model is what
//! `text_config` says, under names of its own, and its parts for images are left out, as are layers that predict
//! further tokens. Positions of a text are the same in each section of `mrope_section`.
//!
//! Kimi's attention has no positions, and a normalization with an epsilon of its own; `head_dim`, `num_key_value_heads`
//! and `rope_theta` are written there and mean nothing.

use super::attention::{Absent, Sizes, biases, mixer};
use super::config::Config;
use super::layers::{self, count, spec};
use super::rope::{self, DEFAULT_THETA};
use super::{LAYERS, TAPS, WIDTH, deepseek, ffn, mixture, value};
use crate::{
    Attention, DeltaDecay, DeltaGate, DeltaProjections, Experts, Ffn, GatedDeltaNet, LayerSpec, Mixer,
    ModelError, ModelSpec, Names, Part, QkNorm, SharedExpert,
};
use tranship_program::ops::{DecayForm, Route};

const EPS_KEY: &str = "rms_norm_eps";

/// `model_type: "qwen3_next"`: projections of the delta rule lie together by key head, and experts each on their own.
pub(super) fn qwen3_next(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    config.only("use_sliding_window", false)?;
    let sparse = mixture::sparse(config)?;
    let normalize = config.flag_or("norm_topk_prob", true)?;
    let (names, delta) = qwen_delta(config, DeltaProjections::ByKeyHead)?;
    qwen(config, delta, names.with(QWEN3_NEXT), |layer| match sparse[layer] {
        true => qwen_experts(config, normalize).map(Ffn::Experts),
        false => ffn::dense(config),
    })
}

/// `model_type: "qwen3_5_text"`: projections apart, and dense feed-forward parts.
pub(super) fn qwen3_5_text(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let (names, delta) = qwen_delta(config, DeltaProjections::Apart)?;
    qwen(config, delta, names, |_| ffn::dense(config))
}

/// `model_type: "qwen3_5_moe_text"`: the same with experts, all of a layer in one tensor.
pub(super) fn qwen3_5_moe_text(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let (mut names, delta) = qwen_delta(config, DeltaProjections::Apart)?;
    let experts = qwen_experts(config, true)?;
    let (width, both) = (experts.width, experts.width.saturating_mul(2));
    let merged = "model.layers.{layer}.mlp.experts.gate_up_proj";
    names.set(Part::ExpertGate, format!("{merged}[:, 0..{width}]"));
    names.set(Part::ExpertUp, format!("{merged}[:, {width}..{both}]"));
    names.set(Part::ExpertDown, "model.layers.{layer}.mlp.experts.down_proj");
    qwen(config, delta, names, |_| Ok(Ffn::Experts(experts.clone())))
}

/// `model_type: "qwen3_5"`: a composite, of which this is the language model.
pub(super) fn qwen3_5(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    language_model(config, "qwen3_5_text", qwen3_5_text)
}

/// `model_type: "qwen3_5_moe"`
pub(super) fn qwen3_5_moe(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    language_model(config, "qwen3_5_moe_text", qwen3_5_moe_text)
}

/// The language model of a composite, whose own keys say whether the head is the embedding table.
fn language_model(
    config: &Config<'_>,
    model_type: &str,
    family: impl Fn(&Config<'_>) -> Result<ModelSpec, ModelError>,
) -> Result<ModelSpec, ModelError> {
    let Some(text) = config.inner("text_config")? else {
        return Err(ModelError::MissingKey { key: config.path("text_config"), wanted: "an object".into() });
    };
    text.stated("model_type", &format!("{model_type:?}"))?;
    text.only("model_type", model_type)?;
    let spec = family(&text)?;
    let names = spec.names.under(PLAIN, WITHIN);
    let (tied_head, dtype) = (config.flag_or("tie_word_embeddings", false)?, config.dtype()?);
    Ok(ModelSpec { names, tied_head, dtype: spec.dtype.or(dtype), ..spec })
}

/// Where the names of a language model start, and where they do within a composite.
const PLAIN: &str = "model.";
const WITHIN: &str = "model.language_model.";

/// A spec with the names that a checkpoint has, of a language model that was released within a composite: there its
/// configuration may stand for itself, and its tensors have the longer names all the same.
pub(crate) fn within(spec: ModelSpec, has: impl Fn(&str) -> bool) -> Result<ModelSpec, ModelError> {
    let longer = spec.names.clone().under(PLAIN, WITHIN);
    match !has(&spec.names.weight(Part::Table, 0)?) && has(&longer.weight(Part::Table, 0)?) {
        true => Ok(ModelSpec { names: longer, ..spec }),
        false => Ok(spec),
    }
}

/// Qwen's layers: delta rules, and attention whose output is gated.
fn qwen(
    config: &Config<'_>,
    delta: GatedDeltaNet,
    names: Names,
    ffn: impl Fn(usize) -> Result<Ffn, ModelError>,
) -> Result<ModelSpec, ModelError> {
    config.only("attn_output_gate", true)?;
    let sizes = Sizes::of(config, Absent::Refused, Absent::Refused)?;
    let rope = rope::part_of_heads(config, sizes.head_dim, 0.25, DEFAULT_THETA)?;
    let (biases, qk_norm) = (biases(config)?, QkNorm::Head);
    let attention = Attention { biases, qk_norm, gated: true, ..sizes.attention(Some(rope)) };
    let full = match layers::types(config, &["full_attention", "linear_attention"])? {
        Some(types) => types.into_iter().map(|layer| layer == "full_attention").collect(),
        None => {
            let interval = config.whole("full_attention_interval", &LAYERS)?;
            (1..=count(config)?).map(|layer| layer.is_multiple_of(interval)).collect::<Vec<bool>>()
        }
    };
    let spec = spec(config, EPS_KEY, names, |layer| {
        let mixer = if full[layer] { mixer(&attention, None) } else { Mixer::GatedDelta(delta.clone()) };
        Ok(LayerSpec::new(mixer, ffn(layer)?))
    })?;
    Ok(ModelSpec { gain_offset: 1.0, ..spec })
}

/// Qwen's delta rule by its keys, and the names of a checkpoint in which its projections lie apart.
fn qwen_delta(
    config: &Config<'_>,
    projections: DeltaProjections,
) -> Result<(Names, GatedDeltaNet), ModelError> {
    // The convolutions' activation, as well as that of feed-forward parts.
    config.only("hidden_act", "silu")?;
    let size = |key| config.whole(key, &WIDTH);
    let (heads_key, key_heads_key) = ("linear_num_value_heads", "linear_num_key_heads");
    let (heads, key_heads) = (size(heads_key)?, size(key_heads_key)?);
    if !heads.is_multiple_of(key_heads) {
        let wanted = format!("a divisor of the {heads} of `{heads_key}`");
        return Err(value(config.path(key_heads_key), wanted, key_heads));
    }
    let delta = GatedDeltaNet {
        key_heads,
        heads,
        key_dim: size("linear_key_head_dim")?,
        value_dim: size("linear_value_head_dim")?,
        taps: config.whole("linear_conv_kernel_dim", &TAPS)?,
        projections,
        decay: DeltaDecay::Head,
        gate: DeltaGate::Silu,
        form: DecayForm::Log,
        eps: config.real(EPS_KEY, &super::EPS)?,
    };
    let names = Names::hugging_face().with(ffn::UNDER_MLP).with(QWEN);
    let (projection, convolution) =
        ("model.layers.{layer}.linear_attn.in_proj_qkv.{}", "model.layers.{layer}.linear_attn.conv1d.{}");
    Ok((mixed(names, &delta, projection, convolution), delta))
}

/// The names of queries, keys and values that are rows of one projection and channels of one convolution, in this order.
pub(super) fn mixed(mut names: Names, delta: &GatedDeltaNet, projection: &str, convolution: &str) -> Names {
    let keys = delta.key_heads.saturating_mul(delta.key_dim);
    let values = delta.heads.saturating_mul(delta.value_dim);
    let ends = [0, keys, keys.saturating_mul(2), keys.saturating_mul(2).saturating_add(values)];
    let parts = [
        (Part::MemoryQuery, Part::ConvQuery),
        (Part::MemoryKey, Part::ConvKey),
        (Part::MemoryValue, Part::ConvValue),
    ];
    for ((rows, channels), ends) in parts.into_iter().zip(ends.windows(2)) {
        names.set(rows, format!("{projection}[{}..{}]", ends[0], ends[1]));
        names.set(channels, format!("{convolution}[{}..{}]", ends[0], ends[1]));
    }
    names
}

/// Experts beside a part that all rows go to, by as much as a number for each row says.
fn qwen_experts(config: &Config<'_>, normalize: bool) -> Result<Experts, ModelError> {
    let experts = ffn::experts(config, "num_experts", "moe_intermediate_size", |experts| {
        Ok(Route { normalize, ..ffn::softmax(config, "num_experts_per_tok", experts)? })
    })?;
    let ffn = ffn::gated(config, "shared_expert_intermediate_size", "hidden_act")?;
    Ok(Experts { shared: Some(SharedExpert { ffn, gated: true }), ..experts })
}

const QWEN: &[(Part, &str)] = &[
    (Part::Beta, "model.layers.{layer}.linear_attn.in_proj_b.{}"),
    (Part::Decay, "model.layers.{layer}.linear_attn.in_proj_a.{}"),
    (Part::DecayRate, "model.layers.{layer}.linear_attn.A_log"),
    (Part::DecayBias, "model.layers.{layer}.linear_attn.dt_bias"),
    (Part::OutputGate, "model.layers.{layer}.linear_attn.in_proj_z.{}"),
    (Part::MemoryNorm, "model.layers.{layer}.linear_attn.norm.{}"),
    (Part::MemoryOutput, "model.layers.{layer}.linear_attn.out_proj.{}"),
    (Part::SharedGate, "model.layers.{layer}.mlp.shared_expert.gate_proj.{}"),
    (Part::SharedUp, "model.layers.{layer}.mlp.shared_expert.up_proj.{}"),
    (Part::SharedDown, "model.layers.{layer}.mlp.shared_expert.down_proj.{}"),
    (Part::SharedScale, "model.layers.{layer}.mlp.shared_expert_gate.{}"),
];

const QWEN3_NEXT: &[(Part, &str)] = &[
    (Part::DeltaMix, "model.layers.{layer}.linear_attn.in_proj_qkvz.{}"),
    (Part::DeltaGates, "model.layers.{layer}.linear_attn.in_proj_ba.{}"),
];

/// `model_type: "kimi_linear"`: delta rules that decay by channel, and latent attention without positions.
pub(super) fn kimi_linear(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    config.only("hidden_act", "silu")?;
    config.only("mla_use_nope", true)?;
    config.only("moe_router_activation_func", "sigmoid")?;
    config.only("use_grouped_topk", true)?;
    config.only("moe_layer_freq", 1)?;
    let (latent, (full, delta)) = (deepseek::latent(config, false)?, kimi_delta(config)?);
    let names = Names::hugging_face().with(ffn::UNDER_BLOCK).with(KIMI);
    let names = deepseek::latent_names(&latent, names);
    let normalize = config.flag_or("moe_renormalize", true)?;
    let experts = ffn::experts(config, "num_experts", "moe_intermediate_size", |experts| {
        let groups = ("num_expert_group", "topk_group");
        ffn::grouped(config, "num_experts_per_token", groups, normalize, experts)
    })?;
    let shared = ffn::shared(config, "num_shared_experts", &experts)?;
    let experts = Ffn::Experts(Experts { shared, ..experts });
    let dense_layers = config.whole("first_k_dense_replace", &(0..=count(config)?))? as usize;
    let dense = ffn::dense(config)?;
    let keys = layers::Keys { eps: EPS_KEY, positions: "model_max_length" };
    layers::spec_by(config, keys, names, |layer| {
        let mixer = match full[layer] {
            true => Mixer::Latent(latent.clone()),
            false => Mixer::GatedDelta(delta.clone()),
        };
        let ffn = if layer < dense_layers { &dense } else { &experts };
        Ok(LayerSpec::new(mixer, ffn.clone()))
    })
}

/// `linear_attn_config`: which layers attend, and what the others are.
fn kimi_delta(config: &Config<'_>) -> Result<(Vec<bool>, GatedDeltaNet), ModelError> {
    let key = "linear_attn_config";
    let Some(inner) = config.inner(key)? else {
        return Err(ModelError::MissingKey { key: config.path(key), wanted: "an object".into() });
    };
    let layers = count(config)?;
    let mut kinds = vec![None; layers as usize];
    for (key, full) in [("full_attn_layers", true), ("kda_layers", false)] {
        let Some(listed) = inner.wholes_or(key, &(1..=layers))? else {
            let wanted = "a list of layers, counted from 1".into();
            return Err(ModelError::MissingKey { key: inner.path(key), wanted });
        };
        for layer in listed {
            if kinds[layer as usize - 1].replace(full).is_some() {
                return Err(value(inner.path(key), "each layer once, in one list", format!("{layer} again")));
            }
        }
    }
    let full: Vec<bool> = kinds.into_iter().flatten().collect();
    if (full.len() as u64) < layers {
        let wanted = format!("each of {layers} layers, in it or in `full_attn_layers`");
        return Err(value(inner.path("kda_layers"), wanted, format!("{} in both", full.len())));
    }
    let (heads, dim) = (inner.whole("num_heads", &WIDTH)?, inner.whole("head_dim", &WIDTH)?);
    let delta = GatedDeltaNet {
        key_heads: heads,
        heads,
        key_dim: dim,
        value_dim: dim,
        taps: inner.whole("short_conv_kernel_size", &TAPS)?,
        projections: DeltaProjections::Apart,
        decay: DeltaDecay::Channel { rank: dim },
        gate: DeltaGate::Sigmoid { rank: dim },
        form: DecayForm::Log,
        eps: config.real(EPS_KEY, &super::EPS)?,
    };
    Ok((full, delta))
}

const KIMI: &[(Part, &str)] = &[
    (Part::MemoryQuery, "model.layers.{layer}.self_attn.q_proj.{}"),
    (Part::MemoryKey, "model.layers.{layer}.self_attn.k_proj.{}"),
    (Part::MemoryValue, "model.layers.{layer}.self_attn.v_proj.{}"),
    (Part::ConvQuery, "model.layers.{layer}.self_attn.q_conv1d.{}"),
    (Part::ConvKey, "model.layers.{layer}.self_attn.k_conv1d.{}"),
    (Part::ConvValue, "model.layers.{layer}.self_attn.v_conv1d.{}"),
    (Part::Beta, "model.layers.{layer}.self_attn.b_proj.{}"),
    (Part::DecayDown, "model.layers.{layer}.self_attn.f_a_proj.{}"),
    (Part::DecayUp, "model.layers.{layer}.self_attn.f_b_proj.{}"),
    (Part::DecayRate, "model.layers.{layer}.self_attn.A_log"),
    (Part::DecayBias, "model.layers.{layer}.self_attn.dt_bias"),
    (Part::OutputGateDown, "model.layers.{layer}.self_attn.g_a_proj.{}"),
    (Part::OutputGateUp, "model.layers.{layer}.self_attn.g_b_proj.{}"),
    (Part::MemoryNorm, "model.layers.{layer}.self_attn.o_norm.{}"),
    (Part::MemoryOutput, "model.layers.{layer}.self_attn.o_proj.{}"),
    (Part::RouterBias, "model.layers.{layer}.block_sparse_moe.gate.e_score_correction_bias"),
    (Part::SharedGate, "model.layers.{layer}.block_sparse_moe.shared_experts.gate_proj.{}"),
    (Part::SharedUp, "model.layers.{layer}.block_sparse_moe.shared_experts.up_proj.{}"),
    (Part::SharedDown, "model.layers.{layer}.block_sparse_moe.shared_experts.down_proj.{}"),
];
