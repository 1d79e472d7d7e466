//! Shares of a hand-off: of every carried tensor what one holder of several has, or the tensors of a run of layers.
//!
//! A contract says of each tensor where it may be cut ([`tranship_program::Segments`]). The share of holder `i` of `N` are
//! the units `i · count / N` up to `(i + 1) · count / N` of each of its runs, one run after the other; a tensor that may not be
//! cut is at every holder whole. A share is a hand-off like any other: its contract has the axes that it has, and says
//! whose it is. So a share can be cut again: of holder `i` of `N`, that of `j` of `M` is the one of `i · M + j` of `N · M`.

use crate::contract::{Carried, Contract};
use crate::{Handoff, HandoffError, HandoffTensor, Refusal};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use tranship_program::{Extent, Run, Segments};

/// The most holders that a hand-off is cut for.
pub const MOST_HOLDERS: u64 = 1 << 16;

/// Whose share of a state it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Share {
    /// The holder, counted from 0.
    pub index: u64,
    /// How many of them there are: 2 or more.
    pub of: u64,
}

/// A run of a model's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Layers {
    /// The first one.
    pub from: u64,
    /// The one after the last.
    pub to: u64,
    /// Layers up to the last one that carries anything.
    pub of: u64,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "share {} of {}", self.index, self.of)
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layers {}..{}", self.from, self.to)
    }
}

impl Contract {
    /// The contract of one holder of `of`, counted from 0: each tensor's axis that is cut has this holder's units alone.
    /// What the state is good for, and the rows that pass from layer to layer, are the same.
    ///
    /// # Errors
    /// [`HandoffError::Holder`] when there is no such holder, [`HandoffError::Cut`] for the first tensor with a run of
    /// units that so many cannot share, [`HandoffError::Format`] for one of a block encoding.
    pub fn share(&self, index: u64, of: u64) -> Result<Contract, HandoffError> {
        let none = HandoffError::Holder { index, of };
        let mut share = self.clone();
        if index >= of {
            return Err(none);
        }
        if of == 1 {
            return Ok(share);
        }
        let own = self.share.unwrap_or(Share { index: 0, of: 1 });
        let all = own.of.checked_mul(of).filter(|&all| all <= MOST_HOLDERS);
        let first = own.index.checked_mul(of).and_then(|first| first.checked_add(index));
        let Some((index, all)) = first.zip(all) else { return Err(none) };
        share.share = Some(Share { index, of: all });
        for carried in &mut share.carried {
            let name = &carried.name;
            let Some(Segments { axis, runs }) = &mut carried.segments else { continue };
            let Some(cut) = carried.axes.get_mut(*axis) else { continue };
            if carried.dtype.block_len() != 1 {
                let what = format!("`{name}` is of blocks of {}, which are not cut", carried.dtype);
                return Err(HandoffError::Format(what));
            }
            for Run { count, .. } in runs.iter_mut() {
                if !count.is_multiple_of(of) {
                    let (name, axis, count) = (name.clone(), cut.name.clone(), *count);
                    return Err(HandoffError::Cut { name, axis, count, of });
                }
                *count /= of;
            }
            cut.size /= of;
        }
        Ok(share)
    }

    /// The contract of a run of layers, as who has these alone needs it. Layers after the last that carries anything may be
    /// in it.
    ///
    /// # Errors
    /// [`HandoffError::Layers`] when the run is empty, or reaches beyond the layers that this contract is of;
    /// [`HandoffError::Format`] when this contract lists its layers in another order than their own.
    pub fn layers(&self, layers: Range<u64>) -> Result<Contract, HandoffError> {
        let Range { start: from, end: to } = layers;
        let last = self.carried.iter().map(|c| c.layer.saturating_add(1)).max().unwrap_or(0);
        let own = self.layers.unwrap_or(Layers { from: 0, to: u64::MAX, of: last });
        if from >= to || from < own.from || to > own.to {
            let last = if own.to == u64::MAX { own.of } else { own.to };
            return Err(HandoffError::Layers { from, to, first: own.from, last });
        }
        if !self.carried.is_sorted_by_key(|c| c.layer) {
            return Err(HandoffError::Format("its contract's layers are not in order".into()));
        }
        let mut part = self.clone();
        part.carried.retain(|c| (from..to).contains(&c.layer));
        part.layers = Some(Layers { from, to, of: own.of });
        Ok(part)
    }
}

impl Handoff {
    /// Cuts the hand-off for `of` holders: sealed hand-offs, in the order of the holders, that [`Handoff::join`] makes this
    /// one of again. Tensors that may not be cut are in each of them. Where a writer gave no segments, no tensor may be;
    /// [`Contract::take`] takes its tensors under a contract that has them.
    ///
    /// # Errors
    /// As [`Contract::share`]; and every reason for which this hand-off is none of its own contract.
    pub fn split(&self, of: u64) -> Result<Vec<Handoff>, Refusal> {
        self.contract().valid()?;
        self.contract().check(self)?;
        self.contract().share(0, of)?;
        (0..of).map(|index| self.share(index, of)).collect()
    }

