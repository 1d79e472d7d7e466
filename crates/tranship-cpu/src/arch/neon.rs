//! The vector layer on Advanced SIMD of 64-bit ARM: four lanes, 32 registers.
//!
//! Without the dot product (`DOT`) bytes are multiplied into 16 bits and added in pairs. Codes and activations meet as
//! signed bytes, so activations carry no offset; only along rows may codes be unsigned and above 127, and then 128 is
//! taken from them and what that takes from the sum is added again, unless the machine multiplies unsigned by signed
//! bytes (`I8MM`).

use super::{Simd, neon_products as products};
use std::arch::aarch64::*;

/// Runs intrinsics of the token's features.
macro_rules! v {
    ($e:expr) => {{
        // SAFETY: the token exists only where its features were detected; a pointer's validity is the caller's.
        unsafe { $e }
    }};
}

/// The token of Advanced SIMD; with the dot product of bytes where `DOT`, with the matrix product too where `I8MM`, with
/// the dot product of BF16 where `BF16`.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOT: bool, const I8MM: bool, const BF16: bool>(());

impl<const DOT: bool, const I8MM: bool, const BF16: bool> Neon<DOT, I8MM, BF16> {
    /// The token; only the dispatch of `Isa` may ask for it, from a function that has the features on.
    #[inline(always)]
    pub(super) fn new() -> Self {
        Neon(())
    }

    /// Adds to each lane the four products of signed bytes.
    #[inline(always)]
    fn dot(self, acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        v!(if DOT { products::sdot(acc, a, b) } else { vaddq_s32(acc, pairs(a, b)) })
    }

    /// The sums of four products each of unsigned `u`, of any size, and signed `s`.
    #[inline(always)]
    fn dot_mixed(self, u: uint8x16_t, s: int8x16_t) -> int32x4_t {
        v!(if I8MM {
            products::usdot(vdupq_n_s32(0), u, s)
        } else if DOT {
            let signed = vreinterpretq_s8_u8(veorq_u8(u, vdupq_n_u8(0x80)));
            let low = products::sdot(vdupq_n_s32(0), signed, s);
            vsubq_s32(low, products::sdot(vdupq_n_s32(0), vdupq_n_s8(-128), s))
        } else {
            pairs_mixed(u, s)
        })
    }
}

/// Sums of four products each of signed bytes: 16-bit products, added in pairs twice.
#[inline]
#[target_feature(enable = "neon")]
fn pairs(a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    let high = vpaddlq_s16(vmull_high_s8(a, b));
    vpaddq_s32(low, high)
}

/// Sums of four products each of unsigned `u` and signed `s`.
#[inline]
#[target_feature(enable = "neon")]
fn pairs_mixed(u: uint8x16_t, s: int8x16_t) -> int32x4_t {
    let wide = |u: uint8x8_t| vreinterpretq_s16_u16(vmovl_u8(u));
    let (ul, uh) = (wide(vget_low_u8(u)), wide(vget_high_u8(u)));
    let (sl, sh) = (vmovl_s8(vget_low_s8(s)), vmovl_high_s8(s));
    let products = |u, s| vpaddq_s32(vmull_s16(vget_low_s16(u), vget_low_s16(s)), vmull_high_s16(u, s));
    vpaddq_s32(products(ul, sl), products(uh, sh))
}

impl<const DOT: bool, const I8MM: bool, const BF16: bool> Simd for Neon<DOT, I8MM, BF16> {
    const LANES: usize = 4;
    const MANY_REGISTERS: bool = true;
    const X_OFFSET: u8 = 0;
    const TILE_DOTS: bool = DOT;

