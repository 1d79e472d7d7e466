//! Many rows by block-encoded weights: panels in the cache, tiles in registers.
//!
//! A panel holds the codes of one or two vectors of outputs for the whole width: four values deep in each 32-bit lane,
//! so that one instruction multiplies four values of 16 outputs with four broadcast activation codes. It is made once
//! for all rows. Then tiles of rows run over it; each group of values ends with one conversion and two
//! multiplications for each vector of sums.
//!
//! Codes with a zero point are stored signed. Where the machine multiplies unsigned by signed bytes, it is then the
//! activations that carry an offset of 128, and what that adds to each sum is known when the panel is made: the sums
//! of a group start at `-128 · Σw` instead of 0, which costs nothing.

use super::LinearQuant;
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::ops::unpack::{Blocks, StoreCodes};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use std::marker::PhantomData;
use std::ops::Range;

/// Outputs of the widest panel.
const MAX_PANEL: usize = 32;
/// Values of a row that are unpacked before they are transposed into the panel.
const CHUNK: usize = 256;

/// This thread's share of the outputs.
pub(super) fn part<E: Blocks>(op: &LinearQuant<'_>, isa: Isa, share: Share<'_>) {
    let outs = share.range(op.w.outs(), MAX_PANEL);
    let (width, groups) = (op.w.width(), op.w.width() / E::GROUP);
    let sizes = [MAX_PANEL * width / 4, MAX_PANEL * groups, MAX_PANEL * groups, 16 * CHUNK / 4, 32 * piece(groups)];
    with_scratch(sizes.iter().map(|n| piece(*n)).sum(), |scratch| {
        let mut pieces = Pieces(scratch);
        let [codes, scale, low, rows, row_scales] = sizes.map(|n| pieces.take(n).as_mut_ptr());
        let panel = Panel { codes: codes.cast(), scale, low, rows: rows.cast(), row_scales };
        isa.dispatch(Gemm::<E> { op, outs, panel, encoding: PhantomData });
    });
}

/// Scratch for one panel of `NT` vectors of outputs.
#[derive(Clone, Copy)]
struct Panel {
    /// `[width / 4, NT, LANES, 4]` codes.
    codes: *mut u8,
    /// `[groups, NT, LANES]` scales.
    scale: *mut f32,
    /// `[groups, NT, LANES]`: mins, or what integer sums start with.
    low: *mut f32,
    /// `[LANES, CHUNK]` codes before they are transposed.
    rows: *mut u8,
    /// Scales, then mins, `[LANES, groups]` each, before they are transposed.
    row_scales: *mut f32,
}

struct Gemm<'a, E> {
    op: &'a LinearQuant<'a>,
    outs: Range<usize>,
    panel: Panel,
    encoding: PhantomData<E>,
}

impl<E: Blocks> Kernel for Gemm<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if S::MANY_REGISTERS { self.panels::<S, 6, 2>(s) } else { self.panels::<S, 4, 1>(s) }
    }
}

