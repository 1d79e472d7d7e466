//! Many rows by block-encoded weights: panels in the cache, tiles in registers.
//!
//! Weights of one or two vectors of outputs at a time are laid out as a [`Panel`], once for all rows. Tiles of rows then
//! run over it; each group of values ends with one conversion and two multiplications for each vector of sums. The
//! tiles know nothing of encodings, only of the [`Kind`] of their groups.

use super::LinearQuant;
use super::panel::{Fill, MAX_PANEL, Panel};
use crate::arch::{Isa, Kernel, Simd};
use crate::ops::unpack::Blocks;
use crate::pool::Share;
use crate::scratch::with_scratch;
use std::marker::PhantomData;
use std::ops::Range;

/// `1.5 · 2^23`: its bits plus an integer of at most 22 bits and a sign are the float that is so much greater. Sums of a
/// group's products, at most `32 · 255 · 127`, that begin with these bits need no conversion: one fused multiplication
/// takes this times the scale from the product, and rounds as the product of the converted sum would. That holds where
/// three times the scale is exact, as it is of half-precision numbers times small integers, and below `2^104`.
const BASE: f32 = 12_582_912.0;

/// This thread's share of the outputs.
pub(super) fn part<E: Blocks>(op: &LinearQuant<'_>, isa: Isa, share: Share<'_>) {
    let outs = share.range(op.w.outs(), MAX_PANEL);
    if outs.is_empty() {
        return;
    }
    // Scales with more bits than three times theirs would leave take the kernels that convert sums.
    let isa = if E::SHORT_SCALES { isa } else { isa.plainer() };
    let groups = op.w.width() / E::GROUP;
    let kind = Kind { group: E::GROUP, mins: E::MINS, wide: E::WIDE };
    let for_amx = amx_floats(op, isa, groups);
    with_scratch(Panel::floats(op.w.width(), groups) + for_amx, |scratch| {
        let (scales, scratch) = scratch.split_at_mut(for_amx);
        prepare_amx(op, E::GROUP, scales);
        let panel = Panel::new(scratch, op.w.width(), groups);
        for first in outs.clone().step_by(MAX_PANEL) {
            let outs = first..(first + MAX_PANEL).min(outs.end);
            if !whole_registers(op, isa, outs.clone(), panel) {
                isa.dispatch_bytes(Fill::<E> { w: op.w, outs: outs.clone(), panel, encoding: PhantomData });
            }
            if for_amx > 0 {
                amx_tiles(op, isa, &panel, outs, kind, scales);
            } else {
                let ahead = op.w.following(outs.end, MAX_PANEL);
                tiles(op, isa, &panel, outs, kind, ahead);
            }
        }
    });
}

/// Makes a panel as some processors do it; `false`, and nothing is done, for the others.
fn whole_registers(op: &LinearQuant<'_>, isa: Isa, outs: Range<usize>, panel: Panel) -> bool {
    #[cfg(target_arch = "x86_64")]
    return super::fill::fill(op.w, isa, outs, panel);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (op, isa, outs, panel);
        false
    }
}

/// What tiles must know of an encoding.
#[derive(Clone, Copy)]
struct Kind {
    group: usize,
    mins: bool,
    wide: bool,
}

/// All rows by one panel.
fn tiles(op: &LinearQuant<'_>, isa: Isa, panel: &Panel, outs: Range<usize>, kind: Kind, ahead: &[u8]) {
    match (kind.group, kind.mins, kind.wide) {
        (32, true, _) => isa.dispatch_bytes(Tiles::<32, true, false> { op, panel, outs, ahead }),
        (32, false, false) => isa.dispatch_bytes(Tiles::<32, false, false> { op, panel, outs, ahead }),
        (32, false, true) => isa.dispatch_bytes(Tiles::<32, false, true> { op, panel, outs, ahead }),
        (16, true, _) => isa.dispatch_bytes(Tiles::<16, true, false> { op, panel, outs, ahead }),
        (16, false, false) => isa.dispatch_bytes(Tiles::<16, false, false> { op, panel, outs, ahead }),
        (group, _, wide) => unreachable!("no encoding has groups of {group}, wide: {wide}"),
    }
}

