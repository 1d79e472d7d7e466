//! The expanded form: for one head at a time, keys and values of each block of latent rows, once for many queries.
//!
//! A block's latent rows are transposed, so that lanes are keys; then keys and values are register tiles of some rows of
//! the head's part of `w` by all keys of the block. Keys come out as scores want them. Values are transposed back.

use super::LatentAttend;
use crate::arch::{Isa, MAX_LANES, Simd};
use crate::ops::attend::{Columns, KEYS, Memory, Unit, turn};
use crate::ops::linear_f32::widen::widen_row;
use crate::ops::rows::Past;
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use std::ops::Range;

/// Floats of weighted sums that a unit keeps at the most: half a megabyte, beside the head's part of `w`.
const SUMS: usize = 1 << 17;
/// Numbers of a latent row that a tile goes along at a time: 32 KB of a transposed block.
const CUT: usize = 128;
/// Rows of `w` that are in registers together.
const TILE: usize = 4;
/// What a product of `w` with a query or a result costs, where one of a register tile costs 1; as measured, see
/// `docs/kernels-cpu.md`.
const ABSORBING: usize = 6;

/// How a segment's rows and the heads are cut into units.
#[derive(Clone, Copy)]
pub(super) struct Spans {
    heads: usize,
    rows: usize,
    /// Rows of a unit.
    each: usize,
}

impl Spans {
    pub(super) fn units(self) -> usize {
        self.heads * self.parts()
    }

    fn parts(self) -> usize {
        self.rows.div_ceil(self.each)
    }

    /// The rows of a part.
    fn part(self, part: usize) -> Range<usize> {
        part * self.each..((part + 1) * self.each).min(self.rows)
    }
}

impl LatentAttend<'_> {
    /// As few parts of the rows as there is room for sums, and as give each thread a unit.
    pub(super) fn spans(&self, threads: usize) -> Spans {
        let (rows, heads) = (self.rows(), self.heads);
        let fit = (SUMS / self.value_dim().next_multiple_of(MAX_LANES)).max(1);
        let parts = rows.div_ceil(fit).max(threads.div_ceil(heads)).min(rows).max(1);
        Spans { heads, rows, each: rows.div_ceil(parts).max(1) }
    }

    /// Whether keys and values are expanded: where that costs fewer products of one head.
    ///
    /// Of `n` rows that see `s` keys in all, absorbing costs `n · (key + value) · latent` products with `w`, each counted
    /// [`ABSORBING`] times, and
    /// `s · (2 · latent + rope)` of queries with keys and weights with values. Expanding costs `(key + value) · latent` for
    /// each latent row up to the end of its block, once for each part, and `s · (key + rope + value)`.
    pub(super) fn expands(&self, threads: usize) -> bool {
        let (rows, latent, rope) = (self.rows(), self.latent.width, self.rope.width);
        if self.exact || rows == 0 {
            return false;
        }
        let (own, spans) = (self.key_dim + self.value_dim(), self.spans(threads));
        let seen = rows * self.position + rows * (rows + 1) / 2;
        let ends = (0..spans.parts()).map(|part| self.position + spans.part(part).end);
        let made: usize = ends.map(|end| end.next_multiple_of(KEYS)).sum();
        let absorbed = ABSORBING * rows * own * latent + seen * (2 * latent + rope);
        made * own * latent + seen * (own + rope) < absorbed
    }

    /// This thread's share of the units.
    pub(super) fn part_expanded(&self, isa: Isa, share: Share<'_>, first: usize) {
        let (spans, latent, value_dim) = (self.spans(share.of()), self.latent.width, self.value_dim());
        let [pad, rope_pad, value_pad] =
            [latent, self.rope.width, value_dim].map(|n| n.next_multiple_of(MAX_LANES));
        let queries = spans.each;
        let mut sizes = Memory::sizes(queries, latent, value_dim, true);
        sizes[1] = (self.key_dim + rope_pad) * KEYS;
        let own = [(self.key_dim + value_dim) * pad, pad * KEYS, KEYS * rope_pad, value_pad * KEYS];
        with_scratch(sizes.iter().chain(&own).map(|n| piece(*n)).sum(), |scratch| {
            for unit in (0..spans.units()).filter(|unit| (first + unit) % share.of() == share.index()) {
                let (head, rows) = (unit % self.heads, spans.part(unit / self.heads));
                let mut pieces = Pieces(&mut *scratch);
                let [w, latents, rope_rows, values] = own.map(|n| &mut pieces.take(n)[..n]);
                let memory = Memory::new(&mut pieces, sizes, latent, value_dim);
                let per_head = self.key_dim + value_dim;
                for (row, to) in w.chunks_exact_mut(pad).enumerate() {
                    widen_row(isa, &self.w, head * per_head + row, to);
                }
                values.fill(0.0);
                let key_dim = self.key_dim;
                let expand =
                    Expand { latent: self.latent, rope: self.rope, key_dim, w, latents, rope_rows, values };
                let dim = self.query_dim();
                isa.dispatch(Unit {
                    q: &self.q[(rows.start * self.heads + head) * dim..],
                    q_strides: (self.heads * dim, dim),
                    rows: rows.len(),
                    heads: 1,
                    position: self.position + rows.start,
                    keys: Columns { past: self.latent, cols: 0..dim },
                    more: None,
                    values: Some(Columns { past: self.latent, cols: 0..value_dim }),
                    expand: Some(expand),
                    compressed: None,
                    scale: self.scale,
                    window: usize::MAX,
                    softcap: None,
                    sinks: None,
                    y: self.y,
                    y_first: (rows.start * self.heads + head) * value_dim,
                    y_strides: (self.heads * value_dim, value_dim),
                    memory,
                });
            }
        });
    }
}

