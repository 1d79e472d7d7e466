//! Some rows of activations by rows of block-encoded weights, in whole 512-bit registers: the kernel that decoding spends
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

pub(crate) use small::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use super_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};

use std::arch::x86_64::*;
use std::ops::Range;

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
}

/// `X` rows of 8-bit activation blocks.
#[derive(Clone, Copy)]
pub(crate) struct Activations<const X: usize> {
    /// Codes of each row.
    pub codes: [*const i8; X],
    /// Scales of the groups of each row, and these times the sums of their codes; padded to sixteen.
    pub scale: [*const f32; X],
    pub sum: [*const f32; X],
}

/// The dot products of each row of `x` with the weight rows `outs`: `done` is given the row of `x`, the number of the
/// weight row, and the sum.
///
/// # Safety
/// `weights` are rows of `width` values, at least `outs.end` of them; `x` has as many values. The processor has the
/// instructions that are named here.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn dot_rows<P: Whole, const X: usize>(
    weights: *const u8,
    width: usize,
    x: Activations<X>,
    outs: Range<usize>,
    mut done: impl FnMut(usize, usize, f32),
) {
    let row_bytes = width / P::LEN * P::BYTES;
    let mut out = outs.start;
    // SAFETY: all rows that are asked for are of the weights.
    unsafe {
        if X == 1 {
            let part = outs.len() / ROWS;
            let between = part * row_bytes;
            for i in 0..part {
                let first = weights.add((outs.start + i) * row_bytes);
                let sums = tile::<P, ROWS, X>(first, between, width, &x);
                let sums = super::avx2::reduce8x4(sums.map(|sums| super::avx512::halves(sums[0])));
                for (r, sum) in sums.into_iter().enumerate() {
                    done(0, outs.start + r * part + i, sum);
                }
            }
            out += part * ROWS;
        }
        for out in out..outs.end {
            let row = weights.add(out * row_bytes);
            let [sums] = tile::<P, 1, X>(row, row_bytes, width, &x);
            for (r, sum) in sums.into_iter().enumerate() {
                done(r, out, _mm512_reduce_add_ps(sum));
            }
        }
    }
}

/// Lanes whose sum is the dot product, of `R` weight rows from `first` on with each row of `x`.
///
/// # Safety
/// As [`dot_rows`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tile<P: Whole, const R: usize, const X: usize>(
    first: *const u8,
    row_bytes: usize,
    width: usize,
    x: &Activations<X>,
) -> [[__m512; X]; R] {
    let zero = _mm512_setzero_ps();
    let mut tile = Tile { sums: [[zero; X]; R], low: [[zero; X]; R], products: [[zero; X]; R], x };
    let groups = width / P::GROUP;
    let (step_bytes, pairs) = (GROUPS * P::GROUP / P::LEN * P::BYTES, GROUPS * P::GROUP / 64);
    let mut rows = [first; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = row.wrapping_add(r * row_bytes);
    }
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
            if held * P::GROUP % 64 != 0 {
                tile.pair::<P>(rows, group, held * P::GROUP / 64, true);
            }
        }
    }
    let low_weight = _mm512_set1_ps(if P::MINS { 1.0 } else { -P::ZERO });
    for r in 0..R {
        for x in 0..X {
            tile.sums[r][x] = _mm512_fmadd_ps(tile.low[r][x], low_weight, tile.sums[r][x]);
        }
    }
    tile.sums
}

/// What is in registers.
struct Tile<'a, const R: usize, const X: usize> {
    sums: [[__m512; X]; R],
    /// What mins or zero points add.
    low: [[__m512; X]; R],
    /// Products of scales of sixteen groups.
    products: [[__m512; X]; R],
    x: &'a Activations<X>,
}

impl<const R: usize, const X: usize> Tile<'_, R, X> {
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
                for x in 0..X {
                    let d = _mm512_loadu_ps(self.x.scale[x].add(group));
                    let sum = _mm512_loadu_ps(self.x.sum[x].add(group));
                    self.products[r][x] = _mm512_mul_ps(scale, d);
                    self.low[r][x] = _mm512_fmadd_ps(if P::MINS { min } else { scale }, sum, self.low[r][x]);
                }
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
        let mask = if half { 0xffff_ffff } else { u64::MAX };
        // SAFETY: the caller's.
        unsafe {
            let mut xs = [_mm512_setzero_si512(); X];
            for x in 0..X {
                xs[x] = _mm512_maskz_loadu_epi8(mask, self.x.codes[x].add(at));
            }
            for r in 0..R {
                let codes = P::codes(rows[r], pair, half);
                for x in 0..X {
                    let dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, xs[x]);
                    let scale = _mm512_permutexvar_ps(lanes, self.products[r][x]);
                    self.sums[r][x] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, self.sums[r][x]);
                }
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
