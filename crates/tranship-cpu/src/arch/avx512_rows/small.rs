//! Blocks of 32 values with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.
//!
//! Their scales lie one block apart. Sixteen blocks are read as whole registers, and a permutation of each picks the
//! words with scales: a gather would be one instruction, but takes longer on some processors than the products.

use super::{Rows, TurnedScales, Whole, both, first_words, turned_nibbles, turned4};
use crate::ops::unpack::{E2M1, IQ4};
use std::arch::x86_64::*;

/// The most registers that sixteen blocks take.
const REGISTERS: usize = 9;

/// Where each of sixteen blocks of `BYTES` bytes begins among the 32-bit words of the blocks.
struct Places<const BYTES: usize>;

impl<const BYTES: usize> Places<BYTES> {
    /// The word of each block.
    const WORDS: [i32; 16] = {
        let mut words = [0; 16];
        let mut block = 0;
        while block < 16 {
            words[block] = (block * BYTES / 4) as i32;
            block += 1;
        }
        words
    };

    /// Bits of the word that are of the block before.
    const SHIFTS: [i32; 16] = {
        let mut shifts = [0; 16];
        let mut block = 0;
        while block < 16 {
            shifts[block] = (block * BYTES % 4 * 8) as i32;
            block += 1;
        }
        shifts
    };

    /// For each register, the blocks whose word is in it.
    const MASKS: [u16; REGISTERS] = {
        let mut masks = [0; REGISTERS];
        let mut block = 0;
        while block < 16 {
            masks[block * BYTES / 64] |= 1 << block;
            block += 1;
        }
        masks
    };
}

/// From each of `held` blocks, what is of it in the 32-bit word that it begins in, as the lowest bits of a lane: its scale,
/// and a min where blocks are whole words.
///
/// # Safety
/// The blocks are there. The processor has AVX-512 F.
#[inline(always)]
unsafe fn words<const BYTES: usize>(at: *const u8, held: usize) -> __m512i {
    // Whole words of the blocks: the last scale is within them, for codes follow it.
    let there = held * BYTES / 4;
    // SAFETY: no word is read that is not of the blocks.
    unsafe {
        let index = _mm512_loadu_si512(Places::<BYTES>::WORDS.as_ptr().cast());
        let mut picked = _mm512_setzero_si512();
        for (register, lanes) in Places::<BYTES>::MASKS.into_iter().enumerate() {
            let left = there.saturating_sub(16 * register);
            if lanes != 0 && left > 0 {
                let some = ((1u32 << left.min(16)) - 1) as u16;
                let words = _mm512_maskz_loadu_epi32(some, at.add(64 * register).cast());
                picked = _mm512_mask_permutexvar_epi32(picked, lanes, index, words);
            }
        }
        if BYTES.is_multiple_of(4) {
            return picked;
        }
        _mm512_srlv_epi32(picked, _mm512_loadu_si512(Places::<BYTES>::SHIFTS.as_ptr().cast()))
    }
}

/// The half-precision number in the low half of each lane.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn halves(words: __m512i) -> __m512 {
    // SAFETY: as the caller's.
    unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)) }
}

/// A half-precision scale, of words that begin with one.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn scale(words: __m512i) -> (__m512, __m512) {
    // SAFETY: as the caller's.
    unsafe { (halves(words), _mm512_setzero_ps()) }
}

/// A half-precision scale and the min that follows it.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn scale_and_min(words: __m512i) -> (__m512, __m512) {
    // SAFETY: as the caller's.
    unsafe { (halves(words), halves(_mm512_srli_epi32::<16>(words))) }
}

