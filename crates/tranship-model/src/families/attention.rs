//! Attention as most families write it: sizes of heads, biases, and the windows of layers.

use super::config::Config;
use super::{Heads, POSITIONS, WIDTH, even_share, layers, unsupported, value};
use crate::{Attention, AttentionBiases, Mixer, ModelError, QkNorm, RopeSpec};

/// What a size is whose key is not written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Absent {
    /// What follows from other sizes: the family's configuration class defines it so.
    Derived,
    /// The size of one released model, which no other should get in silence: the key must be written. Of heads that
    /// share keys and values, `null` is as many as there are.
    Refused,
}

/// Heads of an attention.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
}

impl Sizes {
    /// By `num_attention_heads`, `num_key_value_heads` and `head_dim`, of which the latter two may be derived:
    /// from the first, and from the hidden width.
    pub fn of(config: &Config<'_>, kv_heads: Absent, head_dim: Absent) -> Result<Sizes, ModelError> {
        let (heads_key, kv_key, dim_key) = ("num_attention_heads", "num_key_value_heads", "head_dim");
        let heads = config.whole(heads_key, &WIDTH)?;
        let kv_heads = if kv_heads == Absent::Derived || config.is_written(kv_key) {
            config.whole_or(kv_key, &WIDTH)?.unwrap_or(heads)
        } else {
            config.whole(kv_key, &WIDTH)?
        };
        let head_dim = match config.whole_or(dim_key, &WIDTH)? {
            Some(given) => given,
            None if head_dim == Absent::Derived => {
                even_share(&config.path(heads_key), heads, config.whole("hidden_size", &WIDTH)?)?
            }
            None => config.whole(dim_key, &WIDTH)?,
        };
        let (kv_path, dim_path) = (config.path(kv_key), config.path(dim_key));
        Heads { heads, kv_heads: (&kv_path, kv_heads), head_dim: (&dim_path, head_dim) }.hold()?;
        Ok(Sizes { heads, kv_heads, head_dim })
    }

    /// The plain attention of these sizes: no biases, no normalization, no window.
    pub fn attention(self, rope: Option<RopeSpec>) -> Attention {
        let Sizes { heads, kv_heads, head_dim } = self;
        Attention {
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f64).sqrt(),
            rope,
            biases: AttentionBiases::default(),
            qk_norm: QkNorm::None,
            window: None,
            softcap: None,
            sinks: false,
            gated: false,
        }
    }
}

/// Biases of all four projections, by `attention_bias`.
pub(super) fn biases(config: &Config<'_>) -> Result<AttentionBiases, ModelError> {
    let bias = config.flag_or("attention_bias", false)?;
    Ok(AttentionBiases { q: bias, k: bias, v: bias, o: bias })
}

/// The attention as a layer's mixer, with that layer's window.
pub(super) fn mixer(attention: &Attention, window: Option<u64>) -> Mixer {
    Mixer::Attention(Attention { window, ..attention.clone() })
}

/// `sliding_window`: positions that a query sees, its own included; `null` is all of them.
pub(super) fn window(config: &Config<'_>) -> Result<Option<u64>, ModelError> {
    config.whole_or("sliding_window", &POSITIONS)
}

/// The window where `use_sliding_window` says that there is one; then `sliding_window` must be written.
pub(super) fn window_if_used(config: &Config<'_>) -> Result<Option<u64>, ModelError> {
    if !config.flag_or("use_sliding_window", false)? {
        return Ok(None);
    }
    config.stated("sliding_window", "a whole number, or null")?;
    window(config)
}

/// The window of each layer: of those that `layer_types` says slide, or where it is not written of those that `slides`.
pub(super) fn windows(
    config: &Config<'_>,
    window: Option<u64>,
    slides: impl Fn(u64) -> bool,
) -> Result<Vec<Option<u64>>, ModelError> {
    const TYPES: [&str; 2] = ["full_attention", "sliding_attention"];
    let types = match layers::types(config, &TYPES)? {
        Some(types) => types,
        None => (0..layers::count(config)?).map(|layer| TYPES[usize::from(slides(layer))]).collect(),
    };
    let own = |(layer, layer_type)| match (layer_type == TYPES[1], window) {
        (false, _) => Ok(None),
        (true, Some(window)) => Ok(Some(window)),
        (true, None) => {
            let wanted = format!("a window, for attention of layer {layer} slides");
            Err(value(config.path("sliding_window"), wanted, "none"))
        }
    };
    types.into_iter().enumerate().map(own).collect()
}

/// Holds that a query sees what came before it alone.
pub(super) fn causal(config: &Config<'_>) -> Result<(), ModelError> {
    match config.flag_or("use_bidirectional_attention", false)? {
        true => Err(unsupported(config.path("use_bidirectional_attention"), "true", "false")),
        false => Ok(()),
    }
}
