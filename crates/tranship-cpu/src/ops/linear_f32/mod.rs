//! `linear` in F32: `y = x · wᵀ` with weights of any type, widened exactly.
//!
//! Each result is one dot product along the width: one vector of sums, to which product after product is added, and
//! whose lanes are then added in a fixed order. Nothing else enters it, so a row gives the same bits alone, among
//! others, in any tile, and on any number of threads. Whatever is done below for speed keeps to that order.
//!
//! Few rows go through [`dots`]: along the weights as they lie in memory. Many go through [`tiles`]: panels of weights,
//! widened once, stay in the cache while register tiles run over all rows.
//!
//! Where the activations are BF16 values and so are the weights, and the machine has a BF16 dot product, tiles use it.
//! It rounds otherwise than F32, so only policies that compute in BF16 ask for it.

mod dots;
mod tiles;
pub(crate) mod widen;

use super::{Epilogue, Out, Weights};
use crate::arch::Isa;
use crate::pool::Share;
use tranship_dtype::DType;

/// Up to so many rows weights are read in place.
const FEW_ROWS: usize = 3;

/// `y = x · wᵀ`, then the epilogue.
#[derive(Clone, Copy)]
pub(crate) struct LinearF32<'a> {
    x: &'a [f32],
    w: Weights<'a>,
    epilogue: Epilogue<'a>,
    /// `[rows, outs]`.
    y: Out<'a>,
    bf16: bool,
}

impl<'a> LinearF32<'a> {
    /// # Panics
    /// When the sizes do not fit together.
    pub(crate) fn new(x: &'a [f32], w: Weights<'a>, epilogue: Epilogue<'a>, y: Out<'a>) -> LinearF32<'a> {
        assert!(x.len().is_multiple_of(w.width()), "whole rows of the weights' width");
        assert_eq!(y.len(), x.len() / w.width() * w.outs(), "the result's size");
        assert!(epilogue.bias.is_none_or(|bias| bias.len() == w.outs()), "a bias for each output");
        LinearF32 { x, w, epilogue, y, bf16: false }
    }

    /// The same, where all of `x` are BF16 values and products may be rounded as the machine's BF16 dot product does.
    pub(crate) fn of_bf16(self) -> LinearF32<'a> {
        LinearF32 { bf16: true, ..self }
    }

    fn rows(&self) -> usize {
        self.x.len() / self.w.width()
    }

    /// This thread's share of the outputs.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        if self.rows() <= FEW_ROWS {
            dots::part(self, isa, share);
        } else if self.bf16 && self.w.dtype() == DType::BF16 && matches!(isa, Isa::Avx512Bf16 | Isa::Amx) {
            tiles::part::<true>(self, isa, share);
        } else {
            tiles::part::<false>(self, isa, share);
        }
    }
}
