//! `gather(table, ids)`: row `ids[i]` of `table` for each `i`. `table` is `[rows, width]`, `ids` an index `[n]`,
//! the result `[n, width]`. An id outside the table is refused before the step runs.

use super::{Call, Op};
use crate::{Dim, Kind, ProgramError, Shape};

pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("table", Kind::Float), ("ids", Kind::Index)], 0)?;
    let (table, ids) = (call.shape(0), call.shape(1));
    call.hold(ids.0.len() == 1 && ids.rows() == Dim::N, "an index [n] as ids")?;
    call.hold(table.fixed_rows().is_some() && table.0.len() == 2, "a table [rows, width]")?;
    Ok((Op::Gather, Shape::matrix(Dim::N, table.cols())))
}
