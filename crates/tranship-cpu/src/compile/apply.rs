//! What operations become: for each its call, and where its result goes.

use super::lower::{Lower, Place};
use super::{
    Area, AttendCall, BlockRows, Blocks, Call, CompressedRows, EachOp, ExpertsCall, Memory, MemoryOp, Other,
    RopeSlot, RopeUse, Rows8, WeightForm, WeightUse,
};
use crate::ops::experts::ExpertsSizes;
use tranship_backend::BackendError;
use tranship_dtype::DType;
use tranship_program::ops::{Attend, CompressedAttend, Experts, Linear, RmsNorm, Rope, Route, StreamGates};
use tranship_program::{Action, Dim, Op, ValueId};

type Done = Result<(), BackendError>;

impl Lower<'_> {
    pub(super) fn apply(&mut self, op: &Op, args: &[ValueId], out: ValueId) -> Done {
        match op {
            Op::Cast(to) => self.cast(args[0], *to, out),
            Op::Join => self.join(args, out),
            Op::Rope(rope) => self.rope(rope, args, out),
            Op::Silu => self.each(args[0], EachOp::Silu, out),
            Op::Unary(function) => self.each(args[0], EachOp::Unary(*function), out),
            Op::Add | Op::Mul => self.binary(*op == Op::Add, args, out),
            Op::Attend(op) => self.attend(op, args, out),
            Op::CompressedAttend(op) => self.compressed_attend(op, args, out),
            Op::Gather | Op::RmsNorm(_) | Op::L2Norm(_) | Op::Linear(_) | Op::Slice(_) | Op::Tile(_) => {
                self.row_wise(op, args, out)
            }
            _ => self.apply_more(op, args, out),
        }
    }

    /// Operations whose result is in a buffer of its own.
    fn row_wise(&mut self, op: &Op, args: &[ValueId], id: ValueId) -> Done {
        if let Op::Linear(op) = op {
            let out = self.fresh(id)?;
            self.linear(*op, args, out, false)?;
            self.place(id, out);
            return Ok(());
        }
        if let Op::Gather = op {
            let table = self.weight_slot(args[0], WeightForm::Stored)?;
            let out = self.fresh(id)?;
            self.call(Call::Gather { table, out });
            self.place(id, out);
            return Ok(());
        }
        let x = self.rows(args[0])?;
        let gain = match op {
            Op::RmsNorm(_) => args.get(1).map(|g| self.row_slot(*g)).transpose()?,
            _ => None,
        };
        let out = self.fresh(id)?;
        self.call(match op {
            Op::RmsNorm(RmsNorm { eps, heads, offset }) => Call::RmsNorm {
                x,
                gain,
                heads: *heads as usize,
                offset: *offset as f32,
                eps: *eps as f32,
                out,
            },
            Op::L2Norm(op) => Call::L2Norm { x, heads: op.heads as usize, eps: op.eps as f32, out },
            Op::Slice(op) => {
                let (heads, from, to) = (op.heads as usize, op.from as usize, op.to as usize);
                Call::Slice { x, heads, from, to, out }
            }
            Op::Tile(times) => Call::Tile { x, times: *times as usize, out },
            _ => return self.unsupported(id, op.name(), "there is no kernel for it"),
        });
        self.place(id, out);
        Ok(())
    }

    /// The operations of the modern families.
    fn apply_more(&mut self, op: &Op, args: &[ValueId], id: ValueId) -> Done {
        let call = match op {
            Op::LatentAttend(op) => {
                let (q, latent, rope) = (self.rows(args[0])?, self.past(args[1])?, self.past(args[2])?);
                let w = self.weight_slot(args[3], WeightForm::Stored)?;
                let (heads, key_dim) = (op.heads as usize, op.key_dim as usize);
                let (scale, out) = (op.scale as f32, self.fresh(id)?);
                // Under a policy that is all F32 a split changes no bit; elsewhere the cheaper form may be taken.
                let exact = args[..3].iter().all(|id| self.typed.dtype(*id) == DType::F32);
                Call::LatentAttend { q, latent, rope, w, heads, key_dim, scale, exact, out }
            }
            Op::Compress(op) => {
                let (values, gates) = (self.past(args[0])?, self.past(args[1])?);
                let bias = self.row_slot(args[2])?;
                let (rate, overlap, out) = (op.rate as usize, op.overlap, self.fresh(id)?);
                Call::Compress { values, gates, bias, rate, overlap, out }
            }
            Op::Choose(op) => {
                let (q, rows, w) = (self.rows(args[0])?, self.past(args[1])?, self.rows(args[2])?);
                let (heads, top_k, rate) = (op.heads as usize, op.top_k as usize, op.rate as usize);
                Call::Choose { q, rows, w, heads, top_k, rate, scale: op.scale as f32, out: self.fresh(id)? }
            }
            Op::Conv => {
                let (x, taps) = (self.past_in_f32(args[0])?, self.cols(args[1]));
                let w = self.row_slot(args[1])?;
                let bias = args.get(2).map(|b| self.row_slot(*b)).transpose()?;
                Call::Conv { x, taps, w, bias, out: self.fresh(id)? }
            }
            Op::LogDecay(form) => {
                let x = self.rows(args[0])?;
                let rate = self.weight_slot(args[1], WeightForm::Rates(*form, x.width))?;
                let bias = self.row_slot(args[2])?;
                Call::LogDecay { x, rate, bias, out: self.fresh(id)? }
            }
            Op::Route(route) => self.route(route, args, None, id)?,
            Op::RouteByTable(route) => {
                let table = self.weight_slot(args[2], WeightForm::Numbers(self.cols(id) as u64))?;
                self.route(route, &args[..2], Some(table), id)?
            }
            Op::Experts(op) => self.experts(op, args, id)?,
            Op::StreamGates(StreamGates { streams, iterations, eps }) => {
                let (x, base, scale) =
                    (self.rows(args[0])?, self.row_slot(args[1])?, self.row_slot(args[2])?);
                let (streams, iterations, eps) = (*streams as usize, *iterations as usize, *eps);
                Call::StreamGates { x, base, scale, streams, iterations, eps, out: self.fresh(id)? }
            }
            Op::StreamCollapse(streams) => {
                let (x, gates) = (self.rows(args[0])?, self.rows(args[1])?);
                Call::StreamCollapse { x, gates, streams: *streams as usize, out: self.fresh(id)? }
            }
            Op::StreamExpand(streams) => {
                let (x, y, gates) = (self.rows(args[0])?, self.rows(args[1])?, self.rows(args[2])?);
                Call::StreamExpand { x, y, gates, streams: *streams as usize, out: self.fresh(id)? }
            }
            _ => return self.unsupported(id, op.name(), "there is no kernel for it"),
        };
        let out = match &call {
            Call::LatentAttend { out, .. }
            | Call::Compress { out, .. }
            | Call::Choose { out, .. }
            | Call::Conv { out, .. }
            | Call::LogDecay { out, .. }
            | Call::Route { out, .. }
            | Call::StreamGates { out, .. }
            | Call::StreamCollapse { out, .. }
            | Call::StreamExpand { out, .. } => *out,
            Call::Experts(call) => call.out,
            _ => return self.unsupported(id, op.name(), "there is no kernel for it"),
        };
        self.call(call);
        self.place(id, out);
        Ok(())
    }

    /// An operation that advances a carried tensor.
    pub(super) fn update(&mut self, op: &Op, tensor: ValueId, args: &[ValueId], id: ValueId) -> Done {
        let Place::View(kept, _) = self.places[tensor.0] else {
            return self.unsupported(tensor, op.name(), "it advances a carried tensor, and this is none");
        };
        let axes = self.graph.value(tensor).shape.0.iter();
        let mut sizes = axes.map(|axis| if let Dim::Fixed(size) = axis.size { size as usize } else { 1 });
        let sizes = [0; 3].map(|_| sizes.next().unwrap_or(1));
        let memory = match op {
            Op::GatedDelta(op) => {
                let (q, k, v) = (self.rows(args[0])?, self.rows(args[1])?, self.rows(args[2])?);
                let rows = [q, k, v, self.rows(args[3])?, self.rows(args[4])?];
                let (key_heads, scale) = (op.key_heads as usize, op.scale as f32);
                MemoryOp::GatedDelta { key_heads, scale, args: rows }
            }
            Op::DecayedLinear(op) => {
                let decay = (0..op.heads).map(|head| op.decay(head) as f32).collect();
                let rows = [self.rows(args[0])?, self.rows(args[1])?, self.rows(args[2])?];
                MemoryOp::DecayedLinear { decay, args: rows }
            }
            Op::StateSpace(op) => {
                let [x, b, c, dt] = [args[0], args[1], args[2], args[3]];
                let rows = [self.rows(x)?, self.rows(b)?, self.rows(c)?, self.rows(dt)?];
                let rate = self.weight_slot(args[4], WeightForm::Rates(op.form, sizes[0]))?;
                let skip = self.row_slot(args[5])?;
                MemoryOp::StateSpace { groups: op.groups as usize, args: rows, rate, skip }
            }
            _ => return self.unsupported(id, op.name(), "there is no kernel for it"),
        };
        let out = self.fresh(id)?;
        self.call(Call::Update { tensor: kept, op: Box::new(Memory { sizes, op: memory }), out });
        self.place(id, out);
        Ok(())
    }

    fn each(&mut self, x: ValueId, op: EachOp, out: ValueId) -> Done {
        let x = self.in_place(x)?;
        self.call(Call::Each { x, op });
        self.place(out, x);
        Ok(())
    }

    fn binary(&mut self, sum: bool, args: &[ValueId], out: ValueId) -> Done {
        let (a, b) = (&self.graph.value(args[0]).shape, &self.graph.value(args[1]).shape);
        let one_row = b.0.len() == 1 && a.0.len() > 1;
        let parts = !one_row && a.cols() != b.cols();
        let (target, other) = match self.places[args[1].0] {
            Place::Weight(_) if !parts => (self.in_place(args[0])?, Other::Weight(self.row_slot(args[1])?)),
            _ => {
                let mut b = self.rows(args[1])?;
                let target = self.in_place_beside(args[0], b)?;
                if one_row {
                    (b.width, b.form.fixed) = (b.width * b.form.fixed, 1);
                }
                let other = match (one_row, parts) {
                    (true, _) => Other::OneRow(b),
                    (_, true) => Other::Parts(b),
                    _ => Other::Rows(b),
                };
                (target, other)
            }
        };
        let op = if sum { EachOp::Add(other) } else { EachOp::Mul(other) };
        self.call(Call::Each { x: target, op });
        self.place(out, target);
        Ok(())
    }

    fn rope(&mut self, op: &Rope, args: &[ValueId], out: ValueId) -> Done {
        let x = self.in_place(args[0])?;
        let divisors = args.get(2).map(|a| self.row_slot(*a)).transpose()?;
        let usage = RopeUse { rope: op.clone(), divisors };
        let known = self.out.ropes.iter().position(|r| alike(r, &usage));
        let table = RopeSlot(known.unwrap_or(self.out.ropes.len()));
        if known.is_none() {
            self.out.ropes.push(usage);
        }
        let (heads, skip) = (op.heads as usize, op.skip as usize);
        self.call(Call::Rope { x, table, heads, style: op.style, skip });
        self.place(out, x);
        Ok(())
    }

    fn attend(&mut self, op: &Attend, args: &[ValueId], id: ValueId) -> Done {
        let q = self.rows(args[0])?;
        let (keys, values) = (self.past(args[1])?, self.past(args[2])?);
        let sinks = args.get(3).map(|a| self.row_slot(*a)).transpose()?;
        let out = self.fresh(id)?;
        self.call(Call::Attend(Box::new(AttendCall {
            q,
            keys,
            values: Some(values),
            heads: op.heads as usize,
            kv_heads: op.kv_heads as usize,
            scale: op.scale as f32,
            window: op.window.map(|w| w as usize),
            softcap: op.softcap.map(|c| c as f32),
            sinks,
            compressed: None,
            out,
        })));
        self.place(id, out);
        Ok(())
    }

    fn compressed_attend(&mut self, op: &CompressedAttend, args: &[ValueId], id: ValueId) -> Done {
        let q = self.rows(args[0])?;
        let (keys, rows) = (self.past(args[1])?, self.past(args[2])?);
        let sinks = Some(self.row_slot(args[3])?);
        let chosen = args.get(4).map(|a| self.rows(*a)).transpose()?;
        let out = self.fresh(id)?;
        self.call(Call::Attend(Box::new(AttendCall {
            q,
            keys,
            values: None,
            heads: op.heads as usize,
            kv_heads: 1,
            scale: op.scale as f32,
            window: Some(op.window as usize),
            softcap: None,
            sinks,
            compressed: Some(CompressedRows { rows, rate: op.rate as usize, chosen }),
            out,
        })));
        self.place(id, out);
        Ok(())
    }

    fn route(
        &mut self,
        route: &Route,
        args: &[ValueId],
        table: Option<super::WeightSlot>,
        id: ValueId,
    ) -> Result<Call, BackendError> {
        let x = self.rows(args[0])?;
        let w = self.weight_slot(args[1], WeightForm::Stored)?;
        let bias = args.get(2).map(|b| self.row_slot(*b)).transpose()?;
        Ok(Call::Route { x, w, bias, table, route: Box::new(route.clone()), out: self.fresh(id)? })
    }

    fn experts(&mut self, op: &Experts, args: &[ValueId], id: ValueId) -> Result<Call, BackendError> {
        let x = self.multiplied(args[0], 1)?;
        let route = self.rows(args[1])?;
        let ups = 2 + usize::from(op.gated);
        let gate = op.gated.then(|| self.weight_slot(args[2], WeightForm::Stored)).transpose()?;
        let (up, down) = (
            self.weight_slot(args[ups], WeightForm::Stored)?,
            self.weight_slot(args[ups + 1], WeightForm::Stored)?,
        );
        let biases = match args {
            [.., a, b, c] if op.biased => Some([self.row_slot(*a)?, self.row_slot(*b)?, self.row_slot(*c)?]),
            _ => None,
        };
        let out = self.fresh(id)?;
        let input = self.cols(args[0]);
        let sizes = ExpertsSizes {
            experts: route.width,
            top_k: op.top_k as usize,
            input,
            width: self.cols(args[ups]) / input,
            outs: out.width,
            blocks: matches!(x, Rows8::Blocks(_)),
        };
        if !self.out.experts.contains(&sizes) {
            self.out.experts.push(sizes);
        }
        let op = op.clone();
        Ok(Call::Experts(Box::new(ExpertsCall { op, x, route, gate, up, down, biases, out })))
    }

    pub(super) fn linear(&mut self, op: Linear, args: &[ValueId], out: Area, add: bool) -> Done {
        let groups = op.groups as usize;
        let w = self.weight_slot(args[1], WeightForm::Stored)?;
        let bias = args.get(2).map(|b| self.row_slot(*b)).transpose()?;
        let x = self.multiplied(args[0], groups)?;
        self.call(Call::Linear { x, w, groups, bias, add, out });
        Ok(())
    }

    /// Rows that meet a matrix in `groups` groups: as blocks where the program has them so.
    fn multiplied(&mut self, id: ValueId, groups: usize) -> Result<Rows8, BackendError> {
        let known = self.blocks.iter().find(|(value, times, _)| *value == id && *times == groups);
        match known {
            Some((_, _, blocks)) => Ok(Rows8::Blocks(*blocks)),
            None => Ok(Rows8::Floats(self.rows(id)?)),
        }
    }

    /// A cast of a weight is done when it is bound; one of rows rounds a copy, or makes 8-bit blocks.
    fn cast(&mut self, x: ValueId, to: DType, out: ValueId) -> Done {
        if let Place::Weight(slot) = self.places[x.0] {
            let WeightUse { value, mut casts, .. } = self.out.weights[slot.0].clone();
            casts.push(to);
            self.places[out.0] = self.weight(value, casts);
            return Ok(());
        }
        if to == DType::Q8_1 {
            return self.quantize(x, out);
        }
        if !matches!(to, DType::F16 | DType::BF16 | DType::F32) {
            return self.unsupported(x, "cast", &format!("no kernel rounds to {to}"));
        }
        let target = self.in_place(x)?;
        if self.only_stored(out) {
            // Storing rounds to the tensor's type; there is no need to round twice.
            self.places[out.0] = Place::Rows(target.buffer);
        } else {
            self.place(out, target);
        }
        Ok(())
    }

    /// 8-bit blocks for each number of groups that they are multiplied in: what are blocks of a group's row is not of
    /// the whole row's.
    fn quantize(&mut self, x: ValueId, out: ValueId) -> Done {
        let area = self.rows(x)?;
        let mut groups: Vec<usize> = Vec::new();
        for node in &self.graph.nodes {
            let Action::Apply { op, args, .. } = &node.action else { continue };
            let times = match op {
                Op::Linear(op) => op.groups as usize,
                _ => 1,
            };
            if args.first() == Some(&out) && !groups.contains(&times) {
                groups.push(times);
            }
        }
        for times in groups {
            let rows = BlockRows { width: area.width / times, times, form: area.form };
            // One buffer for each form is enough while nothing else is cast before its last use.
            let free = |at: &usize| !self.blocks.iter().any(|(.., blocks)| blocks.0 == *at);
            let known = (0..self.out.blocks.len()).find(|at| self.out.blocks[*at] == rows && free(at));
            let slot = Blocks(known.unwrap_or(self.out.blocks.len()));
            if known.is_none() {
                self.out.blocks.push(rows);
            }
            self.call(Call::Quantize { x: area, out: slot });
            self.blocks.push((out, times, slot));
        }
        self.places[out.0] = Place::Blocks;
        Ok(())
    }

    /// Whether a value is read by writes into carried tensors alone.
    fn only_stored(&self, id: ValueId) -> bool {
        let stored = |action: &Action| match action {
            Action::Write { tensor, .. } => matches!(self.places[tensor.0], Place::View(..)),
            _ => false,
        };
        let mut reads = self.graph.nodes.iter().filter(|n| n.action.inputs().contains(&id));
        id != self.graph.result && reads.all(|n| stored(&n.action))
    }
}

/// The same angles, whatever the number of heads and the place in them.
fn alike(a: &RopeUse, b: &RopeUse) -> bool {
    let mut rope = b.rope.clone();
    (rope.heads, rope.skip) = (a.rope.heads, a.rope.skip);
    a.rope == rope && a.divisors == b.divisors
}
