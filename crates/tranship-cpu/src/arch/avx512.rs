//! The vector layer on AVX-512 F, BW, DQ and VL: sixteen lanes, 32 registers; the 8-bit dot product where `VNNI`,
//! the BF16 one where `BF16`.
//!
//! Groups of 32 codes stay in 256-bit registers: one group is one register, no lane crossing is needed for its
//! scale, and three ports take 256-bit operations where two take those of 512 bits.

use super::Simd;
use super::avx2::byte_group_methods;
use std::arch::x86_64::*;

/// The token of AVX-512.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VNNI: bool, const BF16: bool>(());

impl<const VNNI: bool, const BF16: bool> Avx512<VNNI, BF16> {
    /// The token; only the dispatch of `Isa` may ask for it, from a function that has the features on.
    #[inline(always)]
    pub(super) fn new() -> Self {
        Avx512(())
    }
}

/// Why an AVX-512 without the 8-bit dot product is not asked for it.
const NO_VNNI: &str = "kernels on bytes are compiled with the dot product only";

/// Runs intrinsics of the token's features.
macro_rules! v {
    ($e:expr) => {{
        // SAFETY: the token exists only where its features were detected; a pointer's validity is the caller's.
        unsafe { $e }
    }};
}

/// The first `n` of sixteen lanes.
#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    debug_assert!(n <= 16);
    ((1u32 << n) - 1) as u16
}

/// The two halves added: lane `i` and lane `i + 8`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn halves(v: __m512) -> __m256 {
    _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))
}

/// Transposes sixteen rows of sixteen words: words and pairs within 128-bit lanes, then the lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn turned16(rows: [__m512i; 16]) -> [__m512i; 16] {
    let mut u = [[_mm512_setzero_si512(); 4]; 4];
    for (u, rows) in u.iter_mut().zip(rows.as_chunks::<4>().0) {
        let [a, b, c, d] = *rows;
        let (ab_lo, ab_hi) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_lo, cd_hi) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        u[0] = _mm512_unpacklo_epi64(ab_lo, cd_lo);
        u[1] = _mm512_unpackhi_epi64(ab_lo, cd_lo);
        u[2] = _mm512_unpacklo_epi64(ab_hi, cd_hi);
        u[3] = _mm512_unpackhi_epi64(ab_hi, cd_hi);
    }
    let mut out = rows;
    for c in 0..4 {
        let low01 = _mm512_shuffle_i32x4::<0x44>(u[0][c], u[1][c]);
        let low23 = _mm512_shuffle_i32x4::<0x44>(u[2][c], u[3][c]);
        let high01 = _mm512_shuffle_i32x4::<0xee>(u[0][c], u[1][c]);
        let high23 = _mm512_shuffle_i32x4::<0xee>(u[2][c], u[3][c]);
        out[c] = _mm512_shuffle_i32x4::<0x88>(low01, low23);
        out[4 + c] = _mm512_shuffle_i32x4::<0xdd>(low01, low23);
        out[8 + c] = _mm512_shuffle_i32x4::<0x88>(high01, high23);
        out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(high01, high23);
    }
    out
}

/// The same of floats.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn turned16_ps(mut rows: [__m512; 16]) -> [__m512; 16] {
    let mut words = [_mm512_setzero_si512(); 16];
    for i in 0..16 {
        words[i] = _mm512_castps_si512(rows[i]);
    }
    words = turned16(words);
    for i in 0..16 {
        rows[i] = _mm512_castsi512_ps(words[i]);
    }
    rows
}

/// The same, in memory.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn transpose16(src: *const u8, src_stride: usize, dst: *mut u8, dst_stride: usize) {
    // SAFETY: the caller gives sixteen rows of 64 bytes at both pointers.
    unsafe {
        let mut rows = [_mm512_setzero_si512(); 16];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = _mm512_loadu_si512(src.add(i * src_stride).cast());
        }
        for (i, row) in turned16(rows).into_iter().enumerate() {
            _mm512_storeu_si512(dst.add(i * dst_stride).cast(), row);
        }
    }
}

impl<const VNNI: bool, const BF16: bool> Simd for Avx512<VNNI, BF16> {
    const LANES: usize = 16;
    const MANY_REGISTERS: bool = true;
    const X_OFFSET: u8 = 128;
    const FUSED: bool = true;

