//! Blocks of 256 values whose groups have small integer scales: Q2_K to Q6_K, IQ4_XS.
//!
//! 64 codes come from 32 bytes in both halves of a register, each half shifted by as much as its group asks for.

use super::small::{all_looked_up, looked_up};
use super::{Rows, Whole, both, turned_nibbles};
use crate::ops::unpack::{IQ4, iq4_xs_scales, q3_k_scales, six_bit_pairs};
use std::arch::x86_64::*;

/// The half-precision number at `p` in all lanes.
///
/// # Safety
/// Two bytes are there. The processor has F16C and AVX-512 F.
#[inline(always)]
unsafe fn half(p: *const u8) -> __m512 {
    // SAFETY: as the caller's.
    unsafe {
        let bits = i32::from(p.cast::<u16>().read_unaligned());
        _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
    }
}

/// One number in the first eight lanes, another in the others.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn two(first: __m512, second: __m512) -> __m512 {
    // SAFETY: as the caller's.
    unsafe { _mm512_mask_blend_ps(0xff00, first, second) }
}

/// 32 bytes in both halves of a register.
///
/// # Safety
/// They are there. The processor has AVX-512 F.
#[inline(always)]
unsafe fn twice(p: *const u8) -> __m512i {
    // SAFETY: as the caller's.
    unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast())) }
}

/// One 16-bit number in the first half, another in the second.
///
/// # Safety
/// The processor has AVX-512 BW.
#[inline(always)]
unsafe fn by(first: i16, second: i16) -> __m512i {
    // SAFETY: as the caller's.
    unsafe { _mm512_mask_blend_epi64(0xf0, _mm512_set1_epi16(first), _mm512_set1_epi16(second)) }
}

/// Shifts the words of the first half right by `first` and those of the other by `second`; to the left where negative.
///
/// # Safety
/// The processor has AVX-512 BW.
#[inline(always)]
unsafe fn shifted(v: __m512i, first: i16, second: i16) -> __m512i {
    // SAFETY: as the caller's.
    unsafe {
        if first <= 0 && second <= 0 {
            _mm512_sllv_epi16(v, by(-first, -second))
        } else if first >= 0 && second >= 0 {
            _mm512_srlv_epi16(v, by(first, second))
        } else {
            // Left by the whole word where the shift is to the right, and the reverse, give 0.
            let left = by(if first < 0 { -first } else { 16 }, if second < 0 { -second } else { 16 });
            let right = by(if first < 0 { 16 } else { first }, if second < 0 { 16 } else { second });
            _mm512_or_si512(_mm512_sllv_epi16(v, left), _mm512_srlv_epi16(v, right))
        }
    }
}

/// The bits of `a` where `mask` has them, else those of `b`.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn select(mask: i8, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: as the caller's.
    unsafe { _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8(mask), a, b) }
}

/// Sixteen floats from signed bytes.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn floats(bytes: [u64; 2]) -> __m512 {
    // SAFETY: as the caller's.
    unsafe {
        let bytes = _mm_set_epi64x(bytes[1] as i64, bytes[0] as i64);
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
    }
}

/// The scales and mins of one or two blocks of Q4_K or Q5_K: `d, dmin: f16`, then 12 bytes.
///
/// # Safety
/// As [`Whole::scales`], for blocks of `BYTES` bytes.
#[inline(always)]
unsafe fn six_bits<const BYTES: usize>(at: *const u8, held: usize) -> (__m512, __m512) {
    // SAFETY: as the caller's.
    unsafe {
        let (scales, mins) = six_bit_pairs(at.add(4));
        let (mut scales, mut mins) = ([scales, 0], [mins, 0]);
        let (mut d, mut low) = (half(at), half(at.add(2)));
        if held > 8 {
            let next = at.add(BYTES);
            (scales[1], mins[1]) = six_bit_pairs(next.add(4));
            (d, low) = (two(d, half(next)), two(low, half(next.add(2))));
        }
        let low = _mm512_mul_ps(floats(mins), low);
        (_mm512_mul_ps(floats(scales), d), _mm512_sub_ps(_mm512_setzero_ps(), low))
    }
}

