//! Joining: a hand-off of the parts that it was split into, by holders, by layers, or by both.

use crate::contract::{Carried, Contract};
use crate::shares::{Layers, Pieces, Share};
use crate::{Handoff, HandoffError, HandoffTensor, Refusal};
use std::collections::BTreeMap;
use std::ops::Range;
use tranship_program::Run;

/// A part, and what it is called in messages.
type Named<'a> = (String, &'a Handoff);

impl Handoff {
    /// Joins the parts of a hand-off, in any order: the shares of all its holders, of all its layers. The holders of one
    /// run of layers may be more than those of another. What [`Handoff::split`] and [`Handoff::layers`] made of a hand-off
    /// joins to the same manifest, the same bytes and the same seal.
    ///
    /// # Errors
    /// Every part that is not sealed, or does not fit its own contract; everything in which parts differ that are of one
    /// hand-off: position, tokens, context, what they are good for, a tensor that every holder has whole; and every share
    /// and run of layers that is missing or there twice.
    pub fn join(parts: &[Handoff]) -> Result<Handoff, Refusal> {
        let named = named(parts)?;
        let mut runs: BTreeMap<Option<Layers>, Vec<Named<'_>>> = BTreeMap::new();
        for (name, part) in named {
            runs.entry(part.contract().layers).or_default().push((name, part));
        }
        let whole = layers_cover(&runs)?;
        let mut contract: Option<Contract> = None;
        let (mut state, mut errors) = (Vec::new(), Vec::new());
        for run in runs.values() {
            match shares(run) {
                Ok((own, tensors)) => {
                    state.extend(tensors);
                    match &mut contract {
                        Some(contract) => contract.carried.extend(own.carried),
                        None => contract = Some(own),
                    }
                }
                Err(refusal) => errors.extend(refusal.errors),
            }
        }
        match contract {
            Some(mut contract) if errors.is_empty() => {
                contract.layers = contract.layers.filter(|_| !whole);
                sealed(contract, parts, state)
            }
            _ => Err(Refusal { errors }),
        }
    }

    /// Joins the shares of the holders of one run of layers, which the result is of as well.
    ///
    /// # Errors
    /// As [`Handoff::join`], but that layers may be missing.
    pub fn join_shares(parts: &[Handoff]) -> Result<Handoff, Refusal> {
        let named = named(parts)?;
        if let Some((name, other)) =
            named.iter().find(|(_, p)| p.contract().layers != parts[0].contract().layers)
        {
            let of = |handoff: &Handoff| layers_name(handoff.contract().layers);
            return Err(differs(name, "run of layers", of(&parts[0]), of(other)).into());
        }
        let (contract, state) = shares(&named)?;
        sealed(contract, parts, state)
    }
}

fn sealed(contract: Contract, parts: &[Handoff], state: Vec<HandoffTensor>) -> Result<Handoff, Refusal> {
    contract.valid()?;
    Ok(Handoff::new(contract, parts[0].progress()?, state))
}

fn layers_name(layers: Option<Layers>) -> String {
    layers.map_or("all layers".into(), |layers| layers.to_string())
}

fn differs(part: &str, what: &str, wanted: impl ToString, found: impl ToString) -> HandoffError {
    let (what, wanted, found) = (what.into(), wanted.to_string(), found.to_string());
    of_part(part, HandoffError::Differs { what, wanted, found })
}

fn of_part(part: &str, error: HandoffError) -> HandoffError {
    HandoffError::Part { part: part.into(), error: Box::new(error) }
}

/// The parts with their names, each held to its own contract, and all of them to be of one hand-off. There is at least one.
fn named(parts: &[Handoff]) -> Result<Vec<Named<'_>>, Refusal> {
    let name = |(i, part): (usize, &Handoff)| {
        let contract = part.contract();
        let share = contract.share.map(|share| share.to_string());
        let said: Vec<String> = share.into_iter().chain(contract.layers.map(|l| l.to_string())).collect();
        if said.is_empty() { format!("part {i}") } else { format!("part {i} ({})", said.join(", ")) }
    };
    let Some(first) = parts.first() else {
        return Err(HandoffError::Lost { what: "anything".into() }.into());
    };
    let named: Vec<(String, &Handoff)> =
        parts.iter().enumerate().map(|(i, part)| (name((i, part)), part)).collect();
    let mut errors = Vec::new();
    for (name, part) in &named {
        let held = part.contract().valid().map_err(Refusal::from).and_then(|()| part.contract().check(part));
        let faults = held.err().map_or(Vec::new(), |refusal| refusal.errors);
        errors.extend(faults.into_iter().map(|error| of_part(name, error)));
        errors.extend(of_one(name, first, part));
    }
    if errors.is_empty() { Ok(named) } else { Err(Refusal { errors }) }
}

