//! Rotary positions as the two formats describe them.
//!
//! A `config.json` has `rope_theta` and `rope_scaling` (before transformers 5), or `rope_parameters` with both (since).
//! GGUF has `rope.freq_base` and `rope.scaling.*`; Llama 3's scaling is no type there but a tensor of divisors.

use super::config::Config;
use super::gguf::Gguf;
use super::{POSITIONS, POSITIVE, THETA, real, unsupported, value};
use crate::{ModelError, RopeSpec};
use tranship_program::ops::{RopeStyle, Scaling};

/// The base where no key gives it: both formats define it so, and the files of Llama 1 and 2 rely on it.
pub(super) const DEFAULT_THETA: f64 = 10_000.0;

/// Positions of a `config.json` by which whole heads are rotated, in halves. `theta` is the base where none is written.
pub(super) fn whole_heads(config: &Config<'_>, head_dim: u64, theta: f64) -> Result<RopeSpec, ModelError> {
    for part in parts(config)? {
        if part.1 != 1.0 {
            return Err(unsupported(part.0, part.1, "1"));
        }
    }
    even("head_dim", head_dim)?;
    let (theta, scaling) = from_config(config, theta)?;
    Ok(halves(head_dim, theta, scaling))
}

/// Positions by which the first elements of each head are rotated, as many as `partial_rotary_factor` says; `part` is
/// that factor where none is written.
pub(super) fn part_of_heads(
    config: &Config<'_>,
    head_dim: u64,
    part: f64,
    theta: f64,
) -> Result<RopeSpec, ModelError> {
    let dims = rotated(config, head_dim, part)?;
    let (theta, scaling) = from_config(config, theta)?;
    Ok(halves(dims, theta, scaling))
}

/// Positions that turn `dims` elements of each head, `j` with `j + dims/2`.
pub(super) fn halves(dims: u64, theta: f64, scaling: Scaling) -> RopeSpec {
    RopeSpec { dims, theta, style: RopeStyle::Half, scaling, long: None, divisors: false }
}

/// Holds that halves of so many elements can be rotated.
pub(super) fn even(key: &str, dims: u64) -> Result<(), ModelError> {
    if dims.is_multiple_of(2) {
        return Ok(());
    }
    Err(value(key, "an even size, for RoPE turns pairs", dims))
}

/// The base and the scaling of a `config.json`.
pub(super) fn from_config(config: &Config<'_>, absent: f64) -> Result<(f64, Scaling), ModelError> {
    let mut scaling = None;
    for inner in scalings(config)? {
        let found = scaling_of(&inner, config)?;
        if scaling.as_ref().is_some_and(|s| *s != found) {
            return Err(value("rope_parameters", "the same as `rope_scaling`", "another scaling"));
        }
        scaling = Some(found);
    }
    Ok((theta_of(config, absent)?, scaling.unwrap_or(Scaling::None)))
}

/// The base and the scaling of one type of layers, where `rope_parameters` has an object for each. Where it has none,
/// `before` is the key of the base before transformers 5, which `absent` stands in for, and `scaling` that of the
/// scaling, of types that are scaled.
pub(super) fn of_layer_type(
    config: &Config<'_>,
    layer_type: &str,
    (before, absent): (&str, f64),
    scaling: Option<&str>,
) -> Result<(f64, Scaling), ModelError> {
    let theta = config.real_or(before, &THETA)?.unwrap_or(absent);
    let old = scaling.map(|key| config.inner(key)).transpose()?.flatten().filter(|c| !c.is_empty());
    let Some(inner) = config.inner("rope_parameters")?.filter(|c| !c.is_empty()) else {
        let scaling = old.map_or(Ok(Scaling::None), |inner| scaling_of(&inner, config))?;
        return Ok((theta, scaling));
    };
    if old.is_some() {
        return Err(value(config.path("rope_parameters"), "`rope_scaling` or this", "both"));
    }
    let Some(own) = inner.inner(layer_type)? else {
        return Err(ModelError::MissingKey { key: inner.path(layer_type), wanted: "an object".into() });
    };
    let theta = own.real_or("rope_theta", &THETA)?.unwrap_or(theta);
    Ok((theta, scaling_of(&own, config)?))
}

