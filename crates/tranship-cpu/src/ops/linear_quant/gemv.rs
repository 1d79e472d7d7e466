//! A few rows by block-encoded weights, along the packed blocks.
//!
//! One group of 32 codes is one 256-bit register: unpacked there, multiplied with 32 activation codes, and its eight
//! sums are added to eight floats by one fused multiplication with `s · d`. These products of scales are made
//! beforehand, a weight row at a time and a vector at a time; so is the part of mins and zero points, which is a dot
//! product of its own: `Σ min · (d · Σq)`.

use super::{FEW_ROWS, LinearQuant};
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::ops::unpack::{Blocks, Visit};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use std::marker::PhantomData;
use std::ops::Range;

/// How far ahead weights are asked for.
const PREFETCH_BYTES: usize = 2048;

/// This thread's share of the outputs.
pub(super) fn part<E: Blocks>(op: &LinearQuant<'_>, isa: Isa, share: Share<'_>) {
    // Units of 16, so that no two threads write one cache line.
    let outs = share.range(op.w.outs(), MAX_LANES);
    if whole_registers(op, isa, outs.clone()) {
        return;
    }
    let groups = piece(op.w.width() / E::GROUP);
    with_scratch(groups * (2 + FEW_ROWS), |scratch| {
        let mut pieces = Pieces(scratch);
        let (scale, min) = (pieces.take(groups), pieces.take(groups));
        let products = pieces.take(groups * FEW_ROWS);
        // Two or three rows are done as four: the weights' bytes are what takes time, and each count more is compiled
        // for every encoding.
        match op.x.rows() {
            0 => {}
            1 => isa.dispatch_bytes(Gemv::<E, 1> { op, outs, scale, min, products, encoding: PhantomData }),
            _ => isa.dispatch_bytes(Gemv::<E, FEW_ROWS> {
                op,
                outs,
                scale,
                min,
                products,
                encoding: PhantomData,
            }),
        }
    });
}

/// Whether there are kernels in whole 512-bit registers.
pub(super) fn in_whole_registers(isa: Isa) -> bool {
    matches!(isa, Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx)
}

/// A few rows in whole registers, where the processor can; `false`, and nothing is done, where it cannot.
#[cfg(target_arch = "x86_64")]
fn whole_registers(op: &LinearQuant<'_>, isa: Isa, outs: Range<usize>) -> bool {
    use crate::arch::avx512_rows::with_whole;
    if !in_whole_registers(isa) {
        return false;
    }
    assert!(isa.missing().is_none(), "{isa} is not of this machine");
    with_whole(op.encoding, WholeRows { op, outs })
}

/// One row of activations in whole registers.
#[cfg(target_arch = "x86_64")]
struct WholeRows<'a> {
    op: &'a LinearQuant<'a>,
    outs: Range<usize>,
}

#[cfg(target_arch = "x86_64")]
impl crate::arch::avx512_rows::WithWhole for WholeRows<'_> {
    fn with<P: crate::arch::avx512_rows::Whole>(self) {
        use crate::arch::avx512_rows::{Activations, dot_rows};
        let (op, groups) = (self.op, self.op.x.groups(P::GROUP));
        for row in 0..op.x.rows() {
            let at = row * groups.stride;
            let x = Activations {
                codes: op.x.codes_ptr(row),
                scale: groups.scale[at..].as_ptr(),
                sum: groups.scaled_sum[at..].as_ptr(),
            };
            let done = |out: usize, sum: f32| {
                let at = row * op.stride + out;
                // SAFETY: this thread alone has output `out`, of every row.
                let y = unsafe { &mut op.y.range(at..at + 1)[0] };
                *y = op.epilogue.finish(sum, out, *y);
            };
            // SAFETY: the weights have rows of the width up to `outs.end`, and so has the row of activations, whose scales
            // are padded to the widest vector; the instructions have been asked for.
            unsafe { dot_rows::<P>(op.w.first_ptr(), op.w.width(), x, self.outs.clone(), done) }
        }
    }
}

/// No other processor has a kernel of its own.
#[cfg(not(target_arch = "x86_64"))]
fn whole_registers(_: &LinearQuant<'_>, _: Isa, _: Range<usize>) -> bool {
    false
}

/// Up to `R` rows by the outputs `outs`; rows that are not there repeat the last.
struct Gemv<'a, E, const R: usize> {
    op: &'a LinearQuant<'a>,
    outs: Range<usize>,
    /// The weight row's scales and mins, each `[groups]`.
    scale: &'a mut [f32],
    min: &'a mut [f32],
    /// Products of weight and activation scales, `[R, groups]`.
    products: &'a mut [f32],
    encoding: PhantomData<E>,
}

impl<E: Blocks, const R: usize> Kernel for Gemv<'_, E, R> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (op, groups, rows) = (self.op, self.scale.len(), self.op.x.rows());
        let (blocks, row_bytes) = (op.w.width() / E::LEN, op.w.row_bytes());
        let first = op.w.first_ptr();
        let mut codes = [std::ptr::null(); R];
        for (r, codes) in codes.iter_mut().enumerate() {
            *codes = op.x.codes_ptr(r.min(rows - 1));
        }
        for out in self.outs.clone() {
            let row = first.wrapping_add(out * row_bytes);
            // SAFETY: the row has `blocks` blocks; scratch holds its groups, rounded up, and `R` rows of products.
            let sums = unsafe {
                E::scales(s, row, blocks, self.scale.as_mut_ptr(), self.min.as_mut_ptr());
                let low = self.multiply_scales(s, groups);
                let sums = row_sums::<S, E, R>(s, row, blocks, codes, self.products.as_ptr(), groups);
                let mut all = [0.0; R];
                for r in 0..R {
                    all[r] = sums[r] - low[r];
                }
                all
            };
            for (r, sum) in sums.into_iter().enumerate().take(rows) {
                let at = r * op.stride + out;
                // SAFETY: this thread alone has output `out`, of every row.
                let y = unsafe { &mut op.y.range(at..at + 1)[0] };
                *y = op.epilogue.finish(sum, out, *y);
            }
        }
    }
}

