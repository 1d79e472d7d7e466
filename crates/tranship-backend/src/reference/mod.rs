//! The reference interpreter: the plain meaning of every operation, and the truth that backends are held to.
//!
//! It walks the typed graph node by node, keeps every value as F32 rounded to the value's dtype, sums in F64 and
//! rounds once. Segments run one after the other, so batching cannot change a result. It is not fast, and does not
//! try to be.

mod attend;
mod elementwise;
mod gather;
mod linear;
mod rms_norm;
mod rope;

use crate::chain::input_rows;
use crate::{
    Backend, BackendError, Caps, CarriedSpec, Chain, Input, Limits, Outputs, RopeTable, RowState, Segment,
    State, Step, Weights, check_batch, round_to,
};
use std::sync::Arc;
use tranship_ctx::{Accepts, DTypeSet, Typed};
use tranship_dtype::DType;
use tranship_program::{Action, Op, Role, Rows, ValueId};
use tranship_tensor::{decode, encode};

/// The reference backend.
pub struct Reference {
    caps: Caps,
}

impl Reference {
    /// The interpreter; it is always there.
    pub fn new() -> Reference {
        const FLOATS: DTypeSet =
            DTypeSet::of(&[DType::F8E4M3, DType::F8E5M2, DType::F16, DType::BF16, DType::F32]);
        let accepts = Accepts { compute: FLOATS, kv: FLOATS, state: FLOATS, ..Accepts::default() };
        let description = "plain loops, sums in F64, one thread".into();
        Reference { caps: Caps { description, accepts, memory_bytes: None, reads_mapped: true } }
    }
}

impl Default for Reference {
    fn default() -> Reference {
        Reference::new()
    }
}

impl Backend for Reference {
    fn name(&self) -> &str {
        "reference"
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn compile(&self, chain: &Chain, weights: &dyn Weights) -> Result<Box<dyn Step>, BackendError> {
        chain.check()?;
        let mut parts = Vec::new();
        for (typed, bound) in chain.parts.iter().zip(chain.bind(weights)?) {
            let mut held = Vec::new();
            for (id, weight) in bound.into_iter().enumerate() {
                let Some(weight) = weight else {
                    held.push(None);
                    continue;
                };
                let values = weight.values().map_err(|source| BackendError::Convert {
                    value: typed.graph().value(ValueId(id)).name.clone(),
                    dtype: DType::F32,
                    source,
                })?;
                held.push(Some(Arc::new(values)));
            }
            parts.push(Part { typed: typed.clone(), weights: held });
        }
        let carried = chain.carried();
        Ok(Box::new(ReferenceStep { limits: chain.limits(), parts, carried }))
    }
}

struct Part {
    typed: Arc<Typed>,
    weights: Vec<Option<Arc<Vec<f32>>>>,
}

struct ReferenceStep {
    limits: Limits,
    parts: Vec<Part>,
    carried: Vec<CarriedSpec>,
}

impl Step for ReferenceStep {
    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        Ok(Box::new(RowState::new(self.carried.clone())?))
    }

    fn run(
        &mut self,
        batch: &mut [Segment<'_>],
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        check_batch(&self.limits, batch, input)?;
        RowState::check(batch, &self.carried)?;
        let mut first = 0;
        for segment in batch {
            let Some(state) = segment.state.as_any().downcast_mut::<RowState>() else { continue };
            let (rows, position) = (segment.rows, segment.position);
            let mut tokens: &[u32] = &[];
            let mut x = match input {
                Input::Tokens(all) => {
                    tokens = &all[first..first + rows];
                    Vec::new()
                }
                Input::Rows(all) => {
                    let width = self.limits.width_in;
                    all[first * width..(first + rows) * width].to_vec()
                }
            };
            first += rows;
            let mut carried = 0;
            for part in &self.parts {
                let count = part.typed.carried().count();
                let mut run = Run { part, rows, position, tokens, state, carried, values: Vec::new() };
                x = run.all(x)?;
                carried += count;
            }
            let width = x.len() / rows;
            if segment.outputs != Outputs::None {
                out.extend_from_slice(&x[segment.outputs.first(rows) * width..]);
            }
        }
        Ok(())
    }
}

/// One program over one segment.
struct Run<'a> {
    part: &'a Part,
    rows: usize,
    position: usize,
    tokens: &'a [u32],
    state: &'a mut RowState,
    /// The index of the program's first carried tensor in the state.
    carried: usize,
    values: Vec<Option<Arc<Vec<f32>>>>,
}

