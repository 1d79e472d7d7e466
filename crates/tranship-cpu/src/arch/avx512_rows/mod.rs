//! One row of activations by rows of block-encoded weights, in whole 512-bit registers: the kernel that decoding spends
//! its time in.
//!
//! A register holds 64 codes, and one 8-bit dot product instruction gives 16 sums: eight for each group of 32 values, or
//! four for each of 16. Scales are made sixteen groups at a time, multiplied with the activations' scales, and spread
//! over the sums' lanes by a permutation. For 40 bytes of `q4_1` that is seven vector operations, and a core has one or two
//! of them in a cycle, so that memory is what is waited for.
//!
//! The trait [`Whole`] is the only part that knows an encoding's bits; [`small`] has blocks of 32 values, [`super_blocks`]
//! those of 256.

mod small;
mod super_blocks;

use super::avx2::reduce8x4;
use super::avx512::{halves, turned16, turned16_ps};
use small::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use std::arch::x86_64::*;
use std::ops::Range;
use super_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use tranship_dtype::Encoding;

/// Groups whose scales are made together.
const GROUPS: usize = 16;
/// Weight rows that one row of activations meets together. They are far from each other: processors fetch several streams
/// ahead of their readers faster than one, and better than when they are asked to.
const ROWS: usize = 4;

/// An encoding, as unsigned codes in groups with scales.
pub(crate) trait Whole {
    /// Values of a block: 32, or 256 in eight or sixteen groups.
    const LEN: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Values that share a scale: 16 or 32.
    const GROUP: usize;
    /// Whether a min is added to each value of a group.
    const MINS: bool = false;
    /// What codes are above the values that they stand for.
    const ZERO: f32 = 0.0;

    /// Scales of the `held` groups from block `at` on, and what is added to their values where there are
    /// [`Whole::MINS`]. Lanes past them are 0.
    ///
    /// # Safety
    /// The groups' blocks are there, and nothing need be behind them. The processor has the instructions of [`dot_rows`].
    unsafe fn scales(at: *const u8, held: usize) -> (__m512, __m512);

    /// The 64 codes number `i` from block `at` on; with `half`, the first 32 of them, the others being anything.
    ///
    /// # Safety
    /// The codes' blocks are there. The processor has the instructions of [`dot_rows`].
    unsafe fn codes(at: *const u8, i: usize, half: bool) -> __m512i;

    /// The same codes of sixteen rows, each from its block on: four values deep in sixteen registers, a lane for each row. With
    /// `half`, in the first eight of them.
    ///
    /// # Safety
    /// As [`Whole::codes`], for each row.
    #[inline(always)]
    unsafe fn quads(rows: Rows, i: usize, half: bool) -> [__m512i; 16] {
        // Loops, here and below, where a closure would do: one that is not inlined has lost the instruction set.
        // SAFETY: the caller's.
        unsafe {
            let mut codes = [_mm512_setzero_si512(); GROUPS];
            for (row, codes) in codes.iter_mut().enumerate() {
                *codes = Self::codes(rows.row(row), i, half);
            }
            turned16(codes)
        }
    }

    /// The same scales of sixteen rows, of groups of each from its block on; registers past `held` are anything.
    ///
    /// # Safety
    /// As [`Whole::scales`], for each row.
    #[inline(always)]
    unsafe fn turned_scales(rows: Rows, held: usize) -> TurnedScales {
        // SAFETY: the caller's.
        unsafe {
            let zero = _mm512_setzero_ps();
            let mut all = TurnedScales { scale: [zero; GROUPS], min: [zero; GROUPS] };
            for row in 0..GROUPS {
                (all.scale[row], all.min[row]) = Self::scales(rows.row(row), held);
            }
            all.scale = turned16_ps(all.scale);
            if Self::MINS {
                all.min = turned16_ps(all.min);
            }
            all
        }
    }
}

/// Scales and mins of some groups of sixteen rows: a register for each group, a lane for each row.
pub(crate) struct TurnedScales {
    pub(crate) scale: [__m512; GROUPS],
    pub(crate) min: [__m512; GROUPS],
}

/// Sixteen rows of weights, or as much of them as begins at one block.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) first: *const u8,
    /// Bytes from one row to the next.
    pub(crate) stride: usize,
}

impl Rows {
    /// Where row `row` begins.
    #[inline(always)]
    pub(crate) fn row(self, row: usize) -> *const u8 {
        self.first.wrapping_add(row * self.stride)
    }

    /// The same rows, some bytes on.
    #[inline(always)]
    pub(crate) fn on(self, bytes: usize) -> Rows {
        Rows { first: self.first.wrapping_add(bytes), ..self }
    }
}

