//! One part of a chain on one thread: the flat list, call by call.

mod segments;

use crate::arch::Isa;
use crate::compile::bind::{Held, Part};
use crate::compile::{Area, Blocks, Buffer, Call, EachOp, ExpertsCall, Form, Other, Rows8, WeightSlot};
use crate::ops::columns::{Slice, Tile};
use crate::ops::elementwise::{Each, Elementwise};
use crate::ops::experts::{Bank, Biases, Experts, ExpertsRoom, X};
use crate::ops::linear_f32::{self, LinearF32};
use crate::ops::linear_quant::{self, LinearQuant};
use crate::ops::memory::LogDecay;
use crate::ops::quantize::{Quantize, QuantizedOut, QuantizedRows};
use crate::ops::rms_norm::{L2Norm, RmsNorm};
use crate::ops::rope::Rope;
use crate::ops::route::{Route, Table};
use crate::ops::rows::Gather;
use crate::ops::streams::{StreamCollapse, StreamExpand, StreamGates};
use crate::ops::{Epilogue, Out, Weights};
use crate::pool::Share;
use std::ops::Range;
use tranship_dtype::DType;

/// Buffers of 8-bit blocks that a step may have: one or two for each width that is multiplied.
pub(crate) const MAX_BLOCKS: usize = 32;

/// Rows of one segment within the rows that are run together.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Its first row among all.
    pub first: usize,
    /// Its rows.
    pub rows: usize,
    /// The absolute position of its first row.
    pub position: usize,
}

/// A carried tensor of one segment: where its rows start.
#[derive(Clone, Copy)]
pub(crate) struct TensorPtr(pub *mut u8);

/// What each of the state's tensors is.
#[derive(Clone, Copy)]
pub(crate) struct TensorForm {
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
}

/// Everything that threads need to run parts; made for each piece of work.
pub(crate) struct Work<'a> {
    pub isa: Isa,
    pub rows: usize,
    pub tokens: &'a [u32],
    /// The start of each buffer.
    pub buffers: &'a [BufferPtr],
    /// A buffer that is elsewhere in this piece of work, where the result is wanted.
    pub redirect: Option<(Buffer, BufferPtr)>,
    pub blocks: *const QuantizedRows,
    pub blocks_out: [Option<QuantizedOut<'a>>; MAX_BLOCKS],
    /// Cosines and sines of the rows' positions, for each rotary embedding.
    pub angles: &'a [Angles],
    pub places: &'a [Place],
    /// Each segment's carried tensors, one segment after the other.
    pub tensors: &'a [TensorPtr],
    pub forms: &'a [TensorForm],
    pub experts: ExpertsRoom<'a>,
    /// Scores of compressed rows for one row, or what threads have of one row's attention.
    pub scores: Out<'a>,
}

/// The start of a buffer, and the floats that it has.
#[derive(Clone, Copy)]
pub(crate) struct BufferPtr {
    pub start: *mut f32,
    pub floats: usize,
}

/// Cosines and sines, `[rows, pairs]`.
#[derive(Default)]
pub(crate) struct Angles {
    pub pairs: usize,
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
}

// SAFETY: the pointers are to buffers and carried tensors that the caller of the pool holds exclusively while the work
// runs. Threads write them through `Out` alone, each its own share, and read what others wrote only after a barrier
// that the schedule places between.
unsafe impl Sync for Work<'_> {}

