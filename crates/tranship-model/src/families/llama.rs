//! Llama: grouped-query attention and a gated feed-forward part in every layer. A GGUF file of this architecture may
//! have experts in its place: Mixtral; and Mistral's is no other, whose window the format leaves out.
//!
//! Defaults of absent keys, as `transformers` defines them for `LlamaConfig`: `num_key_value_heads` is
//! `num_attention_heads`; `head_dim` is `hidden_size / num_attention_heads`; `attention_bias`, `mlp_bias` and
//! `tie_word_embeddings` are false; `rope_theta` is 10000. As GGUF defines them: `attention.head_count_kv` is
//! `attention.head_count`, `attention.key_length` is `embedding_length / attention.head_count`, `rope.freq_base` is
//! 10000, and the head is the embedding table where there is no `output.weight`. All else must be there.
//!
//! Rows of the query and key matrices stand in halves in a Hugging Face checkpoint and in interleaved pairs in a GGUF
//! file of this architecture, whose converter permutes them.

use super::attention::{self, Absent, Sizes};
use super::config::Config;
use super::gguf::Gguf;
use super::{EPS, Heads, LAYERS, POSITIONS, POSITIVE, VOCAB, WIDTH};
use super::{even_share, ffn, gguf_layers, layers, rope, unsupported, value};
use crate::{
    Activation, Attention, AttentionBiases, Ffn, Gated, GatedBiases, LayerSpec, Mixer, ModelError, ModelSpec,
    Names, Part, QkNorm, RopeSpec,
};
use tranship_program::ops::RopeStyle;

/// `model_type: "llama"`
pub(super) fn from_config(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    if let Some(window) = config.get("sliding_window") {
        return Err(unsupported("sliding_window", window, "null: attention over all positions"));
    }
    let sizes = Sizes::of(config, Absent::Derived, Absent::Derived)?;
    let rope = rope::whole_heads(config, sizes.head_dim, rope::DEFAULT_THETA)?;
    let attention = Attention { biases: attention::biases(config)?, ..sizes.attention(Some(rope)) };
    let layer = LayerSpec::new(Mixer::Attention(attention), ffn::dense_with_biases(config)?);
    layers::spec(config, "rms_norm_eps", Names::hugging_face(), |_| Ok(layer.clone()))
}

/// `general.architecture: "llama"`
pub(super) fn from_gguf(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    refuse_others(gguf)?;
    let hidden = gguf.whole("embedding_length", &WIDTH)?;
    let layers = gguf.whole("block_count", &LAYERS)? as usize;
    let experts = match gguf.above_zero("expert_count", &WIDTH)? {
        Some(_) => Some(experts(gguf)?),
        None => None,
    };
    let names = if experts.is_some() { gguf_layers::names() } else { Names::gguf() };
    Ok(ModelSpec {
        architecture: gguf.architecture.to_owned(),
        hidden,
        streams: 1,
        hyper: None,
        gain_offset: 0.0,
        embed_scale: 1.0,
        logit_scale: 1.0,
        logit_softcap: None,
        vocab: gguf.vocab(&VOCAB)?,
        max_positions: gguf.whole("context_length", &POSITIONS)?,
        norm_eps: gguf.real("attention.layer_norm_rms_epsilon", &EPS)?,
        tied_head: !gguf.has_weight(Part::Head)?,
        layers: layers_of(gguf, hidden, layers, experts)?,
        names,
        dtype: None,
    })
}

/// Variants that share the architecture's name and are other models.
fn refuse_others(gguf: &Gguf<'_>) -> Result<(), ModelError> {
    gguf_layers::windowless(gguf)?;
    if !gguf.flag_or("attention.causal", true)? {
        return Err(unsupported(gguf.path("attention.causal"), "false", "true"));
    }
    Ok(())
}