/// Sixteen bytes of rows `e`, `4 + e`, `8 + e` and `12 + e`.
///
/// # Safety
/// As [`turned4`].
#[inline(always)]
unsafe fn quarters(rows: Rows, e: usize) -> __m512i {
    // SAFETY: as the caller's.
    unsafe {
        let one = _mm512_broadcast_i32x4(_mm_loadu_si128(rows.row(e).cast()));
        let two = _mm512_mask_broadcast_i32x4(one, 0x00f0, _mm_loadu_si128(rows.row(4 + e).cast()));
        let three = _mm512_mask_broadcast_i32x4(two, 0x0f00, _mm_loadu_si128(rows.row(8 + e).cast()));
        _mm512_mask_broadcast_i32x4(three, 0xf000, _mm_loadu_si128(rows.row(12 + e).cast()))
    }
}

/// Sixteen bytes of each of sixteen rows: four bytes deep, a lane for each row.
///
/// # Safety
/// They are there. The processor has AVX-512 F.
#[inline(always)]
unsafe fn turned4(rows: Rows) -> [__m512i; 4] {
    // SAFETY: as the caller's.
    unsafe {
        let (a, b, c, d) = (quarters(rows, 0), quarters(rows, 1), quarters(rows, 2), quarters(rows, 3));
        let (ab_lo, ab_hi) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_lo, cd_hi) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab_lo, cd_lo),
            _mm512_unpackhi_epi64(ab_lo, cd_lo),
            _mm512_unpacklo_epi64(ab_hi, cd_hi),
            _mm512_unpackhi_epi64(ab_hi, cd_hi),
        ]
    }
}

/// The first four of sixteen bytes of each row, a lane for each.
///
/// # Safety
/// As [`turned4`].
#[inline(always)]
unsafe fn first_words(rows: Rows) -> __m512i {
    // SAFETY: as the caller's.
    unsafe {
        let ab = _mm512_unpacklo_epi32(quarters(rows, 0), quarters(rows, 1));
        let cd = _mm512_unpacklo_epi32(quarters(rows, 2), quarters(rows, 3));
        _mm512_unpacklo_epi64(ab, cd)
    }
}

/// The low halves of sixteen bytes of each row, then their high halves: eight registers of [`Whole::quads`].
///
/// # Safety
/// As [`turned4`]. The processor has AVX-512 BW.
#[inline(always)]
unsafe fn turned_nibbles(rows: Rows) -> [__m512i; 8] {
    // SAFETY: as the caller's.
    unsafe {
        let bytes = turned4(rows);
        let mut codes = [_mm512_setzero_si512(); 8];
        for i in 0..4 {
            codes[i] = _mm512_and_si512(bytes[i], _mm512_set1_epi8(15));
            codes[4 + i] = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes[i]), _mm512_set1_epi8(15));
        }
        codes
    }
}

/// Two times eight registers.
#[inline(always)]
fn both(first: [__m512i; 8], second: [__m512i; 8]) -> [__m512i; 16] {
    let ([a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]) = (first, second);
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

/// Work that is generic over an encoding.
pub(crate) trait WithWhole {
    /// Does the work for one.
    fn with<P: Whole>(self);
}

/// Does `work` for `encoding`; `false`, and nothing is done, for an encoding that is made for activations alone.
pub(crate) fn with_whole(encoding: Encoding, work: impl WithWhole) -> bool {
    match encoding {
        Encoding::Q4_0 => work.with::<Q4_0>(),
        Encoding::Q4_1 => work.with::<Q4_1>(),
        Encoding::Q5_0 => work.with::<Q5_0>(),
        Encoding::Q5_1 => work.with::<Q5_1>(),
        Encoding::Q8_0 => work.with::<Q8_0>(),
        Encoding::Q2_K => work.with::<Q2K>(),
        Encoding::Q3_K => work.with::<Q3K>(),
        Encoding::Q4_K => work.with::<Q4K>(),
        Encoding::Q5_K => work.with::<Q5K>(),
        Encoding::Q6_K => work.with::<Q6K>(),
        Encoding::IQ4_NL => work.with::<Iq4Nl>(),
        Encoding::IQ4_XS => work.with::<Iq4Xs>(),
        Encoding::MXFP4 => work.with::<Mxfp4>(),
        Encoding::Q8_1 | Encoding::Q8_K => return false,
    }
    true
}

/// One row of 8-bit activation blocks.
#[derive(Clone, Copy)]
pub(crate) struct Activations {
    /// The codes of the row.
    pub codes: *const i8,
    /// Scales of the groups, and these times the sums of their codes; padded to sixteen.
    pub scale: *const f32,
    /// See there.
    pub sum: *const f32,
}

/// The dot products of `x` with the weight rows `outs`, each given to `done` with its number.
///
/// # Safety
/// `weights` are rows of `width` values, at least `outs.end` of them; `x` has as many values. The processor has the
/// instructions that are named here.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn dot_rows<P: Whole>(
    weights: *const u8,
    width: usize,
    x: Activations,
    outs: Range<usize>,
    mut done: impl FnMut(usize, f32),
) {
    let row_bytes = width / P::LEN * P::BYTES;
    let row = |out: usize| weights.wrapping_add(out * row_bytes);
    let part = outs.len() / ROWS;
    for i in 0..part {
        let numbers: [usize; ROWS] = std::array::from_fn(|r| outs.start + r * part + i);
        // SAFETY: all rows that are asked for are of the weights.
        let sums = unsafe { tile::<P, ROWS>(numbers.map(row), width, x) };
        let [a, b, c, d] = sums;
        let sums = reduce8x4([halves(a), halves(b), halves(c), halves(d)]);
        for (out, sum) in numbers.into_iter().zip(sums) {
            done(out, sum);
        }
    }
    for out in outs.start + part * ROWS..outs.end {
        // SAFETY: as above.
        let [sums] = unsafe { tile::<P, 1>([row(out)], width, x) };
        done(out, _mm512_reduce_add_ps(sums));
    }
}

