//! `linear` in F32: `y = x · wᵀ` with weights of any type, widened exactly.
//!
//! Each result is one dot product along the width, in one vector of sums whose lanes are then added in a fixed order.
//! Nothing else enters it, so a row gives the same bits alone, among others, and on any number of threads. A few
//! weight rows at a time are widened into a panel in the cache, and register tiles of up to four rows by four outputs
//! run over all rows.

use super::{Epilogue, Out, Weights};
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use std::ops::Range;
use tranship_dtype::DType;

/// Outputs of a panel.
const OUTS: usize = 4;
/// Rows that are in registers together.
const TILE: usize = 4;

/// `y = x · wᵀ`, then the epilogue.
#[derive(Clone, Copy)]
pub(crate) struct LinearF32<'a> {
    x: &'a [f32],
    w: Weights<'a>,
    epilogue: Epilogue<'a>,
    /// `[rows, outs]`.
    y: Out<'a>,
}

impl<'a> LinearF32<'a> {
    /// # Panics
    /// When the sizes do not fit together.
    pub(crate) fn new(x: &'a [f32], w: Weights<'a>, epilogue: Epilogue<'a>, y: Out<'a>) -> LinearF32<'a> {
        assert!(x.len().is_multiple_of(w.width()), "whole rows of the weights' width");
        assert_eq!(y.len(), x.len() / w.width() * w.outs(), "the result's size");
        assert!(epilogue.bias.is_none_or(|bias| bias.len() == w.outs()), "a bias for each output");
        LinearF32 { x, w, epilogue, y }
    }

    /// This thread's share of the outputs.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        let padded = self.w.width().next_multiple_of(MAX_LANES);
        // Units of 16, so that no two threads write one cache line.
        let outs = share.range(self.w.outs(), MAX_LANES);
        with_scratch(piece(OUTS * padded), |scratch| {
            let panel = Pieces(scratch).take(OUTS * padded);
            isa.dispatch(Panels { op: *self, outs, padded, panel });
        });
    }
}

struct Panels<'a> {
    op: LinearF32<'a>,
    outs: Range<usize>,
    padded: usize,
    /// Weight rows in F32, `[OUTS, padded]`, padded with zeros.
    panel: &'a mut [f32],
}

impl Kernel for Panels<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let rows = self.op.x.len() / self.op.w.width();
        for out in self.outs.clone().step_by(OUTS) {
            let held = OUTS.min(self.outs.end - out);
            self.fill(out, held);
            for row in (0..rows).step_by(TILE) {
                match rows - row {
                    1 => self.tile::<S, 1>(s, row, out, held),
                    2 => self.tile::<S, 2>(s, row, out, held),
                    3 => self.tile::<S, 3>(s, row, out, held),
                    _ => self.tile::<S, TILE>(s, row, out, held),
                }
            }
        }
    }
}

impl Panels<'_> {
    /// Widens `held` weight rows.
    fn fill(&mut self, out: usize, held: usize) {
        let Weights { dtype, width, .. } = self.op.w;
        for o in 0..held {
            let to = &mut self.panel[o * self.padded..(o + 1) * self.padded];
            let row = self.op.w.row(out + o);
            if dtype == DType::F32 {
                for (v, b) in to.iter_mut().zip(row.as_chunks::<4>().0) {
                    *v = f32::from_le_bytes(*b);
                }
            } else {
                tranship_tensor::decode(dtype, row, &mut to[..width])
                    .expect("whole blocks, as the weights were checked");
            }
            to[width..].fill(0.0);
        }
    }

    /// `R` rows by the panel's outputs.
    #[inline(always)]
    fn tile<S: Simd, const R: usize>(&self, s: S, row: usize, out: usize, held: usize) {
        let (op, width, outs) = (self.op, self.op.w.width(), self.op.w.outs());
        let x = op.x[row * width..(row + R) * width].as_ptr();
        let panel = self.panel.as_ptr();
        let mut sums = [[s.splat(0.0); OUTS]; R];
        for at in (0..width).step_by(S::LANES) {
            let n = S::LANES.min(width - at);
            // SAFETY: each row of `x` has `n` values from `at` on, and the panel's rows are padded to whole vectors.
            unsafe {
                let mut w = [s.splat(0.0); OUTS];
                for (o, w) in w.iter_mut().enumerate() {
                    *w = s.load(panel.add(o * self.padded + at));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let p = x.add(r * width + at);
                    let x = if n == S::LANES { s.load(p) } else { s.load_part(p, n) };
                    for (sum, w) in sums.iter_mut().zip(w) {
                        *sum = s.fma(x, w, *sum);
                    }
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            let at = (row + r) * outs + out;
            // SAFETY: this thread alone has these outputs, of every row.
            let y = unsafe { op.y.range(at..at + held) };
            for (o, (y, sum)) in y.iter_mut().zip(s.reduce_add4(sums)).enumerate() {
                *y = op.epilogue.finish(sum, out + o, *y);
            }
        }
    }
}