impl<E: Blocks> Gemm<'_, E> {
    /// Goes over the outputs, a panel of `NT` vectors at a time, in tiles of up to `M` rows.
    #[inline(always)]
    fn panels<S: Simd, const M: usize, const NT: usize>(&self, s: S) {
        let rows = self.op.x.rows();
        let mut first = self.outs.start;
        while first < self.outs.end {
            let outs = (self.outs.end - first).min(NT * S::LANES);
            // SAFETY: scratch was made for the widest panel of this width; tiles are of rows and outputs that exist.
            unsafe {
                self.fill::<S, NT>(s, first, outs);
                let mut row = 0;
                while row + M <= rows {
                    self.tile::<S, M, NT>(s, row, first, outs);
                    row += M;
                }
                match rows - row {
                    0 => {}
                    1 => self.tile::<S, 1, NT>(s, row, first, outs),
                    2 => self.tile::<S, 2, NT>(s, row, first, outs),
                    3 => self.tile::<S, 3, NT>(s, row, first, outs),
                    4 => self.tile::<S, 4, NT>(s, row, first, outs),
                    _ => self.tile::<S, 5, NT>(s, row, first, outs),
                }
            }
            first += outs;
        }
    }

    /// Lays out the outputs from `first` on as a panel; outputs past `outs` are zeros.
    #[inline(always)]
    unsafe fn fill<S: Simd, const NT: usize>(&self, s: S, first: usize, outs: usize) {
        for t in 0..NT {
            let of_tile = outs.saturating_sub(t * S::LANES).min(S::LANES);
            // SAFETY: rows `first + t * LANES ..` of the weights, vector `t` of the panel.
            unsafe {
                self.fill_scales::<S, NT>(s, t, first + t * S::LANES, of_tile);
                self.fill_codes::<S, NT>(s, t, first + t * S::LANES, of_tile);
                if !E::MINS && S::X_OFFSET != 0 {
                    self.fill_starts::<S, NT>(s, t);
                }
            }
        }
    }

    /// Scales and mins of vector `t`, transposed.
    #[inline(always)]
    unsafe fn fill_scales<S: Simd, const NT: usize>(&self, s: S, t: usize, first: usize, outs: usize) {
        let (w, p) = (&self.op.w, &self.panel);
        let groups = w.width() / E::GROUP;
        let stride = piece(groups);
        // SAFETY: `row_scales` holds 2 · 16 rows of `stride`; the panel's rows are `NT · LANES` floats.
        unsafe {
            let mins = p.row_scales.add(16 * stride);
            for lane in 0..S::LANES {
                let (scale, min) = (p.row_scales.add(lane * stride), mins.add(lane * stride));
                if lane < outs {
                    E::scales(s, w.row_ptr(first + lane), w.width() / E::LEN, scale, min);
                } else {
                    scale.write_bytes(0, stride);
                    min.write_bytes(0, stride);
                }
            }
            transpose_groups(s, p.row_scales, stride, p.scale.add(t * S::LANES), NT * S::LANES, groups);
            if E::MINS {
                transpose_groups(s, mins, stride, p.low.add(t * S::LANES), NT * S::LANES, groups);
            }
        }
    }

    /// Codes of vector `t`, transposed: signed where there is a zero point.
    #[inline(always)]
    unsafe fn fill_codes<S: Simd, const NT: usize>(&self, s: S, t: usize, first: usize, outs: usize) {
        let (w, p) = (&self.op.w, &self.panel);
        let deep = NT * S::LANES * 4;
        let mut k = 0;
        while k < w.width() {
            let now = (w.width() - k).min(CHUNK);
            // SAFETY: values `k .. k + now` of each row, whole blocks; `rows` holds `LANES` rows of `CHUNK` bytes.
            unsafe {
                for lane in 0..S::LANES {
                    let row = p.rows.add(lane * CHUNK);
                    if lane < outs {
                        let blocks = w.row_ptr(first + lane).add(k / E::LEN * E::BYTES);
                        for b in 0..now / E::LEN {
                            let mut store = StoreCodes(row.add(b * E::LEN));
                            E::codes(s, blocks.add(b * E::BYTES), 0, &mut store);
                        }
                        subtract_zero::<S, E>(s, row, now);
                    } else {
                        row.write_bytes(0, now);
                    }
                }
                for c in (0..now).step_by(S::LANES * 4) {
                    let dst = p.codes.add((k + c) / 4 * deep + t * S::LANES * 4);
                    if c + S::LANES * 4 <= now {
                        s.transpose(p.rows.add(c), CHUNK, dst, deep);
                    } else {
                        transpose_part(s, p.rows.add(c), CHUNK, dst, deep, (now - c) / 4);
                    }
                }
            }
            k += now;
        }
    }

    /// What each group's integer sums start with: minus the activations' offset times the sum of the codes.
    #[inline(always)]
    unsafe fn fill_starts<S: Simd, const NT: usize>(&self, s: S, t: usize) {
        let p = &self.panel;
        let offset = s.i_splat(i32::from_le_bytes([S::X_OFFSET; 4]));
        for g in 0..self.op.w.width() / E::GROUP {
            let mut sum = s.i_splat(0);
            // SAFETY: group `g` of the panel.
            unsafe {
                for j in g * E::GROUP / 4..(g + 1) * E::GROUP / 4 {
                    let w = s.i_load(p.codes.add((j * NT + t) * S::LANES * 4).cast());
                    sum = if E::WIDE {
                        s.dot_signed::<true>(sum, w, offset)
                    } else {
                        s.dot_signed::<false>(sum, w, offset)
                    };
                }
                let start = s.i_sub(s.i_splat(0), sum);
                s.i_store(p.low.add((g * NT + t) * S::LANES).cast(), start);
            }
        }
    }

    /// `M` rows from `row` on by the panel.
    #[inline(always)]
    unsafe fn tile<S: Simd, const M: usize, const NT: usize>(&self, s: S, row: usize, first: usize, outs: usize) {
        let (x, p) = (self.op.x, &self.panel);
        let groups = x.groups(E::GROUP);
        let offset = if E::MINS { 0 } else { S::X_OFFSET };
        let (mut codes, mut d, mut sums) =
            ([std::ptr::null(); M], [std::ptr::null(); M], [std::ptr::null(); M]);
        for m in 0..M {
            codes[m] = x.offset_codes_ptr(row + m, offset);
            d[m] = groups.scale[(row + m) * groups.stride..].as_ptr();
            sums[m] = groups.scaled_sum[(row + m) * groups.stride..].as_ptr();
        }
        let mut acc = [[s.splat(0.0); NT]; M];
        let mut w = p.codes.cast_const();
        for g in 0..x.width() / E::GROUP {
            // SAFETY: group `g` of the panel and of each row.
            unsafe {
                let ints = group_sums::<S, E, M, NT>(s, g, w, p.low, codes);
                w = w.add(E::GROUP * NT * S::LANES);
                for t in 0..NT {
                    let at = (g * NT + t) * S::LANES;
                    let scale = s.load(p.scale.add(at));
                    for m in 0..M {
                        let scaled = s.mul(s.i_to_f(ints[m][t]), scale);
                        acc[m][t] = s.fma(scaled, s.splat(d[m].add(g).read()), acc[m][t]);
                    }
                    if E::MINS {
                        let min = s.load(p.low.add(at));
                        for m in 0..M {
                            acc[m][t] = s.fnma(min, s.splat(sums[m].add(g).read()), acc[m][t]);
                        }
                    }
                }
            }
        }
        for (m, acc) in acc.into_iter().enumerate() {
            for (t, acc) in acc.into_iter().enumerate() {
                let outs = outs.saturating_sub(t * S::LANES).min(S::LANES);
                // SAFETY: outputs of this thread, of a row that exists.
                unsafe { self.store(s, row + m, first + t * S::LANES, outs, acc) };
            }
        }
    }

    /// Ends one vector of sums: the first `n` outputs from `out` on.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, s: S, row: usize, out: usize, n: usize, sums: S::F) {
        if n == 0 {
            return;
        }
        let epilogue = &self.op.epilogue;
        // SAFETY: `n` outputs from `out` on exist, in the result and in the bias.
        unsafe {
            let y = self.op.y.ptr().add(row * self.op.w.outs() + out);
            let mut sums = sums;
            if let Some(bias) = epilogue.bias {
                sums = s.add(sums, s.load_part(bias.as_ptr().add(out), n));
            }
            if epilogue.add {
                sums = s.add(s.load_part(y, n), sums);
            }
            s.store_part(y, sums, n);
        }
    }
}