/// Everything in which the manifest of a part is of another hand-off than the first one's.
fn of_one(name: &str, first: &Handoff, part: &Handoff) -> Vec<HandoffError> {
    let (a, b) = (first.contract(), part.contract());
    let next = |handoff: &Handoff| handoff.next_token().map_or("none".into(), |token| token.to_string());
    let weights = |c: &Contract| c.identity.weights.clone().unwrap_or_else(|| "none".into());
    let count = |c: &Contract| c.layers.map_or("all".into(), |layers| layers.of.to_string());
    let all = [
        ("position", first.position().to_string(), part.position().to_string()),
        ("digest of tokens", first.tokens().into(), part.tokens().into()),
        ("next token", next(first), next(part)),
        ("ctx", a.ctx.to_string(), b.ctx.to_string()),
        ("width of rows", a.hidden.to_string(), b.hidden.to_string()),
        ("number of streams", a.streams.to_string(), b.streams.to_string()),
        ("digest of weights", weights(a), weights(b)),
        ("digest of programs", a.identity.programs.clone(), b.identity.programs.clone()),
        ("policy", a.identity.policy.clone(), b.identity.policy.clone()),
        ("number of layers", count(a), count(b)),
    ];
    let other = all.into_iter().filter(|(_, wanted, found)| wanted != found);
    other.map(|(what, wanted, found)| differs(name, what, wanted, found)).collect()
}

/// Holds runs of layers to be all layers, each once. Whether there is more than the one that has all.
fn layers_cover(runs: &BTreeMap<Option<Layers>, Vec<Named<'_>>>) -> Result<bool, Refusal> {
    let mut errors = Vec::new();
    let (mut next, mut last, mut any) = (0, 0, false);
    let span = |from: u64, to: u64| {
        if to - from == 1 { format!("layer {from}") } else { format!("layers {from}..{to}") }
    };
    for layers in runs.keys().flatten() {
        if layers.from > next {
            errors.push(HandoffError::Lost { what: span(next, layers.from) });
        }
        if layers.from < next {
            errors.push(HandoffError::Doubled { what: span(layers.from, layers.to.min(next)) });
        }
        (next, last, any) = (next.max(layers.to), layers.of, true);
    }
    if any && next < last {
        errors.push(HandoffError::Lost { what: span(next, last) });
    }
    if errors.is_empty() { Ok(any) } else { Err(Refusal { errors }) }
}

