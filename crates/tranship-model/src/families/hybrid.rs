//! Families that mix attention with memories that decay, state spaces or short convolutions: MiniMax-Text-01, LFM2,
//! Granite 4 and Nemotron-H.
//!
//! Defaults of absent keys, as `transformers` defines them: `rope_theta` (10000; a million in `Lfm2Config` and
//! `MiniMaxConfig`),
//! `num_key_value_heads` (as many as heads, in Granite), `head_dim` (the hidden width shared by the heads, but in
//! Nemotron-H), `attention_bias`, `mlp_bias`, `conv_bias`, `mamba_proj_bias` and `use_bias` (false),
//! `mamba_conv_bias` and `use_conv_bias` (true), `tie_word_embeddings` (false; true in `Lfm2Config`),
//! `block_auto_adjust_ff_dim` and `norm_topk_prob` (true), the factors of MiniMax's residuals (1),
//! `position_embedding_type` (none), `time_step_limit` (from 0 up, in Granite), `time_step_min` (0.001, in Nemotron-H), `sliding_window` and `moe_latent_size` (none).
//! All else must be there.
//!
//! MiniMax-Text-01 has two configurations. `minimax` is that of `transformers`, which rotates whole heads, whatever
//! `rotary_dim` says; `minimax_text_01` is the publisher's, in which the first `rotary_dim` elements are rotated.
//! Slopes are computed: `slope_rate` and the buffers that follow from it are left unread.
//!
//! Nemotron-H's attention has no positions: `rope_theta` and `partial_rotary_factor` mean nothing. Nor does `expand`:
//! the width of a state space is `mamba_num_heads` times `mamba_head_dim`. A layer is one part, which
//! `layers_block_type` names, or a letter of `hybrid_override_pattern`.

use super::attention::{Absent, Sizes, biases, mixer, window};
use super::config::Config;
use super::layers::{self, count, one_each, spec, tied};
use super::rope::{self, DEFAULT_THETA};
use super::{Heads, TAPS, WIDTH, ffn, unsupported, value};
use crate::{
    Activation, Attention, DecayedLinearAttention, Experts, Ffn, Gated, GatedBiases, LayerSpec, Mixer,
    ModelError, ModelSpec, Names, Part, QkNorm, Residual, RopeSpec, Routing, SharedExpert, ShortConv,
    StateSpace,
};
use std::ops::RangeInclusive;
use tranship_program::ops::{DecayForm, Route};

const EPS_KEY: &str = "rms_norm_eps";
const TOP_K: &str = "num_experts_per_tok";
const FACTOR: RangeInclusive<f64> = 1e-6..=1e6;

/// Of MiniMax's normalization of what is read from a memory.
const MEMORY_EPS: f64 = 1e-6;

/// `model_type: "minimax"`
pub(super) fn minimax(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    config.only("postnorm", true)?;
    let Some(types) = layers::types(config, &["full_attention", "linear_attention"])? else {
        let wanted = "full_attention or linear_attention, for each layer".into();
        return Err(ModelError::MissingKey { key: config.path("layer_types"), wanted });
    };
    let full: Vec<bool> = types.into_iter().map(|layer| layer == "full_attention").collect();
    let sizes = Sizes::of(config, Absent::Refused, Absent::Derived)?;
    let rope = rope::whole_heads(config, sizes.head_dim, 1e6)?;
    let factors = |part: &str| [format!("{part}_alpha_factor"), format!("{part}_beta_factor")];
    let residuals = ["full_attn", "linear_attn", "mlp"].map(|part| residual(config, factors(part)));
    minimax_layers(config, &full, sizes.attention(Some(rope)), residuals)
}

