//! Which tensors a model needs, read off its programs, and whether a checkpoint has them.

use crate::{Cut, ModelError, ModelSpec, TensorFault};
use std::collections::HashSet;
use std::fmt::Write as _;
use tranship_program::{Decl, Dim, Item, Program};
use tranship_weights::Checkpoint;

impl ModelSpec {
    /// The tensors that the model's programs name, each once, with their shapes (`[out, in]` of matrices): those of
    /// the embedding, of each layer, of the head.
    ///
    /// # Errors
    /// As [`ModelSpec::program`].
    pub fn required(&self) -> Result<Vec<(String, Vec<u64>)>, ModelError> {
        let mut seen = HashSet::new();
        let mut required = Vec::new();
        for cut in self.cuts(1).filter(|cut| !matches!(cut, Cut::DecodeLayer { .. })) {
            for (name, shape) in weights(&self.program(cut)?) {
                if seen.insert(name.clone()) {
                    required.push((name, shape));
                }
            }
        }
        Ok(required)
    }

    /// Holds a checkpoint's tensors to the model: each is there, has the shape that the programs give it, and holds
    /// real numbers. Tensors that no program names are of no account; [`ModelSpec::unused`] lists them.
    ///
    /// # Errors
    /// [`ModelError::Tensors`] with everything that is wrong.
    pub fn check(&self, checkpoint: &Checkpoint) -> Result<(), ModelError> {
        let required = self.required()?;
        let wanted = required.len();
        let faults: Vec<TensorFault> =
            required.into_iter().filter_map(|(name, shape)| fault(checkpoint, name, shape)).collect();
        if faults.is_empty() { Ok(()) } else { Err(ModelError::Tensors { wanted, faults }) }
    }

    /// The tensors of a checkpoint that no program names, in file order.
    ///
    /// # Errors
    /// As [`ModelSpec::program`].
    pub fn unused(&self, checkpoint: &Checkpoint) -> Result<Vec<String>, ModelError> {
        let required: HashSet<String> = self.required()?.into_iter().map(|(name, _)| name).collect();
        let unused = checkpoint.tensors().filter(|view| !required.contains(view.name()));
        Ok(unused.map(|view| view.name().to_owned()).collect())
    }

    /// All programs, lifted at `ctx = 1` and freed of names: the text whose digest identifies what a model computes.
    /// Its parts are the embedding, each layer's prefill and decode, and the head. See the crate's page for what it
    /// tells apart.
    ///
    /// # Errors
    /// As [`ModelSpec::program`].
    pub fn canonical_programs(&self) -> Result<String, ModelError> {
        let mut text = String::new();
        for cut in self.cuts(1) {
            let lifted = self.program(cut)?.lift();
            let graph = lifted.map_err(|source| ModelError::Program { cut, source })?;
            let _ = write!(text, "{cut}\n{}", graph.canonical());
        }
        Ok(text)
    }
}

/// The weights that a program declares, and their shapes.
fn weights(program: &Program) -> impl Iterator<Item = (String, Vec<u64>)> {
    let decls = program.lines.iter().filter_map(|line| match &line.item {
        Some(Item::Decls(decls)) => Some(decls),
        _ => None,
    });
    decls.flatten().filter_map(|decl| Some((decl.weight.clone()?, shape(decl))))
}

/// The shape of a weight: no axis of one is symbolic.
fn shape(decl: &Decl) -> Vec<u64> {
    let size = |dim| if let Dim::Fixed(size) = dim { size } else { 0 };
    decl.axes.iter().map(|axis| size(axis.size)).collect()
}

fn fault(checkpoint: &Checkpoint, name: String, wanted: Vec<u64>) -> Option<TensorFault> {
    let Some(view) = checkpoint.get(&name) else { return Some(TensorFault::Missing { name, wanted }) };
    let found: Vec<u64> = view.shape().iter().map(|&size| size as u64).collect();
    if found != wanted {
        return Some(TensorFault::Shape { name, wanted, found });
    }
    (!view.dtype().is_real()).then(|| TensorFault::Elements { name, found: view.dtype() })
}
