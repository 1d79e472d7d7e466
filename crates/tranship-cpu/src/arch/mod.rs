//! The instruction sets: which there are, which this machine has, and the narrow vector layer over them.
//!
//! Every kernel is written once, generic over [`Simd`], and made `#[inline(always)]`. [`Isa`]'s dispatch is the
//! only place that picks an instruction set, and the only place with `#[target_feature]`: it calls a kernel
//! from inside a function that has the features on, so that the whole kernel is compiled with them. The value
//! that implements [`Simd`] is a token: it is made in the dispatch alone, after detection, and so proves that
//! its instructions exist.
//!
//! The layer has four kinds of value. `F` is a vector of [`Simd::LANES`] floats. `I` is the same width of
//! 32-bit integers; in the matrix kernel each of its lanes holds four 8-bit codes of one output. `B` is 32
//! bytes, one group of 32 codes whatever the width of the machine, and `D` is the eight 32-bit sums of its
//! products; `G` is eight floats that those are accumulated in.
#![allow(clippy::needless_range_loop, reason = "register tiles: one index goes into several arrays")]

mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_rows;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_products;

use std::fmt;

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust; whatever the target's baseline gives.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// [`Isa::Avx2`] and the 8-bit dot product on 256 bits.
    AvxVnni,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// [`Isa::Avx512`] and the 8-bit dot product.
    Avx512Vnni,
    /// [`Isa::Avx512Vnni`] and the BF16 dot product.
    Avx512Bf16,
    /// [`Isa::Avx512Bf16`] and the 8-bit matrix tiles of AMX.
    Amx,
    /// Advanced SIMD of 64-bit ARM.
    Neon,
    /// [`Isa::Neon`] and the 8-bit dot product.
    NeonDot,
    /// [`Isa::NeonDot`] and the 8-bit matrix product; the BF16 dot product where the machine has it.
    NeonI8mm,
}

impl Isa {
    /// All instruction sets, the plainest first.
    pub const ALL: [Isa; 10] = [
        Isa::Scalar,
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512,
        Isa::Avx512Vnni,
        Isa::Avx512Bf16,
        Isa::Amx,
        Isa::Neon,
        Isa::NeonDot,
        Isa::NeonI8mm,
    ];

    /// The best instruction set of this machine.
    pub fn detect() -> Isa {
        let order = [
            Isa::Amx,
            Isa::Avx512Bf16,
            Isa::Avx512Vnni,
            Isa::Avx512,
            Isa::AvxVnni,
            Isa::Avx2,
            Isa::NeonI8mm,
            Isa::NeonDot,
            Isa::Neon,
            Isa::Scalar,
        ];
        order.into_iter().find(|isa| isa.missing().is_none()).unwrap_or(Isa::Scalar)
    }

