//! Moving values: `slice(x, heads, from, to)`, `tile(x, times)` and `join(rows, new)`.

use super::{Call, Op};
use crate::{Attr, Columns, Dim, Kind, ProgramError, Shape};

/// Columns of a row's equal parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// Parts that a row has.
    pub heads: u64,
    /// The first column of each that is taken.
    pub from: u64,
    /// The column after the last.
    pub to: u64,
}

impl Slice {
    /// The columns that are taken.
    pub(super) fn columns(&self) -> Columns {
        let &Slice { heads, from, to } = self;
        Columns::Slice { heads, from, to }
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        [("heads", self.heads), ("from", self.from), ("to", self.to)]
            .map(|(key, value)| (key, Attr::Number(value as f64)))
            .into()
    }

    /// `slice(x, heads, from, to)`: each row of `x` is `heads` equal parts, and of each the columns `from .. to` are
    /// taken: `[n, heads · (to − from)]`.
    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        call.operands(&[("x", Kind::Float)], 0)?;
        let heads = call.count_or("heads", 1)?.unwrap_or(1);
        let (from, to) = (call.count_or("from", 0)?.unwrap_or(0), call.count("to")?);
        let x = call.shape(0);
        call.hold(x.0.len() >= 2 && x.cols().is_multiple_of(heads), "x [rows, heads · dim]")?;
        call.hold(
            from < to && to <= x.cols() / heads,
            "columns of each part: from < to, and to at most its width",
        )?;
        Ok((Op::Slice(Slice { heads, from, to }), Shape::matrix(x.rows(), heads * (to - from))))
    }
}

/// `tile(x, times)`: each row as often, side by side: `[n, times · width]`.
pub(super) fn tile(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("x", Kind::Float)], 0)?;
    let times = call.count("times")?;
    let x = call.shape(0);
    call.hold(x.0.len() >= 2, "x [rows, width]")?;
    Ok((Op::Tile(times), Shape::matrix(x.rows(), x.cols().saturating_mul(times))))
}

/// `join(rows, new)`: rows from before the step, then the step's own: `[before + n, width]`, in the type of the first.
pub(super) fn join(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("rows", Kind::Float), ("new", Kind::Float)], 0)?;
    let (rows, new) = (call.shape(0), call.shape(1));
    let Some(before) = rows.fixed_rows().filter(|_| rows.0.len() >= 2) else {
        return call.hold(false, "rows of a ring, [pos-K .. pos]").map(|()| (Op::Silu, Shape::default()));
    };
    call.hold(new.rows() == Dim::N && new.cols() == rows.cols(), "rows of the step of the same width")?;
    Ok((Op::Join, Shape::matrix(Dim::After(before), rows.cols())))
}
