//! `attend`: causal attention over a sequence's past, with an online softmax over blocks of keys.
//!
//! Work comes in units: up to [`ROWS`] rows of queries with query heads that share one head of keys, all of them or,
//! where that would leave threads without work, some. A unit walks the keys in blocks of [`KEYS`] that start at
//! *absolute* multiples of it, and keeps for each query the greatest score so far, the sum of weights and the weighted
//! sum of values (Milakov and Gimelshein, 2018). What happens to one query depends on its own position alone, never on
//! which rows, heads, threads or segments run beside it: any split of a prompt gives the same bits. A block of which a
//! query sees nothing changes nothing of it, whether it is walked for the queries beside it or not.
//!
//! A block's keys and values are widened to F32 once for the unit, the keys transposed: then lanes are keys, and each
//! score is one sum along the head, whose next term is a broadcast element of the query. Weighted sums have the head in
//! their lanes and broadcast weights. Both are register tiles of several queries by several vectors, without any
//! addition across lanes but those of the softmax.
//!
//! A [`Unit`] is also what latent and compressed attention are made of: keys may be of two parts, values may be the keys
//! themselves, and after the positions it may walk compressed rows under the same softmax.

use super::Out;
use super::exp::exp;
use super::functions::tanh;
use super::latent_attend::Expand;
use super::rows::Past;
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use std::ops::Range;

/// Keys of a block.
pub(super) const KEYS: usize = 64;
/// Rows of queries of a unit.
const ROWS: usize = 32;
/// Queries that are in registers together.
const TILE: usize = 6;
/// Floats of weighted sums that a unit keeps, about: what stays near a core while it walks the keys.
const SUMS: usize = 1 << 16;
/// A score that no real one is below.
pub(super) const LEAST: f32 = f32::MIN;

/// Attention of one segment's rows over its past.
#[derive(Clone, Copy)]
pub(crate) struct Attend<'a> {
    /// `[rows, heads · key_dim]`; row `i` stands at `position + i`.
    pub(crate) q: &'a [f32],
    pub(crate) position: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Rows by their positions, up to the step's last or as far back as the window goes, `[_, kv_heads · key_dim]`.
    pub(crate) keys: Past<'a>,
    /// `[_, kv_heads · value_dim]`; the keys themselves where there are none.
    pub(crate) values: Option<Past<'a>>,
    pub(crate) scale: f32,
    /// Positions that a query sees, its own included.
    pub(crate) window: Option<usize>,
    pub(crate) softcap: Option<f32>,
    /// `[heads]`.
    pub(crate) sinks: Option<&'a [f32]>,
    pub(crate) compressed: Option<Compressed<'a>>,
    /// `[rows, heads · value_dim]`.
    pub(crate) y: Out<'a>,
}

/// Compressed rows that are attended to after those at the positions.
#[derive(Clone, Copy)]
pub(crate) struct Compressed<'a> {
    /// Row `j` is whole from position `(j + 1) · rate − 1` on; keys and values at once.
    pub(crate) past: Past<'a>,
    pub(crate) rate: usize,
    /// The rows that each query row sees, `[rows, k]` in rising order, where these are not all.
    pub(crate) chosen: Option<(&'a [u32], usize)>,
}

/// How a segment's work is cut into units: rows by [`ROWS`], and the heads of a group into equal parts.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    rows: usize,
    kv_heads: usize,
    group: usize,
    /// Query heads of a unit.
    pub(super) heads: usize,
}

impl Cut {
    /// Units for `threads` threads. `width` floats are kept for each query.
    pub(super) fn new(rows: usize, kv_heads: usize, group: usize, width: usize, threads: usize) -> Cut {
        let whole = kv_heads * rows.div_ceil(ROWS);
        let parts = threads.div_ceil(whole).min(group.div_ceil(4));
        let fits = (SUMS / (rows.min(ROWS) * width)).max(1);
        Cut { rows, kv_heads, group, heads: group.div_ceil(parts).min(fits) }
    }

    fn parts(&self) -> usize {
        self.group.div_ceil(self.heads)
    }

