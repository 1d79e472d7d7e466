//! Rotary positions as the two formats describe them.
//!
//! A `config.json` has `rope_theta` and `rope_scaling` (before transformers 5), or `rope_parameters` with both (since).
//! GGUF has `rope.freq_base` and `rope.scaling.*`; Llama 3's scaling is no type there but a tensor of divisors.

use super::config::Config;
use super::gguf::Gguf;
use super::{POSITIONS, POSITIVE, THETA, real, unsupported, value};
use crate::ModelError;
use tranship_program::ops::Scaling;

/// The base where no key gives it: both formats define it so, and the files of Llama 1 and 2 rely on it.
const DEFAULT_THETA: f64 = 10_000.0;

/// The base and the scaling of a `config.json`.
pub(super) fn from_config(config: &Config<'_>) -> Result<(f64, Scaling), ModelError> {
    let mut theta = config.real_or("rope_theta", &THETA)?;
    let mut scaling = None;
    whole_heads(config)?;
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(inner) = config.inner(key)?.filter(|c| !c.is_empty()) else { continue };
        if let Some(found) = inner.real_or("rope_theta", &THETA)? {
            if theta.is_some_and(|theta| theta != found) {
                let wanted = format!("{theta:?}, as elsewhere", theta = theta.unwrap_or(found));
                return Err(value(inner.path("rope_theta"), wanted, format!("{found:?}")));
            }
            theta = Some(found);
        }
        whole_heads(&inner)?;
        let found = scaling_of(&inner, config)?;
        if scaling.as_ref().is_some_and(|s| *s != found) {
            return Err(value(key, "the same as `rope_scaling`", "another scaling"));
        }
        scaling = Some(found);
    }
    Ok((theta.unwrap_or(DEFAULT_THETA), scaling.unwrap_or(Scaling::None)))
}

/// Families that rotate a part of each head only read this key themselves.
fn whole_heads(config: &Config<'_>) -> Result<(), ModelError> {
    match config.real_or("partial_rotary_factor", &(0.0..=1.0))? {
        Some(part) if part != 1.0 => Err(unsupported(config.path("partial_rotary_factor"), part, "1")),
        _ => Ok(()),
    }
}

fn scaling_of(inner: &Config<'_>, config: &Config<'_>) -> Result<Scaling, ModelError> {
    let key = if inner.get("rope_type").is_some() { "rope_type" } else { "type" };
    let factor = || inner.real("factor", &POSITIVE);
    // Some configurations write the original context beside the scaling, and that one counts.
    let original = || -> Result<f64, ModelError> {
        let key = "original_max_position_embeddings";
        let outer = config.whole_or(key, &POSITIONS)?;
        Ok(outer.map_or_else(|| inner.whole(key, &POSITIONS), Ok)? as f64)
    };
    match inner.text_or(key)? {
        None => match inner.other_than(&["rope_theta", "partial_rotary_factor"]) {
            // Without a type, what else is written would be lost in silence.
            Some(other) => {
                let wanted = format!("the type that `{other}` belongs to");
                Err(ModelError::MissingKey { key: inner.path("rope_type"), wanted })
            }
            None => Ok(Scaling::None),
        },
        Some("default") => Ok(Scaling::None),
        Some("linear") => Ok(Scaling::Linear { factor: factor()? }),
        Some("llama3") => {
            let (low, high) =
                (inner.real("low_freq_factor", &POSITIVE)?, inner.real("high_freq_factor", &POSITIVE)?);
            if low >= high {
                let wanted = format!("more than `low_freq_factor` {low:?}");
                return Err(value(inner.path("high_freq_factor"), wanted, format!("{high:?}")));
            }
            Ok(Scaling::Llama3 { factor: factor()?, low, high, original: original()? })
        }
        Some("yarn") => yarn(inner, factor()?, original()?),
        Some(other) => {
            Err(unsupported(inner.path(key), format!("{other:?}"), "default, linear, llama3, yarn"))
        }
    }
}

