//! Rows between activations and what is stored: a table's rows in, a carried tensor's rows in and out.

use super::elementwise::{round_bf16, round_f16};
use super::linear_f32::widen::{Bf16, F16, F32, Format};
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

/// How many rows ahead kept rows are asked for.
const AHEAD: usize = 64;

/// Rows of the past as kernels read them: a tensor that is kept, and the step's own rows where they are not in it yet.
#[derive(Clone, Copy)]
pub(crate) struct Past<'a> {
    /// `[slots, width]` as bytes of `dtype`; row `r` is in slot `(r + turn) % slots`.
    pub(crate) kept: &'a [u8],
    /// F32, F16 or BF16.
    pub(crate) dtype: DType,
    pub(crate) width: usize,
    pub(crate) slots: usize,
    pub(crate) turn: usize,
    /// The number of the step's first row, and the rows `[_, width]`; already rounded to `dtype`.
    pub(crate) new: Option<(usize, &'a [f32])>,
}

impl Past<'_> {
    /// Columns of row `row` in F32, then zeros to the end of `to`.
    #[inline(always)]
    pub(crate) fn widen<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, to: &mut [f32]) {
        let Lying { dtype, bytes, .. } = self.lying(row..row + 1);
        let size = dtype.block_bytes();
        let bytes = &bytes[cols.start * size..cols.end * size];
        match dtype {
            DType::F16 => widen_row::<S, F16>(s, bytes, to),
            DType::BF16 => widen_row::<S, Bf16>(s, bytes, to),
            _ => widen_row::<S, F32>(s, bytes, to),
        }
    }
}

/// Rows that lie one after the other, as they are: bytes of a type.
pub(crate) struct Lying<'a> {
    pub(crate) dtype: DType,
    pub(crate) bytes: &'a [u8],
    pub(crate) rows: usize,
}

impl<'a> Past<'a> {
    /// The first of some rows, one at the least, that lie one after the other: up to the step's own, or to where the ring
    /// begins again.
    pub(crate) fn lying(&self, rows: Range<usize>) -> Lying<'a> {
        let (step, new) = self.new.unwrap_or((usize::MAX, &[]));
        if rows.start >= step {
            let own = &new[(rows.start - step) * self.width..(rows.end - step) * self.width];
            // SAFETY: floats are bytes.
            let bytes = unsafe { std::slice::from_raw_parts(own.as_ptr().cast(), own.len() * 4) };
            return Lying { dtype: DType::F32, bytes, rows: rows.len() };
        }
        let slot = rows.start + self.turn;
        // A division for each row would be felt, and most tensors are no rings.
        let slot = if slot < self.slots { slot } else { slot % self.slots };
        let lying = rows.len().min(step - rows.start).min(self.slots - slot);
        let row = self.width * self.dtype.block_bytes();
        Lying { dtype: self.dtype, bytes: &self.kept[slot * row..(slot + lying) * row], rows: lying }
    }

    /// Columns of the rows `first + i` for each `i` of `held`, as [`Past::widen`] gives them, to `to[i · stride ..]`, with
    /// zeros up to so many floats. The type is looked at once for all rows that lie one after the other.
    #[inline(always)]
    pub(crate) fn widen_rows<S: Simd>(
        &self,
        s: S,
        first: usize,
        held: Range<usize>,
        cols: Range<usize>,
        to: &mut [f32],
        (stride, floats): (usize, usize),
    ) {
        let mut i = held.start;
        while i < held.end {
            let Lying { dtype, bytes, rows } = self.lying(first + i..first + held.end);
            let size = dtype.block_bytes();
            let kept = &bytes[cols.start * size..((rows - 1) * self.width + cols.end) * size];
            let to = &mut to[i * stride..(i + rows - 1) * stride + floats];
            let (from, to_of) = ((self.width, cols.len()), (stride, floats));
            match dtype {
                DType::F16 => widen_lying::<S, F16>(s, kept, from, to, to_of),
                DType::BF16 => widen_lying::<S, Bf16>(s, kept, from, to, to_of),
                _ => widen_lying::<S, F32>(s, kept, from, to, to_of),
            }
            i += rows;
        }
    }
}

/// The first `cols` numbers of rows that lie `width` numbers apart, as F32, then zeros up to `floats`, `stride` floats apart.
#[inline(always)]
fn widen_lying<S: Simd, T: Format>(
    s: S,
    kept: &[u8],
    (width, cols): (usize, usize),
    to: &mut [f32],
    (stride, floats): (usize, usize),
) {
    let rows = (kept.len() / T::BYTES - cols) / width + 1;
    assert!(cols <= floats && (rows - 1) * stride + floats <= to.len(), "room for the rows");
    for row in 0..rows {
        let from = kept.as_ptr().wrapping_add(row * width * T::BYTES);
        let mut at = 0;
        // SAFETY: `cols` numbers are there in each of `rows` rows, and room for `floats` floats.
        unsafe {
            let to = to.as_mut_ptr().add(row * stride);
            // Columns of a row lie apart from those of the next: what comes is no stream to a processor that is not asked.
            let ahead = from.wrapping_add(AHEAD * width * T::BYTES);
            for line in (0..cols * T::BYTES).step_by(64) {
                s.prefetch(ahead.wrapping_add(line));
            }
            while at + S::LANES <= cols {
                s.store(to.add(at), T::load(s, from.add(at * T::BYTES)));
                at += S::LANES;
            }
            if at < cols {
                let n = cols - at;
                s.store_part(to.add(at), T::load_part(s, from.add(at * T::BYTES), n), n);
                at = cols;
            }
            while at < floats {
                let n = S::LANES.min(floats - at);
                s.store_part(to.add(at), s.splat(0.0), n);
                at += n;
            }
        }
    }
}

