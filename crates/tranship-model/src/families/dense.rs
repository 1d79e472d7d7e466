//! Families of grouped-query attention and dense feed-forward parts, beside Llama.
//!
//! Defaults of absent keys, as `transformers` defines them: those of `rope_theta` (10000; 2 million in `SmolLM3Config`),
//! `partial_rotary_factor` (1, read by Phi-3 alone), `attention_bias`, `mlp_bias` and `use_sliding_window` (false),
//! `tie_word_embeddings` (false; true in `SmolLM3Config`), `head_dim` (the hidden width shared by the heads; in Qwen3
//! it must be written), `num_key_value_heads` (as many as heads, in OLMo 2 and Phi-3; elsewhere it must be written),
//! `sliding_window` (none, in SmolLM3 and Phi-3; elsewhere it must be written, if only as `null`), and
//! `no_rope_layer_interval` (4). `layer_types` follows from the window, where there is one: layers from
//! `max_window_layers` on slide in Qwen, those without positions in SmolLM3.
//!
//! Ignored, as `transformers` does, since they compute nothing: `max_window_layers` where no layer slides, dropout,
//! and everything about training.

use super::attention::{self, Absent, Sizes, biases, mixer, window, window_if_used};
use super::config::Config;
use super::layers::{count, one_each, spec, tied};
use super::rope::{self, DEFAULT_THETA};
use super::{LAYERS, ffn};
use crate::{
    Attention, AttentionBiases, Ffn, LayerSpec, ModelError, ModelSpec, Names, Part, QkNorm, Residual,
};

const EPS_KEY: &str = "rms_norm_eps";

/// `model_type: "mistral"`: a window in every layer, or in none.
pub(super) fn mistral(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    config.stated("sliding_window", "a whole number, or null for attention over all positions")?;
    let sizes = Sizes::of(config, Absent::Refused, Absent::Derived)?;
    let rope = rope::whole_heads(config, sizes.head_dim, DEFAULT_THETA)?;
    let mixer = mixer(&sizes.attention(Some(rope)), window(config)?);
    let layer = LayerSpec::new(mixer, ffn::dense(config)?);
    spec(config, EPS_KEY, Names::hugging_face(), |_| Ok(layer.clone()))
}

/// `model_type: "qwen2"`: queries, keys and values have biases.
pub(super) fn qwen2(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = Sizes::of(config, Absent::Refused, Absent::Derived)?;
    let rope = rope::whole_heads(config, sizes.head_dim, DEFAULT_THETA)?;
    let biases = AttentionBiases { q: true, k: true, v: true, o: false };
    qwen(config, Attention { biases, ..sizes.attention(Some(rope)) })
}

/// `model_type: "qwen3"`: queries and keys are normalized by head.
pub(super) fn qwen3(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = Sizes::of(config, Absent::Refused, Absent::Refused)?;
    let rope = rope::whole_heads(config, sizes.head_dim, DEFAULT_THETA)?;
    let biases = biases(config)?;
    qwen(config, Attention { biases, qk_norm: QkNorm::Head, ..sizes.attention(Some(rope)) })
}

/// Qwen's layers: of those that slide, if any do, the first are left out.
fn qwen(config: &Config<'_>, attention: Attention) -> Result<ModelSpec, ModelError> {
    let window = window_if_used(config)?;
    let first = match window {
        Some(_) if config.get("layer_types").is_none() => {
            config.whole("max_window_layers", &(0..=*LAYERS.end()))?
        }
        _ => u64::MAX,
    };
    let windows = attention::windows(config, window, |layer| layer >= first)?;
    let ffn = ffn::dense(config)?;
    spec(config, EPS_KEY, Names::hugging_face(), |layer| {
        Ok(LayerSpec::new(mixer(&attention, windows[layer]), ffn.clone()))
    })
}

/// `model_type: "smollm3"`: some layers know no positions, and may slide.
pub(super) fn smollm3(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = Sizes::of(config, Absent::Refused, Absent::Derived)?;
    let rope = rope::whole_heads(config, sizes.head_dim, 2e6)?;
    let with_rope: Vec<bool> = match config.wholes_or("no_rope_layers", &(0..=1))? {
        Some(list) => {
            one_each(config, "no_rope_layers", list.len())?;
            list.into_iter().map(|has| has == 1).collect()
        }
        None => {
            let interval = config.whole_or("no_rope_layer_interval", &LAYERS)?.unwrap_or(4);
            (1..=count(config)?).map(|layer| !layer.is_multiple_of(interval)).collect()
        }
    };
    let window = window_if_used(config)?;
    let windows = attention::windows(config, window, |i| window.is_some() && !with_rope[i as usize])?;
    let attention = Attention { biases: biases(config)?, ..sizes.attention(Some(rope)) };
    let placeless = Attention { rope: None, ..attention.clone() };
    let ffn = ffn::dense_with_biases(config)?;
    let spec = spec(config, EPS_KEY, Names::hugging_face(), |layer| {
        let attention = if with_rope[layer] { &attention } else { &placeless };
        Ok(LayerSpec::new(mixer(attention, windows[layer]), ffn.clone()))
    })?;
    tied(config, spec)
}

/// `model_type: "olmo2"`: parts take the stream as it is, and their output is normalized; queries and keys are, all
/// heads together.
pub(super) fn olmo2(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = Sizes::of(config, Absent::Derived, Absent::Derived)?;
    let rope = rope::whole_heads(config, sizes.head_dim, DEFAULT_THETA)?;
    let attention =
        Attention { biases: biases(config)?, qk_norm: QkNorm::Whole, ..sizes.attention(Some(rope)) };
    let residual = Residual { pre_norm: false, post_norm: true, ..Residual::default() };
    let layer = LayerSpec {
        mixer_residual: residual,
        ffn_residual: residual,
        ..LayerSpec::new(mixer(&attention, None), ffn::dense(config)?)
    };
    let names = Names::hugging_face().with(&[
        (Part::MixerPostNorm, "model.layers.{layer}.post_attention_layernorm.{}"),
        (Part::FfnPostNorm, "model.layers.{layer}.post_feedforward_layernorm.{}"),
    ]);
    spec(config, EPS_KEY, names, |_| Ok(layer.clone()))
}

/// `model_type: "phi3"`: projections lie in one matrix, and frequencies in long contexts may be other ones.
pub(super) fn phi3(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = Sizes::of(config, Absent::Derived, Absent::Derived)?;
    let rope = rope::long(config, sizes.head_dim, DEFAULT_THETA)?;
    for bias in ["attention_bias", "mlp_bias", "lm_head_bias"] {
        config.only(bias, false)?;
    }
    let mixer = mixer(&sizes.attention(Some(rope)), window(config)?);
    let gated = ffn::gated(config, "intermediate_size", "hidden_act")?;
    let (q, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
    let mut names = Names::hugging_face();
    let mut rows = |part, of: &str, from: u64, to: u64| {
        names.set(part, format!("model.layers.{{layer}}.{of}.{{}}[{from}..{to}]"));
    };
    rows(Part::Query, "self_attn.qkv_proj", 0, q);
    rows(Part::Key, "self_attn.qkv_proj", q, q + kv);
    rows(Part::Value, "self_attn.qkv_proj", q + kv, q + 2 * kv);
    rows(Part::Gate, "mlp.gate_up_proj", 0, gated.width);
    rows(Part::Up, "mlp.gate_up_proj", gated.width, 2 * gated.width);
    let layer = LayerSpec::new(mixer, Ffn::Gated(gated));
    spec(config, EPS_KEY, names, |_| Ok(layer.clone()))
}