/// `model_type: "minimax_text_01"`
pub(super) fn minimax_text_01(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    config.stated("postnorm", "true")?;
    config.only("postnorm", true)?;
    config.only("shared_intermediate_size", 0)?;
    let key = "attn_type_list";
    let Some(types) = config.wholes_or(key, &(0..=1))? else {
        let wanted = "0 or 1, for each layer".into();
        return Err(ModelError::MissingKey { key: config.path(key), wanted });
    };
    one_each(config, key, types.len())?;
    let full: Vec<bool> = types.into_iter().map(|layer| layer == 1).collect();
    let sizes = Sizes::of(config, Absent::Refused, Absent::Derived)?;
    let dims = config.whole_or("rotary_dim", &(2..=sizes.head_dim))?.unwrap_or(sizes.head_dim);
    rope::even("rotary_dim", dims)?;
    let (theta, scaling) = rope::from_config(config, 1e6)?;
    let attention = sizes.attention(Some(rope::halves(dims, theta, scaling)));
    let factors = |part: &str| [format!("layernorm_{part}_alpha"), format!("layernorm_{part}_beta")];
    let residuals = ["full_attention", "linear_attention", "mlp"].map(|part| residual(config, factors(part)));
    minimax_layers(config, &full, attention, residuals)
}

/// A residual that goes on normalized, `alpha · h + beta · part(h)` of `h = norm(x)`.
fn residual(config: &Config<'_>, [alpha, beta]: [String; 2]) -> Result<Residual, ModelError> {
    let factor = |key: &str| config.real_or(key, &FACTOR).map(|found| found.unwrap_or(1.0));
    Ok(Residual { keep: factor(&alpha)?, scale: factor(&beta)?, from_norm: true, ..Residual::default() })
}

/// MiniMax's layers: Mixtral's attention or memories, and experts.
fn minimax_layers(
    config: &Config<'_>,
    full: &[bool],
    attention: Attention,
    residuals: [Result<Residual, ModelError>; 3],
) -> Result<ModelSpec, ModelError> {
    let [full_residual, linear_residual, ffn_residual] = residuals;
    let (full_residual, linear_residual, ffn_residual) = (full_residual?, linear_residual?, ffn_residual?);
    let (heads, head_dim) = (attention.heads, attention.head_dim);
    let attention = mixer(&attention, window(config)?);
    // The memories' activation, as well as that of experts.
    config.only("hidden_act", "silu")?;
    let experts = ffn::experts(config, "num_local_experts", "intermediate_size", |experts| {
        Ok(Route { normalize: true, ..ffn::softmax(config, TOP_K, experts)? })
    })?;
    let names = Names::hugging_face().with(ffn::UNDER_BLOCK).with(MINIMAX);
    spec(config, EPS_KEY, names, |layer| {
        let (mixer, mixer_residual) = if full[layer] {
            (attention.clone(), full_residual)
        } else {
            (Mixer::DecayedLinear(decayed(heads, head_dim, layer, full.len())), linear_residual)
        };
        let ffn = Some(Ffn::Experts(experts.clone()));
        Ok(LayerSpec { mixer: Some(mixer), mixer_residual, ffn, ffn_residual })
    })
}

/// MiniMax's memories of one of so many layers: they decay the slower the later it is.
pub(super) fn decayed(heads: u64, head_dim: u64, layer: usize, layers: usize) -> DecayedLinearAttention {
    let last = layers.saturating_sub(1) as f64;
    let rate = 1.0 - layer as f64 / (last + 1e-5) + 1e-5;
    DecayedLinearAttention { heads, head_dim, rate, eps: MEMORY_EPS }
}

const MINIMAX: &[(Part, &str)] = &[
    (Part::LinearMix, "model.layers.{layer}.self_attn.qkv_proj.{}"),
    (Part::OutputGate, "model.layers.{layer}.self_attn.output_gate.{}"),
    (Part::MemoryNorm, "model.layers.{layer}.self_attn.norm.{}"),
    (Part::MemoryOutput, "model.layers.{layer}.self_attn.out_proj.{}"),
];

