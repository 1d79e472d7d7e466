//! The vector layer in plain Rust: eight lanes, each operation a loop.
//!
//! It is the fallback of machines without a vector layer of their own, and the simplest statement of what each
//! method means. Products are not fused: without the instruction a fused product is a slow library call.

use super::Simd;
use half::{bf16, f16};

/// The token of plain Rust; it needs nothing.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type F = [f32; 8];
type I = [i32; 8];
type B = [u8; 32];

#[inline(always)]
fn map2(a: F, b: F, f: impl Fn(f32, f32) -> f32) -> F {
    let mut out = [0.0; 8];
    for i in 0..8 {
        out[i] = f(a[i], b[i]);
    }
    out
}

#[inline(always)]
fn map_bytes(a: B, b: B, f: impl Fn(u8, u8) -> u8) -> B {
    let mut out = [0; 32];
    for i in 0..32 {
        out[i] = f(a[i], b[i]);
    }
    out
}

/// Adds the four products of each 32-bit lane, bytes read by `left` and `right`.
#[inline(always)]
fn dot4(acc: I, a: I, b: I, left: impl Fn(u8) -> i32, right: impl Fn(u8) -> i32) -> I {
    let mut out = acc;
    for i in 0..8 {
        let (a, b) = (a[i].to_le_bytes(), b[i].to_le_bytes());
        for j in 0..4 {
            out[i] += left(a[j]) * right(b[j]);
        }
    }
    out
}

impl Simd for Scalar {
    const LANES: usize = 8;
    const MANY_REGISTERS: bool = false;
    const X_OFFSET: u8 = 0;

