//! A carried tensor as manifests list it: its extent is a name, and the numbers that some extents have beside it.

use crate::{Axis, Carried};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use tranship_dtype::DType;
use tranship_program::{Extent, Run, Segments};

/// The JSON form of [`Carried`].
#[derive(Serialize, Deserialize)]
pub(crate) struct Listed {
    name: String,
    layer: u64,
    axes: Vec<Axis>,
    dtype: String,
    extent: String,
    /// Tokens for a compressed row, of the extents that have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate: Option<u64>,
    /// Tokens before the span that are kept, of a frontier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep: Option<u64>,
    /// Where it may be cut, of those that may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    segments: Option<ListedSegments>,
}

/// The JSON form of [`Segments`].
#[derive(Serialize, Deserialize)]
struct ListedSegments {
    axis: usize,
    runs: Vec<ListedRun>,
}

#[derive(Serialize, Deserialize)]
struct ListedRun {
    count: u64,
    size: u64,
}

impl From<Carried> for Listed {
    fn from(carried: Carried) -> Listed {
        let Carried { name, layer, axes, dtype, extent, segments } = carried;
        let (rate, keep) = match extent {
            Extent::Compressed { rate } => (Some(rate), None),
            Extent::Frontier { rate, keep } => (Some(rate), Some(keep)),
            _ => (None, None),
        };
        let run = |Run { count, size }| ListedRun { count, size };
        let segments = segments.map(|Segments { axis, runs }| ListedSegments {
            axis,
            runs: runs.into_iter().map(run).collect(),
        });
        let (dtype, extent) = (dtype.name().into(), extent.name().into());
        Listed { name, layer, axes, dtype, extent, rate, keep, segments }
    }
}

impl TryFrom<Listed> for Carried {
    type Error = String;

    fn try_from(listed: Listed) -> Result<Carried, String> {
        let dtype = DType::from_str(&listed.dtype).map_err(|e| e.to_string())?;
        let extent = extent(&listed)?;
        let Listed { name, layer, axes, segments, .. } = listed;
        let run = |ListedRun { count, size }| Run { count, size };
        let segments = segments.map(|ListedSegments { axis, runs }| Segments {
            axis,
            runs: runs.into_iter().map(run).collect(),
        });
        Ok(Carried { name, layer, axes, dtype, extent, segments })
    }
}

/// The extent that a name and its numbers say.
fn extent(listed: &Listed) -> Result<Extent, String> {
    let Listed { name, extent, rate, keep, .. } = listed;
    let extra = |key: &str| format!("`{name}` is {extent}, which has no `{key}`");
    let lacks = |key: &str| format!("`{name}` is {extent} without a `{key}`");
    let rate = match (extent.as_str(), rate) {
        ("compressed" | "frontier", None) => return Err(lacks("rate")),
        ("append" | "recurrent" | "ring", Some(_)) => return Err(extra("rate")),
        (_, rate) => rate.unwrap_or_default(),
    };
    let keep = match (extent.as_str(), keep) {
        ("frontier", None) => return Err(lacks("keep")),
        ("append" | "recurrent" | "ring" | "compressed", Some(_)) => return Err(extra("keep")),
        (_, keep) => keep.unwrap_or_default(),
    };
    let all = [
        Extent::Append,
        Extent::Recurrent,
        Extent::Ring,
        Extent::Compressed { rate },
        Extent::Frontier { rate, keep },
    ];
    all.into_iter().find(|known| known.name() == extent).ok_or_else(|| {
        let known = all.map(Extent::name).join(", ");
        format!("`{extent}` is no extent: wanted one of {known}")
    })
}
