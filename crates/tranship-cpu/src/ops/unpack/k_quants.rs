//! The encodings in super-blocks of 256, whose groups have small integer scales of their own: Q2_K to Q6_K, Q8_K.

use super::{Blocks, Visit, dword, pad, word};
use crate::arch::Simd;

/// Writes `d` times each of sixteen signed bytes.
///
/// # Safety
/// `out` has room for sixteen floats.
#[inline(always)]
unsafe fn sixteen<S: Simd>(s: S, codes: [u64; 2], d: f32, out: *mut f32) {
    // SAFETY: the caller's.
    unsafe {
        s.g_store(out, s.g_scaled(codes[0], d));
        s.g_store(out.add(8), s.g_scaled(codes[1], d));
    }
}

/// 32 less in each of eight bytes below 64: as signed bytes, without a borrow from one to the next.
#[inline(always)]
fn less_32(codes: u64) -> u64 {
    const TOP: u64 = 0x8080_8080_8080_8080;
    ((codes | TOP) - 0x2020_2020_2020_2020) ^ TOP
}

/// The eight 6-bit scales and eight 6-bit mins that Q4_K and Q5_K pack in 12 bytes.
///
/// # Safety
/// `p` has 12 readable bytes.
#[inline(always)]
pub(crate) unsafe fn six_bit_pairs(p: *const u8) -> (u64, u64) {
    // SAFETY: the caller's.
    let (a, b, c) = unsafe { (dword(p), dword(p.add(4)), dword(p.add(8))) };
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    (
        pair(a & 0x3f3f_3f3f, c & 0x0f0f_0f0f | (a >> 2) & 0x3030_3030),
        pair(b & 0x3f3f_3f3f, (c >> 4) & 0x0f0f_0f0f | (b >> 2) & 0x3030_3030),
    )
}

/// The scales and mins of Q4_K and Q5_K: `d, dmin: f16`, then [`six_bit_pairs`].
///
/// # Safety
/// As [`Blocks::scales`], for blocks of `bytes` bytes.
#[inline(always)]
unsafe fn six_bit_scales<S: Simd>(
    s: S,
    blocks: *const u8,
    n: usize,
    bytes: usize,
    scale: *mut f32,
    min: *mut f32,
) {
    for b in 0..n {
        // SAFETY: bytes 0..16 of block `b` of `n`, and its eight scales and mins.
        unsafe {
            let block = blocks.add(b * bytes);
            let (scales, mins) = six_bit_pairs(block.add(4));
            s.g_store(scale.add(b * 8), s.g_scaled(scales, s.f16(word(block))));
            s.g_store(min.add(b * 8), s.g_scaled(mins, s.f16(word(block.add(2)))));
        }
    }
    // SAFETY: both are rounded up to 16.
    unsafe {
        pad(s, scale, n * 8);
        pad(s, min, n * 8);
    }
}

/// `d, dmin: f16, scales: [u8; 12], qs: [u8; 128]`: of each 32 bytes, first the low halves, then the high.
#[derive(Clone, Copy)]
pub(crate) struct Q4K;

impl Blocks for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;
    const GROUP: usize = 32;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        macro_rules! pair {
            ($j:literal) => {
                // SAFETY: 32 of the bytes 16..144 of the block.
                unsafe {
                    let q = s.b_load(block.add(16 + 32 * $j));
                    visit.group(s, first + 2 * $j, s.b_and(q, s.b_splat(15)));
                    visit.group(s, first + 2 * $j + 1, s.b_shr::<4>(q, 15));
                }
            };
        }
        pair!(0);
        pair!(1);
        pair!(2);
        pair!(3);
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, min: *mut f32) {
        // SAFETY: as the caller's.
        unsafe { six_bit_scales(s, blocks, n, Self::BYTES, scale, min) }
    }
}

/// As Q4_K, with `qh: [u8; 32]` before `qs`: the fifth bit of value `i` of group `g` is bit `g` of byte `i`.
#[derive(Clone, Copy)]
pub(crate) struct Q5K;