/// `model_type: "lfm2"`: short convolutions, and attention in some layers.
pub(super) fn lfm2(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    config.only("block_use_swiglu", true)?;
    config.only("use_pos_enc", true)?;
    let hidden = config.whole("hidden_size", &WIDTH)?;
    for key in ["block_dim", "conv_dim", "conv_dim_out"] {
        config.only(key, hidden)?;
    }
    let full: Vec<bool> = match layers::types(config, &["full_attention", "conv"])? {
        Some(types) => types.into_iter().map(|layer| layer == "full_attention").collect(),
        None => {
            let (key, layers) = ("full_attn_idxs", count(config)?);
            let Some(attends) = config.wholes_or(key, &(0..=layers - 1))? else {
                let wanted = "a list of layers, counted from 0".into();
                return Err(ModelError::MissingKey { key: config.path(key), wanted });
            };
            (0..layers).map(|layer| attends.contains(&layer)).collect()
        }
    };
    let sizes = Sizes::of(config, Absent::Refused, Absent::Derived)?;
    let rope = rope::whole_heads(config, sizes.head_dim, 1e6)?;
    let attention = mixer(&Attention { qk_norm: QkNorm::Head, ..sizes.attention(Some(rope)) }, None);
    let biased = config.flag_or("conv_bias", false)?;
    let conv = ShortConv { taps: config.whole("conv_L_cache", &TAPS)?, biased };
    let ffn = Ffn::Gated(Gated {
        width: lfm2_width(config)?,
        activation: Activation::Silu,
        gated: true,
        biases: GatedBiases::default(),
        limit: None,
    });
    let mut names = Names::hugging_face().with(LFM2);
    for (i, part) in [Part::ShortGate, Part::ShortOutGate, Part::ShortInput].into_iter().enumerate() {
        let (from, to) = (i as u64 * hidden, (i as u64 + 1) * hidden);
        names.set(part, format!("model.layers.{{layer}}.conv.in_proj.{{}}[{from}..{to}]"));
    }
    let spec = spec(config, "norm_eps", names, |layer| {
        let mixer = if full[layer] { attention.clone() } else { Mixer::ShortConv(conv.clone()) };
        Ok(LayerSpec::new(mixer, ffn.clone()))
    })?;
    let older = config.flag_or("tie_embedding", true)?;
    let spec = tied(config, spec)?;
    Ok(ModelSpec {
        tied_head: if config.is_written("tie_embedding") { older } else { spec.tied_head },
        ..spec
    })
}

/// The width of LFM2's feed-forward parts: two thirds of what is written, times a factor, up to a multiple.
fn lfm2_width(config: &Config<'_>) -> Result<u64, ModelError> {
    let key = if config.is_written("block_ff_dim") { "block_ff_dim" } else { "intermediate_size" };
    let written = config.whole(key, &WIDTH)?;
    if !config.flag_or("block_auto_adjust_ff_dim", true)? {
        return Ok(written);
    }
    let factor = config.real_or("block_ffn_dim_multiplier", &(1e-3..=1e3))?;
    config.stated("block_ffn_dim_multiplier", "a number, or null")?;
    let multiple = config.whole("block_multiple_of", &WIDTH)?;
    let scaled = (factor.unwrap_or(1.0) * (2 * written / 3) as f64) as u64;
    let width = scaled.div_ceil(multiple) * multiple;
    super::whole(&config.path(key), width, &WIDTH)
}

const LFM2: &[(Part, &str)] = &[
    (Part::FinalNorm, "model.embedding_norm.{}"),
    (Part::MixerNorm, "model.layers.{layer}.operator_norm.{}"),
    (Part::QueryNorm, "model.layers.{layer}.self_attn.q_layernorm.{}"),
    (Part::KeyNorm, "model.layers.{layer}.self_attn.k_layernorm.{}"),
    (Part::Output, "model.layers.{layer}.self_attn.out_proj.{}"),
    (Part::ShortConv, "model.layers.{layer}.conv.conv.{}"),
    (Part::MemoryOutput, "model.layers.{layer}.conv.out_proj.{}"),
    (Part::FfnNorm, "model.layers.{layer}.ffn_norm.{}"),
    (Part::Gate, "model.layers.{layer}.feed_forward.w1.{}"),
    (Part::Up, "model.layers.{layer}.feed_forward.w3.{}"),
    (Part::Down, "model.layers.{layer}.feed_forward.w2.{}"),
];

