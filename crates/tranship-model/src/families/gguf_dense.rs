//! GGUF files of Qwen 2 and 3, SmolLM3, OLMo 2, Phi-3, and Gemma 2 and 3.
//!
//! Defaults of absent keys beside those of all architectures, as the format's reader defines them: of `gemma2`,
//! `attention.sliding_window` is 4096, `attn_logit_softcapping` 50 and `final_logit_softcapping` 30; of both Gemmas,
//! `attention.sliding_window_pattern` is 2 and 6: of so many layers, all but the last slide; of `gemma3`, layers slide
//! where there is a window, with `rope.freq_base_swa` 10000. `rope.scaling.attn_factor` of `phi3` is 1. What the
//! format has no key for is fixed: every fourth layer of SmolLM3 has no positions; Gemma's scores are scaled by the
//! size of a head, but in the largest of each, known by its 46 or 62 layers, by the share that a head has of the
//! hidden width.
//!
//! Queries and keys of SmolLM3 are permuted to interleaved pairs, as Llama's are. Gemma's gains are stored whole. A
//! window of Phi-3 counts. Its two lists of divisors are read from the tensors `rope_factors_short` and
//! `rope_factors_long`.

use super::attention::Sizes;
use super::gguf::Gguf;
use super::gguf_layers::{Count, biases, dense, names, rope, silu, spec, windowless};
use super::{POSITIONS, POSITIVE, THETA, WIDTH, value};
use crate::{
    Activation, Attention, AttentionBiases, Ffn, LayerSpec, Mixer, ModelError, ModelSpec, Part, QkNorm,
    Residual, RopeSpec,
};
use tranship_program::ops::{RopeStyle, Scaling};

/// `general.architecture: "qwen2"`: queries, keys and values have biases.
pub(super) fn qwen2(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let spec = plain(gguf, QkNorm::None, RopeStyle::Half, |_| true)?;
    let with_biases = |layer: LayerSpec| match layer.mixer {
        Some(Mixer::Attention(attention)) => {
            let biases = AttentionBiases { q: true, k: true, v: true, ..attention.biases };
            LayerSpec { mixer: Some(Mixer::Attention(Attention { biases, ..attention })), ..layer }
        }
        _ => layer,
    };
    Ok(ModelSpec { layers: spec.layers.into_iter().map(with_biases).collect(), ..spec })
}

/// `general.architecture: "qwen3"`
pub(super) fn qwen3(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    plain(gguf, QkNorm::Head, RopeStyle::Half, |_| true)
}

/// `general.architecture: "smollm3"`
pub(super) fn smollm3(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    plain(gguf, QkNorm::None, RopeStyle::Interleaved, |layer| !(layer + 1).is_multiple_of(4))
}

/// Attention over all positions and a dense part in each layer; `placed` are those that know positions.
fn plain(
    gguf: &Gguf<'_>,
    qk_norm: QkNorm,
    style: RopeStyle,
    placed: impl Fn(usize) -> bool,
) -> Result<ModelSpec, ModelError> {
    windowless(gguf)?;
    let sizes = Sizes::of_gguf(gguf)?;
    let rope = rope(gguf, sizes.head_dim, style)?;
    let biases = biases(gguf)?;
    spec(gguf, names(), |layer| {
        let rope = placed(layer).then(|| rope.clone());
        let attention = Attention { biases, qk_norm, ..sizes.attention(rope) };
        Ok(LayerSpec::new(Mixer::Attention(attention), silu(gguf, layer)?))
    })
}

/// `general.architecture: "olmo2"`
pub(super) fn olmo2(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let spec = plain(gguf, QkNorm::Whole, RopeStyle::Half, |_| true)?;
    let residual = Residual { pre_norm: false, post_norm: true, ..Residual::default() };
    let layers = spec.layers.into_iter();
    let layers = layers.map(|layer| LayerSpec { mixer_residual: residual, ffn_residual: residual, ..layer });
    Ok(ModelSpec { layers: layers.collect(), ..spec })
}

