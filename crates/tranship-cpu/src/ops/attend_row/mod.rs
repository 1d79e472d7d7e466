//! `attend` of one row, as in decoding, over what is kept in 16 bits.
//!
//! One row's work is to read its past once. So the past is cut into parts of [`PART`] positions, which threads read side by
//! side, all heads of a part together as they lie; then the parts of a head are put together in their order (the same
//! softmax, one level up). What comes out does not depend on how many threads there were.
//!
//! Keys and values are read as they lie, straight into registers, and never written in another form: scores are sums along
//! a key's columns, not lane by lane as [`super::attend`] makes them, for a key that a few queries meet is not worth
//! transposing. That rounds otherwise than a prompt's rows do. Where caches are F32 a split must not change a bit, and the
//! row goes the prompt's way.

mod part;

use super::Out;
use super::attend::{Attend, LEAST};
use super::exp::exp;
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use part::PartOf;
use std::ops::Range;
use tranship_dtype::DType;

/// Positions of a part.
const PART: usize = 128;
/// Before its sums, what a query has in a part: the greatest score and the total of weights.
const HEAD: usize = MAX_LANES;

/// One row's attention.
#[derive(Clone, Copy)]
pub(crate) struct AttendRow<'a> {
    op: Attend<'a>,
    /// Memory that all threads share, where this row is the only one.
    shared: Option<Out<'a>>,
}

/// The floats that [`AttendRow::new`] needs to share a past of so many rows.
pub(crate) fn shared_floats(heads: usize, value_dim: usize, rows: usize) -> usize {
    // A past may begin and end within a part.
    (rows / PART + 2).saturating_mul(heads).saturating_mul(own(value_dim))
}

/// Floats of a query in a part.
fn own(value_dim: usize) -> usize {
    HEAD + piece(value_dim)
}

impl<'a> AttendRow<'a> {
    /// `None` where `op` is of more rows, of compressed ones, or its caches are F32.
    pub(crate) fn new(op: Attend<'a>, shared: Option<Out<'a>>) -> Option<AttendRow<'a>> {
        let short = |dtype| matches!(dtype, DType::F16 | DType::BF16);
        let fits = op.q.len() == op.heads * op.key_dim()
            && op.compressed.is_none()
            && short(op.keys.dtype)
            && op.values.is_none_or(|values| short(values.dtype));
        fits.then_some(AttendRow { op, shared })
    }

    /// The positions that the row sees.
    fn seen(&self) -> Range<usize> {
        (self.op.position + 1).saturating_sub(self.op.window.unwrap_or(usize::MAX))..self.op.position + 1
    }

    /// The parts in which these are.
    fn parts(&self) -> Range<usize> {
        let Range { start, end } = self.seen();
        start / PART..end.div_ceil(PART)
    }

    fn group(&self) -> usize {
        self.op.heads / self.op.kv_heads
    }

    /// How many units of work a batch counts.
    pub(crate) fn units(&self) -> usize {
        self.op.kv_heads
    }

    /// This thread's share. `first` is the number of the first unit among those of a whole batch.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>, first: usize) {
        let (parts, kv_heads) = (self.parts().len(), self.op.kv_heads);
        let of_head = self.group() * own(self.op.value_dim());
        let shared = self.shared.filter(|m| parts * kv_heads * of_head <= m.len());
        let sizes = [self.op.heads * PART, parts, if shared.is_none() { parts * of_head } else { 0 }];
        with_scratch(sizes.iter().map(|n| piece(*n)).sum(), |scratch| {
            let mut pieces = Pieces(scratch);
            let [weights, factors, partial] = sizes.map(|n| &mut pieces.take(n)[..n]);
            match shared {
                Some(shared) => self.together(isa, share, shared, weights, factors),
                None => {
                    for kv_head in (0..kv_heads).filter(|head| (first + head) % share.of() == share.index()) {
                        self.alone(isa, kv_head, weights, factors, partial);
                    }
                }
            }
        });
    }

    /// One head of keys, on one thread.
    fn alone(&self, isa: Isa, kv_head: usize, weights: &mut [f32], factors: &mut [f32], partial: &mut [f32]) {
        let (group, own) = (self.group(), own(self.op.value_dim()));
        for (part, to) in self.parts().zip(partial.chunks_exact_mut(group * own)) {
            self.one(isa, part, kv_head..kv_head + 1, to, weights);
        }
        for head in 0..group {
            self.merge(isa, kv_head * group + head, &partial[head * own..], group * own, factors);
        }
    }

    /// All heads, on all threads.
    fn together(
        &self,
        isa: Isa,
        share: Share<'_>,
        shared: Out<'_>,
        weights: &mut [f32],
        factors: &mut [f32],
    ) {
        let (parts, kv_heads) = (self.parts(), self.op.kv_heads);
        let own = own(self.op.value_dim());
        let of_head = self.group() * own;
        // All heads of a part lie together, but few parts are dealt by heads.
        let heads = if parts.len() >= 2 * share.of() { kv_heads } else { 1 };
        for unit in share.range(parts.len() * kv_heads / heads, 1) {
            let (part, head) = (unit * heads / kv_heads, unit * heads % kv_heads);
            let from = (part * kv_heads + head) * of_head;
            // SAFETY: each head of each part belongs to one thread.
            let to = unsafe { shared.range(from..from + heads * of_head) };
            self.one(isa, parts.start + part, head..head + heads, to, weights);
        }
        share.barrier();
        // SAFETY: all threads have written their parts, and none writes any more.
        let all = unsafe { std::slice::from_raw_parts(shared.ptr(), parts.len() * kv_heads * of_head) };
        for head in (0..self.op.heads).filter(|head| head % share.of() == share.index()) {
            self.merge(isa, head, &all[head * own..], kv_heads * of_head, factors);
        }
    }

    /// One part for the queries of some heads of keys.
    fn one(&self, isa: Isa, part: usize, kv_heads: Range<usize>, to: &mut [f32], weights: &mut [f32]) {
        let Range { start, end } = self.seen();
        let positions = start.max(part * PART)..end.min((part + 1) * PART);
        isa.dispatch(PartOf { op: &self.op, positions, kv_heads, to, weights });
    }

    /// Puts the parts of a head together: the first begins `partial`, the others are `stride` floats apart.
    fn merge(&self, isa: Isa, head: usize, partial: &[f32], stride: usize, factors: &mut [f32]) {
        let dim = self.op.value_dim();
        // SAFETY: each head is put together by one thread.
        let y = unsafe { self.op.y.range(head * dim..(head + 1) * dim) };
        let sink = self.op.sinks.map(|sinks| sinks[head]);
        isa.dispatch(Merge { partial, stride, factors, sink, y });
    }
}

