//! `latent_attend`: attention over latent rows that weights expand, absorbed or expanded.
//!
//! *Absorbed*: `q · (w_key · c) = (w_keyᵀ · q) · c`, and `w_value` goes past the sum over positions alike. Queries become as
//! wide as a latent row, which is then key and value at once, whatever the number of heads. That is the cheap way for few
//! queries, and never expands the past. A unit is some heads and rows of [`super::attend`]; it decodes the rows of `w` that
//! are its heads', some at a time.
//!
//! *Expanded* ([`expanded`]): a unit is one head and many rows. It decodes the head's rows of `w` once, makes of each block
//! of latent rows the head's keys and values, and attends to them with all of its queries. Nothing expanded outlives its
//! block. That is the cheap way for many queries, by [`LatentAttend::expands`].

mod expanded;
#[cfg(test)]
mod tests;

pub(super) use expanded::Expand;

use super::attend::{Columns, Cut, Memory, Unit};
use super::linear_f32::widen::widen_row;
use super::rows::Past;
use super::{Out, Weights};
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use std::ops::Range;

/// Rows of `w` that are decoded together.
const DECODED: usize = 16;

/// Latent attention of one segment's rows over its past.
#[derive(Clone, Copy)]
pub(crate) struct LatentAttend<'a> {
    /// `[rows, heads · (key_dim + rope_dim)]`; row `i` stands at `position + i`.
    pub(crate) q: &'a [f32],
    pub(crate) position: usize,
    pub(crate) heads: usize,
    pub(crate) key_dim: usize,
    /// `[_, latent]` and `[_, rope_dim]`, by their positions.
    pub(crate) latent: Past<'a>,
    pub(crate) rope: Past<'a>,
    /// `[heads · (key_dim + value_dim), latent]`.
    pub(crate) w: Weights<'a>,
    pub(crate) scale: f32,
    /// Whether a row must have the same bits in steps of any length: then all are absorbed.
    pub(crate) exact: bool,
    /// `[rows, heads · value_dim]`.
    pub(crate) y: Out<'a>,
}

impl LatentAttend<'_> {
    fn query_dim(&self) -> usize {
        self.key_dim + self.rope.width
    }

    fn value_dim(&self) -> usize {
        self.w.outs() / self.heads - self.key_dim
    }

    fn rows(&self) -> usize {
        self.q.len() / (self.heads * self.query_dim())
    }

    fn cut(&self, threads: usize) -> Cut {
        let rows = self.rows();
        // Queries, absorbed queries, sums and results are kept.
        Cut::new(rows, 1, self.heads, 2 * (self.latent.width + self.rope.width), threads)
    }

    /// How many units of work there are for so many threads.
    pub(crate) fn units(&self, threads: usize) -> usize {
        if self.expands(threads) { self.spans(threads).units() } else { self.cut(threads).units() }
    }

    /// This thread's share of the units; as [`super::attend::Attend::part`].
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>, first: usize) {
        if self.expands(share.of()) {
            return self.part_expanded(isa, share, first);
        }
        let cut = self.cut(share.of());
        let (latent, queries) = (self.latent.width, cut.queries());
        let (wide, pad) = (latent + self.rope.width, latent.next_multiple_of(MAX_LANES));
        let sizes = Memory::sizes(queries, wide, latent, false);
        let own = [queries * (pad + self.rope.width), queries * pad, DECODED * pad];
        let all = sizes.iter().chain(&own).map(|n| piece(*n)).sum();
        with_scratch(all, |scratch| {
            for unit in (0..cut.units()).filter(|unit| (first + unit) % share.of() == share.index()) {
                let mut pieces = Pieces(&mut *scratch);
                let [absorbed, results, decoded] = own.map(|n| &mut pieces.take(n)[..n]);
                let memory = Memory::new(&mut pieces, sizes, wide, latent);
                let (_, heads, rows) = cut.unit(unit);
                self.absorb(isa, &heads, &rows, absorbed, decoded);
                isa.dispatch(Unit {
                    q: absorbed,
                    q_strides: (heads.len() * wide, wide),
                    rows: rows.len(),
                    heads: heads.len(),
                    position: self.position + rows.start,
                    keys: Columns { past: self.latent, cols: 0..latent },
                    more: Some(Columns { past: self.rope, cols: 0..self.rope.width }),
                    values: None,
                    expand: None,
                    compressed: None,
                    scale: self.scale,
                    window: usize::MAX,
                    softcap: None,
                    sinks: None,
                    y: Out::new(results),
                    y_first: 0,
                    y_strides: (heads.len() * pad, pad),
                    memory,
                });
                self.expand(isa, &heads, &rows, results, decoded);
            }
        });
    }

    /// Decodes rows `from ..` of head `head` of `w`, padded to whole vectors; as many as there is room for, up to `to`.
    fn decode(&self, isa: Isa, head: usize, rows: Range<usize>, decoded: &mut [f32]) -> usize {
        let pad = self.latent.width.next_multiple_of(MAX_LANES);
        let per_head = self.w.outs() / self.heads;
        let count = rows.len().min(DECODED);
        for (row, to) in rows.zip(decoded.chunks_exact_mut(pad)) {
            widen_row(isa, &self.w, head * per_head + row, to);
        }
        count
    }

    /// Queries of a unit as wide as latent rows, `[rows, heads, latent + rope_dim]`.
    fn absorb(
        &self,
        isa: Isa,
        heads: &Range<usize>,
        rows: &Range<usize>,
        absorbed: &mut [f32],
        decoded: &mut [f32],
    ) {
        let (dim, latent) = (self.query_dim(), self.latent.width);
        let wide = latent + self.rope.width;
        let query = |row: usize, head: usize| &self.q[(row * self.heads + head) * dim..][..dim];
        let at = |row: usize, head: usize| ((row - rows.start) * heads.len() + head - heads.start) * wide;
        for head in heads.clone() {
            for row in rows.clone() {
                let to = &mut absorbed[at(row, head)..][..wide];
                to[..latent].fill(0.0);
                to[latent..].copy_from_slice(&query(row, head)[self.key_dim..]);
            }
            let mut from = 0;
            while from < self.key_dim {
                let count = self.decode(isa, head, from..self.key_dim, decoded);
                for row in rows.clone() {
                    let factors = &query(row, head)[from..from + count];
                    let to = &mut absorbed[at(row, head)..][..latent];
                    isa.dispatch(AddRows { factors, rows: decoded, to });
                }
                from += count;
            }
        }
    }

    /// Results of a unit, `[rows, heads, latent padded]`, through the value rows of `w`.
    fn expand(
        &self,
        isa: Isa,
        heads: &Range<usize>,
        rows: &Range<usize>,
        results: &[f32],
        decoded: &mut [f32],
    ) {
        let (value_dim, latent) = (self.value_dim(), self.latent.width);
        let pad = latent.next_multiple_of(MAX_LANES);
        for head in heads.clone() {
            let mut from = 0;
            while from < value_dim {
                let end = self.key_dim + value_dim;
                let count = self.decode(isa, head, self.key_dim + from..end, decoded);
                for row in rows.clone() {
                    let at = ((row - rows.start) * heads.len() + head - heads.start) * pad;
                    let first = (row * self.heads + head) * value_dim + from;
                    // SAFETY: each head of each row is in one unit, which is one thread's.
                    let to = unsafe { self.y.range(first..first + count) };
                    isa.dispatch(Dots { x: &results[at..at + latent], rows: decoded, to });
                }
                from += count;
            }
        }
    }
}