    type F = float32x4_t;
    type I = int32x4_t;
    type B = [uint8x16_t; 2];
    type D = [int32x4_t; 2];
    type G = [float32x4_t; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        v!(vdupq_n_f32(x))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> float32x4_t {
        v!(vld1q_f32(p))
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> float32x4_t {
        let mut lanes = [0.0; 4];
        for (i, x) in lanes.iter_mut().enumerate().take(n) {
            *x = v!(p.add(i).read_unaligned());
        }
        v!(vld1q_f32(lanes.as_ptr()))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: float32x4_t) {
        v!(vst1q_f32(p, v))
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: float32x4_t, n: usize) {
        let mut lanes = [0.0; 4];
        v!(vst1q_f32(lanes.as_mut_ptr(), v));
        for (i, x) in lanes.iter().enumerate().take(n) {
            v!(p.add(i).write_unaligned(*x));
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> float32x4_t {
        v!(products::widen_f16(vld1_u16(p)))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> float32x4_t {
        v!(vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: float32x4_t) {
        v!(vst1_u16(p, products::narrow_f16(v)))
    }
    #[inline(always)]
    fn f16(self, h: u16) -> f32 {
        v!(vgetq_lane_f32::<0>(products::widen_f16(vdup_n_u16(h))))
    }

    #[inline(always)]
    fn f_from_bits(self, v: int32x4_t) -> float32x4_t {
        v!(vreinterpretq_f32_s32(v))
    }
    #[inline(always)]
    fn f_bits(self, v: float32x4_t) -> int32x4_t {
        v!(vreinterpretq_s32_f32(v))
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        v!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        v!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        v!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        v!(vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        v!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn fnma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        v!(vfmsq_f32(c, a, b))
    }
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        v!(vmaxq_f32(a, b))
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        v!(vminq_f32(a, b))
    }
    #[inline(always)]
    fn abs(self, a: float32x4_t) -> float32x4_t {
        v!(vabsq_f32(a))
    }
    #[inline(always)]
    fn round(self, a: float32x4_t) -> float32x4_t {
        v!(vrndnq_f32(a))
    }
    #[inline(always)]
    fn exp2i(self, n: float32x4_t) -> float32x4_t {
        v!(vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)))))
    }
    #[inline(always)]
    fn select_ge(self, a: float32x4_t, b: float32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
        v!(vbslq_f32(vcgeq_f32(a, b), yes, no))
    }
    #[inline(always)]
    fn reduce_add(self, v: float32x4_t) -> f32 {
        v!({
            let h = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(h) + vget_lane_f32::<1>(h)
        })
    }
    #[inline(always)]
    fn reduce_add4(self, v: [float32x4_t; 4]) -> [f32; 4] {
        v!({
            let halves = |v| vadd_f32(vget_low_f32(v), vget_high_f32(v));
            let (low, high) =
                (vcombine_f32(halves(v[0]), halves(v[1])), vcombine_f32(halves(v[2]), halves(v[3])));
            let mut sums = [0.0; 4];
            vst1q_f32(sums.as_mut_ptr(), vpaddq_f32(low, high));
            sums
        })
    }
    #[inline(always)]
    fn reduce_max(self, v: float32x4_t) -> f32 {
        v!(vmaxvq_f32(v))
    }

    #[inline(always)]
    fn i_splat(self, x: i32) -> int32x4_t {
        v!(vdupq_n_s32(x))
    }
    #[inline(always)]
    unsafe fn i_load(self, p: *const i32) -> int32x4_t {
        v!(vld1q_s32(p))
    }
    #[inline(always)]
    unsafe fn i_store(self, p: *mut i32, v: int32x4_t) {
        v!(vst1q_s32(p, v))
    }
    #[inline(always)]
    fn i_sub(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        v!(vsubq_s32(a, b))
    }
    #[inline(always)]
    fn i_to_f(self, v: int32x4_t) -> float32x4_t {
        v!(vcvtq_f32_s32(v))
    }
    #[inline(always)]
    fn f_to_i(self, v: float32x4_t) -> int32x4_t {
        v!(vcvtnq_s32_f32(v))
    }
    #[inline(always)]
    unsafe fn i_store_i8(self, p: *mut i8, v: int32x4_t) {
        v!({
            let narrow = vmovn_s32(v);
            let bytes = vreinterpret_u32_s8(vmovn_s16(vcombine_s16(narrow, narrow)));
            p.cast::<u32>().write_unaligned(vget_lane_u32::<0>(bytes))
        })
    }
    #[inline(always)]
    fn dot_unsigned(self, acc: int32x4_t, w: int32x4_t, x: int32x4_t) -> int32x4_t {
        v!(self.dot(acc, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x)))
    }
    #[inline(always)]
    fn dot_signed<const WIDE: bool>(self, acc: int32x4_t, w: int32x4_t, x: int32x4_t) -> int32x4_t {
        v!(self.dot(acc, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x)))
    }
    #[inline(always)]
    fn dot_bf16(self, acc: float32x4_t, a: int32x4_t, b: int32x4_t) -> float32x4_t {
        if !BF16 {
            unreachable!("the kernel was not dispatched to BF16 dot products");
        }
        v!(products::bfdot(acc, a, b))
    }
    #[inline(always)]
    unsafe fn transpose(self, src: *const u8, src_stride: usize, dst: *mut u8, dst_stride: usize) {
        v!({
            let row = |i: usize| vld1q_u32(src.add(i * src_stride).cast());
            let (r0, r1, r2, r3) = (row(0), row(1), row(2), row(3));
            let (even, odd) = (vzip1q_u32(r0, r2), vzip1q_u32(r1, r3));
            let (even_high, odd_high) = (vzip2q_u32(r0, r2), vzip2q_u32(r1, r3));
            vst1q_u32(dst.cast(), vzip1q_u32(even, odd));
            vst1q_u32(dst.add(dst_stride).cast(), vzip2q_u32(even, odd));
            vst1q_u32(dst.add(2 * dst_stride).cast(), vzip1q_u32(even_high, odd_high));
            vst1q_u32(dst.add(3 * dst_stride).cast(), vzip2q_u32(even_high, odd_high));
        })
    }
    #[inline(always)]
    unsafe fn transpose_codes(self, src: *const u8, src_stride: usize, dst: *mut u8, dst_stride: usize) {
        if I8MM {
            v!(products::transpose_pairs(src, src_stride, dst, dst_stride))
        } else {
            v!(self.transpose(src, src_stride, dst, dst_stride))
        }
    }
    #[inline(always)]
    unsafe fn tile_dots<const GROUP: usize, const M: usize, const NT: usize>(
        self,
        x: [*const u8; M],
        w: *const u8,
        stride: usize,
    ) -> [[int32x4_t; NT]; M] {
        if I8MM {
            v!(products::by_pairs::<GROUP, M, NT>(x, w, stride))
        } else {
            v!(products::by_lane::<GROUP, M, NT>(x, w, stride))
        }
    }

