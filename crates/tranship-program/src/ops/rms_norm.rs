//! `rms_norm(x, g, eps)`: `x / sqrt(mean(x²) + eps) · g` over each row (Zhang and Sennrich, 2019). `x` is
//! `[n, width]`, the gain `g` `[width]`.

use super::{Call, Op};
use crate::{Attr, Kind, ProgramError, Shape};

/// The attributes of root-mean-square normalization.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square before the root.
    pub eps: f64,
}

impl RmsNorm {
    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("eps", Attr::Number(self.eps))]
    }
}

pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("x", Kind::Float), ("g", Kind::Float)], 0)?;
    let eps = call.number("eps", 0.0..=1.0)?;
    let (x, g) = (call.shape(0), call.shape(1));
    call.hold(x.0.len() >= 2, "x [rows, width]")?;
    call.hold(g.0.len() == 1 && g.fixed_rows() == Some(x.cols()), "a gain of x's width")?;
    Ok((Op::RmsNorm(RmsNorm { eps }), x.clone()))
}