/// LongRoPE (Ding et al., 2024), as `Phi3Config` has it: a divisor for each frequency, `short_factor` in contexts up
/// to `original_max_position_embeddings` and `long_factor` in longer ones. A context is one for all of a sequence:
/// which list holds is a matter of how many positions its session has, not of how many are filled.
pub(super) fn long(config: &Config<'_>, head_dim: u64, theta: f64) -> Result<RopeSpec, ModelError> {
    let dims = rotated(config, head_dim, 1.0)?;
    let mut spec = halves(dims, theta_of(config, theta)?, Scaling::None);
    let written = scalings(config)?;
    let inner = match &written[..] {
        [] => return Ok(spec),
        [inner] => inner,
        _ => return Err(value(config.path("rope_parameters"), "`rope_scaling` or this", "both")),
    };
    let key = type_key(inner);
    match inner.text_or(key)? {
        // Its names in older files.
        Some("longrope" | "su" | "yarn") => {}
        Some("default") => return Ok(spec),
        None => return typeless(inner).map(|()| spec),
        Some(other) => return Err(unsupported(inner.path(key), format!("{other:?}"), "default, longrope")),
    }
    let original = config.whole(ORIGINAL, &POSITIONS)?;
    let factor = match inner.real_or("factor", &POSITIVE)? {
        Some(given) => given,
        None => config.whole("max_position_embeddings", &POSITIONS)? as f64 / original as f64,
    };
    let magnitude = match inner.real_or("attention_factor", &POSITIVE)? {
        Some(given) => given,
        None if factor <= 1.0 => 1.0,
        None if original == 1 => return Err(value(config.path(ORIGINAL), "more than 1", original)),
        None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
    };
    let list = |key: &str| -> Result<Scaling, ModelError> {
        let divisors = inner.reals(key, &POSITIVE)?;
        if divisors.len() as u64 != dims / 2 {
            let wanted = format!("a number for each of {} pairs", dims / 2);
            return Err(value(inner.path(key), wanted, divisors.len()));
        }
        Ok(Scaling::Listed { divisors, magnitude })
    };
    spec.scaling = list("short_factor")?;
    spec.long = Some((original, list("long_factor")?));
    Ok(spec)
}

const ORIGINAL: &str = "original_max_position_embeddings";

/// The objects that say how positions are scaled, as far as they are written.
fn scalings<'a>(config: &Config<'a>) -> Result<Vec<Config<'a>>, ModelError> {
    let found = ["rope_scaling", "rope_parameters"].map(|key| config.inner(key));
    let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(found.into_iter().flatten().filter(|c| !c.is_empty()).collect())
}

/// The base: beside the scaling or in it, and where both, the same.
fn theta_of(config: &Config<'_>, absent: f64) -> Result<f64, ModelError> {
    let mut theta = config.real_or("rope_theta", &THETA)?;
    for inner in scalings(config)? {
        let Some(found) = inner.real_or("rope_theta", &THETA)? else { continue };
        if let Some(theta) = theta.filter(|theta| *theta != found) {
            let wanted = format!("{theta:?}, as elsewhere");
            return Err(value(inner.path("rope_theta"), wanted, format!("{found:?}")));
        }
        theta = Some(found);
    }
    Ok(theta.unwrap_or(absent))
}

/// The parts of heads that are rotated, with their keys, wherever they are written.
fn parts(config: &Config<'_>) -> Result<Vec<(String, f64)>, ModelError> {
    const PART: &str = "partial_rotary_factor";
    let mut parts = Vec::new();
    let read = |of: &Config<'_>| of.real_or(PART, &(0.0..=1.0)).map(|part| part.map(|v| (of.path(PART), v)));
    parts.extend(read(config)?);
    for inner in scalings(config)? {
        parts.extend(read(&inner)?);
    }
    Ok(parts)
}

/// How many elements of each head are rotated.
fn rotated(config: &Config<'_>, head_dim: u64, absent: f64) -> Result<u64, ModelError> {
    let parts = parts(config)?;
    let (key, part) = parts.first().cloned().unwrap_or(("partial_rotary_factor".into(), absent));
    if let Some((other, found)) = parts.iter().find(|(_, found)| *found != part) {
        return Err(value(other.as_str(), format!("{part:?}, as elsewhere"), format!("{found:?}")));
    }
    let dims = (head_dim as f64 * part) as u64;
    if dims == 0 || !dims.is_multiple_of(2) {
        let wanted = format!("an even part of the {head_dim} elements of a head, for RoPE turns pairs");
        return Err(value(key, wanted, format!("{part:?}, which is {dims}")));
    }
    Ok(dims)
}

/// The key of the scaling's type: its name since 2024, or the one before.
fn type_key(inner: &Config<'_>) -> &'static str {
    if inner.get("rope_type").is_some() { "rope_type" } else { "type" }
}

/// Holds that a scaling without a type says nothing else, which would be lost in silence.
fn typeless(inner: &Config<'_>) -> Result<(), ModelError> {
    match inner.other_than(&["rope_theta", "partial_rotary_factor"]) {
        Some(other) => {
            let wanted = format!("the type that `{other}` belongs to");
            Err(ModelError::MissingKey { key: inner.path("rope_type"), wanted })
        }
        None => Ok(()),
    }
}

fn scaling_of(inner: &Config<'_>, config: &Config<'_>) -> Result<Scaling, ModelError> {
    let key = type_key(inner);
    let factor = || inner.real("factor", &POSITIVE);
    // Some configurations write the original context beside the scaling, and that one counts.
    let original = || -> Result<f64, ModelError> {
        let outer = config.whole_or(ORIGINAL, &POSITIONS)?;
        Ok(outer.map_or_else(|| inner.whole(ORIGINAL, &POSITIONS), Ok)? as f64)
    };
    match inner.text_or(key)? {
        None => typeless(inner).map(|()| Scaling::None),
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
    let whole = inner.flag_or("truncate", true)?;
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
    Ok(Scaling::Yarn { factor, original, beta_fast, beta_slow, magnitude, whole })
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
