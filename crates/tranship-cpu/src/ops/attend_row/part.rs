//! One part of one row's past: scores, their softmax, and the weighted sums of values.

use super::{HEAD, PART, own};
use crate::arch::{Kernel, Simd};
use crate::ops::attend::{Attend, LEAST, softmax, squeeze};
use crate::ops::linear_f32::widen::{Bf16, F16, F32, Format};
use crate::ops::rows::{Lying, Past};
use std::marker::PhantomData;
use std::ops::Range;
use tranship_dtype::DType;

/// Rows that all heads go through before the next ones: they are in the nearest cache then.
const CHUNK: usize = 16;
/// How many rows ahead rows are asked for.
const AHEAD: usize = 32;

/// Some positions, all of one part, for the queries of some heads of keys.
pub(super) struct PartOf<'a> {
    pub(super) op: &'a Attend<'a>,
    /// One at least, and at most [`PART`].
    pub(super) positions: Range<usize>,
    pub(super) kv_heads: Range<usize>,
    /// `[queries, own]`: what each query has in this part.
    pub(super) to: &'a mut [f32],
    /// `[queries, PART]`: memory for scores, then weights.
    pub(super) weights: &'a mut [f32],
}

/// Rows of keys or values as they lie, of `T`, `stride` bytes apart.
#[derive(Clone, Copy)]
struct RowsOf<T> {
    first: *const u8,
    stride: usize,
    format: PhantomData<T>,
}

impl<T: Format> RowsOf<T> {
    /// Number `at` of row `row`.
    #[inline(always)]
    fn ptr(&self, row: usize, at: usize) -> *const u8 {
        self.first.wrapping_add(row * self.stride + at * T::BYTES)
    }
}

/// Some rows, and the queries that they are for.
#[derive(Clone, Copy)]
struct Tile {
    /// The first row, and its number in the part.
    row: usize,
    at: usize,
    rows: usize,
    /// The first query, and the column from which on rows are its.
    query: usize,
    column: usize,
}

/// What is done with rows.
trait Pass {
    /// For `R` queries.
    ///
    /// # Safety
    /// The tile's rows are there, with as many columns as the pass reads.
    unsafe fn tile<S: Simd, T: Format, const R: usize>(&mut self, s: S, from: RowsOf<T>, tile: Tile);
}

impl Kernel for PartOf<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let PartOf { op, positions, kv_heads, to, weights } = self;
        let of = Walk { op, positions, kv_heads };
        let (group, own) = (op.heads / op.kv_heads, own(op.value_dim()));
        let (queries, dim) = (of.kv_heads.len() * group, op.key_dim());
        assert!(to.len() >= queries * own && weights.len() >= queries * PART, "memory of a part");
        let q = &op.q[of.kv_heads.start * group * dim..][..queries * dim];
        of.walk(s, op.keys, &mut Scores { q, dim, to: weights });
        for query in 0..queries {
            let scores = &mut weights[query * PART..(query + 1) * PART];
            let to = &mut to[query * own..(query + 1) * own];
            to.fill(0.0);
            (to[0], to[1]) = weigh(s, scores, of.positions.len(), op.scale, op.softcap);
        }
        let (values, dim) = (op.values.unwrap_or(op.keys), op.value_dim());
        of.walk(s, values, &mut Sums { weights, dim, own, to });
    }
}

/// The rows of a part, for some heads of keys.
struct Walk<'a> {
    op: &'a Attend<'a>,
    positions: Range<usize>,
    kv_heads: Range<usize>,
}