/// Scratch for matrix tiles; 0 where they are not to be used.
fn amx_floats(op: &LinearQuant<'_>, isa: Isa, groups: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Amx && op.x.rows() >= super::amx::LEAST_ROWS {
        return crate::scratch::piece(super::amx::floats(op.x.rows(), groups));
    }
    let _ = (op, isa, groups);
    0
}

fn prepare_amx(op: &LinearQuant<'_>, group: usize, scales: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if !scales.is_empty() {
        super::amx::transpose_scales(op.x, group, scales);
    }
    let _ = (op, group, scales);
}

/// All rows by one panel, on matrix tiles.
#[cfg(target_arch = "x86_64")]
fn amx_tiles(op: &LinearQuant<'_>, isa: Isa, panel: &Panel, outs: Range<usize>, kind: Kind, scales: &[f32]) {
    use super::amx::tiles;
    match (kind.group, kind.mins) {
        (32, true) => tiles::<32, true>(op, isa, panel, outs, scales),
        (32, false) => tiles::<32, false>(op, isa, panel, outs, scales),
        (16, true) => tiles::<16, true>(op, isa, panel, outs, scales),
        (_, _) => tiles::<16, false>(op, isa, panel, outs, scales),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn amx_tiles(_: &LinearQuant<'_>, _: Isa, _: &Panel, _: Range<usize>, _: Kind, _: &[f32]) {
    unreachable!("matrix tiles are of another processor family")
}

/// All rows by one panel, for groups of `GROUP` values.
struct Tiles<'a, const GROUP: usize, const MINS: bool, const WIDE: bool> {
    op: &'a LinearQuant<'a>,
    panel: &'a Panel,
    outs: Range<usize>,
    /// The weights of the next panel.
    ahead: &'a [u8],
}

impl<const GROUP: usize, const MINS: bool, const WIDE: bool> Kernel for Tiles<'_, GROUP, MINS, WIDE> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if S::MANY_REGISTERS { self.rows::<S, 6, 3, 2>(s) } else { self.rows::<S, 4, 2, 1>(s) }
    }
}