    pub(super) fn units(&self) -> usize {
        self.kv_heads * self.parts() * self.rows.div_ceil(ROWS)
    }

    /// The key head, the query heads and the rows of a unit.
    pub(super) fn unit(&self, unit: usize) -> (usize, Range<usize>, Range<usize>) {
        let (kv_head, unit) = (unit % self.kv_heads, unit / self.kv_heads);
        let (part, row) = (unit % self.parts(), unit / self.parts() * ROWS);
        let first = kv_head * self.group;
        let heads = first + part * self.heads..first + ((part + 1) * self.heads).min(self.group);
        (kv_head, heads, row..(row + ROWS).min(self.rows))
    }

    /// The most queries of a unit.
    pub(super) fn queries(&self) -> usize {
        self.rows.min(ROWS) * self.heads
    }
}

impl Attend<'_> {
    pub(super) fn key_dim(&self) -> usize {
        self.keys.width / self.kv_heads
    }

    pub(super) fn value_dim(&self) -> usize {
        self.values.map_or(self.keys.width, |v| v.width) / self.kv_heads
    }

    fn cut(&self, threads: usize) -> Cut {
        let rows = self.q.len() / (self.heads * self.key_dim());
        Cut::new(rows, self.kv_heads, self.heads / self.kv_heads, self.value_dim(), threads)
    }

    /// How many units of work there are for so many threads.
    pub(crate) fn units(&self, threads: usize) -> usize {
        self.cut(threads).units()
    }

    /// This thread's share of the units, dealt out in turn: later rows have more keys. `first` is the number of the
    /// first unit among those of a whole batch.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>, first: usize) {
        let (key_dim, value_dim, cut) = (self.key_dim(), self.value_dim(), self.cut(share.of()));
        let rows = self.q.len() / (self.heads * key_dim);
        assert_eq!(self.y.len(), rows * self.heads * value_dim, "a row out for each row in");
        let sizes = Memory::sizes(cut.queries(), key_dim, value_dim, self.values.is_some());
        with_scratch(sizes.iter().map(|n| piece(*n)).sum(), |scratch| {
            for unit in (0..cut.units()).filter(|unit| (first + unit) % share.of() == share.index()) {
                let (kv_head, heads, rows) = cut.unit(unit);
                let part = |dim: usize| kv_head * dim..(kv_head + 1) * dim;
                let compressed = self.compressed.map(|c| Compressed {
                    chosen: c.chosen.map(|(chosen, k)| (&chosen[rows.start * k..], k)),
                    ..c
                });
                isa.dispatch(Unit {
                    q: &self.q[(rows.start * self.heads + heads.start) * key_dim..],
                    q_strides: (self.heads * key_dim, key_dim),
                    rows: rows.len(),
                    heads: heads.len(),
                    position: self.position + rows.start,
                    keys: Columns { past: self.keys, cols: part(key_dim) },
                    more: None,
                    values: self.values.map(|past| Columns { past, cols: part(value_dim) }),
                    expand: None,
                    compressed,
                    scale: self.scale,
                    window: self.window.unwrap_or(usize::MAX),
                    softcap: self.softcap,
                    sinks: self.sinks.map(|sinks| &sinks[heads.clone()]),
                    y: self.y,
                    y_first: (rows.start * self.heads + heads.start) * value_dim,
                    y_strides: (self.heads * value_dim, value_dim),
                    memory: Memory::new(&mut Pieces(&mut *scratch), sizes, key_dim, value_dim),
                });
            }
        });
    }
}

/// One head's columns of rows of the past.
#[derive(Clone)]
pub(super) struct Columns<'a> {
    pub(super) past: Past<'a>,
    pub(super) cols: Range<usize>,
}

