//! Blocks of 32 values with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.
//!
//! Their scales lie one block apart. Sixteen blocks are read as whole registers, and a permutation of each picks the
//! words with scales: a gather would be one instruction, but takes longer on some processors than the products.

use super::Whole;
use crate::ops::unpack::{E2M1, IQ4};
use std::arch::x86_64::*;

/// The most registers that sixteen blocks take.
const REGISTERS: usize = 9;

/// Where byte `AT` of each of sixteen blocks of `BYTES` bytes is among the 32-bit words of the blocks.
struct Places<const BYTES: usize, const AT: usize>;

impl<const BYTES: usize, const AT: usize> Places<BYTES, AT> {
    /// The word of each block.
    const WORDS: [i32; 16] = {
        let mut words = [0; 16];
        let mut block = 0;
        while block < 16 {
            words[block] = ((block * BYTES + AT) / 4) as i32;
            block += 1;
        }
        words
    };

    /// Bits of the word below the byte.
    const SHIFTS: [i32; 16] = {
        let mut shifts = [0; 16];
        let mut block = 0;
        while block < 16 {
            shifts[block] = ((block * BYTES + AT) % 4 * 8) as i32;
            block += 1;
        }
        shifts
    };

    /// For each register, the blocks whose word is in it.
    const MASKS: [u16; REGISTERS] = {
        let mut masks = [0; REGISTERS];
        let mut block = 0;
        while block < 16 {
            masks[(block * BYTES + AT) / 64] |= 1 << block;
            block += 1;
        }
        masks
    };
}

/// From each of `held` blocks, the bytes from byte `AT` to the end of its 32-bit word, as the lowest of a lane.
///
/// # Safety
/// The blocks are there; their scale ends with the word that byte `AT` is in. The processor has AVX-512 F.
#[inline(always)]
unsafe fn words<const BYTES: usize, const AT: usize>(at: *const u8, held: usize) -> __m512i {
    // Whole words of the blocks: the last scale is within them, for codes follow it.
    let there = held * BYTES / 4;
    // SAFETY: no word is read that is not of the blocks.
    unsafe {
        let index = _mm512_loadu_si512(Places::<BYTES, AT>::WORDS.as_ptr().cast());
        let mut picked = _mm512_setzero_si512();
        for (register, lanes) in Places::<BYTES, AT>::MASKS.into_iter().enumerate() {
            let left = there.saturating_sub(16 * register);
            if lanes != 0 && left > 0 {
                let some = ((1u32 << left.min(16)) - 1) as u16;
                let words = _mm512_maskz_loadu_epi32(some, at.add(64 * register).cast());
                picked = _mm512_mask_permutexvar_epi32(picked, lanes, index, words);
            }
        }
        if BYTES % 4 == 0 && AT % 4 == 0 {
            return picked;
        }
        _mm512_srlv_epi32(picked, _mm512_loadu_si512(Places::<BYTES, AT>::SHIFTS.as_ptr().cast()))
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

/// The half-precision scale at the start of each block.
///
/// # Safety
/// As [`words`].
#[inline(always)]
unsafe fn scale<const BYTES: usize>(at: *const u8, held: usize) -> (__m512, __m512) {
    // SAFETY: as the caller's.
    unsafe { (halves(words::<BYTES, 0>(at, held)), _mm512_setzero_ps()) }
}

/// The half-precision scale at the start of each block, and the min that follows it.
///
/// # Safety
/// As [`words`].
#[inline(always)]
unsafe fn scale_and_min<const BYTES: usize>(at: *const u8, held: usize) -> (__m512, __m512) {
    // SAFETY: as the caller's.
    unsafe {
        let words = words::<BYTES, 0>(at, held);
        (halves(words), halves(_mm512_srli_epi32::<16>(words)))
    }
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

/// Says how one encoding of blocks of 32 comes apart.
macro_rules! whole {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, mins: $mins:literal, zero: $zero:literal,
        |$s_at:ident, $held:ident| $scales:expr, |$at:ident, $i:ident, $half:ident| $codes:expr) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Whole for $name {
            const LEN: usize = 32;
            const BYTES: usize = $bytes;
            const GROUP: usize = 32;
            const MINS: bool = $mins;
            const ZERO: f32 = $zero;

            #[inline(always)]
            unsafe fn scales($s_at: *const u8, $held: usize) -> (__m512, __m512) {
                // SAFETY: the caller's.
                unsafe { $scales }
            }
            #[inline(always)]
            unsafe fn codes($at: *const u8, $i: usize, $half: bool) -> __m512i {
                // SAFETY: the caller's.
                unsafe { $codes }
            }
        }
    };
}

whole!(
    /// `d: f16, qs: [u8; 16]`.
    Q4_0, 18, mins: false, zero: 8.0,
    |at, held| scale::<18>(at, held),
    |at, i, half| nibbles::<18, 2>(at, i, half)
);
whole!(
    /// `d: f16, m: f16, qs: [u8; 16]`.
    Q4_1, 20, mins: true, zero: 0.0,
    |at, held| scale_and_min::<20>(at, held),
    |at, i, half| nibbles::<20, 4>(at, i, half)
);
whole!(
    /// `d: f16, qh: u32, qs: [u8; 16]`.
    Q5_0, 22, mins: false, zero: 16.0,
    |at, held| scale::<22>(at, held),
    |at, i, half| fifth_bits::<22, 2>(nibbles::<22, 6>(at, i, half), at, i, half)
);
whole!(
    /// `d: f16, m: f16, qh: u32, qs: [u8; 16]`.
    Q5_1, 24, mins: true, zero: 0.0,
    |at, held| scale_and_min::<24>(at, held),
    |at, i, half| fifth_bits::<24, 4>(nibbles::<24, 8>(at, i, half), at, i, half)
);
whole!(
    /// `d: f16, qs: [i8; 32]`.
    Q8_0, 34, mins: false, zero: 128.0,
    |at, held| scale::<34>(at, held),
    |at, i, half| {
        let first = at.add(68 * i + 2);
        let second = if half { first } else { first.add(34) };
        let low = _mm512_castsi256_si512(_mm256_loadu_si256(first.cast()));
        let both = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(second.cast()));
        _mm512_xor_si512(both, _mm512_set1_epi8(-128))
    }
);
whole!(
    /// `d: f16, qs: [u8; 16]`, codes of a table.
    Iq4Nl, 18, mins: false, zero: 127.0,
    |at, held| scale::<18>(at, held),
    |at, i, half| looked_up(&IQ4, nibbles::<18, 2>(at, i, half))
);
whole!(
    /// `e: u8, qs: [u8; 16]`, codes of a table of twice the values: the scale is `2^(e - 128)`.
    Mxfp4, 17, mins: false, zero: 12.0,
    |at, held| {
        let e = _mm512_and_si512(words::<17, 0>(at, held), _mm512_set1_epi32(0xff));
        let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
        let small = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
        let bits = _mm512_mask_sllv_epi32(normal, small, _mm512_set1_epi32(0x0020_0000), e);
        // Lanes past the groups are zero, as the sums that they meet.
        (_mm512_castsi512_ps(bits), _mm512_setzero_ps())
    },
    |at, i, half| looked_up(&E2M1, nibbles::<17, 1>(at, i, half))
);