/// The integer sums of group `g`.
#[inline(always)]
unsafe fn group_sums<S: Simd, E: Blocks, const M: usize, const NT: usize>(
    s: S,
    g: usize,
    w: *const u8,
    starts: *const f32,
    codes: [*const u8; M],
) -> [[S::I; NT]; M] {
    let mut ints = [[s.i_splat(0); NT]; M];
    // SAFETY: the caller's: `w` is group `g` of the panel, `starts` its starts, `codes` the rows.
    unsafe {
        if !E::MINS && S::X_OFFSET != 0 {
            for t in 0..NT {
                let start = s.i_load(starts.add((g * NT + t) * S::LANES).cast());
                for ints in &mut ints {
                    ints[t] = start;
                }
            }
        }
        for j in 0..E::GROUP / 4 {
            let mut wv = [s.i_splat(0); NT];
            for (t, wv) in wv.iter_mut().enumerate() {
                *wv = s.i_load(w.add((j * NT + t) * S::LANES * 4).cast());
            }
            for m in 0..M {
                let x = s.i_splat(codes[m].add(g * E::GROUP + j * 4).cast::<i32>().read_unaligned());
                for t in 0..NT {
                    ints[m][t] = if E::MINS {
                        s.dot_unsigned(ints[m][t], wv[t], x)
                    } else if E::WIDE {
                        s.dot_signed::<true>(ints[m][t], wv[t], x)
                    } else {
                        s.dot_signed::<false>(ints[m][t], wv[t], x)
                    };
                }
            }
        }
    }
    ints
}

/// Makes unsigned codes signed by their zero point.
#[inline(always)]
unsafe fn subtract_zero<S: Simd, E: Blocks>(s: S, row: *mut u8, n: usize) {
    if E::ZERO == 0 {
        return;
    }
    for i in (0..n).step_by(32) {
        // SAFETY: `n` is a multiple of 32, the bytes are the caller's.
        unsafe { s.b_store(row.add(i), s.b_sub(s.b_load(row.add(i)), s.b_splat(E::ZERO))) }
    }
}

/// Transposes `[LANES, groups]` (rows padded to whole vectors) into `[groups, LANES]` with rows `dst_stride` floats apart.
#[inline(always)]
unsafe fn transpose_groups<S: Simd>(
    s: S,
    src: *const f32,
    stride: usize,
    dst: *mut f32,
    dst_stride: usize,
    groups: usize,
) {
    for g in (0..groups).step_by(S::LANES) {
        // SAFETY: the caller's sizes.
        unsafe {
            let (src, dst) = (src.add(g).cast::<u8>(), dst.add(g * dst_stride).cast::<u8>());
            if g + S::LANES <= groups {
                s.transpose(src, stride * 4, dst, dst_stride * 4);
            } else {
                transpose_part(s, src, stride * 4, dst, dst_stride * 4, groups - g);
            }
        }
    }
}

/// Transposes `LANES` rows of `n < LANES` words: through a square, of which `n` rows are kept.
#[inline(always)]
unsafe fn transpose_part<S: Simd>(
    s: S,
    src: *const u8,
    stride: usize,
    dst: *mut u8,
    dst_stride: usize,
    n: usize,
) {
    let mut square = [0u32; MAX_LANES * MAX_LANES];
    // SAFETY: the rows are readable up to `LANES` words, for both kinds of source are padded to that.
    unsafe {
        s.transpose(src, stride, square.as_mut_ptr().cast(), S::LANES * 4);
        for i in 0..n {
            let row = square.as_ptr().add(i * S::LANES).cast::<u8>();
            dst.add(i * dst_stride).copy_from_nonoverlapping(row, S::LANES * 4);
        }
    }
}
