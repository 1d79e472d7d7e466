//! A sequence's state as the tensors of a hand-off, and back: the valid rows of each carried tensor in logical order.
//!
//! Which rows these are is the contract's to say, by their logical numbers; where a state keeps them is the backend's.
//! So the rows of a ring leave oldest first whatever slot they are in, and take the slots of another ring, in another
//! context, by their positions.

use crate::SessionError;
use std::ops::Range;
use tranship_backend::State;
use tranship_ctx::{ComputeCtx, CtxError};
use tranship_handoff::{Carried, Contract, Handoff, HandoffTensor};
use tranship_tensor::Tensor;

/// The valid rows of every carried tensor after `position` tokens, in the order of the contract.
pub(crate) fn read(
    state: &dyn State,
    contract: &Contract,
    position: u64,
) -> Result<Vec<HandoffTensor>, SessionError> {
    let mut tensors = Vec::with_capacity(contract.carried.len());
    for (i, carried) in contract.carried.iter().enumerate() {
        let bytes = state.read(i, rows(carried, position))?;
        let shape = carried.valid_shape(position);
        tensors.push(HandoffTensor::new(carried.name.clone(), carried.dtype, shape, bytes));
    }
    Ok(tensors)
}

/// Writes the rows of a hand-off that the contract has accepted into a fresh state; where one is of another type than
/// the contract gives it, as the policy converts to caches.
pub(crate) fn write(
    state: &mut dyn State,
    contract: &Contract,
    handoff: &Handoff,
    policy: &ComputeCtx,
) -> Result<(), SessionError> {
    for (i, carried) in contract.carried.iter().enumerate() {
        let Some(tensor) = handoff.tensor(&carried.name) else { continue };
        let first = rows(carried, handoff.position()).start;
        if tensor.dtype == carried.dtype {
            state.write(i, first, tensor.bytes())?;
            continue;
        }
        let shape: Vec<usize> = tensor.shape.iter().map(|&s| s as usize).collect();
        let held = Tensor::new(tensor.dtype, &shape, tensor.bytes()).map_err(CtxError::from)?;
        let to = ComputeCtx::new(carried.dtype, policy.device.clone());
        state.write(i, first, to.to_kv(&held)?.bytes())?;
    }
    Ok(())
}

