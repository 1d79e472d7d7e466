//! Everything that a hand-off is held to, in one pass that collects every fault.

use crate::contract::{Carried, Contract, Conversion, Expect};
use crate::handoff::Seal;
use crate::{Handoff, HandoffError, HandoffTensor, Progress};
use std::collections::HashSet;
use tranship_dtype::DType;
use tranship_program::Extent;

/// Every reason for which `ours` cannot take `handoff`.
pub(crate) fn all(ours: &Contract, handoff: &Handoff, expect: &Expect<'_>) -> Vec<HandoffError> {
    let mut errors = Vec::new();
    seal(handoff, &mut errors);
    identity(ours, handoff, expect, &mut errors);
    let position = handoff.position();
    if position >= ours.ctx {
        errors.push(HandoffError::Position { position, ctx: ours.ctx });
    }
    if let Some(tokens) = expect.tokens {
        let Progress { position: count, digest, .. } = Progress::of(tokens);
        let (wanted, found) = (digest.to_hex().to_string(), handoff.tokens().to_owned());
        if wanted != found || count != position {
            errors.push(HandoffError::Tokens { count, wanted, position, found });
        }
    }
    if let Err(error) = handoff.progress() {
        errors.push(error);
    }
    if let (Some(token), Some(vocab)) = (handoff.next_token(), expect.vocab)
        && u64::from(token) >= vocab
    {
        errors.push(HandoffError::NextToken { token, vocab });
    }
    for carried in &ours.carried {
        match handoff.tensor(&carried.name) {
            Some(tensor) => one((carried, ours.ctx), tensor, handoff, expect, &mut errors),
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
    errors
}

fn seal(handoff: &Handoff, errors: &mut Vec<HandoffError>) {
    match &handoff.seal {
        Seal::Whole(_) => {}
        Seal::Absent => errors.push(HandoffError::Unsealed),
        Seal::Broken { content, found } => {
            errors.push(HandoffError::Seal { wanted: content.clone(), found: found.clone() });
        }
    }
}

fn identity(ours: &Contract, handoff: &Handoff, expect: &Expect<'_>, errors: &mut Vec<HandoffError>) {
    let theirs = handoff.contract();
    let hidden = |c: &Contract| format!("{} × {}", c.hidden, c.streams);
    if hidden(ours) != hidden(theirs) {
        errors.push(HandoffError::Hidden { wanted: hidden(ours), found: hidden(theirs) });
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

/// One tensor: axes by name and size, valid rows, type, and values.
fn one(
    (ours, ctx): (&Carried, u64),
    tensor: &HandoffTensor,
    handoff: &Handoff,
    expect: &Expect<'_>,
    errors: &mut Vec<HandoffError>,
) {
    let name = || ours.name.clone();
    let position = handoff.position();
    let listed = handoff.contract().carried.iter().find(|c| c.name == ours.name);
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
    } else if tensor.rows() != wanted {
        let found = tensor.rows();
        errors.push(HandoffError::Length { name: name(), wanted, found, position });
    }
    if tensor.shape_bytes() != Some(tensor.bytes().len() as u64) {
        let wanted = tensor.shape_bytes().map_or("more than can be counted".into(), |b| b.to_string());
        errors.push(HandoffError::Size { name: name(), wanted, found: tensor.bytes().len() as u64 });
    }
    if tensor.dtype != ours.dtype {
        let converted =
            expect.conversion == Conversion::Declared && converts(tensor.dtype) && converts(ours.dtype);
        if !converted {
            errors.push(HandoffError::Dtype { name: name(), wanted: ours.dtype, found: tensor.dtype });
        }
    }
    if let Some(at) = first_nan(tensor.dtype, tensor.bytes()) {
        let cols = tensor.shape.iter().skip(1).fold(1u64, |n, &size| n.saturating_mul(size)).max(1);
        errors.push(HandoffError::Nan { name: name(), row: at as u64 / cols });
    }
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

/// The first element that is NaN, judged by its bits.
fn first_nan(dtype: DType, bytes: &[u8]) -> Option<usize> {
    let wide = |mask: u16, infinite: u16| {
        bytes.chunks_exact(2).position(|b| u16::from_le_bytes([b[0], b[1]]) & mask > infinite)
    };
    match dtype {
        DType::F64 => bytes.chunks_exact(8).position(|b| {
            let bits = b.iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
            f64::from_bits(bits).is_nan()
        }),
        DType::F32 => bytes
            .chunks_exact(4)
            .position(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & 0x7fff_ffff > 0x7f80_0000),
        DType::F16 => wide(0x7fff, 0x7c00),
        DType::BF16 => wide(0x7fff, 0x7f80),
        DType::F8E4M3 => bytes.iter().position(|b| b & 0x7f == 0x7f),
        DType::F8E5M2 => bytes.iter().position(|b| b & 0x7f > 0x7c),
        _ => None,
    }
}