/// The time steps' bounds, `[least, greatest]`, where no bound above may be written as infinite.
fn time_steps(config: &Config<'_>) -> Result<(Option<f64>, Option<f64>), ModelError> {
    let Some([least, most]) = config.limits("time_step_limit", &(0.0..=1e12))? else {
        return Ok((None, None));
    };
    // A time step is positive whatever the bound.
    Ok((least.filter(|least| *least > 0.0), most))
}

/// The least time step of Nemotron-H. There is none above, and `time_step_limit` means nothing.
fn least_step(config: &Config<'_>) -> Result<f64, ModelError> {
    let range = 0.0..=1e12;
    let before = config.real_or("mamba_dt_min", &range)?;
    Ok(config.real_or("time_step_min", &range)?.or(before).unwrap_or(0.001))
}

/// The names of a state space under `model.layers.{layer}.mamba`, say: rows of one projection are gates, inputs, input
/// and output vectors, and time steps; channels of one convolution are the three in the middle.
fn state_space_names(names: &mut Names, under: &str, mixer: &StateSpace) {
    let (width, vectors) = (mixer.heads * mixer.head_dim, mixer.groups * mixer.state);
    let convolved = [(Part::ConvInput, width), (Part::ConvB, vectors), (Part::ConvC, vectors)];
    let projected = [
        (Part::OutputGate, width),
        (Part::StateInput, width),
        (Part::StateB, vectors),
        (Part::StateC, vectors),
        (Part::StateStep, mixer.heads),
    ];
    for (tensor, parts) in [("in_proj", &projected[..]), ("conv1d", &convolved[..])] {
        let mut from = 0;
        for (part, rows) in parts {
            names.set(*part, format!("{under}.{tensor}.{{}}[{from}..{}]", from + rows));
            from += rows;
        }
    }
    names.set(Part::DecayRate, format!("{under}.A_log"));
    names.set(Part::DecayBias, format!("{under}.dt_bias"));
    names.set(Part::StateSkip, format!("{under}.D"));
    names.set(Part::MemoryNorm, format!("{under}.norm.{{}}"));
    names.set(Part::MemoryOutput, format!("{under}.out_proj.{{}}"));
}

/// Holds that groups divide the heads, and that widths are none too large.
fn held(
    config: &Config<'_>,
    mixer: StateSpace,
    [heads_key, groups_key]: [&str; 2],
) -> Result<StateSpace, ModelError> {
    let &StateSpace { heads, head_dim, groups, state, .. } = &mixer;
    if !heads.is_multiple_of(groups) {
        return Err(value(config.path(groups_key), format!("a divisor of the {heads} heads"), groups));
    }
    for (key, count, size) in [(heads_key, heads, head_dim), (groups_key, groups, state)] {
        if count * size > *WIDTH.end() {
            let wanted = format!("at most {} elements, {size} each", WIDTH.end());
            return Err(value(config.path(key), wanted, count));
        }
    }
    Ok(mixer)
}

/// `model_type: "granitemoehybrid"`: state spaces, attention in some layers, and experts beside a part that all rows go
/// to, or that part alone.
pub(super) fn granitemoehybrid(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    config.only("normalization_function", "rmsnorm")?;
    let known = ["mamba", "linear_attention", "attention", "full_attention"];
    let Some(types) = layers::types(config, &known)? else {
        let wanted = "mamba or attention, for each layer".into();
        return Err(ModelError::MissingKey { key: config.path("layer_types"), wanted });
    };
    let factor = |key| config.real(key, &FACTOR);
    let sizes = Sizes::of(config, Absent::Derived, Absent::Derived)?;
    let rope = granite_rope(config, sizes.head_dim)?;
    let (biases, scale) = (biases(config)?, factor("attention_multiplier")?);
    let attention = mixer(&Attention { biases, scale, ..sizes.attention(rope) }, None);
    let state_space = granite_state_space(config)?;
    let mut names = Names::hugging_face();
    state_space_names(&mut names, "model.layers.{layer}.mamba", &state_space);
    let ffn = granite_ffn(config, &mut names)?;
    let residual = Residual { scale: factor("residual_multiplier")?, ..Residual::default() };
    let spec = spec(config, EPS_KEY, names, |layer| {
        let mixer = match types[layer] {
            "mamba" | "linear_attention" => Mixer::StateSpace(state_space.clone()),
            _ => attention.clone(),
        };
        let layer = LayerSpec::new(mixer, ffn.clone());
        Ok(LayerSpec { mixer_residual: residual, ffn_residual: residual, ..layer })
    })?;
    let (embed_scale, logit_scale) = (factor("embedding_multiplier")?, factor("logits_scaling")?.recip());
    Ok(ModelSpec { embed_scale, logit_scale, ..spec })
}

