//! Weights laid out for the matrix kernel: 32 outputs for the whole width, in scratch that stays in the cache.
//!
//! Codes lie four values deep in each 32-bit lane, so that one instruction multiplies four values of a vector of outputs
//! with four broadcast activation codes. Codes with a zero point are stored signed. Where the machine multiplies
//! unsigned by signed bytes, it is then the activations that carry an offset of 128, and what that adds to each sum is
//! known when the panel is made: the sums of a group start at `-128 · Σw` instead of 0, which costs nothing.

use crate::arch::{Kernel, MAX_LANES, Simd};
use crate::ops::Weights;
use crate::ops::unpack::{Blocks, StoreCodes};
use crate::scratch::{Pieces, piece};
use std::marker::PhantomData;
use std::ops::Range;

/// Outputs of a panel: a multiple of every machine's lanes.
pub(super) const MAX_PANEL: usize = 32;
/// Values of a row that are unpacked before they are transposed into the panel.
const CHUNK: usize = 256;

/// Scratch for one panel. Every array ends with `[MAX_PANEL]`, the outputs.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    /// `[width / 4, MAX_PANEL, 4]` codes.
    codes: *mut u8,
    /// `[groups, MAX_PANEL]` scales.
    scale: *mut f32,
    /// `[groups, MAX_PANEL]`: mins, or what integer sums start with.
    low: *mut f32,
    /// `[MAX_LANES, CHUNK]` codes before they are transposed.
    rows: *mut u8,
    /// `[2, MAX_LANES, groups]`, scales then mins before they are transposed.
    row_scales: *mut f32,
}

impl Panel {
    /// Bytes from one four values deep to the next.
    pub(super) const CODE_STRIDE: usize = MAX_PANEL * 4;

    const fn sizes(width: usize, groups: usize) -> [usize; 5] {
        [
            MAX_PANEL * width / 4,
            MAX_PANEL * groups,
            MAX_PANEL * groups,
            MAX_LANES * CHUNK / 4,
            2 * MAX_LANES * piece(groups),
        ]
    }

    /// Scratch that a panel takes.
    pub(super) fn floats(width: usize, groups: usize) -> usize {
        Panel::sizes(width, groups).iter().map(|n| piece(*n)).sum()
    }

    /// A panel in `scratch`, which must outlive it.
    pub(super) fn new(scratch: &mut [f32], width: usize, groups: usize) -> Panel {
        let mut pieces = Pieces(scratch);
        let [codes, scale, low, rows, row_scales] =
            Panel::sizes(width, groups).map(|n| pieces.take(n).as_mut_ptr());
        Panel { codes: codes.cast(), scale, low, rows: rows.cast(), row_scales }
    }

    /// Four values deep at `quad`, vector `vector` of outputs.
    #[inline(always)]
    pub(super) fn codes_ptr(&self, quad: usize, vector: usize, lanes: usize) -> *mut u8 {
        self.codes.wrapping_add((quad * MAX_PANEL + vector * lanes) * 4)
    }

    /// The scales of a group, vector `vector` of outputs.
    #[inline(always)]
    pub(super) fn scale_ptr(&self, group: usize, vector: usize, lanes: usize) -> *mut f32 {
        self.scale.wrapping_add(group * MAX_PANEL + vector * lanes)
    }

    /// The mins or starts of a group, vector `vector` of outputs.
    #[inline(always)]
    pub(super) fn low_ptr(&self, group: usize, vector: usize, lanes: usize) -> *mut f32 {
        self.low.wrapping_add(group * MAX_PANEL + vector * lanes)
    }
}

/// Makes a panel of the weight rows `outs`; outputs past them are zeros.
pub(super) struct Fill<'a, E> {
    pub(super) w: Weights<'a>,
    pub(super) outs: Range<usize>,
    pub(super) panel: Panel,
    pub(super) encoding: PhantomData<E>,
}

impl<E: Blocks> Kernel for Fill<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for vector in 0..MAX_PANEL / S::LANES {
            let first = self.outs.start + vector * S::LANES;
            let outs = self.outs.end.saturating_sub(first).min(S::LANES);
            // SAFETY: `outs` rows from `first` on exist; the panel was made for this width.
            unsafe {
                self.scales(s, vector, first, outs);
                self.codes(s, vector, first, outs);
                if !E::MINS && S::X_OFFSET != 0 {
                    self.starts(s, vector);
                }
            }
        }
    }
}

