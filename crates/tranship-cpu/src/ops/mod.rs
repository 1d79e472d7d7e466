//! The kernels, one file for each op: what each thread does with its share of the work.
//!
//! An op is an options struct with a method `part`, which does one thread's share and may be called from inside any
//! [`crate::pool::Pool::run`]; the methods of [`crate::Cpu`] of the same name run an op on all threads. All
//! activations are F32 slices, `[rows, width]` row-major.
#![allow(clippy::needless_range_loop, reason = "register tiles: one index goes into several arrays")]

pub(crate) mod attend;
pub(crate) mod attend_row;
pub(crate) mod columns;
pub(crate) mod compressed;
pub(crate) mod conv;
pub(crate) mod elementwise;
pub(crate) mod exp;
pub(crate) mod experts;
pub(crate) mod functions;
pub(crate) mod latent_attend;
#[cfg(test)]
mod layer_tests;
pub(crate) mod linear_f32;
pub(crate) mod linear_quant;
pub(crate) mod memory;
pub(crate) mod quantize;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod route;
pub(crate) mod rows;
pub(crate) mod streams;
#[cfg(test)]
mod tests;
pub(crate) mod unpack;

use std::marker::PhantomData;
use std::ops::Range;
use tranship_dtype::DType;

/// A result that several threads write, each its own part.
#[derive(Clone, Copy)]
pub(crate) struct Out<'a, T = f32> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `range` and `ptr`, whose callers keep threads to parts of their own.
unsafe impl<T: Send> Send for Out<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Out<'_, T> {}

impl<'a, T> Out<'a, T> {
    /// All of `slice`, which is borrowed as long as this is used.
    pub(crate) fn new(slice: &'a mut [T]) -> Out<'a, T> {
        Out { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// They are valid for reads and writes, and of nobody else, as long as this is used.
    pub(crate) unsafe fn from_raw(start: *mut T, len: usize) -> Out<'a, T> {
        Out { start, len, borrow: PhantomData }
    }

    /// How many elements there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A part of it.
    ///
    /// # Safety
    /// No other thread has any of these elements at the same time.
    ///
    /// # Panics
    /// When the range is not within the slice.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        // SAFETY: in bounds by the check, not aliased by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Where it starts.
    pub(crate) fn ptr(&self) -> *mut T {
        self.start
    }
}

/// Weights of a `linear`, in place: `outs` rows of `width` values in `dtype`, whatever their alignment.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    dtype: DType,
    bytes: &'a [u8],
    outs: usize,
    width: usize,
}

impl<'a> Weights<'a> {
    /// `bytes` as `[outs, width]` of `dtype`: F32, F16, BF16 or a block encoding.
    ///
    /// # Panics
    /// When the bytes are not those of such a tensor, or no kernel reads `dtype`.
    pub fn new(dtype: DType, bytes: &'a [u8], outs: usize, width: usize) -> Weights<'a> {
        assert!(
            matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Block(_)),
            "no kernel reads {dtype} weights"
        );
        let row = dtype.row_bytes(width).expect("rows are whole blocks");
        assert_eq!(bytes.len(), outs * row, "[{outs}, {width}] of {dtype}");
        Weights { dtype, bytes, outs, width }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows: the width of what a `linear` gives.
    pub fn outs(&self) -> usize {
        self.outs
    }

    /// Columns: the width of what a `linear` takes.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.bytes.len() / self.outs.max(1)
    }

    /// Some of the rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Weights<'a> {
        let size = self.row_bytes();
        Weights { bytes: &self.bytes[rows.start * size..rows.end * size], outs: rows.len(), ..*self }
    }

    /// The bytes of `count` rows from row `first` on, or of as many as there are.
    pub(crate) fn following(&self, first: usize, count: usize) -> &'a [u8] {
        let rows = first.min(self.outs)..(first + count).min(self.outs);
        &self.bytes[rows.start * self.row_bytes()..rows.end * self.row_bytes()]
    }

    /// The bytes of row `row`.
    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.row_bytes()..(row + 1) * self.row_bytes()]
    }

    /// Where the first row starts; as a pointer, for kernels.
    pub(crate) fn first_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// Where row `row` starts; as a pointer, for kernels.
    pub(crate) fn row_ptr(&self, row: usize) -> *const u8 {
        self.bytes[row * self.row_bytes()..].as_ptr()
    }
}

/// What a `linear` does with its sums.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to each sum, `[outs]`.
    pub bias: Option<&'a [f32]>,
    /// Whether sums are added to what is in the result already (a residual), or replace it.
    pub add: bool,
}

impl Epilogue<'_> {
    /// What becomes of four sums, where `y` is in the result and `bias` is that of these outputs, or 0.
    #[inline(always)]
    pub(crate) fn finish4(&self, mut sums: [f32; 4], bias: [f32; 4], y: &mut [f32; 4]) {
        for i in 0..4 {
            if self.bias.is_some() {
                sums[i] += bias[i];
            }
            if self.add {
                sums[i] += y[i];
            }
        }
        *y = sums;
    }

    /// What becomes of `sum` for output `out`, where `old` is in the result.
    #[inline(always)]
    pub(crate) fn finish(&self, sum: f32, out: usize, old: f32) -> f32 {
        let sum = match self.bias {
            Some(bias) => sum + bias[out],
            None => sum,
        };
        if self.add { old + sum } else { sum }
    }
}

/// Gives `f` the number, the weights, the epilogue and the results of each group; results of a row are `w.outs()` behind
/// those of the row before.
fn each_group<'a>(
    w: Weights<'a>,
    groups: usize,
    rows: usize,
    epilogue: Epilogue<'a>,
    y: Out<'a>,
    mut f: impl FnMut(usize, Weights<'a>, Epilogue<'a>, Out<'a>),
) {
    let (outs, all) = (w.outs() / groups, w.outs());
    assert_eq!(y.len(), rows * all, "the result's size");
    for group in (0..groups).filter(|_| rows > 0) {
        let own = group * outs..(group + 1) * outs;
        let epilogue = Epilogue { bias: epilogue.bias.map(|bias| &bias[own.clone()]), ..epilogue };
        // SAFETY: within `y`, from the group's first result to its last; those between that are of other groups are left
        // alone, for a kernel writes only outputs that there are.
        let y = unsafe { Out::from_raw(y.ptr().add(own.start), (rows - 1) * all + outs) };
        f(group, w.rows(own), epilogue, y);
    }
}
