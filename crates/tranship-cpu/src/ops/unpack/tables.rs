//! The encodings whose 4-bit codes are looked up in a table: IQ4_NL, IQ4_XS, MXFP4.
//!
//! The tables hold signed values; what is looked up here is the value plus `ZERO`, to fit the unsigned codes that
//! the kernels take.

use super::small::half_scales;
use super::{Blocks, Visit, dword, pad, word};
use crate::arch::Simd;

/// The sixteen values of the two IQ4 encodings, plus 127.
pub(crate) static IQ4: [u8; 16] = {
    let values: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (values[i] as i16 + 127) as u8;
        i += 1;
    }
    table
};

/// Twice the sixteen values of a 4-bit float (2 exponent bits, 1 mantissa bit), plus 12.
pub(crate) static E2M1: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// `d: f16, qs: [u8; 16]`; value `d · table[q]`.
#[derive(Clone, Copy)]
pub(crate) struct Iq4Nl;

impl Blocks for Iq4Nl {
    const LEN: usize = 32;
    const BYTES: usize = 18;
    const GROUP: usize = 32;
    const ZERO: u8 = 127;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        // SAFETY: bytes 2..18 of the block.
        unsafe { visit.group(s, first, s.b_lookup(&IQ4, s.b_nibbles(block.add(2)))) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, _: *mut f32) {
        // SAFETY: as the caller's; the scale is at byte 0.
        unsafe { half_scales(s, blocks, n, (Self::BYTES, 0), scale) }
    }
}

/// The eight scales of a block of IQ4_XS before `d`, as signed bytes.
///
/// # Safety
/// Eight bytes at `block` are readable.
#[inline(always)]
pub(crate) unsafe fn iq4_xs_scales(block: *const u8) -> u64 {
    // SAFETY: the caller's.
    let (high, low) = unsafe { (u32::from(word(block.add(2))), dword(block.add(4))) };
    let mut codes = 0u64;
    for g in 0..8 {
        let code = (low >> (4 * g)) & 15 | ((high >> (2 * g)) & 3) << 4;
        codes |= u64::from(code.wrapping_sub(32) as u8) << (8 * g);
    }
    codes
}

/// `d: f16, scales_h: u16, scales_l: [u8; 4], qs: [u8; 128]`: eight groups of 32, each as in IQ4_NL; scale
/// `d · (s − 32)`, where `s` has its low four bits in `scales_l` and its high two in `scales_h`.
#[derive(Clone, Copy)]
pub(crate) struct Iq4Xs;

impl Blocks for Iq4Xs {
    const LEN: usize = 256;
    const BYTES: usize = 136;
    const GROUP: usize = 32;
    const ZERO: u8 = 127;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        // SAFETY: bytes 8..136 of the block.
        unsafe {
            let qs = block.add(8);
            visit.group(s, first, s.b_lookup(&IQ4, s.b_nibbles(qs)));
            visit.group(s, first + 1, s.b_lookup(&IQ4, s.b_nibbles(qs.add(16))));
            visit.group(s, first + 2, s.b_lookup(&IQ4, s.b_nibbles(qs.add(32))));
            visit.group(s, first + 3, s.b_lookup(&IQ4, s.b_nibbles(qs.add(48))));
            visit.group(s, first + 4, s.b_lookup(&IQ4, s.b_nibbles(qs.add(64))));
            visit.group(s, first + 5, s.b_lookup(&IQ4, s.b_nibbles(qs.add(80))));
            visit.group(s, first + 6, s.b_lookup(&IQ4, s.b_nibbles(qs.add(96))));
            visit.group(s, first + 7, s.b_lookup(&IQ4, s.b_nibbles(qs.add(112))));
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, _: *mut f32) {
        for b in 0..n {
            // SAFETY: bytes 0..8 of block `b` of `n`, and its eight scales.
            unsafe {
                let block = blocks.add(b * Self::BYTES);
                let d = s.f16(word(block));
                let codes = iq4_xs_scales(block);
                s.g_store(scale.add(b * 8), s.g_scaled(codes, d));
            }
        }
        // SAFETY: the scales are rounded up to 16.
        unsafe { pad(s, scale, n * 8) };
    }
}

/// `e: u8, qs: [u8; 16]`; value `2^(e − 127)` times a 4-bit float. The table holds twice the float, so the scale here is
/// half: `2^(e − 128)`, subnormal for `e` below 2.
#[derive(Clone, Copy)]
pub(crate) struct Mxfp4;

impl Blocks for Mxfp4 {
    const LEN: usize = 32;
    const BYTES: usize = 17;
    const GROUP: usize = 32;
    const ZERO: u8 = 12;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        // SAFETY: bytes 1..17 of the block.
        unsafe { visit.group(s, first, s.b_lookup(&E2M1, s.b_nibbles(block.add(1)))) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, _: *mut f32) {
        for b in 0..n {
            // SAFETY: byte 0 of block `b` of `n`, and its scale.
            unsafe {
                let e = u32::from(blocks.add(b * Self::BYTES).read());
                let bits = if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 };
                scale.add(b).write_unaligned(f32::from_bits(bits));
            }
        }
        // SAFETY: the scales are rounded up to 16.
        unsafe { pad(s, scale, n) };
    }
}
