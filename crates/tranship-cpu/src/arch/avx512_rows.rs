//! One row of activations by rows of 32-value blocks, in whole 512-bit registers: the kernel that decoding spends its
//! time in.
//!
//! Two blocks fill a register with 64 codes, and one 8-bit dot product instruction gives 16 sums, eight for each block.
//! The blocks' scales are read sixteen at a time by one gather, multiplied with the activations' scales, and spread
//! over the sums' lanes by a permutation. For 40 bytes of `q4_1` that is seven vector operations, and a core has two of
//! them in a cycle, so that memory is what is waited for.

use std::arch::x86_64::*;
use std::ops::Range;

/// Blocks that a gather reads the scales of.
const GROUP: usize = 16;
/// How far ahead weights are asked for, in bytes.
const AHEAD: usize = 3072;

/// A form of blocks of 32 values with half-precision scales at their start.
pub(crate) trait Pairs {
    /// Bytes of a block.
    const BYTES: usize;
    /// Whether a min, added to each value, follows the scale.
    const MINS: bool;
    /// What codes are above the values that they stand for.
    const ZERO: f32;

    /// The unsigned codes of the blocks at `first` and `second`, 32 each.
    ///
    /// # Safety
    /// Both are blocks. The processor has AVX-512 BW.
    unsafe fn codes(first: *const u8, second: *const u8) -> __m512i;
}

/// `d: f16, qs: [u8; 16]`.
pub(crate) struct Q4_0;
/// `d: f16, m: f16, qs: [u8; 16]`.
pub(crate) struct Q4_1;
/// `d: f16, qs: [i8; 32]`.
pub(crate) struct Q8_0;

impl Pairs for Q4_0 {
    const BYTES: usize = 18;
    const MINS: bool = false;
    const ZERO: f32 = 8.0;

    #[inline(always)]
    unsafe fn codes(first: *const u8, second: *const u8) -> __m512i {
        // SAFETY: bytes 2..18 of each block.
        unsafe { nibbles(first.add(2), second.add(2)) }
    }
}

impl Pairs for Q4_1 {
    const BYTES: usize = 20;
    const MINS: bool = true;
    const ZERO: f32 = 0.0;

    #[inline(always)]
    unsafe fn codes(first: *const u8, second: *const u8) -> __m512i {
        // SAFETY: bytes 4..20 of each block.
        unsafe { nibbles(first.add(4), second.add(4)) }
    }
}

impl Pairs for Q8_0 {
    const BYTES: usize = 34;
    const MINS: bool = false;
    const ZERO: f32 = 128.0;

    #[inline(always)]
    unsafe fn codes(first: *const u8, second: *const u8) -> __m512i {
        // SAFETY: bytes 2..34 of each block; the caller's processor has the instructions.
        unsafe {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(first.add(2).cast()));
            let both = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(second.add(2).cast()));
            _mm512_xor_si512(both, _mm512_set1_epi8(-128))
        }
    }
}

/// The low halves of 16 bytes, then their high halves, of two blocks.
///
/// # Safety
/// 16 bytes are there at each. The processor has AVX-512 BW.
#[inline(always)]
unsafe fn nibbles(first: *const u8, second: *const u8) -> __m512i {
    // SAFETY: as the caller's.
    unsafe {
        let one = _mm512_broadcast_i32x4(_mm_loadu_si128(first.cast()));
        let both = _mm512_mask_broadcast_i32x4(one, 0xff00, _mm_loadu_si128(second.cast()));
        let high = 0x0004_0004_0004_0004;
        let shift = _mm512_set_epi64(high, high, 0, 0, high, high, 0, 0);
        _mm512_and_si512(_mm512_srlv_epi16(both, shift), _mm512_set1_epi8(15))
    }
}

/// One row of 8-bit activation blocks.
#[derive(Clone, Copy)]
pub(crate) struct Activations {
    /// 32 codes of each block.
    pub codes: *const i8,
    /// The scale of each block, and its scale times the sum of its codes; padded to whole groups of 16.
    pub scale: *const f32,
    pub sum: *const f32,
}

