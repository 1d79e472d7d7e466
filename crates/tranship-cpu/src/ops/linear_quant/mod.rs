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
mod gemm;
mod gemv;
mod panel;

use super::quantize::QuantizedRows;
use super::unpack::{Blocks, WithBlocks, with_blocks};
use super::{Epilogue, Out, Weights};
use crate::arch::{Isa, Simd};
use crate::pool::Share;
use tranship_dtype::{DType, Encoding};

/// Up to so many rows the kernel along the blocks is the faster one.
const FEW_ROWS: usize = 4;

/// `y = x · wᵀ`, then the epilogue.
#[derive(Clone, Copy)]
pub(crate) struct LinearQuant<'a> {
    x: &'a QuantizedRows,
    w: Weights<'a>,
    encoding: Encoding,
    epilogue: Epilogue<'a>,
    /// `[rows, outs]`.
    y: Out<'a>,
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
        let DType::Block(encoding) = w.dtype() else { panic!("{} weights have no blocks", w.dtype()) };
        assert_eq!(x.width(), w.width(), "the width of activations and weights");
        assert_eq!(y.len(), x.rows() * w.outs(), "the result's size");
        assert!(epilogue.bias.is_none_or(|bias| bias.len() == w.outs()), "a bias for each output");
        LinearQuant { x, w, encoding, epilogue, y }
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
            let y = self.y.ptr().add(row * self.w.outs() + out);
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
        if self.op.x.rows() <= FEW_ROWS {
            gemv::part::<E>(self.op, self.isa, self.share);
        } else {
            gemm::part::<E>(self.op, self.isa, self.share);
        }
    }
}