impl<E: Blocks, const R: usize> Gemv<'_, E, R> {
    /// Writes the products of scales; gives what mins or zero points take from each sum.
    ///
    /// # Safety
    /// `scale` and `min` are written; `groups` is the length of each scratch row.
    #[inline(always)]
    unsafe fn multiply_scales<S: Simd>(&mut self, s: S, groups: usize) -> [f32; R] {
        let x = self.op.x.groups(E::GROUP);
        let mut low = [0.0; R];
        for (r, low) in low.iter_mut().enumerate() {
            let mut acc = s.splat(0.0);
            for g in (0..groups).step_by(S::LANES) {
                // SAFETY: `g` goes by whole vectors up to `groups`, a multiple of the widest vector.
                unsafe {
                    let at = r * groups + g;
                    let of_x = r.min(self.op.x.rows() - 1) * x.stride + g;
                    let scale = s.load(self.scale.as_ptr().add(g));
                    let d = s.load(x.scale.as_ptr().add(of_x));
                    s.store(self.products.as_mut_ptr().add(at), s.mul(scale, d));
                    let min = if E::MINS { s.load(self.min.as_ptr().add(g)) } else { scale };
                    acc = s.fma(min, s.load(x.scaled_sum.as_ptr().add(of_x)), acc);
                }
            }
            *low = s.reduce_add(acc) * if E::MINS { 1.0 } else { f32::from(E::ZERO) };
        }
        low
    }
}

/// The sums of one weight row's products of codes, scaled, for `R` rows of activations.
///
/// # Safety
/// `row` has `blocks` blocks, each of `codes` their values, `products` `R` rows of `stride` scales.
#[inline(always)]
unsafe fn row_sums<S: Simd, E: Blocks, const R: usize>(
    s: S,
    row: *const u8,
    blocks: usize,
    codes: [*const i8; R],
    products: *const f32,
    stride: usize,
) -> [f32; R] {
    let per_block = E::LEN / E::GROUP;
    let mut sums =
        Sums::<S, E, R> { acc: [[s.g_zero(); 2]; R], codes, scale: products, stride, encoding: PhantomData };
    // Blocks of one group go in pairs, so that the two chains of sums take turns.
    let step = if E::LEN == 32 { 2 } else { 1 };
    let mut b = 0;
    // SAFETY: blocks `b` and, in pairs, `b + 1` are of the row; the visitor's pointers keep pace with them.
    unsafe {
        while b + step <= blocks {
            let block = row.add(b * E::BYTES);
            for line in 0..(step * E::BYTES).div_ceil(64) {
                s.prefetch(block.wrapping_add(PREFETCH_BYTES + line * 64));
            }
            E::codes(s, block, 0, &mut sums);
            if step == 2 {
                E::codes(s, block.add(E::BYTES), 1, &mut sums);
            }
            sums.advance(step * E::LEN, step * per_block);
            b += step;
        }
        if b < blocks {
            E::codes(s, row.add(b * E::BYTES), 0, &mut sums);
        }
    }
    let mut out = [0.0; R];
    for r in 0..R {
        out[r] = s.g_reduce(s.g_add(sums.acc[r][0], sums.acc[r][1]));
    }
    out
}

/// Multiplies codes with activation codes and adds them up, scaled.
struct Sums<S: Simd, E, const R: usize> {
    acc: [[S::G; 2]; R],
    codes: [*const i8; R],
    scale: *const f32,
    stride: usize,
    encoding: PhantomData<E>,
}

impl<S: Simd, E: Blocks, const R: usize> Sums<S, E, R> {
    #[inline(always)]
    fn advance(&mut self, values: usize, groups: usize) {
        for codes in &mut self.codes {
            *codes = codes.wrapping_add(values);
        }
        self.scale = self.scale.wrapping_add(groups);
    }
}

impl<S: Simd, E: Blocks, const R: usize> Visit<S> for Sums<S, E, R> {
    #[inline(always)]
    unsafe fn group(&mut self, s: S, i: usize, codes: S::B) {
        for r in 0..R {
            // SAFETY: group `i` from where the pointers are, as the maker of the visitor sees to.
            unsafe {
                let d = if E::WIDE {
                    s.b_dot::<true>(codes, s.b_load(self.codes[r].add(i * 32).cast()))
                } else {
                    s.b_dot::<false>(codes, s.b_load(self.codes[r].add(i * 32).cast()))
                };
                let scale = self.scale.add(r * self.stride + i * (32 / E::GROUP));
                let acc = &mut self.acc[r][i & 1];
                *acc = if E::GROUP == 16 { s.g_mac2(*acc, d, scale) } else { s.g_mac(*acc, d, scale) };
            }
        }
    }
}
