//! `conv(x, w, b)`: causal convolution over positions, each channel on its own:
//! `y[i][c] = Σ_j w[c][j] · x[i + j][c] (+ b[c])`.
//!
//! `x` is `[taps − 1 + n, channels]`: the inputs of the `taps − 1` positions before the step, 0 before the start, and
//! the step's. `w` is `[channels, taps]`, the last tap that of the row itself, `b` `[channels]`, the result
//! `[n, channels]`.

use super::{Call, Op};
use crate::{Columns, Dim, Kind, ProgramError, Shape};

/// Each channel on its own.
pub(super) fn columns(place: usize) -> Columns {
    if place == 0 { Columns::Each } else { Columns::All }
}

pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("x", Kind::Float), ("w", Kind::Float), ("b", Kind::Float)], 1)?;
    let (x, w) = (call.shape(0), call.shape(1));
    let (channels, taps) = (x.cols(), w.cols());
    call.hold(w.0.len() == 2 && w.fixed_rows() == Some(channels), "w [channels, taps]")?;
    let before = Dim::After(taps.saturating_sub(1));
    call.hold(taps >= 2 && x.rows() == before, "x with the rows of taps − 1 positions before the step")?;
    if let Some(b) = call.optional(2) {
        call.hold(b.0.len() == 1 && b.fixed_rows() == Some(channels), "a bias [channels]")?;
    }
    Ok((Op::Conv, Shape::matrix(Dim::N, channels)))
}