fn granite_rope(config: &Config<'_>, head_dim: u64) -> Result<Option<RopeSpec>, ModelError> {
    let key = "position_embedding_type";
    match config.text_or(key)? {
        Some("rope") => rope::whole_heads(config, head_dim, DEFAULT_THETA).map(Some),
        Some("nope") | None => Ok(None),
        Some(other) => Err(unsupported(config.path(key), format!("{other:?}"), "rope, nope")),
    }
}

fn granite_state_space(config: &Config<'_>) -> Result<StateSpace, ModelError> {
    // The convolution's activation, as well as that of feed-forward parts.
    config.only("hidden_act", "silu")?;
    let size = |key| config.whole(key, &WIDTH);
    let (heads_key, groups_key, dim_key) = ("mamba_n_heads", "mamba_n_groups", "mamba_d_head");
    let (heads, groups) = (size(heads_key)?, size(groups_key)?);
    let width = size("mamba_expand")?.saturating_mul(size("hidden_size")?);
    let head_dim = match config.get(dim_key).and_then(|found| found.as_str()) {
        Some("auto") => width / heads,
        _ => size(dim_key)?,
    };
    if heads.checked_mul(head_dim) != Some(width) {
        let wanted = format!("heads that make up {width} elements, {heads} of them");
        return Err(value(config.path(dim_key), wanted, head_dim));
    }
    let mixer = StateSpace {
        heads,
        head_dim,
        groups,
        state: size("mamba_d_state")?,
        taps: config.whole("mamba_d_conv", &TAPS)?,
        conv_bias: config.flag_or("mamba_conv_bias", true)?,
        proj_bias: config.flag_or("mamba_proj_bias", false)?,
        dt_limits: time_steps(config)?,
        form: DecayForm::Log,
        norm_groups: groups,
        eps: config.real(EPS_KEY, &super::EPS)?,
    };
    held(config, mixer, [heads_key, groups_key])
}

/// Granite's feed-forward part, and the names of its tensors: gates and what they gate are rows of one.
fn granite_ffn(config: &Config<'_>, names: &mut Names) -> Result<Ffn, ModelError> {
    let shared = ffn::gated(config, "shared_intermediate_size", "hidden_act")?;
    let (under, width) = ("model.layers.{layer}.shared_mlp", shared.width);
    let alone = config.whole("num_local_experts", &(0..=*WIDTH.end()))? == 0;
    let parts = match alone {
        true => [Part::Gate, Part::Up, Part::Down],
        false => [Part::SharedGate, Part::SharedUp, Part::SharedDown],
    };
    names.set(parts[0], format!("{under}.input_linear.{{}}[0..{width}]"));
    names.set(parts[1], format!("{under}.input_linear.{{}}[{width}..{}]", width * 2));
    names.set(parts[2], format!("{under}.output_linear.{{}}"));
    if alone {
        return Ok(Ffn::Gated(shared));
    }
    let experts = ffn::experts(config, "num_local_experts", "intermediate_size", |experts| {
        Ok(Route { normalize: true, ..ffn::softmax(config, TOP_K, experts)? })
    })?;
    let (under, width) = ("model.layers.{layer}.block_sparse_moe", experts.width);
    names.set(Part::Router, format!("{under}.router.layer.{{}}"));
    names.set(Part::ExpertGate, format!("{under}.input_linear.{{}}[:, 0..{width}]"));
    names.set(Part::ExpertUp, format!("{under}.input_linear.{{}}[:, {width}..{}]", width * 2));
    names.set(Part::ExpertDown, format!("{under}.output_linear.{{}}"));
    Ok(Ffn::Experts(Experts { shared: Some(SharedExpert { ffn: shared, gated: false }), ..experts }))
}