/// The low halves of the 16 bytes at `FROM` of a block, then their high halves; the same of the next block.
///
/// # Safety
/// The block is there, and without `half` the next. The processor has AVX-512 BW.
#[inline(always)]
unsafe fn nibbles<const BYTES: usize, const FROM: usize>(at: *const u8, i: usize, half: bool) -> __m512i {
    // SAFETY: as the caller's.
    unsafe {
        let first = at.add(2 * i * BYTES + FROM);
        let second = if half { first } else { first.add(BYTES) };
        let one = _mm512_broadcast_i32x4(_mm_loadu_si128(first.cast()));
        let both = _mm512_mask_broadcast_i32x4(one, 0xff00, _mm_loadu_si128(second.cast()));
        let high = 0x0004_0004_0004_0004;
        let shift = _mm512_set_epi64(high, high, 0, 0, high, high, 0, 0);
        _mm512_and_si512(_mm512_srlv_epi16(both, shift), _mm512_set1_epi8(15))
    }
}

/// The same of sixteen rows, as [`Whole::quads`].
///
/// # Safety
/// As [`nibbles`], for each row.
#[inline(always)]
unsafe fn block_nibbles<const BYTES: usize, const FROM: usize>(
    rows: Rows,
    i: usize,
    half: bool,
) -> [__m512i; 16] {
    // SAFETY: as the caller's.
    unsafe {
        let first = rows.on(2 * i * BYTES + FROM);
        let second = if half { first } else { first.on(BYTES) };
        both(turned_nibbles(first), turned_nibbles(second))
    }
}

/// The fifth bits of 64 codes, from the words at `FROM` of two blocks: added to `codes`.
///
/// # Safety
/// As [`nibbles`].
#[inline(always)]
unsafe fn fifth_bits<const BYTES: usize, const FROM: usize>(
    codes: __m512i,
    at: *const u8,
    i: usize,
    half: bool,
) -> __m512i {
    // SAFETY: as the caller's.
    unsafe {
        let first = at.add(2 * i * BYTES + FROM);
        let second = if half { first } else { first.add(BYTES) };
        let bits = |p: *const u8| u64::from(p.cast::<u32>().read_unaligned());
        _mm512_mask_add_epi8(codes, bits(first) | bits(second) << 32, codes, _mm512_set1_epi8(16))
    }
}

/// What each code stands for in a table.
///
/// # Safety
/// The processor has AVX-512 BW.
#[inline(always)]
pub(super) unsafe fn looked_up(table: &[u8; 16], codes: __m512i) -> __m512i {
    // SAFETY: the table has the 16 bytes that are read; the instructions are the caller's.
    unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), codes) }
}

/// The same of sixteen registers.
///
/// # Safety
/// As [`looked_up`].
#[inline(always)]
pub(super) unsafe fn all_looked_up(table: &[u8; 16], mut codes: [__m512i; 16]) -> [__m512i; 16] {
    for codes in &mut codes {
        // SAFETY: as the caller's.
        *codes = unsafe { looked_up(table, *codes) };
    }
    codes
}

/// Says how one encoding of blocks of 32 comes apart.
macro_rules! whole {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, mins: $mins:literal, zero: $zero:literal,
        |$words:ident| $scales:expr, |$at:ident, $i:ident, $half:ident| $codes:expr $(, |$rows:ident, $qi:ident, $qhalf:ident| $quads:expr)?) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Whole for $name {
            const LEN: usize = 32;
            const BYTES: usize = $bytes;
            const GROUP: usize = 32;
            const MINS: bool = $mins;
            const ZERO: f32 = $zero;

            #[inline(always)]
            unsafe fn scales(at: *const u8, held: usize) -> (__m512, __m512) {
                // SAFETY: the caller's.
                unsafe {
                    let $words = words::<$bytes>(at, held);
                    $scales
                }
            }
            #[inline(always)]
            unsafe fn codes($at: *const u8, $i: usize, $half: bool) -> __m512i {
                // SAFETY: the caller's.
                unsafe { $codes }
            }
            #[inline(always)]
            unsafe fn turned_scales(rows: Rows, held: usize) -> TurnedScales {
                // SAFETY: the caller's; a block has more than sixteen bytes.
                unsafe {
                    let zero = _mm512_setzero_ps();
                    let mut all = TurnedScales { scale: [zero; 16], min: [zero; 16] };
                    for group in 0..held {
                        let $words = first_words(rows.on(group * Self::BYTES));
                        (all.scale[group], all.min[group]) = $scales;
                    }
                    all
                }
            }
            $(
                #[inline(always)]
                unsafe fn quads($rows: Rows, $qi: usize, $qhalf: bool) -> [__m512i; 16] {
                    // SAFETY: the caller's.
                    unsafe { $quads }
                }
            )?
        }
    };
}