impl Blocks for Q5K {
    const LEN: usize = 256;
    const BYTES: usize = 176;
    const GROUP: usize = 32;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        // SAFETY: bytes 16..48 of the block.
        let qh = unsafe { s.b_load(block.add(16)) };
        macro_rules! pair {
            ($j:literal, $low:expr, $high:expr) => {
                // SAFETY: 32 of the bytes 48..176 of the block.
                unsafe {
                    let q = s.b_load(block.add(48 + 32 * $j));
                    visit.group(s, first + 2 * $j, s.b_or(s.b_and(q, s.b_splat(15)), $low));
                    visit.group(s, first + 2 * $j + 1, s.b_or(s.b_shr::<4>(q, 15), $high));
                }
            };
        }
        pair!(0, s.b_shl::<4>(qh, 16), s.b_shl::<3>(qh, 16));
        pair!(1, s.b_shl::<2>(qh, 16), s.b_shl::<1>(qh, 16));
        pair!(2, s.b_and(qh, s.b_splat(16)), s.b_shr::<1>(qh, 16));
        pair!(3, s.b_shr::<2>(qh, 16), s.b_shr::<3>(qh, 16));
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, min: *mut f32) {
        // SAFETY: as the caller's.
        unsafe { six_bit_scales(s, blocks, n, Self::BYTES, scale, min) }
    }
}

/// `ql: [u8; 128], qh: [u8; 64], scales: [i8; 16], d: f16`: 6-bit codes less 32, in two halves of 128 values; the low
/// four bits in 64 bytes of `ql`, the high two in 32 bytes of `qh`, two at a time.
#[derive(Clone, Copy)]
pub(crate) struct Q6K;

impl Blocks for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;
    const GROUP: usize = 16;
    const ZERO: u8 = 32;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        macro_rules! half {
            ($j:literal) => {
                // SAFETY: half `j` of `ql` and `qh`, in bytes 0..192 of the block.
                unsafe {
                    let (a, b) = (s.b_load(block.add(64 * $j)), s.b_load(block.add(64 * $j + 32)));
                    let high = s.b_load(block.add(128 + 32 * $j));
                    let low = s.b_splat(15);
                    visit.group(s, first + 4 * $j, s.b_or(s.b_and(a, low), s.b_shl::<4>(high, 48)));
                    visit.group(s, first + 4 * $j + 1, s.b_or(s.b_and(b, low), s.b_shl::<2>(high, 48)));
                    visit.group(
                        s,
                        first + 4 * $j + 2,
                        s.b_or(s.b_shr::<4>(a, 15), s.b_and(high, s.b_splat(48))),
                    );
                    visit.group(s, first + 4 * $j + 3, s.b_or(s.b_shr::<4>(b, 15), s.b_shr::<2>(high, 48)));
                }
            };
        }
        half!(0);
        half!(1);
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, _: *mut f32) {
        for b in 0..n {
            // SAFETY: bytes 192..210 of block `b` of `n`, and its sixteen scales.
            unsafe {
                let block = blocks.add(b * Self::BYTES);
                let codes = block.add(192).cast::<[u64; 2]>().read_unaligned();
                sixteen(s, codes, s.f16(word(block.add(208))), scale.add(b * 16));
            }
        }
    }
}

/// The sixteen 6-bit scales less 32 that Q3_K packs in 12 bytes, as signed bytes.
///
/// # Safety
/// `p` has 12 readable bytes.
#[inline(always)]
pub(crate) unsafe fn q3_k_scales(p: *const u8) -> [u64; 2] {
    // SAFETY: the caller's.
    let (low, high) = unsafe { (p.cast::<u64>().read_unaligned(), dword(p.add(8))) };
    let four = 0x0f0f_0f0f_0f0f_0f0f;
    let two = |shift: u32| u64::from((high >> shift) & 0x0303_0303) << 4;
    let first = low & four | two(0) | two(2) << 32;
    let second = (low >> 4) & four | two(4) | two(6) << 32;
    [less_32(first), less_32(second)]
}

/// `hmask: [u8; 32], qs: [u8; 64], scales: [u8; 12], d: f16`: 3-bit codes less 4: two bits as in Q2_K, the third of value
/// `i` of group of 32 number `g` in bit `g` of `hmask[i]`; sixteen 6-bit scales less 32.
#[derive(Clone, Copy)]
pub(crate) struct Q3K;

