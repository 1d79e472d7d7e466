//! A lowered program with its own weights: what one part of a chain runs.

use super::{BlockRows, Lowered, RopeUse, WeightForm, WeightUse};
use crate::ops::Weights;
use crate::ops::memory::negative_rates;
use std::sync::Arc;
use tranship_backend::{BackendError, Bytes, RopeTable, Weight, experts_of};
use tranship_ctx::Typed;
use tranship_dtype::DType;
use tranship_tensor::{Tensor, TensorError};

/// A weight as kernels take it.
pub(crate) enum Held {
    /// A matrix, where it is stored.
    Matrix { dtype: DType, data: Arc<dyn Bytes>, outs: usize, width: usize },
    /// Matrices of one type and size, `[experts, outs, width]`, where they are stored: all in one piece, or each in
    /// its own.
    Bank { dtype: DType, pieces: Vec<Arc<dyn Bytes>>, outs: usize, width: usize },
    /// F32 values: gains, biases, rates, numbers of experts.
    Row(Vec<f32>),
}

impl Held {
    /// One matrix of a bank, `[outs, width]`; `None` of anything else and past the last.
    pub(crate) fn expert(&self, expert: usize) -> Option<Weights<'_>> {
        let Held::Bank { dtype, pieces, outs, width } = self else { return None };
        let bytes = outs.checked_mul(dtype.row_bytes(*width)?)?;
        let in_piece = pieces.first()?.bytes().len().checked_div(bytes)?;
        let piece = pieces.get(expert.checked_div(in_piece)?)?.bytes();
        let start = expert % in_piece * bytes;
        Some(Weights::new(*dtype, piece.get(start..start + bytes)?, *outs, *width))
    }
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
    pub first_tensor: usize,
}

/// Finds the part's weights in the form that its kernels want.
///
/// # Errors
/// [`BackendError::Convert`] when a weight cannot be cast as the typed program says, [`BackendError::Table`] when one is
/// no table of experts.
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
    if let WeightForm::Numbers(experts) = usage.form {
        let numbers = experts_of(name, weight, experts)?;
        return Ok(Held::Row(numbers.into_iter().map(|n| n as f32).collect()));
    }
    let kept = cast(weight, &usage.casts).map_err(convert)?;
    match usage.form {
        WeightForm::Row => return Ok(Held::Row(kept.values().map_err(convert)?)),
        WeightForm::Rates(form, width) => {
            return Ok(Held::Row(negative_rates(&kept.values().map_err(convert)?, form, width)));
        }
        WeightForm::Stored | WeightForm::Numbers(_) => {}
    }
    let width = kept.shape.last().copied().unwrap_or(1);
    let outs = kept.shape.iter().skip(1).rev().skip(1).product();
    if kept.shape.len() > 2 {
        return Ok(Held::Bank { dtype: kept.dtype, pieces: kept.pieces, outs, width });
    }
    let outs = kept.shape.iter().rev().skip(1).product();
    let data: Arc<dyn Bytes> = match kept.one() {
        Some(one) => one.clone(),
        None => Arc::new(Tensor::new(kept.dtype, &kept.shape, &kept.joined()).map_err(convert)?),
    };
    Ok(Held::Matrix { dtype: kept.dtype, data, outs, width })
}

/// The weight through each of the types, piece by piece.
fn cast(weight: &Weight, casts: &[DType]) -> Result<Weight, TensorError> {
    let Some(&dtype) = casts.last() else { return Ok(weight.clone()) };
    let mut shape = weight.shape.clone();
    if let (Some(first), Some(rows)) = (shape.first_mut(), weight.piece_rows()) {
        *first = rows;
    }
    let one = |piece: &Arc<dyn Bytes>| -> Result<Arc<dyn Bytes>, TensorError> {
        let stored = Tensor::new(weight.dtype, &shape, piece.bytes())?;
        Ok(Arc::new(casts.iter().try_fold(stored, |tensor, dtype| tensor.cast(*dtype))?))
    };
    let pieces = weight.pieces.iter().map(one).collect::<Result<_, _>>()?;
    Ok(Weight { dtype, shape: weight.shape.clone(), pieces })
}

/// The index of each of the part's rotary embeddings in `tables`, to which new ones are added.
pub(crate) fn ropes(lowered: &Lowered, weights: &[Held], tables: &mut Vec<RopeTable>) -> Vec<usize> {
    let mut index_of = |usage: &RopeUse| {
        let divisors = usage.divisors.and_then(|slot| match &weights[slot.0] {
            Held::Row(row) => Some(row.as_slice()),
            Held::Matrix { .. } | Held::Bank { .. } => None,
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

/// The index of each of the part's buffers of 8-bit blocks in `all`, to which new ones are added.
pub(crate) fn blocks(lowered: &Lowered, all: &mut Vec<BlockRows>) -> Vec<usize> {
    let mut taken: Vec<usize> = Vec::new();
    for rows in &lowered.blocks {
        let known = (0..all.len()).find(|i| all[*i] == *rows && !taken.contains(i));
        taken.push(known.unwrap_or_else(|| {
            all.push(*rows);
            all.len() - 1
        }));
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(values: &[f32]) -> Arc<dyn Bytes> {
        Arc::new(Tensor::from_f32(&[values.len()], values).expect("a tensor"))
    }

    /// The matrices of a bank, as their values; all that there are.
    fn experts(pieces: Vec<Arc<dyn Bytes>>) -> Vec<Vec<f32>> {
        let bank = Held::Bank { dtype: DType::F32, pieces, outs: 2, width: 1 };
        let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let values = |w: Weights| (0..w.outs()).map(|out| value(w.row(out))).collect();
        (0..).map_while(|e| bank.expert(e).map(values)).collect()
    }

    #[test]
    fn an_expert_is_one_matrix_however_the_bank_lies() {
        let wanted = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]];
        let all = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        for in_piece in [1, 2, 4] {
            assert_eq!(
                experts(all.chunks(2 * in_piece).map(piece).collect()),
                wanted,
                "{in_piece} in a piece"
            );
        }
        assert_eq!(experts(Vec::new()), [[0.0; 0]; 0]);
        assert!(Held::Row(vec![0.0; 4]).expert(0).is_none());
    }

    #[test]
    fn casts_go_piece_by_piece() {
        let pieces = vec![piece(&[1.0, -2.0, 3.0, 4.0]), piece(&[5.0, 6.0, 7.0, 65520.0])];
        let weight = Weight { dtype: DType::F32, shape: vec![4, 2], pieces };
        let half = cast(&weight, &[DType::F16]).expect("it converts");
        assert_eq!((half.dtype, half.pieces.len(), half.bytes_len()), (DType::F16, 2, 16));
        assert_eq!(half.values().expect("real"), [1.0, -2.0, 3.0, 4.0, 5.0, 6.0, 7.0, f32::INFINITY]);
    }
}
