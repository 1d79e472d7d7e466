//! A lowered program with its own weights: what one part of a chain runs.

use super::{Lowered, RopeUse, WeightUse};
use std::sync::Arc;
use tranship_backend::{BackendError, Bytes, RopeTable, Weight};
use tranship_ctx::Typed;
use tranship_dtype::DType;
use tranship_tensor::{Tensor, TensorError, decode};

/// A weight as kernels take it.
pub(crate) enum Held {
    /// A matrix, where it is stored.
    Matrix { dtype: DType, data: Arc<dyn Bytes>, outs: usize, width: usize },
    /// A row of F32: gains, biases.
    Row(Vec<f32>),
}

/// A part of a chain.
pub(crate) struct Part {
    pub lowered: Arc<Lowered>,
    pub weights: Vec<Held>,
    /// The index of each rotary embedding among those of the step.
    pub ropes: Vec<usize>,
    /// The index of each buffer of 8-bit blocks among those of the step.
    pub blocks: Vec<usize>,
    /// The index in the state of the part's first carried tensor.
    pub first_cache: usize,
}

/// Finds the part's weights in the form that its kernels want.
///
/// # Errors
/// [`BackendError::Convert`] when a weight cannot be cast as the typed program says.
pub(crate) fn weights(
    typed: &Typed,
    lowered: &Lowered,
    bound: &[Option<Weight>],
) -> Result<Vec<Held>, BackendError> {
    lowered.weights.iter().map(|usage| held(typed, usage, bound[usage.value.0].as_ref())).collect()
}

fn held(typed: &Typed, usage: &WeightUse, weight: Option<&Weight>) -> Result<Held, BackendError> {
    let name = &typed.graph().value(usage.value).name;
    let weight = weight.ok_or_else(|| BackendError::NoWeight(name.clone()))?;
    let to = usage.casts.last().copied().unwrap_or(weight.dtype);
    let convert = |source: TensorError| BackendError::Convert { value: name.clone(), dtype: to, source };
    let mut kept = weight.clone();
    if !usage.casts.is_empty() {
        let mut tensor = Tensor::new(weight.dtype, &weight.shape, weight.data.bytes()).map_err(convert)?;
        for dtype in &usage.casts {
            tensor = tensor.cast(*dtype).map_err(convert)?;
        }
        kept = Weight { dtype: to, shape: weight.shape.clone(), data: Arc::new(tensor) };
    }
    if usage.as_row {
        let mut row = vec![0.0; kept.shape.iter().product()];
        decode(kept.dtype, kept.data.bytes(), &mut row).map_err(convert)?;
        return Ok(Held::Row(row));
    }
    let width = kept.shape.last().copied().unwrap_or(1);
    let outs = kept.shape.iter().rev().skip(1).product();
    Ok(Held::Matrix { dtype: kept.dtype, data: kept.data, outs, width })
}

/// The index of each of the part's rotary embeddings in `tables`, to which new ones are added.
pub(crate) fn ropes(lowered: &Lowered, weights: &[Held], tables: &mut Vec<RopeTable>) -> Vec<usize> {
    let mut index_of = |usage: &RopeUse| {
        let divisors = usage.divisors.and_then(|slot| match &weights[slot.0] {
            Held::Row(row) => Some(row.as_slice()),
            Held::Matrix { .. } => None,
        });
        let table = RopeTable::new(&usage.rope, divisors);
        let known = tables.iter().position(|t| *t == table);
        known.unwrap_or_else(|| {
            tables.push(table);
            tables.len() - 1
        })
    };
    lowered.ropes.iter().map(&mut index_of).collect()
}

/// The index of each of the part's buffers of 8-bit blocks in `all`, a list of widths to which new ones are added.
pub(crate) fn blocks(lowered: &Lowered, all: &mut Vec<usize>) -> Vec<usize> {
    let mut taken: Vec<usize> = Vec::new();
    for width in &lowered.blocks {
        let known = (0..all.len()).find(|i| all[*i] == *width && !taken.contains(i));
        taken.push(known.unwrap_or_else(|| {
            all.push(*width);
            all.len() - 1
        }));
    }
    taken
}
