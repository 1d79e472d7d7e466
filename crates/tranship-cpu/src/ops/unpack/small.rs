//! The encodings in blocks of 32 with one half-precision scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1.
//!
//! Their scales lie one block apart in memory. They are converted eight at a time: one half-precision number alone costs
//! as much as the products of its block.

use super::{Blocks, Visit, dword, pad, word};
use crate::arch::Simd;

/// Calls `convert` with eight blocks at a time and the index of the first: the last eight overlap those before, where `n`
/// is not a multiple; fewer than eight in all are repeated.
///
/// # Safety
/// `blocks` has `n` blocks of `bytes` bytes, and `read` reads one.
#[inline(always)]
unsafe fn by_eight<T: Copy>(
    blocks: *const u8,
    n: usize,
    bytes: usize,
    read: impl Fn(*const u8) -> T,
    mut convert: impl FnMut(usize, [T; 8]),
) {
    let mut i = 0;
    while i < n {
        let first = if n >= 8 { i.min(n - 8) } else { 0 };
        // Past the end of fewer than eight blocks, the last is read again.
        let step = |j: usize| first + if n >= 8 { j } else { j.min(n - 1) };
        let at = |j: usize| read(blocks.wrapping_add(step(j) * bytes));
        convert(first, [at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)]);
        i += 8;
    }
}

/// Converts the half-precision number at byte `at` of each block.
///
/// # Safety
/// As [`Blocks::scales`], for blocks of `bytes` bytes.
#[inline(always)]
pub(super) unsafe fn half_scales<S: Simd>(
    s: S,
    blocks: *const u8,
    n: usize,
    (bytes, at): (usize, usize),
    scale: *mut f32,
) {
    // SAFETY: each read is within a block; eight floats from any block on are within the rounded-up room, and what was
    // written past the blocks is cleared.
    unsafe {
        let read = |block: *const u8| word(block.add(at));
        by_eight(blocks, n, bytes, read, |first, raw| s.g_store(scale.add(first), s.g_f16(raw)));
        pad(s, scale, n);
    }
}

/// Converts the two half-precision numbers at the start of each block: a scale, and what is *added*: a negative min.
///
/// # Safety
/// As [`Blocks::scales`], for blocks of `bytes` bytes.
#[inline(always)]
unsafe fn half_pairs<S: Simd>(
    s: S,
    blocks: *const u8,
    n: usize,
    bytes: usize,
    scale: *mut f32,
    min: *mut f32,
) {
    // SAFETY: as in `half_scales`.
    unsafe {
        by_eight(
            blocks,
            n,
            bytes,
            |block| dword(block),
            |first, raw| {
                let (d, m) = s.g_f16_pairs(raw);
                s.g_store(scale.add(first), d);
                s.g_store(min.add(first), s.g_neg(m));
            },
        );
        pad(s, scale, n);
        pad(s, min, n);
    }
}

/// `d: f16, qs: [u8; 16]`; value `d · (q − 8)`, low halves first.
#[derive(Clone, Copy)]
pub(crate) struct Q4_0;

impl Blocks for Q4_0 {
    const LEN: usize = 32;
    const BYTES: usize = 18;
    const GROUP: usize = 32;
    const ZERO: u8 = 8;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        // SAFETY: bytes 2..18 of the block.
        unsafe { visit.group(s, first, s.b_nibbles(block.add(2))) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, _: *mut f32) {
        // SAFETY: as the caller's; the scale is at byte 0.
        unsafe { half_scales(s, blocks, n, (Self::BYTES, 0), scale) }
    }
}

/// `d: f16, m: f16, qs: [u8; 16]`; value `d · q + m`.
#[derive(Clone, Copy)]
pub(crate) struct Q4_1;

impl Blocks for Q4_1 {
    const LEN: usize = 32;
    const BYTES: usize = 20;
    const GROUP: usize = 32;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        // SAFETY: bytes 4..20 of the block.
        unsafe { visit.group(s, first, s.b_nibbles(block.add(4))) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, min: *mut f32) {
        // SAFETY: as the caller's.
        unsafe { half_pairs(s, blocks, n, Self::BYTES, scale, min) }
    }
}

/// `d: f16, qh: u32, qs: [u8; 16]`; value `d · (q − 16)`, the fifth bit of value `i` is bit `i` of `qh`.
#[derive(Clone, Copy)]
pub(crate) struct Q5_0;

impl Blocks for Q5_0 {
    const LEN: usize = 32;
    const BYTES: usize = 22;
    const GROUP: usize = 32;
    const ZERO: u8 = 16;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        // SAFETY: bytes 2..22 of the block.
        unsafe {
            let high = s.b_bits(dword(block.add(2)), 16);
            visit.group(s, first, s.b_or(s.b_nibbles(block.add(6)), high));
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, _: *mut f32) {
        // SAFETY: as the caller's; the scale is at byte 0.
        unsafe { half_scales(s, blocks, n, (Self::BYTES, 0), scale) }
    }
}

/// `d: f16, m: f16, qh: u32, qs: [u8; 16]`; value `d · q + m`.
#[derive(Clone, Copy)]
pub(crate) struct Q5_1;

impl Blocks for Q5_1 {
    const LEN: usize = 32;
    const BYTES: usize = 24;
    const GROUP: usize = 32;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        // SAFETY: bytes 4..24 of the block.
        unsafe {
            let high = s.b_bits(dword(block.add(4)), 16);
            visit.group(s, first, s.b_or(s.b_nibbles(block.add(8)), high));
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, min: *mut f32) {
        // SAFETY: as the caller's.
        unsafe { half_pairs(s, blocks, n, Self::BYTES, scale, min) }
    }
}

/// `d: f16, qs: [i8; 32]`; value `d · q`.
#[derive(Clone, Copy)]
pub(crate) struct Q8_0;

impl Blocks for Q8_0 {
    const LEN: usize = 32;
    const BYTES: usize = 34;
    const GROUP: usize = 32;
    const ZERO: u8 = 128;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        // SAFETY: bytes 2..34 of the block.
        unsafe { visit.group(s, first, s.b_xor(s.b_load(block.add(2)), s.b_splat(0x80))) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, _: *mut f32) {
        // SAFETY: as the caller's; the scale is at byte 0.
        unsafe { half_scales(s, blocks, n, (Self::BYTES, 0), scale) }
    }
}

/// `d: f16, s: f16, qs: [i8; 32]`; value `d · q`; `s`, the sum of the values, is of no use here.
#[derive(Clone, Copy)]
pub(crate) struct Q8_1;

impl Blocks for Q8_1 {
    const LEN: usize = 32;
    const BYTES: usize = 36;
    const GROUP: usize = 32;
    const ZERO: u8 = 128;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        // SAFETY: bytes 4..36 of the block.
        unsafe { visit.group(s, first, s.b_xor(s.b_load(block.add(4)), s.b_splat(0x80))) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, _: *mut f32) {
        // SAFETY: as the caller's; the scale is at byte 0.
        unsafe { half_scales(s, blocks, n, (Self::BYTES, 0), scale) }
    }
}
