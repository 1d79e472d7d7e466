//! `attend`: causal attention over a sequence's caches, with an online softmax over blocks of keys.
//!
//! Work comes in units: one key/value head, and a few rows of queries with all the query heads that share it. A unit
//! walks the keys in blocks of [`KEYS`] that start at *absolute* multiples of it, and keeps for each query the greatest
//! score so far, the sum of weights and the weighted sum of values (Milakov and Gimelshein, 2018). What happens to one
//! query depends on its own position alone, never on which rows, threads or segments run beside it: any split of a
//! prompt gives the same bits.
//!
//! A block's keys and values are widened to F32 once for the unit. Scores are dot products along the head, up to four
//! queries by four keys in registers; weighted sums go along the head too, with the block's weights broadcast.

use super::Out;
use super::exp::exp;
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use tranship_dtype::DType;

/// Keys of a block.
const KEYS: usize = 64;
/// Rows of queries of a unit.
const ROWS: usize = 16;
/// Queries that are in registers together.
const TILE: usize = 4;
/// A score that no real one is below.
const LEAST: f32 = f32::MIN;

/// Attention of one segment's rows over its caches.
#[derive(Clone, Copy)]
pub(crate) struct Attend<'a> {
    /// `[rows, heads · dim]`; row `i` stands at `position + i`.
    pub(crate) q: &'a [f32],
    pub(crate) position: usize,
    /// Rows `0 .. position + rows` of the caches, `[_, kv_heads · dim]` each, as bytes of `dtype`.
    pub(crate) k: &'a [u8],
    pub(crate) v: &'a [u8],
    /// F32, F16 or BF16.
    pub(crate) dtype: DType,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    pub(crate) scale: f32,
    /// `[rows, heads · dim]`.
    pub(crate) y: Out<'a>,
}

impl Attend<'_> {
    fn rows(&self) -> usize {
        self.q.len() / (self.heads * self.dim)
    }

    /// How many units of work there are.
    pub(crate) fn units(&self) -> usize {
        self.kv_heads * self.rows().div_ceil(ROWS)
    }

    /// This thread's share of the units, dealt out in turn: later rows have more keys. `first` is the number of the
    /// first unit among those of a whole batch.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>, first: usize) {
        let bytes = (self.position + self.rows()) * self.kv_heads * self.dim * self.dtype.block_bytes();
        assert!(self.k.len() == bytes && self.v.len() == bytes, "caches up to the last row");
        assert_eq!(self.y.len(), self.q.len(), "as many values out as in");
        for unit in (0..self.units()).filter(|unit| (first + unit) % share.of() == share.index()) {
            let queries = ROWS * (self.heads / self.kv_heads);
            let padded = self.dim.next_multiple_of(MAX_LANES);
            let floats =
                2 * piece(KEYS * padded) + piece(queries * padded) + 2 * piece(queries) + piece(TILE * KEYS);
            with_scratch(floats, |scratch| {
                let mut pieces = Pieces(scratch);
                isa.dispatch(Unit {
                    op: *self,
                    head: unit % self.kv_heads,
                    row: unit / self.kv_heads * ROWS,
                    padded,
                    keys: pieces.take(KEYS * padded),
                    values: pieces.take(KEYS * padded),
                    sums: pieces.take(queries * padded),
                    most: pieces.take(queries),
                    total: pieces.take(queries),
                    scores: pieces.take(TILE * KEYS),
                });
            });
        }
    }
}

/// One key/value head and up to [`ROWS`] rows.
struct Unit<'a> {
    op: Attend<'a>,
    head: usize,
    row: usize,
    /// The head's size, rounded up to whole vectors of the widest machine.
    padded: usize,
    /// The block's keys and values in F32, `[KEYS, padded]`, padded with zeros.
    keys: &'a mut [f32],
    values: &'a mut [f32],
    /// Weighted sums of values, `[queries, padded]`.
    sums: &'a mut [f32],
    /// The greatest score and the sum of weights of each query.
    most: &'a mut [f32],
    total: &'a mut [f32],
    /// Scores, then weights, of the queries in registers, `[TILE, KEYS]`.
    scores: &'a mut [f32],
}

