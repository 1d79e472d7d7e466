//! Many rows by weights in panels: register tiles of dot products.
//!
//! A panel holds some 50 to 200 outputs in F32, in groups that one tile takes: for each vector's worth of the width, the vectors of
//! the group's outputs side by side, so that a tile reads it from front to back. A tile is some rows by a group of
//! outputs; every product has one vector of sums in a register, to which one vector of the width after the other is
//! added. Where the width is long, it is cut: the rows' part of the first-level cache would not hold it. Then the
//! vectors of sums rest in memory between the cuts, and go on as they were.

use super::LinearF32;
use super::widen::widen_row;
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use std::ops::Range;

/// Outputs of a tile.
const GROUP: usize = 4;
/// What outputs of a panel are a multiple of: whole groups, and whole cache lines.
const UNIT: usize = 48;
/// The most bytes of a panel, unless one unit takes more: what a second-level cache of 1 MB holds beside the rows. The
/// rows are read once for each panel, from wherever they are.
const PANEL_BYTES: usize = 768 << 10;
/// Words of the width that a tile goes along at a time: six rows and a group of outputs take 30 KB.
const CUT: usize = 768;
/// The most products that are in registers together.
const MAX_TILE: usize = 24;

/// This thread's share of the outputs. With `BF16`, words hold two BF16 numbers.
pub(super) fn part<const BF16: bool>(op: &LinearF32<'_>, isa: Isa, share: Share<'_>) {
    let words = if BF16 { op.w.width().div_ceil(2) } else { op.w.width() };
    let padded = words.next_multiple_of(MAX_LANES);
    let outs = share.range(op.w.outs(), UNIT);
    if outs.is_empty() {
        return;
    }
    let most = (PANEL_BYTES / 4 / padded / UNIT).max(1) * UNIT;
    // Panels of about the same size.
    let panels = outs.len().div_ceil(most);
    let outs_of_panel = outs.len().div_ceil(panels).next_multiple_of(UNIT);
    let sizes = [
        outs_of_panel * padded,
        piece(op.w.width()),
        if padded > CUT { outs_of_panel / GROUP * MAX_TILE * MAX_LANES } else { 0 },
        if BF16 { op.rows() * padded } else { 0 },
    ];
    with_scratch(sizes.iter().map(|n| piece(*n)).sum(), |scratch| {
        let mut pieces = Pieces(scratch);
        let [panel, row, sums, packed] = sizes.map(|n| pieces.take(n));
        if BF16 {
            pack_rows(op, padded, packed);
        }
        let (x, stride) = if BF16 { (packed.as_ptr(), padded) } else { (op.x.as_ptr(), op.x_stride) };
        for first in outs.clone().step_by(outs_of_panel) {
            let outs = first..(first + outs_of_panel).min(outs.end);
            fill::<BF16>(op, isa, outs.clone(), padded, row, panel);
            let tiles = Tiles::<BF16> { op, outs, words, padded, x, stride, panel, sums };
            if BF16 {
                isa.dispatch_bf16(tiles).expect("asked for only where there is a BF16 dot product");
            } else {
                isa.dispatch(tiles);
            }
        }
    });
}

/// BF16 values in pairs, rows padded with zeros.
fn pack_rows(op: &LinearF32<'_>, padded: usize, packed: &mut [f32]) {
    for (row, packed) in packed.chunks_exact_mut(padded).enumerate().take(op.rows()) {
        let (pairs, last) = op.x[row * op.x_stride..][..op.w.width()].as_chunks::<2>();
        let mut at = 0;
        for [a, b] in pairs {
            packed[at] = f32::from_bits(a.to_bits() >> 16 | b.to_bits() & 0xffff_0000);
            at += 1;
        }
        for a in last {
            packed[at] = f32::from_bits(a.to_bits() >> 16);
            at += 1;
        }
        packed[at..].fill(0.0);
    }
}

/// Weight rows into the panel, in groups of the instruction set's tile; outputs past `outs` are zeros.
fn fill<const BF16: bool>(
    op: &LinearF32<'_>,
    isa: Isa,
    outs: Range<usize>,
    padded: usize,
    row: &mut [f32],
    panel: &mut [f32],
) {
    for out in 0..outs.len().next_multiple_of(GROUP) {
        let row = &mut row[..piece(op.w.width())];
        if outs.start + out >= outs.end {
            row.fill(0.0);
        } else if BF16 {
            let bytes = op.w.row(outs.start + out);
            row.fill(0.0);
            bytemuck::cast_slice_mut::<f32, u8>(row)[..bytes.len()].copy_from_slice(bytes);
        } else {
            widen_row(isa, &op.w, outs.start + out, row);
        }
        isa.dispatch(Place { row: &row[..padded], out, panel });
    }
}

/// Puts a row's vectors where tiles read them.
struct Place<'a> {
    row: &'a [f32],
    out: usize,
    panel: &'a mut [f32],
}

impl Kernel for Place<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let start = self.out / GROUP * GROUP * self.row.len() + self.out % GROUP * S::LANES;
        for (i, at) in (0..self.row.len()).step_by(S::LANES).enumerate() {
            // SAFETY: a row of whole vectors, and a panel of such rows.
            unsafe {
                let v = s.load(self.row.as_ptr().add(at));
                s.store(self.panel.as_mut_ptr().add(start + i * GROUP * S::LANES), v);
            }
        }
    }
}

