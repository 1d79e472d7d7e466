//! `linear(x, w)` or `linear(x, w, b)`: `y[i][o] = Σ_k x[i][k] · w[o][k] (+ b[o])`. `x` is `[n, in]`, `w`
//! `[out, in]`, `b` `[out]`, the result `[n, out]`. The sum, the bias included, is in the accumulation type.

use super::{Call, Op};
use crate::{Kind, ProgramError, Shape};

pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("x", Kind::Float), ("w", Kind::Float), ("b", Kind::Float)], 1)?;
    let (x, w) = (call.shape(0), call.shape(1));
    call.hold(x.0.len() >= 2 && w.0.len() == 2, "x [rows, in] and w [out, in]")?;
    call.hold(w.cols() == x.cols(), "w with x's width in its second axis")?;
    let Some(out) = w.fixed_rows() else {
        return call.hold(false, "w of fixed size").map(|()| (Op::Linear, Shape::default()));
    };
    if let Some(b) = call.optional(2) {
        call.hold(b.0.len() == 1 && b.fixed_rows() == Some(out), "a bias [out]")?;
    }
    Ok((Op::Linear, Shape::matrix(x.rows(), out)))
}
