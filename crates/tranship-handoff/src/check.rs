//! Everything that a hand-off is held to, in one pass that collects every fault.

use crate::contract::{Carried, Contract, Conversion, Expect};
use crate::handoff::{Manifest, Seal};
use crate::{Handoff, HandoffError, Progress};
use std::collections::HashSet;
use tranship_dtype::DType;
use tranship_program::Extent;

/// Every reason for which `ours` cannot take `handoff`.
pub(crate) fn all(ours: &Contract, handoff: &Handoff, expect: &Expect<'_>) -> Vec<HandoffError> {
    let mut errors = Vec::new();
    seal(&handoff.seal, &mut errors);
    manifest(ours, &handoff.manifest, expect, &mut errors);
    for carried in &ours.carried {
        match handoff.tensor(&carried.name) {
            Some(tensor) => {
                let found =
                    Found { dtype: tensor.dtype, shape: &tensor.shape, bytes: tensor.bytes().len() as u64 };
                one((carried, ours.ctx), found, &handoff.manifest, expect, &mut errors);
                errors.extend(nan(&tensor.name, &tensor.shape, tensor.examined().nan));
            }
            None => errors.push(HandoffError::Missing { name: carried.name.clone(), layer: carried.layer }),
        }
    }
    let mut names = HashSet::new();
    for tensor in handoff.state() {
        if !names.insert(&tensor.name) {
            errors.push(HandoffError::Twice { name: tensor.name.clone() });
        } else if !ours.carried.iter().any(|c| c.name == tensor.name) {
            errors.push(HandoffError::Unknown { name: tensor.name.clone() });
        }
    }
    // What is listed and is neither here nor wanted: a tensor was lost on the way, or never sent.
    for theirs in &handoff.contract().carried {
        if !ours.carried.iter().any(|c| c.name == theirs.name) && names.insert(&theirs.name) {
            errors.push(HandoffError::Unknown { name: theirs.name.clone() });
        }
    }
    errors
}

/// What the manifest alone shows: identity, position, tokens.
pub(crate) fn manifest(
    ours: &Contract,
    manifest: &Manifest,
    expect: &Expect<'_>,
    errors: &mut Vec<HandoffError>,
) {
    identity(ours, &manifest.contract, expect, errors);
    let position = manifest.position;
    if position >= ours.ctx {
        errors.push(HandoffError::Position { position, ctx: ours.ctx });
    }
    if let Some(tokens) = expect.tokens {
        let Progress { position: count, digest, .. } = Progress::of(tokens);
        let (wanted, found) = (digest.to_hex().to_string(), manifest.tokens.clone());
        if wanted != found || count != position {
            errors.push(HandoffError::Tokens { count, wanted, position, found });
        }
    }
    if let Err(error) = manifest.progress() {
        errors.push(error);
    }
    next_token(manifest, expect, errors);
}

/// What a manifest's list of tensors shows before any of them is there.
pub(crate) fn listing(
    ours: &Contract,
    manifest: &Manifest,
    expect: &Expect<'_>,
    errors: &mut Vec<HandoffError>,
) {
    for carried in &ours.carried {
        let Some(theirs) = manifest.contract.carried.iter().find(|c| c.name == carried.name) else {
            errors.push(HandoffError::Missing { name: carried.name.clone(), layer: carried.layer });
            continue;
        };
        let shape = theirs.valid_shape(manifest.position);
        let bytes = shape_bytes(theirs.dtype, &shape).unwrap_or(u64::MAX);
        let found = Found { dtype: theirs.dtype, shape: &shape, bytes };
        one((carried, ours.ctx), found, manifest, expect, errors);
    }
    for theirs in &manifest.contract.carried {
        if !ours.carried.iter().any(|c| c.name == theirs.name) {
            errors.push(HandoffError::Unknown { name: theirs.name.clone() });
        }
    }
}