/// What a layer of Nemotron-H is.
#[derive(Clone, Copy, PartialEq)]
enum Block {
    StateSpace,
    Attention,
    Dense,
    Experts,
}

/// `model_type: "nemotron_h"`: one part in each layer.
pub(super) fn nemotron_h(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    if let Some(window) = config.get("sliding_window") {
        return Err(unsupported("sliding_window", window, "null: attention over all positions"));
    }
    let blocks = blocks(config)?;
    let state_space = nemotron_state_space(config)?;
    let mut names = Names::of(NEMOTRON);
    state_space_names(&mut names, "backbone.layers.{layer}.mixer", &state_space);
    let keys = layers::Keys { eps: NEMOTRON_EPS, positions: "max_position_embeddings" };
    layers::spec_by(config, keys, names, |layer| {
        let residual = Residual::default();
        let (mixer, ffn) = match blocks[layer] {
            Block::StateSpace => (Some(Mixer::StateSpace(state_space.clone())), None),
            Block::Attention => (Some(nemotron_attention(config)?), None),
            Block::Dense => (None, Some(Ffn::Gated(nemotron_dense(config, "intermediate_size")?))),
            Block::Experts => (None, Some(Ffn::Experts(nemotron_experts(config)?))),
        };
        Ok(LayerSpec { mixer, mixer_residual: residual, ffn, ffn_residual: residual })
    })
}

const NEMOTRON_EPS: &str = "layer_norm_epsilon";

fn blocks(config: &Config<'_>) -> Result<Vec<Block>, ModelError> {
    let key = "layers_block_type";
    if let Some(types) = config.texts_or(key)? {
        one_each(config, key, types.len())?;
        let read = |(layer, name): (usize, &str)| match name {
            "mamba" | "linear_attention" => Ok(Block::StateSpace),
            "attention" | "full_attention" => Ok(Block::Attention),
            "mlp" => Ok(Block::Dense),
            "moe" => Ok(Block::Experts),
            other => {
                let key = format!("{}[{layer}]", config.path(key));
                Err(value(key, "mamba, attention, mlp or moe", format!("{other:?}")))
            }
        };
        return types.into_iter().enumerate().map(read).collect();
    }
    let key = "hybrid_override_pattern";
    let pattern = config.text(key)?;
    one_each(config, key, pattern.chars().count())?;
    let read = |letter| match letter {
        'M' => Ok(Block::StateSpace),
        '*' => Ok(Block::Attention),
        '-' => Ok(Block::Dense),
        'E' => Ok(Block::Experts),
        other => Err(value(config.path(key), "the letters M, *, - and E", format!("{other:?}"))),
    };
    pattern.chars().map(read).collect()
}

fn nemotron_attention(config: &Config<'_>) -> Result<Mixer, ModelError> {
    let size = |key| config.whole(key, &WIDTH);
    let (kv_key, older) = ("num_key_value_heads", "attention_head_dim");
    let dim_key = if config.is_written(older) && !config.is_written("head_dim") { older } else { "head_dim" };
    let (heads, kv_heads, head_dim) = (size("num_attention_heads")?, size(kv_key)?, size(dim_key)?);
    let (kv_path, dim_path) = (config.path(kv_key), config.path(dim_key));
    Heads { heads, kv_heads: (&kv_path, kv_heads), head_dim: (&dim_path, head_dim) }.hold()?;
    let attention = Sizes { heads, kv_heads, head_dim }.attention(None);
    Ok(mixer(&Attention { biases: biases(config)?, ..attention }, None))
}

