//! The parts of a session: runs of layers, each compiled on its backend, that are the whole model together.
//!
//! The embedding goes with the first part and the head with the last. Between two parts rows of the hidden width cross,
//! one for each stream, as F32: no type that a policy computes in has values that F32 lacks, so they arrive as they left.

use crate::chains::{Phase, Section, chain};
use crate::{Model, SessionError};
use std::ops::Range;
use std::sync::Arc;
use tranship_backend::{Backend, CarriedSpec, Chain, Limits, Step};
use tranship_ctx::ComputeCtx;
use tranship_handoff::{Carried, Contract};

/// A run of layers on a backend.
#[derive(Clone)]
pub struct Part {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// The layers, at least one.
    pub layers: Range<usize>,
}

/// What the states of a session's sequences are made for.
pub(crate) struct Layout {
    /// The model that they are of.
    pub model: Arc<Model>,
    /// The contract, without the digest of the weights.
    pub contract: Contract,
    /// Each part's backend by name, and which of the contract's tensors are its own: a run.
    pub cuts: Vec<(String, Range<usize>)>,
}

impl Layout {
    /// Whether a state that was made for the other is one of the same model under the same contract, so that it says the
    /// same of a text. Models that were opened twice are told apart by their weights.
    pub fn is_of(&self, other: &Layout) -> bool {
        let model = || Arc::ptr_eq(&self.model, &other.model) || self.model.digest() == other.model.digest();
        std::ptr::eq(self, other) || (self.contract == other.contract && model())
    }

    /// Whether it is also kept in the same parts, so that a step can go on with it.
    pub fn serves(&self, other: &Layout) -> bool {
        self.cuts == other.cuts && self.is_of(other)
    }

    /// The carried tensors of a part, in the order of its state.
    pub fn carried(&self, part: usize) -> &[Carried] {
        &self.contract.carried[self.cuts[part].1.clone()]
    }

    /// Every carried tensor in the contract's order, each with its part and its number in that part's state.
    pub fn tensors(&self) -> impl Iterator<Item = (usize, usize, &Carried)> {
        let of_part = |part| self.carried(part).iter().enumerate().map(move |(i, c)| (part, i, c));
        (0..self.cuts.len()).flat_map(of_part)
    }
}

/// A compiled part.
pub(crate) struct Stage {
    pub part: Part,
    /// What its chain holds batches to.
    pub limits: Limits,
    pub prefill: Box<dyn Step>,
    /// The step for single rows, where its programs differ from the prefill's.
    decode: Option<Box<dyn Step>>,
}

impl Stage {
    /// Compiles a part under a policy, at a context and for steps of so many rows.
    ///
    /// # Errors
    /// What the backend lacks, and carried tensors that are not those of the contract.
    pub fn compile(
        model: &Model,
        part: Part,
        policy: &ComputeCtx,
        contract: &Contract,
        max_rows: usize,
    ) -> Result<Stage, SessionError> {
        let Part { backend, layers } = &part;
        let all = model.spec().layers.len();
        let section = Section { embed: layers.start == 0, layers: layers.clone(), head: layers.end == all };
        let accepts = &backend.caps().accepts;
        let build = |phase| chain(model, policy, accepts, (&section, phase), (contract.ctx, max_rows));
        let (prefill, decode) = (build(Phase::Prefill)?, build(Phase::Decode)?);
        let own: Vec<&Carried> = contract.carried.iter().filter(|c| has(layers, c)).collect();
        held(&own, &prefill.carried(), &part)?;
        let step = backend.compile(&prefill, &model.weights())?;
        let alike = canonical(&prefill) == canonical(&decode);
        let single = if alike {
            None
        } else {
            Some(backend.compile(&Chain { max_rows: 1, ..decode }, &model.weights())?)
        };
        Ok(Stage { limits: prefill.limits(), prefill: step, decode: single, part })
    }

    /// The step for a batch: that for single rows, if there is one, where all are.
    pub fn step(&mut self, single: bool) -> &mut dyn Step {
        match &mut self.decode {
            Some(decode) if single => decode.as_mut(),
            _ => self.prefill.as_mut(),
        }
    }
}