impl<const GROUP: usize, const MINS: bool, const WIDE: bool> Tiles<'_, GROUP, MINS, WIDE> {
    /// Tiles of `M` rows by `NT` vectors; the last rows in a tile of `M` or of `HALF`.
    #[inline(always)]
    fn rows<S: Simd, const M: usize, const HALF: usize, const NT: usize>(&self, s: S) {
        let rows = self.op.x.rows();
        let mut out = self.outs.start;
        // The next panel's weights come while this one is multiplied: some lines for each group of each tile.
        let groups = self.op.x.width() / GROUP;
        let tiles = rows.div_ceil(M) * self.outs.len().div_ceil(NT * S::LANES);
        let lines = self.ahead.len().div_ceil(64).div_ceil(groups * tiles);
        let mut ahead = self.ahead.chunks(64 * lines.max(1));
        while out < self.outs.end {
            let mut row = 0;
            // SAFETY: the panel holds `outs`; tiles begin at rows and outputs that exist.
            unsafe {
                while row + HALF < rows {
                    self.tile::<S, M, NT>(s, row, out, &mut ahead);
                    row += M;
                }
                if row < rows {
                    self.tile::<S, HALF, NT>(s, row, out, &mut ahead);
                }
            }
            out += NT * S::LANES;
        }
    }

    /// Up to `M` rows from `row` on, by `NT` vectors of outputs from `out` on. Rows that are not there repeat the last.
    #[inline(always)]
    unsafe fn tile<S: Simd, const M: usize, const NT: usize>(
        &self,
        s: S,
        row: usize,
        out: usize,
        ahead: &mut std::slice::Chunks<'_, u8>,
    ) {
        let (x, rows) = (self.op.x, self.op.x.rows());
        let groups = x.groups(GROUP);
        let offset = if MINS { 0 } else { S::X_OFFSET };
        let (mut codes, mut d, mut sums) =
            ([std::ptr::null(); M], [std::ptr::null(); M], [std::ptr::null(); M]);
        for m in 0..M {
            let row = (row + m).min(rows - 1);
            codes[m] = x.offset_codes_ptr(row, offset);
            d[m] = groups.scale[row * groups.stride..].as_ptr();
            sums[m] = groups.scaled_sum[row * groups.stride..].as_ptr();
        }
        // The result's lines come while the sums are made.
        for m in 0..M.min(rows - row) {
            let y = self.op.y.ptr().wrapping_add((row + m) * self.op.stride + out);
            for t in 0..NT {
                s.prefetch_write(y.wrapping_add(t * S::LANES).cast());
            }
        }
        let mut acc = [[s.splat(0.0); NT]; M];
        let vector = (out - self.outs.start) / S::LANES;
        for g in 0..x.width() / GROUP {
            for line in ahead.next().unwrap_or_default().chunks(64) {
                s.prefetch(line.as_ptr());
            }
            // SAFETY: group `g` of the panel and of each row; the panel has vectors `vector .. vector + NT`.
            unsafe {
                // A line of each row of the next tile.
                if (g * GROUP).is_multiple_of(64) {
                    for m in 0..M {
                        s.prefetch(codes[m].wrapping_add(M * x.code_stride() + g * GROUP));
                    }
                }
                let ints = self.group_sums::<S, M, NT>(s, g, vector, codes);
                for t in 0..NT {
                    let scale = s.load(self.panel.scale_ptr(g, vector + t, S::LANES));
                    let less = s.mul(scale, s.splat(-BASE));
                    for m in 0..M {
                        let scaled = if S::FUSED {
                            s.fma(s.f_from_bits(ints[m][t]), scale, less)
                        } else {
                            s.mul(s.i_to_f(ints[m][t]), scale)
                        };
                        acc[m][t] = s.fma(scaled, s.splat(d[m].add(g).read()), acc[m][t]);
                    }
                    if MINS {
                        let min = s.load(self.panel.low_ptr(g, vector + t, S::LANES));
                        for m in 0..M {
                            acc[m][t] = s.fnma(min, s.splat(sums[m].add(g).read()), acc[m][t]);
                        }
                    }
                }
            }
        }
        for (m, acc) in acc.into_iter().enumerate().take(rows - row) {
            for (t, acc) in acc.into_iter().enumerate() {
                let out = out + t * S::LANES;
                let n = self.outs.end.saturating_sub(out).min(S::LANES);
                // SAFETY: outputs of this thread, of a row that exists.
                unsafe { self.op.store(s, row + m, out, n, acc) };
            }
        }
    }

    /// The integer sums of group `g`.
    #[inline(always)]
    unsafe fn group_sums<S: Simd, const M: usize, const NT: usize>(
        &self,
        s: S,
        g: usize,
        vector: usize,
        codes: [*const u8; M],
    ) -> [[S::I; NT]; M] {
        if S::TILE_DOTS {
            let x = codes.map(|codes| codes.wrapping_add(g * GROUP));
            let w = self.panel.codes_ptr(g * GROUP / 4, vector, S::LANES);
            // SAFETY: the caller's: group `g` of each row, and of the panel.
            return unsafe { s.tile_dots::<GROUP, M, NT>(x, w, Panel::CODE_STRIDE) };
        }
        let zero = s.i_splat(if S::FUSED { BASE.to_bits() as i32 } else { 0 });
        let mut ints = [[zero; NT]; M];
        // SAFETY: the caller's: group `g` and the vectors are of the panel, and `codes` of rows of its width.
        unsafe {
            if !MINS && S::X_OFFSET != 0 {
                for t in 0..NT {
                    let start = s.i_load(self.panel.low_ptr(g, vector + t, S::LANES).cast());
                    let start = if S::FUSED { s.i_add(start, zero) } else { start };
                    for ints in &mut ints {
                        ints[t] = start;
                    }
                }
            }
            for j in 0..GROUP / 4 {
                let mut w = [s.i_splat(0); NT];
                for (t, w) in w.iter_mut().enumerate() {
                    *w = s.i_load(self.panel.codes_ptr(g * GROUP / 4 + j, vector + t, S::LANES).cast());
                }
                for m in 0..M {
                    let x = codes[m].add(g * GROUP + j * 4).cast::<i32>().read_unaligned();
                    let x = s.i_splat(x);
                    for t in 0..NT {
                        ints[m][t] = if MINS {
                            s.dot_unsigned(ints[m][t], w[t], x)
                        } else {
                            s.dot_signed::<WIDE>(ints[m][t], w[t], x)
                        };
                    }
                }
            }
        }
        ints
    }
}