impl Run<'_> {
    fn all(&mut self, input: Vec<f32>) -> Result<Vec<f32>, BackendError> {
        let part = self.part;
        let graph = part.typed.graph();
        self.values = part.weights.clone();
        if let Some((id, value)) = input_rows(graph) {
            let mut input = input;
            round_to(part.typed.dtype(id), &value.name, &mut input)?;
            self.values[id.0] = Some(Arc::new(input));
        }
        self.make_scratch();
        for node in &graph.nodes {
            match &node.action {
                Action::Read { tensor, rows, out } => {
                    self.values[out.0] = Some(Arc::new(self.read(*tensor, *rows)?));
                }
                Action::Write { tensor, rows, value } => self.write(*tensor, *rows, *value)?,
                Action::Apply { op, args, out } => {
                    let mut result = self.apply(op, args, *out);
                    round_to(part.typed.dtype(*out), &graph.value(*out).name, &mut result)?;
                    self.values[out.0] = Some(Arc::new(result));
                }
            }
        }
        Ok(self.value(graph.result).to_vec())
    }

    /// Makes room for scratch, which every program writes before it reads it.
    fn make_scratch(&mut self) {
        let graph = self.part.typed.graph();
        for (id, value) in graph.declared() {
            if graph.roles().of(id) == Some(Role::Scratch) {
                let rows = value.shape.fixed_rows().map_or(self.rows, |r| r as usize);
                self.values[id.0] = Some(Arc::new(vec![0.0; rows * value.shape.cols() as usize]));
            }
        }
    }

    fn value(&self, id: ValueId) -> &[f32] {
        self.values[id.0].as_deref().map_or(&[], Vec::as_slice)
    }

    fn apply(&self, op: &Op, args: &[ValueId], out: ValueId) -> Vec<f32> {
        let graph = self.part.typed.graph();
        let arg = |i: usize| args.get(i).map_or(&[][..], |a| self.value(*a));
        let cols = |id: ValueId| graph.value(id).shape.cols() as usize;
        match op {
            Op::Gather => gather::run(arg(0), cols(args[0]), self.tokens),
            Op::RmsNorm(op) => rms_norm::run(op, arg(0), arg(1)),
            Op::Linear => linear::run(arg(0), arg(1), args.get(2).map(|_| arg(2)), cols(args[0])),
            Op::Rope(op) => {
                let table = RopeTable::new(op, args.get(2).map(|_| arg(2)));
                rope::run(op, &table, arg(0), cols(args[0]), self.position)
            }
            Op::Attend(op) => attend::run(op, arg(0), arg(1), arg(2), cols(out), self.position),
            Op::Silu => elementwise::silu(arg(0)),
            Op::Add => elementwise::zip(arg(0), arg(1), |a, b| a + b),
            Op::Mul => elementwise::zip(arg(0), arg(1), |a, b| a * b),
            Op::Cast(_) => arg(0).to_vec(),
        }
    }

    /// The index in the state of a carried tensor.
    fn carried_index(&self, id: ValueId) -> Option<usize> {
        self.part.typed.carried().position(|(c, _)| c.value == id).map(|i| self.carried + i)
    }

    fn span(&self, tensor: ValueId, rows: Rows) -> std::ops::Range<usize> {
        let all = self.part.typed.graph().value(tensor).shape.fixed_rows().map_or(self.rows, |r| r as usize);
        let end = (self.position + self.rows).min(all);
        match rows {
            Rows::All => 0..all,
            Rows::UpTo => 0..end,
            Rows::New => self.position.min(end)..end,
        }
    }

    fn decoded(&self, tensor: usize, rows: std::ops::Range<usize>) -> Result<Vec<f32>, BackendError> {
        let spec = &self.state.specs()[tensor];
        let (name, dtype) = (spec.name.clone(), spec.dtype);
        let mut values = vec![0.0; rows.len() * spec.cols];
        let bytes = self.state.read(tensor, rows)?;
        decode(dtype, &bytes, &mut values).map_err(|source| BackendError::Convert {
            value: name,
            dtype: DType::F32,
            source,
        })?;
        Ok(values)
    }

    fn read(&self, tensor: ValueId, rows: Rows) -> Result<Vec<f32>, BackendError> {
        let span = self.span(tensor, rows);
        if let Some(index) = self.carried_index(tensor) {
            return self.decoded(index, span);
        }
        let cols = self.part.typed.graph().value(tensor).shape.cols() as usize;
        Ok(self.value(tensor)[span.start * cols..span.end * cols].to_vec())
    }

    fn write(&mut self, tensor: ValueId, rows: Rows, value: ValueId) -> Result<(), BackendError> {
        let span = self.span(tensor, rows);
        let values = self.values[value.0].clone().unwrap_or_default();
        let graph = self.part.typed.graph();
        debug_assert_ne!(graph.roles().of(tensor), Some(Role::Weight));
        if let Some(index) = self.carried_index(tensor) {
            let spec = &self.state.specs()[index];
            let (name, dtype) = (spec.name.clone(), spec.dtype);
            let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap_or(0)];
            encode(dtype, &values, &mut bytes).map_err(|source| BackendError::Convert {
                value: name,
                dtype,
                source,
            })?;
            self.state.write(index, span.start, &bytes)?;
            if rows == Rows::All {
                self.values[tensor.0] = Some(values);
            }
            return Ok(());
        }
        let cols = graph.value(tensor).shape.cols() as usize;
        let mut held = self.values[tensor.0].take().map(Arc::unwrap_or_clone).unwrap_or_default();
        held[span.start * cols..span.end * cols].copy_from_slice(&values);
        self.values[tensor.0] = Some(Arc::new(held));
        Ok(())
    }
}
