//! `linear(x, w)` or `linear(x, w, b)`: `y[i][o] = Σ_k x[i][k] · w[o][k] (+ b[o])`. `x` is `[n, in]`, `w`
//! `[out, in]`, `b` `[out]`, the result `[n, out]`. The sum, the bias included, is in the accumulation type.
//!
//! With `groups`, rows and outputs are as many equal groups, each of which meets its own: `w` is `[out, in / groups]`,
//! and output `o` of group `⌊o / (out / groups)⌋` is over the inputs of that group.

use super::{Call, Op};
use crate::{Attr, Columns, Kind, ProgramError, Shape};

/// The attributes of a product with a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Linear {
    /// Groups of inputs and outputs that meet each other alone.
    pub groups: u64,
}

impl Linear {
    pub(super) fn attrs(self) -> Vec<(&'static str, Attr)> {
        if self.groups > 1 { vec![("groups", Attr::Number(self.groups as f64))] } else { Vec::new() }
    }
}

/// A row's columns are the terms of the sums.
pub(super) fn columns(place: usize) -> Columns {
    if place == 0 { Columns::Sum } else { Columns::All }
}

pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("x", Kind::Float), ("w", Kind::Float), ("b", Kind::Float)], 1)?;
    let groups = call.count_or("groups", 1)?.unwrap_or(1);
    let (x, w) = (call.shape(0), call.shape(1));
    call.hold(x.0.len() >= 2 && w.0.len() == 2, "x [rows, in] and w [out, in]")?;
    let width = Some(x.cols()) == w.cols().checked_mul(groups);
    call.hold(width, "w with x's width in its second axis")?;
    let Some(out) = w.fixed_rows() else {
        return call.hold(false, "w of fixed size").map(|()| (Op::Silu, Shape::default()));
    };
    call.hold(out.is_multiple_of(groups), "w with rows that groups divide")?;
    if let Some(b) = call.optional(2) {
        call.hold(b.0.len() == 1 && b.fixed_rows() == Some(out), "a bias [out]")?;
    }
    Ok((Op::Linear(Linear { groups }), Shape::matrix(x.rows(), out)))
}
