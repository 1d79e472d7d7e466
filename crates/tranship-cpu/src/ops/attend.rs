//! `attend`: causal attention over a sequence's caches, with an online softmax over blocks of keys.
//!
//! Work comes in units: one key/value head, and up to [`ROWS`] rows of queries with all the query heads that share it. A
//! unit walks the keys in blocks of [`KEYS`] that start at *absolute* multiples of it, and keeps for each query the
//! greatest score so far, the sum of weights and the weighted sum of values (Milakov and Gimelshein, 2018). What happens
//! to one query depends on its own position alone, never on which rows, threads or segments run beside it: any split of
//! a prompt gives the same bits.
//!
//! A block's keys and values are widened to F32 once for the unit, the keys transposed: then lanes are keys, and each
//! score is one sum along the head, whose next term is a broadcast element of the query. Weighted sums have the head in
//! their lanes and broadcast weights. Both are register tiles of several queries by several vectors, without any
//! addition across lanes but those of the softmax.

use super::Out;
use super::exp::exp;
use super::linear_f32::widen::{Bf16, F16, F32, Format};
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use std::marker::PhantomData;
use tranship_dtype::DType;

/// Keys of a block.
const KEYS: usize = 64;
/// Rows of queries of a unit.
const ROWS: usize = 32;
/// Queries that are in registers together.
const TILE: usize = 6;
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

    /// Query heads of a key/value head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
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
        let padded = self.dim.next_multiple_of(MAX_LANES);
        let queries = ROWS.min(self.rows()) * self.group();
        let sizes =
            [KEYS * padded, KEYS * padded, KEYS * padded, queries * padded, queries, queries, TILE * KEYS];
        with_scratch(sizes.iter().map(|n| piece(*n)).sum(), |scratch| {
            for unit in (0..self.units()).filter(|unit| (first + unit) % share.of() == share.index()) {
                let mut pieces = Pieces(&mut *scratch);
                let [rows, keys, values, sums, most, total, scores] = sizes.map(|n| pieces.take(n));
                let (head, row) = (unit % self.kv_heads, unit / self.kv_heads * ROWS);
                let memory = Memory { padded, rows, keys, values, sums, most, total, scores };
                match self.dtype {
                    DType::F16 => {
                        isa.dispatch(Unit { op: *self, head, row, memory, format: PhantomData::<F16> })
                    }
                    DType::BF16 => {
                        isa.dispatch(Unit { op: *self, head, row, memory, format: PhantomData::<Bf16> })
                    }
                    _ => isa.dispatch(Unit { op: *self, head, row, memory, format: PhantomData::<F32> }),
                }
            }
        });
    }
}

/// What a unit keeps while it walks the keys.
struct Memory<'a> {
    /// The head's size, rounded up to whole vectors of the widest machine.
    padded: usize,
    /// The block's keys in F32 as they come, `[KEYS, padded]`.
    rows: &'a mut [f32],
    /// The same transposed, `[padded, KEYS]`.
    keys: &'a mut [f32],
    /// The block's values in F32, `[KEYS, padded]`, padded with zeros.
    values: &'a mut [f32],
    /// Weighted sums of values, `[queries, padded]`.
    sums: &'a mut [f32],
    /// The greatest score and the sum of weights of each query.
    most: &'a mut [f32],
    total: &'a mut [f32],
    /// Scores, then weights, of the queries in registers, `[TILE, KEYS]`.
    scores: &'a mut [f32],
}

/// One key/value head and up to [`ROWS`] rows, with caches of a format.
struct Unit<'a, T> {
    op: Attend<'a>,
    head: usize,
    row: usize,
    memory: Memory<'a>,
    format: PhantomData<T>,
}

impl<T: Format> Kernel for Unit<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let op = self.op;
        let rows = ROWS.min(op.rows() - self.row);
        let queries = rows * op.group();
        self.memory.sums.fill(0.0);
        self.memory.most.fill(LEAST);
        self.memory.total.fill(0.0);
        let end = op.position + self.row + rows;
        for block in (0..end).step_by(KEYS) {
            self.widen(s, block, KEYS.min(end - block));
            for first in (0..queries).step_by(TILE) {
                match queries - first {
                    1 => self.tile::<S, 1>(s, block, first),
                    2 => self.tile::<S, 2>(s, block, first),
                    3 => self.tile::<S, 3>(s, block, first),
                    4 => self.tile::<S, 4>(s, block, first),
                    5 => self.tile::<S, 5>(s, block, first),
                    _ => self.tile::<S, TILE>(s, block, first),
                }
            }
        }
        self.finish(queries);
    }
}