/// Lanes whose sum is the dot product, of `R` weight rows with `x`.
///
/// # Safety
/// As [`dot_rows`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tile<P: Whole, const R: usize>(
    mut rows: [*const u8; R],
    width: usize,
    x: Activations,
) -> [__m512; R] {
    let zero = _mm512_setzero_ps();
    let mut tile = Tile { sums: [zero; R], low: [zero; R], products: [zero; R], x };
    let groups = width / P::GROUP;
    let (step_bytes, pairs) = (GROUPS * P::GROUP / P::LEN * P::BYTES, GROUPS * P::GROUP / 64);
    let mut group = 0;
    // SAFETY: the groups from `group` on are of the rows, whose pointers keep pace.
    unsafe {
        while group + GROUPS <= groups {
            tile.scales::<P>(rows, group, GROUPS);
            for pair in 0..pairs {
                tile.pair::<P>(rows, group, pair, false);
            }
            rows = rows.map(|row| row.wrapping_add(step_bytes));
            group += GROUPS;
        }
        let held = groups - group;
        if held > 0 {
            tile.scales::<P>(rows, group, held);
            for pair in 0..held * P::GROUP / 64 {
                tile.pair::<P>(rows, group, pair, false);
            }
            if !(held * P::GROUP).is_multiple_of(64) {
                tile.pair::<P>(rows, group, held * P::GROUP / 64, true);
            }
        }
    }
    let low_weight = _mm512_set1_ps(if P::MINS { 1.0 } else { -P::ZERO });
    for r in 0..R {
        tile.sums[r] = _mm512_fmadd_ps(tile.low[r], low_weight, tile.sums[r]);
    }
    tile.sums
}

/// What is in registers.
struct Tile<const R: usize> {
    sums: [__m512; R],
    /// What mins or zero points add.
    low: [__m512; R],
    /// Products of scales of sixteen groups.
    products: [__m512; R],
    x: Activations,
}

impl<const R: usize> Tile<R> {
    /// The products of scales of `held` groups from `group` on.
    ///
    /// # Safety
    /// As [`dot_rows`]; each of `rows` is at its group `group`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn scales<P: Whole>(&mut self, rows: [*const u8; R], group: usize, held: usize) {
        for r in 0..R {
            // SAFETY: the caller's; the activations' scales and sums are padded to sixteen.
            unsafe {
                let (scale, min) = P::scales(rows[r], held);
                let d = _mm512_loadu_ps(self.x.scale.add(group));
                let sum = _mm512_loadu_ps(self.x.sum.add(group));
                self.products[r] = _mm512_mul_ps(scale, d);
                self.low[r] = _mm512_fmadd_ps(if P::MINS { min } else { scale }, sum, self.low[r]);
            }
        }
    }

    /// The 64 values of pair `pair`, multiplied and added; with `half`, the first 32 of them.
    ///
    /// # Safety
    /// As [`Tile::scales`]; the values are there.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn pair<P: Whole>(&mut self, rows: [*const u8; R], group: usize, pair: usize, half: bool) {
        let lanes = lanes_of(pair, P::GROUP);
        let at = group * P::GROUP + 64 * pair;
        // SAFETY: the caller's.
        unsafe {
            let x = if half {
                _mm512_maskz_loadu_epi8(0xffff_ffff, self.x.codes.add(at))
            } else {
                _mm512_loadu_si512(self.x.codes.add(at).cast())
            };
            for r in 0..R {
                let dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), P::codes(rows[r], pair, half), x);
                let scale = _mm512_permutexvar_ps(lanes, self.products[r]);
                self.sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, self.sums[r]);
            }
        }
    }
}

/// For each of the sixteen sums of pair `pair`, which of sixteen groups of `group` values it is of.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes_of(pair: usize, group: usize) -> __m512i {
    let first = if group == 16 {
        _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0)
    } else {
        _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)
    };
    _mm512_add_epi32(first, _mm512_set1_epi32((64 / group * pair) as i32))
}