impl Work<'_> {
    /// Runs a part: this thread's share of each call.
    pub(crate) fn part(&self, part: &Part, share: Share<'_>) {
        for scheduled in &part.lowered.calls {
            if scheduled.barrier {
                share.barrier();
            }
            self.call(part, &scheduled.call, share);
        }
        let result = part.lowered.result;
        if result.buffer != 0 && self.redirect.is_none_or(|(b, _)| b.0 != result.buffer) {
            share.barrier();
            let area = |buffer| Area { buffer: Buffer(buffer), width: result.width, form: Form::STEP };
            self.copy(&area(result.buffer), &area(0), share);
        }
    }

    fn call(&self, part: &Part, call: &Call, share: Share<'_>) {
        let isa = self.isa;
        match call {
            Call::Gather { table, out } => {
                Gather { table: matrix(part, *table), ids: self.tokens, y: self.out(out) }.part(share);
            }
            Call::Quantize { x, out } => {
                let index = part.blocks[out.0];
                if let Some(out) = self.blocks_out[index] {
                    Quantize { x: self.read(x), out }.part(isa, share);
                }
            }
            Call::Linear { .. } => self.linear(part, call, share),
            Call::Rope { x, table, heads, style, skip } => {
                let Angles { pairs, cos, sin } = &self.angles[part.ropes[table.0]];
                let (y, width, pairs) = (self.out(x), x.width, *pairs);
                let (heads, style, skip) = (*heads, *style, *skip);
                Rope { x: y, width, heads, style, cos, sin, pairs, skip, inverse: false }.part(isa, share);
            }
            Call::Each { x, op } => self.each(part, x, op, share),
            Call::Copy { x, out } => self.copy(x, out, share),
            Call::Route { x, w, bias, table, route, out } => {
                let table = table.map(|slot| Table { experts: row(part, slot), tokens: self.tokens });
                let (x, w, y) = (self.read(x), matrix(part, *w), self.out(out));
                Route { x, w, bias: bias.map(|slot| row(part, slot)), route, table, y }.part(isa, share);
            }
            Call::Experts(call) => self.experts(part, call, share),
            Call::RmsNorm { .. }
            | Call::L2Norm { .. }
            | Call::Slice { .. }
            | Call::Tile { .. }
            | Call::LogDecay { .. }
            | Call::StreamGates { .. }
            | Call::StreamCollapse { .. }
            | Call::StreamExpand { .. } => self.row_wise(part, call, share),
            _ => self.of_segments(part, call, share),
        }
    }

    /// Calls that treat each row alone.
    fn row_wise(&self, part: &Part, call: &Call, share: Share<'_>) {
        let isa = self.isa;
        match call {
            Call::RmsNorm { x, gain, heads, offset, eps, out } => {
                let gain = gain.map(|slot| row(part, slot));
                let (heads, offset, eps, width) = (*heads, *offset, *eps, x.width);
                RmsNorm { x: self.read(x), width, heads, gain, offset, eps, y: self.out(out) }
                    .part(isa, share);
            }
            Call::L2Norm { x, heads, eps, out } => {
                let (heads, eps, width) = (*heads, *eps, x.width);
                L2Norm { x: self.read(x), width, heads, eps, y: self.out(out) }.part(isa, share);
            }
            Call::Slice { x, heads, from, to, out } => {
                let (heads, from, to, width) = (*heads, *from, *to, x.width);
                Slice { x: self.read(x), width, heads, from, to, y: self.out(out) }.part(share);
            }
            Call::Tile { x, times, out } => {
                Tile { x: self.read(x), width: x.width, times: *times, y: self.out(out) }.part(share);
            }
            Call::LogDecay { x, rate, bias, out } => {
                let (rate, bias) = (row(part, *rate), row(part, *bias));
                LogDecay { x: self.read(x), rate, bias, y: self.out(out) }.part(isa, share);
            }
            Call::StreamGates { x, base, scale, streams, iterations, eps, out } => {
                let (base, scale) = (row(part, *base), row(part, *scale));
                let (streams, iterations, eps) = (*streams, *iterations, *eps);
                StreamGates { h: self.read(x), base, scale, streams, iterations, eps, y: self.out(out) }
                    .part(share);
            }
            Call::StreamCollapse { x, gates, streams, out } => {
                let (gate_cols, streams, y) = (gates.width, *streams, self.out(out));
                StreamCollapse { x: self.read(x), gates: self.read(gates), gate_cols, streams, y }
                    .part(isa, share);
            }
            Call::StreamExpand { x, y, gates, streams, out } => {
                let (x, y, gates) = (self.read(x), self.read(y), self.read(gates));
                StreamExpand { x, y, gates, streams: *streams, out: self.out(out) }.part(isa, share);
            }
            _ => {}
        }
    }

    fn linear(&self, part: &Part, call: &Call, share: Share<'_>) {
        let Call::Linear { x, w, groups, bias, add, out } = call else { return };
        let (isa, w, y) = (self.isa, matrix(part, *w), self.out(out));
        let epilogue = Epilogue { bias: bias.map(|slot| row(part, slot)), add: *add };
        match (x, *groups) {
            (Rows8::Floats(x), 1) => LinearF32::new(self.read(x), w, epilogue, y).part(isa, share),
            (Rows8::Floats(x), groups) => {
                linear_f32::Grouped { x: self.read(x), w, groups, epilogue, y }.part(isa, share)
            }
            (Rows8::Blocks(x), 1) => {
                LinearQuant::new(self.quantized(part, *x), w, epilogue, y).part(isa, share)
            }
            (Rows8::Blocks(x), groups) => {
                linear_quant::Grouped { x: self.quantized(part, *x), w, groups, epilogue, y }.part(isa, share)
            }
        }
    }

    fn quantized(&self, part: &Part, blocks: Blocks) -> &QuantizedRows {
        // SAFETY: the index is one of the step's buffers; no thread holds it mutably, see `Work`.
        unsafe { &*self.blocks.add(part.blocks[blocks.0]) }
    }

    fn experts(&self, part: &Part, call: &ExpertsCall, share: Share<'_>) {
        let held = |slot: WeightSlot| &part.weights[slot.0];
        let bank = Matrices { gate: call.gate.map(held), up: held(call.up), down: held(call.down) };
        let biases = call.biases.map(|slots| {
            let [gate, up, down] = slots.map(|slot| row(part, slot));
            Biases { gate, up, down }
        });
        let x = match &call.x {
            Rows8::Floats(x) => X::Floats(self.read(x)),
            Rows8::Blocks(x) => X::Blocks(self.quantized(part, *x)),
        };
        let (r, experts, op, room) = (self.read(&call.route), call.route.width, &call.op, self.experts);
        Experts { x, r, experts, op, bank: &bank, biases, room, y: self.out(&call.out) }
            .part(self.isa, share);
    }

    fn each(&self, part: &Part, x: &Area, op: &EachOp, share: Share<'_>) {
        let y = self.out(x);
        let each = match op {
            EachOp::Silu => Each::Silu,
            EachOp::Unary(function) => Each::Unary(*function),
            EachOp::SiluMul(other) => Each::SiluMul(self.read(other)),
            EachOp::UnaryMul(function, other) => Each::UnaryMul(*function, self.read(other)),
            EachOp::Round(dtype) => Each::Round(*dtype),
            EachOp::Add(other) | EachOp::Mul(other) => {
                let sum = matches!(op, EachOp::Add(_));
                let rows = |other| if sum { Each::Add(other) } else { Each::Mul(other) };
                match other {
                    Other::Rows(other) => rows(self.read(other)),
                    Other::Weight(slot) => rows(row(part, *slot)),
                    Other::Parts(other) => {
                        let (len, other) = (x.width / other.width, self.read(other));
                        if sum { Each::AddParts { other, len } } else { Each::MulParts { other, len } }
                    }
                    Other::OneRow(other) => {
                        for segment in 0..self.places.len() {
                            let (x, other) = (self.part_of(x, segment), self.segment(other, segment));
                            Elementwise { x, each: rows(other) }.part(self.isa, share);
                        }
                        return;
                    }
                }
            }
        };
        Elementwise { x: y, each }.part(self.isa, share);
    }

    fn copy(&self, x: &Area, out: &Area, share: Share<'_>) {
        Elementwise { x: self.out(out), each: Each::Copy(self.read(x)) }.part(self.isa, share);
    }

    /// How many rows there are of a form.
    fn count(&self, form: Form) -> usize {
        form.fixed * self.places.len() + if form.step { self.rows } else { 0 }
    }

    /// The elements of an area that are a segment's.
    fn range(&self, area: &Area, segment: usize) -> Range<usize> {
        let place = self.places[segment];
        let (before, own) = if area.form.step { (place.first, place.rows) } else { (0, 0) };
        let first = area.form.fixed * segment + before;
        first * area.width..(first + area.form.fixed + own) * area.width
    }

    fn buffer(&self, area: &Area) -> (*mut f32, usize) {
        let BufferPtr { start, floats } = match self.redirect {
            Some((redirected, elsewhere)) if redirected == area.buffer => elsewhere,
            _ => self.buffers[area.buffer.0],
        };
        let len = self.count(area.form) * area.width;
        assert!(len <= floats, "{len} values in a buffer of {floats}");
        (start, len)
    }

    /// A buffer's rows, to read.
    fn read(&self, area: &Area) -> &[f32] {
        let (start, len) = self.buffer(area);
        // SAFETY: within the buffer by the check; a barrier lies between its being written and this, see `Work`.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// A buffer's rows, to write.
    fn out(&self, area: &Area) -> Out<'_> {
        let (start, len) = self.buffer(area);
        // SAFETY: within the buffer by the check; see `Work`.
        unsafe { Out::from_raw(start, len) }
    }

    /// A segment's rows, to read.
    fn segment(&self, area: &Area, segment: usize) -> &[f32] {
        &self.read(area)[self.range(area, segment)]
    }

    /// A segment's rows, to write.
    fn part_of(&self, area: &Area, segment: usize) -> Out<'_> {
        let (all, range) = (self.out(area), self.range(area, segment));
        assert!(range.end <= all.len(), "{range:?} of {} values", all.len());
        // SAFETY: within the buffer by the check; see `Work`.
        unsafe { Out::from_raw(all.ptr().add(range.start), range.len()) }
    }
}

