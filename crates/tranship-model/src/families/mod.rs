//! Families: how the keys of a format become a spec. A family is a mapping and holds no computation of a model.
//!
//! A value that a family needs is there, of its type and in its range, or the key is named in an error. The defaults
//! that exist are those that the format itself defines for an absent key, and each family's page lists them.

mod config;
mod gguf;
mod llama;
mod rope;

use crate::{ModelError, ModelSpec};
use config::Config;
use gguf::Gguf;
use std::ops::RangeInclusive;
use tranship_weights::Checkpoint;

/// The most layers that a spec may have.
pub const MAX_LAYERS: u64 = 4096;

/// The widest row that a spec may have: hidden, between projections, or all heads together.
pub const MAX_WIDTH: u64 = 1 << 24;

/// The largest vocabulary.
pub const MAX_VOCAB: u64 = 1 << 28;

const LAYERS: RangeInclusive<u64> = 1..=MAX_LAYERS;
const WIDTH: RangeInclusive<u64> = 1..=MAX_WIDTH;
const VOCAB: RangeInclusive<u64> = 1..=MAX_VOCAB;
const POSITIONS: RangeInclusive<u64> = 1..=crate::MAX_CTX;
const EPS: RangeInclusive<f64> = 1e-30..=1.0;
const THETA: RangeInclusive<f64> = 1.000_001..=1e12;
const POSITIVE: RangeInclusive<f64> = 1e-6..=1e12;

type FromConfig = fn(&Config<'_>) -> Result<ModelSpec, ModelError>;
type FromGguf = fn(&Gguf<'_>) -> Result<ModelSpec, ModelError>;

/// By `model_type`.
const CONFIGS: &[(&str, FromConfig)] =
    &[("llama", llama::from_config), ("mistral", llama::from_mistral_config)];

/// By `general.architecture`.
const GGUFS: &[(&str, FromGguf)] = &[("llama", llama::from_gguf)];

pub(crate) fn from_config(config: &serde_json::Value) -> Result<ModelSpec, ModelError> {
    let config = Config::new(config)?;
    find("model_type", config.text("model_type")?, CONFIGS)?(&config)
}

pub(crate) fn from_gguf(checkpoint: &Checkpoint) -> Result<ModelSpec, ModelError> {
    const KEY: &str = "general.architecture";
    let architecture = checkpoint.metadata().get_str(KEY)?;
    find(KEY, architecture, GGUFS)?(&Gguf::new(checkpoint, architecture))
}

fn find<T: Copy>(key: &str, name: &str, families: &[(&str, T)]) -> Result<T, ModelError> {
    let found = families.iter().find(|(known, _)| *known == name);
    found.map(|(_, family)| *family).ok_or_else(|| {
        let known: Vec<&str> = families.iter().map(|(known, _)| *known).collect();
        unsupported(key, format!("{name:?}"), known.join(", "))
    })
}

fn value(key: impl Into<String>, wanted: impl Into<String>, found: impl ToString) -> ModelError {
    ModelError::Value { key: key.into(), wanted: wanted.into(), found: short(found.to_string()) }
}

fn unsupported(key: impl Into<String>, found: impl ToString, supported: impl Into<String>) -> ModelError {
    ModelError::Unsupported { key: key.into(), found: short(found.to_string()), supported: supported.into() }
}

/// What was found, fit for one line.
fn short(mut text: String) -> String {
    const MOST: usize = 64;
    if let Some((end, _)) = text.char_indices().nth(MOST) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn in_range<T: PartialOrd + Copy + ToString>(
    key: &str,
    found: T,
    range: &RangeInclusive<T>,
    show: impl Fn(T) -> String,
) -> Result<T, ModelError> {
    if range.contains(&found) {
        return Ok(found);
    }
    Err(value(key, format!("{} to {}", show(*range.start()), show(*range.end())), show(found)))
}

fn whole(key: &str, found: u64, range: &RangeInclusive<u64>) -> Result<u64, ModelError> {
    in_range(key, found, range, |v| v.to_string())
}

fn real(key: &str, found: f64, range: &RangeInclusive<f64>) -> Result<f64, ModelError> {
    in_range(key, found, range, |v| format!("{v:?}"))
}

/// Sizes of an attention's heads, with the keys that they were read from.
struct Heads<'a> {
    heads: u64,
    kv_heads: (&'a str, u64),
    head_dim: (&'a str, u64),
}

impl Heads<'_> {
    /// Holds that key and value heads divide the heads, that halves of a head can be rotated, and that all heads
    /// together are no absurd width.
    fn hold(&self) -> Result<(), ModelError> {
        let Heads { heads, kv_heads: (kv_key, kv_heads), head_dim: (dim_key, head_dim) } = *self;
        if !heads.is_multiple_of(kv_heads) {
            return Err(value(kv_key, format!("a divisor of the {heads} heads"), kv_heads));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(value(dim_key, "an even size, for RoPE turns pairs", head_dim));
        }
        match heads.checked_mul(head_dim) {
            Some(width) if width <= MAX_WIDTH => Ok(()),
            _ => Err(value(dim_key, format!("at most {MAX_WIDTH} elements in {heads} heads"), head_dim)),
        }
    }
}

/// The size of a head where no key gives it: the hidden width, shared evenly by the heads.
fn even_share(heads_key: &str, heads: u64, hidden: u64) -> Result<u64, ModelError> {
    if !hidden.is_multiple_of(heads) {
        return Err(value(heads_key, format!("a divisor of the hidden width {hidden}"), heads));
    }
    Ok(hidden / heads)
}
