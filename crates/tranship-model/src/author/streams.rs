//! Several residual streams around a part (manifold-constrained hyper-connections, 2026): collapsed into the row that the
//! part takes, and its output put back onto all.

use super::sheet::{Sheet, attrs};
use crate::{HyperConnections, ModelError, Part};
use tranship_program::Op;
use tranship_program::ops::StreamGates;

/// What the gates around a part are called, in the program and in the checkpoint.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// The gates.
    pub gates: &'static str,
    /// The row that the part takes.
    pub row: &'static str,
    projection: Part,
    base: Part,
    scale: Part,
    head: bool,
}

/// Around the mixer.
pub(super) const MIXER: Parts = Parts {
    gates: "mix_gates",
    row: "mix_row",
    projection: Part::MixerStreams,
    base: Part::MixerStreamsBase,
    scale: Part::MixerStreamsScale,
    head: false,
};

/// Around the feed-forward part.
pub(super) const FFN: Parts = Parts {
    gates: "ffn_gates",
    row: "ffn_row",
    projection: Part::FfnStreams,
    base: Part::FfnStreamsBase,
    scale: Part::FfnStreamsScale,
    head: false,
};

/// Before the head, which takes the one row and gives none back.
pub(super) const HEAD: Parts = Parts {
    gates: "head_gates",
    row: "head_row",
    projection: Part::HeadStreams,
    base: Part::HeadStreamsBase,
    scale: Part::HeadStreamsScale,
    head: true,
};

/// Writes the gates of the streams `x` and the row that they collapse to; gives the row's name.
pub(super) fn collapse(
    hyper: &HyperConnections,
    parts: Parts,
    x: &str,
    sheet: &mut Sheet<'_>,
) -> Result<String, ModelError> {
    let (streams, eps) = (sheet.streams(), sheet.eps());
    let (width, scales) = if parts.head { (streams, 1) } else { ((2 + streams).saturating_mul(streams), 3) };
    let (gates, row) = (parts.gates, parts.row);
    sheet.title(format!("{streams} streams into one"));
    sheet.weight(&format!("{gates}_w"), &[width, sheet.row()], parts.projection)?;
    sheet.weight(&format!("{gates}_base"), &[width], parts.base)?;
    sheet.weight(&format!("{gates}_scale"), &[scales], parts.scale)?;
    let iterations = if parts.head { 1 } else { hyper.iterations };
    let op = attrs(&Op::StreamGates(StreamGates { streams, iterations, eps: hyper.eps }));
    let projected = format!("linear(rms_norm({x}, eps: {eps}), {gates}_w)");
    sheet.say(format!("{gates} = stream_gates({projected}, {gates}_base, {gates}_scale, {op})"));
    sheet.say(format!("{row} = stream_collapse({x}, {gates}, streams: {streams})"));
    Ok(row.to_owned())
}

/// The expression of the streams `x` after a part's output has joined them.
pub(super) fn expand(parts: Parts, x: &str, out: &str, sheet: &mut Sheet<'_>) -> Result<String, ModelError> {
    Ok(format!("stream_expand({x}, {out}, {}, streams: {})", parts.gates, sheet.streams()))
}