impl Blocks for Q3K {
    const LEN: usize = 256;
    const BYTES: usize = 110;
    const GROUP: usize = 16;
    const ZERO: u8 = 4;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        // SAFETY: bytes 0..96 of the block.
        unsafe {
            let mask = s.b_load(block);
            let (a, b) = (s.b_load(block.add(32)), s.b_load(block.add(64)));
            let two = s.b_splat(3);
            visit.group(s, first, s.b_or(s.b_and(a, two), s.b_shl::<2>(mask, 4)));
            visit.group(s, first + 1, s.b_or(s.b_shr::<2>(a, 3), s.b_shl::<1>(mask, 4)));
            visit.group(s, first + 2, s.b_or(s.b_shr::<4>(a, 3), s.b_and(mask, s.b_splat(4))));
            visit.group(s, first + 3, s.b_or(s.b_shr::<6>(a, 3), s.b_shr::<1>(mask, 4)));
            visit.group(s, first + 4, s.b_or(s.b_and(b, two), s.b_shr::<2>(mask, 4)));
            visit.group(s, first + 5, s.b_or(s.b_shr::<2>(b, 3), s.b_shr::<3>(mask, 4)));
            visit.group(s, first + 6, s.b_or(s.b_shr::<4>(b, 3), s.b_shr::<4>(mask, 4)));
            visit.group(s, first + 7, s.b_or(s.b_shr::<6>(b, 3), s.b_shr::<5>(mask, 4)));
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, _: *mut f32) {
        for b in 0..n {
            // SAFETY: bytes 96..110 of block `b` of `n`, and its sixteen scales.
            unsafe {
                let block = blocks.add(b * Self::BYTES);
                sixteen(s, q3_k_scales(block.add(96)), s.f16(word(block.add(108))), scale.add(b * 16));
            }
        }
    }
}

/// `scales: [u8; 16], qs: [u8; 64], d, dmin: f16`: 2-bit codes, in each 32 bytes of `qs` four groups of 32; each group of
/// 16 has a 4-bit scale and a 4-bit min.
#[derive(Clone, Copy)]
pub(crate) struct Q2K;

impl Blocks for Q2K {
    const LEN: usize = 256;
    const BYTES: usize = 84;
    const GROUP: usize = 16;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        macro_rules! half {
            ($j:literal) => {
                // SAFETY: 32 of the bytes 16..80 of the block.
                unsafe {
                    let q = s.b_load(block.add(16 + 32 * $j));
                    visit.group(s, first + 4 * $j, s.b_and(q, s.b_splat(3)));
                    visit.group(s, first + 4 * $j + 1, s.b_shr::<2>(q, 3));
                    visit.group(s, first + 4 * $j + 2, s.b_shr::<4>(q, 3));
                    visit.group(s, first + 4 * $j + 3, s.b_shr::<6>(q, 3));
                }
            };
        }
        half!(0);
        half!(1);
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, min: *mut f32) {
        for b in 0..n {
            // SAFETY: bytes 0..16 and 80..84 of block `b` of `n`, and its sixteen scales and mins.
            unsafe {
                let block = blocks.add(b * Self::BYTES);
                let [a, c] = block.cast::<[u64; 2]>().read_unaligned();
                let low = 0x0f0f_0f0f_0f0f_0f0f;
                sixteen(s, [a & low, c & low], s.f16(word(block.add(80))), scale.add(b * 16));
                sixteen(s, [(a >> 4) & low, (c >> 4) & low], s.f16(word(block.add(82))), min.add(b * 16));
            }
        }
    }
}

/// `d: f32, qs: [i8; 256], bsums: [i16; 16]`; value `d · q`.
#[derive(Clone, Copy)]
pub(crate) struct Q8K;

impl Blocks for Q8K {
    const LEN: usize = 256;
    const BYTES: usize = 292;
    const GROUP: usize = 32;
    const ZERO: u8 = 128;
    const WIDE: bool = true;
    const SHORT_SCALES: bool = false;

    #[inline(always)]
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V) {
        macro_rules! group {
            ($($i:literal)*) => {
                $(
                    // SAFETY: 32 of the bytes 4..260 of the block.
                    unsafe {
                        let q = s.b_load(block.add(4 + 32 * $i));
                        visit.group(s, first + $i, s.b_xor(q, s.b_splat(0x80)));
                    }
                )*
            };
        }
        group!(0 1 2 3 4 5 6 7);
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, _: *mut f32) {
        for b in 0..n {
            // SAFETY: bytes 0..4 of block `b` of `n`, and its eight scales.
            unsafe {
                let d = f32::from_bits(dword(blocks.add(b * Self::BYTES)));
                scale.add(b * 8).cast::<[f32; 8]>().write_unaligned([d; 8]);
            }
        }
        // SAFETY: the scales are rounded up to 16.
        unsafe { pad(s, scale, n * 8) };
    }
}