    /// Every instruction set of this machine, the plainest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.missing().is_none()).collect()
    }

    /// What this machine lacks for `self`, in words; `None` when it lacks nothing.
    pub fn missing(self) -> Option<&'static str> {
        #[cfg(target_arch = "x86_64")]
        macro_rules! need {
            ($($feature:tt),*) => {{
                $(if !std::arch::is_x86_feature_detected!($feature) { return Some($feature); })*
                None
            }};
        }
        #[cfg(target_arch = "aarch64")]
        macro_rules! need {
            ($($feature:tt),*) => {{
                $(if !std::arch::is_aarch64_feature_detected!($feature) { return Some($feature); })*
                None
            }};
        }
        match self {
            Isa::Scalar => None,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => need!("avx2", "fma", "f16c"),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => need!("avx2", "fma", "f16c", "avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => need!("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Isa::Avx512.missing().or_else(|| need!("avx512vnni")),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512Vnni.missing().or_else(|| need!("avx512bf16")),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512Bf16.missing().or((!amx::available()).then_some("amx-int8")),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => need!("neon"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => need!("neon", "dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => need!("neon", "dotprod", "i8mm"),
            #[allow(unreachable_patterns)]
            _ => Some("another processor family"),
        }
    }

    /// An instruction set that every machine with `self` has, and that has no [`Simd::FUSED`].
    pub(crate) const fn plainer(self) -> Isa {
        match self {
            Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => Isa::Avx2,
            _ => self,
        }
    }

    /// The name in lower case: `avx512-vnni`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avx-vnni",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Avx512Bf16 => "avx512-bf16",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::NeonDot => "neon-dot",
            Isa::NeonI8mm => "neon-i8mm",
        }
    }

    /// Runs a kernel on floats, compiled for the widest float vectors of `self`.
    ///
    /// # Panics
    /// When this machine lacks `self`: detection is what makes the call sound, so it is asked again here (the
    /// standard library keeps the answer).
    #[inline]
    pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Out {
        assert!(self.missing().is_none(), "{self} is not of this machine");
        match self {
            // SAFETY: `missing` has just found every feature of the function that is called.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => unsafe { run_avx512(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => unsafe { run_neon(kernel) },
            _ => kernel.run(scalar::Scalar),
        }
    }

    /// Runs a kernel that multiplies bytes. Without the 8-bit dot product AVX-512 gains little on them over AVX2, and
    /// is not worth compiling every encoding once more.
    ///
    /// # Panics
    /// As [`Isa::dispatch`].
    #[inline]
    pub(crate) fn dispatch_bytes<K: Kernel>(self, kernel: K) -> K::Out {
        assert!(self.missing().is_none(), "{self} is not of this machine");
        match self {
            // SAFETY: `missing` has just found every feature of the function that is called.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::AvxVnni => unsafe { run_avx_vnni(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => unsafe { run_avx512_vnni(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon => unsafe { run_neon(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::NeonDot => unsafe { run_neon_dot(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::NeonI8mm => unsafe { run_neon_i8mm(kernel) },
            _ => kernel.run(scalar::Scalar),
        }
    }

    /// Whether there is a BF16 dot product.
    pub(crate) fn multiplies_bf16(self) -> bool {
        match self {
            Isa::Avx512Bf16 | Isa::Amx => true,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => std::arch::is_aarch64_feature_detected!("bf16"),
            _ => false,
        }
    }

    /// Runs a kernel that multiplies BF16 numbers; `None`, and nothing is done, where `self` has no such product.
    ///
    /// # Panics
    /// As [`Isa::dispatch`].
    #[inline]
    pub(crate) fn dispatch_bf16<K: Kernel>(self, kernel: K) -> Option<K::Out> {
        assert!(self.missing().is_none(), "{self} is not of this machine");
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `missing` has just found every feature of the function that is called.
            Isa::Avx512Bf16 | Isa::Amx => Some(unsafe { run_avx512_bf16(kernel) }),
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above; the last feature has been asked for just now.
            Isa::NeonI8mm if self.multiplies_bf16() => Some(unsafe { run_neon_bf16(kernel) }),
            _ => {
                drop(kernel);
                None
            }
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Work that can be compiled for any instruction set. `run` must be `#[inline(always)]`.
pub(crate) trait Kernel {
    /// What the work gives.
    type Out;
    /// Does the work with the instructions of `s`.
    fn run<S: Simd>(self, s: S) -> Self::Out;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(avx2::Avx2::<false>::new())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn run_avx_vnni<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(avx2::Avx2::<true>::new())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(avx512::Avx512::<false, false>::new())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn run_avx512_vnni<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(avx512::Avx512::<true, false>::new())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
fn run_avx512_bf16<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(avx512::Avx512::<true, true>::new())
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn run_neon<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(neon::Neon::<false, false, false>::new())
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
fn run_neon_dot<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(neon::Neon::<true, false, false>::new())
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod,i8mm")]
fn run_neon_i8mm<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(neon::Neon::<true, true, false>::new())
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod,i8mm,bf16")]
fn run_neon_bf16<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(neon::Neon::<true, true, true>::new())
}

/// The widest vector of any instruction set, in 32-bit lanes: what scratch is padded to.
pub(crate) const MAX_LANES: usize = 16;

/// A vector instruction set; see the module's introduction for the kinds of value.
///
/// Methods that take a pointer are unsafe: the pointer must be valid for what the method's text says it reads
/// or writes. None asks for alignment.
pub(crate) trait Simd: Copy {
    /// 32-bit lanes of `F` and `I`.
    const LANES: usize;
    /// Whether there are 32 vector registers, not 16: it decides the size of register tiles.
    const MANY_REGISTERS: bool;
    /// What 8-bit activations are offset by where they meet *signed* weights in [`Simd::dot_signed`]: 128 where
    /// the machine multiplies unsigned by signed bytes, else 0.
    const X_OFFSET: u8;
    /// Whether [`Simd::fma`] rounds once, and integers may be made floats by it: see `BASE` in `linear_quant`.
    const FUSED: bool = false;
    /// Whether there is [`Simd::tile_dots`].
    const TILE_DOTS: bool = false;

    /// `LANES` floats.
    type F: Copy;
    /// `LANES` integers of 32 bits.
    type I: Copy;
    /// 32 bytes.
    type B: Copy;
    /// Eight integers of 32 bits.
    type D: Copy;
    /// Eight floats.
    type G: Copy;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Reads `LANES` floats.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// Reads `n` floats, `n <= LANES`; the other lanes are 0.
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::F;
    /// Writes `LANES` floats.
    unsafe fn store(self, p: *mut f32, v: Self::F);
    /// Writes the first `n` floats, `n <= LANES`.
    unsafe fn store_part(self, p: *mut f32, v: Self::F, n: usize);
    /// Reads `LANES` half-precision floats.
    unsafe fn load_f16(self, p: *const u16) -> Self::F;
    /// Reads `LANES` BF16 floats.
    unsafe fn load_bf16(self, p: *const u16) -> Self::F;
    /// Writes `LANES` floats rounded to half precision, to nearest even.
    unsafe fn store_f16(self, p: *mut u16, v: Self::F);
    /// The float that a half-precision number is.
    fn f16(self, h: u16) -> f32;

    /// The same bits as floats.
    fn f_from_bits(self, v: Self::I) -> Self::F;
    /// The same bits as words.
    fn f_bits(self, v: Self::F) -> Self::I;
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, fused where the machine can.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`, fused where the machine can.
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The greater, lane by lane.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The lesser, lane by lane.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The absolute value.
    fn abs(self, a: Self::F) -> Self::F;
    /// The nearest integer, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// `2^n` for lanes that hold integers from -126 to 127.
    fn exp2i(self, n: Self::F) -> Self::F;
    /// `yes` in the lanes where `a >= b`, else `no`.
    fn select_ge(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// The sum of all lanes, halves first: lane `i` with lane `i + LANES / 2`, and so on.
    fn reduce_add(self, v: Self::F) -> f32;
    /// Four sums at once, each with the same additions in the same order as [`Simd::reduce_add`].
    fn reduce_add4(self, v: [Self::F; 4]) -> [f32; 4];
    /// The greatest lane.
    fn reduce_max(self, v: Self::F) -> f32;

    /// All lanes `x`.
    fn i_splat(self, x: i32) -> Self::I;
    /// Reads `LANES` 32-bit words.
    unsafe fn i_load(self, p: *const i32) -> Self::I;
    /// Writes `LANES` 32-bit words.
    unsafe fn i_store(self, p: *mut i32, v: Self::I);
    /// `a + b`.
    #[inline(always)]
    fn i_add(self, a: Self::I, b: Self::I) -> Self::I {
        self.i_sub(a, self.i_sub(self.i_splat(0), b))
    }
    /// `a - b`.
    fn i_sub(self, a: Self::I, b: Self::I) -> Self::I;
    /// The floats nearest to the integers.
    fn i_to_f(self, v: Self::I) -> Self::F;
    /// The floats rounded to integers of 32 bits, ties to even.
    fn f_to_i(self, v: Self::F) -> Self::I;
    /// Writes the low bytes of `LANES` integers from -128 to 127.
    unsafe fn i_store_i8(self, p: *mut i8, v: Self::I);
    /// Adds to each lane the four products of unsigned codes `w <= 127` and signed bytes `x >= -127`.
    fn dot_unsigned(self, acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Adds to each lane the four products of signed bytes `w` and bytes `x` that carry [`Simd::X_OFFSET`].
    /// `WIDE` allows any `w`; without it `|w| <= 64`.
    fn dot_signed<const WIDE: bool>(self, acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Adds to each lane the two products of BF16 pairs.
    fn dot_bf16(self, acc: Self::F, a: Self::I, b: Self::I) -> Self::F;
    /// Transposes `LANES` rows of `LANES` 32-bit words; strides in bytes.
    unsafe fn transpose(self, src: *const u8, src_stride: usize, dst: *mut u8, dst_stride: usize);
    /// As [`Simd::transpose`], for codes of a panel: in another order where [`Simd::tile_dots`] wants another.
    #[inline(always)]
    unsafe fn transpose_codes(self, src: *const u8, src_stride: usize, dst: *mut u8, dst_stride: usize) {
        // SAFETY: the caller's.
        unsafe { self.transpose(src, src_stride, dst, dst_stride) }
    }
    /// The sums of products of `GROUP` signed codes of `M` rows, which begin at `x`, by `NT` vectors of outputs, of which
    /// `LANES` 32-bit words for each four values lie `stride` bytes apart from `w` on. Codes carry no offset.
    #[inline(always)]
    unsafe fn tile_dots<const GROUP: usize, const M: usize, const NT: usize>(
        self,
        _x: [*const u8; M],
        _w: *const u8,
        _stride: usize,
    ) -> [[Self::I; NT]; M] {
        unreachable!("this machine multiplies a group's codes four values after four")
    }

    /// Reads 32 bytes.
    unsafe fn b_load(self, p: *const u8) -> Self::B;
    /// Writes 32 bytes.
    unsafe fn b_store(self, p: *mut u8, v: Self::B);
    /// Reads 16 bytes; gives their low halves, then their high halves.
    unsafe fn b_nibbles(self, p: *const u8) -> Self::B;
    /// All bytes `x`.
    fn b_splat(self, x: u8) -> Self::B;
    /// Bitwise and.
    fn b_and(self, a: Self::B, b: Self::B) -> Self::B;
    /// Bitwise or.
    fn b_or(self, a: Self::B, b: Self::B) -> Self::B;
    /// Bitwise exclusive or.
    fn b_xor(self, a: Self::B, b: Self::B) -> Self::B;
    /// `a - b`, wrapping.
    fn b_sub(self, a: Self::B, b: Self::B) -> Self::B;
    /// Each byte shifted right by `N` and masked: `(a >> N) & mask`, where `mask` has no bit above `7 - N`.
    fn b_shr<const N: i32>(self, a: Self::B, mask: u8) -> Self::B;
    /// Each byte shifted left by `N` and masked: `(a << N) & mask`, where `mask` has no bit below `N`.
    fn b_shl<const N: i32>(self, a: Self::B, mask: u8) -> Self::B;
    /// Byte `i` is `value` where bit `i` of `bits` is set, else 0.
    fn b_bits(self, bits: u32, value: u8) -> Self::B;
    /// Looks each byte (below 16) up in the table.
    fn b_lookup(self, table: &[u8; 16], index: Self::B) -> Self::B;
    /// Sums of four products each: unsigned codes by signed bytes `x >= -127`. `WIDE` allows codes above 127.
    fn b_dot<const WIDE: bool>(self, codes: Self::B, x: Self::B) -> Self::D;
    /// All zero.
    fn g_zero(self) -> Self::G;
    /// The floats that eight half-precision numbers are.
    fn g_f16(self, h: [u16; 8]) -> Self::G;
    /// The floats that eight pairs of half-precision numbers are: the first of each pair, and the second of each.
    fn g_f16_pairs(self, h: [u32; 8]) -> (Self::G, Self::G);
    /// `factor` times each of eight signed bytes.
    fn g_scaled(self, bytes: u64, factor: f32) -> Self::G;
    /// The negated values.
    fn g_neg(self, g: Self::G) -> Self::G;
    /// Writes eight floats.
    unsafe fn g_store(self, p: *mut f32, g: Self::G);
    /// `acc + d * scale[0]`. Reads one float.
    unsafe fn g_mac(self, acc: Self::G, d: Self::D, scale: *const f32) -> Self::G;
    /// `acc + d * scale[0]` in the first four lanes, `scale[1]` in the last four. Reads two floats.
    unsafe fn g_mac2(self, acc: Self::G, d: Self::D, scale: *const f32) -> Self::G;
    /// `a + b`.
    fn g_add(self, a: Self::G, b: Self::G) -> Self::G;
    /// The sum of the eight lanes.
    fn g_reduce(self, g: Self::G) -> f32;
    /// Asks for the cache line at `p`, which need not be valid.
    fn prefetch(self, p: *const u8);
    /// As [`Simd::prefetch`], for a line that will be written.
    fn prefetch_write(self, p: *const u8);
}

#[cfg(test)]
mod tests {
    use super::Isa;

    #[test]
    fn what_is_detected_is_the_last_of_what_is_available() {
        assert_eq!(Isa::available().last(), Some(&Isa::detect()));
        assert_eq!(Isa::available()[0], Isa::Scalar);
    }
}
