//! Families: how the keys of a format become a spec. A family is a mapping and holds no computation of a model.
//!
//! A value that a family needs is there, of its type and in its range, or the key is named in an error. The defaults
//! that exist are those that the format itself defines for an absent key, and each family's page lists them.

mod attention;
mod config;
mod deepseek;
mod delta;
mod dense;
mod ffn;
mod gemma;
mod gguf;
mod gguf_dense;
mod gguf_hybrid;
mod gguf_layers;
mod gguf_mixture;
mod gguf_state;
mod hybrid;
mod layers;
mod llama;
mod mixture;
mod rope;

use crate::{ModelError, ModelSpec};
use config::Config;
pub(crate) use delta::within;
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
/// Of convolutions.
const TAPS: RangeInclusive<u64> = 2..=4096;
const EPS: RangeInclusive<f64> = 1e-30..=1.0;
const THETA: RangeInclusive<f64> = 1.000_001..=1e12;
const POSITIVE: RangeInclusive<f64> = 1e-6..=1e12;

type FromConfig = fn(&Config<'_>) -> Result<ModelSpec, ModelError>;
type FromGguf = fn(&Gguf<'_>) -> Result<ModelSpec, ModelError>;

/// By `model_type`.
const CONFIGS: &[(&str, FromConfig)] = &[
    ("deepseek_v3", deepseek::v3),
    ("deepseek_v4", deepseek::v4),
    ("gemma2", gemma::gemma2),
    ("gemma3_text", gemma::gemma3_text),
    ("glm4_moe", mixture::glm4_moe),
    ("gpt_oss", mixture::gpt_oss),
    ("granitemoehybrid", hybrid::granitemoehybrid),
    ("kimi_linear", delta::kimi_linear),
    ("lfm2", hybrid::lfm2),
    ("llama", llama::from_config),
    ("minimax", hybrid::minimax),
    ("minimax_m2", mixture::minimax_m2),
    ("minimax_text_01", hybrid::minimax_text_01),
    ("mistral", dense::mistral),
    ("mixtral", mixture::mixtral),
    ("nemotron_h", hybrid::nemotron_h),
    ("olmo2", dense::olmo2),
    ("phi3", dense::phi3),
    ("qwen2", dense::qwen2),
    ("qwen3", dense::qwen3),
    ("qwen3_5", delta::qwen3_5),
    ("qwen3_5_moe", delta::qwen3_5_moe),
    ("qwen3_5_moe_text", delta::qwen3_5_moe_text),
    ("qwen3_5_text", delta::qwen3_5_text),
    ("qwen3_moe", mixture::qwen3_moe),
    ("qwen3_next", delta::qwen3_next),
    ("smollm3", dense::smollm3),
];

/// By `general.architecture`.
const GGUFS: &[(&str, FromGguf)] = &[
    ("deepseek2", gguf_state::deepseek2),
    ("deepseek4", gguf_state::deepseek4),
    ("gemma2", gguf_dense::gemma2),
    ("gemma3", gguf_dense::gemma3),
    ("glm4moe", gguf_mixture::glm4moe),
    ("gpt-oss", gguf_mixture::gpt_oss),
    ("granitehybrid", gguf_hybrid::granitehybrid),
    ("kimi-linear", gguf_state::kimi_linear),
    ("lfm2", gguf_hybrid::lfm2),
    ("llama", llama::from_gguf),
    ("minimax-01", gguf_hybrid::minimax_01),
    ("minimax-m2", gguf_mixture::minimax_m2),
    ("nemotron_h", gguf_hybrid::nemotron_h),
    ("nemotron_h_moe", gguf_hybrid::nemotron_h_moe),
    ("olmo2", gguf_dense::olmo2),
    ("phi3", gguf_dense::phi3),
    ("qwen2", gguf_dense::qwen2),
    ("qwen3", gguf_dense::qwen3),
    ("qwen35", gguf_state::qwen35),
    ("qwen35moe", gguf_state::qwen35moe),
    ("qwen3moe", gguf_mixture::qwen3moe),
    ("qwen3next", gguf_state::qwen3next),
    ("smollm3", gguf_dense::smollm3),
];

pub(crate) fn from_config(config: &serde_json::Value) -> Result<ModelSpec, ModelError> {
    let config = Config::new(config)?;
    let model_type = config.text("model_type")?;
    let family = find("model_type", model_type, CONFIGS)?;
    match quantization(&config)? {
        None | Some("fp8") => {}
        Some("mxfp4") if model_type == "gpt_oss" => {}
        Some(_) => return Err(quantized()),
    }
    family(&config)
}

/// Holds that weights, where there are any, are stored as programs can read them. Matrices in FP8 come with a scale for each block of them,
/// which no program multiplies by yet: the model is known then, and what it carries, but not to be run.
pub(crate) fn readable(config: &serde_json::Value) -> Result<(), ModelError> {
    match quantization(&Config::new(config)?)? {
        Some("fp8") => Err(quantized()),
        _ => Ok(()),
    }
}

/// How the configuration says that weights are stored, where it is not as plain numbers.
fn quantization<'a>(config: &Config<'a>) -> Result<Option<&'a str>, ModelError> {
    let inner = config.inner("quantization_config")?;
    inner.map(|inner| inner.text("quant_method")).transpose()
}

fn quantized() -> ModelError {
    unsupported("quantization_config", "a quantized checkpoint", "plain float weights")
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
    /// Holds that key and value heads divide the heads, and that all heads together are no absurd width.
    fn hold(&self) -> Result<(), ModelError> {
        let Heads { heads, kv_heads: (kv_key, kv_heads), head_dim: (dim_key, head_dim) } = *self;
        if !heads.is_multiple_of(kv_heads) {
            return Err(value(kv_key, format!("a divisor of the {heads} heads"), kv_heads));
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
