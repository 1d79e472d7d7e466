//! The lowering itself: nodes to calls, values to buffers.

use super::fuse::{Fused, fuse};
use super::slots::Slots;
use super::{
    Blocks, Buffer, Cache, Call, Lowered, Other, ResultRows, RopeSlot, RopeUse, Scheduled, WeightSlot,
    WeightUse,
};
use tranship_backend::BackendError;
use tranship_ctx::Typed;
use tranship_dtype::DType;
use tranship_program::ops::{Attend, RmsNorm};
use tranship_program::{Action, Dim, Extent, Graph, Kind, Op, Origin, Role, Rows, ValueId};

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Nowhere,
    Rows(Buffer),
    Blocks(Blocks),
    Weight(WeightSlot),
    Cache(Cache),
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
        out: Lowered { caches: typed.carried().count(), row_wise: true, ..Lowered::default() },
    };
    lower.declare(input.map(|(id, _)| id))?;
    for (at, node) in fused.iter().enumerate() {
        lower.at = at;
        lower.node(node)?;
        lower.free(&node.inputs(typed));
    }
    lower.finish()
}

struct Lower<'a> {
    typed: &'a Typed,
    graph: &'a Graph,
    last_use: Vec<usize>,
    at: usize,
    slots: Slots,
    places: Vec<Place>,
    out: Lowered,
}

