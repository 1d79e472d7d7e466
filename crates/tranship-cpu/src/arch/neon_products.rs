//! What 64-bit ARM has beyond base Advanced SIMD, and what of the base has no intrinsic in stable Rust: dot products of
//! bytes, matrix products of bytes, dot products of BF16, half precision, prefetching. Each is one instruction in inline
//! assembly.
//!
//! On them stand the two ways to multiply a group of codes of several rows by vectors of outputs. [`by_lane`] takes
//! four values of four outputs at a time and four codes of one row, which a lane of a register holds: sixteen codes of
//! each row are loaded once and used by four instructions. [`by_pairs`] takes eight values of two rows and of two
//! outputs, and gives four sums: twice as many products in one instruction.

use std::arch::aarch64::*;
use std::arch::asm;

/// Adds to each lane the four products of signed bytes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn sdot(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction is of a feature that is on here; it works on registers alone.
    unsafe {
        asm!("sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b", acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// Adds to each lane the products of four signed bytes of `a` with the same four of `b`: those of lane `LANE`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot_lane<const LANE: usize>(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: as in `sdot`.
    unsafe {
        asm!("sdot {acc:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]", acc = inout(vreg) acc, a = in(vreg) a,
             b = in(vreg) b, lane = const LANE, options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// Adds to each lane the four products of unsigned `u` and signed `s`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(super) fn usdot(mut acc: int32x4_t, u: uint8x16_t, s: int8x16_t) -> int32x4_t {
    // SAFETY: as in `sdot`.
    unsafe {
        asm!("usdot {acc:v}.4s, {u:v}.16b, {s:v}.16b", acc = inout(vreg) acc, u = in(vreg) u, s = in(vreg) s,
             options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// Adds the product of two rows of eight signed bytes with two others: `acc[2·i + j] += Σ a[i]·b[j]`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn smmla(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: as in `sdot`.
    unsafe {
        asm!("smmla {acc:v}.4s, {a:v}.16b, {b:v}.16b", acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// Adds to each lane the two products of BF16 pairs.
#[inline]
#[target_feature(enable = "neon,bf16")]
pub(super) fn bfdot(mut acc: float32x4_t, a: int32x4_t, b: int32x4_t) -> float32x4_t {
    // SAFETY: as in `sdot`.
    unsafe {
        asm!("bfdot {acc:v}.4s, {a:v}.8h, {b:v}.8h", acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// The floats that four half-precision numbers are.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn widen_f16(h: uint16x4_t) -> float32x4_t {
    let f: float32x4_t;
    // SAFETY: as in `sdot`; the instruction is of the base set.
    unsafe {
        asm!("fcvtl {f:v}.4s, {h:v}.4h", f = lateout(vreg) f, h = in(vreg) h,
             options(pure, nomem, nostack, preserves_flags));
    }
    f
}

/// Four floats rounded to half precision, to nearest even.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn narrow_f16(f: float32x4_t) -> uint16x4_t {
    let h: uint16x4_t;
    // SAFETY: as in `widen_f16`.
    unsafe {
        asm!("fcvtn {h:v}.4h, {f:v}.4s", h = lateout(vreg) h, f = in(vreg) f,
             options(pure, nomem, nostack, preserves_flags));
    }
    h
}

/// Asks for the cache line at `p`, which need not be valid; with `WRITE`, to write to it.
#[inline(always)]
pub(super) fn prefetch<const WRITE: bool>(p: *const u8) {
    // SAFETY: the instruction is a hint: it changes nothing that a program sees, and no address makes it fail.
    unsafe {
        if WRITE {
            asm!("prfm pstl1keep, [{p}]", p = in(reg) p.addr(), options(nomem, nostack, preserves_flags));
        } else {
            asm!("prfm pldl1keep, [{p}]", p = in(reg) p.addr(), options(nomem, nostack, preserves_flags));
        }
    }
}

/// The sums of `GROUP` values of `M` rows by `NT` vectors of four outputs. Codes of weights lie four values deep, `stride`
/// bytes from four values to the next.
///
/// # Safety
/// `GROUP` codes are readable at each of `x`, and `GROUP / 4` times `NT` vectors at `w`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn by_lane<const GROUP: usize, const M: usize, const NT: usize>(
    x: [*const u8; M],
    w: *const u8,
    stride: usize,
) -> [[int32x4_t; NT]; M] {
    let mut sums = [[vdupq_n_s32(0); NT]; M];
    for k in (0..GROUP).step_by(16) {
        let mut codes = [vdupq_n_s8(0); M];
        // SAFETY: sixteen codes from `k` on of each row, and what they meet.
        unsafe {
            for m in 0..M {
                codes[m] = vld1q_s8(x[m].add(k).cast());
            }
            let w = w.add(k / 4 * stride);
            four_values::<0, M, NT>(&mut sums, codes, w);
            four_values::<1, M, NT>(&mut sums, codes, w.add(stride));
            four_values::<2, M, NT>(&mut sums, codes, w.add(2 * stride));
            four_values::<3, M, NT>(&mut sums, codes, w.add(3 * stride));
        }
    }
    sums
}

/// Adds the products of four values, which are in lane `LANE` of each row's codes.
///
/// # Safety
/// `NT` vectors are readable at `w`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn four_values<const LANE: usize, const M: usize, const NT: usize>(
    sums: &mut [[int32x4_t; NT]; M],
    codes: [int8x16_t; M],
    w: *const u8,
) {
    for t in 0..NT {
        // SAFETY: the caller's.
        let w = unsafe { vld1q_s8(w.add(t * 16).cast()) };
        for m in 0..M {
            sums[m][t] = sdot_lane::<LANE>(sums[m][t], w, codes[m]);
        }
    }
}

/// As [`by_lane`], with codes of weights as [`transpose_pairs`] lays them out. The last of an odd number of rows is
/// multiplied twice.
///
/// # Safety
/// As for [`by_lane`].
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(super) unsafe fn by_pairs<const GROUP: usize, const M: usize, const NT: usize>(
    x: [*const u8; M],
    w: *const u8,
    stride: usize,
) -> [[int32x4_t; NT]; M] {
    // For each pair of rows, of which there are half as many as places, and each vector: its first two outputs, its last.
    let mut pairs = [[[vdupq_n_s32(0); 2]; NT]; M];
    for k in (0..GROUP).step_by(16) {
        let mut codes = [[vdupq_n_s8(0); 2]; M];
        // SAFETY: sixteen codes from `k` on of each row, and what they meet.
        unsafe {
            for p in 0..M.div_ceil(2) {
                let a = vld1q_s64(x[2 * p].add(k).cast());
                let b = vld1q_s64(x[(2 * p + 1).min(M - 1)].add(k).cast());
                codes[p] = [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))];
            }
            for eight in 0..2 {
                for t in 0..NT {
                    for two in 0..2 {
                        let w = vld1q_s8(w.add((k / 4 + eight * 2 + two) * stride + t * 16).cast());
                        for p in 0..M.div_ceil(2) {
                            pairs[p][t][two] = smmla(pairs[p][t][two], codes[p][eight], w);
                        }
                    }
                }
            }
        }
    }
    let mut sums = [[vdupq_n_s32(0); NT]; M];
    for m in 0..M {
        for t in 0..NT {
            let [a, b] = pairs[m / 2][t].map(|v| vreinterpretq_s64_s32(v));
            sums[m][t] = vreinterpretq_s32_s64(if m % 2 == 0 { vzip1q_s64(a, b) } else { vzip2q_s64(a, b) });
        }
    }
    sums
}

/// Lays out sixteen values of four outputs: eight values of the first two, the same of the last two, then the next eight.
///
/// # Safety
/// Four rows of sixteen bytes are readable at `src`, and writable at `dst`; strides in bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn transpose_pairs(src: *const u8, src_stride: usize, dst: *mut u8, dst_stride: usize) {
    // SAFETY: the caller's.
    unsafe {
        for two in 0..2 {
            let a = vld1q_s64(src.add(2 * two * src_stride).cast());
            let b = vld1q_s64(src.add((2 * two + 1) * src_stride).cast());
            vst1q_s64(dst.add(two * dst_stride).cast(), vzip1q_s64(a, b));
            vst1q_s64(dst.add((2 + two) * dst_stride).cast(), vzip2q_s64(a, b));
        }
    }
}
