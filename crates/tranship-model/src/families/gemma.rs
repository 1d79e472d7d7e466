//! Gemma 2 and 3: gains by their distance from 1, norms before and after each part, an embedding scaled by the root of
//! the hidden width, and layers of which some slide.
//!
//! Defaults of absent keys, as `transformers` defines them: `rope_theta` (10000; a million in `Gemma3TextConfig`),
//! `rope_local_base_freq` (10000), `attention_bias` (false), `tie_word_embeddings` (true), `sliding_window_pattern` (6),
//! `layer_types` (every second layer is full in Gemma 2, every `sliding_window_pattern`-th in Gemma 3), and the two caps
//! (none, in Gemma 3; in Gemma 2 they must be written, if only as `null`). All else must be there.
//!
//! `hidden_act` and `sliding_window_size` of older files are not read: `hidden_activation` and `sliding_window` count.

use super::attention::{self, Absent, Sizes, biases, causal, mixer, window};
use super::config::Config;
use super::layers::{spec, tied};
use super::rope::{self, DEFAULT_THETA, halves};
use super::{LAYERS, POSITIVE, ffn};
use crate::{Attention, Ffn, LayerSpec, ModelError, ModelSpec, Names, Part, QkNorm, Residual, RopeSpec};

const NAMES: &[(Part, &str)] = &[
    (Part::MixerPostNorm, "model.layers.{layer}.post_attention_layernorm.{}"),
    (Part::FfnNorm, "model.layers.{layer}.pre_feedforward_layernorm.{}"),
    (Part::FfnPostNorm, "model.layers.{layer}.post_feedforward_layernorm.{}"),
];

const CAPS: [&str; 2] = ["attn_logit_softcapping", "final_logit_softcapping"];

/// `model_type: "gemma2"`
pub(super) fn gemma2(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    for cap in CAPS {
        config.stated(cap, "a number, or null")?;
    }
    let sizes = sizes(config)?;
    let rope = rope::whole_heads(config, sizes.head_dim, DEFAULT_THETA)?;
    gemma(config, sizes.attention(None), [&rope, &rope], 2)
}

/// `model_type: "gemma3_text"`: queries and keys are normalized by head, and layers that slide have positions of their
/// own.
pub(super) fn gemma3_text(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = sizes(config)?;
    rope::even("head_dim", sizes.head_dim)?;
    let full = rope::of_layer_type(config, "full_attention", ("rope_theta", 1e6), Some("rope_scaling"))?;
    let local = ("rope_local_base_freq", 1e4);
    let sliding = rope::of_layer_type(config, "sliding_attention", local, None)?;
    let [full, sliding] = [full, sliding].map(|(theta, scaling)| halves(sizes.head_dim, theta, scaling));
    let every = config.whole_or("sliding_window_pattern", &LAYERS)?.unwrap_or(6);
    let attention = Attention { qk_norm: QkNorm::Head, ..sizes.attention(None) };
    gemma(config, attention, [&full, &sliding], every)
}

fn sizes(config: &Config<'_>) -> Result<Sizes, ModelError> {
    causal(config)?;
    Sizes::of(config, Absent::Refused, Absent::Refused)
}

/// Both: the attention with the positions of full and of sliding layers, and how many layers it is to each full one.
fn gemma(
    config: &Config<'_>,
    attention: Attention,
    [full, sliding]: [&RopeSpec; 2],
    every: u64,
) -> Result<ModelSpec, ModelError> {
    let windows = attention::windows(config, window(config)?, |layer| !(layer + 1).is_multiple_of(every))?;
    let [softcap, logit_softcap] = CAPS.map(|cap| config.real_or(cap, &POSITIVE));
    let attention = Attention {
        scale: config.real("query_pre_attn_scalar", &POSITIVE)?.powf(-0.5),
        biases: biases(config)?,
        softcap: softcap?,
        ..attention
    };
    let ffn = Ffn::Gated(ffn::gated(config, "intermediate_size", "hidden_activation")?);
    let residual = Residual { post_norm: true, ..Residual::default() };
    let spec = spec(config, "rms_norm_eps", Names::hugging_face().with(NAMES), |layer| {
        let window = windows[layer];
        let rope = if window.is_some() { sliding } else { full };
        let attention = Attention { rope: Some(rope.clone()), ..attention.clone() };
        let layer = LayerSpec::new(mixer(&attention, window), ffn.clone());
        Ok(LayerSpec { mixer_residual: residual, ffn_residual: residual, ..layer })
    })?;
    let embed_scale = (spec.hidden as f64).sqrt();
    tied(config, ModelSpec { gain_offset: 1.0, embed_scale, logit_softcap: logit_softcap?, ..spec })
}
