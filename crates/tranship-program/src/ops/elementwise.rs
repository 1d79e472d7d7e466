//! Element-wise operations: `silu(x)`, `a + b`, `a * b`. Shapes are equal, or the second operand is one row
//! `[width]` that meets every row of the first.

use super::{Call, Op};
use crate::{Kind, ProgramError, Shape};

pub(super) fn unary(call: &mut Call<'_>, op: Op) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("x", Kind::Float)], 0)?;
    Ok((op, call.shape(0).clone()))
}

pub(super) fn binary(call: &mut Call<'_>, op: Op) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("a", Kind::Float), ("b", Kind::Float)], 0)?;
    let (a, b) = (call.shape(0), call.shape(1));
    let same = a.rows() == b.rows() && a.cols() == b.cols();
    let row = a.0.len() >= 2 && b.0.len() == 1 && b.fixed_rows() == Some(a.cols());
    call.hold(same || row, "equal shapes, or one row as the second operand")?;
    Ok((op, a.clone()))
}