fn yarn(inner: &Config<'_>, factor: f64, original: f64) -> Result<Scaling, ModelError> {
    if !inner.flag_or("truncate", true)? {
        return Err(unsupported(inner.path("truncate"), "false", "true: whole bounds of the ramp"));
    }
    let scale = |key| inner.real_or(key, &(0.0..=1e12)).map(|v| v.filter(|&v| v != 0.0));
    let magnitude = match inner.real_or("attention_factor", &POSITIVE)? {
        Some(given) => given,
        None => match (scale("mscale")?, scale("mscale_all_dim")?) {
            (Some(m), Some(all)) => magnitude(factor, m) / magnitude(factor, all),
            _ => magnitude(factor, 1.0),
        },
    };
    let magnitude = real(&inner.path("mscale"), magnitude, &POSITIVE)?;
    let beta_fast = inner.real_or("beta_fast", &POSITIVE)?.unwrap_or(32.0);
    let beta_slow = inner.real_or("beta_slow", &POSITIVE)?.unwrap_or(1.0);
    betas(&inner.path("beta_fast"), beta_fast, beta_slow)?;
    Ok(Scaling::Yarn { factor, original, beta_fast, beta_slow, magnitude, whole: true })
}

fn betas(key: &str, fast: f64, slow: f64) -> Result<(), ModelError> {
    if fast >= slow {
        Ok(())
    } else {
        Err(value(key, format!("at least beta_slow {slow:?}"), format!("{fast:?}")))
    }
}

/// YaRN's magnitude (Peng et al., 2023, section 3.4): `0.1 · m · ln(factor) + 1` of a factor above 1.
fn magnitude(factor: f64, m: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 }
}

/// The base and the scaling of GGUF metadata.
pub(super) fn from_gguf(gguf: &Gguf<'_>) -> Result<(f64, Scaling), ModelError> {
    let theta = gguf.real_or("rope.freq_base", &THETA)?.unwrap_or(DEFAULT_THETA);
    let factor_key = if gguf.get("rope.scaling.factor").is_some() || gguf.get("rope.scale_linear").is_none() {
        "rope.scaling.factor"
    } else {
        "rope.scale_linear" // its name before 2023-09
    };
    let factor = gguf.real_or(factor_key, &POSITIVE)?;
    let needed = || factor.ok_or_else(|| gguf.absent(factor_key, "an f32"));
    let scaling = match (gguf.text_or("rope.scaling.type")?, factor) {
        (Some("none"), _) | (None, None) => Scaling::None,
        (None, Some(factor)) => Scaling::Linear { factor },
        (Some("linear"), _) => Scaling::Linear { factor: needed()? },
        (Some("yarn"), _) => gguf_yarn(gguf, needed()?)?,
        (Some(other), _) => {
            let key = gguf.path("rope.scaling.type");
            return Err(unsupported(key, format!("{other:?}"), "none, linear, yarn"));
        }
    };
    // Squeezing by 1 is no squeezing.
    Ok((theta, if scaling == (Scaling::Linear { factor: 1.0 }) { Scaling::None } else { scaling }))
}

fn gguf_yarn(gguf: &Gguf<'_>, factor: f64) -> Result<Scaling, ModelError> {
    let original = gguf.whole("rope.scaling.original_context_length", &POSITIONS)? as f64;
    for key in ["rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"] {
        if let Some(found) = gguf.real_or(key, &(-1e12..=1e12))?.filter(|&v| v != 1.0) {
            return Err(unsupported(gguf.path(key), format!("{found:?}"), "1"));
        }
    }
    let all = gguf.real_or("rope.scaling.yarn_log_multiplier", &(0.0..=1e12))?.filter(|&v| v != 0.0);
    let base = magnitude(factor, 1.0) / all.map_or(1.0, |all| magnitude(factor, all));
    let attn = gguf.real_or("rope.scaling.attn_factor", &POSITIVE)?.unwrap_or(1.0);
    let magnitude = real(&gguf.path("rope.scaling.attn_factor"), base * attn, &POSITIVE)?;
    let beta_fast = gguf.real_or("rope.scaling.yarn_beta_fast", &POSITIVE)?.unwrap_or(32.0);
    let beta_slow = gguf.real_or("rope.scaling.yarn_beta_slow", &POSITIVE)?.unwrap_or(1.0);
    betas(&gguf.path("rope.scaling.yarn_beta_fast"), beta_fast, beta_slow)?;
    Ok(Scaling::Yarn { factor, original, beta_fast, beta_slow, magnitude, whole: true })
}
