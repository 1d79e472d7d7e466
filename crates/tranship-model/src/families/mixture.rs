//! Families of grouped-query attention and experts.
//!
//! Defaults of absent keys, as `transformers` defines them: `rope_theta` (10000; in `MixtralConfig` a million, in
//! `MiniMaxM2Config` 5 million, in `GptOssConfig` 150000), `head_dim` (in Mixtral the hidden width shared by the heads,
//! and so in GLM-4.5; elsewhere it must be written), `attention_bias` (false; true in `GptOssConfig`),
//! `tie_word_embeddings` and `use_sliding_window` (false), `sliding_window` (none, in Mixtral), `decoder_sparse_step` (1),
//! `mlp_only_layers` (none), `norm_topk_prob` (false in `Qwen3MoeConfig`, true in `Glm4MoeConfig`), `use_qk_norm` (false
//! in `Glm4MoeConfig`), `partial_rotary_factor` (1; 0.5 in `Glm4MoeConfig`), `layer_types`
//! of gpt-oss (every second layer is full), `swiglu_alpha` (1.702) and `swiglu_limit` (7). All else must be there.
//!
//! Layers beyond `num_hidden_layers`, which predict further tokens, are no part of the spec; their tensors are left
//! unread. Keys of MiniMax-M2 that its class does not read are held to what it computes.

use super::attention::{self, Absent, Sizes, biases, mixer, window, window_if_used};
use super::config::Config;
use super::layers::{count, one_each, spec};
use super::rope::{self, DEFAULT_THETA};
use super::{LAYERS, POSITIVE, ffn, quantization, unsupported, value};
use crate::{
    Activation, Attention, AttentionBiases, Experts, Ffn, LayerSpec, ModelError, ModelSpec, Names, Part,
    QkNorm,
};
use tranship_program::ops::{Route, RouteBias};

const EPS_KEY: &str = "rms_norm_eps";
const TOP_K: &str = "num_experts_per_tok";

/// `model_type: "mixtral"`: weights of the chosen add to 1.
pub(super) fn mixtral(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = Sizes::of(config, Absent::Refused, Absent::Derived)?;
    let rope = rope::whole_heads(config, sizes.head_dim, 1e6)?;
    let experts = ffn::experts(config, "num_local_experts", "intermediate_size", |experts| {
        Ok(Route { normalize: true, ..ffn::softmax(config, TOP_K, experts)? })
    })?;
    let mixer = mixer(&sizes.attention(Some(rope)), window(config)?);
    let layer = LayerSpec::new(mixer, Ffn::Experts(experts));
    spec(config, EPS_KEY, Names::hugging_face().with(ffn::UNDER_BLOCK), |_| Ok(layer.clone()))
}

/// `model_type: "qwen3_moe"`: Qwen3 with experts in some layers.
pub(super) fn qwen3_moe(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = Sizes::of(config, Absent::Refused, Absent::Refused)?;
    let rope = rope::whole_heads(config, sizes.head_dim, DEFAULT_THETA)?;
    let attention =
        Attention { biases: biases(config)?, qk_norm: QkNorm::Head, ..sizes.attention(Some(rope)) };
    let normalize = config.flag_or("norm_topk_prob", false)?;
    let mixer = mixer(&attention, window_if_used(config)?);
    let sparse = sparse(config)?;
    let experts = || -> Result<Ffn, ModelError> {
        let route = |experts| Ok(Route { normalize, ..ffn::softmax(config, TOP_K, experts)? });
        // The second is its name in files that transformers 5 wrote.
        let count_key = config.either(["num_experts", "num_local_experts"])?;
        ffn::experts(config, count_key, "moe_intermediate_size", route).map(Ffn::Experts)
    };
    spec(config, EPS_KEY, Names::hugging_face().with(ffn::UNDER_MLP), |layer| {
        let ffn = if sparse[layer] { experts()? } else { ffn::dense(config)? };
        Ok(LayerSpec::new(mixer.clone(), ffn))
    })
}