    fn share(&self, index: u64, of: u64) -> Result<Handoff, Refusal> {
        let contract = self.contract().share(index, of)?;
        let one = |(whole, share): (&Carried, &Carried)| {
            let name = || HandoffError::Missing { name: whole.name.clone(), layer: whole.layer };
            let tensor = self.tensor(&whole.name).ok_or_else(name)?;
            let Some(pieces) = Pieces::of(whole, tensor).filter(|_| of > 1) else {
                return Ok(tensor.clone());
            };
            let shape = share.valid_shape(self.position());
            let bytes = pieces.share(tensor.bytes(), index as usize, of as usize);
            Ok(HandoffTensor::new(&whole.name, tensor.dtype, shape, bytes))
        };
        let pairs = self.contract().carried.iter().zip(&contract.carried);
        let state = pairs.map(one).collect::<Result<_, HandoffError>>()?;
        Ok(Handoff::new(contract, self.progress()?, state))
    }

    /// The tensors of a run of layers, sealed.
    ///
    /// # Errors
    /// As [`Contract::layers`]; and every reason for which this hand-off is none of its own contract.
    pub fn layers(&self, layers: Range<u64>) -> Result<Handoff, Refusal> {
        self.contract().valid()?;
        self.contract().check(self)?;
        let contract = self.contract().layers(layers)?;
        let state = contract.carried.iter().filter_map(|c| self.tensor(&c.name).cloned()).collect();
        Ok(Handoff::new(contract, self.progress()?, state))
    }
}

/// A tensor's bytes as what a cut deals out: the runs of its axis, once for each place on the axes before it.
pub(crate) struct Pieces {
    /// Bytes of each run.
    runs: Vec<usize>,
}

impl Pieces {
    /// Of a tensor that its contract's entry fits; `None` of one that may not be cut.
    pub fn of(carried: &Carried, tensor: &HandoffTensor) -> Option<Pieces> {
        let Segments { axis, runs } = carried.segments.as_ref()?;
        let place = tensor.shape.get(axis + 1..)?.iter().product::<u64>();
        let place = tensor.dtype.row_bytes(usize::try_from(place).ok()?)?;
        let bytes = |run: &Run| usize::try_from(run.count.checked_mul(run.size)?).ok()?.checked_mul(place);
        Some(Pieces { runs: runs.iter().map(bytes).collect::<Option<_>>()? })
    }

    /// The bytes of holder `index` of `of`.
    fn share(&self, bytes: &[u8], index: usize, of: usize) -> Vec<u8> {
        let mut share = Vec::with_capacity(bytes.len() / of);
        let mut rest = bytes;
        while !rest.is_empty() {
            for &run in &self.runs {
                let (units, after) = rest.split_at(run.min(rest.len()));
                let part = units.len() / of;
                share.extend_from_slice(&units[index * part..(index + 1) * part]);
                rest = after;
            }
        }
        share
    }

    /// The bytes of which `shares` are the holders', in their order; these are pieces of a share.
    pub fn join(&self, shares: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(shares.iter().map(|share| share.len()).sum());
        let mut rest = shares.to_vec();
        while rest.iter().any(|share| !share.is_empty()) {
            for &run in &self.runs {
                for share in &mut rest {
                    let (units, after) = share.split_at(run.min(share.len()));
                    bytes.extend_from_slice(units);
                    *share = after;
                }
            }
        }
        bytes
    }
}

/// Holds what a contract says of shares to what it can mean: runs that make up an axis, a holder that there is, layers in
/// the run that they are to be of.
pub(crate) fn hold(contract: &Contract) -> Result<(), String> {
    if let Some(Share { index, of }) = contract.share
        && (index >= of || !(2..=MOST_HOLDERS).contains(&of))
    {
        return Err(format!("the manifest's contract is share {index} of {of}, which there is not"));
    }
    if let Some(layers) = contract.layers {
        let Layers { from, to, of } = layers;
        let out = contract.carried.iter().find(|c| !(from..to).contains(&c.layer) || c.layer >= of);
        if from >= to {
            return Err(format!("the manifest's contract is of {layers}, which are none"));
        }
        if let Some(Carried { name, layer, .. }) = out {
            return Err(format!("the manifest gives `{name}` layer {layer}, and is of {layers} of {of}"));
        }
    }
    contract.carried.iter().try_for_each(segments_hold)
}

fn segments_hold(carried: &Carried) -> Result<(), String> {
    let Some(Segments { axis, runs }) = &carried.segments else { return Ok(()) };
    let name = &carried.name;
    let Some(cut) = carried.axes.get(*axis) else {
        return Err(format!(
            "the manifest cuts `{name}` along axis {axis}, and it has {}",
            carried.axes.len()
        ));
    };
    if *axis == 0 && carried.extent != Extent::Recurrent {
        return Err(format!("the manifest cuts `{name}` along its rows, which follow the position"));
    }
    let places = |sum: u64, run: &Run| sum.checked_add(run.count.checked_mul(run.size)?);
    let sum = runs.iter().try_fold(0, places);
    if runs.iter().any(|run| run.count == 0 || run.size == 0) || sum != Some(cut.size) {
        let sum = sum.map_or("more than can be counted".into(), |sum| sum.to_string());
        let (axis, size) = (&cut.name, cut.size);
        return Err(format!("the manifest's segments of `{name}` are {sum} of {size} in `{axis}`, or empty"));
    }
    Ok(())
}