/// `d, dmin: f16, scales: [u8; 12], qs: [u8; 128]`.
pub(crate) struct Q4K;

impl Whole for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;
    const GROUP: usize = 32;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn scales(at: *const u8, held: usize) -> (__m512, __m512) {
        // SAFETY: the caller's.
        unsafe { six_bits::<{ Self::BYTES }>(at, held) }
    }
    #[inline(always)]
    unsafe fn codes(at: *const u8, i: usize, _: bool) -> __m512i {
        // SAFETY: 32 of the bytes 16..144 of a block.
        unsafe {
            let q = twice(at.add(i / 4 * Self::BYTES + 16 + i % 4 * 32));
            _mm512_and_si512(shifted(q, 0, 4), _mm512_set1_epi8(15))
        }
    }
    #[inline(always)]
    unsafe fn quads(rows: Rows, i: usize, _: bool) -> [__m512i; 16] {
        // SAFETY: 32 of the bytes 16..144 of a block of each row.
        unsafe {
            let rows = rows.on(i / 4 * Self::BYTES + 16 + i % 4 * 32);
            let [a, b, c, d, i, j, k, l] = turned_nibbles(rows);
            let [e, f, g, h, m, n, o, p] = turned_nibbles(rows.on(16));
            [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
        }
    }
}

/// `d, dmin: f16, scales: [u8; 12], qh: [u8; 32], qs: [u8; 128]`.
pub(crate) struct Q5K;

impl Whole for Q5K {
    const LEN: usize = 256;
    const BYTES: usize = 176;
    const GROUP: usize = 32;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn scales(at: *const u8, held: usize) -> (__m512, __m512) {
        // SAFETY: the caller's.
        unsafe { six_bits::<{ Self::BYTES }>(at, held) }
    }
    #[inline(always)]
    unsafe fn codes(at: *const u8, i: usize, _: bool) -> __m512i {
        // SAFETY: bytes 16..48 and 32 of the bytes 48..176 of a block.
        unsafe {
            let block = at.add(i / 4 * Self::BYTES);
            let (q, high) = (twice(block.add(48 + i % 4 * 32)), twice(block.add(16)));
            let high = match i % 4 {
                0 => shifted(high, -4, -3),
                1 => shifted(high, -2, -1),
                2 => shifted(high, 0, 1),
                _ => shifted(high, 2, 3),
            };
            _mm512_and_si512(select(15, shifted(q, 0, 4), high), _mm512_set1_epi8(31))
        }
    }
}

/// `ql: [u8; 128], qh: [u8; 64], scales: [i8; 16], d: f16`.
pub(crate) struct Q6K;

impl Whole for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;
    const GROUP: usize = 16;
    const ZERO: f32 = 32.0;

    #[inline(always)]
    unsafe fn scales(at: *const u8, _: usize) -> (__m512, __m512) {
        // SAFETY: bytes 192..210 of a block.
        unsafe {
            let codes = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.add(192).cast()));
            (_mm512_mul_ps(_mm512_cvtepi32_ps(codes), half(at.add(208))), _mm512_setzero_ps())
        }
    }
    #[inline(always)]
    unsafe fn codes(at: *const u8, i: usize, _: bool) -> __m512i {
        // SAFETY: bytes 0..192 of a block.
        unsafe {
            let low = _mm512_loadu_si512(at.add(i / 2 * 64).cast());
            let high = twice(at.add(128 + i / 2 * 32));
            let (low, high) = if i.is_multiple_of(2) {
                (low, shifted(high, -4, -2))
            } else {
                (_mm512_srli_epi16::<4>(low), shifted(high, 0, 2))
            };
            _mm512_and_si512(select(15, low, high), _mm512_set1_epi8(63))
        }
    }
}

/// `hmask: [u8; 32], qs: [u8; 64], scales: [u8; 12], d: f16`.
pub(crate) struct Q3K;

impl Whole for Q3K {
    const LEN: usize = 256;
    const BYTES: usize = 110;
    const GROUP: usize = 16;
    const ZERO: f32 = 4.0;