    type F = F;
    type I = I;
    type B = B;
    type D = I;
    type G = F;

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        // SAFETY: the caller gives 8 readable floats.
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> F {
        let mut out = [0.0; 8];
        for (i, x) in out.iter_mut().enumerate().take(n) {
            // SAFETY: the caller gives `n` readable floats.
            *x = unsafe { p.add(i).read_unaligned() };
        }
        out
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: F) {
        // SAFETY: the caller gives 8 writable floats.
        unsafe { p.cast::<F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: F, n: usize) {
        for (i, x) in v.iter().enumerate().take(n) {
            // SAFETY: the caller gives `n` writable floats.
            unsafe { p.add(i).write_unaligned(*x) }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> F {
        // SAFETY: the caller gives 8 readable numbers.
        let h = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        h.map(|h| f16::from_bits(h).to_f32_const())
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> F {
        // SAFETY: the caller gives 8 readable numbers.
        let h = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        h.map(|h| bf16::from_bits(h).to_f32_const())
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: F) {
        let h = v.map(|x| f16::from_f32_const(x).to_bits());
        // SAFETY: the caller gives 8 writable numbers.
        unsafe { p.cast::<[u16; 8]>().write_unaligned(h) }
    }
    #[inline(always)]
    fn f16(self, h: u16) -> f32 {
        f16::from_bits(h).to_f32_const()
    }

    #[inline(always)]
    fn f_from_bits(self, v: I) -> F {
        v.map(|v| f32::from_bits(v as u32))
    }
    #[inline(always)]
    fn f_bits(self, v: F) -> I {
        v.map(|v| v.to_bits() as i32)
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn fnma(self, a: F, b: F, c: F) -> F {
        self.sub(c, self.mul(a, b))
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn abs(self, a: F) -> F {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn round(self, a: F) -> F {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn exp2i(self, n: F) -> F {
        n.map(|n| f32::from_bits(((n as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    fn select_ge(self, a: F, b: F, yes: F, no: F) -> F {
        let mut out = no;
        for i in 0..8 {
            if a[i] >= b[i] {
                out[i] = yes[i];
            }
        }
        out
    }
    #[inline(always)]
    fn reduce_add(self, v: F) -> f32 {
        let h = [v[0] + v[4], v[1] + v[5], v[2] + v[6], v[3] + v[7]];
        (h[0] + h[2]) + (h[1] + h[3])
    }
    #[inline(always)]
    fn reduce_add4(self, v: [F; 4]) -> [f32; 4] {
        v.map(|v| self.reduce_add(v))
    }
    #[inline(always)]
    fn reduce_max(self, v: F) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }

    #[inline(always)]
    fn i_splat(self, x: i32) -> I {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn i_load(self, p: *const i32) -> I {
        // SAFETY: the caller gives 8 readable words.
        unsafe { p.cast::<I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn i_store(self, p: *mut i32, v: I) {
        // SAFETY: the caller gives 8 writable words.
        unsafe { p.cast::<I>().write_unaligned(v) }
    }
    #[inline(always)]
    fn i_sub(self, a: I, b: I) -> I {
        let mut out = a;
        for i in 0..8 {
            out[i] -= b[i];
        }
        out
    }
    #[inline(always)]
    fn i_to_f(self, v: I) -> F {
        v.map(|x| x as f32)
    }
    #[inline(always)]
    fn f_to_i(self, v: F) -> I {
        v.map(|x| x.round_ties_even() as i32)
    }
    #[inline(always)]
    unsafe fn i_store_i8(self, p: *mut i8, v: I) {
        // SAFETY: the caller gives 8 writable bytes.
        unsafe { p.cast::<[i8; 8]>().write_unaligned(v.map(|x| x as i8)) }
    }
    #[inline(always)]
    fn dot_unsigned(self, acc: I, w: I, x: I) -> I {
        dot4(acc, w, x, i32::from, |x| i32::from(x as i8))
    }
    #[inline(always)]
    fn dot_signed<const WIDE: bool>(self, acc: I, w: I, x: I) -> I {
        dot4(acc, w, x, |w| i32::from(w as i8), |x| i32::from(x as i8))
    }
    #[inline(always)]
    fn dot_bf16(self, _: F, _: I, _: I) -> F {
        unreachable!("plain Rust has no BF16 dot product")
    }
    #[inline(always)]
    unsafe fn transpose(self, src: *const u8, src_stride: usize, dst: *mut u8, dst_stride: usize) {
        for r in 0..8 {
            for c in 0..8 {
                // SAFETY: the caller gives 8 rows of 8 words at both pointers.
                unsafe {
                    let word = src.add(r * src_stride + c * 4).cast::<u32>().read_unaligned();
                    dst.add(c * dst_stride + r * 4).cast::<u32>().write_unaligned(word);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn b_load(self, p: *const u8) -> B {
        // SAFETY: the caller gives 32 readable bytes.
        unsafe { p.cast::<B>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn b_store(self, p: *mut u8, v: B) {
        // SAFETY: the caller gives 32 writable bytes.
        unsafe { p.cast::<B>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn b_nibbles(self, p: *const u8) -> B {
        // SAFETY: the caller gives 16 readable bytes.
        let q = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
        let mut out = [0; 32];
        for i in 0..16 {
            out[i] = q[i] & 15;
            out[16 + i] = q[i] >> 4;
        }
        out
    }
    #[inline(always)]
    fn b_splat(self, x: u8) -> B {
        [x; 32]
    }
    #[inline(always)]
    fn b_and(self, a: B, b: B) -> B {
        map_bytes(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn b_or(self, a: B, b: B) -> B {
        map_bytes(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn b_xor(self, a: B, b: B) -> B {
        map_bytes(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn b_sub(self, a: B, b: B) -> B {
        map_bytes(a, b, u8::wrapping_sub)
    }
    #[inline(always)]
    fn b_shr<const N: i32>(self, a: B, mask: u8) -> B {
        map_bytes(a, [mask; 32], |a, m| (a >> N) & m)
    }
    #[inline(always)]
    fn b_shl<const N: i32>(self, a: B, mask: u8) -> B {
        map_bytes(a, [mask; 32], |a, m| (a << N) & m)
    }
    #[inline(always)]
    fn b_bits(self, bits: u32, value: u8) -> B {
        let mut out = [0; 32];
        for (i, b) in out.iter_mut().enumerate() {
            *b = if bits >> i & 1 == 1 { value } else { 0 };
        }
        out
    }
    #[inline(always)]
    fn b_lookup(self, table: &[u8; 16], index: B) -> B {
        index.map(|i| table[usize::from(i & 15)])
    }
    #[inline(always)]
    fn b_dot<const WIDE: bool>(self, codes: B, x: B) -> I {
        let mut out = [0; 8];
        for i in 0..32 {
            out[i / 4] += i32::from(codes[i]) * i32::from(x[i] as i8);
        }
        out
    }
    #[inline(always)]
    fn g_zero(self) -> F {
        [0.0; 8]
    }
    #[inline(always)]
    fn g_f16(self, h: [u16; 8]) -> F {
        h.map(|h| f16::from_bits(h).to_f32_const())
    }
    #[inline(always)]
    fn g_f16_pairs(self, h: [u32; 8]) -> (F, F) {
        (self.g_f16(h.map(|h| h as u16)), self.g_f16(h.map(|h| (h >> 16) as u16)))
    }
    #[inline(always)]
    fn g_scaled(self, bytes: u64, factor: f32) -> F {
        bytes.to_le_bytes().map(|b| factor * f32::from(b as i8))
    }
    #[inline(always)]
    fn g_neg(self, g: F) -> F {
        g.map(|x| -x)
    }
    #[inline(always)]
    unsafe fn g_store(self, p: *mut f32, g: F) {
        // SAFETY: the caller gives 8 writable floats.
        unsafe { p.cast::<F>().write_unaligned(g) }
    }
    #[inline(always)]
    unsafe fn g_mac(self, acc: F, d: I, scale: *const f32) -> F {
        // SAFETY: the caller gives one readable float.
        let scale = unsafe { scale.read_unaligned() };
        self.fma(self.i_to_f(d), [scale; 8], acc)
    }
    #[inline(always)]
    unsafe fn g_mac2(self, acc: F, d: I, scale: *const f32) -> F {
        // SAFETY: the caller gives two readable floats.
        let [a, b] = unsafe { scale.cast::<[f32; 2]>().read_unaligned() };
        self.fma(self.i_to_f(d), [a, a, a, a, b, b, b, b], acc)
    }
    #[inline(always)]
    fn g_add(self, a: F, b: F) -> F {
        self.add(a, b)
    }
    #[inline(always)]
    fn g_reduce(self, g: F) -> f32 {
        self.reduce_add(g)
    }
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
    #[inline(always)]
    fn prefetch_write(self, _: *const u8) {}
}