impl Kernel for Unit<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let op = self.op;
        let group = op.heads / op.kv_heads;
        let rows = ROWS.min(op.rows() - self.row);
        let queries = rows * group;
        self.sums.fill(0.0);
        self.most.fill(LEAST);
        self.total.fill(0.0);
        let end = op.position + self.row + rows;
        for block in (0..end).step_by(KEYS) {
            let held = KEYS.min(end - block);
            self.widen(s, block, held);
            for first in (0..queries).step_by(TILE) {
                let seen = self.seen(block, first);
                match queries - first {
                    1 => self.tile::<S, 1>(s, first, [seen[0]]),
                    2 => self.tile::<S, 2>(s, first, [seen[0], seen[1]]),
                    3 => self.tile::<S, 3>(s, first, [seen[0], seen[1], seen[2]]),
                    _ => self.tile::<S, TILE>(s, first, seen),
                }
            }
        }
        self.finish(s, queries);
    }
}

impl Unit<'_> {
    /// Widens the block's keys and values to F32; rows that are not there are zero.
    #[inline(always)]
    fn widen<S: Simd>(&mut self, s: S, block: usize, held: usize) {
        let op = self.op;
        let size = op.dtype.block_bytes();
        for (from, to) in [(op.k, &mut *self.keys), (op.v, &mut *self.values)] {
            for key in 0..held {
                let at = ((block + key) * op.kv_heads + self.head) * op.dim * size;
                let row = &from[at..at + op.dim * size];
                let to = &mut to[key * self.padded..(key + 1) * self.padded];
                widen_row(s, op.dtype, row, to);
            }
            to[held * self.padded..].fill(0.0);
        }
    }

    /// How many keys of a block each of the queries from `first` on sees.
    #[inline(always)]
    fn seen(&self, block: usize, first: usize) -> [usize; TILE] {
        let group = self.op.heads / self.op.kv_heads;
        let of = |r| self.op.position + self.row + (first + r) / group + 1;
        std::array::from_fn(|r| of(r).saturating_sub(block).min(KEYS))
    }

    /// The block's part in the results of `R` queries, each of which sees its first `seen` keys.
    #[inline(always)]
    fn tile<S: Simd, const R: usize>(&mut self, s: S, first: usize, seen: [usize; R]) {
        let most = seen.into_iter().max().unwrap_or(0);
        if most == 0 {
            return;
        }
        self.score::<S, R>(s, first, most);
        for (r, seen) in seen.into_iter().enumerate() {
            self.weigh(s, first + r, r, seen);
        }
        self.gather::<S, R>(s, first, most);
    }

    /// Scores of `R` queries by the block's keys, four keys at a time.
    #[inline(always)]
    fn score<S: Simd, const R: usize>(&mut self, s: S, first: usize, seen: usize) {
        let op = self.op;
        let group = op.heads / op.kv_heads;
        let mut q = [std::ptr::null(); R];
        for (r, q) in q.iter_mut().enumerate() {
            let (row, head) = ((first + r) / group, self.head * group + (first + r) % group);
            *q = op.q[((self.row + row) * op.heads + head) * op.dim..][..op.dim].as_ptr();
        }
        for key in (0..seen).step_by(4) {
            let k = self.keys[key * self.padded..(key + 4) * self.padded].as_ptr();
            let mut sums = [[s.splat(0.0); 4]; R];
            for at in (0..op.dim).step_by(S::LANES) {
                let n = S::LANES.min(op.dim - at);
                // SAFETY: each of the four keys has `padded` floats, and each query `n` from `at` on.
                unsafe {
                    let mut ks = [s.splat(0.0); 4];
                    for (j, lane) in ks.iter_mut().enumerate() {
                        *lane = s.load(k.add(j * self.padded + at));
                    }
                    for r in 0..R {
                        let x = s.load_part(q[r].add(at), n);
                        for j in 0..4 {
                            sums[r][j] = s.fma(x, ks[j], sums[r][j]);
                        }
                    }
                }
            }
            for r in 0..R {
                let dots = s.reduce_add4(sums[r]);
                for (j, dot) in dots.into_iter().enumerate() {
                    self.scores[r * KEYS + key + j] = dot * op.scale;
                }
            }
        }
    }

    /// Scores of one query into weights; what was summed before is brought to the new greatest score.
    #[inline(always)]
    fn weigh<S: Simd>(&mut self, s: S, query: usize, r: usize, seen: usize) {
        let scores = &mut self.scores[r * KEYS..(r + 1) * KEYS];
        scores[seen..].fill(LEAST);
        let before = self.most[query];
        let mut most = s.splat(before);
        for at in (0..KEYS).step_by(S::LANES) {
            // SAFETY: `KEYS` is a whole number of vectors.
            most = s.max(most, unsafe { s.load(scores.as_ptr().add(at)) });
        }
        let most = s.reduce_max(most);
        let mut total = s.splat(0.0);
        for at in (0..KEYS).step_by(S::LANES) {
            // SAFETY: as above.
            unsafe {
                let p = scores.as_mut_ptr().add(at);
                let weight = exp(s, s.sub(s.load(p), s.splat(most)));
                s.store(p, weight);
            }
        }
        // Keys that are not seen have no weight at all, whatever the clamped exponential made of them.
        scores[seen..].fill(0.0);
        for at in (0..KEYS).step_by(S::LANES) {
            // SAFETY: as above.
            total = s.add(total, unsafe { s.load(scores.as_ptr().add(at)) });
        }
        let sum = s.reduce_add(total);
        self.most[query] = most;
        if before == LEAST {
            self.total[query] = sum;
        } else if before == most {
            self.total[query] += sum;
        } else {
            let fade = (before - most).exp();
            self.total[query] = self.total[query].mul_add(fade, sum);
            for value in &mut self.sums[query * self.padded..(query + 1) * self.padded] {
                *value *= fade;
            }
        }
    }

    /// Adds the block's values, weighted, to the sums of `R` queries.
    #[inline(always)]
    fn gather<S: Simd, const R: usize>(&mut self, s: S, first: usize, seen: usize) {
        let padded = self.padded;
        // Two vectors of the head for all queries at once: `2 R` sums in registers.
        for at in (0..padded).step_by(2 * S::LANES) {
            let two = at + 2 * S::LANES <= padded;
            // SAFETY: sums and values have `padded` floats a row, a multiple of the vector's length; the second vector
            // is touched only where there is one.
            unsafe {
                let mut acc = [[s.splat(0.0); 2]; R];
                for (r, acc) in acc.iter_mut().enumerate() {
                    let p = self.sums.as_ptr().add((first + r) * padded + at);
                    acc[0] = s.load(p);
                    if two {
                        acc[1] = s.load(p.add(S::LANES));
                    }
                }
                for key in 0..seen {
                    let p = self.values.as_ptr().add(key * padded + at);
                    let v0 = s.load(p);
                    let v1 = if two { s.load(p.add(S::LANES)) } else { v0 };
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let weight = s.splat(*self.scores.as_ptr().add(r * KEYS + key));
                        acc[0] = s.fma(weight, v0, acc[0]);
                        acc[1] = s.fma(weight, v1, acc[1]);
                    }
                }
                for (r, acc) in acc.iter().enumerate() {
                    let p = self.sums.as_mut_ptr().add((first + r) * padded + at);
                    s.store(p, acc[0]);
                    if two {
                        s.store(p.add(S::LANES), acc[1]);
                    }
                }
            }
        }
    }

    /// Sums over totals, into the result.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, _: S, queries: usize) {
        let op = self.op;
        let group = op.heads / op.kv_heads;
        for query in 0..queries {
            let (row, head) = (query / group, self.head * group + query % group);
            let at = ((self.row + row) * op.heads + head) * op.dim;
            // SAFETY: each head of each row is in one unit, which is one thread's.
            let y = unsafe { op.y.range(at..at + op.dim) };
            let scale = 1.0 / self.total[query];
            for (y, sum) in y.iter_mut().zip(&self.sums[query * self.padded..]) {
                *y = sum * scale;
            }
        }
    }
}

/// Bytes of a cache's row as F32, then zeros.
#[inline(always)]
fn widen_row<S: Simd>(s: S, dtype: DType, row: &[u8], to: &mut [f32]) {
    let size = dtype.block_bytes();
    let len = row.len() / size;
    let whole = len / S::LANES * S::LANES;
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: a whole vector from `at` on is within `row` and `to`.
        unsafe {
            let p = row.as_ptr().add(at * size);
            let v = match dtype {
                DType::F16 => s.load_f16(p.cast()),
                DType::BF16 => s.load_bf16(p.cast()),
                _ => s.load(p.cast()),
            };
            s.store(to.as_mut_ptr().add(at), v);
        }
    }
    for at in whole..len {
        let b = &row[at * size..(at + 1) * size];
        to[at] = match dtype {
            DType::F16 => half::f16::from_le_bytes([b[0], b[1]]).to_f32(),
            DType::BF16 => half::bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            _ => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        };
    }
    to[len..].fill(0.0);
}