impl Walk<'_> {
    /// Gives a pass all rows, those that lie one after the other at once.
    #[inline(always)]
    fn walk<S: Simd>(&self, s: S, past: Past<'_>, pass: &mut impl Pass) {
        let mut at = self.positions.start;
        while at < self.positions.end {
            let lying = past.lying(at..self.positions.end);
            let (columns, at_part) = (past.width / self.op.kv_heads, at - self.positions.start);
            match lying.dtype {
                DType::F16 => self.rows::<S, F16>(s, &lying, columns, at_part, pass),
                DType::BF16 => self.rows::<S, Bf16>(s, &lying, columns, at_part, pass),
                _ => self.rows::<S, F32>(s, &lying, columns, at_part, pass),
            }
            at += lying.rows;
        }
    }

    /// Gives a pass rows of one type, of which the first is number `at` of the part.
    #[inline(always)]
    fn rows<S: Simd, T: Format>(
        &self,
        s: S,
        lying: &Lying<'_>,
        columns: usize,
        at: usize,
        pass: &mut impl Pass,
    ) {
        let stride = columns * self.op.kv_heads * T::BYTES;
        assert!(lying.rows * stride <= lying.bytes.len(), "rows that are there");
        let from = RowsOf::<T> { first: lying.bytes.as_ptr(), stride, format: PhantomData };
        let group = self.op.heads / self.op.kv_heads;
        let most = if S::MANY_REGISTERS { 6 } else { 2 };
        for row in (0..lying.rows).step_by(CHUNK) {
            let rows = CHUNK.min(lying.rows - row);
            for (i, kv_head) in self.kv_heads.clone().enumerate() {
                for query in (0..group).step_by(most) {
                    let column = kv_head * columns;
                    let tile = Tile { row, at: at + row, rows, query: i * group + query, column };
                    // SAFETY: the rows are there by the check, and all heads' columns are in each.
                    unsafe {
                        match (group - query).min(most) {
                            1 => pass.tile::<S, T, 1>(s, from, tile),
                            2 => pass.tile::<S, T, 2>(s, from, tile),
                            3 => pass.tile::<S, T, 3>(s, from, tile),
                            4 => pass.tile::<S, T, 4>(s, from, tile),
                            5 => pass.tile::<S, T, 5>(s, from, tile),
                            _ => pass.tile::<S, T, 6>(s, from, tile),
                        }
                    }
                }
            }
        }
    }
}

/// Scores of queries by keys, not scaled yet.
struct Scores<'a> {
    /// `[queries, dim]`.
    q: &'a [f32],
    dim: usize,
    /// `[queries, PART]`.
    to: &'a mut [f32],
}

impl Pass for Scores<'_> {
    #[inline(always)]
    unsafe fn tile<S: Simd, T: Format, const R: usize>(&mut self, s: S, from: RowsOf<T>, tile: Tile) {
        let whole = tile.rows / 4 * 4;
        // SAFETY: the caller's.
        unsafe {
            for row in (0..whole).step_by(4) {
                self.some::<S, T, R, 4>(s, from, tile, row);
            }
            for row in whole..tile.rows {
                self.some::<S, T, R, 1>(s, from, tile, row);
            }
        }
    }
}

impl Scores<'_> {
    /// `R` queries by `N` rows, one or four, from row `row` of the tile on.
    #[inline(always)]
    unsafe fn some<S: Simd, T: Format, const R: usize, const N: usize>(
        &mut self,
        s: S,
        from: RowsOf<T>,
        tile: Tile,
        row: usize,
    ) {
        let q = self.q[tile.query * self.dim..(tile.query + R) * self.dim].as_ptr();
        let mut sums = [[s.splat(0.0); N]; R];
        let mut at = 0;
        // SAFETY: columns `at .. dim` of each query and of each of the rows.
        unsafe {
            while at < self.dim {
                let n = (self.dim - at).min(S::LANES);
                let mut keys = [s.splat(0.0); N];
                for (i, key) in keys.iter_mut().enumerate() {
                    let p = from.ptr(tile.row + row + i, tile.column + at);
                    if (at * T::BYTES).is_multiple_of(64) {
                        s.prefetch(p.wrapping_add(AHEAD * from.stride));
                    }
                    *key = if n == S::LANES { T::load(s, p) } else { T::load_part(s, p, n) };
                }
                for r in 0..R {
                    let x = s.load_part(q.add(r * self.dim + at), n);
                    for i in 0..N {
                        sums[r][i] = s.fma(x, keys[i], sums[r][i]);
                    }
                }
                at += S::LANES;
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            let to = &mut self.to[(tile.query + r) * PART + tile.at + row..][..N];
            match sums.as_chunks::<4>().0 {
                [four] => to.copy_from_slice(&s.reduce_add4(*four)),
                _ => to[0] = s.reduce_add(sums[0]),
            }
        }
    }
}

