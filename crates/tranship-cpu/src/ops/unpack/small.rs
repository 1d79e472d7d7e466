//! The encodings in blocks of 32 with one half-precision scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1.
//!
//! Their scales lie one block apart in memory. They are first collected, a word at a time, then converted a vector
//! at a time: the conversion of single half-precision numbers would cost as much as the products.

use super::{Blocks, Visit, dword, word};
use crate::arch::{MAX_LANES, Simd};

/// Blocks whose scales are collected at a time.
const CHUNK: usize = 64;

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
    let mut raw = [0u16; CHUNK + MAX_LANES];
    let mut done = 0;
    while done < n {
        let now = (n - done).min(CHUNK);
        for (i, raw) in raw.iter_mut().enumerate().take(now) {
            // SAFETY: block `done + i` of `n`.
            *raw = unsafe { word(blocks.add((done + i) * bytes + at)) };
        }
        raw[now..now + MAX_LANES].fill(0);
        let mut i = 0;
        while i < now {
            // SAFETY: `raw` goes on for `MAX_LANES` past `now`; `scale` is rounded up likewise.
            unsafe { s.store(scale.add(done + i), s.load_f16(raw.as_ptr().add(i))) };
            i += S::LANES;
        }
        done += now;
    }
}

/// Converts the two half-precision numbers at the start of each block: a scale, and what is *added*: a negative min.
///
/// # Safety
/// As [`Blocks::scales`], for blocks of `bytes` bytes.
#[inline(always)]
unsafe fn half_pairs<S: Simd>(s: S, blocks: *const u8, n: usize, bytes: usize, scale: *mut f32, min: *mut f32) {
    let mut raw = [0u32; CHUNK + MAX_LANES];
    let mut done = 0;
    while done < n {
        let now = (n - done).min(CHUNK);
        for (i, raw) in raw.iter_mut().enumerate().take(now) {
            // SAFETY: block `done + i` of `n`.
            *raw = unsafe { dword(blocks.add((done + i) * bytes)) };
        }
        raw[now..now + MAX_LANES].fill(0);
        let mut i = 0;
        while i < now {
            // SAFETY: `raw` goes on for `MAX_LANES` past `now`; `scale` and `min` are rounded up likewise.
            unsafe {
                let (d, m) = s.load_f16_pairs(raw.as_ptr().add(i));
                s.store(scale.add(done + i), d);
                s.store(min.add(done + i), s.sub(s.splat(-0.0), m));
            }
            i += S::LANES;
        }
        done += now;
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