/// What makes a head's keys and values of latent rows.
pub(in crate::ops) struct Expand<'a> {
    latent: Past<'a>,
    rope: Past<'a>,
    key_dim: usize,
    /// The head's rows in F32, `[key_dim + value_dim, latent padded]`.
    w: &'a [f32],
    /// A block of latent rows transposed, `[latent padded, KEYS]`.
    latents: &'a mut [f32],
    /// Its rotated keys, `[KEYS, rope_dim padded]`.
    rope_rows: &'a mut [f32],
    /// Its values transposed, `[value_dim padded, KEYS]`; the padding stays zero.
    values: &'a mut [f32],
}

impl Expand<'_> {
    /// Keys and values of the rows `held` of the block from row `first` on; of the others they are zero.
    #[inline(always)]
    pub(in crate::ops) fn block<S: Simd>(
        &mut self,
        s: S,
        first: usize,
        held: &Range<usize>,
        m: &mut Memory<'_>,
    ) {
        let pad = m.key_pad;
        self.latent.widen_rows(s, first, held.clone(), 0..self.latent.width, m.rows, (pad, pad));
        zero(m.rows, held, pad);
        turn(s, m.rows, pad, self.latents);
        let rope_pad = self.rope.width.next_multiple_of(MAX_LANES);
        self.rope.widen_rows(
            s,
            first,
            held.clone(),
            0..self.rope.width,
            self.rope_rows,
            (rope_pad, rope_pad),
        );
        zero(self.rope_rows, held, rope_pad);
        let (keys, rope) = m.keys.split_at_mut(self.key_dim * KEYS);
        turn(s, self.rope_rows, rope_pad, rope);
        let (w_key, w_value) = self.w.split_at(self.key_dim * pad);
        products(s, w_key, pad, self.latents, keys);
        let made = w_value.len() / pad * KEYS;
        products(s, w_value, pad, self.latents, &mut self.values[..made]);
        for row in (0..m.value_pad).step_by(S::LANES) {
            for key in (0..KEYS).step_by(S::LANES) {
                // SAFETY: `KEYS` and `value_pad` are whole numbers of vectors; both arrays hold their product.
                unsafe {
                    let src = self.values.as_ptr().add(row * KEYS + key);
                    let dst = m.values.as_mut_ptr().add(key * m.value_pad + row);
                    s.transpose(src.cast(), KEYS * 4, dst.cast(), m.value_pad * 4);
                }
            }
        }
    }
}

/// Zeros for the rows that are not held.
fn zero(rows: &mut [f32], held: &Range<usize>, pad: usize) {
    rows[..held.start * pad].fill(0.0);
    rows[held.end * pad..].fill(0.0);
}

/// `to[r][key] = w[r] · latents[..][key]`: `w` `[_, pad]`, `latents` `[pad, KEYS]`, `to` `[_, KEYS]`.
#[inline(always)]
fn products<S: Simd>(s: S, w: &[f32], pad: usize, latents: &[f32], to: &mut [f32]) {
    let rows = w.len() / pad;
    assert!(to.len() == rows * KEYS && latents.len() >= pad * KEYS, "a row for each of the weights");
    for from in (0..pad).step_by(CUT) {
        let cut = from..(from + CUT).min(pad);
        let mut row = 0;
        while row + TILE <= rows {
            tile::<S, TILE>(s, &w[row * pad..], pad, latents, cut.clone(), &mut to[row * KEYS..]);
            row += TILE;
        }
        while row < rows {
            tile::<S, 1>(s, &w[row * pad..], pad, latents, cut.clone(), &mut to[row * KEYS..]);
            row += 1;
        }
    }
}

/// Adds the products along `cut` of `R` rows with all keys of the block to what they have so far.
#[inline(always)]
fn tile<S: Simd, const R: usize>(
    s: S,
    w: &[f32],
    pad: usize,
    latents: &[f32],
    cut: Range<usize>,
    to: &mut [f32],
) {
    if S::MANY_REGISTERS {
        tile_of::<S, R, 4>(s, w, pad, latents, cut, to);
    } else {
        tile_of::<S, R, 2>(s, w, pad, latents, cut, to);
    }
}

#[inline(always)]
fn tile_of<S: Simd, const R: usize, const N: usize>(
    s: S,
    w: &[f32],
    pad: usize,
    latents: &[f32],
    cut: Range<usize>,
    to: &mut [f32],
) {
    for key in (0..KEYS).step_by(N * S::LANES) {
        let mut sums = [[s.splat(0.0); N]; R];
        // SAFETY: `R` rows of `w` have `pad` numbers and those of `to` `KEYS`, a multiple of `N` vectors, as have the
        // `pad` rows of `latents`; `cut` is within `pad`.
        unsafe {
            if cut.start > 0 {
                for r in 0..R {
                    for n in 0..N {
                        sums[r][n] = s.load(to.as_ptr().add(r * KEYS + key + n * S::LANES));
                    }
                }
            }
            for at in cut.clone() {
                let latents = latents.as_ptr().add(at * KEYS + key);
                let mut ks = [s.splat(0.0); N];
                for (n, k) in ks.iter_mut().enumerate() {
                    *k = s.load(latents.add(n * S::LANES));
                }
                for r in 0..R {
                    let x = s.splat(w.as_ptr().add(r * pad + at).read());
                    for n in 0..N {
                        sums[r][n] = s.fma(x, ks[n], sums[r][n]);
                    }
                }
            }
            for r in 0..R {
                for n in 0..N {
                    s.store(to.as_mut_ptr().add(r * KEYS + key + n * S::LANES), sums[r][n]);
                }
            }
        }
    }
}
