//! Element-wise operations. Of one operand: `silu`, and those of [`Unary`]. Of two: `a + b` and `a * b`, whose shapes
//! are equal, or the second is one row `[width]` that meets every row of the first, or `[rows, parts]` with one number
//! for each of so many equal parts of the first's rows.

use super::{Call, Op};
use crate::{Attr, Kind, ProgramError, Shape};

/// An element-wise function of one operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// `x/2 · (1 + erf(x/√2))`
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`
    GeluTanh,
    /// `1 / (1 + e^(−x))`
    Sigmoid,
    /// `ln(1 + e^x)`
    Softplus,
    /// `max(x, 0)²`
    Relu2,
    /// `cap · tanh(x / cap)`
    Softcap(
        /// The cap.
        f64,
    ),
    /// `by · x`
    Scale(
        /// The factor.
        f64,
    ),
    /// `min(max(x, min), max)`
    Clamp {
        /// The least value; −∞ where there is none.
        min: Option<f64>,
        /// The greatest value; +∞ where there is none.
        max: Option<f64>,
    },
}

const BOUND: std::ops::RangeInclusive<f64> = -1e9..=1e9;

impl Unary {
    /// The function's name in programs.
    pub fn name(self) -> &'static str {
        match self {
            Unary::Gelu => "gelu",
            Unary::GeluTanh => "gelu_tanh",
            Unary::Sigmoid => "sigmoid",
            Unary::Softplus => "softplus",
            Unary::Relu2 => "relu2",
            Unary::Softcap(_) => "softcap",
            Unary::Scale(_) => "scale",
            Unary::Clamp { .. } => "clamp",
        }
    }

    pub(super) fn attrs(self) -> Vec<(&'static str, Attr)> {
        match self {
            Unary::Softcap(cap) => vec![("cap", Attr::Number(cap))],
            Unary::Scale(by) => vec![("by", Attr::Number(by))],
            Unary::Clamp { min, max } => {
                let bound = |key, value: Option<f64>| value.map(|v| (key, Attr::Number(v)));
                bound("min", min).into_iter().chain(bound("max", max)).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        let function = match call.name() {
            "gelu" => Unary::Gelu,
            "gelu_tanh" => Unary::GeluTanh,
            "sigmoid" => Unary::Sigmoid,
            "softplus" => Unary::Softplus,
            "relu2" => Unary::Relu2,
            "softcap" => Unary::Softcap(call.number("cap", 1e-6..=1e9)?),
            "scale" => Unary::Scale(call.number("by", BOUND)?),
            _ => {
                let (min, max) = (call.number_or("min", BOUND)?, call.number_or("max", BOUND)?);
                let ordered = min.or(max).is_some() && min.zip(max).is_none_or(|(min, max)| min <= max);
                call.hold_attrs(ordered, "`min` or `max`, and `min` at most `max`")?;
                Unary::Clamp { min, max }
            }
        };
        unary(call, Op::Unary(function))
    }
}

pub(super) fn unary(call: &mut Call<'_>, op: Op) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("x", Kind::Float)], 0)?;
    Ok((op, call.shape(0).clone()))
}

pub(super) fn binary(call: &mut Call<'_>, op: Op) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("a", Kind::Float), ("b", Kind::Float)], 0)?;
    let (a, b) = (call.shape(0), call.shape(1));
    let same = a.rows() == b.rows() && a.cols() == b.cols();
    let row = a.0.len() >= 2 && b.0.len() == 1 && b.fixed_rows() == Some(a.cols());
    let parts =
        a.0.len() >= 2 && b.0.len() == 2 && a.rows() == b.rows() && a.cols().is_multiple_of(b.cols().max(1));
    call.hold(
        same || row || parts,
        "equal shapes, or one row as the second operand, or a number for each part",
    )?;
    Ok((op, a.clone()))
}