/// What a unit keeps while it walks the keys.
pub(super) struct Memory<'a> {
    /// The sizes of keys and values, rounded up to whole vectors of the widest machine.
    pub(super) key_pad: usize,
    pub(super) value_pad: usize,
    /// The block's keys in F32 as they come, `[KEYS, key_pad]`; rows that are expanded to them, where they are.
    pub(super) rows: &'a mut [f32],
    /// The keys transposed, `[key_pad, KEYS]`.
    pub(super) keys: &'a mut [f32],
    /// The block's values in F32, `[KEYS, value_pad]`, padded with zeros; empty where these are the keys.
    pub(super) values: &'a mut [f32],
    /// Weighted sums of values, `[queries, value_pad]`.
    pub(super) sums: &'a mut [f32],
    /// The greatest score and the sum of weights of each query.
    pub(super) most: &'a mut [f32],
    pub(super) total: &'a mut [f32],
    /// Scores, then weights, of the queries in registers, `[TILE, KEYS]`.
    scores: &'a mut [f32],
}

impl<'a> Memory<'a> {
    /// The floats of each piece, for as many queries.
    pub(super) fn sizes(queries: usize, key_dim: usize, value_dim: usize, values: bool) -> [usize; 7] {
        let (key, value) = (key_dim.next_multiple_of(MAX_LANES), value_dim.next_multiple_of(MAX_LANES));
        let own = if values { KEYS * value } else { 0 };
        [KEYS * key, KEYS * key, own, queries * value, queries, queries, TILE * KEYS]
    }

    pub(super) fn new(
        pieces: &mut Pieces<'a>,
        sizes: [usize; 7],
        key_dim: usize,
        value_dim: usize,
    ) -> Memory<'a> {
        let [rows, keys, values, sums, most, total, scores] = sizes.map(|n| &mut pieces.take(n)[..n]);
        let (key_pad, value_pad) =
            (key_dim.next_multiple_of(MAX_LANES), value_dim.next_multiple_of(MAX_LANES));
        Memory { key_pad, value_pad, rows, keys, values, sums, most, total, scores }
    }
}

/// Some rows and some query heads that share one head of keys.
pub(super) struct Unit<'a> {
    /// Row `r`'s query of head `h` starts at `r · q_strides.0 + h · q_strides.1`.
    pub(super) q: &'a [f32],
    pub(super) q_strides: (usize, usize),
    pub(super) rows: usize,
    pub(super) heads: usize,
    /// The first row's.
    pub(super) position: usize,
    pub(super) keys: Columns<'a>,
    /// What each key goes on with, where it is of two parts.
    pub(super) more: Option<Columns<'a>>,
    /// The first part of the keys is the value where there are none.
    pub(super) values: Option<Columns<'a>>,
    /// What makes keys and values of rows that are kept; then of those above the number of columns counts alone.
    pub(super) expand: Option<Expand<'a>>,
    pub(super) compressed: Option<Compressed<'a>>,
    pub(super) scale: f32,
    pub(super) window: usize,
    pub(super) softcap: Option<f32>,
    /// `[heads]`.
    pub(super) sinks: Option<&'a [f32]>,
    /// Row `r`'s result of head `h` starts at `y_first + r · y_strides.0 + h · y_strides.1`.
    pub(super) y: Out<'a>,
    pub(super) y_first: usize,
    pub(super) y_strides: (usize, usize),
    pub(super) memory: Memory<'a>,
}

/// Where the rows of a block come from.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// The positions from one on.
    Positions(usize),
    /// The compressed rows from one on.
    Compressed(usize),
    /// Compressed rows that were chosen for one row of queries.
    Chosen(&'a [u32]),
}

/// A block of keys, and the queries that it is for.
struct Block<'a> {
    source: Source<'a>,
    /// The keys that are read; those before and after are zero.
    held: Range<usize>,
    queries: Range<usize>,
}