/// Which layers have experts, as Qwen's families say it: all but `mlp_only_layers`, of each `decoder_sparse_step` the
/// last.
pub(super) fn sparse(config: &Config<'_>) -> Result<Vec<bool>, ModelError> {
    let layers = count(config)?;
    let dense = config.wholes_or("mlp_only_layers", &(0..=layers - 1))?.unwrap_or_default();
    let step = config.whole_or("decoder_sparse_step", &LAYERS)?.unwrap_or(1);
    Ok((0..layers).map(|layer| !dense.contains(&layer) && (layer + 1).is_multiple_of(step)).collect())
}

/// `model_type: "minimax_m2"`: queries and keys are normalized all heads together, and rotated in part.
pub(super) fn minimax_m2(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    for (key, wanted) in [("use_qk_norm", true), ("use_routing_bias", true)] {
        config.only(key, wanted)?;
    }
    config.only("scoring_func", "sigmoid")?;
    config.only("qk_norm_type", "per_layer")?;
    config.only("shared_intermediate_size", 0)?;
    for part in ["full_attention", "linear_attention", "mlp"] {
        config.only(&format!("layernorm_{part}_beta"), 1)?;
        config.only(&format!("layernorm_{part}_alpha"), 1)?;
    }
    if let Some(window) = config.get("sliding_window") {
        return Err(unsupported("sliding_window", window, "null: attention over all positions"));
    }
    if let Some(types) = config.wholes_or("attn_type_list", &(1..=1))? {
        one_each(config, "attn_type_list", types.len())?;
    }
    let sizes = Sizes::of(config, Absent::Refused, Absent::Refused)?;
    let dims = config.whole_or("rotary_dim", &(2..=sizes.head_dim))?;
    dims.map_or(Ok(()), |dims| rope::even(&config.path("rotary_dim"), dims))?;
    let part = dims.map_or(1.0, |dims| dims as f64 / sizes.head_dim as f64);
    let rope = rope::part_of_heads(config, sizes.head_dim, part, 5e6)?;
    if let Some(dims) = dims.filter(|dims| *dims != rope.dims) {
        let wanted = format!("the {} elements of `partial_rotary_factor`", rope.dims);
        return Err(value(config.path("rotary_dim"), wanted, dims));
    }
    let attention = Attention { qk_norm: QkNorm::Whole, ..sizes.attention(Some(rope)) };
    let experts = ffn::experts(config, "num_local_experts", "intermediate_size", |experts| {
        Ok(Route { normalize: true, ..ffn::sigmoid(config, TOP_K, experts)? })
    })?;
    let layer = LayerSpec::new(mixer(&attention, None), Ffn::Experts(experts));
    spec(config, EPS_KEY, Names::hugging_face().with(ffn::UNDER_BLOCK), |_| Ok(layer.clone()))
}

/// `model_type: "glm4_moe"`: first dense layers, then experts beside ones that all rows go to.
pub(super) fn glm4_moe(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = Sizes::of(config, Absent::Refused, Absent::Derived)?;
    let rope = rope::part_of_heads(config, sizes.head_dim, 0.5, DEFAULT_THETA)?;
    let qk_norm = if config.flag_or("use_qk_norm", false)? { QkNorm::Head } else { QkNorm::None };
    let biases = AttentionBiases { o: false, ..biases(config)? };
    let mixer = mixer(&Attention { biases, qk_norm, ..sizes.attention(Some(rope)) }, None);
    let normalize = config.flag_or("norm_topk_prob", true)?;
    let groups = ("n_group", "topk_group");
    let experts = ffn::experts(config, "n_routed_experts", "moe_intermediate_size", |experts| {
        ffn::grouped(config, TOP_K, groups, normalize, experts)
    })?;
    let shared = ffn::shared(config, "n_shared_experts", &experts)?;
    let experts = Ffn::Experts(Experts { shared, ..experts });
    let dense_layers = config.whole("first_k_dense_replace", &(0..=count(config)?))? as usize;
    let dense = ffn::dense(config)?;
    spec(config, EPS_KEY, Names::hugging_face().with(ffn::UNDER_MLP), |layer| {
        let ffn = if layer < dense_layers { &dense } else { &experts };
        Ok(LayerSpec::new(mixer.clone(), ffn.clone()))
    })
}