/// Parts of one head, into its result.
struct Merge<'a> {
    partial: &'a [f32],
    stride: usize,
    /// One for each part: memory.
    factors: &'a mut [f32],
    sink: Option<f32>,
    y: &'a mut [f32],
}

impl Kernel for Merge<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // A sink is a score that has no value.
        let (sink, weight) = match self.sink {
            Some(sink) if sink > LEAST => (sink, 1.0),
            _ => (LEAST, 0.0),
        };
        let of_part = |part: usize| (self.partial[part * self.stride], self.partial[part * self.stride + 1]);
        let most = (0..self.factors.len()).fold(sink, |most, part| most.max(of_part(part).0));
        let mut total = weight * factor(s, sink, most);
        for (part, factor_of) in self.factors.iter_mut().enumerate() {
            let (score, weight) = of_part(part);
            // A part of which nothing is seen has no weight.
            *factor_of = if weight == 0.0 { 0.0 } else { factor(s, score, most) };
            total += weight * *factor_of;
        }
        let scale = s.splat(1.0 / total);
        for at in (0..self.y.len()).step_by(S::LANES) {
            let n = S::LANES.min(self.y.len() - at);
            let mut sum = s.splat(0.0);
            for (part, factor) in self.factors.iter().enumerate() {
                let sums = &self.partial[part * self.stride + HEAD + at..][..n];
                // SAFETY: `n` values are there.
                sum = s.fma(unsafe { s.load_part(sums.as_ptr(), n) }, s.splat(*factor), sum);
            }
            // SAFETY: `n` values from `at` on are within the result.
            unsafe { s.store_part(self.y.as_mut_ptr().add(at), s.mul(sum, scale), n) };
        }
    }
}

/// `e^(score − most)`.
#[inline(always)]
fn factor<S: Simd>(s: S, score: f32, most: f32) -> f32 {
    s.reduce_max(exp(s, s.splat(score - most)))
}