fn nemotron_state_space(config: &Config<'_>) -> Result<StateSpace, ModelError> {
    config.only("mamba_hidden_act", "silu")?;
    config.only("mamba_proj_bias", false)?;
    let size = |key| config.whole(key, &WIDTH);
    let (heads_key, groups_key) = ("mamba_num_heads", "n_groups");
    let groups = size(groups_key)?;
    let mixer = StateSpace {
        heads: size(heads_key)?,
        head_dim: size("mamba_head_dim")?,
        groups,
        state: size("ssm_state_size")?,
        taps: config.whole("conv_kernel", &TAPS)?,
        conv_bias: config.flag_or("use_conv_bias", true)?,
        proj_bias: config.flag_or("use_bias", false)?,
        dt_limits: (Some(least_step(config)?), None),
        form: DecayForm::Log,
        norm_groups: groups,
        eps: config.real(NEMOTRON_EPS, &super::EPS)?,
    };
    held(config, mixer, [heads_key, groups_key])
}

/// A part without a gate, as wide as under `width_key`.
fn nemotron_dense(config: &Config<'_>, width_key: &str) -> Result<Gated, ModelError> {
    let bias = config.flag_or("mlp_bias", false)?;
    let biases = GatedBiases { gate: false, up: bias, down: bias };
    Ok(Gated { gated: false, biases, ..ffn::gated(config, width_key, "mlp_hidden_act")? })
}

fn nemotron_experts(config: &Config<'_>) -> Result<Experts, ModelError> {
    config.only("n_shared_experts", 1)?;
    let normalize = config.flag_or("norm_topk_prob", true)?;
    let experts = config.whole("n_routed_experts", &WIDTH)?;
    let route = ffn::grouped(config, TOP_K, ("n_group", "topk_group"), normalize, experts)?;
    let shared = nemotron_dense(config, "moe_shared_expert_intermediate_size")?;
    Ok(Experts {
        experts,
        width: config.whole("moe_intermediate_size", &WIDTH)?,
        activation: shared.activation,
        gated: false,
        biased: false,
        limit: None,
        routing: Routing { route, by_token: false },
        latent: config.whole_or("moe_latent_size", &WIDTH)?,
        latent_biased: shared.biases.up,
        shared: Some(SharedExpert { ffn: shared, gated: false }),
    })
}

const NEMOTRON: &[(Part, &str)] = &[
    (Part::Table, "backbone.embeddings.{}"),
    (Part::FinalNorm, "backbone.norm_f.{}"),
    (Part::Head, "lm_head.{}"),
    (Part::MixerNorm, "backbone.layers.{layer}.norm.{}"),
    (Part::FfnNorm, "backbone.layers.{layer}.norm.{}"),
    (Part::Query, "backbone.layers.{layer}.mixer.q_proj.{}"),
    (Part::Key, "backbone.layers.{layer}.mixer.k_proj.{}"),
    (Part::Value, "backbone.layers.{layer}.mixer.v_proj.{}"),
    (Part::Output, "backbone.layers.{layer}.mixer.o_proj.{}"),
    (Part::Up, "backbone.layers.{layer}.mixer.up_proj.{}"),
    (Part::Down, "backbone.layers.{layer}.mixer.down_proj.{}"),
    (Part::Router, "backbone.layers.{layer}.mixer.gate.{}"),
    (Part::RouterBias, "backbone.layers.{layer}.mixer.gate.e_score_correction_bias"),
    (Part::ExpertUp, "backbone.layers.{layer}.mixer.experts.{expert}.up_proj.{}"),
    (Part::ExpertDown, "backbone.layers.{layer}.mixer.experts.{expert}.down_proj.{}"),
    (Part::ExpertsIn, "backbone.layers.{layer}.mixer.fc1_latent_proj.{}"),
    (Part::ExpertsOut, "backbone.layers.{layer}.mixer.fc2_latent_proj.{}"),
    (Part::SharedUp, "backbone.layers.{layer}.mixer.shared_experts.up_proj.{}"),
    (Part::SharedDown, "backbone.layers.{layer}.mixer.shared_experts.down_proj.{}"),
];