impl Kernel for Unit<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.memory.sums.fill(0.0);
        for query in 0..self.rows * self.heads {
            // A sink is a score that is there before all others, and has no value.
            let sink = self.sinks.map_or(LEAST, |sinks| sinks[query % self.heads]);
            let none = sink <= LEAST;
            self.memory.most[query] = if none { LEAST } else { sink };
            self.memory.total[query] = if none { 0.0 } else { 1.0 };
        }
        let mut at = self.first();
        while let Some(block) = self.next(&mut at) {
            match (&mut self.expand, block.source) {
                (Some(expand), Source::Positions(first)) => {
                    expand.block(s, first, &block.held, &mut self.memory);
                }
                _ => self.widen(s, &block),
            }
            let Range { start, end } = block.queries;
            for first in (start..end).step_by(TILE) {
                match end - first {
                    1 => self.tile::<S, 1>(s, block.source, first),
                    2 => self.tile::<S, 2>(s, block.source, first),
                    3 => self.tile::<S, 3>(s, block.source, first),
                    4 => self.tile::<S, 4>(s, block.source, first),
                    5 => self.tile::<S, 5>(s, block.source, first),
                    _ => self.tile::<S, TILE>(s, block.source, first),
                }
            }
        }
        self.finish();
    }
}

/// How far a walk over the blocks has come.
struct Walk {
    /// The next position, until all are done.
    position: usize,
    /// The next compressed row, or of the rows that were chosen for `row`.
    compressed: usize,
    row: usize,
}

impl<'a> Unit<'a> {
    /// The start of a walk: at the block of the first position that the first row sees.
    fn first(&self) -> Walk {
        let from = (self.position + 1).saturating_sub(self.window);
        Walk { position: from / KEYS * KEYS, compressed: 0, row: 0 }
    }

