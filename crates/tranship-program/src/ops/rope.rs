//! `rope(x, pos, heads, dims, theta, style)`: rotary position embedding (Su et al., 2021), with the scalings that
//! models ship.
//!
//! `x` is `[n, heads · head_dim]`. In each head the first `dims` elements are rotated in pairs: pair `j` by the
//! angle `(pos + i) · f_j`, with `f_j = theta^(-2j/dims)` before scaling. Style `half` pairs element `j` with
//! `j + dims/2`; `interleaved` pairs `2j` with `2j + 1`. A third operand `[dims/2]` divides the frequencies, as
//! the `rope_freqs` tensor of GGUF files does.
//!
//! With `skip`, the rotated elements start after so many of each head. With `back`, a row stands so many positions
//! before its own. With `turn: back`, angles are negative: what was turned at a position is turned back there.

use super::{Call, Op};
use crate::{Attr, Columns, Dim, Kind, ProgramError, Shape};
use std::f64::consts::TAU;

/// The attributes of a rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Heads in a row of `x`.
    pub heads: u64,
    /// Rotated elements of each head; even.
    pub dims: u64,
    /// The base of the frequencies.
    pub theta: f64,
    /// Which elements make a pair.
    pub style: RopeStyle,
    /// How frequencies are stretched beyond the trained context.
    pub scaling: Scaling,
    /// Elements of each head before the rotated ones.
    pub skip: u64,
    /// Positions that a row stands before its own, not below 0.
    pub back: u64,
    /// Whether angles are negative.
    pub inverse: bool,
}

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// `j` and `j + dims/2`: Hugging Face checkpoints.
    Half,
    /// `2j` and `2j + 1`: GGUF files of the Llama architecture.
    Interleaved,
}

/// How frequencies are stretched.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// All by one factor (position interpolation).
    Linear {
        /// The factor by which positions are squeezed.
        factor: f64,
    },
    /// Llama 3.1's: long wavelengths by the factor, short ones not, a ramp between.
    Llama3 {
        /// The factor for long wavelengths.
        factor: f64,
        /// Wavelengths longer than `original / low` are stretched in full.
        low: f64,
        /// Wavelengths shorter than `original / high` are left alone.
        high: f64,
        /// The context that the model was trained with before it was extended.
        original: f64,
    },
    /// YaRN (Peng et al., 2023): a ramp over dimensions, and a magnitude for cosine and sine.
    Yarn {
        /// The factor for low frequencies.
        factor: f64,
        /// The context that the model was trained with before it was extended.
        original: f64,
        /// Rotations over the original context above which a dimension is left alone.
        beta_fast: f64,
        /// Rotations below which it is stretched in full.
        beta_slow: f64,
        /// What cosine and sine are multiplied by.
        magnitude: f64,
        /// Whether the ends of the ramp are whole dimensions.
        whole: bool,
    },
    /// A divisor for each frequency (LongRoPE: Ding et al., 2024), and a magnitude for cosine and sine.
    Listed {
        /// What each frequency is divided by; `dims / 2` of them.
        divisors: Vec<f64>,
        /// What cosine and sine are multiplied by.
        magnitude: f64,
    },
}

const POSITIVE: std::ops::RangeInclusive<f64> = 1e-6..=1e12;

impl Rope {
    /// The frequency of each pair, in radians for one position; `dims / 2` of them.
    pub fn frequencies(&self) -> Vec<f64> {
        let dims = self.dims as f64;
        let plain = (0..self.dims / 2).map(|j| self.theta.powf(-2.0 * j as f64 / dims));
        match self.scaling {
            Scaling::None => plain.collect(),
            Scaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            Scaling::Listed { ref divisors, .. } => {
                plain.zip(divisors).map(|(f, divisor)| f / divisor).collect()
            }
            Scaling::Llama3 { factor, low, high, original } => {
                plain.map(|f| llama3(f, factor, low, high, original)).collect()
            }
            Scaling::Yarn { factor, original, beta_fast, beta_slow, whole, .. } => {
                let turns = |beta: f64| dims * (original / (beta * TAU)).ln() / (2.0 * self.theta.ln());
                let (first, last) = (turns(beta_fast), turns(beta_slow));
                let (first, last) = if whole { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, last) = (first.max(0.0), last.min(dims - 1.0));
                let span = if first == last { 0.001 } else { last - first };
                let ramp = |j: usize| ((j as f64 - first) / span).clamp(0.0, 1.0);
                plain.enumerate().map(|(j, f)| f / factor * ramp(j) + f * (1.0 - ramp(j))).collect()
            }
        }
    }

    /// What cosine and sine are multiplied by: 1, but for YaRN and LongRoPE.
    pub fn magnitude(&self) -> f64 {
        match self.scaling {
            Scaling::Yarn { magnitude, .. } | Scaling::Listed { magnitude, .. } => magnitude,
            _ => 1.0,
        }
    }