/// Joins the shares of one run of layers: its contract, and its tensors in the contract's order.
fn shares(parts: &[Named<'_>]) -> Result<(Contract, Vec<HandoffTensor>), Refusal> {
    let mut parts: Vec<&Named<'_>> = parts.iter().collect();
    parts.sort_by_key(|(_, part)| part.contract().share);
    let first = parts[0].1.contract();
    all_there(&parts, first)?;
    let mut errors = Vec::new();
    for (name, part) in &parts[1..] {
        errors.extend(listed_alike(name, first, part.contract()));
    }
    if !errors.is_empty() {
        return Err(Refusal { errors });
    }
    let of = first.share.map_or(1, |share| share.of);
    let mut contract = Contract { share: None, ..first.clone() };
    let mut state = Vec::with_capacity(first.carried.len());
    for (carried, whole) in first.carried.iter().zip(&mut contract.carried) {
        match tensor(&parts, carried, whole, of) {
            Ok(tensor) => state.push(tensor),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok((contract, state)) } else { Err(Refusal { errors }) }
}

/// Holds sorted parts to be the shares of all holders, each once.
fn all_there(parts: &[&Named<'_>], first: &Contract) -> Result<(), Refusal> {
    let mut errors = Vec::new();
    let what = |share: String| match first.layers {
        Some(layers) => format!("{share} of {layers}"),
        None => share,
    };
    let Some(Share { of, .. }) = first.share else {
        // A whole one is there: whatever is beside it is there twice.
        let other = parts[1..].iter().map(|(name, part)| {
            let share = part.contract().share.map_or("the whole".into(), |share| share.to_string());
            of_part(name, HandoffError::Doubled { what: what(share) })
        });
        errors.extend(other);
        return if errors.is_empty() { Ok(()) } else { Err(Refusal { errors }) };
    };
    let mut next = 0;
    for (name, part) in parts {
        let Some(share) = part.contract().share else { continue };
        if share.of != of {
            errors.push(differs(name, "number of holders", of, share.of));
            continue;
        }
        if share.index < next {
            errors.push(HandoffError::Doubled { what: what(share.to_string()) });
        }
        errors.extend(lost(&what, next..share.index, of));
        next = share.index + 1;
    }
    errors.extend(lost(&what, next..of, of));
    if errors.is_empty() { Ok(()) } else { Err(Refusal { errors }) }
}

/// Shares that are in no part, if there are any in a range.
fn lost(what: &impl Fn(String) -> String, shares: Range<u64>, of: u64) -> Option<HandoffError> {
    let Range { start, end } = shares;
    let share = match end.checked_sub(start)? {
        0 => return None,
        1 => Share { index: start, of }.to_string(),
        _ => format!("shares {start}..{end} of {of}"),
    };
    Some(HandoffError::Lost { what: what(share) })
}

/// Everything in which the carried tensors of two shares are listed otherwise.
fn listed_alike(name: &str, first: &Contract, part: &Contract) -> Vec<HandoffError> {
    let found = |c: &Carried| part.carried.iter().find(|other| other.name == c.name);
    let described = |c: &Carried| {
        let axes: Vec<String> = c.axes.iter().map(|a| format!("{} {}", a.name, a.size)).collect();
        let cut = c.segments.as_ref().map_or(String::new(), |s| format!(" along axis {}", s.axis));
        format!("[{}] {} ({}, layer {}), {}{cut}", axes.join(", "), c.dtype, c.extent, c.layer, c.units())
    };
    let mut errors = Vec::new();
    for carried in &first.carried {
        match found(carried) {
            None => {
                let (name, layer) = (carried.name.clone(), carried.layer);
                errors.push(HandoffError::Missing { name, layer });
            }
            Some(other) if other != carried => {
                let what = format!("`{}`", carried.name);
                let (wanted, found) = (described(carried), described(other));
                errors.push(HandoffError::Differs { what, wanted, found });
            }
            Some(_) => {}
        }
    }
    let unknown = part.carried.iter().filter(|c| first.carried.iter().all(|own| own.name != c.name));
    errors.extend(unknown.map(|c| HandoffError::Unknown { name: c.name.clone() }));
    errors.into_iter().map(|error| of_part(name, error)).collect()
}

/// One tensor of all shares; `whole` becomes what its contract says of it.
fn tensor(
    parts: &[&Named<'_>],
    share: &Carried,
    whole: &mut Carried,
    of: u64,
) -> Result<HandoffTensor, HandoffError> {
    let missing = || HandoffError::Missing { name: share.name.clone(), layer: share.layer };
    let tensors: Option<Vec<&HandoffTensor>> =
        parts.iter().map(|(_, part)| part.tensor(&share.name)).collect();
    let tensors = tensors.filter(|tensors| !tensors.is_empty()).ok_or_else(missing)?;
    if share.segments.is_none() || of == 1 {
        let other = tensors.iter().position(|t| t.examined().digest != tensors[0].examined().digest);
        return match other {
            None => Ok(tensors[0].clone()),
            Some(at) => {
                let digest = |t: &HandoffTensor| t.examined().digest.to_hex().to_string();
                let what = format!("`{}`, which every holder has whole,", share.name);
                Err(differs(&parts[at].0, &what, digest(tensors[0]), digest(tensors[at])))
            }
        };
    }
    let uncut = || HandoffError::Format(format!("`{}` is of blocks, which are not cut", share.name));
    let pieces = Pieces::of(share, tensors[0]).ok_or_else(uncut)?;
    let overflow =
        || HandoffError::Format(format!("`{}` of {of} holders is larger than can be counted", share.name));
    let mut shape = tensors[0].shape.clone();
    if let Some(segments) = &mut whole.segments {
        let axis = segments.axis;
        for Run { count, .. } in &mut segments.runs {
            *count = count.checked_mul(of).ok_or_else(overflow)?;
        }
        for size in shape.get_mut(axis).into_iter().chain(whole.axes.get_mut(axis).map(|a| &mut a.size)) {
            *size = size.checked_mul(of).ok_or_else(overflow)?;
        }
    }
    let bytes: Vec<&[u8]> = tensors.iter().map(|t| t.bytes()).collect();
    Ok(HandoffTensor::new(&share.name, share.dtype, shape, pieces.join(&bytes)))
}