/// `to += Σ factors[i] · rows[i]`, the rows padded to whole vectors of the widest machine.
struct AddRows<'a> {
    factors: &'a [f32],
    rows: &'a [f32],
    to: &'a mut [f32],
}

impl Kernel for AddRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (len, pad) = (self.to.len(), self.to.len().next_multiple_of(MAX_LANES));
        assert!(self.rows.len() >= self.factors.len() * pad, "a row for each factor");
        for at in (0..len).step_by(S::LANES) {
            let n = S::LANES.min(len - at);
            // SAFETY: `n` floats from `at` on are within `to`, and a vector from there within each row's padding.
            unsafe {
                let p = self.to.as_mut_ptr().add(at);
                let mut sum = s.load_part(p, n);
                for (i, factor) in self.factors.iter().enumerate() {
                    sum = s.fma(s.splat(*factor), s.load(self.rows.as_ptr().add(i * pad + at)), sum);
                }
                s.store_part(p, sum, n);
            }
        }
    }
}

/// `to[i] = x · rows[i]`, the rows padded to whole vectors of the widest machine.
struct Dots<'a> {
    x: &'a [f32],
    rows: &'a [f32],
    to: &'a mut [f32],
}

impl Kernel for Dots<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (len, pad) = (self.x.len(), self.x.len().next_multiple_of(MAX_LANES));
        assert!(self.rows.len() >= self.to.len() * pad, "a row for each result");
        for (i, to) in self.to.iter_mut().enumerate() {
            let mut sums = [s.splat(0.0); 2];
            for at in (0..len).step_by(S::LANES) {
                let n = S::LANES.min(len - at);
                let sum = &mut sums[at / S::LANES % 2];
                // SAFETY: `n` floats from `at` on are within `x`, and a vector from there within the row's padding.
                unsafe {
                    let x = s.load_part(self.x.as_ptr().add(at), n);
                    *sum = s.fma(x, s.load(self.rows.as_ptr().add(i * pad + at)), *sum);
                }
            }
            *to = s.reduce_add(s.add(sums[0], sums[1]));
        }
    }
}
