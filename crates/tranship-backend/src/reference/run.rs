//! One program over the rows of one segment: what is kept between its actions, and the rows of its tensors.

use super::{compressed, decayed_linear, gated_delta, state_space};
use crate::chain::input_rows;
use crate::{BackendError, RowState, State, round_to};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tranship_ctx::Typed;
use tranship_dtype::DType;
use tranship_program::{Action, Dim, Kind, Op, Role, Rows, ValueId};
use tranship_tensor::{decode, encode};

/// A program with its weights in F32, by value.
pub(super) struct Part {
    pub(super) typed: Arc<Typed>,
    pub(super) weights: Vec<Option<Arc<Vec<f32>>>>,
}

/// One program over one segment.
pub(super) struct Run<'a> {
    pub(super) part: &'a Part,
    /// Rows of the segment.
    pub(super) rows: usize,
    /// The absolute position of the first.
    pub(super) position: usize,
    pub(super) tokens: &'a [u32],
    state: &'a mut RowState,
    /// The index of the program's first carried tensor in the state.
    carried: usize,
    values: Vec<Option<Arc<Vec<f32>>>>,
    /// Values that are row numbers.
    indices: HashMap<ValueId, Vec<u32>>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        part: &'a Part,
        state: &'a mut RowState,
        carried: usize,
        position: usize,
        rows: usize,
        tokens: &'a [u32],
    ) -> Run<'a> {
        let values = part.weights.clone();
        Run { part, rows, position, tokens, state, carried, values, indices: HashMap::new() }
    }

    /// Runs the program over the input rows, and gives what it returns.
    pub(super) fn all(&mut self, mut input: Vec<f32>) -> Result<Vec<f32>, BackendError> {
        let graph = self.part.typed.graph();
        if let Some((id, _)) = input_rows(graph) {
            self.round(id, &mut input)?;
            self.values[id.0] = Some(Arc::new(input));
        }
        graph.nodes.iter().filter_map(|n| n.action.out()).try_for_each(|out| self.hold_memory(out))?;
        self.make_scratch()?;
        for node in &graph.nodes {
            match &node.action {
                Action::Read { tensor, rows, out } => {
                    self.values[out.0] = Some(Arc::new(self.read(*tensor, *rows)?));
                }
                Action::Write { tensor, rows, value } => self.write(*tensor, *rows, *value)?,
                Action::Update { op, tensor, args, out } => {
                    let mut result = self.update(op, *tensor, args)?;
                    self.round(*out, &mut result)?;
                    self.values[out.0] = Some(Arc::new(result));
                }
                Action::Apply { op: Op::Choose(op), args, out } => {
                    let on = [0, 1, 2].map(|i| self.value(args[i]));
                    let chosen = compressed::choose(op, on, self.cols(args[1]), self.position);
                    self.indices.insert(*out, chosen);
                }
                Action::Apply { op, args, out } => {
                    let mut result = self.apply(op, args, *out)?;
                    self.round(*out, &mut result)?;
                    self.values[out.0] = Some(Arc::new(result));
                }
            }
        }
        Ok(self.value(graph.result).to_vec())
    }

    /// A value's elements; none of an index.
    pub(super) fn value(&self, id: ValueId) -> &[f32] {
        self.values[id.0].as_deref().map_or(&[], Vec::as_slice)
    }

    /// The row numbers that an index holds: chosen rows, or the tokens.
    pub(super) fn index(&self, id: ValueId) -> &[u32] {
        self.indices.get(&id).map_or(self.tokens, Vec::as_slice)
    }

    /// Elements of a row of a value.
    pub(super) fn cols(&self, id: ValueId) -> usize {
        self.part.typed.graph().value(id).shape.cols() as usize
    }

    /// Rows of a value in this step; [`usize::MAX`] where they cannot be counted.
    fn rows_of(&self, id: ValueId) -> usize {
        let whole = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        match self.part.typed.graph().value(id).shape.rows() {
            Dim::Fixed(size) => whole(size),
            Dim::N => self.rows,
            Dim::PosN => self.position + self.rows,
            Dim::After(before) => whole(before).saturating_add(self.rows),
            Dim::Per(rate) => (self.position + self.rows) / whole(rate.max(1)),
        }
    }

    /// Refuses a value that there is no memory for, before anything is computed.
    fn hold_memory(&self, id: ValueId) -> Result<(), BackendError> {
        let elements = self.rows_of(id).checked_mul(self.cols(id));
        let room = |elements| Vec::<f32>::new().try_reserve_exact(elements).ok();
        elements.and_then(room).ok_or_else(|| {
            let value = self.part.typed.graph().value(id);
            let what = format!("no memory for `{}` {} at {} rows", value.name, value.shape, self.rows);
            BackendError::Device { backend: "reference".into(), what }
        })
    }

    /// Rounds a value to its dtype. Whole numbers, as of a table whose rows are gathered, stay what they are.
    fn round(&self, id: ValueId, values: &mut [f32]) -> Result<(), BackendError> {
        let dtype = self.part.typed.dtype(id);
        if !dtype.is_real() {
            return Ok(());
        }
        round_to(dtype, &self.part.typed.graph().value(id).name, values)
    }

    /// Makes room for scratch, which every program writes before it reads it.
    fn make_scratch(&mut self) -> Result<(), BackendError> {
        let graph = self.part.typed.graph();
        for (id, value) in graph.declared() {
            if value.kind == Kind::Float && graph.roles().of(id) == Some(Role::Scratch) {
                self.hold_memory(id)?;
                self.values[id.0] = Some(Arc::new(vec![0.0; self.rows_of(id) * self.cols(id)]));
            }
        }
        Ok(())
    }

    /// The index in the state of a carried tensor.
    fn carried_index(&self, id: ValueId) -> Option<usize> {
        self.part.typed.carried().position(|(c, _)| c.value == id).map(|i| self.carried + i)
    }

    /// The numbers of the rows that a range means, of those that there are; of a ring their positions.
    fn span(&self, tensor: ValueId, rows: Rows) -> Range<usize> {
        let all = self.part.typed.graph().value(tensor).shape.fixed_rows().map_or(self.rows, |r| r as usize);
        let (start, end) = (self.position, self.position + self.rows);
        let last = |end: usize, rows: u64| end.saturating_sub(usize::try_from(rows).unwrap_or(usize::MAX));
        let per = |position: usize, rate: u64| (position as u64 / rate.max(1)) as usize;
        let within = |from: usize, to: usize| from.min(all)..to.min(all);
        match rows {
            Rows::All => 0..all,
            Rows::UpTo => within(0, end),
            Rows::New => within(start, end),
            Rows::Before(rows) => last(start, rows)..start,
            Rows::Last(rows) => last(end, rows).max(start)..end,
            Rows::UpToPer(rate) => within(0, per(end, rate)),
            Rows::NewPer(rate) => within(per(start, rate), per(end, rate)),
        }
    }

    fn decoded(&self, tensor: usize, rows: Range<usize>) -> Result<Vec<f32>, BackendError> {
        let spec = &self.state.specs()[tensor];
        let (name, dtype) = (spec.name.clone(), spec.dtype);
        let mut values = vec![0.0; rows.len() * spec.cols];
        let bytes = self.state.read(tensor, rows)?;
        let convert = |source| BackendError::Convert { value: name, dtype: DType::F32, source };
        decode(dtype, &bytes, &mut values).map_err(convert)?;
        Ok(values)
    }

    fn encoded(&mut self, tensor: usize, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        let spec = &self.state.specs()[tensor];
        let (name, dtype) = (spec.name.clone(), spec.dtype);
        let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap_or(0)];
        let convert = |source| BackendError::Convert { value: name, dtype, source };
        encode(dtype, values, &mut bytes).map_err(convert)?;
        self.state.write(tensor, first_row, &bytes)
    }

    /// Rows of a declared tensor. Before position 0 all are 0.
    fn read(&self, tensor: ValueId, rows: Rows) -> Result<Vec<f32>, BackendError> {
        let (span, cols) = (self.span(tensor, rows), self.cols(tensor));
        let Some(index) = self.carried_index(tensor) else {
            let held = self.value(tensor).get(span.start * cols..span.end * cols);
            return Ok(held.unwrap_or_default().to_vec());
        };
        let Rows::Before(before) = rows else { return self.decoded(index, span) };
        let mut values = vec![0.0; (before as usize - span.len()) * cols];
        values.extend(self.decoded(index, span)?);
        Ok(values)
    }

    /// Writes the step's rows, or those of them that the form of rows keeps.
    fn write(&mut self, tensor: ValueId, rows: Rows, value: ValueId) -> Result<(), BackendError> {
        let (span, cols) = (self.span(tensor, rows), self.cols(tensor));
        let values = self.values[value.0].clone().unwrap_or_default();
        let kept = match rows {
            Rows::Last(_) => values[(self.rows - span.len()) * cols..].to_vec(),
            Rows::NewPer(rate) => {
                let closes = |(i, _): &(usize, _)| ((self.position + i + 1) as u64).is_multiple_of(rate);
                let rows = values.chunks_exact(cols).enumerate().filter(closes);
                rows.flat_map(|(_, row)| row.iter().copied()).collect()
            }
            _ => values.to_vec(),
        };
        if let Some(index) = self.carried_index(tensor) {
            return self.encoded(index, span.start, &kept);
        }
        let mut held = self.values[tensor.0].take().map(Arc::unwrap_or_clone).unwrap_or_default();
        if let Some(held) = held.get_mut(span.start * cols..span.end * cols) {
            held.copy_from_slice(&kept);
        }
        self.values[tensor.0] = Some(Arc::new(held));
        Ok(())
    }

    /// Advances a memory by the step's rows, one after the other. It is rounded to its dtype after each, and what the
    /// row gives is read from it then.
    fn update(&mut self, op: &Op, tensor: ValueId, args: &[ValueId]) -> Result<Vec<f32>, BackendError> {
        let Some(index) = self.carried_index(tensor) else { return Ok(Vec::new()) };
        let spec = &self.state.specs()[index];
        let (name, dtype, rows) = (spec.name.clone(), spec.dtype, spec.rows);
        let mut s = self.decoded(index, 0..rows)?;
        let mut y = Vec::new();
        for i in 0..self.rows {
            let row = |a: usize| {
                let cols = self.cols(args[a]);
                &self.value(args[a])[i * cols..][..cols]
            };
            match op {
                Op::GatedDelta(op) => {
                    gated_delta::advance(op, &mut s, [row(1), row(2), row(3), row(4)]);
                    round_to(dtype, &name, &mut s)?;
                    y.extend(gated_delta::read(op, &s, row(0)));
                }
                Op::DecayedLinear(op) => {
                    decayed_linear::advance(op, &mut s, row(1), row(2));
                    round_to(dtype, &name, &mut s)?;
                    y.extend(decayed_linear::read(op, &s, row(0)));
                }
                Op::StateSpace(op) => {
                    let (a, d) = (self.value(args[4]), self.value(args[5]));
                    let row = state_space::Row { x: row(0), b: row(1), c: row(2), dt: row(3), a, d };
                    state_space::advance(op, &mut s, &row);
                    round_to(dtype, &name, &mut s)?;
                    y.extend(state_space::read(op, &s, &row));
                }
                other => {
                    let why = "it advances no memory".into();
                    let (backend, op) = ("reference".into(), other.name().into());
                    return Err(BackendError::Unsupported { backend, op, why });
                }
            }
        }
        self.encoded(index, 0, &s)?;
        Ok(y)
    }
}