/// Mixtral's experts: softmax over all, and weights of the chosen that add to 1.
fn experts(gguf: &Gguf<'_>) -> Result<Ffn, ModelError> {
    let width = gguf_layers::Count::of(gguf)?.size(gguf, "feed_forward_length")?;
    gguf_layers::experts(gguf, width, gguf_layers::softmax(gguf)?).map(Ffn::Experts)
}

fn layers_of(
    gguf: &Gguf<'_>,
    hidden: u64,
    layers: usize,
    experts: Option<Ffn>,
) -> Result<Vec<LayerSpec>, ModelError> {
    let (heads_key, ffn_key) = ("attention.head_count", "feed_forward_length");
    let needed = |key: &'static str| {
        let found = gguf.per_layer(key, layers, &WIDTH)?;
        found.ok_or_else(|| gguf.absent(key, "an integer, or an array with one for each layer"))
    };
    let (heads, widths) = (needed(heads_key)?, needed(ffn_key)?);
    let kv_heads =
        gguf.per_layer("attention.head_count_kv", layers, &WIDTH)?.unwrap_or_else(|| heads.clone());
    let (theta, scaling) = rope::from_gguf(gguf)?;
    let divisors = gguf.has_weight(Part::RopeDivisors)?;
    let scale = gguf.real_or("attention.scale", &(0.0..=*POSITIVE.end()))?.filter(|&v| v > 0.0);
    (0..layers)
        .map(|layer| {
            let bias = |part| gguf.has_bias(part, layer);
            let head_dim = gguf_head_dim(gguf, hidden, heads[layer], kv_heads[layer])?;
            let attention = Attention {
                heads: heads[layer],
                kv_heads: kv_heads[layer],
                head_dim,
                scale: scale.unwrap_or(1.0 / (head_dim as f64).sqrt()),
                rope: Some(RopeSpec {
                    dims: head_dim,
                    theta,
                    style: RopeStyle::Interleaved,
                    scaling: scaling.clone(),
                    long: None,
                    divisors,
                }),
                qk_norm: QkNorm::None,
                window: None,
                softcap: None,
                sinks: false,
                gated: false,
                biases: AttentionBiases {
                    q: bias(Part::Query)?,
                    k: bias(Part::Key)?,
                    v: bias(Part::Value)?,
                    o: bias(Part::Output)?,
                },
            };
            if let Some(experts) = &experts {
                return Ok(LayerSpec::new(Mixer::Attention(attention), experts.clone()));
            }
            let biases =
                GatedBiases { gate: bias(Part::Gate)?, up: bias(Part::Up)?, down: bias(Part::Down)? };
            let gated = Gated {
                width: widths[layer],
                activation: Activation::Silu,
                gated: true,
                biases,
                limit: None,
            };
            Ok(LayerSpec::new(Mixer::Attention(attention), Ffn::Gated(gated)))
        })
        .collect()
}

/// The size of a head, held to all the keys that say it.
fn gguf_head_dim(gguf: &Gguf<'_>, hidden: u64, heads: u64, kv_heads: u64) -> Result<u64, ModelError> {
    let (heads_key, kv_key, dim_key) = (
        gguf.path("attention.head_count"),
        gguf.path("attention.head_count_kv"),
        gguf.path("attention.key_length"),
    );
    let head_dim = match gguf.whole_or("attention.key_length", &WIDTH)? {
        Some(given) => given,
        None => even_share(&heads_key, heads, hidden)?,
    };
    for key in ["attention.value_length", "rope.dimension_count"] {
        if let Some(found) = gguf.whole_or(key, &(0..=u64::MAX))?.filter(|&v| v != head_dim) {
            return Err(value(gguf.path(key), format!("the size of a head, {head_dim}"), found));
        }
    }
    Heads { heads, kv_heads: (&kv_key, kv_heads), head_dim: (&dim_key, head_dim) }.hold()?;
    rope::even(&dim_key, head_dim)?;
    Ok(head_dim)
}