    #[inline(always)]
    unsafe fn scales(at: *const u8, _: usize) -> (__m512, __m512) {
        // SAFETY: bytes 96..110 of a block.
        unsafe { (_mm512_mul_ps(floats(q3_k_scales(at.add(96))), half(at.add(108))), _mm512_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn codes(at: *const u8, i: usize, _: bool) -> __m512i {
        // SAFETY: bytes 0..96 of a block.
        unsafe {
            let (mask, q) = (twice(at), twice(at.add(32 + i / 2 * 32)));
            let q = if i.is_multiple_of(2) { shifted(q, 0, 2) } else { shifted(q, 4, 6) };
            let mask = match i {
                0 => shifted(mask, -2, -1),
                1 => shifted(mask, 0, 1),
                2 => shifted(mask, 2, 3),
                _ => shifted(mask, 4, 5),
            };
            _mm512_and_si512(select(3, q, mask), _mm512_set1_epi8(7))
        }
    }
}

/// `scales: [u8; 16], qs: [u8; 64], d, dmin: f16`.
pub(crate) struct Q2K;

impl Whole for Q2K {
    const LEN: usize = 256;
    const BYTES: usize = 84;
    const GROUP: usize = 16;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn scales(at: *const u8, _: usize) -> (__m512, __m512) {
        // SAFETY: bytes 0..16 and 80..84 of a block.
        unsafe {
            let both = _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()));
            let scale = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
            let min = _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(both));
            let low = _mm512_mul_ps(min, half(at.add(82)));
            (_mm512_mul_ps(scale, half(at.add(80))), _mm512_sub_ps(_mm512_setzero_ps(), low))
        }
    }
    #[inline(always)]
    unsafe fn codes(at: *const u8, i: usize, _: bool) -> __m512i {
        // SAFETY: bytes 16..80 of a block.
        unsafe {
            let q = twice(at.add(16 + i / 2 * 32));
            let q = if i.is_multiple_of(2) { shifted(q, 0, 2) } else { shifted(q, 4, 6) };
            _mm512_and_si512(q, _mm512_set1_epi8(3))
        }
    }
}

/// `d: f16, scales_h: u16, scales_l: [u8; 4], qs: [u8; 128]`, codes of a table.
pub(crate) struct Iq4Xs;

impl Whole for Iq4Xs {
    const LEN: usize = 256;
    const BYTES: usize = 136;
    const GROUP: usize = 32;
    const ZERO: f32 = 127.0;

    #[inline(always)]
    unsafe fn scales(at: *const u8, held: usize) -> (__m512, __m512) {
        // SAFETY: bytes 0..8 of one or two blocks.
        unsafe {
            let (mut codes, mut d) = ([iq4_xs_scales(at), 0], half(at));
            if held > 8 {
                let next = at.add(Self::BYTES);
                codes[1] = iq4_xs_scales(next);
                d = two(d, half(next));
            }
            (_mm512_mul_ps(floats(codes), d), _mm512_setzero_ps())
        }
    }
    #[inline(always)]
    unsafe fn codes(at: *const u8, i: usize, _: bool) -> __m512i {
        // SAFETY: 32 of the bytes 8..136 of a block.
        unsafe {
            let q = _mm256_loadu_si256(at.add(i / 4 * Self::BYTES + 8 + i % 4 * 32).cast());
            // Each 16 bytes twice: a group is their low halves, then their high ones.
            let q =
                _mm512_permutexvar_epi64(_mm512_set_epi64(3, 2, 3, 2, 1, 0, 1, 0), _mm512_castsi256_si512(q));
            let high = 0x0004_0004_0004_0004;
            let shift = _mm512_set_epi64(high, high, 0, 0, high, high, 0, 0);
            let codes = _mm512_and_si512(_mm512_srlv_epi16(q, shift), _mm512_set1_epi8(15));
            looked_up(&IQ4, codes)
        }
    }
    #[inline(always)]
    unsafe fn quads(rows: Rows, i: usize, _: bool) -> [__m512i; 16] {
        // SAFETY: 32 of the bytes 8..136 of a block of each row.
        unsafe {
            let rows = rows.on(i / 4 * Self::BYTES + 8 + i % 4 * 32);
            all_looked_up(&IQ4, both(turned_nibbles(rows), turned_nibbles(rows.on(16))))
        }
    }
}