/// Bytes of a row as F32, then zeros.
#[inline(always)]
fn widen_row<S: Simd, T: Format>(s: S, row: &[u8], to: &mut [f32]) {
    let len = row.len() / T::BYTES;
    assert!(len <= to.len(), "room for a row");
    let mut at = 0;
    // SAFETY: numbers from `at` on are within `row`, and as many floats within `to`.
    unsafe {
        while at + S::LANES <= len {
            s.store(to.as_mut_ptr().add(at), T::load(s, row.as_ptr().add(at * T::BYTES)));
            at += S::LANES;
        }
        if at < len {
            let n = len - at;
            s.store_part(to.as_mut_ptr().add(at), T::load_part(s, row.as_ptr().add(at * T::BYTES), n), n);
        }
    }
    to[len..].fill(0.0);
}

/// Rows of a carried tensor as rows of activations.
#[derive(Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) past: Past<'a>,
    /// The number of the first row; rows before 0 are zero.
    pub(crate) first: isize,
    /// `[rows, width]`.
    pub(crate) y: Out<'a>,
}

impl Load<'_> {
    /// This thread's share of the rows.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        let range = share.range(self.y.len() / self.past.width, 1);
        isa.dispatch(LoadRows { op: *self, range });
    }
}

struct LoadRows<'a> {
    op: Load<'a>,
    range: Range<usize>,
}

impl Kernel for LoadRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Load { past, first, y } = self.op;
        for row in self.range {
            // SAFETY: each row belongs to one thread.
            let y = unsafe { y.range(row * past.width..(row + 1) * past.width) };
            match usize::try_from(first + row as isize) {
                Ok(row) => past.widen(s, row, 0..past.width, y),
                Err(_) => y.fill(0.0),
            }
        }
    }
}

/// Where rows of activations go in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slots {
    /// Row `i` to slot `first + i`.
    From(usize),
    /// A ring: the row at position `p` to slot `p % slots`; only the last `slots` rows are kept.
    Ring(usize),
    /// Of the rows from a position on, those that close a span of so many positions, one slot for each span.
    Per(usize, usize),
}

/// Rows of activations into a carried tensor.
#[derive(Clone, Copy)]
pub(crate) struct Store<'a> {
    /// `[rows, width]`.
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    /// The tensor's type: F32, F16 or BF16.
    pub(crate) dtype: DType,
    pub(crate) slots: Slots,
    /// All of the tensor, as bytes.
    pub(crate) kept: Out<'a, u8>,
}

impl Store<'_> {
    /// This thread's share of the rows.
    ///
    /// # Panics
    /// When a row has no slot in the tensor: the step's caller has held the batch to the context.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        isa.dispatch(StoreRows { op: *self, range: share.range(self.x.len() / self.width, 1) });
    }

    /// The slot of row `row`, if it is kept.
    fn slot(&self, row: usize) -> Option<usize> {
        let rows = self.x.len() / self.width;
        match self.slots {
            Slots::From(first) => Some(first + row),
            Slots::Ring(position) => {
                let slots = self.kept.len() / (self.width * self.dtype.block_bytes());
                (row + slots >= rows).then(|| (position + row) % slots)
            }
            Slots::Per(position, rate) => {
                let end = position + row + 1;
                end.is_multiple_of(rate).then(|| end / rate - 1)
            }
        }
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
        let Store { x, width, dtype, kept, .. } = self.op;
        let size = width * dtype.block_bytes();
        for row in self.range {
            let Some(slot) = self.op.slot(row) else { continue };
            // SAFETY: each row belongs to one thread, and no two rows that are kept have the same slot.
            let bytes = unsafe { kept.range(slot * size..(slot + 1) * size) };
            store_row(s, &x[row * width..(row + 1) * width], dtype, bytes);
        }
    }
}

/// A row as bytes of a type; finite values stay finite.
#[inline(always)]
fn store_row<S: Simd>(s: S, x: &[f32], dtype: DType, bytes: &mut [u8]) {
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

/// Finite values within the limit; the others as they are.
#[inline(always)]
fn finite<S: Simd>(s: S, v: S::F, limit: f32) -> S::F {
    let (limit, size) = (s.splat(limit), s.abs(v));
    let clamped = s.max(s.min(v, limit), s.sub(s.splat(0.0), limit));
    s.select_ge(limit, size, v, s.select_ge(s.splat(f32::MAX), size, clamped, v))
}

/// Rows from before a step, in F32, and the step's own.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a> {
    /// `[slots, width]`; the row at position `p` is in slot `(p + turn) % slots`.
    pub(crate) kept: &'a [f32],
    pub(crate) slots: usize,
    pub(crate) turn: usize,
    /// Rows that there are from before the step.
    pub(crate) before: usize,
    /// That of the step's first row.
    pub(crate) position: usize,
    /// `[rows, width]`.
    pub(crate) new: &'a [f32],
    pub(crate) width: usize,
}

impl<'a> Window<'a> {
    /// The row at a position; `None` before the start.
    #[inline(always)]
    pub(crate) fn row(&self, position: isize) -> Option<&'a [f32]> {
        let position = usize::try_from(position).ok()?;
        if let Some(new) = position.checked_sub(self.position) {
            return Some(&self.new[new * self.width..(new + 1) * self.width]);
        }
        let slot = (position + self.turn) % self.slots;
        (position + self.before >= self.position)
            .then(|| &self.kept[slot * self.width..(slot + 1) * self.width])
    }
}
