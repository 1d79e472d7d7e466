//! One part of a chain on one thread: the flat list, call by call.

use crate::arch::Isa;
use crate::compile::bind::{Held, Part};
use crate::compile::{Buffer, Cache, Call, Other, WeightSlot};
use crate::ops::attend::Attend;
use crate::ops::elementwise::{Each, Elementwise};
use crate::ops::linear_f32::LinearF32;
use crate::ops::linear_quant::LinearQuant;
use crate::ops::quantize::{Quantize, QuantizedOut, QuantizedRows};
use crate::ops::rms_norm::RmsNorm;
use crate::ops::rope::Rope;
use crate::ops::rows::{Gather, Store};
use crate::ops::{Epilogue, Out, Weights};
use crate::pool::Share;
use tranship_dtype::DType;

/// Buffers of 8-bit blocks that a step may have: one or two for each width that is multiplied.
pub(crate) const MAX_BLOCKS: usize = 16;

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

/// A cache of one segment: where its rows start.
#[derive(Clone, Copy)]
pub(crate) struct CachePtr(pub *mut u8);

/// What each of the state's caches is.
#[derive(Clone, Copy)]
pub(crate) struct CacheForm {
    pub dtype: DType,
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
    /// Each segment's caches, one segment after the other.
    pub caches: &'a [CachePtr],
    pub forms: &'a [CacheForm],
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

// SAFETY: the pointers are to buffers and caches that the caller of the pool holds exclusively while the work runs.
// Threads write them through `Out` alone, each its own share, and read what others wrote only after a barrier that
// the schedule places between.
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
            self.each(
                Buffer(0),
                result.width,
                Each::Copy(self.read(Buffer(result.buffer), result.width)),
                share,
            );
        }
    }

    fn call(&self, part: &Part, call: &Call, share: Share<'_>) {
        let isa = self.isa;
        match *call {
            Call::Gather { table, out } => {
                let table = matrix(part, table);
                Gather { table, ids: self.tokens, y: self.out(out, table.width()) }.part(share);
            }
            Call::RmsNorm { x, gain, eps, out } => {
                let gain = row(part, gain);
                let (x, y) = (self.read(x, gain.len()), self.out(out, gain.len()));
                RmsNorm { x, gain, eps: eps as f32, y }.part(isa, share);
            }
            Call::Quantize { x, out } => {
                let index = part.blocks[out.0];
                let width = part.lowered.blocks[out.0];
                if let Some(out) = self.blocks_out[index] {
                    Quantize { x: self.read(x, width), out }.part(isa, share);
                }
            }
            Call::Linear { x, w, bias, add, out } => {
                let w = matrix(part, w);
                let (x, y) = (self.read(x, w.width()), self.out(out, w.outs()));
                LinearF32::new(x, w, epilogue(part, bias, add), y).part(isa, share);
            }
            Call::LinearBlocks { x, w, bias, add, out } => {
                let w = matrix(part, w);
                // SAFETY: the index is one of the step's buffers; no thread holds it mutably, see `Work`.
                let x = unsafe { &*self.blocks.add(part.blocks[x.0]) };
                LinearQuant::new(x, w, epilogue(part, bias, add), self.out(out, w.outs())).part(isa, share);
            }
            Call::Rope { x, width, table, heads, style } => {
                let Angles { pairs, cos, sin } = &self.angles[part.ropes[table.0]];
                Rope { x: self.out(x, width), width, heads, style, cos, sin, pairs: *pairs }.part(isa, share);
            }
            Call::Store { x, width, cache } => self.store(part, self.read(x, width), width, cache, share),
            Call::Attend { .. } => self.attend(part, call, share),
            Call::SiluMul { gate, up, width } => {
                self.each(gate, width, Each::SiluMul(self.read(up, width)), share)
            }
            Call::Silu { x, width } => self.each(x, width, Each::Silu, share),
            Call::Add { a, b, width } => self.each(a, width, Each::Add(self.other(part, b, width)), share),
            Call::Mul { a, b, width } => self.each(a, width, Each::Mul(self.other(part, b, width)), share),
            Call::Round { x, width, dtype } => self.each(x, width, Each::Round(dtype), share),
            Call::Copy { x, out, width } => self.each(out, width, Each::Copy(self.read(x, width)), share),
        }
    }

    fn each(&self, x: Buffer, width: usize, each: Each<'_>, share: Share<'_>) {
        Elementwise { x: self.out(x, width), each }.part(self.isa, share);
    }

    fn store(&self, part: &Part, x: &[f32], width: usize, cache: Cache, share: Share<'_>) {
        let index = part.first_cache + cache.0;
        let form = self.forms[index];
        let row_bytes = width * form.dtype.block_bytes();
        for (i, place) in self.places.iter().enumerate() {
            let start = self.caches[i * self.forms.len() + index].0;
            // SAFETY: the batch was held to the context, so these rows are within the segment's cache; see `Work`.
            let cache =
                unsafe { Out::from_raw(start.add(place.position * row_bytes), place.rows * row_bytes) };
            let x = &x[place.first * width..(place.first + place.rows) * width];
            Store { x, width, dtype: form.dtype, cache }.part(self.isa, share);
        }
    }

    fn attend(&self, part: &Part, call: &Call, share: Share<'_>) {
        let Call::Attend { q, width, k, v, heads, kv_heads, scale, out } = *call else { return };
        let (k, v) = (part.first_cache + k.0, part.first_cache + v.0);
        let CacheForm { dtype, cols } = self.forms[k];
        let row_bytes = cols * dtype.block_bytes();
        let (q, y) = (self.read(q, width), self.out(out, width));
        let mut unit = 0;
        for (i, place) in self.places.iter().enumerate() {
            let bytes = (place.position + place.rows) * row_bytes;
            let caches = &self.caches[i * self.forms.len()..];
            let rows = place.first * width..(place.first + place.rows) * width;
            // SAFETY: rows up to the last of this step are within the segment's caches, and a barrier lies between
            // their being stored and this; the result's rows are those of this segment, within the buffer.
            let op = unsafe {
                Attend {
                    q: &q[rows.clone()],
                    position: place.position,
                    k: std::slice::from_raw_parts(caches[k].0, bytes),
                    v: std::slice::from_raw_parts(caches[v].0, bytes),
                    dtype,
                    heads,
                    kv_heads,
                    dim: width / heads,
                    scale,
                    y: Out::from_raw(y.ptr().add(rows.start), rows.len()),
                }
            };
            op.part(self.isa, share, unit);
            unit += op.units();
        }
    }

    fn buffer(&self, buffer: Buffer, width: usize) -> (*mut f32, usize) {
        let BufferPtr { start, floats } = match self.redirect {
            Some((redirected, elsewhere)) if redirected == buffer => elsewhere,
            _ => self.buffers[buffer.0],
        };
        let len = self.rows * width;
        assert!(len <= floats, "{len} values in a buffer of {floats}");
        (start, len)
    }

    /// A buffer's rows, to read.
    fn read(&self, buffer: Buffer, width: usize) -> &[f32] {
        let (start, len) = self.buffer(buffer, width);
        // SAFETY: within the buffer by the check; a barrier lies between its being written and this, see `Work`.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// A buffer's rows, to write.
    fn out(&self, buffer: Buffer, width: usize) -> Out<'_> {
        let (start, len) = self.buffer(buffer, width);
        // SAFETY: within the buffer by the check; see `Work`.
        unsafe { Out::from_raw(start, len) }
    }

    fn other<'s>(&'s self, part: &'s Part, other: Other, width: usize) -> &'s [f32] {
        match other {
            Other::Rows(buffer) => self.read(buffer, width),
            Other::Row(slot) => row(part, slot),
        }
    }
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

fn epilogue(part: &Part, bias: Option<WeightSlot>, add: bool) -> Epilogue<'_> {
    Epilogue { bias: bias.map(|slot| row(part, slot)), add }
}
