//! What calls touch, and so where threads must wait for each other.

use super::{Area, Blocks, Buffer, Call, EachOp, Form, MemoryOp, Other, Past, Rows8, Scheduled, Tensor};

/// What a call touches, for barriers.
#[derive(Clone, Copy, PartialEq)]
enum Touch {
    Rows(Buffer),
    Blocks(Blocks),
    Tensor(Tensor),
    /// The memory that all experts share.
    Experts,
    /// The memory for scores, and for parts of attention.
    Scores,
}

/// What a call reads and what it writes.
#[derive(Default)]
struct Touches {
    reads: Vec<Touch>,
    writes: Vec<Touch>,
    /// Whether all rows that it touches are the step's.
    step: bool,
}

/// Leaves a barrier only before a call that meets what another since the last barrier has written or read.
pub(super) fn schedule(calls: &mut [Scheduled]) {
    let (mut read, mut written): (Vec<Touch>, Vec<Touch>) = (Vec::new(), Vec::new());
    for (i, scheduled) in calls.iter_mut().enumerate() {
        let Touches { reads, writes, .. } = touches(&scheduled.call);
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

/// Whether any subset of rows can be run alone: no call meets a position, a token, a carried tensor, or rows that are
/// not the step's.
pub(super) fn row_wise(calls: &[Scheduled]) -> bool {
    calls.iter().all(|scheduled| {
        let alone = match &scheduled.call {
            Call::Gather { .. } | Call::Rope { .. } | Call::Move { .. } | Call::Constant { .. } => false,
            Call::Route { table, .. } => table.is_none(),
            _ => true,
        };
        let touches = touches(&scheduled.call);
        let mut all = touches.reads.iter().chain(&touches.writes);
        alone && touches.step && !all.any(|touch| matches!(touch, Touch::Tensor(_)))
    })
}

impl Touches {
    fn new() -> Touches {
        Touches { step: true, ..Touches::default() }
    }

    fn area(&mut self, area: &Area) -> Touch {
        self.step &= area.form == Form::STEP;
        Touch::Rows(area.buffer)
    }

    fn read(mut self, area: &Area) -> Touches {
        let touch = self.area(area);
        self.reads.push(touch);
        self
    }

    fn write(mut self, area: &Area) -> Touches {
        let touch = self.area(area);
        self.writes.push(touch);
        self
    }

    fn past(mut self, past: &Past) -> Touches {
        match past {
            Past::Kept(tensor) => self.reads.push(Touch::Tensor(*tensor)),
            Past::Joined { ring, new } => {
                self.reads.push(Touch::Tensor(*ring));
                return self.read(new);
            }
            Past::Window(area) => return self.read(area),
        }
        self
    }

    fn rows(mut self, rows: &Rows8) -> Touches {
        match rows {
            Rows8::Floats(area) => self.read(area),
            Rows8::Blocks(blocks) => {
                self.reads.push(Touch::Blocks(*blocks));
                self
            }
        }
    }

    fn tensor(mut self, tensor: Tensor, write: bool) -> Touches {
        if write { &mut self.writes } else { &mut self.reads }.push(Touch::Tensor(tensor));
        self
    }
}

fn touches(call: &Call) -> Touches {
    let t = Touches::new();
    match call {
        Call::Gather { out, .. } | Call::Constant { out, .. } => t.write(out),
        Call::RmsNorm { x, out, .. }
        | Call::L2Norm { x, out, .. }
        | Call::Copy { x, out }
        | Call::Move { x, out, .. }
        | Call::Slice { x, out, .. }
        | Call::Tile { x, out, .. }
        | Call::LogDecay { x, out, .. }
        | Call::Route { x, out, .. }
        | Call::StreamGates { x, out, .. } => t.read(x).write(out),
        Call::Quantize { x, out } => {
            let mut t = t.read(x);
            t.writes.push(Touch::Blocks(*out));
            t
        }
        Call::Linear { x, out, .. } => t.rows(x).write(out),
        Call::Rope { x, .. } => t.write(x),
        Call::Load { tensor, out, .. } => t.tensor(*tensor, false).write(out),
        Call::Store { x, tensor, .. } => t.read(x).tensor(*tensor, true),
        Call::Attend(call) => {
            let mut t = t.read(&call.q).past(&call.keys).write(&call.out);
            if let Some(values) = &call.values {
                t = t.past(values);
            }
            if let Some(compressed) = &call.compressed {
                t = compressed.chosen.iter().fold(t.past(&compressed.rows), |t, chosen| t.read(chosen));
            }
            t.writes.push(Touch::Scores);
            t
        }
        Call::LatentAttend { q, latent, rope, out, .. } => t.read(q).past(latent).past(rope).write(out),
        Call::Compress { values, gates, out, .. } => t.past(values).past(gates).write(out),
        Call::Choose { q, rows, w, out, .. } => {
            let mut t = t.read(q).past(rows).read(w).write(out);
            t.writes.push(Touch::Scores);
            t
        }
        Call::Each { x, op } => each(t, op).write(x),
        Call::Conv { x, out, .. } => t.past(x).write(out),
        Call::Update { tensor, op, out } => {
            let args: &[Area] = match &op.op {
                MemoryOp::GatedDelta { args, .. } => args,
                MemoryOp::DecayedLinear { args, .. } => args,
                MemoryOp::StateSpace { args, .. } => args,
            };
            args.iter().fold(t, Touches::read).tensor(*tensor, true).write(out)
        }
        Call::Experts(call) => {
            let mut t = t.rows(&call.x).read(&call.route).write(&call.out);
            t.writes.push(Touch::Experts);
            t
        }
        Call::StreamCollapse { x, gates, out, .. } => t.read(x).read(gates).write(out),
        Call::StreamExpand { x, y, gates, out, .. } => t.read(x).read(y).read(gates).write(out),
    }
}

fn each(t: Touches, op: &EachOp) -> Touches {
    match op {
        EachOp::SiluMul(area) | EachOp::UnaryMul(_, area) => t.read(area),
        EachOp::Add(other) | EachOp::Mul(other) => match other {
            Other::Rows(area) | Other::Parts(area) | Other::OneRow(area) => t.read(area),
            Other::Weight(_) => t,
        },
        EachOp::Silu | EachOp::Unary(_) | EachOp::Round(_) => t,
    }
}
