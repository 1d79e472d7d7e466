//! Several residual streams (manifold-constrained hyper-connections: Xie et al., 2026): `stream_gates`,
//! `stream_collapse` and `stream_expand`. A row of `S` streams is `[S · hidden]`, stream after stream.

use super::{Call, Op};
use crate::{Attr, Dim, Kind, ProgramError, Shape};

/// The most streams.
const MOST: u64 = 64;

/// The attributes of `stream_gates`.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamGates {
    /// Residual streams.
    pub streams: u64,
    /// Rounds of normalization of the mixing matrix.
    pub iterations: u64,
    /// Added to gates and sums.
    pub eps: f64,
}

impl StreamGates {
    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("streams", Attr::Number(self.streams as f64)),
            ("iterations", Attr::Number(self.iterations as f64)),
            ("eps", Attr::Number(self.eps)),
        ]
    }

    /// `stream_gates(h, base, scale, streams, iterations, eps)`: the gates of a layer's part, from a projection `h` `[n,
    /// (2 + S) · S]` of all streams: `S` for collapsing, `S` for expanding, `S · S` for mixing. `base` is as wide as
    /// `h`, `scale` `[3]` has one factor for each of the three:
    ///
    /// ```text
    /// pre  = sigmoid(scale₀ · h + base) + eps            post = 2 · sigmoid(scale₁ · h + base)
    /// mix  = softmax over each row of (scale₂ · h + base), plus eps; then its columns are divided by their sum + eps;
    ///        then, iterations − 1 times, its rows and again its columns
    /// ```
    ///
    /// With `h` `[n, S]` and `scale` `[1]`, for the head, there is `pre` alone.
    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        call.operands(&[("h", Kind::Float), ("base", Kind::Float), ("scale", Kind::Float)], 0)?;
        let streams = call.count("streams")?;
        let iterations = call.count_or("iterations", 1)?.unwrap_or(1);
        call.hold_attrs(streams <= MOST && iterations <= 1000, "at most 64 streams and 1000 iterations")?;
        let eps = call.number("eps", 0.0..=1.0)?;
        let (h, base, scale) = (call.shape(0), call.shape(1), call.shape(2));
        let whole = (2 + streams) * streams;
        let wanted = if h.cols() == streams && streams != whole { 1 } else { 3 };
        call.hold(h.rows() == Dim::N && (h.cols() == whole || wanted == 1), "h [n, (2 + S) · S] or [n, S]")?;
        call.hold(base.0.len() == 1 && base.fixed_rows() == Some(h.cols()), "a base of h's width")?;
        call.hold(
            scale.0.len() == 1 && scale.fixed_rows() == Some(wanted),
            "a scale [3], or [1] with h [n, S]",
        )?;
        Ok((Op::StreamGates(StreamGates { streams, iterations, eps }), h.clone()))
    }
}

/// `stream_collapse(x, gates, streams)`: `y = Σ_s pre[s] · x[s]`. `x` is `[n, S · hidden]`, `gates` those of the row,
/// the result `[n, hidden]`.
pub(super) fn collapse(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("x", Kind::Float), ("gates", Kind::Float)], 0)?;
    let streams = call.count("streams")?;
    call.hold_attrs(streams <= MOST, "at most 64 streams")?;
    let (x, gates) = (call.shape(0), call.shape(1));
    call.hold(x.rows() == Dim::N && x.cols().is_multiple_of(streams), "x [n, streams · hidden]")?;
    call.hold(gates.rows() == Dim::N && gates.cols() >= streams, "gates of each row")?;
    Ok((Op::StreamCollapse(streams), Shape::matrix(Dim::N, x.cols() / streams)))
}

/// `stream_expand(x, y, gates, streams)`: `z[s] = post[s] · y + Σ_t mix[t][s] · x[t]`. `x` is `[n, S · hidden]`, `y` `[n,
/// hidden]`, `gates` `[n, (2 + S) · S]`, the result as `x`.
pub(super) fn expand(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("x", Kind::Float), ("y", Kind::Float), ("gates", Kind::Float)], 0)?;
    let streams = call.count("streams")?;
    call.hold_attrs(streams <= MOST, "at most 64 streams")?;
    let (x, y, gates) = (call.shape(0), call.shape(1), call.shape(2));
    let rows = [x, y, gates].iter().all(|s| s.rows() == Dim::N);
    call.hold(
        rows && Some(x.cols()) == y.cols().checked_mul(streams),
        "x [n, streams · hidden] and y [n, hidden]",
    )?;
    let wanted = (2 + streams).checked_mul(streams);
    call.hold(Some(gates.cols()) == wanted, "gates [n, (2 + streams) · streams]")?;
    Ok((Op::StreamExpand(streams), x.clone()))
}