/// The valid rows of a tensor as a state numbers them.
fn rows(carried: &Carried, position: u64) -> Range<usize> {
    let Range { start, end } = carried.valid(position);
    start as usize..end as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use tranship_backend::{CarriedSpec, RowState};
    use tranship_ctx::Device;
    use tranship_dtype::DType;
    use tranship_handoff::{Axis, Identity, Progress, VERSION};
    use tranship_program::{Extent, ValueId};

    /// A layer with one tensor of each extent, two elements a row; the window is of 6.
    fn contract(ctx: u64, dtype: DType) -> Contract {
        let one = |name: &str, rows: u64, extent: Extent| {
            let axes = [("rows", rows), ("cols", 2)].map(|(name, size)| Axis { name: name.into(), size });
            Carried { name: name.into(), layer: 0, axes: axes.into(), dtype, extent }
        };
        let carried = vec![
            one("append", ctx, Extent::Append),
            one("recurrent", 3, Extent::Recurrent),
            one("ring", 6.min(ctx), Extent::Ring),
            one("conv", 3, Extent::Ring),
            one("compressed", (ctx / 4).max(1), Extent::Compressed { rate: 4 }),
            one("overlap", 7, Extent::Frontier { rate: 4, keep: 4 }),
            one("frontier", 3, Extent::Frontier { rate: 4, keep: 0 }),
        ];
        let identity = Identity { weights: None, programs: "p".into(), policy: "numbers".into() };
        Contract { version: VERSION, ctx, hidden: 2, streams: 1, carried, identity }
    }

    fn state(contract: &Contract) -> RowState {
        let spec = |(i, c): (usize, &Carried)| CarriedSpec {
            name: c.name.clone(),
            part: 0,
            value: ValueId(i),
            rows: c.rows() as usize,
            cols: c.cols() as usize,
            dtype: c.dtype,
            extent: c.extent,
        };
        RowState::new(contract.carried.iter().enumerate().map(spec).collect()).expect("memory")
    }

    /// A row as F32: which tensor it is of, and which logical row.
    fn row(tensor: usize, row: usize) -> Vec<u8> {
        [tensor as f32, row as f32].iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    /// Takes a token in, as a step does: its rows go to where its position is.
    fn advance(state: &mut RowState, contract: &Contract, position: usize) {
        for (i, carried) in contract.carried.iter().enumerate() {
            match carried.extent {
                Extent::Recurrent => {
                    let all: Vec<u8> = (0..3).flat_map(|r| row(i, position * 8 + r)).collect();
                    state.write(i, 0, &all).expect("rows");
                }
                Extent::Compressed { rate } => {
                    let rate = rate as usize;
                    if (position + 1).is_multiple_of(rate) {
                        let number = position / rate;
                        state.write(i, number, &row(i, number)).expect("a row");
                    }
                }
                _ => state.write(i, position, &row(i, position)).expect("a row"),
            }
        }
    }

    /// Every split of 23 tokens, into rings at whatever phase: a state that was handed over, through bytes and into
    /// another context, goes on as one that was never moved, and leaves again with the same rows.
    #[test]
    fn handed_over_at_every_phase() {
        let policy = ComputeCtx::parity(Device::of("reference"));
        for (here, there) in [(24, 40), (40, 24), (24, 24), (31, 25)] {
            let (here, there) = (contract(here, DType::F32), contract(there, DType::F32));
            for split in 0..=23usize {
                let (mut moved, mut still) = (state(&here), state(&there));
                (0..split).for_each(|p| advance(&mut moved, &here, p));
                (0..23).for_each(|p| advance(&mut still, &there, p));
                let progress = Progress::of(&(0..split as u32).collect::<Vec<_>>());
                let tensors = read(&moved, &here, split as u64).expect("rows");
                let bytes = here.take(progress, tensors).expect("it fits").to_bytes().expect("sealed");
                let handoff = Handoff::from_bytes(bytes).expect("it reads");
                there.check(&handoff).expect("it fits");
                let mut resumed = state(&there);
                write(&mut resumed, &there, &handoff, &policy).expect("it is written");
                (split..23).for_each(|p| advance(&mut resumed, &there, p));
                let rows = |state: &RowState| -> Vec<Vec<u8>> {
                    let tensors = read(state, &there, 23).expect("rows");
                    tensors.iter().map(|t| t.bytes().to_vec()).collect()
                };
                // A memory is whole only once a token has been taken in; at no split is it another than the sender's.
                assert_eq!(rows(&resumed), rows(&still), "split at {split}");
            }
        }
    }

    /// Of a wrapped ring the oldest row leaves first.
    #[test]
    fn rings_leave_in_order() {
        let ours = contract(24, DType::F32);
        let mut state = state(&ours);
        (0..11).for_each(|p| advance(&mut state, &ours, p));
        let tensors = read(&state, &ours, 11).expect("rows");
        let wanted =
            |tensor: usize, rows: Range<usize>| rows.flat_map(|r| row(tensor, r)).collect::<Vec<u8>>();
        assert_eq!(tensors[2].bytes(), wanted(2, 5..11));
        assert_eq!(tensors[3].bytes(), wanted(3, 8..11));
        assert_eq!(tensors[4].bytes(), wanted(4, 0..2));
        assert_eq!(tensors[5].bytes(), wanted(5, 4..11), "the span of 8 and the one before it");
        assert_eq!(tensors[6].bytes(), wanted(6, 8..11));
        let shapes: Vec<u64> = tensors.iter().map(HandoffTensor::rows).collect();
        assert_eq!(shapes, [11, 3, 6, 3, 2, 7, 3]);
    }

    /// Rows of another type are converted and take the same slots.
    #[test]
    fn converted_into_their_slots() {
        let (ours, theirs) = (contract(24, DType::F32), contract(24, DType::F16));
        let mut sender = state(&ours);
        (0..11).for_each(|p| advance(&mut sender, &ours, p));
        let progress = Progress::of(&(0..11).collect::<Vec<_>>());
        let handoff = ours.take(progress, read(&sender, &ours, 11).expect("rows")).expect("it fits");
        let mut receiver = state(&theirs);
        let policy = ComputeCtx::parity(Device::of("reference"));
        write(&mut receiver, &theirs, &handoff, &policy).expect("it is written");
        for (a, b) in
            read(&sender, &ours, 11).expect("rows").iter().zip(read(&receiver, &theirs, 11).expect("rows"))
        {
            let wide: Vec<f32> =
                a.bytes().chunks_exact(4).map(|v| f32::from_le_bytes([v[0], v[1], v[2], v[3]])).collect();
            let shape: Vec<usize> = b.shape.iter().map(|&s| s as usize).collect();
            let narrow = Tensor::new(DType::F16, &shape, b.bytes()).expect("a tensor");
            assert_eq!(narrow.to_f32().expect("floats"), wide, "{}", a.name);
        }
    }
}
