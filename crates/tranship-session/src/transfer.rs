//! A sequence's state as the tensors of a hand-off, and back: the valid rows of each carried tensor in logical order.
//!
//! Which rows these are is the contract's to say, by their logical numbers; where a state keeps them is the backend's.
//! So the rows of a ring leave oldest first whatever slot they are in, and take the slots of another ring, in another
//! context, by their positions.

use crate::SessionError;
use crate::parts::Layout;
use std::borrow::Cow;
use std::ops::Range;
use tranship_backend::State;
use tranship_ctx::{ComputeCtx, CtxError};
use tranship_handoff::{Carried, Handoff, HandoffTensor};
use tranship_tensor::Tensor;

/// The valid rows of every carried tensor after `position` tokens, in the order of the contract. The states are those of
/// the layout's parts.
pub(crate) fn read_all(
    states: &[Box<dyn State>],
    layout: &Layout,
    position: u64,
) -> Result<Vec<HandoffTensor>, SessionError> {
    layout.tensors().map(|(part, i, carried)| read(states[part].as_ref(), i, carried, position)).collect()
}

/// The valid rows of a state's tensor after `position` tokens.
pub(crate) fn read(
    state: &dyn State,
    tensor: usize,
    carried: &Carried,
    position: u64,
) -> Result<HandoffTensor, SessionError> {
    let bytes = state.read(tensor, rows(carried, position))?;
    Ok(HandoffTensor::new(carried.name.clone(), carried.dtype, carried.valid_shape(position), bytes))
}

/// The bytes of these rows, where they lie if that can be.
pub(crate) fn view<'s>(
    state: &'s dyn State,
    tensor: usize,
    carried: &Carried,
    position: u64,
) -> Result<Cow<'s, [u8]>, SessionError> {
    Ok(state.view(tensor, rows(carried, position))?)
}

/// Writes the rows of a hand-off that the contract has accepted into fresh states of the layout's parts.
pub(crate) fn write_all(
    states: &mut [Box<dyn State>],
    layout: &Layout,
    handoff: &Handoff,
    policy: &ComputeCtx,
) -> Result<(), SessionError> {
    for (part, i, carried) in layout.tensors() {
        let Some(tensor) = handoff.tensor(&carried.name) else { continue };
        write(states[part].as_mut(), (i, carried), tensor, handoff.position(), policy)?;
    }
    Ok(())
}

/// Writes the valid rows after `position` tokens into a state's tensor; where they are of another type than the contract
/// gives it, as the policy converts to caches.
pub(crate) fn write(
    state: &mut dyn State,
    (i, carried): (usize, &Carried),
    tensor: &HandoffTensor,
    position: u64,
    policy: &ComputeCtx,
) -> Result<(), SessionError> {
    let first = rows(carried, position).start;
    if tensor.dtype == carried.dtype {
        return Ok(state.write(i, first, tensor.bytes())?);
    }
    let shape: Vec<usize> = tensor.shape.iter().map(|&s| s as usize).collect();
    let held = Tensor::new(tensor.dtype, &shape, tensor.bytes()).map_err(CtxError::from)?;
    let to = ComputeCtx::new(carried.dtype, policy.device.clone());
    Ok(state.write(i, first, to.to_kv(&held)?.bytes())?)
}