/// The dot products of `x` with the weight rows `outs`, each given to `done` with its number.
///
/// # Safety
/// `weights` are rows of `blocks` blocks, at least `outs.end` of them; `x` has as many blocks. The processor has the
/// instructions that are named here.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn dot_rows<P: Pairs>(
    weights: *const u8,
    blocks: usize,
    x: Activations,
    outs: Range<usize>,
    mut done: impl FnMut(usize, f32),
) {
    let row_bytes = blocks * P::BYTES;
    for out in outs {
        // SAFETY: the row is one of the weights'.
        let row = unsafe { weights.add(out * row_bytes) };
        for line in (0..row_bytes).step_by(64) {
            _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(AHEAD + line).cast());
        }
        // SAFETY: the row and the activations have `blocks` blocks.
        done(out, unsafe { dot_row::<P>(row, blocks, x) });
    }
}

/// One row's dot product.
///
/// # Safety
/// As [`dot_rows`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn dot_row<P: Pairs>(row: *const u8, blocks: usize, x: Activations) -> f32 {
    let steps = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let offsets = _mm512_mullo_epi32(steps, _mm512_set1_epi32(P::BYTES as i32));
    let (mut sums, mut low) = ([_mm512_setzero_ps(); 2], _mm512_setzero_ps());
    for group in (0..blocks).step_by(GROUP) {
        let held = GROUP.min(blocks - group);
        // SAFETY: `held` blocks from `group` on are in the row, a gather reads the first four bytes of those alone; the
        // activations' scales and sums are padded to whole groups.
        unsafe {
            let start = row.add(group * P::BYTES);
            let some = ((1u32 << held) - 1) as u16;
            let raw = _mm512_mask_i32gather_epi32::<1>(_mm512_setzero_si512(), some, offsets, start.cast());
            let d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(raw));
            let products = _mm512_mul_ps(d, _mm512_loadu_ps(x.scale.add(group)));
            let min = if P::MINS {
                _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(raw)))
            } else {
                d
            };
            low = _mm512_fmadd_ps(min, _mm512_loadu_ps(x.sum.add(group)), low);
            let codes = x.codes.add(group * 32);
            if held == GROUP {
                for pair in 0..GROUP / 2 {
                    sums[pair % 2] = pair_dot::<P>(start, codes, products, pair, sums[pair % 2]);
                }
            } else {
                for pair in 0..held / 2 {
                    sums[pair % 2] = pair_dot::<P>(start, codes, products, pair, sums[pair % 2]);
                }
                if held % 2 == 1 {
                    // The block once more in the place of its neighbour, which meets zeros.
                    let last = start.add((held - 1) * P::BYTES);
                    let x = _mm512_maskz_loadu_epi8(0xffff_ffff, codes.add((held - 1) * 32));
                    let dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), P::codes(last, last), x);
                    let scale = _mm512_permutexvar_ps(lanes_of(held / 2), products);
                    sums[0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sums[0]);
                }
            }
        }
    }
    let sum = _mm512_add_ps(sums[0], sums[1]);
    let low_weight = if P::MINS { 1.0 } else { -P::ZERO };
    _mm512_reduce_add_ps(_mm512_fmadd_ps(low, _mm512_set1_ps(low_weight), sum))
}

/// The two blocks of pair `pair`, multiplied and added to `sum`.
///
/// # Safety
/// As [`dot_rows`]; both blocks are there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn pair_dot<P: Pairs>(
    start: *const u8,
    codes: *const i8,
    products: __m512,
    pair: usize,
    sum: __m512,
) -> __m512 {
    // SAFETY: as the caller's.
    unsafe {
        let first = start.add(2 * pair * P::BYTES);
        let x = _mm512_loadu_si512(codes.add(64 * pair).cast());
        let dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), P::codes(first, first.add(P::BYTES)), x);
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_permutexvar_ps(lanes_of(pair), products), sum)
    }
}

/// Eight times the number of a pair's first block, then eight times that of its second.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes_of(pair: usize) -> __m512i {
    let first = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_add_epi32(first, _mm512_set1_epi32(2 * pair as i32))
}