/// The matrices of a layer's experts.
struct Matrices<'a> {
    gate: Option<&'a Held>,
    up: &'a Held,
    down: &'a Held,
}

impl Bank for Matrices<'_> {
    fn gate(&self, expert: usize) -> Option<Weights<'_>> {
        self.gate.map(|gate| one(gate, expert))
    }

    fn up(&self, expert: usize) -> Weights<'_> {
        one(self.up, expert)
    }

    fn down(&self, expert: usize) -> Weights<'_> {
        one(self.down, expert)
    }
}

fn one(bank: &Held, expert: usize) -> Weights<'_> {
    bank.expert(expert).expect("the verifier holds banks to the number of experts")
}

fn matrix(part: &Part, slot: WeightSlot) -> Weights<'_> {
    match &part.weights[slot.0] {
        Held::Matrix { dtype, data, outs, width } => Weights::new(*dtype, data.bytes(), *outs, *width),
        Held::Row(_) | Held::Bank { .. } => {
            panic!("a row of F32 or a bank is no matrix: the lowering gives each use a slot of its own")
        }
    }
}

fn row(part: &Part, slot: WeightSlot) -> &[f32] {
    match &part.weights[slot.0] {
        Held::Row(row) => row,
        Held::Matrix { .. } | Held::Bank { .. } => {
            panic!("a matrix is no row of F32: the lowering gives each use a slot of its own")
        }
    }
}