/// What a chain computes, without names.
fn canonical(chain: &Chain) -> Vec<String> {
    chain.parts.iter().map(|p| p.canonical()).collect()
}

fn has(layers: &Range<usize>, carried: &Carried) -> bool {
    usize::try_from(carried.layer).is_ok_and(|layer| layers.contains(&layer))
}

/// Which of the contract's tensors are each part's: layers in order, so a run. The parts are all layers.
pub(crate) fn cuts(contract: &Contract, parts: &[Part]) -> Vec<(String, Range<usize>)> {
    let mut next = 0;
    let cut = |part: &Part| {
        let start = next;
        next += contract.carried[start..].iter().take_while(|c| has(&part.layers, c)).count();
        (part.backend.name().to_owned(), start..next)
    };
    parts.iter().map(cut).collect()
}

/// Holds what a part's chain carries to what the contract has for its layers: the same tensors in the same order. A
/// tensor of a layer in another part is not among them, so layers that share one are in one part or not run.
fn held(wanted: &[&Carried], found: &[CarriedSpec], part: &Part) -> Result<(), SessionError> {
    let fault = |tensor: &str, what: String| {
        let part = format!("{} on {}", run(&part.layers), part.backend.name());
        Err(SessionError::Carried { tensor: tensor.to_owned(), part, what })
    };
    for (i, spec) in found.iter().enumerate() {
        let form = |rows: u64, cols: u64, dtype, extent| format!("{extent} of {rows} rows of {cols} {dtype}");
        let found = form(spec.rows as u64, spec.cols as u64, spec.dtype, spec.extent);
        match wanted.get(i) {
            Some(c) if c.name == spec.name => {
                let wanted = form(c.rows(), c.cols(), c.dtype, c.extent);
                if found != wanted {
                    return fault(&spec.name, format!("is {found}, and the contract has {wanted}"));
                }
            }
            _ => return fault(&spec.name, "is none that the contract gives them there".into()),
        }
    }
    match wanted.get(found.len()) {
        Some(c) => fault(&c.name, "is in the contract, and no program carries it".into()),
        None => Ok(()),
    }
}

/// Holds that parts are all of a model's layers, each layer once, in order.
///
/// # Errors
/// [`SessionError::Layers`], naming the layers or the part.
pub(crate) fn tile(layers: usize, parts: &[Range<usize>]) -> Result<(), SessionError> {
    let fault = |what: String| Err(SessionError::Layers { layers, parts: parts.len(), what });
    if parts.is_empty() {
        return fault("there is no part".into());
    }
    for (i, part) in parts.iter().enumerate() {
        if part.is_empty() {
            return fault(format!("part {i} has none"));
        }
        if part.end > layers {
            return fault(format!("layer {} is not there", part.start.max(layers)));
        }
    }
    let holders = |layer: usize| parts.iter().filter(|part| part.contains(&layer)).count();
    let first = |wrong: fn(usize) -> bool| {
        let start = (0..layers).find(|&layer| wrong(holders(layer)))?;
        let count = (start..layers).take_while(|&layer| wrong(holders(layer))).count();
        let verb = if count == 1 { "is" } else { "are" };
        Some(format!("{} {verb}", run(&(start..start + count))))
    };
    if let Some(missing) = first(|holders| holders == 0) {
        return fault(format!("{missing} in none"));
    }
    if let Some(doubled) = first(|holders| holders > 1) {
        return fault(format!("{doubled} in more than one"));
    }
    match parts.windows(2).position(|pair| pair[0].start > pair[1].start) {
        Some(i) => {
            let [before, after] = [i, i + 1].map(|i| run(&parts[i]));
            fault(format!("{after} after {before}, wanted in order"))
        }
        None => Ok(()),
    }
}

