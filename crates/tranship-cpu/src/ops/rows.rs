//! Rows between activations and what is stored: a table's rows in, a cache's rows out.

use super::elementwise::{round_bf16, round_f16};
use super::{Out, Weights};
use crate::arch::{Isa, Kernel, Simd};
use crate::pool::Share;
use std::ops::Range;
use tranship_dtype::DType;

/// `gather`: row `ids[i]` of a table, decoded, as row `i` of `y`.
#[derive(Clone, Copy)]
pub(crate) struct Gather<'a> {
    pub(crate) table: Weights<'a>,
    pub(crate) ids: &'a [u32],
    /// `[ids, width]`.
    pub(crate) y: Out<'a>,
}

impl Gather<'_> {
    /// This thread's share of the rows.
    ///
    /// # Panics
    /// When an id is not a row of the table: the step's caller has checked them.
    pub(crate) fn part(&self, share: Share<'_>) {
        let width = self.table.width();
        for row in share.range(self.ids.len(), 1) {
            // SAFETY: each row belongs to one thread.
            let y = unsafe { self.y.range(row * width..(row + 1) * width) };
            let bytes = self.table.row(self.ids[row] as usize);
            tranship_tensor::decode(self.table.dtype(), bytes, y)
                .expect("the table was checked when it was bound");
        }
    }
}

/// Rows of activations into a cache.
#[derive(Clone, Copy)]
pub(crate) struct Store<'a> {
    /// `[rows, width]`.
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    /// The cache's type: F32, F16 or BF16.
    pub(crate) dtype: DType,
    /// The rows of the cache that are written, as bytes.
    pub(crate) cache: Out<'a, u8>,
}

impl Store<'_> {
    /// This thread's share of the rows.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        let size = self.dtype.block_bytes();
        assert_eq!(self.cache.len(), self.x.len() * size, "room for as many values as there are");
        isa.dispatch(StoreRows { op: *self, range: share.range(self.x.len() / self.width, 1) });
    }
}

struct StoreRows<'a> {
    op: Store<'a>,
    range: Range<usize>,
}

impl Kernel for StoreRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Store { x, width, dtype, cache } = self.op;
        let size = dtype.block_bytes();
        let Range { start, end } = self.range;
        // SAFETY: each row belongs to one thread.
        let bytes = unsafe { cache.range(start * width * size..end * width * size) };
        let x = &x[start * width..end * width];
        match dtype {
            DType::F16 => {
                let whole = x.len() / S::LANES * S::LANES;
                for at in (0..whole).step_by(S::LANES) {
                    // SAFETY: a whole vector from `at` on is within `x`, and as many numbers within `bytes`.
                    unsafe {
                        let v = finite(s, s.load(x.as_ptr().add(at)), 65_504.0);
                        s.store_f16(bytes.as_mut_ptr().add(at * 2).cast(), v);
                    }
                }
                for (b, v) in bytes[whole * 2..].as_chunks_mut::<2>().0.iter_mut().zip(&x[whole..]) {
                    *b = half::f16::from_f32(round_f16(*v)).to_le_bytes();
                }
            }
            DType::BF16 => {
                for (b, v) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(x) {
                    *b = half::bf16::from_f32(round_bf16(*v)).to_le_bytes();
                }
            }
            _ => {
                for (b, v) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(x) {
                    *b = v.to_le_bytes();
                }
            }
        }
    }
}

/// Finite values within the limit; the others as they are.
#[inline(always)]
fn finite<S: Simd>(s: S, v: S::F, limit: f32) -> S::F {
    let (limit, size) = (s.splat(limit), s.abs(v));
    let clamped = s.max(s.min(v, limit), s.sub(s.splat(0.0), limit));
    s.select_ge(limit, size, v, s.select_ge(s.splat(f32::MAX), size, clamped, v))
}