/// Weighted sums of values.
struct Sums<'a> {
    /// `[queries, PART]`.
    weights: &'a [f32],
    dim: usize,
    /// `[queries, own]`, of which the sums begin at [`HEAD`].
    to: &'a mut [f32],
    own: usize,
}

impl Pass for Sums<'_> {
    #[inline(always)]
    unsafe fn tile<S: Simd, T: Format, const R: usize>(&mut self, s: S, from: RowsOf<T>, tile: Tile) {
        let mut at = 0;
        // SAFETY: the caller's; columns `at .. dim` are a value's.
        unsafe {
            while at + 4 * S::LANES <= self.dim {
                if S::MANY_REGISTERS {
                    self.some::<S, T, R, 4>(s, from, tile, at);
                    at += 4 * S::LANES;
                } else {
                    self.some::<S, T, R, 2>(s, from, tile, at);
                    at += 2 * S::LANES;
                }
            }
            while at < self.dim {
                self.some::<S, T, R, 1>(s, from, tile, at);
                at += S::LANES;
            }
        }
    }
}

impl Sums<'_> {
    /// `R` queries by all rows of the tile: `N` vectors of columns from `at` on, or the one that is cut short.
    #[inline(always)]
    unsafe fn some<S: Simd, T: Format, const R: usize, const N: usize>(
        &mut self,
        s: S,
        from: RowsOf<T>,
        tile: Tile,
        at: usize,
    ) {
        let n = (self.dim - at).min(S::LANES);
        let weights = &self.weights[tile.query * PART..(tile.query + R) * PART];
        let to = &mut self.to[tile.query * self.own + HEAD + at..(tile.query + R) * self.own];
        assert!(tile.at + tile.rows <= PART, "rows of the part");
        // SAFETY: the vectors are within each query's sums, whose room is a whole number of vectors, and within each row.
        unsafe {
            let mut acc = [[s.splat(0.0); N]; R];
            for (r, acc) in acc.iter_mut().enumerate() {
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = s.load(to.as_ptr().add(r * self.own + i * S::LANES));
                }
            }
            for row in 0..tile.rows {
                let mut values = [s.splat(0.0); N];
                for (i, value) in values.iter_mut().enumerate() {
                    let p = from.ptr(tile.row + row, tile.column + at + i * S::LANES);
                    if (i * S::LANES * T::BYTES).is_multiple_of(64) {
                        s.prefetch(p.wrapping_add(AHEAD * from.stride));
                    }
                    *value = if N > 1 || n == S::LANES { T::load(s, p) } else { T::load_part(s, p, n) };
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let weight = s.splat(weights.as_ptr().add(r * PART + tile.at + row).read());
                    for (acc, value) in acc.iter_mut().zip(values) {
                        *acc = s.fma(weight, value, *acc);
                    }
                }
            }
            for (r, acc) in acc.into_iter().enumerate() {
                for (i, acc) in acc.into_iter().enumerate() {
                    s.store(to.as_mut_ptr().add(r * self.own + i * S::LANES), acc);
                }
            }
        }
    }
}

/// The first `n` scores of one query into weights; gives the greatest score and the sum of weights.
#[inline(always)]
fn weigh<S: Simd>(s: S, scores: &mut [f32], n: usize, scale: f32, cap: Option<f32>) -> (f32, f32) {
    let padded = n.next_multiple_of(S::LANES);
    let scores = &mut scores[..padded];
    scores[n..].fill(0.0);
    // SAFETY: whole vectors of the scores.
    unsafe {
        for at in (0..padded).step_by(S::LANES) {
            let p = scores.as_mut_ptr().add(at);
            s.store(p, s.mul(s.load(p), s.splat(scale)));
        }
    }
    if let Some(cap) = cap {
        squeeze(s, scores, cap);
    }
    scores[n..].fill(LEAST);
    softmax(s, scores, LEAST)
}
