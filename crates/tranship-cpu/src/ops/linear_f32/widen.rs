//! Weight rows of any type, widened to F32: exactly, a vector at a time.

use crate::arch::{Isa, Kernel, Simd};
use crate::ops::Weights;
use crate::ops::unpack::{Blocks, WithBlocks, decode_blocks, with_blocks};
use std::marker::PhantomData;
use tranship_dtype::DType;

/// Writes weight row `row` to `out` in F32, then zeros to the end of `out`.
pub(crate) fn widen_row(isa: Isa, w: &Weights<'_>, row: usize, out: &mut [f32]) {
    assert!(w.width() <= out.len(), "room for a row");
    let from = w.row_ptr(row);
    let (values, rest) = out.split_at_mut(w.width());
    rest.fill(0.0);
    match w.dtype() {
        DType::Block(encoding) => with_blocks(encoding, Row { isa, from, out: values }),
        DType::F16 => isa.dispatch(Floats::<F16> { from, out: values, format: PhantomData }),
        DType::BF16 => isa.dispatch(Floats::<Bf16> { from, out: values, format: PhantomData }),
        // SAFETY: the row has as many floats, at any alignment.
        _ => unsafe { values.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from, values.len() * 4) },
    }
}

/// A row of blocks.
struct Row<'a> {
    isa: Isa,
    from: *const u8,
    out: &'a mut [f32],
}

impl WithBlocks for Row<'_> {
    type Out = ();

    fn with<E: Blocks>(self, _: E) {
        self.isa.dispatch(RowOf::<E>(self, PhantomData));
    }
}

struct RowOf<'a, E>(Row<'a>, PhantomData<E>);

impl<E: Blocks> Kernel for RowOf<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let blocks = self.0.out.len() / E::LEN;
        // SAFETY: `from` is a row of whole blocks, as many as `out` has room for.
        unsafe { decode_blocks::<E, S>(s, self.0.from, blocks, self.0.out.as_mut_ptr()) }
    }
}

/// A float type that weights are read in.
pub(crate) trait Format: Copy {
    /// Bytes of a number.
    const BYTES: usize;
    /// Reads one vector.
    ///
    /// # Safety
    /// `LANES` numbers at `p` are readable.
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::F;
    /// Reads `n` numbers, `n <= LANES`; the other lanes are 0.
    ///
    /// # Safety
    /// `n` numbers at `p` are readable.
    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const u8, n: usize) -> S::F {
        let mut bytes = [0u8; 64];
        // SAFETY: `n` numbers are readable, and fit: no vector has more than 16 lanes of 4 bytes.
        unsafe {
            bytes.as_mut_ptr().copy_from_nonoverlapping(p, n * Self::BYTES);
            Self::load(s, bytes.as_ptr())
        }
    }
}

/// 32-bit floats.
#[derive(Clone, Copy)]
pub(crate) struct F32;
/// Half-precision floats.
#[derive(Clone, Copy)]
pub(crate) struct F16;
/// The upper halves of 32-bit floats.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Format for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's.
        unsafe { s.load(p.cast()) }
    }
}

impl Format for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's.
        unsafe { s.load_f16(p.cast()) }
    }
}

impl Format for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's.
        unsafe { s.load_bf16(p.cast()) }
    }
}

struct Floats<'a, T> {
    from: *const u8,
    out: &'a mut [f32],
    format: PhantomData<T>,
}

impl<T: Format> Kernel for Floats<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.out.len();
        for at in (0..n).step_by(S::LANES) {
            // SAFETY: numbers from `at` on, of a row of `n`.
            unsafe {
                let (from, to) = (self.from.add(at * T::BYTES), self.out.as_mut_ptr().add(at));
                if at + S::LANES <= n {
                    s.store(to, T::load(s, from));
                } else {
                    s.store_part(to, T::load_part(s, from, n - at), n - at);
                }
            }
        }
    }
}