/// The token that follows, where the manifest names one.
pub(crate) fn next_token(manifest: &Manifest, expect: &Expect<'_>, errors: &mut Vec<HandoffError>) {
    if let (Some(token), Some(vocab)) = (manifest.next_token, expect.vocab)
        && u64::from(token) >= vocab
    {
        errors.push(HandoffError::NextToken { token, vocab });
    }
}

/// NaN in a tensor, at the element where it was found.
pub(crate) fn nan(name: &str, shape: &[u64], at: Option<u64>) -> Option<HandoffError> {
    let cols = shape.iter().skip(1).fold(1u64, |n, &size| n.saturating_mul(size)).max(1);
    at.map(|at| HandoffError::Nan { name: name.to_owned(), row: at / cols })
}

/// A tensor as it was found: in memory, or in a header whose bytes are still to come.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub dtype: DType,
    pub shape: &'a [u64],
    pub bytes: u64,
}

pub(crate) fn seal(seal: &Seal, errors: &mut Vec<HandoffError>) {
    match seal {
        Seal::Whole(_) => {}
        Seal::Absent => errors.push(HandoffError::Unsealed),
        Seal::Broken { content, found } => {
            errors.push(HandoffError::Seal { wanted: content.clone(), found: found.clone() });
        }
    }
}

fn identity(ours: &Contract, theirs: &Contract, expect: &Expect<'_>, errors: &mut Vec<HandoffError>) {
    let hidden = |c: &Contract| format!("{} × {}", c.hidden, c.streams);
    if hidden(ours) != hidden(theirs) {
        errors.push(HandoffError::Hidden { wanted: hidden(ours), found: hidden(theirs) });
    }
    if (ours.share, ours.layers) != (theirs.share, theirs.layers) {
        let of = |c: &Contract| {
            let parts = c.share.map(|share| share.to_string()).into_iter();
            let parts: Vec<String> = parts.chain(c.layers.map(|layers| layers.to_string())).collect();
            if parts.is_empty() { "the whole".into() } else { parts.join(", ") }
        };
        errors.push(HandoffError::Share { wanted: of(ours), found: of(theirs) });
    }
    let (own, other) = (&ours.identity, &theirs.identity);
    if let Some(wanted) = &own.weights
        && other.weights.as_ref() != Some(wanted)
    {
        let found = other.weights.clone().unwrap_or_else(|| "none".into());
        errors.push(HandoffError::Weights { wanted: wanted.clone(), found });
    }
    if own.programs != other.programs {
        errors.push(HandoffError::Programs { wanted: own.programs.clone(), found: other.programs.clone() });
    }
    if own.policy != other.policy && expect.conversion == Conversion::None {
        errors.push(HandoffError::Policy { wanted: own.policy.clone(), found: other.policy.clone() });
    }
}

