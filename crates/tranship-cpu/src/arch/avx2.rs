//! The vector layer on AVX2, FMA and F16C: eight lanes, sixteen registers.
//!
//! Without the 8-bit dot product (`VNNI`), products of bytes are added in pairs to 16 bits, which saturate. It is
//! made exact by splitting one operand where the pair could pass 32767: into its low seven bits and its top bit.

use super::Simd;
use std::arch::x86_64::*;

/// The token of AVX2, FMA and F16C, and of AVX-VNNI where `VNNI`.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// The token; only the dispatch of `Isa` may ask for it, from a function that has the features on.
    #[inline(always)]
    pub(super) fn new() -> Self {
        Avx2(())
    }
}

/// Runs intrinsics of the token's features.
macro_rules! v {
    ($e:expr) => {{
        // SAFETY: the token exists only where its features were detected; a pointer's validity is the caller's.
        unsafe { $e }
    }};
}

/// The sum of the lanes of 256 bits, halves first.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn reduce8(v: __m256) -> f32 {
    let h = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps::<1>(h, h)))
}

/// Lane masks: eight set, then eight clear; a window of it masks the first lanes.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn mask(n: usize) -> __m256i {
    debug_assert!(n <= 8);
    // SAFETY: `n <= 8`, so the eight words lie in the table.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - n).cast()) }
}

/// Adds four products each of unsigned `u` and signed `s` through 16-bit pairs, which must not pass 32767.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs(acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
    _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)))
}

/// Adds four products each of any unsigned `u` and signed `s`: `u` is split so that no pair saturates
/// (127·128·2 = 32512, and 128·128·2 = 32768 only as -32768).
#[inline]
#[target_feature(enable = "avx2")]
fn pairs_wide(acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
    let low = _mm256_and_si256(u, _mm256_set1_epi8(0x7f));
    let top = _mm256_andnot_si256(_mm256_set1_epi8(0x7f), u);
    pairs(pairs(acc, low, s), top, s)
}

/// Transposes eight rows of eight words.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose8(src: *const u8, src_stride: usize, dst: *mut u8, dst_stride: usize) {
    // SAFETY: the caller gives eight rows of 32 bytes at both pointers.
    unsafe {
        let mut r = [_mm256_setzero_si256(); 8];
        for (i, r) in r.iter_mut().enumerate() {
            *r = _mm256_loadu_si256(src.add(i * src_stride).cast());
        }
        let mut u = [_mm256_setzero_si256(); 8];
        for g in 0..2 {
            let (a, b) = (r[g * 4], r[g * 4 + 1]);
            let (c, d) = (r[g * 4 + 2], r[g * 4 + 3]);
            let (ab_lo, ab_hi) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd_lo, cd_hi) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            u[g * 4] = _mm256_unpacklo_epi64(ab_lo, cd_lo);
            u[g * 4 + 1] = _mm256_unpackhi_epi64(ab_lo, cd_lo);
            u[g * 4 + 2] = _mm256_unpacklo_epi64(ab_hi, cd_hi);
            u[g * 4 + 3] = _mm256_unpackhi_epi64(ab_hi, cd_hi);
        }
        for c in 0..4 {
            let low = _mm256_permute2x128_si256::<0x20>(u[c], u[4 + c]);
            let high = _mm256_permute2x128_si256::<0x31>(u[c], u[4 + c]);
            _mm256_storeu_si256(dst.add(c * dst_stride).cast(), low);
            _mm256_storeu_si256(dst.add((4 + c) * dst_stride).cast(), high);
        }
    }
}

/// Bytes of `value` where the bit is set: each byte meets the mask of its own bit.
#[inline]
#[target_feature(enable = "avx2")]
fn spread_bits(bits: u32, value: u8) -> __m256i {
    let source = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), source);
    let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, own), own);
    _mm256_and_si256(set, _mm256_set1_epi8(value as i8))
}