    #[inline(always)]
    unsafe fn b_load(self, p: *const u8) -> Self::B {
        v!([vld1q_u8(p), vld1q_u8(p.add(16))])
    }
    #[inline(always)]
    unsafe fn b_store(self, p: *mut u8, v: Self::B) {
        v!({
            vst1q_u8(p, v[0]);
            vst1q_u8(p.add(16), v[1]);
        })
    }
    #[inline(always)]
    unsafe fn b_nibbles(self, p: *const u8) -> Self::B {
        v!({
            let q = vld1q_u8(p);
            [vandq_u8(q, vdupq_n_u8(15)), vshrq_n_u8::<4>(q)]
        })
    }
    #[inline(always)]
    fn b_splat(self, x: u8) -> Self::B {
        v!([vdupq_n_u8(x); 2])
    }
    #[inline(always)]
    fn b_and(self, a: Self::B, b: Self::B) -> Self::B {
        v!([vandq_u8(a[0], b[0]), vandq_u8(a[1], b[1])])
    }
    #[inline(always)]
    fn b_or(self, a: Self::B, b: Self::B) -> Self::B {
        v!([vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])])
    }
    #[inline(always)]
    fn b_xor(self, a: Self::B, b: Self::B) -> Self::B {
        v!([veorq_u8(a[0], b[0]), veorq_u8(a[1], b[1])])
    }
    #[inline(always)]
    fn b_sub(self, a: Self::B, b: Self::B) -> Self::B {
        v!([vsubq_u8(a[0], b[0]), vsubq_u8(a[1], b[1])])
    }
    #[inline(always)]
    fn b_shr<const N: i32>(self, a: Self::B, mask: u8) -> Self::B {
        v!({
            let (n, mask) = (vdupq_n_s8(-(N as i8)), vdupq_n_u8(mask));
            [vandq_u8(vshlq_u8(a[0], n), mask), vandq_u8(vshlq_u8(a[1], n), mask)]
        })
    }
    #[inline(always)]
    fn b_shl<const N: i32>(self, a: Self::B, mask: u8) -> Self::B {
        v!({
            let (n, mask) = (vdupq_n_s8(N as i8), vdupq_n_u8(mask));
            [vandq_u8(vshlq_u8(a[0], n), mask), vandq_u8(vshlq_u8(a[1], n), mask)]
        })
    }
    #[inline(always)]
    fn b_bits(self, bits: u32, value: u8) -> Self::B {
        static OWN: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        v!({
            let [a, b, c, d] = bits.to_le_bytes();
            let (own, value) = (vld1q_u8(OWN.as_ptr()), vdupq_n_u8(value));
            let half = |lo, hi| {
                let bytes = vcombine_u8(vdup_n_u8(lo), vdup_n_u8(hi));
                vandq_u8(vtstq_u8(bytes, own), value)
            };
            [half(a, b), half(c, d)]
        })
    }
    #[inline(always)]
    fn b_lookup(self, table: &[u8; 16], index: Self::B) -> Self::B {
        v!({
            let table = vld1q_u8(table.as_ptr());
            [vqtbl1q_u8(table, index[0]), vqtbl1q_u8(table, index[1])]
        })
    }
    #[inline(always)]
    fn b_dot<const WIDE: bool>(self, codes: Self::B, x: Self::B) -> Self::D {
        v!({
            let (x0, x1) = (vreinterpretq_s8_u8(x[0]), vreinterpretq_s8_u8(x[1]));
            if WIDE {
                [self.dot_mixed(codes[0], x0), self.dot_mixed(codes[1], x1)]
            } else {
                let zero = vdupq_n_s32(0);
                let (c0, c1) = (vreinterpretq_s8_u8(codes[0]), vreinterpretq_s8_u8(codes[1]));
                [self.dot(zero, c0, x0), self.dot(zero, c1, x1)]
            }
        })
    }
    #[inline(always)]
    fn g_zero(self) -> Self::G {
        v!([vdupq_n_f32(0.0); 2])
    }
    #[inline(always)]
    fn g_f16(self, h: [u16; 8]) -> Self::G {
        v!([self.load_f16(h.as_ptr()), self.load_f16(h.as_ptr().add(4))])
    }
    #[inline(always)]
    fn g_f16_pairs(self, h: [u32; 8]) -> (Self::G, Self::G) {
        (self.g_f16(h.map(|h| h as u16)), self.g_f16(h.map(|h| (h >> 16) as u16)))
    }
    #[inline(always)]
    fn g_scaled(self, bytes: u64, factor: f32) -> Self::G {
        v!({
            let wide = vmovl_s8(vcreate_s8(bytes));
            let factor = vdupq_n_f32(factor);
            [
                vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), factor),
                vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(wide)), factor),
            ]
        })
    }
    #[inline(always)]
    fn g_neg(self, g: Self::G) -> Self::G {
        v!([vnegq_f32(g[0]), vnegq_f32(g[1])])
    }
    #[inline(always)]
    unsafe fn g_store(self, p: *mut f32, g: Self::G) {
        v!({
            vst1q_f32(p, g[0]);
            vst1q_f32(p.add(4), g[1]);
        })
    }
    #[inline(always)]
    unsafe fn g_mac(self, acc: Self::G, d: Self::D, scale: *const f32) -> Self::G {
        v!({
            let scale = vdupq_n_f32(scale.read_unaligned());
            [vfmaq_f32(acc[0], vcvtq_f32_s32(d[0]), scale), vfmaq_f32(acc[1], vcvtq_f32_s32(d[1]), scale)]
        })
    }
    #[inline(always)]
    unsafe fn g_mac2(self, acc: Self::G, d: Self::D, scale: *const f32) -> Self::G {
        v!({
            let (a, b) = (vdupq_n_f32(scale.read_unaligned()), vdupq_n_f32(scale.add(1).read_unaligned()));
            [vfmaq_f32(acc[0], vcvtq_f32_s32(d[0]), a), vfmaq_f32(acc[1], vcvtq_f32_s32(d[1]), b)]
        })
    }
    #[inline(always)]
    fn g_add(self, a: Self::G, b: Self::G) -> Self::G {
        v!([vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])])
    }
    #[inline(always)]
    fn g_reduce(self, g: Self::G) -> f32 {
        self.reduce_add(self.add(g[0], g[1]))
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        products::prefetch::<false>(p)
    }
    #[inline(always)]
    fn prefetch_write(self, p: *const u8) {
        products::prefetch::<true>(p)
    }
}