whole!(
    /// `d: f16, qs: [u8; 16]`.
    Q4_0, 18, mins: false, zero: 8.0,
    |words| scale(words),
    |at, i, half| nibbles::<18, 2>(at, i, half),
    |rows, i, half| block_nibbles::<18, 2>(rows, i, half)
);
whole!(
    /// `d: f16, m: f16, qs: [u8; 16]`.
    Q4_1, 20, mins: true, zero: 0.0,
    |words| scale_and_min(words),
    |at, i, half| nibbles::<20, 4>(at, i, half),
    |rows, i, half| block_nibbles::<20, 4>(rows, i, half)
);
whole!(
    /// `d: f16, qh: u32, qs: [u8; 16]`.
    Q5_0, 22, mins: false, zero: 16.0,
    |words| scale(words),
    |at, i, half| fifth_bits::<22, 2>(nibbles::<22, 6>(at, i, half), at, i, half)
);
whole!(
    /// `d: f16, m: f16, qh: u32, qs: [u8; 16]`.
    Q5_1, 24, mins: true, zero: 0.0,
    |words| scale_and_min(words),
    |at, i, half| fifth_bits::<24, 4>(nibbles::<24, 8>(at, i, half), at, i, half)
);
whole!(
    /// `d: f16, qs: [i8; 32]`.
    Q8_0, 34, mins: false, zero: 128.0,
    |words| scale(words),
    |at, i, half| {
        let first = at.add(68 * i + 2);
        let second = if half { first } else { first.add(34) };
        let low = _mm512_castsi256_si512(_mm256_loadu_si256(first.cast()));
        let both = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(second.cast()));
        _mm512_xor_si512(both, _mm512_set1_epi8(-128))
    },
    |rows, i, half| {
        let first = rows.on(68 * i + 2);
        let second = if half { first } else { first.on(34) };
        let ([a, b, c, d], [e, f, g, h]) = (turned4(first), turned4(first.on(16)));
        let ([i, j, k, l], [m, n, o, p]) = (turned4(second), turned4(second.on(16)));
        let mut codes = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p];
        for codes in &mut codes {
            *codes = _mm512_xor_si512(*codes, _mm512_set1_epi8(-128));
        }
        codes
    }
);
whole!(
    /// `d: f16, qs: [u8; 16]`, codes of a table.
    Iq4Nl, 18, mins: false, zero: 127.0,
    |words| scale(words),
    |at, i, half| looked_up(&IQ4, nibbles::<18, 2>(at, i, half)),
    |rows, i, half| all_looked_up(&IQ4, block_nibbles::<18, 2>(rows, i, half))
);
whole!(
    /// `e: u8, qs: [u8; 16]`, codes of a table of twice the values: the scale is `2^(e - 128)`.
    Mxfp4, 17, mins: false, zero: 12.0,
    |words| {
        let e = _mm512_and_si512(words, _mm512_set1_epi32(0xff));
        let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
        let small = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
        let bits = _mm512_mask_sllv_epi32(normal, small, _mm512_set1_epi32(0x0020_0000), e);
        // Lanes past the groups are zero, as the sums that they meet.
        (_mm512_castsi512_ps(bits), _mm512_setzero_ps())
    },
    |at, i, half| looked_up(&E2M1, nibbles::<17, 1>(at, i, half)),
    |rows, i, half| all_looked_up(&E2M1, block_nibbles::<17, 1>(rows, i, half))
);
