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
    /// `[rows, width]`, rows `x_stride` apart.
    x: &'a [f32],
    x_stride: usize,
    rows: usize,
    w: Weights<'a>,
    epilogue: Epilogue<'a>,
    /// `[rows, outs]`, rows `y_stride` apart.
    y: Out<'a>,
    y_stride: usize,
    bf16: bool,
}

impl<'a> LinearF32<'a> {
    /// # Panics
    /// When the sizes do not fit together.
    pub(crate) fn new(x: &'a [f32], w: Weights<'a>, epilogue: Epilogue<'a>, y: Out<'a>) -> LinearF32<'a> {
        assert!(x.len().is_multiple_of(w.width()), "whole rows of the weights' width");
        assert_eq!(y.len(), x.len() / w.width() * w.outs(), "the result's size");
        assert!(epilogue.bias.is_none_or(|bias| bias.len() == w.outs()), "a bias for each output");
        let (rows, x_stride, y_stride) = (x.len() / w.width(), w.width(), w.outs());
        LinearF32 { x, x_stride, rows, w, epilogue, y, y_stride, bf16: false }
    }

    /// The same, where all of `x` are BF16 values and products may be rounded as the machine's BF16 dot product does.
    pub(crate) fn of_bf16(self) -> LinearF32<'a> {
        LinearF32 { bf16: true, ..self }
    }

    fn rows(&self) -> usize {
        self.rows
    }

    /// This thread's share of the outputs.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        if self.rows() <= FEW_ROWS {
            dots::part(self, isa, share);
        } else if self.bf16 && self.w.dtype() == DType::BF16 && isa.multiplies_bf16() {
            tiles::part::<true>(self, isa, share);
        } else {
            tiles::part::<false>(self, isa, share);
        }
    }
}

/// `linear` of rows and outputs in equal groups that meet each other alone.
#[derive(Clone, Copy)]
pub(crate) struct Grouped<'a> {
    /// `[rows, groups · width]`.
    pub(crate) x: &'a [f32],
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
        let (x_stride, y_stride) = (self.groups * self.w.width(), self.w.outs());
        assert!(self.x.len().is_multiple_of(x_stride), "whole rows of all groups");
        let rows = self.x.len() / x_stride;
        super::each_group(self.w, self.groups, rows, self.epilogue, self.y, |group, w, epilogue, y| {
            let x = &self.x[group * w.width()..];
            let op = LinearF32 { x, x_stride, rows, w, epilogue, y, y_stride, bf16: false };
            op.part(isa, share);
        });
    }
}
