//! The lowering itself: where values are, and what reads and writes of declared tensors become. What operations become
//! is in [`super::apply`].

use super::fuse::{Fused, fuse};
use super::schedule::{row_wise, schedule};
use super::slots::Slots;
use super::{
    Area, Blocks, Buffer, Call, EachOp, First, Form, Lowered, Past, ResultRows, Scheduled, Tensor,
    WeightForm, WeightSlot, WeightUse,
};
use tranship_backend::BackendError;
use tranship_ctx::Typed;
use tranship_dtype::DType;
use tranship_program::{Action, Dim, Graph, Kind, Op, Origin, Role, Rows, ValueId};

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    Nowhere,
    /// In a buffer, all rows that it has.
    Rows(Buffer),
    /// In 8-bit blocks, for each of the ways in which it is multiplied.
    Blocks,
    Weight(WeightSlot),
    /// Rows of a carried tensor, where they are kept.
    View(Tensor, Rows),
    /// Rows of a ring where they are kept, then the step's own in a buffer.
    Joined(Tensor, Area),
    /// A declared tensor that no step takes from the one before: what was written to it.
    Scratch(Area),
}

/// Lowers a typed program.
///
/// # Errors
/// [`BackendError::Unsupported`], naming what this backend has no kernel for.
pub(crate) fn lower(typed: &Typed) -> Result<Lowered, BackendError> {
    let fused = fuse(typed);
    let graph = typed.graph();
    let mut last_use = vec![0usize; graph.values.len()];
    for (at, node) in fused.iter().enumerate() {
        node.inputs(typed).iter().for_each(|id| last_use[id.0] = at);
    }
    last_use[graph.result.0] = fused.len();
    let input =
        graph.declared().find(|(id, v)| v.kind == Kind::Float && graph.roles().of(*id) == Some(Role::Input));
    let width = input.map(|(_, v)| v.shape.cols() as usize);
    let mut lower = Lower {
        typed,
        graph,
        last_use,
        at: 0,
        slots: Slots::new(width),
        places: vec![Place::Nowhere; graph.values.len()],
        blocks: Vec::new(),
        passing: Vec::new(),
        out: Lowered { tensors: typed.carried().count(), ..Lowered::default() },
    };
    lower.declare(input.map(|(id, _)| id))?;
    for (at, node) in fused.iter().enumerate() {
        lower.at = at;
        lower.node(node)?;
        lower.free(&node.inputs(typed));
    }
    lower.finish()
}

pub(super) struct Lower<'a> {
    pub(super) typed: &'a Typed,
    pub(super) graph: &'a Graph,
    pub(super) last_use: Vec<usize>,
    pub(super) at: usize,
    slots: Slots,
    pub(super) places: Vec<Place>,
    /// The values that are in 8-bit blocks, and where for each number of groups.
    pub(super) blocks: Vec<(ValueId, usize, Blocks)>,
    /// Buffers that the present node alone needs.
    passing: Vec<Buffer>,
    pub(super) out: Lowered,
}