/// `general.architecture: "phi3"`: projections lie in one matrix.
pub(super) fn phi3(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let (sizes, count) = (Sizes::of_gguf(gguf)?, Count::of(gguf)?);
    let window = gguf.above_zero("attention.sliding_window", &POSITIONS)?;
    let rope = rope(gguf, sizes.head_dim, RopeStyle::Half)?;
    let attention = Attention { window, ..sizes.attention(Some(long(gguf, rope)?)) };
    let width = count.size(gguf, "feed_forward_length")?;
    let (q, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
    let mut names = names();
    let mut rows = |part, of: &str, from: u64, to: u64| {
        names.set(part, format!("blk.{{layer}}.{of}.{{}}[{from}..{to}]"));
    };
    rows(Part::Query, "attn_qkv", 0, q);
    rows(Part::Key, "attn_qkv", q, q + kv);
    rows(Part::Value, "attn_qkv", q + kv, q + 2 * kv);
    rows(Part::Gate, "ffn_up", 0, width);
    rows(Part::Up, "ffn_up", width, 2 * width);
    let layer = LayerSpec::new(
        Mixer::Attention(attention),
        Ffn::Gated(crate::Gated { biases: Default::default(), ..dense(gguf, width, Activation::Silu, 0)? }),
    );
    spec(gguf, names, |_| Ok(layer.clone()))
}

/// LongRoPE, of files that have its two lists.
fn long(gguf: &Gguf<'_>, rope: RopeSpec) -> Result<RopeSpec, ModelError> {
    let names = ["rope_factors_short.weight", "rope_factors_long.weight"];
    let magnitude = gguf.real_or("rope.scaling.attn_factor", &POSITIVE)?.unwrap_or(1.0);
    let list = |tensor: &str| -> Result<Option<Scaling>, ModelError> {
        let Some(divisors) = gguf.reals_of(tensor, &POSITIVE)? else { return Ok(None) };
        if divisors.len() as u64 != rope.dims / 2 {
            return Err(value(
                tensor,
                format!("a number for each of {} pairs", rope.dims / 2),
                divisors.len(),
            ));
        }
        Ok(Some(Scaling::Listed { divisors, magnitude }))
    };
    match (list(names[0])?, list(names[1])?) {
        (None, None) => Ok(rope),
        (Some(short), Some(long)) => {
            let from = gguf.whole("rope.scaling.original_context_length", &POSITIONS)?;
            Ok(RopeSpec { scaling: short, long: Some((from, long)), ..rope })
        }
        (short, _) => {
            let (there, missing) = if short.is_some() { (names[0], names[1]) } else { (names[1], names[0]) };
            Err(value(missing, format!("a tensor beside `{there}`"), "none"))
        }
    }
}

/// `general.architecture: "gemma2"`
pub(super) fn gemma2(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let window = gguf.whole_or("attention.sliding_window", &POSITIONS)?.unwrap_or(4096);
    let softcap = gguf.real_or("attn_logit_softcapping", &POSITIVE)?.unwrap_or(50.0);
    let logit_softcap = gguf.real_or("final_logit_softcapping", &POSITIVE)?.unwrap_or(30.0);
    let sizes = Sizes::of_gguf(gguf)?;
    let rope = rope(gguf, sizes.head_dim, RopeStyle::Half)?;
    let sliding =
        RopeSpec { theta: gguf.real_or(SLIDING_BASE, &THETA)?.unwrap_or(rope.theta), ..rope.clone() };
    let slides = Count::of(gguf)?.slides(gguf, 2)?;
    let attention = Attention { softcap: Some(softcap), ..sizes.attention(None) };
    let spec = gemma(gguf, attention, [&rope, &sliding], (46, &slides, window))?;
    Ok(ModelSpec { logit_softcap: Some(logit_softcap), ..spec })
}

/// `general.architecture: "gemma3"`: layers that slide have positions of their own, unscaled.
pub(super) fn gemma3(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let count = Count::of(gguf)?;
    let window = gguf.above_zero("attention.sliding_window", &POSITIONS)?;
    let slides = match window {
        Some(_) => count.slides(gguf, 6)?,
        None => vec![false; count.layers],
    };
    let sizes = Sizes::of_gguf(gguf)?;
    let rope = rope(gguf, sizes.head_dim, RopeStyle::Half)?;
    let theta = gguf.real_or(SLIDING_BASE, &THETA)?.unwrap_or(super::rope::DEFAULT_THETA);
    let sliding = RopeSpec { theta, scaling: Scaling::None, ..rope.clone() };
    let attention = Attention { qk_norm: QkNorm::Head, ..sizes.attention(None) };
    let spec = gemma(gguf, attention, [&rope, &sliding], (62, &slides, window.unwrap_or(1)))?;
    let logit_softcap = gguf.real_or("final_logit_softcapping", &(0.0..=*POSITIVE.end()))?;
    Ok(ModelSpec { logit_softcap: logit_softcap.filter(|cap| *cap > 0.0), ..spec })
}

const SLIDING_BASE: &str = "rope.freq_base_swa";

/// Both: the attention with the positions of full and of sliding layers, how many layers the largest model has, which
/// slide, and how far these see.
fn gemma(
    gguf: &Gguf<'_>,
    attention: Attention,
    [full, sliding]: [&RopeSpec; 2],
    (largest, slides, window): (usize, &[bool], u64),
) -> Result<ModelSpec, ModelError> {
    let (count, hidden) = (Count::of(gguf)?, gguf.whole("embedding_length", &WIDTH)?);
    let size = if count.layers == largest { hidden / attention.heads } else { attention.head_dim };
    let attention = Attention { scale: 1.0 / (size as f64).sqrt(), ..attention };
    let width = count.size(gguf, "feed_forward_length")?;
    let residual = Residual { post_norm: true, ..Residual::default() };
    let biases = biases(gguf)?;
    let spec = spec(gguf, names(), |layer| {
        let rope = if slides[layer] { sliding } else { full };
        let attention = Attention {
            rope: Some(rope.clone()),
            window: slides[layer].then_some(window),
            biases,
            ..attention.clone()
        };
        let ffn = Ffn::Gated(dense(gguf, width, Activation::GeluTanh, layer)?);
        let layer = LayerSpec::new(Mixer::Attention(attention), ffn);
        Ok(LayerSpec { mixer_residual: residual, ffn_residual: residual, ..layer })
    })?;
    Ok(ModelSpec { embed_scale: (hidden as f64).sqrt(), ..spec })
}