/// The methods on 32 bytes and eight lanes, the same for AVX2 and AVX-512; only the dot product differs.
macro_rules! byte_group_methods {
    () => {
        type B = __m256i;
        type D = __m256i;
        type G = __m256;

        #[inline(always)]
        unsafe fn b_load(self, p: *const u8) -> __m256i {
            v!(_mm256_loadu_si256(p.cast()))
        }
        #[inline(always)]
        unsafe fn b_store(self, p: *mut u8, v: __m256i) {
            v!(_mm256_storeu_si256(p.cast(), v))
        }
        #[inline(always)]
        unsafe fn b_nibbles(self, p: *const u8) -> __m256i {
            v!({
                let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
                let shifted = _mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4));
                _mm256_and_si256(shifted, _mm256_set1_epi8(15))
            })
        }
        #[inline(always)]
        fn b_splat(self, x: u8) -> __m256i {
            v!(_mm256_set1_epi8(x as i8))
        }
        #[inline(always)]
        fn b_and(self, a: __m256i, b: __m256i) -> __m256i {
            v!(_mm256_and_si256(a, b))
        }
        #[inline(always)]
        fn b_or(self, a: __m256i, b: __m256i) -> __m256i {
            v!(_mm256_or_si256(a, b))
        }
        #[inline(always)]
        fn b_xor(self, a: __m256i, b: __m256i) -> __m256i {
            v!(_mm256_xor_si256(a, b))
        }
        #[inline(always)]
        fn b_sub(self, a: __m256i, b: __m256i) -> __m256i {
            v!(_mm256_sub_epi8(a, b))
        }
        #[inline(always)]
        fn b_shr<const N: i32>(self, a: __m256i, mask: u8) -> __m256i {
            v!(_mm256_and_si256(_mm256_srli_epi16::<N>(a), _mm256_set1_epi8(mask as i8)))
        }
        #[inline(always)]
        fn b_shl<const N: i32>(self, a: __m256i, mask: u8) -> __m256i {
            v!(_mm256_and_si256(_mm256_slli_epi16::<N>(a), _mm256_set1_epi8(mask as i8)))
        }
        #[inline(always)]
        fn b_lookup(self, table: &[u8; 16], index: __m256i) -> __m256i {
            v!({
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
                _mm256_shuffle_epi8(table, index)
            })
        }
        #[inline(always)]
        fn g_zero(self) -> __m256 {
            v!(_mm256_setzero_ps())
        }
        #[inline(always)]
        fn g_f16(self, h: [u16; 8]) -> __m256 {
            v!(_mm256_cvtph_ps(std::mem::transmute::<[u16; 8], __m128i>(h)))
        }
        #[inline(always)]
        fn g_f16_pairs(self, h: [u32; 8]) -> (__m256, __m256) {
            v!({
                // Within each 128-bit lane the firsts, then the seconds; then both firsts together.
                let split = _mm256_setr_epi64x(
                    0x0d0c_0908_0504_0100,
                    0x0f0e_0b0a_0706_0302,
                    0x0d0c_0908_0504_0100,
                    0x0f0e_0b0a_0706_0302,
                );
                let lanes = _mm256_shuffle_epi8(std::mem::transmute::<[u32; 8], __m256i>(h), split);
                let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(lanes);
                (
                    _mm256_cvtph_ps(_mm256_castsi256_si128(both)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(both)),
                )
            })
        }
        #[inline(always)]
        fn g_scaled(self, bytes: u64, factor: f32) -> __m256 {
            v!({
                let wide = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes as i64));
                _mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(factor))
            })
        }
        #[inline(always)]
        fn g_neg(self, g: __m256) -> __m256 {
            v!(_mm256_xor_ps(g, _mm256_set1_ps(-0.0)))
        }
        #[inline(always)]
        unsafe fn g_store(self, p: *mut f32, g: __m256) {
            v!(_mm256_storeu_ps(p, g))
        }
        #[inline(always)]
        unsafe fn g_mac(self, acc: __m256, d: __m256i, scale: *const f32) -> __m256 {
            v!(_mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_set1_ps(scale.read_unaligned()), acc))
        }
        #[inline(always)]
        unsafe fn g_mac2(self, acc: __m256, d: __m256i, scale: *const f32) -> __m256 {
            v!({
                let both = _mm256_castpd_ps(_mm256_set1_pd(scale.cast::<f64>().read_unaligned()));
                let scale = _mm256_permutevar_ps(both, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), scale, acc)
            })
        }
        #[inline(always)]
        fn g_add(self, a: __m256, b: __m256) -> __m256 {
            v!(_mm256_add_ps(a, b))
        }
        #[inline(always)]
        fn g_reduce(self, g: __m256) -> f32 {
            v!(super::avx2::reduce8(g))
        }
        #[inline(always)]
        fn prefetch(self, p: *const u8) {
            v!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
        }
        #[inline(always)]
        fn prefetch_write(self, p: *const u8) {
            v!(_mm_prefetch::<_MM_HINT_ET0>(p.cast()))
        }
        #[inline(always)]
        fn f16(self, h: u16) -> f32 {
            v!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(h)))))
        }
    };
}
pub(super) use byte_group_methods;

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    const LANES: usize = 8;
    const MANY_REGISTERS: bool = false;
    const X_OFFSET: u8 = 128;

    type F = __m256;
    type I = __m256i;

    byte_group_methods!();

    #[inline(always)]
    fn b_bits(self, bits: u32, value: u8) -> __m256i {
        v!(spread_bits(bits, value))
    }
    #[inline(always)]
    fn b_dot<const WIDE: bool>(self, codes: __m256i, x: __m256i) -> __m256i {
        v!(if VNNI {
            _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), codes, x)
        } else if WIDE {
            pairs_wide(_mm256_setzero_si256(), codes, x)
        } else {
            _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1))
        })
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        v!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        v!(_mm256_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> __m256 {
        v!(_mm256_maskload_ps(p, mask(n)))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        v!(_mm256_storeu_ps(p, v))
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: __m256, n: usize) {
        v!(_mm256_maskstore_ps(p, mask(n), v))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m256 {
        v!(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m256 {
        v!({
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m256) {
        v!(_mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)))
    }

    #[inline(always)]
    fn f_from_bits(self, v: __m256i) -> __m256 {
        v!(_mm256_castsi256_ps(v))
    }
    #[inline(always)]
    fn f_bits(self, v: __m256) -> __m256i {
        v!(_mm256_castps_si256(v))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        v!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        v!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        v!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        v!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        v!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fnma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        v!(_mm256_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        v!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        v!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        v!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        v!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn exp2i(self, n: __m256) -> __m256 {
        v!({
            let n = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
        })
    }
    #[inline(always)]
    fn select_ge(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        v!(_mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_GE_OQ>(a, b)))
    }
    #[inline(always)]
    fn reduce_add(self, v: __m256) -> f32 {
        v!(reduce8(v))
    }
    #[inline(always)]
    fn reduce_add4(self, v: [__m256; 4]) -> [f32; 4] {
        v!(reduce8x4(v))
    }
    #[inline(always)]
    fn reduce_max(self, v: __m256) -> f32 {
        v!({
            let h = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let h = _mm_max_ps(h, _mm_movehl_ps(h, h));
            _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps::<1>(h, h)))
        })
    }

    #[inline(always)]
    fn i_splat(self, x: i32) -> __m256i {
        v!(_mm256_set1_epi32(x))
    }
    #[inline(always)]
    unsafe fn i_load(self, p: *const i32) -> __m256i {
        v!(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn i_store(self, p: *mut i32, v: __m256i) {
        v!(_mm256_storeu_si256(p.cast(), v))
    }
    #[inline(always)]
    fn i_sub(self, a: __m256i, b: __m256i) -> __m256i {
        v!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn i_to_f(self, v: __m256i) -> __m256 {
        v!(_mm256_cvtepi32_ps(v))
    }
    #[inline(always)]
    fn f_to_i(self, v: __m256) -> __m256i {
        v!(_mm256_cvtps_epi32(v))
    }
    #[inline(always)]
    unsafe fn i_store_i8(self, p: *mut i8, v: __m256i) {
        v!({
            let words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            _mm_storel_epi64(p.cast(), _mm_packs_epi16(words, words))
        })
    }
    #[inline(always)]
    fn dot_unsigned(self, acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        v!(if VNNI { _mm256_dpbusd_avx_epi32(acc, w, x) } else { pairs(acc, w, x) })
    }
    #[inline(always)]
    fn dot_signed<const WIDE: bool>(self, acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        v!(if VNNI {
            _mm256_dpbusd_avx_epi32(acc, x, w)
        } else if WIDE {
            pairs_wide(acc, x, w)
        } else {
            pairs(acc, x, w)
        })
    }
    #[inline(always)]
    fn dot_bf16(self, _: __m256, _: __m256i, _: __m256i) -> __m256 {
        unreachable!("AVX2 has no BF16 dot product")
    }
    #[inline(always)]
    unsafe fn transpose(self, src: *const u8, src_stride: usize, dst: *mut u8, dst_stride: usize) {
        v!(transpose8(src, src_stride, dst, dst_stride))
    }
}

/// Four sums of eight lanes, in the order of [`reduce8`].
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn reduce8x4(v: [__m256; 4]) -> [f32; 4] {
    let mut h = [_mm_setzero_ps(); 4];
    for i in 0..4 {
        h[i] = _mm_add_ps(_mm256_castps256_ps128(v[i]), _mm256_extractf128_ps::<1>(v[i]));
    }
    let ab = _mm_add_ps(_mm_unpacklo_ps(h[0], h[1]), _mm_unpackhi_ps(h[0], h[1]));
    let cd = _mm_add_ps(_mm_unpacklo_ps(h[2], h[3]), _mm_unpackhi_ps(h[2], h[3]));
    let sum = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
    let mut out = [0.0; 4];
    // SAFETY: `out` holds four floats.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sum) };
    out
}