    type F = __m512;
    type I = __m512i;

    byte_group_methods!();

    #[inline(always)]
    fn b_bits(self, bits: u32, value: u8) -> __m256i {
        v!(_mm256_maskz_set1_epi8(bits, value as i8))
    }
    #[inline(always)]
    fn b_dot<const WIDE: bool>(self, codes: __m256i, x: __m256i) -> __m256i {
        v!(if VNNI {
            _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, x)
        } else {
            unreachable!("{NO_VNNI}")
        })
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        v!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        v!(_mm512_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> __m512 {
        v!(_mm512_maskz_loadu_ps(mask(n), p))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        v!(_mm512_storeu_ps(p, v))
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: __m512, n: usize) {
        v!(_mm512_mask_storeu_ps(p, mask(n), v))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        v!(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        v!({
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m512) {
        v!(_mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)))
    }

    #[inline(always)]
    fn f_from_bits(self, v: __m512i) -> __m512 {
        v!(_mm512_castsi512_ps(v))
    }
    #[inline(always)]
    fn f_bits(self, v: __m512) -> __m512i {
        v!(_mm512_castps_si512(v))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        v!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        v!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        v!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        v!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        v!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        v!(_mm512_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        v!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        v!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        v!(_mm512_abs_ps(a))
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        v!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn exp2i(self, n: __m512) -> __m512 {
        v!({
            let n = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(n))
        })
    }
    #[inline(always)]
    fn select_ge(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        v!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b), no, yes))
    }
    #[inline(always)]
    fn reduce_add(self, v: __m512) -> f32 {
        v!(super::avx2::reduce8(halves(v)))
    }
    #[inline(always)]
    fn reduce_add4(self, v: [__m512; 4]) -> [f32; 4] {
        v!(super::avx2::reduce8x4([halves(v[0]), halves(v[1]), halves(v[2]), halves(v[3])]))
    }
    #[inline(always)]
    fn reduce_max(self, v: __m512) -> f32 {
        v!(_mm512_reduce_max_ps(v))
    }

    #[inline(always)]
    fn i_splat(self, x: i32) -> __m512i {
        v!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    unsafe fn i_load(self, p: *const i32) -> __m512i {
        v!(_mm512_loadu_si512(p.cast()))
    }
    #[inline(always)]
    unsafe fn i_store(self, p: *mut i32, v: __m512i) {
        v!(_mm512_storeu_si512(p.cast(), v))
    }
    #[inline(always)]
    fn i_add(self, a: __m512i, b: __m512i) -> __m512i {
        v!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn i_sub(self, a: __m512i, b: __m512i) -> __m512i {
        v!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn i_to_f(self, v: __m512i) -> __m512 {
        v!(_mm512_cvtepi32_ps(v))
    }
    #[inline(always)]
    fn f_to_i(self, v: __m512) -> __m512i {
        v!(_mm512_cvtps_epi32(v))
    }
    #[inline(always)]
    unsafe fn i_store_i8(self, p: *mut i8, v: __m512i) {
        v!(_mm_storeu_si128(p.cast(), _mm512_cvtsepi32_epi8(v)))
    }
    #[inline(always)]
    fn dot_unsigned(self, acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        v!(if VNNI { _mm512_dpbusd_epi32(acc, w, x) } else { unreachable!("{NO_VNNI}") })
    }
    #[inline(always)]
    fn dot_signed<const WIDE: bool>(self, acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        v!(if VNNI { _mm512_dpbusd_epi32(acc, x, w) } else { unreachable!("{NO_VNNI}") })
    }
    #[inline(always)]
    fn dot_bf16(self, acc: __m512, a: __m512i, b: __m512i) -> __m512 {
        v!(if BF16 {
            // The two types are the same 512 bits.
            let (a, b) =
                (std::mem::transmute::<__m512i, __m512bh>(a), std::mem::transmute::<__m512i, __m512bh>(b));
            _mm512_dpbf16_ps(acc, a, b)
        } else {
            unreachable!("kernels on BF16 are compiled with its dot product only")
        })
    }
    #[inline(always)]
    unsafe fn transpose(self, src: *const u8, src_stride: usize, dst: *mut u8, dst_stride: usize) {
        v!(transpose16(src, src_stride, dst, dst_stride))
    }
}
