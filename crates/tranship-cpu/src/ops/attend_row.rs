//! `attend` of one row, as in decoding, over what is kept in 16 bits.
//!
//! One row's work is to read its past once. So the past is cut into parts of [`PART`] positions, which threads read side by
//! side, all heads of a part together as they lie; then the parts of a head are put together in their order (the same
//! softmax, one level up). What comes out does not depend on how many threads there were.
//!
//! Scores are sums along a key's columns, not lane by lane as [`super::attend`] makes them: a key that one head of keys or
//! a few queries meet is not worth transposing. That rounds otherwise than a prompt's rows do. Where caches are F32 a split
//! must not change a bit, and the row goes the prompt's way.

use super::Out;
use super::attend::{Attend, Columns, LEAST, Memory, Unit};
use super::exp::exp;
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use std::ops::Range;
use tranship_dtype::DType;

/// Positions of a part: a multiple of the keys of a block.
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

    /// The parts of the past that the row sees.
    fn parts(&self) -> Range<usize> {
        let from = (self.op.position + 1).saturating_sub(self.op.window.unwrap_or(usize::MAX));
        from / PART..self.op.position / PART + 1
    }

    fn group(&self) -> usize {
        self.op.heads / self.op.kv_heads
    }

    /// This thread's share. `first` is the number of the first unit among those of a whole batch.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>, first: usize) {
        let (parts, group, kv_heads) = (self.parts(), self.group(), self.op.kv_heads);
        let own = own(self.op.value_dim());
        let of_head = group * own;
        let Some(shared) = self.shared.filter(|m| parts.len() * kv_heads * of_head <= m.len()) else {
            return with_scratch(parts.len() * of_head, |partial| {
                for kv_head in (0..kv_heads).filter(|head| (first + head) % share.of() == share.index()) {
                    for (part, to) in parts.clone().zip(partial.chunks_exact_mut(of_head)) {
                        self.one(isa, part, kv_head, to);
                    }
                    for head in 0..group {
                        self.merge(isa, kv_head * group + head, &partial[head * own..], of_head, parts.len());
                    }
                }
            });
        };
        // All heads of a part lie together, but few parts are dealt by heads.
        let together = if parts.len() >= 2 * share.of() { kv_heads } else { 1 };
        for unit in share.range(parts.len() * kv_heads / together, 1) {
            let at = unit * together;
            for kv_head in at % kv_heads..at % kv_heads + together {
                let part = at / kv_heads;
                let from = (part * kv_heads + kv_head) * of_head;
                // SAFETY: each head of each part belongs to one thread.
                let to = unsafe { shared.range(from..from + of_head) };
                self.one(isa, parts.start + part, kv_head, to);
            }
        }
        share.barrier();
        for head in (0..self.op.heads).filter(|head| head % share.of() == share.index()) {
            // SAFETY: all threads have written their parts, and none writes any more.
            let all = unsafe { std::slice::from_raw_parts(shared.ptr(), parts.len() * kv_heads * of_head) };
            self.merge(isa, head, &all[head * own..], kv_heads * of_head, parts.len());
        }
    }

    /// How many units of work a batch counts.
    pub(crate) fn units(&self) -> usize {
        self.op.kv_heads
    }

    /// One part for the queries of one head of keys.
    fn one(&self, isa: Isa, part: usize, kv_head: usize, to: &mut [f32]) {
        let (op, group) = (&self.op, self.group());
        let (key_dim, value_dim) = (op.key_dim(), op.value_dim());
        let cols = |dim: usize| kv_head * dim..(kv_head + 1) * dim;
        let sizes = Memory::sizes(group, key_dim, value_dim, op.values.is_some());
        with_scratch(sizes.iter().map(|n| piece(*n)).sum(), |scratch| {
            isa.dispatch(Unit {
                q: &op.q[kv_head * group * key_dim..],
                q_strides: (op.heads * key_dim, key_dim),
                rows: 1,
                heads: group,
                position: op.position,
                keys: Columns { past: op.keys, cols: cols(key_dim) },
                more: None,
                values: op.values.map(|past| Columns { past, cols: cols(value_dim) }),
                expand: None,
                compressed: None,
                scale: op.scale,
                window: op.window.unwrap_or(usize::MAX),
                softcap: op.softcap,
                sinks: None,
                part: Some(part * PART..(part + 1) * PART),
                y: op.y,
                y_first: 0,
                y_strides: (0, 0),
                memory: Memory::new(&mut Pieces(&mut *scratch), sizes, key_dim, value_dim),
            });
            // What the unit has left.
            let left = Memory::new(&mut Pieces(&mut *scratch), sizes, key_dim, value_dim);
            for (query, to) in to.chunks_exact_mut(own(value_dim)).enumerate() {
                (to[0], to[1]) = (left.most[query], left.total[query]);
                to[HEAD..].copy_from_slice(&left.sums[query * left.value_pad..][..piece(value_dim)]);
            }
        });
    }

    /// Puts the parts of a head together: the first begins `partial`, the others are `stride` floats apart.
    fn merge(&self, isa: Isa, head: usize, partial: &[f32], stride: usize, parts: usize) {
        let dim = self.op.value_dim();
        // SAFETY: each head is put together by one thread.
        let y = unsafe { self.op.y.range(head * dim..(head + 1) * dim) };
        let sink = self.op.sinks.map(|sinks| sinks[head]);
        isa.dispatch(Merge { partial, stride, parts, sink, y });
    }
}

/// Parts of one head, into its result.
struct Merge<'a> {
    partial: &'a [f32],
    stride: usize,
    parts: usize,
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
        let most = (0..self.parts).fold(sink, |most, part| most.max(of_part(part).0));
        with_scratch(self.parts, |factors| {
            let mut total = weight * factor(s, sink, most);
            for (part, factor_of) in factors.iter_mut().enumerate().take(self.parts) {
                let (score, weight) = of_part(part);
                // A part of which nothing is seen has no weight.
                *factor_of = if weight == 0.0 { 0.0 } else { factor(s, score, most) };
                total += weight * *factor_of;
            }
            let scale = s.splat(1.0 / total);
            for at in (0..self.y.len()).step_by(S::LANES) {
                let n = S::LANES.min(self.y.len() - at);
                let mut sum = s.splat(0.0);
                for (part, factor) in factors.iter().enumerate().take(self.parts) {
                    let sums = &self.partial[part * self.stride + HEAD + at..][..n];
                    // SAFETY: `n` values are there.
                    sum = s.fma(unsafe { s.load_part(sums.as_ptr(), n) }, s.splat(*factor), sum);
                }
                // SAFETY: `n` values from `at` on are within the result.
                unsafe { s.store_part(self.y.as_mut_ptr().add(at), s.mul(sum, scale), n) };
            }
        });
    }
}

/// `e^(score − most)`.
#[inline(always)]
fn factor<S: Simd>(s: S, score: f32, most: f32) -> f32 {
    s.reduce_max(exp(s, s.splat(score - most)))
}
