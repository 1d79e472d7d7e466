//! `linear` of 8-bit activation blocks with block-encoded weights, in integer arithmetic.
//!
//! For one group of values that share a weight scale `s` and an activation scale `d`, the products of codes are added
//! as integers, and the sum is multiplied by `s · d` once. A zero point or min of the weights multiplies the sum of the
//! activations, which was counted when they were quantized.
//!
//! Few rows (decode) go through [`gemv`]: along the packed blocks, with nothing written but sums. Many rows (prefill) go
//! through [`gemm`]: weights of 16 or 32 outputs at a time are laid out as a panel in the cache, and register tiles run
//! over all rows.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod fill;
mod gemm;
mod gemv;
mod panel;

use super::quantize::{BlockRows, QuantizedRows};
use super::unpack::{Blocks, WithBlocks, with_blocks};
use super::{Epilogue, Out, Weights};
use crate::arch::{Isa, Simd};
use crate::pool::Share;
use tranship_dtype::{DType, Encoding};

/// Up to so many rows the kernel along the blocks is the faster one, where no panel is made in whole registers.
const FEW_ROWS: usize = 4;

/// `y = x · wᵀ`, then the epilogue.
#[derive(Clone, Copy)]
pub(crate) struct LinearQuant<'a> {
    x: BlockRows<'a>,
    w: Weights<'a>,
    encoding: Encoding,
    epilogue: Epilogue<'a>,
    /// `[rows, outs]`, rows `stride` apart.
    y: Out<'a>,
    stride: usize,
}

impl<'a> LinearQuant<'a> {
    /// # Panics
    /// When the sizes do not fit together, or the weights are not block-encoded.
    pub(crate) fn new(
        x: &'a QuantizedRows,
        w: Weights<'a>,
        epilogue: Epilogue<'a>,
        y: Out<'a>,
    ) -> LinearQuant<'a> {
        LinearQuant::strided(x.view(), w, epilogue, y, w.outs())
    }

    /// The same, with rows of results `stride` apart; `y` ends with the last.
    pub(crate) fn strided(
        x: BlockRows<'a>,
        w: Weights<'a>,
        epilogue: Epilogue<'a>,
        y: Out<'a>,
        stride: usize,
    ) -> LinearQuant<'a> {
        let DType::Block(encoding) = w.dtype() else { panic!("{} weights have no blocks", w.dtype()) };
        assert_eq!(x.width(), w.width(), "the width of activations and weights");
        let len = if x.rows() == 0 { 0 } else { (x.rows() - 1) * stride + w.outs() };
        assert!(y.len() == len && w.outs() <= stride, "the result's size");
        assert!(epilogue.bias.is_none_or(|bias| bias.len() == w.outs()), "a bias for each output");
        LinearQuant { x, w, encoding, epilogue, y, stride }
    }

    /// Ends one vector of sums: the first `n` outputs from `out` on.
    ///
    /// # Safety
    /// The row and the outputs exist, and are this thread's.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(&self, s: S, row: usize, out: usize, n: usize, sums: S::F) {
        if n == 0 {
            return;
        }
        let epilogue = &self.epilogue;
        // SAFETY: `n` outputs from `out` on exist, in the result and in the bias.
        unsafe {
            let y = self.y.ptr().add(row * self.stride + out);
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

    /// This thread's share of the outputs.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        with_blocks(self.encoding, Part { op: self, isa, share });
    }
}

struct Part<'a> {
    op: &'a LinearQuant<'a>,
    isa: Isa,
    share: Share<'a>,
}

impl WithBlocks for Part<'_> {
    type Out = ();

    fn with<E: Blocks>(self, _: E) {
        let few = if gemv::in_whole_registers(self.isa) { 1 } else { FEW_ROWS };
        if self.op.x.rows() <= few {
            gemv::part::<E>(self.op, self.isa, self.share);
        } else {
            gemm::part::<E>(self.op, self.isa, self.share);
        }
    }
}

/// `linear` of rows and outputs in equal groups that meet each other alone.
#[derive(Clone, Copy)]
pub(crate) struct Grouped<'a> {
    /// `[rows · groups, width]`: the groups of a row, one after the other.
    pub(crate) x: &'a QuantizedRows,
    /// `[outs, width]`.
    pub(crate) w: Weights<'a>,
    pub(crate) groups: usize,
    pub(crate) epilogue: Epilogue<'a>,
    /// `[rows, outs]`.
    pub(crate) y: Out<'a>,
}

impl Grouped<'_> {
    /// This thread's share of the outputs of each group.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        let rows = self.x.rows() / self.groups;
        super::each_group(self.w, self.groups, rows, self.epilogue, self.y, |group, w, epilogue, y| {
            let x = self.x.view().some(group, self.groups, rows);
            LinearQuant::strided(x, w, epilogue, y, self.w.outs()).part(isa, share);
        });
    }
}