/// All rows by one panel.
struct Tiles<'a, const BF16: bool> {
    op: &'a LinearF32<'a>,
    outs: Range<usize>,
    /// Words of the width; of a panel's rows.
    words: usize,
    padded: usize,
    /// Rows of words, `stride` apart.
    x: *const f32,
    stride: usize,
    panel: &'a [f32],
    /// Vectors of sums between cuts.
    sums: &'a mut [f32],
}

impl<const BF16: bool> Kernel for Tiles<'_, BF16> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        if S::MANY_REGISTERS { self.rows::<S, 6, 24>(s) } else { self.rows::<S, 3, 12>(s) }
    }
}

impl<const BF16: bool> Tiles<'_, BF16> {
    /// Tiles of `M` rows by a group of outputs; `MN` is their product.
    #[inline(always)]
    fn rows<S: Simd, const M: usize, const MN: usize>(&mut self, s: S) {
        let rows = self.op.rows();
        for row in (0..rows).step_by(M) {
            let mut from = 0;
            while from < self.padded {
                let to = (from + CUT).min(self.padded);
                for out in self.outs.clone().step_by(GROUP) {
                    self.tile::<S, M, MN>(s, row, out, from..to);
                }
                from = to;
            }
        }
    }

    /// `M` rows from `row` on, by a group of outputs from `out` on, along `cut`. Rows that are not there repeat the last.
    #[inline(always)]
    fn tile<S: Simd, const M: usize, const MN: usize>(
        &mut self,
        s: S,
        row: usize,
        out: usize,
        cut: Range<usize>,
    ) {
        let rows = self.op.rows();
        let mut x = [std::ptr::null(); M];
        for (m, x) in x.iter_mut().enumerate() {
            *x = self.x.wrapping_add((row + m).min(rows - 1) * self.stride);
        }
        let group = out - self.outs.start;
        let rest = self.sums.as_mut_ptr().wrapping_add(group / GROUP * MN * S::LANES);
        let mut acc = [s.splat(0.0); MN];
        // SAFETY: a group of the panel, rows of `words` words, and `MN` vectors of sums.
        unsafe {
            if cut.start > 0 {
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = s.load(rest.add(i * S::LANES));
                }
            }
            let w = self.panel.as_ptr().add(group * self.padded + cut.start * GROUP);
            self.products::<S, M, MN>(s, &mut acc, x, w, cut.clone());
            if cut.end < self.padded {
                for (i, acc) in acc.iter().enumerate() {
                    s.store(rest.add(i * S::LANES), *acc);
                }
                return;
            }
        }
        self.finish::<S, M, MN>(s, row, out, acc);
    }

    /// Adds the products along `cut`.
    #[inline(always)]
    unsafe fn products<S: Simd, const M: usize, const MN: usize>(
        &self,
        s: S,
        acc: &mut [S::F; MN],
        x: [*const f32; M],
        mut w: *const f32,
        cut: Range<usize>,
    ) {
        let mut sums = *acc;
        let whole = cut.end.min(self.words / S::LANES * S::LANES);
        let mut at = cut.start;
        // SAFETY: the caller's; the last vector of a row may be a part of one.
        unsafe {
            while at < whole {
                let mut xs = [s.i_splat(0); M];
                for m in 0..M {
                    xs[m] = s.i_load(x[m].add(at).cast());
                }
                step::<S, BF16, M, MN>(s, &mut sums, xs, w);
                w = w.add(GROUP * S::LANES);
                at += S::LANES;
            }
            if at < cut.end && at < self.words {
                let mut xs = [s.i_splat(0); M];
                for m in 0..M {
                    xs[m] = s.f_bits(s.load_part(x[m].add(at), self.words - at));
                }
                step::<S, BF16, M, MN>(s, &mut sums, xs, w);
            }
        }
        *acc = sums;
    }

    /// Adds up the lanes, and ends the tile's results.
    #[inline(always)]
    fn finish<S: Simd, const M: usize, const MN: usize>(
        &self,
        s: S,
        row: usize,
        out: usize,
        acc: [S::F; MN],
    ) {
        let (op, held) = (self.op, GROUP.min(self.outs.end - out));
        let mut bias = [0.0; GROUP];
        if let Some(all) = op.epilogue.bias {
            bias[..held].copy_from_slice(&all[out..out + held]);
        }
        for (m, acc) in acc.as_chunks::<GROUP>().0.iter().enumerate().take(op.rows() - row) {
            let sums = s.reduce_add4(*acc);
            let at = (row + m) * op.y_stride + out;
            // SAFETY: this thread alone has these outputs, of every row.
            let y = unsafe { op.y.range(at..at + held) };
            if let Some(y) = y.first_chunk_mut::<GROUP>() {
                op.epilogue.finish4(sums, bias, y);
            } else {
                let mut four = [0.0; GROUP];
                four[..held].copy_from_slice(y);
                op.epilogue.finish4(sums, bias, &mut four);
                y.copy_from_slice(&four[..held]);
            }
        }
    }
}

/// One vector of the width: `M` vectors of rows by a group's of outputs.
#[inline(always)]
unsafe fn step<S: Simd, const BF16: bool, const M: usize, const MN: usize>(
    s: S,
    sums: &mut [S::F; MN],
    x: [S::I; M],
    w: *const f32,
) {
    for n in 0..GROUP {
        // SAFETY: the caller's: a group's vectors.
        let w = unsafe { s.i_load(w.add(n * S::LANES).cast()) };
        for m in 0..M {
            let sum = &mut sums[m * GROUP + n];
            *sum = if BF16 {
                s.dot_bf16(*sum, x[m], w)
            } else {
                s.fma(s.f_from_bits(x[m]), s.f_from_bits(w), *sum)
            };
        }
    }
}
