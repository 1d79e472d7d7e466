//! Calls that meet positions and carried tensors: segment by segment, their units dealt over all threads in turn.

use super::{TensorForm, Work, matrix, row};
use crate::compile::bind::Part;
use crate::compile::{Area, AttendCall, Call, First, Form, Memory, MemoryOp, Past, Tensor};
use crate::ops::Out;
use crate::ops::attend::{Attend, Compressed};
use crate::ops::attend_row::AttendRow;
use crate::ops::compressed::{Choose, Compress};
use crate::ops::conv::Conv;
use crate::ops::elementwise::{Each, Elementwise};
use crate::ops::latent_attend::LatentAttend;
use crate::ops::memory::{DecayedLinear, GatedDelta, StateSpace};
use crate::ops::rows::{self, Load, Slots, Store, Window};
use crate::pool::Share;
use tranship_dtype::DType;
use tranship_program::Rows;

impl Work<'_> {
    pub(super) fn of_segments(&self, part: &Part, call: &Call, share: Share<'_>) {
        let mut unit = 0;
        for segment in 0..self.places.len() {
            match call {
                Call::Load { .. } | Call::Store { .. } | Call::Move { .. } | Call::Constant { .. } => {
                    self.moved(part, call, segment, share);
                }
                Call::Attend(call) => unit += self.attend(part, call, segment, share, unit),
                Call::Update { tensor, op, out } => {
                    unit += self.update(part, (*tensor, op, out), segment, share, unit);
                }
                _ => unit += self.past_call(part, call, segment, share, unit),
            }
        }
    }

    /// Rows between buffers, weights and carried tensors.
    fn moved(&self, part: &Part, call: &Call, segment: usize, share: Share<'_>) {
        let position = self.places[segment].position;
        match call {
            Call::Load { tensor, first, rows, out, out_first } => {
                let first = match first {
                    First::Zero => 0,
                    First::Position => position as isize,
                    First::Before(before) => position as isize - *before as isize,
                };
                let y = self.rows_of(out, segment, *out_first, *rows);
                Load { past: self.kept(part, *tensor, segment, None), first, y }.part(self.isa, share);
            }
            Call::Store { x, tensor, rows } => {
                let slots = match rows {
                    Rows::Last(_) => Slots::Ring(position),
                    Rows::NewPer(rate) => Slots::Per(position, *rate as usize),
                    Rows::New => Slots::From(position),
                    _ => Slots::From(0),
                };
                let (form, kept) = self.tensor(part, *tensor, segment);
                let x_rows = self.segment(x, segment);
                Store { x: x_rows, width: x.width, dtype: form.dtype, slots, kept }.part(self.isa, share);
            }
            Call::Move { x, first, rows, out, out_first } => {
                let y = self.rows_of(out, segment, *out_first, *rows);
                let first = if *first == First::Position { position * x.width } else { 0 };
                let from = &self.segment(x, segment)[first..first + y.len()];
                Elementwise { x: y, each: Each::Copy(from) }.part(self.isa, share);
            }
            Call::Constant { w, out } => {
                let y = self.part_of(out, segment);
                Elementwise { x: y, each: Each::Copy(row(part, *w)) }.part(self.isa, share);
            }
            _ => {}
        }
    }

    /// The calls of one segment that read the past; gives how many units they had.
    fn past_call(&self, part: &Part, call: &Call, segment: usize, share: Share<'_>, unit: usize) -> usize {
        let (isa, position) = (self.isa, self.places[segment].position);
        match call {
            Call::LatentAttend { q, latent, rope, w, heads, key_dim, scale, exact, out } => {
                let op = LatentAttend {
                    q: self.segment(q, segment),
                    position,
                    heads: *heads,
                    key_dim: *key_dim,
                    latent: self.past(part, latent, segment),
                    rope: self.past(part, rope, segment),
                    w: matrix(part, *w),
                    scale: *scale,
                    exact: *exact,
                    y: self.part_of(out, segment),
                };
                op.part(isa, share, unit);
                op.units(share.of())
            }
            Call::Compress { values, gates, bias, rate, overlap, out } => {
                let op = Compress {
                    values: self.past(part, values, segment),
                    gates: self.past(part, gates, segment),
                    bias: row(part, *bias),
                    rate: *rate,
                    overlap: *overlap,
                    position,
                    y: self.part_of(out, segment),
                };
                op.part(isa, share, unit);
                op.units()
            }
            Call::Choose { q, rows, w, heads, top_k, rate, scale, out } => {
                let y = self.part_of(out, segment);
                let op = Choose {
                    q: self.segment(q, segment),
                    compressed: self.past(part, rows, segment),
                    w: self.segment(w, segment),
                    position,
                    heads: *heads,
                    top_k: *top_k,
                    rate: *rate,
                    scale: *scale,
                    scores: (self.rows == 1).then_some(self.scores),
                    // SAFETY: as many words as floats, of the same size and alignment; see `Work`.
                    chosen: unsafe { Out::from_raw(y.ptr().cast::<u32>(), y.len()) },
                };
                op.part(isa, share, unit);
                op.units()
            }
            Call::Conv { x, taps, w, bias, out } => {
                let (w, bias) = (row(part, *w), bias.map(|slot| row(part, slot)));
                let x = self.window(part, x, segment);
                let op = Conv { x, taps: *taps, w, bias, y: self.part_of(out, segment) };
                op.part(isa, share, unit);
                op.units()
            }
            _ => 0,
        }
    }

    fn attend(&self, part: &Part, call: &AttendCall, segment: usize, share: Share<'_>, unit: usize) -> usize {
        let compressed = call.compressed.map(|c| Compressed {
            past: self.past(part, &c.rows, segment),
            rate: c.rate,
            chosen: c.chosen.map(|area| {
                let chosen = self.segment(&area, segment);
                // SAFETY: `choose` has written as many words there, of the same size and alignment as floats.
                let words = unsafe { std::slice::from_raw_parts(chosen.as_ptr().cast(), chosen.len()) };
                (words, area.width)
            }),
        });
        let op = Attend {
            q: self.segment(&call.q, segment),
            position: self.places[segment].position,
            heads: call.heads,
            kv_heads: call.kv_heads,
            keys: self.past(part, &call.keys, segment),
            values: call.values.as_ref().map(|values| self.past(part, values, segment)),
            scale: call.scale,
            window: call.window,
            softcap: call.softcap,
            sinks: call.sinks.map(|slot| row(part, slot)),
            compressed,
            y: self.part_of(&call.out, segment),
        };
        // A row that is alone has the memory for scores to itself.
        let shared = (self.places.len() == 1).then_some(self.scores);
        if let Some(row) = AttendRow::new(op, shared) {
            row.part(self.isa, share, unit);
            return row.units();
        }
        op.part(self.isa, share, unit);
        op.units(share.of())
    }

    fn update(
        &self,
        part: &Part,
        (tensor, memory, out): (Tensor, &Memory, &Area),
        segment: usize,
        share: Share<'_>,
        unit: usize,
    ) -> usize {
        let (form, kept) = self.tensor(part, tensor, segment);
        assert_eq!(form.dtype, DType::F32, "the backend takes no memories of another type");
        // SAFETY: the tensor is F32, starts a cache line, and has so many values; see `Work`.
        let state = unsafe { Out::from_raw(kept.ptr().cast::<f32>(), kept.len() / 4) };
        let (isa, dtype, y) = (self.isa, form.dtype, self.part_of(out, segment));
        let [heads, rows, cols] = memory.sizes;
        let of = |area: &Area| self.segment(area, segment);
        match &memory.op {
            MemoryOp::GatedDelta { key_heads, scale, args } => {
                let [q, k, v, g, beta] = args.each_ref().map(of);
                let (key_heads, scale, key_dim, value_dim) = (*key_heads, *scale, rows, cols);
                let op = GatedDelta {
                    state,
                    dtype,
                    heads,
                    key_heads,
                    key_dim,
                    value_dim,
                    scale,
                    q,
                    k,
                    v,
                    g,
                    beta,
                    y,
                };
                op.part(isa, share, unit);
                op.units()
            }
            MemoryOp::DecayedLinear { decay, args } => {
                let [q, k, v] = args.each_ref().map(of);
                let (key_dim, value_dim) = (rows, cols);
                let op = DecayedLinear { state, dtype, decay, key_dim, value_dim, q, k, v, y };
                op.part(isa, share, unit);
                op.units()
            }
            MemoryOp::StateSpace { groups, args, rate, skip } => {
                let [x, b, c, dt] = args.each_ref().map(of);
                let (rate, d) = (row(part, *rate), row(part, *skip));
                let (groups, head_dim, state_dim) = (*groups, rows, cols);
                let op =
                    StateSpace { state, dtype, heads, groups, head_dim, state_dim, x, b, c, dt, rate, d, y };
                op.part(isa, share, unit);
                op.units()
            }
        }
    }

    /// A segment's carried tensor, to write.
    fn tensor(&self, part: &Part, tensor: Tensor, segment: usize) -> (TensorForm, Out<'_, u8>) {
        let index = part.first_tensor + tensor.0;
        let form = self.forms[index];
        let start = self.tensors[segment * self.forms.len() + index].0;
        let bytes = form.rows * form.cols * form.dtype.block_bytes();
        // SAFETY: the segment's state holds so many bytes for the tensor, and nobody else has it; see `Work`.
        (form, unsafe { Out::from_raw(start, bytes) })
    }

    /// Rows of a segment's carried tensor, to read, and the step's own if they are not there yet.
    fn kept<'s>(
        &'s self,
        part: &Part,
        tensor: Tensor,
        segment: usize,
        new: Option<(usize, &'s [f32])>,
    ) -> rows::Past<'s> {
        let (form, kept) = self.tensor(part, tensor, segment);
        // SAFETY: a barrier lies between the rows' being stored and this, see `Work`.
        let kept = unsafe { std::slice::from_raw_parts(kept.ptr().cast_const(), kept.len()) };
        rows::Past { kept, dtype: form.dtype, width: form.cols, slots: form.rows, turn: 0, new }
    }

    /// Rows of the past of a segment, to read.
    fn past(&self, part: &Part, past: &Past, segment: usize) -> rows::Past<'_> {
        let position = self.places[segment].position;
        match past {
            Past::Kept(tensor) => self.kept(part, *tensor, segment, None),
            Past::Joined { ring, new } => {
                self.kept(part, *ring, segment, Some((position, self.segment(new, segment))))
            }
            Past::Window(area) => {
                let Window { kept, slots, turn, new, width, .. } = self.window(part, past, segment);
                debug_assert_eq!(area.width, width);
                let kept: &[u8] = bytemuck::cast_slice(kept);
                rows::Past { kept, dtype: DType::F32, width, slots, turn, new: Some((position, new)) }
            }
        }
    }

    /// Rows from before the step in F32, and the step's own.
    fn window(&self, part: &Part, past: &Past, segment: usize) -> Window<'_> {
        let position = self.places[segment].position;
        match past {
            Past::Window(area) => {
                let before = area.form.fixed;
                let (kept, new) = self.segment(area, segment).split_at(before * area.width);
                // The row at `position − before` is the first.
                let turn = (before - position % before) % before;
                Window { kept, slots: before, turn, before, position, new, width: area.width }
            }
            Past::Joined { ring: tensor, new } => {
                let new = self.segment(new, segment);
                let rows::Past { kept, slots, width, .. } = self.kept(part, *tensor, segment, None);
                Window {
                    kept: bytemuck::cast_slice(kept),
                    slots,
                    turn: 0,
                    before: slots,
                    position,
                    new,
                    width,
                }
            }
            Past::Kept(_) => panic!("rows that are all kept are no window: the lowering tells them apart"),
        }
    }

    /// Some rows of a segment's rows in a buffer, to write.
    fn rows_of(&self, area: &Area, segment: usize, first: usize, rows: Form) -> Out<'_> {
        let own = if rows.step { self.places[segment].rows } else { 0 };
        let (all, len) = (self.part_of(area, segment), (rows.fixed + own) * area.width);
        assert!(first * area.width + len <= all.len(), "{len} of {} values", all.len());
        // SAFETY: within the segment's rows by the check; see `Work`.
        unsafe { Out::from_raw(all.ptr().add(first * area.width), len) }
    }
}
