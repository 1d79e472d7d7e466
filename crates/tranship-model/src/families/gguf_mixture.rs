//! GGUF files of attention and experts: Qwen3 MoE, MiniMax-M2, GLM-4.5 and gpt-oss. Mixtral is of Llama's architecture.
//!
//! Defaults of absent keys beside those of all architectures, as the format's reader defines them: `expert_gating_func`
//! of MiniMax-M2 and of GLM is the sigmoid; `leading_dense_block_count` is 0; every second layer of gpt-oss is full,
//! unless `attention.sliding_window_pattern` says else. What the format has no key for is fixed: weights of the chosen
//! experts add to 1 but in GLM, which has a key for it; gpt-oss clamps at 7 and multiplies by 1.702 inside the sigmoid,
//! and its YaRN does not round the bounds of its ramp, as the released configuration has it.

use super::attention::Sizes;
use super::gguf::Gguf;
use super::gguf_layers::{self, Count, NORM_AFTER_ATTENTION, biases, names, rope, silu, spec, windowless};
use super::{LAYERS, POSITIONS};
use crate::{
    Activation, Attention, AttentionBiases, Experts, Ffn, LayerSpec, Mixer, ModelError, ModelSpec, Names,
    QkNorm, RopeSpec,
};
use tranship_program::ops::{RopeStyle, Route, RouteBias, Scaling};

/// `general.architecture: "qwen3moe"`
pub(super) fn qwen3moe(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let route = gguf_layers::softmax(gguf)?;
    let experts = gguf_layers::experts(gguf, gguf_layers::expert_width(gguf)?, route)?;
    mixture(gguf, QkNorm::Head, names(), |_| Ok(Ffn::Experts(experts.clone())))
}

/// `general.architecture: "minimax-m2"`
pub(super) fn minimax_m2(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let route = gguf_layers::sigmoid(gguf, true)?;
    let experts = gguf_layers::experts(gguf, gguf_layers::expert_width(gguf)?, route)?;
    mixture(gguf, QkNorm::Whole, names(), |_| Ok(Ffn::Experts(experts.clone())))
}

/// `general.architecture: "glm4moe"`: queries and keys are normalized where the file has gains for them.
pub(super) fn glm4moe(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let normalize = gguf.flag_or("expert_weights_norm", false)?;
    let route = gguf_layers::grouped(gguf, true, normalize)?;
    let experts = gguf_layers::experts(gguf, gguf_layers::expert_width(gguf)?, route)?;
    let shared = gguf_layers::shared_count(gguf, &experts)?;
    let experts = Ffn::Experts(Experts { shared, ..experts });
    let dense = gguf.whole_or("leading_dense_block_count", &(0..=*LAYERS.end()))?.unwrap_or(0) as usize;
    let normed = |layer| ["q", "k"].iter().any(|of| gguf.has(&format!("blk.{layer}.attn_{of}_norm.weight")));
    let qk_norm = if (0..Count::of(gguf)?.layers).any(normed) { QkNorm::Head } else { QkNorm::None };
    mixture(gguf, qk_norm, names().with(NORM_AFTER_ATTENTION), |layer| {
        if layer < dense { silu(gguf, layer) } else { Ok(experts.clone()) }
    })
}

/// Attention over all positions, turned in halves, and the part that `ffn` gives.
fn mixture(
    gguf: &Gguf<'_>,
    qk_norm: QkNorm,
    names: Names,
    ffn: impl Fn(usize) -> Result<Ffn, ModelError>,
) -> Result<ModelSpec, ModelError> {
    windowless(gguf)?;
    let sizes = Sizes::of_gguf(gguf)?;
    let rope = rope(gguf, sizes.head_dim, RopeStyle::Half)?;
    let biases = biases(gguf)?;
    spec(gguf, names, |layer| {
        let rope = Some(rope.clone());
        let attention = Attention { biases, qk_norm, ..sizes.attention(rope) };
        Ok(LayerSpec::new(Mixer::Attention(attention), ffn(layer)?))
    })
}

/// `general.architecture: "gpt-oss"`
pub(super) fn gpt_oss(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let window = gguf.whole("attention.sliding_window", &POSITIONS)?;
    let slides = Count::of(gguf)?.slides(gguf, 2)?;
    let sizes = Sizes::of_gguf(gguf)?;
    let rope = unrounded(rope(gguf, sizes.head_dim, RopeStyle::Half)?);
    let route = Route { bias: Some(RouteBias::Logits), ..gguf_layers::softmax(gguf)? };
    let experts = gguf_layers::experts(gguf, gguf_layers::expert_width(gguf)?, route)?;
    let (activation, limit) = (Activation::Swish { alpha: 1.702 }, Some(7.0));
    let ffn = Ffn::Experts(Experts { activation, limit, biased: true, ..experts });
    let biases = AttentionBiases { q: true, k: true, v: true, o: true };
    spec(gguf, names().with(NORM_AFTER_ATTENTION), |layer| {
        let window = slides[layer].then_some(window);
        let attention = sizes.attention(Some(rope.clone()));
        let attention = Attention { biases, sinks: true, window, ..attention };
        Ok(LayerSpec::new(Mixer::Attention(attention), ffn.clone()))
    })
}

/// YaRN whose ramp begins and ends between dimensions.
fn unrounded(rope: RopeSpec) -> RopeSpec {
    let scaling = match rope.scaling {
        Scaling::Yarn { factor, original, beta_fast, beta_slow, magnitude, .. } => {
            Scaling::Yarn { factor, original, beta_fast, beta_slow, magnitude, whole: false }
        }
        other => other,
    };
    RopeSpec { scaling, ..rope }
}