/// A run of layers in words: `layer 3`, `layers 3-6`.
pub(crate) fn run(layers: &Range<usize>) -> String {
    match layers.len() {
        1 => format!("layer {}", layers.start),
        _ => format!("layers {}-{}", layers.start, layers.end.saturating_sub(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tranship_backend::Reference;
    use tranship_dtype::DType;
    use tranship_handoff::Axis;
    use tranship_program::{Extent, ValueId};

    #[test]
    fn parts_are_all_layers_in_order() {
        for (layers, parts, wanted) in [
            (7, std::slice::from_ref(&(0..7)), ""),
            (7, &[0..3, 3..7], ""),
            (7, &[0..1, 1..6, 6..7], ""),
            (7, &[0..3, 3..6], "layer 6 is in none"),
            (7, std::slice::from_ref(&(1..7)), "layer 0 is in none"),
            (7, &[0..3, 5..7], "layers 3-4 are in none"),
            (7, &[], "there is no part"),
            (0, &[], "there is no part"),
            (7, &[0..4, 3..7], "layer 3 is in more than one"),
            (7, &[0..7, 0..7], "layers 0-6 are in more than one"),
            (7, &[0..4, 4..8], "layer 7 is not there"),
            (7, &[0..7, 9..usize::MAX], "layer 9 is not there"),
            (7, &[0..3, 3..3, 3..7], "part 1 has none"),
            (7, &[3..7, 0..3], "layers 0-2 after layers 3-6, wanted in order"),
        ] {
            let found = tile(layers, parts).err().map_or(String::new(), |e| e.to_string());
            let count = parts.len();
            let plural = if count == 1 { "" } else { "s" };
            let wanted = match wanted {
                "" => String::new(),
                what => format!("a layer split of {layers} layers in {count} part{plural}: {what}"),
            };
            assert_eq!(found, wanted, "{parts:?}");
        }
    }

    fn carried(name: &str, layer: u64, dtype: DType) -> Carried {
        let axes = [("position", 8), ("dim", 2)].map(|(name, size)| Axis { name: name.into(), size });
        Carried { name: name.into(), layer, axes: axes.into(), dtype, extent: Extent::Append, segments: None }
    }

    fn spec(name: &str, rows: usize, dtype: DType) -> CarriedSpec {
        let (name, value, extent) = (name.to_owned(), ValueId(0), Extent::Append);
        CarriedSpec { name, part: 0, value, rows, cols: 2, dtype, extent }
    }

    /// Layers 0 and 1 carry a tensor each, and layer 2, which shares that of layer 1, none.
    #[test]
    fn a_part_carries_what_its_layers_have() {
        let [k0, k1] = [carried("k0", 0, DType::F32), carried("k1", 1, DType::F32)];
        let part = |layers| Part { backend: Arc::new(Reference::new()), layers };
        let check = |wanted: &[&Carried], found: &[CarriedSpec], layers| {
            held(wanted, found, &part(layers)).err().map(|e| e.to_string()).unwrap_or_default()
        };
        let (s0, s1) = (spec("k0", 8, DType::F32), spec("k1", 8, DType::F32));
        assert_eq!(check(&[&k0, &k1], &[s0.clone(), s1.clone()], 0..3), "");
        assert_eq!(check(&[], &[], 2..3), "");
        // The cut parts those that share: the second part would carry what the first has.
        assert_eq!(
            check(&[], std::slice::from_ref(&s1), 2..3),
            "`k1` of layer 2 on reference is none that the contract gives them there"
        );
        assert_eq!(
            check(&[&k0, &k1], &[s1, s0.clone()], 0..3),
            "`k1` of layers 0-2 on reference is none that the contract gives them there"
        );
        assert_eq!(
            check(&[&k0, &k1], std::slice::from_ref(&s0), 0..2),
            "`k1` of layers 0-1 on reference is in the contract, and no program carries it"
        );
        for (other, form) in [
            (spec("k0", 8, DType::F16), "append of 8 rows of 2 f16"),
            (spec("k0", 9, DType::F32), "append of 9 rows of 2 f32"),
        ] {
            let wanted = format!(
                "`k0` of layer 0 on reference is {form}, and the contract has append of 8 rows of 2 f32"
            );
            assert_eq!(check(&[&k0], &[other], 0..1), wanted);
        }
    }
}