impl Lower<'_> {
    fn unsupported<T>(&self, id: ValueId, op: &str, why: &str) -> Result<T, BackendError> {
        let op = format!("{op} (`{}`)", self.graph.value(id).name);
        Err(BackendError::Unsupported { backend: "cpu".into(), op, why: why.into() })
    }

    /// Places the declared values: input rows in buffer 0, weights and caches by number.
    fn declare(&mut self, input: Option<ValueId>) -> Result<(), BackendError> {
        for (id, value) in self.graph.declared() {
            let role = self.graph.roles().of(id);
            self.places[id.0] = match (&value.origin, role) {
                (Origin::Weight(_), _) => self.weight(id, Vec::new()),
                (_, Some(Role::Carried(Extent::Append))) => {
                    let index = self.typed.carried().position(|(c, _)| c.value == id);
                    Place::Cache(Cache(index.unwrap_or(0)))
                }
                (_, Some(Role::Input)) if value.kind == Kind::Index => Place::Nowhere,
                (_, Some(Role::Input)) if Some(id) == input => Place::Rows(Buffer(0)),
                _ => {
                    let role = role.map_or(String::new(), |r| r.to_string());
                    return self.unsupported(
                        id,
                        "a declared tensor",
                        &format!("no kernel takes one that is {role}"),
                    );
                }
            };
        }
        if let Some(id) = input {
            self.round(id, Buffer(0));
        }
        Ok(())
    }

    fn weight(&mut self, value: ValueId, casts: Vec<DType>) -> Place {
        self.out.weights.push(WeightUse { value, casts, as_row: false });
        Place::Weight(WeightSlot(self.out.weights.len() - 1))
    }

    fn node(&mut self, node: &Fused) -> Result<(), BackendError> {
        match node {
            Fused::Plain(i) => match &self.graph.nodes[*i].action {
                Action::Apply { op, args, out } => self.apply(op, args, *out),
                Action::Read { tensor, rows: Rows::UpTo, out } => {
                    self.places[out.0] = self.places[tensor.0];
                    Ok(())
                }
                Action::Read { tensor, rows, .. } => {
                    self.unsupported(*tensor, "a read", &format!("no kernel reads rows {rows}"))
                }
                Action::Write { tensor, rows: Rows::New, value } => {
                    let (x, Place::Cache(cache)) = (self.rows(*value, "a write")?, self.places[tensor.0])
                    else {
                        return self.unsupported(*tensor, "a write", "only caches are written");
                    };
                    self.out.row_wise = false;
                    self.call(Call::Store { x, width: self.cols(*value), cache });
                    Ok(())
                }
                Action::Write { tensor, rows, .. } => {
                    self.unsupported(*tensor, "a write", &format!("no kernel writes rows {rows}"))
                }
            },
            Fused::LinearOnto { linear, onto, out } => {
                let Action::Apply { args, .. } = &self.graph.nodes[*linear].action else { return Ok(()) };
                let target = self.in_place(*onto)?;
                self.linear(args, target, true)?;
                self.place(*out, target);
                Ok(())
            }
            Fused::SiluMul { gate, up, out } => {
                let (target, up) = (self.in_place(*gate)?, self.rows(*up, "mul")?);
                self.call(Call::SiluMul { gate: target, up, width: self.cols(*out) });
                self.place(*out, target);
                Ok(())
            }
        }
    }

    fn apply(&mut self, op: &Op, args: &[ValueId], out: ValueId) -> Result<(), BackendError> {
        match op {
            Op::Gather => {
                let table = self.weight_slot(args[0], op.name())?;
                let target = self.fresh(out)?;
                self.call(Call::Gather { table, out: target });
                self.place(out, target);
            }
            Op::RmsNorm(RmsNorm { eps }) => {
                let (x, gain) = (self.rows(args[0], op.name())?, self.row_slot(args[1], op.name())?);
                let target = self.fresh(out)?;
                self.call(Call::RmsNorm { x, gain, eps: *eps, out: target });
                self.place(out, target);
            }
            Op::Linear => {
                let target = self.fresh(out)?;
                self.linear(args, target, false)?;
                self.place(out, target);
            }
            Op::Rope(rope) => {
                let target = self.in_place(args[0])?;
                let divisors = args.get(2).map(|a| self.row_slot(*a, op.name())).transpose()?;
                let usage = RopeUse { rope: rope.clone(), divisors };
                let known = self.out.ropes.iter().position(|r| alike(r, &usage));
                let table = RopeSlot(known.unwrap_or(self.out.ropes.len()));
                if known.is_none() {
                    self.out.ropes.push(usage);
                }
                self.out.row_wise = false;
                let (width, heads) = (self.cols(out), rope.heads as usize);
                self.call(Call::Rope { x: target, width, table, heads, style: rope.style });
                self.place(out, target);
            }
            Op::Attend(attend) => self.attend(attend, args, out)?,
            Op::Silu => {
                let target = self.in_place(args[0])?;
                self.call(Call::Silu { x: target, width: self.cols(out) });
                self.place(out, target);
            }
            Op::Add | Op::Mul => {
                // A value with itself: one of the two operands is a copy, for the other is written in place.
                let target = if args[0] == args[1] { self.copy(args[0])? } else { self.in_place(args[0])? };
                let b = match self.places[args[1].0] {
                    Place::Weight(_) => Other::Row(self.row_slot(args[1], op.name())?),
                    _ => Other::Rows(self.rows(args[1], op.name())?),
                };
                let width = self.cols(out);
                let sum = *op == Op::Add;
                self.call(if sum {
                    Call::Add { a: target, b, width }
                } else {
                    Call::Mul { a: target, b, width }
                });
                self.place(out, target);
            }
            Op::Cast(to) => self.cast(args[0], *to, out)?,
        }
        Ok(())
    }

    fn attend(&mut self, op: &Attend, args: &[ValueId], out: ValueId) -> Result<(), BackendError> {
        let q = self.rows(args[0], "attend")?;
        let (Place::Cache(k), Place::Cache(v)) = (self.places[args[1].0], self.places[args[2].0]) else {
            return self.unsupported(args[1], "attend", "keys and values are rows of caches");
        };
        let target = self.fresh(out)?;
        self.out.row_wise = false;
        let (heads, kv_heads) = (op.heads as usize, op.kv_heads as usize);
        let (width, scale) = (self.cols(args[0]), op.scale as f32);
        self.call(Call::Attend { q, width, k, v, heads, kv_heads, scale, out: target });
        self.place(out, target);
        Ok(())
    }

    fn linear(&mut self, args: &[ValueId], out: Buffer, add: bool) -> Result<(), BackendError> {
        let w = self.weight_slot(args[1], "linear")?;
        let bias = args.get(2).map(|b| self.row_slot(*b, "linear")).transpose()?;
        match self.places[args[0].0] {
            Place::Blocks(x) => self.call(Call::LinearBlocks { x, w, bias, add, out }),
            _ => {
                let x = self.rows(args[0], "linear")?;
                self.call(Call::Linear { x, w, bias, add, out });
            }
        }
        Ok(())
    }

    /// A cast of a weight is done when it is bound; one of rows rounds a copy, or makes 8-bit blocks.
    fn cast(&mut self, x: ValueId, to: DType, out: ValueId) -> Result<(), BackendError> {
        if let Place::Weight(slot) = self.places[x.0] {
            let WeightUse { value, mut casts, .. } = self.out.weights[slot.0].clone();
            casts.push(to);
            self.places[out.0] = self.weight(value, casts);
            return Ok(());
        }
        if to == DType::Q8_1 {
            let x = self.rows(x, "cast")?;
            let width = self.cols(out);
            let known = self.out.blocks.iter().position(|&w| w == width);
            // One buffer for each width is enough while nothing else is cast before its last use.
            let busy = known.is_some_and(|k| self.alive(Place::Blocks(Blocks(k))));
            let slot =
                Blocks(if busy { self.out.blocks.len() } else { known.unwrap_or(self.out.blocks.len()) });
            if slot.0 == self.out.blocks.len() {
                self.out.blocks.push(width);
            }
            self.call(Call::Quantize { x, out: slot });
            self.places[out.0] = Place::Blocks(slot);
            return Ok(());
        }
        if !matches!(to, DType::F16 | DType::BF16 | DType::F32) {
            return self.unsupported(x, "cast", &format!("no kernel rounds to {to}"));
        }
        let target = self.in_place(x)?;
        if self.only_stored(out) {
            // Storing rounds to the cache's type; there is no need to round twice.
            self.places[out.0] = Place::Rows(target);
        } else {
            self.place(out, target);
        }
        Ok(())
    }

    /// Whether a value is read by writes alone.
    fn only_stored(&self, id: ValueId) -> bool {
        let reads = self.graph.nodes.iter().filter(|n| n.action.inputs().contains(&id));
        id != self.graph.result && reads.into_iter().all(|n| matches!(n.action, Action::Write { .. }))
    }

    /// Whether some value that is still to be read is in that place.
    fn alive(&self, place: Place) -> bool {
        self.places.iter().zip(&self.last_use).any(|(p, last)| *p == place && *last >= self.at)
    }

    fn cols(&self, id: ValueId) -> usize {
        self.graph.value(id).shape.cols() as usize
    }

    fn rows(&self, id: ValueId, op: &str) -> Result<Buffer, BackendError> {
        match self.places[id.0] {
            Place::Rows(buffer) => Ok(buffer),
            _ => self.unsupported(id, op, "it is taken as rows of the step, and is none"),
        }
    }

    fn weight_slot(&self, id: ValueId, op: &str) -> Result<WeightSlot, BackendError> {
        match self.places[id.0] {
            Place::Weight(slot) => Ok(slot),
            _ => self.unsupported(id, op, "it is taken as a weight, and is none"),
        }
    }

    /// A weight that kernels read as one row of F32: its own slot, since a matrix of that name stays as it is.
    fn row_slot(&mut self, id: ValueId, op: &str) -> Result<WeightSlot, BackendError> {
        let slot = self.weight_slot(id, op)?;
        let mut wanted = self.out.weights[slot.0].clone();
        wanted.as_row = true;
        let known = self.out.weights.iter().position(|w| *w == wanted);
        if known.is_none() {
            self.out.weights.push(wanted);
        }
        Ok(WeightSlot(known.unwrap_or(self.out.weights.len() - 1)))
    }

    /// A buffer for a new value.
    fn fresh(&mut self, id: ValueId) -> Result<Buffer, BackendError> {
        if self.graph.value(id).shape.rows() != Dim::N {
            return self.unsupported(id, "a computed tensor", "its rows are not those of the step");
        }
        Ok(self.slots.take(self.cols(id)))
    }

    /// The buffer of `x`, for a result to replace it there: its own if this is its last use, else of a copy.
    fn in_place(&mut self, x: ValueId) -> Result<Buffer, BackendError> {
        let buffer = self.rows(x, "an operation")?;
        if self.last_use[x.0] == self.at { Ok(buffer) } else { self.copy(x) }
    }

    /// A copy of `x` in a buffer of its own.
    fn copy(&mut self, x: ValueId) -> Result<Buffer, BackendError> {
        let (buffer, copy) = (self.rows(x, "an operation")?, self.fresh(x)?);
        self.call(Call::Copy { x: buffer, out: copy, width: self.cols(x) });
        Ok(copy)
    }

    /// Notes where a computed value is, and rounds it to its type.
    fn place(&mut self, id: ValueId, buffer: Buffer) {
        self.places[id.0] = Place::Rows(buffer);
        self.slots.widen(buffer, self.cols(id));
        self.round(id, buffer);
    }

    fn round(&mut self, id: ValueId, buffer: Buffer) {
        let dtype = self.typed.dtype(id);
        if dtype != DType::F32 {
            self.call(Call::Round { x: buffer, width: self.cols(id), dtype });
        }
    }

    /// Gives back the buffers of values that were used for the last time, unless a later value is there now.
    fn free(&mut self, inputs: &[ValueId]) {
        for id in inputs {
            let Place::Rows(buffer) = self.places[id.0] else { continue };
            if self.last_use[id.0] != self.at {
                continue;
            }
            self.places[id.0] = Place::Nowhere;
            let taken = self.places.contains(&Place::Rows(buffer));
            if !taken && buffer != Buffer(0) {
                self.slots.give_back(buffer);
            }
        }
    }

    fn call(&mut self, call: Call) {
        self.out.calls.push(Scheduled { call, barrier: true });
    }

    fn finish(mut self) -> Result<Lowered, BackendError> {
        let result = self.graph.result;
        let buffer = self.rows(result, "return")?;
        self.out.result = ResultRows { buffer: buffer.0, width: self.cols(result) };
        self.out.buffers = self.slots.widths();
        schedule(&mut self.out.calls);
        Ok(self.out)
    }
}