impl<T: Format> Unit<'_, T> {
    /// Widens the `held` keys and values of a block to F32, and transposes the keys; rows that are not there are zero.
    #[inline(always)]
    fn widen<S: Simd>(&mut self, s: S, block: usize, held: usize) {
        let (op, m) = (self.op, &mut self.memory);
        for (from, to) in [(op.k, &mut *m.rows), (op.v, &mut *m.values)] {
            for (key, to) in to.chunks_exact_mut(m.padded).enumerate().take(held) {
                let at = ((block + key) * op.kv_heads + self.head) * op.dim * T::BYTES;
                widen_row::<S, T>(s, &from[at..at + op.dim * T::BYTES], to);
            }
            to[held * m.padded..].fill(0.0);
        }
        for key in (0..KEYS).step_by(S::LANES) {
            for at in (0..m.padded).step_by(S::LANES) {
                // SAFETY: `KEYS` and `padded` are whole numbers of vectors; both arrays hold their product.
                unsafe {
                    let src = m.rows.as_ptr().add(key * m.padded + at);
                    let dst = m.keys.as_mut_ptr().add(at * KEYS + key);
                    s.transpose(src.cast(), m.padded * 4, dst.cast(), KEYS * 4);
                }
            }
        }
    }

    /// How many keys of a block query `query` sees.
    #[inline(always)]
    fn seen(&self, block: usize, query: usize) -> usize {
        (self.op.position + self.row + query / self.op.group() + 1).saturating_sub(block).min(KEYS)
    }

    /// The block's part in the results of `R` queries from `first` on.
    #[inline(always)]
    fn tile<S: Simd, const R: usize>(&mut self, s: S, block: usize, first: usize) {
        // Later queries see no less.
        let most = self.seen(block, first + R - 1);
        if most == 0 {
            return;
        }
        if S::MANY_REGISTERS {
            self.score::<S, R, 4>(s, first, most)
        } else {
            self.score::<S, R, 2>(s, first, most)
        }
        let mut fade = [0.0; R];
        for (r, fade) in fade.iter_mut().enumerate() {
            *fade = self.weigh(s, first + r, r, self.seen(block, first + r));
        }
        let (padded, four) =
            (self.memory.padded, if S::MANY_REGISTERS { 4 * S::LANES } else { 2 * S::LANES });
        let mut at = 0;
        while at + four <= padded {
            if S::MANY_REGISTERS {
                self.gather::<S, R, 4>(s, first, most, at, fade);
            } else {
                self.gather::<S, R, 2>(s, first, most, at, fade);
            }
            at += four;
        }
        while at < padded {
            self.gather::<S, R, 1>(s, first, most, at, fade);
            at += S::LANES;
        }
    }

    /// Scores of `R` queries by the block's first `seen` keys (and the rest of their vectors), `N` vectors at a time.
    #[inline(always)]
    fn score<S: Simd, const R: usize, const N: usize>(&mut self, s: S, first: usize, seen: usize) {
        let (op, m) = (self.op, &mut self.memory);
        let mut q = [std::ptr::null(); R];
        for (r, q) in q.iter_mut().enumerate() {
            let (row, head) = ((first + r) / op.group(), self.head * op.group() + (first + r) % op.group());
            *q = op.q[((self.row + row) * op.heads + head) * op.dim..][..op.dim].as_ptr();
        }
        for key in (0..seen).step_by(N * S::LANES) {
            let mut sums = [[s.splat(0.0); N]; R];
            let mut keys = m.keys.as_ptr().wrapping_add(key);
            for at in 0..op.dim {
                // SAFETY: row `at` of the keys has `KEYS` floats, a multiple of `N` vectors; a query has `dim`.
                unsafe {
                    let mut ks = [s.splat(0.0); N];
                    for (n, k) in ks.iter_mut().enumerate() {
                        *k = s.load(keys.add(n * S::LANES));
                    }
                    for r in 0..R {
                        let x = s.splat(q[r].add(at).read());
                        for n in 0..N {
                            sums[r][n] = s.fma(x, ks[n], sums[r][n]);
                        }
                    }
                }
                keys = keys.wrapping_add(KEYS);
            }
            for r in 0..R {
                for n in 0..N {
                    let scaled = s.mul(sums[r][n], s.splat(op.scale));
                    // SAFETY: `scores` holds `KEYS` for each query of the tile.
                    unsafe { s.store(m.scores.as_mut_ptr().add(r * KEYS + key + n * S::LANES), scaled) };
                }
            }
        }
    }

    /// Scores of one query into weights; gives the factor that brings what was summed before to the new greatest score.
    #[inline(always)]
    fn weigh<S: Simd>(&mut self, s: S, query: usize, r: usize, seen: usize) -> f32 {
        let m = &mut self.memory;
        let scores = &mut m.scores[r * KEYS..(r + 1) * KEYS];
        if seen < KEYS {
            scores[seen..].fill(LEAST);
        }
        let before = m.most[query];
        let mut most = s.splat(before);
        for at in (0..KEYS).step_by(S::LANES) {
            // SAFETY: `KEYS` is a whole number of vectors.
            most = s.max(most, unsafe { s.load(scores.as_ptr().add(at)) });
        }
        let after = s.reduce_max(most);
        let most = s.splat(after);
        let mut total = s.splat(0.0);
        for at in (0..KEYS).step_by(S::LANES) {
            // SAFETY: as above.
            unsafe {
                let p = scores.as_mut_ptr().add(at);
                let score = s.load(p);
                // Keys that are not seen have no weight at all, whatever the clamped exponential makes of them.
                let weight = exp(s, s.sub(score, most));
                let weight = s.select_ge(s.splat(LEAST), score, s.splat(0.0), weight);
                s.store(p, weight);
                total = s.add(total, weight);
            }
        }
        let fade = match before {
            LEAST => 0.0,
            _ if before == after => 1.0,
            _ => s.reduce_max(exp(s, s.splat(before - after))),
        };
        m.most[query] = after;
        m.total[query] = m.total[query] * fade + s.reduce_add(total);
        fade
    }

    /// Adds the block's first `seen` values, weighted, to what is left of the sums of `R` queries: `N` vectors of the head
    /// from `at` on.
    #[inline(always)]
    fn gather<S: Simd, const R: usize, const N: usize>(
        &mut self,
        s: S,
        first: usize,
        seen: usize,
        at: usize,
        fade: [f32; R],
    ) {
        let m = &mut self.memory;
        let padded = m.padded;
        // SAFETY: sums and values have `padded` floats a row, and `N` vectors from `at` on are within.
        unsafe {
            let mut acc = [[s.splat(0.0); N]; R];
            for r in 0..R {
                let p = m.sums.as_ptr().add((first + r) * padded + at);
                for n in 0..N {
                    acc[r][n] = s.mul(s.load(p.add(n * S::LANES)), s.splat(fade[r]));
                }
            }
            let mut values = m.values.as_ptr().add(at);
            let weights = m.scores.as_ptr();
            for key in 0..seen {
                let mut vs = [s.splat(0.0); N];
                for (n, v) in vs.iter_mut().enumerate() {
                    *v = s.load(values.add(n * S::LANES));
                }
                for r in 0..R {
                    let weight = s.splat(weights.add(r * KEYS + key).read());
                    for n in 0..N {
                        acc[r][n] = s.fma(weight, vs[n], acc[r][n]);
                    }
                }
                values = values.wrapping_add(padded);
            }
            for r in 0..R {
                let p = m.sums.as_mut_ptr().add((first + r) * padded + at);
                for n in 0..N {
                    s.store(p.add(n * S::LANES), acc[r][n]);
                }
            }
        }
    }

    /// Sums over totals, into the result.
    #[inline(always)]
    fn finish(&mut self, queries: usize) {
        let (op, m) = (self.op, &self.memory);
        for query in 0..queries {
            let (row, head) = (query / op.group(), self.head * op.group() + query % op.group());
            let at = ((self.row + row) * op.heads + head) * op.dim;
            // SAFETY: each head of each row is in one unit, which is one thread's.
            let y = unsafe { op.y.range(at..at + op.dim) };
            let scale = 1.0 / m.total[query];
            for (y, sum) in y.iter_mut().zip(&m.sums[query * m.padded..]) {
                *y = sum * scale;
            }
        }
    }
}

/// Bytes of a cache's row as F32, then zeros.
#[inline(always)]
fn widen_row<S: Simd, T: Format>(s: S, row: &[u8], to: &mut [f32]) {
    let len = row.len() / T::BYTES;
    assert!(len <= to.len(), "room for a row");
    let mut at = 0;
    // SAFETY: numbers from `at` on are within `row`, and as many floats within `to`.
    unsafe {
        while at + S::LANES <= len {
            s.store(to.as_mut_ptr().add(at), T::load(s, row.as_ptr().add(at * T::BYTES)));
            at += S::LANES;
        }
        if at < len {
            let n = len - at;
            s.store_part(to.as_mut_ptr().add(at), T::load_part(s, row.as_ptr().add(at * T::BYTES), n), n);
        }
    }
    to[len..].fill(0.0);
}