impl<E: Blocks> Fill<'_, E> {
    /// Scales and mins of one vector, transposed.
    #[inline(always)]
    unsafe fn scales<S: Simd>(&self, s: S, vector: usize, first: usize, outs: usize) {
        let (w, p) = (&self.w, &self.panel);
        let groups = w.width() / E::GROUP;
        let stride = piece(groups);
        // SAFETY: `row_scales` holds twice `MAX_LANES` rows of `stride`.
        unsafe {
            let mins = p.row_scales.add(MAX_LANES * stride);
            for lane in 0..S::LANES {
                let (scale, min) = (p.row_scales.add(lane * stride), mins.add(lane * stride));
                if lane < outs {
                    E::scales(s, w.row_ptr(first + lane), w.width() / E::LEN, scale, min);
                } else {
                    scale.write_bytes(0, stride);
                    min.write_bytes(0, stride);
                }
            }
            for g in (0..groups).step_by(S::LANES) {
                let n = (groups - g).min(S::LANES);
                let from = p.row_scales.add(g).cast();
                transpose(s, from, stride * 4, p.scale_ptr(g, vector, S::LANES).cast(), n);
                if E::MINS {
                    transpose(s, mins.add(g).cast(), stride * 4, p.low_ptr(g, vector, S::LANES).cast(), n);
                }
            }
        }
    }

    /// Codes of one vector, transposed: signed where there is a zero point.
    #[inline(always)]
    unsafe fn codes<S: Simd>(&self, s: S, vector: usize, first: usize, outs: usize) {
        let (w, p) = (&self.w, &self.panel);
        for k in (0..w.width()).step_by(CHUNK) {
            let now = (w.width() - k).min(CHUNK);
            // SAFETY: values `k .. k + now` of each row, whole blocks; `rows` holds `MAX_LANES` rows of `CHUNK` bytes.
            unsafe {
                for lane in 0..S::LANES {
                    let row = p.rows.add(lane * CHUNK);
                    if lane >= outs {
                        row.write_bytes(0, now);
                        continue;
                    }
                    let blocks = w.row_ptr(first + lane).add(k / E::LEN * E::BYTES);
                    for b in 0..now / E::LEN {
                        let mut store = StoreCodes(row.add(b * E::LEN));
                        E::codes(s, blocks.add(b * E::BYTES), 0, &mut store);
                    }
                    subtract_zero::<S, E>(s, row, now);
                }
                for c in (0..now).step_by(S::LANES * 4) {
                    let n = ((now - c) / 4).min(S::LANES);
                    let dst = p.codes_ptr((k + c) / 4, vector, S::LANES);
                    if n == S::LANES {
                        s.transpose_codes(p.rows.add(c), CHUNK, dst, Panel::CODE_STRIDE);
                    } else {
                        transpose(s, p.rows.add(c), CHUNK, dst, n);
                    }
                }
            }
        }
    }

    /// What each group's integer sums start with: minus the activations' offset times the sum of the codes.
    #[inline(always)]
    unsafe fn starts<S: Simd>(&self, s: S, vector: usize) {
        let p = &self.panel;
        let offset = s.i_splat(i32::from_le_bytes([S::X_OFFSET; 4]));
        for g in 0..self.w.width() / E::GROUP {
            let mut sum = s.i_splat(0);
            // SAFETY: group `g` of the panel.
            unsafe {
                for j in g * E::GROUP / 4..(g + 1) * E::GROUP / 4 {
                    let w = s.i_load(p.codes_ptr(j, vector, S::LANES).cast());
                    sum = s.dot_signed::<true>(sum, w, offset);
                }
                s.i_store(p.low_ptr(g, vector, S::LANES).cast(), s.i_sub(s.i_splat(0), sum));
            }
        }
    }
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

/// Transposes `LANES` rows of `n` words (readable up to `LANES`) into `n` rows of a panel.
#[inline(always)]
unsafe fn transpose<S: Simd>(s: S, src: *const u8, stride: usize, dst: *mut u8, n: usize) {
    const TO: usize = Panel::CODE_STRIDE;
    // SAFETY: the caller's; what is not whole goes through a square, of which `n` rows are kept.
    unsafe {
        if n == S::LANES {
            return s.transpose(src, stride, dst, TO);
        }
        let mut square = [0u32; MAX_LANES * MAX_LANES];
        s.transpose(src, stride, square.as_mut_ptr().cast(), S::LANES * 4);
        for i in 0..n {
            let row = square.as_ptr().add(i * S::LANES).cast::<u8>();
            dst.add(i * TO).copy_from_nonoverlapping(row, S::LANES * 4);
        }
    }
}