/// One tensor: axes by name and size, valid rows, and type.
pub(crate) fn one(
    (ours, ctx): (&Carried, u64),
    tensor: Found<'_>,
    manifest: &Manifest,
    expect: &Expect<'_>,
    errors: &mut Vec<HandoffError>,
) {
    let name = || ours.name.clone();
    let position = manifest.position;
    let listed = manifest.contract.carried.iter().find(|c| c.name == ours.name);
    let Some(theirs) = listed else {
        let found = format!("{} {:?}", tensor.dtype, tensor.shape);
        errors.push(HandoffError::Manifest { name: name(), wanted: "not listed".into(), found });
        return;
    };
    if theirs.dtype != tensor.dtype {
        let (wanted, found) = (theirs.dtype.to_string(), tensor.dtype.to_string());
        errors.push(HandoffError::Manifest { name: name(), wanted, found });
    }
    let fit = fits(ours, theirs, (position, ctx));
    if !fit {
        let describe = |c: &Carried| {
            format!("{} ({}, layer {})", axes(c, c.axes.first().map(|a| a.size)), c.extent, c.layer)
        };
        errors.push(HandoffError::Axes { name: name(), wanted: describe(ours), found: describe(theirs) });
    }
    // Where the axes have been refused for their rows, the tensor is held to its own manifest: that is one fault.
    let follows = matches!(ours.extent, Extent::Append | Extent::Compressed { .. });
    let wanted = if !fit && ours.extent == theirs.extent && !follows {
        theirs.valid_rows(position)
    } else {
        rows_after(ours, theirs, (position, ctx))
    };
    if tensor.shape.get(1..) != ours.valid_shape(position).get(1..) {
        let wanted = axes(ours, Some(wanted));
        errors.push(HandoffError::Axes { name: name(), wanted, found: format!("{:?}", tensor.shape) });
    } else if tensor.shape.first().copied().unwrap_or(1) != wanted {
        let found = tensor.shape.first().copied().unwrap_or(1);
        errors.push(HandoffError::Length { name: name(), wanted, found, position });
    }
    let wanted = shape_bytes(tensor.dtype, tensor.shape);
    if wanted != Some(tensor.bytes) {
        let wanted = wanted.map_or("more than can be counted".into(), |b| b.to_string());
        errors.push(HandoffError::Size { name: name(), wanted, found: tensor.bytes });
    }
    if tensor.dtype != ours.dtype {
        let converted =
            expect.conversion == Conversion::Declared && converts(tensor.dtype) && converts(ours.dtype);
        if !converted {
            errors.push(HandoffError::Dtype { name: name(), wanted: ours.dtype, found: tensor.dtype });
        }
    }
}

/// Bytes that a shape takes; `None` if they overflow, or a row is no whole number of blocks.
fn shape_bytes(dtype: DType, shape: &[u64]) -> Option<u64> {
    let (rows, axes) = shape.split_first().map_or((1, &[][..]), |(rows, axes)| (*rows, axes));
    let cols = axes.iter().try_fold(1u64, |n, &size| n.checked_mul(size))?;
    (dtype.row_bytes(usize::try_from(cols).ok()?)? as u64).checked_mul(rows)
}

/// Whether two ends list one tensor, as far as the rows that are valid at a position go: the same layer, extent and
/// axes, the first of them but for the size where that is each end's own. It is with rows that follow the context, and
/// with a ring that a context below its window has cut, while both ends keep as many rows at the position.
fn fits(ours: &Carried, theirs: &Carried, (position, ctx): (u64, u64)) -> bool {
    let first = match ours.extent {
        Extent::Append | Extent::Compressed { .. } => true,
        Extent::Ring => position >= ctx || ours.valid_rows(position) == theirs.valid_rows(position),
        _ => ours.rows() == theirs.rows(),
    };
    let rows = Some(ours.rows());
    let listed = (ours.extent, ours.layer) == (theirs.extent, theirs.layer);
    listed && first && axes(ours, rows) == axes(theirs, rows)
}

/// Rows that a hand-off has after `position` tokens, whatever the contexts of its two ends: a position that leaves no
/// room here is refused by itself alone.
fn rows_after(ours: &Carried, theirs: &Carried, (position, ctx): (u64, u64)) -> u64 {
    match ours.extent {
        extent @ (Extent::Append | Extent::Compressed { .. }) => extent.valid_rows(position, u64::MAX),
        Extent::Ring if position >= ctx => theirs.valid_rows(position),
        _ => ours.valid_rows(position),
    }
}

/// Whether a type is one that a policy can keep, so that values come from it and go to it.
fn converts(dtype: DType) -> bool {
    matches!(dtype, DType::F8E4M3 | DType::F8E5M2 | DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// Axes as a message gives them; the first one's size is that of the end's own context, so it does not count.
fn axes(carried: &Carried, first: Option<u64>) -> String {
    let size = |(i, a): (usize, &crate::Axis)| {
        (a.name.clone(), if i == 0 { first.unwrap_or(a.size) } else { a.size })
    };
    let named: Vec<String> =
        carried.axes.iter().enumerate().map(size).map(|(name, size)| format!("{name} {size}")).collect();
    format!("[{}]", named.join(", "))
}