/// `model_type: "gpt_oss"`: sinks, biases everywhere, and experts in MXFP4 or in plain numbers.
pub(super) fn gpt_oss(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    config.only("hidden_act", "silu")?;
    if config.get("rope_scaling").or(config.get("rope_parameters")).is_none() {
        let wanted = "an object, for an absent one is YaRN by 32".into();
        return Err(ModelError::MissingKey { key: config.path("rope_scaling"), wanted });
    }
    let sizes = Sizes::of(config, Absent::Refused, Absent::Refused)?;
    let rope = rope::whole_heads(config, sizes.head_dim, 150_000.0)?;
    let bias = config.flag_or("attention_bias", true)?;
    let biases = AttentionBiases { q: bias, k: bias, v: bias, o: bias };
    let attention = Attention { biases, sinks: true, ..sizes.attention(Some(rope)) };
    config.stated("sliding_window", "a whole number")?;
    let windows = attention::windows(config, window(config)?, |layer| layer.is_multiple_of(2))?;
    let experts = ffn::experts(config, "num_local_experts", "intermediate_size", |experts| {
        let route = ffn::softmax(config, TOP_K, experts)?;
        Ok(Route { bias: Some(RouteBias::Logits), normalize: true, ..route })
    })?;
    let alpha = config.real_or("swiglu_alpha", &(1e-6..=1e6))?.unwrap_or(1.702);
    let limit = Some(config.real_or("swiglu_limit", &POSITIVE)?.unwrap_or(7.0));
    let activation = Activation::Swish { alpha };
    let ffn = Ffn::Experts(Experts { activation, limit, biased: true, ..experts });
    let stored = if quantization(config)?.is_some() { GPT_OSS_MXFP4 } else { GPT_OSS_PLAIN };
    spec(config, EPS_KEY, Names::hugging_face().with(GPT_OSS).with(stored), |layer| {
        Ok(LayerSpec::new(mixer(&attention, windows[layer]), ffn.clone()))
    })
}

/// Gates are the even rows of one tensor, and what they gate the odd ones.
const GPT_OSS: &[(Part, &str)] = &[
    (Part::Sinks, "model.layers.{layer}.self_attn.sinks"),
    (Part::Router, "model.layers.{layer}.mlp.router.{}"),
    (Part::ExpertGateBias, "model.layers.{layer}.mlp.experts.gate_up_proj_bias[:, 0::2]"),
    (Part::ExpertUpBias, "model.layers.{layer}.mlp.experts.gate_up_proj_bias[:, 1::2]"),
    (Part::ExpertDownBias, "model.layers.{layer}.mlp.experts.down_proj_bias"),
];

const GPT_OSS_PLAIN: &[(Part, &str)] = &[
    (Part::ExpertGate, "model.layers.{layer}.mlp.experts.gate_up_proj^T[:, 0::2]"),
    (Part::ExpertUp, "model.layers.{layer}.mlp.experts.gate_up_proj^T[:, 1::2]"),
    (Part::ExpertDown, "model.layers.{layer}.mlp.experts.down_proj^T"),
];

const GPT_OSS_MXFP4: &[(Part, &str)] = &[
    (
        Part::ExpertGate,
        "mxfp4(model.layers.{layer}.mlp.experts.gate_up_proj_blocks, \
         model.layers.{layer}.mlp.experts.gate_up_proj_scales)[:, 0::2]",
    ),
    (
        Part::ExpertUp,
        "mxfp4(model.layers.{layer}.mlp.experts.gate_up_proj_blocks, \
         model.layers.{layer}.mlp.experts.gate_up_proj_scales)[:, 1::2]",
    ),
    (
        Part::ExpertDown,
        "mxfp4(model.layers.{layer}.mlp.experts.down_proj_blocks, \
         model.layers.{layer}.mlp.experts.down_proj_scales)",
    ),
];