    /// The next block: positions first, then compressed rows, or those that were chosen for one row after the other.
    fn next(&self, at: &mut Walk) -> Option<Block<'a>> {
        let end = self.position + self.rows;
        if at.position < end {
            let block = at.position;
            at.position += KEYS;
            let from = (self.position + 1).saturating_sub(self.window).max(block) - block;
            let held = from..KEYS.min(end - block);
            return Some(Block {
                source: Source::Positions(block),
                held,
                queries: 0..self.rows * self.heads,
            });
        }
        let compressed = self.compressed?;
        let Some((chosen, k)) = compressed.chosen else {
            let (block, end) = (at.compressed, end / compressed.rate);
            at.compressed += KEYS;
            return (block < end).then(|| Block {
                source: Source::Compressed(block),
                held: 0..KEYS.min(end - block),
                queries: 0..self.rows * self.heads,
            });
        };
        while at.row < self.rows {
            let row = at.row;
            let whole = ((self.position + row + 1) / compressed.rate) as u32;
            let list = &chosen[row * k..(row + 1) * k];
            let list = &list[..list.partition_point(|j| *j < whole)];
            if at.compressed < list.len() {
                let list = &list[at.compressed..list.len().min(at.compressed + KEYS)];
                at.compressed += KEYS;
                return Some(Block {
                    source: Source::Chosen(list),
                    held: 0..list.len(),
                    queries: row * self.heads..(row + 1) * self.heads,
                });
            }
            (at.row, at.compressed) = (row + 1, 0);
        }
        None
    }

    /// Widens the keys and values of a block to F32, and transposes the keys; rows that are not held are zero.
    #[inline(always)]
    fn widen<S: Simd>(&mut self, s: S, block: &Block<'_>) {
        let m = &mut self.memory;
        let (dim, pad, held) = (self.keys.cols.len(), m.key_pad, block.held.clone());
        match (block.source, &self.compressed) {
            (Source::Positions(first), _) => {
                self.keys.past.widen_rows(s, first, held.clone(), self.keys.cols.clone(), m.rows, (pad, pad));
                if let Some(more) = &self.more {
                    let to = &mut m.rows[dim..];
                    more.past.widen_rows(s, first, held.clone(), more.cols.clone(), to, (pad, pad - dim));
                }
            }
            (Source::Compressed(first), Some(c)) => {
                c.past.widen_rows(s, first, held.clone(), 0..dim, m.rows, (pad, pad));
            }
            (Source::Chosen(list), Some(c)) => {
                for (row, to) in list.iter().zip(m.rows.chunks_exact_mut(pad)) {
                    c.past.widen(s, *row as usize, 0..dim, to);
                }
            }
            _ => {}
        }
        m.rows[..held.start * pad].fill(0.0);
        m.rows[held.end * pad..].fill(0.0);
        if let (Some(values), Source::Positions(first)) = (&self.values, block.source) {
            let pad = m.value_pad;
            values.past.widen_rows(s, first, held.clone(), values.cols.clone(), m.values, (pad, pad));
            m.values[..held.start * pad].fill(0.0);
            m.values[held.end * pad..].fill(0.0);
        }
        turn(s, m.rows, pad, m.keys);
    }

    /// The keys of a block that query `query` sees, from one to before another.
    #[inline(always)]
    fn seen(&self, source: Source<'_>, query: usize) -> (usize, usize) {
        let end = self.position + query / self.heads + 1;
        match source {
            Source::Positions(block) => (
                end.saturating_sub(self.window).saturating_sub(block).min(KEYS),
                end.saturating_sub(block).min(KEYS),
            ),
            Source::Compressed(block) => {
                let rate = self.compressed.map_or(1, |c| c.rate);
                (0, (end / rate).saturating_sub(block).min(KEYS))
            }
            Source::Chosen(list) => (0, list.len()),
        }
    }

    /// The block's part in the results of `R` queries from `first` on.
    #[inline(always)]
    fn tile<S: Simd, const R: usize>(&mut self, s: S, source: Source<'_>, first: usize) {
        // Later queries see no less.
        let most = self.seen(source, first + R - 1).1;
        if most == 0 || self.seen(source, first).0 >= KEYS {
            return;
        }
        if S::MANY_REGISTERS {
            self.score::<S, R, 4>(s, first, most)
        } else {
            self.score::<S, R, 2>(s, first, most)
        }
        let mut fade = [0.0; R];
        for (r, fade) in fade.iter_mut().enumerate() {
            *fade = self.weigh(s, first + r, r, self.seen(source, first + r));
        }
        let (padded, four) =
            (self.memory.value_pad, if S::MANY_REGISTERS { 4 * S::LANES } else { 2 * S::LANES });
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
        let dim = self.keys.cols.len() + self.more.as_ref().map_or(0, |m| m.cols.len());
        let m = &mut self.memory;
        let mut q = [std::ptr::null(); R];
        for (r, q) in q.iter_mut().enumerate() {
            let (row, head) = ((first + r) / self.heads, (first + r) % self.heads);
            *q = self.q[row * self.q_strides.0 + head * self.q_strides.1..][..dim].as_ptr();
        }
        for key in (0..seen).step_by(N * S::LANES) {
            let mut sums = [[s.splat(0.0); N]; R];
            let mut keys = m.keys.as_ptr().wrapping_add(key);
            for at in 0..dim {
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
                    let scaled = s.mul(sums[r][n], s.splat(self.scale));
                    // SAFETY: `scores` holds `KEYS` for each query of the tile.
                    unsafe { s.store(m.scores.as_mut_ptr().add(r * KEYS + key + n * S::LANES), scaled) };
                }
            }
        }
    }

    /// Scores of one query into weights; gives the factor that brings what was summed before to the new greatest score.
    #[inline(always)]
    fn weigh<S: Simd>(&mut self, s: S, query: usize, r: usize, (from, seen): (usize, usize)) -> f32 {
        let m = &mut self.memory;
        let scores = &mut m.scores[r * KEYS..(r + 1) * KEYS];
        if let Some(cap) = self.softcap {
            squeeze(s, &mut scores[..seen.next_multiple_of(S::LANES)], cap);
        }
        if seen < KEYS {
            scores[seen..].fill(LEAST);
        }
        if from > 0 {
            scores[..from].fill(LEAST);
        }
        let before = m.most[query];
        let (after, total) = softmax(s, scores, before);
        let fade = match before {
            LEAST => 0.0,
            _ if before == after => 1.0,
            _ => s.reduce_max(exp(s, s.splat(before - after))),
        };
        m.most[query] = after;
        m.total[query] = m.total[query] * fade + total;
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
        let padded = m.value_pad;
        let (values, stride) =
            if m.values.is_empty() { (m.rows.as_ptr(), m.key_pad) } else { (m.values.as_ptr(), padded) };
        // SAFETY: sums and values have `padded` floats a row or more, and `N` vectors from `at` on are within.
        unsafe {
            let mut acc = [[s.splat(0.0); N]; R];
            for r in 0..R {
                let p = m.sums.as_ptr().add((first + r) * padded + at);
                for n in 0..N {
                    acc[r][n] = s.mul(s.load(p.add(n * S::LANES)), s.splat(fade[r]));
                }
            }
            let mut values = values.add(at);
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
                values = values.wrapping_add(stride);
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
    fn finish(&mut self) {
        let m = &self.memory;
        let dim = self.values.as_ref().unwrap_or(&self.keys).cols.len();
        for query in 0..self.rows * self.heads {
            let (row, head) = (query / self.heads, query % self.heads);
            let at = self.y_first + row * self.y_strides.0 + head * self.y_strides.1;
            // SAFETY: each head of each row is in one unit, which is one thread's.
            let y = unsafe { self.y.range(at..at + dim) };
            let scale = 1.0 / m.total[query];
            for (y, sum) in y.iter_mut().zip(&m.sums[query * m.value_pad..]) {
                *y = sum * scale;
            }
        }
    }
}

/// Transposes `KEYS` rows of `pad` floats, whole vectors, into `pad` rows of `KEYS`.
#[inline(always)]
pub(super) fn turn<S: Simd>(s: S, rows: &[f32], pad: usize, to: &mut [f32]) {
    assert!(rows.len() >= KEYS * pad && to.len() >= KEYS * pad && pad.is_multiple_of(S::LANES));
    for key in (0..KEYS).step_by(S::LANES) {
        for at in (0..pad).step_by(S::LANES) {
            // SAFETY: `KEYS` and `pad` are whole numbers of vectors; both arrays hold their product.
            unsafe {
                let src = rows.as_ptr().add(key * pad + at);
                let dst = to.as_mut_ptr().add(at * KEYS + key);
                s.transpose(src.cast(), pad * 4, dst.cast(), KEYS * 4);
            }
        }
    }
}

/// Whole vectors of scores into weights by the greatest score, `before` or one of them; gives that and the sum of weights.
#[inline(always)]
pub(super) fn softmax<S: Simd>(s: S, scores: &mut [f32], before: f32) -> (f32, f32) {
    assert!(scores.len().is_multiple_of(S::LANES), "whole vectors");
    let (mut most, mut total) = (s.splat(before), s.splat(0.0));
    for at in (0..scores.len()).step_by(S::LANES) {
        // SAFETY: a whole vector from `at` on.
        most = s.max(most, unsafe { s.load(scores.as_ptr().add(at)) });
    }
    let greatest = s.reduce_max(most);
    for at in (0..scores.len()).step_by(S::LANES) {
        // SAFETY: as above.
        unsafe {
            let p = scores.as_mut_ptr().add(at);
            let score = s.load(p);
            // Keys that are not seen have no weight at all, whatever the clamped exponential makes of them.
            let weight = exp(s, s.sub(score, s.splat(greatest)));
            let weight = s.select_ge(s.splat(LEAST), score, s.splat(0.0), weight);
            s.store(p, weight);
            total = s.add(total, weight);
        }
    }
    (greatest, s.reduce_add(total))
}

/// `cap · tanh(score / cap)` of whole vectors of scores.
#[inline(always)]
pub(super) fn squeeze<S: Simd>(s: S, scores: &mut [f32], cap: f32) {
    let (cap, inverse) = (s.splat(cap), s.splat(1.0 / cap));
    for at in (0..scores.len()).step_by(S::LANES) {
        // SAFETY: the caller's scores are whole vectors.
        unsafe {
            let p = scores.as_mut_ptr().add(at);
            s.store(p, s.mul(cap, tanh(s, s.mul(s.load(p), inverse))));
        }
    }
}