impl Lower<'_> {
    pub(super) fn unsupported<T>(&self, id: ValueId, op: &str, why: &str) -> Result<T, BackendError> {
        let op = format!("{op} (`{}`)", self.graph.value(id).name);
        Err(BackendError::Unsupported { backend: "cpu".into(), op, why: why.into() })
    }

    /// Places the declared values: input rows in buffer 0, weights and carried tensors by number.
    fn declare(&mut self, input: Option<ValueId>) -> Result<(), BackendError> {
        for (id, value) in self.graph.declared() {
            let role = self.graph.roles().of(id);
            self.places[id.0] = match (&value.origin, role) {
                (Origin::Weight(_), _) => self.weight(id, Vec::new()),
                (_, Some(Role::Carried(_))) => {
                    let index = self.typed.carried().position(|(c, _)| c.value == id);
                    Place::View(Tensor(index.unwrap_or(0)), Rows::All)
                }
                (_, Some(Role::Input)) if value.kind == Kind::Index => Place::Nowhere,
                (_, Some(Role::Input)) if Some(id) == input => Place::Rows(Buffer(0)),
                (_, Some(Role::Scratch)) => Place::Nowhere,
                _ => {
                    let role = role.map_or(String::new(), |r| r.to_string());
                    let why = format!("no step gives one that is {role}");
                    return self.unsupported(id, "a declared tensor", &why);
                }
            };
        }
        if let Some(id) = input {
            self.round(id, self.area(id, Buffer(0))?);
        }
        Ok(())
    }

    pub(super) fn weight(&mut self, value: ValueId, casts: Vec<DType>) -> Place {
        self.out.weights.push(WeightUse { value, casts, form: WeightForm::Stored });
        Place::Weight(WeightSlot(self.out.weights.len() - 1))
    }

    fn node(&mut self, node: &Fused) -> Result<(), BackendError> {
        match node {
            Fused::Plain(i) => match &self.graph.nodes[*i].action {
                Action::Apply { op, args, out } => self.apply(op, args, *out),
                Action::Update { op, tensor, args, out } => self.update(op, *tensor, args, *out),
                Action::Read { tensor, rows, out } => self.read(*tensor, *rows, *out),
                Action::Write { tensor, rows, value } => self.write(*tensor, *rows, *value),
            },
            Fused::LinearOnto { linear, onto, out } => {
                let Action::Apply { op: Op::Linear(op), args, .. } = &self.graph.nodes[*linear].action else {
                    return Ok(());
                };
                let target = self.in_place(*onto)?;
                self.linear(*op, args, target, true)?;
                self.place(*out, target);
                Ok(())
            }
            Fused::ActMul { function, gate, up, out } => {
                let up = self.rows(*up)?;
                let target = self.in_place_beside(*gate, up)?;
                let op = function.map_or(EachOp::SiluMul(up), |function| EachOp::UnaryMul(function, up));
                self.call(Call::Each { x: target, op });
                self.place(*out, target);
                Ok(())
            }
        }
    }

    /// Rows of a carried tensor stay where they are; what is in a buffer is copied, for it may be written again.
    fn read(&mut self, tensor: ValueId, rows: Rows, out: ValueId) -> Result<(), BackendError> {
        match self.places[tensor.0] {
            Place::View(kept, _) => {
                self.places[out.0] = Place::View(kept, rows);
                Ok(())
            }
            Place::Scratch(area) => {
                let target = self.fresh(out)?;
                let first = if rows == Rows::New && !area.form.step { First::Position } else { First::Zero };
                self.call(Call::Move { x: area, first, rows: target.form, out: target, out_first: 0 });
                self.places[out.0] = Place::Rows(target.buffer);
                Ok(())
            }
            _ => self.unsupported(tensor, "a read", "nothing was written to it before"),
        }
    }

    fn write(&mut self, tensor: ValueId, rows: Rows, value: ValueId) -> Result<(), BackendError> {
        let x = self.rows(value)?;
        if let Place::View(kept, _) = self.places[tensor.0] {
            self.out.rewrites |= rows == Rows::All;
            self.call(Call::Store { x, tensor: kept, rows });
            return Ok(());
        }
        let area = Area { buffer: self.slots.take(x.width, x.form), ..x };
        self.call(Call::Copy { x, out: area });
        self.places[tensor.0] = Place::Scratch(area);
        Ok(())
    }

    pub(super) fn cols(&self, id: ValueId) -> usize {
        self.graph.value(id).shape.cols() as usize
    }

    /// A value's rows in a buffer.
    fn area(&self, id: ValueId, buffer: Buffer) -> Result<Area, BackendError> {
        let form = match self.graph.value(id).shape.rows() {
            Dim::N => Form::STEP,
            Dim::After(before) => Form { fixed: before as usize, step: true },
            Dim::Fixed(rows) => Form { fixed: rows as usize, step: false },
            rows @ (Dim::PosN | Dim::Per(_)) => {
                let why = format!("only attention reads {rows} rows, where they are kept");
                return self.unsupported(id, "rows of the past", &why);
            }
        };
        Ok(Area { buffer, width: self.cols(id), form })
    }

    /// A buffer for a new value.
    pub(super) fn fresh(&mut self, id: ValueId) -> Result<Area, BackendError> {
        let Area { width, form, .. } = self.area(id, Buffer(0))?;
        Ok(Area { buffer: self.slots.take(width, form), width, form })
    }

    /// The rows of a value, to read: in its buffer, or for this node in another.
    pub(super) fn rows(&mut self, id: ValueId) -> Result<Area, BackendError> {
        if let Place::Rows(buffer) = self.places[id.0] {
            return self.area(id, buffer);
        }
        let area = self.gathered(id)?;
        self.passing.push(area.buffer);
        Ok(area)
    }

    /// The rows of a value that is in no buffer, or not alone there, in one of their own.
    fn gathered(&mut self, id: ValueId) -> Result<Area, BackendError> {
        let place = self.places[id.0];
        let out = self.fresh(id)?;
        match place {
            Place::Rows(buffer) => {
                let x = Area { buffer, ..out };
                self.call(Call::Copy { x, out });
            }
            Place::Scratch(x) => self.call(Call::Copy { x, out }),
            Place::Weight(_) => {
                let w = self.weight_slot(id, WeightForm::Row)?;
                self.call(Call::Constant { w, out });
            }
            Place::View(tensor, rows) => {
                let first = match rows {
                    Rows::Before(before) => First::Before(before as usize),
                    Rows::New => First::Position,
                    _ => First::Zero,
                };
                self.call(Call::Load { tensor, first, rows: out.form, out, out_first: 0 });
            }
            Place::Joined(tensor, new) => {
                let before = out.form.fixed;
                let rows = Form { fixed: before, step: false };
                self.call(Call::Load { tensor, first: First::Before(before), rows, out, out_first: 0 });
                let first = First::Zero;
                self.call(Call::Move { x: new, first, rows: Form::STEP, out, out_first: before });
            }
            Place::Nowhere | Place::Blocks => {
                return self.unsupported(id, "an operation", "it is taken as rows, and is none");
            }
        }
        Ok(out)
    }

    /// Rows of the past, where they are.
    pub(super) fn past(&mut self, id: ValueId) -> Result<Past, BackendError> {
        Ok(match self.places[id.0] {
            Place::View(tensor, Rows::UpTo | Rows::UpToPer(_)) => Past::Kept(tensor),
            Place::Joined(ring, new) => Past::Joined { ring, new },
            _ => Past::Window(self.rows(id)?),
        })
    }

    /// As [`Lower::past`], for kernels that read kept rows of F32 alone.
    pub(super) fn past_in_f32(&mut self, id: ValueId) -> Result<Past, BackendError> {
        match self.places[id.0] {
            Place::Joined(..) if self.typed.dtype(id) != DType::F32 => Ok(Past::Window(self.rows(id)?)),
            _ => self.past(id),
        }
    }

    /// `join`: rows of a ring and the step's stay where they are.
    pub(super) fn join(&mut self, args: &[ValueId], out: ValueId) -> Result<(), BackendError> {
        let Place::View(ring, Rows::Before(_)) = self.places[args[0].0] else {
            return self.unsupported(args[0], "join", "it is taken as the rows of a ring, and is none");
        };
        let new = match self.places[args[1].0] {
            Place::Rows(buffer) => self.area(args[1], buffer)?,
            _ => self.gathered(args[1])?,
        };
        self.places[out.0] = Place::Joined(ring, new);
        Ok(())
    }

    /// A weight in a form: its own slot for each, since what is read in one is elsewhere read in another.
    pub(super) fn weight_slot(&mut self, id: ValueId, form: WeightForm) -> Result<WeightSlot, BackendError> {
        let Place::Weight(slot) = self.places[id.0] else {
            return self.unsupported(id, "an operation", "it is taken as a weight, and is none");
        };
        let mut wanted = self.out.weights[slot.0].clone();
        wanted.form = form;
        let known = self.out.weights.iter().position(|w| *w == wanted);
        if known.is_none() {
            self.out.weights.push(wanted);
        }
        Ok(WeightSlot(known.unwrap_or(self.out.weights.len() - 1)))
    }

    /// A weight as one row of F32.
    pub(super) fn row_slot(&mut self, id: ValueId) -> Result<WeightSlot, BackendError> {
        self.weight_slot(id, WeightForm::Row)
    }

    /// Whether some value other than `but` that is still to be read is in the buffer.
    fn held(&self, buffer: Buffer, but: Option<ValueId>) -> bool {
        self.places.iter().enumerate().any(|(i, place)| {
            Some(ValueId(i)) != but
                && match place {
                    Place::Rows(b) => *b == buffer,
                    Place::Joined(_, area) | Place::Scratch(area) => area.buffer == buffer,
                    _ => false,
                }
        })
    }

    /// The rows of `x`, for a result to replace them there: its own if this is its last use and nothing else is there,
    /// else a copy.
    pub(super) fn in_place(&mut self, x: ValueId) -> Result<Area, BackendError> {
        match self.places[x.0] {
            Place::Rows(buffer) if self.last_use[x.0] == self.at && !self.held(buffer, Some(x)) => {
                self.area(x, buffer)
            }
            _ => self.gathered(x),
        }
    }

    /// As [`Lower::in_place`], but never where `other` is.
    pub(super) fn in_place_beside(&mut self, x: ValueId, other: Area) -> Result<Area, BackendError> {
        let area = self.in_place(x)?;
        if area.buffer != other.buffer {
            return Ok(area);
        }
        let out = self.fresh(x)?;
        self.call(Call::Copy { x: area, out });
        Ok(out)
    }

    /// Notes where a computed value is, and rounds it to its type.
    pub(super) fn place(&mut self, id: ValueId, area: Area) {
        self.places[id.0] = Place::Rows(area.buffer);
        self.round(id, area);
    }

    fn round(&mut self, id: ValueId, area: Area) {
        let dtype = self.typed.dtype(id);
        if dtype != DType::F32 && self.graph.value(id).kind == Kind::Float {
            self.call(Call::Each { x: area, op: EachOp::Round(dtype) });
        }
    }

    /// Gives back the buffers of values that were used for the last time, unless another value is there, and those that
    /// the node alone needed.
    fn free(&mut self, inputs: &[ValueId]) {
        for buffer in std::mem::take(&mut self.passing) {
            if !self.held(buffer, None) {
                self.slots.give_back(buffer);
            }
        }
        for id in inputs {
            if self.last_use[id.0] != self.at {
                continue;
            }
            let buffer = match self.places[id.0] {
                Place::Rows(buffer) => buffer,
                Place::Joined(_, area) | Place::Scratch(area) => area.buffer,
                Place::Blocks => {
                    self.blocks.retain(|(value, ..)| value != id);
                    self.places[id.0] = Place::Nowhere;
                    continue;
                }
                _ => continue,
            };
            self.places[id.0] = Place::Nowhere;
            if buffer != Buffer(0) && !self.held(buffer, None) {
                self.slots.give_back(buffer);
            }
        }
    }

    pub(super) fn call(&mut self, call: Call) {
        self.out.calls.push(Scheduled { call, barrier: true });
    }

    fn finish(mut self) -> Result<Lowered, BackendError> {
        let result = self.graph.result;
        let area = self.rows(result)?;
        self.out.result = ResultRows { buffer: area.buffer.0, width: area.width };
        self.out.buffers = self.slots.rooms();
        schedule(&mut self.out.calls);
        self.out.row_wise = row_wise(&self.out.calls);
        Ok(self.out)
    }
}