    /// Elements of a head are turned in pairs.
    pub(super) fn columns(&self, place: usize) -> Columns {
        if place == 0 { Columns::Parts(self.heads) } else { Columns::All }
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let number = |key, value| (key, Attr::Number(value));
        let word = |key, value: &str| (key, Attr::Word(value.to_owned()));
        let style = match self.style {
            RopeStyle::Half => "half",
            RopeStyle::Interleaved => "interleaved",
        };
        let mut attrs = vec![
            number("heads", self.heads as f64),
            number("dims", self.dims as f64),
            number("theta", self.theta),
            word("style", style),
        ];
        match self.scaling {
            Scaling::None => {}
            Scaling::Listed { ref divisors, magnitude } => attrs.extend([
                word("scaling", "listed"),
                ("divisors", Attr::List(divisors.clone())),
                number("magnitude", magnitude),
            ]),
            Scaling::Linear { factor } => attrs.extend([word("scaling", "linear"), number("factor", factor)]),
            Scaling::Llama3 { factor, low, high, original } => attrs.extend([
                word("scaling", "llama3"),
                number("factor", factor),
                number("low", low),
                number("high", high),
                number("original", original),
            ]),
            Scaling::Yarn { factor, original, beta_fast, beta_slow, magnitude, whole } => {
                attrs.extend([
                    word("scaling", "yarn"),
                    number("factor", factor),
                    number("original", original),
                    number("beta_fast", beta_fast),
                    number("beta_slow", beta_slow),
                    number("magnitude", magnitude),
                ]);
                if !whole {
                    attrs.push(word("ramp", "exact"));
                }
            }
        }
        if self.skip > 0 {
            attrs.push(number("skip", self.skip as f64));
        }
        if self.back > 0 {
            attrs.push(number("back", self.back as f64));
        }
        if self.inverse {
            attrs.push(word("turn", "back"));
        }
        attrs
    }
}

/// One frequency under Llama 3.1's scaling.
fn llama3(frequency: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = TAU / frequency;
    if wavelength < original / high {
        frequency
    } else if wavelength > original / low {
        frequency / factor
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("x", Kind::Float), ("pos", Kind::Index), ("divisors", Kind::Float)], 1)?;
    let (heads, dims) = (call.count("heads")?, call.count("dims")?);
    let theta = call.number("theta", 1.000_001..=1e12)?;
    let style = match call.word_or("style", &["half", "interleaved"])? {
        Some("interleaved") => RopeStyle::Interleaved,
        _ => RopeStyle::Half,
    };
    let scaling = scaling(call, dims)?;
    let skip = call.count_or("skip", 0)?.unwrap_or(0);
    let back = call.count_or("back", 0)?.unwrap_or(0);
    let inverse = call.word_or("turn", &["forth", "back"])? == Some("back");
    let (x, pos) = (call.shape(0), call.shape(1));
    call.hold(pos.0.is_empty(), "one index as pos")?;
    call.hold(x.rows() == Dim::N && x.cols().is_multiple_of(heads), "x [n, heads · head_dim]")?;
    call.hold(
        dims.is_multiple_of(2) && skip + dims <= x.cols() / heads,
        "dims even and at most the head's size",
    )?;
    if let Some(divisors) = call.optional(2) {
        call.hold(divisors.0.len() == 1 && divisors.fixed_rows() == Some(dims / 2), "divisors [dims/2]")?;
    }
    Ok((Op::Rope(Rope { heads, dims, theta, style, scaling, skip, back, inverse }), x.clone()))
}

fn scaling(call: &mut Call<'_>, dims: u64) -> Result<Scaling, ProgramError> {
    Ok(match call.word_or("scaling", &["linear", "llama3", "yarn", "listed"])? {
        Some("listed") => {
            let divisors = call.list_or("divisors", POSITIVE)?.unwrap_or_default();
            call.hold_attrs(
                divisors.len() as u64 == dims / 2,
                "`divisors`, a number for each of dims/2 frequencies",
            )?;
            Scaling::Listed { divisors, magnitude: call.number("magnitude", POSITIVE)? }
        }
        Some("linear") => Scaling::Linear { factor: call.number("factor", POSITIVE)? },
        Some("llama3") => {
            let scaling = Scaling::Llama3 {
                factor: call.number("factor", POSITIVE)?,
                low: call.number("low", POSITIVE)?,
                high: call.number("high", POSITIVE)?,
                original: call.number("original", POSITIVE)?,
            };
            if let Scaling::Llama3 { low, high, .. } = scaling {
                call.hold_attrs(low < high, "`low` below `high`")?;
            }
            scaling
        }
        Some(_) => {
            let (factor, original) = (call.number("factor", POSITIVE)?, call.number("original", POSITIVE)?);
            let beta_fast = call.number_or("beta_fast", POSITIVE)?.unwrap_or(32.0);
            let beta_slow = call.number_or("beta_slow", POSITIVE)?.unwrap_or(1.0);
            call.hold_attrs(beta_slow < beta_fast, "`beta_slow` below `beta_fast`")?;
            let magnitude = call.number("magnitude", POSITIVE)?;
            let whole = call.word_or("ramp", &["whole", "exact"])? != Some("exact");
            Scaling::Yarn { factor, original, beta_fast, beta_slow, magnitude, whole }
        }
        None => Scaling::None,
    })
}