/// The same rotation, whatever the number of heads.
fn alike(a: &RopeUse, b: &RopeUse) -> bool {
    let mut rope = b.rope.clone();
    rope.heads = a.rope.heads;
    a.rope == rope && a.divisors == b.divisors
}

/// What a call touches, for barriers.
#[derive(Clone, Copy, PartialEq)]
enum Touch {
    Rows(Buffer),
    Blocks(Blocks),
    Cache(Cache),
}

/// Leaves a barrier only before a call that meets what another since the last barrier has written or read.
fn schedule(calls: &mut [Scheduled]) {
    let (mut read, mut written): (Vec<Touch>, Vec<Touch>) = (Vec::new(), Vec::new());
    for (i, scheduled) in calls.iter_mut().enumerate() {
        let (reads, writes) = touches(&scheduled.call);
        let clash = reads.iter().any(|t| written.contains(t))
            || writes.iter().any(|t| written.contains(t) || read.contains(t));
        // What ran before this program is not known here, so its first call always waits.
        scheduled.barrier = clash || i == 0;
        if scheduled.barrier {
            (read, written) = (Vec::new(), Vec::new());
        }
        read.extend(reads);
        written.extend(writes);
    }
}

/// What a call reads and what it writes.
fn touches(call: &Call) -> (Vec<Touch>, Vec<Touch>) {
    let other = |b: &Other| match b {
        Other::Rows(b) => vec![Touch::Rows(*b)],
        Other::Row(_) => Vec::new(),
    };
    let rows = Touch::Rows;
    match call {
        Call::Gather { out, .. } => (vec![], vec![rows(*out)]),
        Call::RmsNorm { x, out, .. } | Call::Copy { x, out, .. } => (vec![rows(*x)], vec![rows(*out)]),
        Call::Quantize { x, out } => (vec![rows(*x)], vec![Touch::Blocks(*out)]),
        Call::Linear { x, out, .. } => (vec![rows(*x)], vec![rows(*out)]),
        Call::LinearBlocks { x, out, .. } => (vec![Touch::Blocks(*x)], vec![rows(*out)]),
        Call::Rope { x, .. } | Call::Silu { x, .. } | Call::Round { x, .. } => (vec![], vec![rows(*x)]),
        Call::Store { x, cache, .. } => (vec![rows(*x)], vec![Touch::Cache(*cache)]),
        Call::Attend { q, k, v, out, .. } => {
            (vec![rows(*q), Touch::Cache(*k), Touch::Cache(*v)], vec![rows(*out)])
        }
        Call::SiluMul { gate, up, .. } => (vec![rows(*up)], vec![rows(*gate)]),
        Call::Add { a, b, .. } | Call::Mul { a, b, .. } => (other(b), vec![rows(*a)]),
    }
}
