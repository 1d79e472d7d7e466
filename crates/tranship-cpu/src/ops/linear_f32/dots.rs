//! A few rows by weights in place: several dot products at a time, each along its weight row.

use super::LinearF32;
use super::widen::{Bf16, F16, F32, Format, widen_row};
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use crate::scratch::{piece, with_scratch};
use std::marker::PhantomData;
use std::ops::Range;
use tranship_dtype::DType;

/// Weight rows that are in flight together.
const OUTS: usize = 4;

/// This thread's share of the outputs.
pub(super) fn part(op: &LinearF32<'_>, isa: Isa, share: Share<'_>) {
    // Units of 16, so that no two threads write one cache line.
    let outs = share.range(op.w.outs(), MAX_LANES);
    let stride = op.w.row_bytes();
    match op.w.dtype() {
        DType::F32 => {
            rows::<F32>(op, isa, outs.clone(), op.w.first_ptr().wrapping_add(outs.start * stride), stride)
        }
        DType::F16 => {
            rows::<F16>(op, isa, outs.clone(), op.w.first_ptr().wrapping_add(outs.start * stride), stride)
        }
        DType::BF16 => {
            rows::<Bf16>(op, isa, outs.clone(), op.w.first_ptr().wrapping_add(outs.start * stride), stride)
        }
        _ => {
            let width = piece(op.w.width());
            with_scratch(OUTS * width, |panel| {
                for out in outs.clone().step_by(OUTS) {
                    let held = OUTS.min(outs.end - out);
                    for (i, row) in panel.chunks_exact_mut(width).enumerate().take(held) {
                        widen_row(isa, &op.w, out + i, row);
                    }
                    rows::<F32>(op, isa, out..out + held, panel.as_ptr().cast(), width * 4);
                }
            });
        }
    }
}

/// All rows by the outputs `outs`, whose weights begin at `w`, `stride` bytes apart.
fn rows<T: Format>(op: &LinearF32<'_>, isa: Isa, outs: Range<usize>, w: *const u8, stride: usize) {
    match op.rows() {
        0 => {}
        1 => isa.dispatch(Dots::<T, 1> { op, outs, w, stride, format: PhantomData }),
        2 => isa.dispatch(Dots::<T, 2> { op, outs, w, stride, format: PhantomData }),
        3 => isa.dispatch(Dots::<T, 3> { op, outs, w, stride, format: PhantomData }),
        rows => unreachable!("{rows} rows are not few"),
    }
}

/// `R` rows by the outputs `outs`.
struct Dots<'a, T, const R: usize> {
    op: &'a LinearF32<'a>,
    outs: Range<usize>,
    w: *const u8,
    stride: usize,
    format: PhantomData<T>,
}

impl<T: Format, const R: usize> Kernel for Dots<'_, T, R> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Rows that are far from each other are streams of their own, which processors fetch ahead of their readers.
        let (Range { start, end }, part) = (self.outs.clone(), self.outs.len() / OUTS);
        for i in 0..part {
            self.outs(s, std::array::from_fn(|r| start + r * part + i), OUTS);
        }
        // Outputs that are not there repeat the last.
        let first = start + part * OUTS;
        if first < end {
            self.outs(s, std::array::from_fn(|r| (first + r).min(end - 1)), end - first);
        }
    }
}

impl<T: Format, const R: usize> Dots<'_, T, R> {
    /// The first `held` of some outputs, of every row.
    #[inline(always)]
    fn outs<S: Simd>(&self, s: S, outs: [usize; OUTS], held: usize) {
        let op = self.op;
        let w = outs.map(|out| self.w.wrapping_add((out - self.outs.start) * self.stride));
        // SAFETY: each of `w` is a weight row of the width.
        let sums = unsafe { self.sums(s, w) };
        for (r, sums) in sums.into_iter().enumerate() {
            for (out, sum) in outs.into_iter().zip(sums).take(held) {
                let at = r * op.y_stride + out;
                // SAFETY: this thread alone has this output, of every row.
                let y = unsafe { &mut op.y.range(at..at + 1)[0] };
                *y = op.epilogue.finish(sum, out, *y);
            }
        }
    }

    /// The dot products of every row with each of four weight rows.
    #[inline(always)]
    unsafe fn sums<S: Simd>(&self, s: S, w: [*const u8; OUTS]) -> [[f32; OUTS]; R] {
        let width = self.op.w.width();
        let (x, stride) = (self.op.x.as_ptr(), self.op.x_stride);
        let mut acc = [[s.splat(0.0); OUTS]; R];
        let mut at = 0;
        // SAFETY: values `at ..` of rows that have `width`.
        unsafe {
            while at + S::LANES <= width {
                let mut wide = [s.splat(0.0); OUTS];
                for (i, wide) in wide.iter_mut().enumerate() {
                    *wide = T::load(s, w[i].add(at * T::BYTES));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = s.load(x.add(r * stride + at));
                    for i in 0..OUTS {
                        acc[i] = s.fma(x, wide[i], acc[i]);
                    }
                }
                at += S::LANES;
            }
            if at < width {
                let n = width - at;
                for i in 0..OUTS {
                    let wide = T::load_part(s, w[i].add(at * T::BYTES), n);
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let x = s.load_part(x.add(r * stride + at), n);
                        acc[i] = s.fma(x, wide, acc[i]);
                    }
                }
            }
        }
        acc.map(|acc| s.reduce_add4(acc))
    }
}