/// The valid rows of a tensor as a state numbers them.
fn rows(carried: &Carried, position: u64) -> Range<usize> {
    let Range { start, end } = carried.valid(position);
    start as usize..end as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tranship_backend::{
        Backend, CarriedSpec, Chain, Input, MapWeights, Outputs, Reference, RowState, Segment, Step, Weights,
    };
    use tranship_ctx::Device;
    use tranship_dtype::DType;
    use tranship_handoff::{Axis, Contract, Identity, Progress, VERSION};
    use tranship_program::{Extent, Program, ValueId};

    /// The rows of a state that holds the whole contract.
    fn read(
        state: &dyn State,
        contract: &Contract,
        position: u64,
    ) -> Result<Vec<HandoffTensor>, SessionError> {
        let carried = contract.carried.iter().enumerate();
        carried.map(|(i, c)| super::read(state, i, c, position)).collect()
    }

    fn write(
        state: &mut dyn State,
        contract: &Contract,
        handoff: &Handoff,
        policy: &ComputeCtx,
    ) -> Result<(), SessionError> {
        contract.carried.iter().enumerate().try_for_each(|(i, c)| {
            let tensor = handoff.tensor(&c.name).expect("it was accepted");
            super::write(state, (i, c), tensor, handoff.position(), policy)
        })
    }

    /// A layer with one tensor of each extent, two elements a row; the window is of 6.
    fn contract(ctx: u64, dtype: DType) -> Contract {
        let one = |name: &str, rows: u64, extent: Extent| {
            let axes = [("rows", rows), ("cols", 2)].map(|(name, size)| Axis { name: name.into(), size });
            Carried { name: name.into(), layer: 0, axes: axes.into(), dtype, extent, segments: None }
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
        let (share, layers) = (None, None);
        Contract { version: VERSION, ctx, hidden: 2, streams: 1, carried, identity, share, layers }
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

    /// A layer with every extent, which needs tokens beside its rows.
    fn layer(ctx: u64) -> String {
        let (spans, ring) = ((ctx / 2).max(1), ctx.min(5));
        format!(
            "program decode layer=0 ctx={ctx}
  x      : [n, 8]
  pos    : index
  tokens : index [n]
  k      : [{ctx}, 8]
  conv   : [3, 8]
  s      : [2, 4, 4]
  f      : [3, 8]
  g      : [3, 8]
  c      : [{spans}, 4]
  w      : [{ring}, 4]
  taps   : [8, 4] @ \"taps\"
  bias   : [2, 8] @ \"bias\"
  sinks  : [2] @ \"sinks\"
  route  : [3, 8] @ \"route\"
  listed : [11, 2] @ \"listed\"
  up     : [3, 5, 8] @ \"up\"
  down   : [3, 8, 5] @ \"down\"
  h = conv(join(conv[pos-3 .. pos], x), taps)
  conv[pos+n-3 .. pos+n] = x
  k[pos .. pos+n] = h
  a = attend(h, k[.. pos+n], k[.. pos+n], heads: 2, kv_heads: 2, scale: 0.5)
  m, s[..] = decayed_linear(s[..], h, a, h, heads: 2, rate: 0.9)
  row = slice(m, to: 4)
  ff = join(f[pos-3 .. pos], m)
  gg = join(g[pos-3 .. pos], h)
  ww = join(w[pos-{ring} .. pos], row)
  f[pos+n-3 .. pos+n] = m
  g[pos+n-3 .. pos+n] = h
  w[pos+n-{ring} .. pos+n] = row
  c[pos/2 .. (pos+n)/2] = compress(ff, gg, bias, rate: 2, overlap: yes)
  b = compressed_attend(x, ww, c[.. (pos+n)/2], sinks, heads: 2, scale: 0.5, window: 6, rate: 2)
  r = route_by_table(x, route, listed, tokens, top_k: 2, score: sqrt_softplus, normalize: yes, scale: 1.5)
  return x + b + experts(b, r, up, down, top_k: 2, act: relu2)
"
        )
    }

    const EMBED: &str = "program embed\n  tokens : index [n]\n  table : [11, 8] @ \"table\"\n  return gather(table, tokens)\n";

    fn weights() -> MapWeights {
        let mut map = MapWeights::default();
        let mut seed = 1u32;
        let mut draw = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let shapes: [(&str, &[usize]); 7] = [
            ("table", &[11, 8]),
            ("taps", &[8, 4]),
            ("bias", &[2, 8]),
            ("sinks", &[2]),
            ("route", &[3, 8]),
            ("up", &[3, 5, 8]),
            ("down", &[3, 8, 5]),
        ];
        for (name, shape) in shapes {
            let values: Vec<f32> = (0..shape.iter().product()).map(|_| draw()).collect();
            map.insert(name, Tensor::from_f32(shape, &values).expect("a tensor"));
        }
        let experts: Vec<f32> = (0..22).map(|i| (i * 5 % 3) as f32).collect();
        map.insert("listed", Tensor::from_f32(&[11, 2], &experts).expect("a tensor"));
        map
    }

    /// The compiled layer behind an embedding, and the contract of what it carries.
    fn compiled(ctx: u64) -> (Box<dyn Step>, Contract) {
        let (policy, backend) = (ComputeCtx::parity(Device::of("reference")), Reference::new());
        let typed = |text: &str| {
            let graph = Program::parse(text).and_then(|p| p.lift()).unwrap_or_else(|e| panic!("{e}"));
            let stored = |name: &str| weights().weight(name).map(|w| w.dtype);
            Arc::new(policy.typed(&graph, &stored, &backend.caps().accepts).expect("it types"))
        };
        let chain = Chain::new(vec![typed(EMBED), typed(&layer(ctx))], 16);
        let one = |(c, dtype): (&tranship_program::Carried, DType)| Carried {
            name: c.name.clone(),
            layer: 0,
            axes: c.axes.iter().map(|(name, size)| Axis { name: name.clone(), size: *size }).collect(),
            dtype,
            extent: c.extent,
            segments: None,
        };
        let carried = chain.parts[1].carried().map(one).collect();
        let contract = Contract { carried, ..contract(ctx, DType::F32) };
        (backend.compile(&chain, &weights()).expect("it compiles"), contract)
    }

    fn run(step: &mut dyn Step, state: &mut dyn State, position: usize, tokens: &[u32]) -> Vec<u32> {
        let mut out = Vec::new();
        let segment = Segment { state, position, rows: tokens.len(), outputs: Outputs::All };
        if !tokens.is_empty() {
            step.run(&mut [segment], Input::Tokens(tokens), &mut out).expect("it runs");
        }
        out.iter().map(|v| v.to_bits()).collect()
    }

    /// A program with every extent goes on bit for bit, split anywhere, in contexts longer and shorter than its window
    /// and its spans.
    #[test]
    fn programs_go_on_bit_for_bit() {
        let policy = ComputeCtx::parity(Device::of("reference"));
        let tokens: Vec<u32> = (0..23).map(|i| (i * 7 + 3) % 11).collect();
        let (mut longest, _) = compiled(40);
        let mut state = longest.new_state().expect("memory");
        let whole = run(longest.as_mut(), state.as_mut(), 0, &tokens);
        for (here, there) in [(24, 40), (40, 23), (4, 24), (24, 4), (3, 23), (1, 2)] {
            let ((mut first, ours), (mut second, theirs)) = (compiled(here), compiled(there));
            let extents: Vec<&str> = ours.carried.iter().map(|c| c.extent.name()).collect();
            assert_eq!(
                extents,
                ["ring", "append", "recurrent", "frontier", "frontier", "ring", "compressed"]
            );
            for split in 0..here.min(there) as usize {
                let end = (there as usize).min(tokens.len());
                let mut left = first.new_state().expect("memory");
                let mut found = run(first.as_mut(), left.as_mut(), 0, &tokens[..split]);
                let tensors = read(left.as_ref(), &ours, split as u64).expect("rows");
                let handoff = ours.take(Progress::of(&tokens[..split]), tensors).expect("it fits");
                let handoff = Handoff::from_bytes(handoff.to_bytes().expect("sealed")).expect("it reads");
                theirs.check(&handoff).expect("it fits");
                let mut right = second.new_state().expect("memory");
                write(right.as_mut(), &theirs, &handoff, &policy).expect("it is written");
                for at in split..end {
                    found.extend(run(second.as_mut(), right.as_mut(), at, &tokens[at..=at]));
                }
                assert_eq!(found, whole[..end * 8], "{here} to {there}, split at {split}");
            }
        }
    }
}
