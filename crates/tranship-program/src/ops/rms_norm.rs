//! `rms_norm(x, g, eps, heads, offset)`: `x / sqrt(mean(x²) + eps) · (offset + g)` over each row (Zhang and Sennrich,
//! 2019), or over each of `heads` equal parts of it; and `l2_norm(x, heads, eps)`: `x / sqrt(Σ x² + eps)`.
//!
//! `x` is `[n, width]`. The gain `g` is `[width]`, or `[width / heads]` that meets every part; there may be none.

use super::{Call, Op};
use crate::{Attr, Columns, Kind, ProgramError, Shape};

/// The attributes of root-mean-square normalization.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square before the root.
    pub eps: f64,
    /// Equal parts of a row that are normalized each on its own.
    pub heads: u64,
    /// Added to the gain: 1 where checkpoints hold its distance from 1.
    pub offset: f64,
}

/// The attributes of normalization by length.
#[derive(Clone, Debug, PartialEq)]
pub struct L2Norm {
    /// Added to the sum of squares before the root.
    pub eps: f64,
    /// Equal parts of a row that are normalized each on its own.
    pub heads: u64,
}

impl RmsNorm {
    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut attrs = vec![("eps", Attr::Number(self.eps))];
        if self.heads > 1 {
            attrs.push(("heads", Attr::Number(self.heads as f64)));
        }
        if self.offset != 0.0 {
            attrs.push(("offset", Attr::Number(self.offset)));
        }
        attrs
    }

    /// A part is normalized by all its columns.
    pub(super) fn columns(&self, place: usize) -> Columns {
        if place == 0 { Columns::Parts(self.heads) } else { Columns::All }
    }

    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        call.operands(&[("x", Kind::Float), ("g", Kind::Float)], 1)?;
        let eps = call.number("eps", 0.0..=1.0)?;
        let heads = call.count_or("heads", 1)?.unwrap_or(1);
        let offset = call.number_or("offset", 0.0..=1.0)?.unwrap_or(0.0);
        let x = call.shape(0);
        call.hold(x.0.len() >= 2, "x [rows, width]")?;
        call.hold(x.cols().is_multiple_of(heads), "a width that heads divide")?;
        if let Some(g) = call.optional(1) {
            let width = g.fixed_rows().filter(|_| g.0.len() == 1);
            let fits = width == Some(x.cols()) || width == Some(x.cols() / heads);
            call.hold(fits, "a gain of x's width")?;
        }
        Ok((Op::RmsNorm(RmsNorm { eps, heads, offset }), x.clone()))
    }
}

impl L2Norm {
    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("eps", Attr::Number(self.eps)), ("heads", Attr::Number(self.heads as f64))]
    }

    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        call.operands(&[("x", Kind::Float)], 0)?;
        let eps = call.number("eps", 0.0..=1.0)?;
        let heads = call.count_or("heads", 1)?.unwrap_or(1);
        let x = call.shape(0);
        call.hold(x.0.len() >= 2 && x.cols().is_multiple_of(heads), "x [rows, heads · dim]")?;
        Ok((Op::L2Norm(L2Norm { eps, heads }), x.clone()))
    }
}
