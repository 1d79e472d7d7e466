//! Block encodings as kernels see them: unsigned 8-bit codes in groups, with scales.
//!
//! Each value of a block is `scale · (code − ZERO)` or, where the encoding has [`Blocks::MINS`], `scale · code − min`.
//! A type that implements [`Blocks`] says how 32 codes at a time come out of a block's bytes into one register, and
//! how the scales do. That is the only place where an encoding's bits are known: the vector kernel along a row, the
//! panels of the matrix kernel and the exact decoding to F32 are all made from it.

mod k_quants;
mod small;
mod tables;

pub(crate) use k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K, Q8K};
pub(crate) use small::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1};
pub(crate) use tables::{Iq4Nl, Iq4Xs, Mxfp4};
#[cfg(target_arch = "x86_64")]
pub(crate) use {
    k_quants::{q3_k_scales, six_bit_pairs},
    tables::{E2M1, IQ4, iq4_xs_scales},
};

use crate::arch::{MAX_LANES, Simd};

/// An encoding; see the module's introduction.
pub(crate) trait Blocks: Copy + Send + Sync {
    /// Values of a block.
    const LEN: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Values that share a scale: 16 or 32.
    const GROUP: usize;
    /// What is subtracted from codes; 0 with [`Blocks::MINS`].
    const ZERO: u8 = 0;
    /// Whether each group has a minimum of its own; codes are then below 32.
    const MINS: bool = false;
    /// Whether codes go above 127, or codes less `ZERO` beyond ±64.
    const WIDE: bool = false;
    /// Whether scales have at most 22 significant bits.
    const SHORT_SCALES: bool = true;

    /// Gives the codes of a block, 32 at a time in order, to `visit` under the numbers `first`, `first + 1`, ….
    ///
    /// # Safety
    /// `block` has [`Blocks::BYTES`] readable bytes.
    unsafe fn codes<S: Simd, V: Visit<S>>(s: S, block: *const u8, first: usize, visit: &mut V);

    /// Writes the scale of each group of `n` blocks and, with [`Blocks::MINS`], its min.
    ///
    /// # Safety
    /// `blocks` has `n` blocks; `scale` and `min` have room for their groups, rounded up to
    /// [`crate::arch::MAX_LANES`]. What is written past the groups is 0.
    unsafe fn scales<S: Simd>(s: S, blocks: *const u8, n: usize, scale: *mut f32, min: *mut f32);
}

/// What is done with codes.
pub(crate) trait Visit<S: Simd> {
    /// Takes the 32 codes number `i`.
    ///
    /// # Safety
    /// `i` is within what the visitor was made for.
    unsafe fn group(&mut self, s: S, i: usize, codes: S::B);
}

/// Work that is generic over the encoding.
pub(crate) trait WithBlocks {
    /// What the work gives.
    type Out;
    /// Does the work for one encoding.
    fn with<E: Blocks>(self, encoding: E) -> Self::Out;
}

/// Does `work` for `encoding`: the one match over encodings.
pub(crate) fn with_blocks<W: WithBlocks>(encoding: tranship_dtype::Encoding, work: W) -> W::Out {
    use tranship_dtype::Encoding as E;
    match encoding {
        E::Q4_0 => work.with(Q4_0),
        E::Q4_1 => work.with(Q4_1),
        E::Q5_0 => work.with(Q5_0),
        E::Q5_1 => work.with(Q5_1),
        E::Q8_0 => work.with(Q8_0),
        E::Q8_1 => work.with(Q8_1),
        E::Q2_K => work.with(Q2K),
        E::Q3_K => work.with(Q3K),
        E::Q4_K => work.with(Q4K),
        E::Q5_K => work.with(Q5K),
        E::Q6_K => work.with(Q6K),
        E::Q8_K => work.with(Q8K),
        E::IQ4_NL => work.with(Iq4Nl),
        E::IQ4_XS => work.with(Iq4Xs),
        E::MXFP4 => work.with(Mxfp4),
    }
}

/// Writes codes to memory, 32 bytes each.
pub(crate) struct StoreCodes(pub(crate) *mut u8);

impl<S: Simd> Visit<S> for StoreCodes {
    #[inline(always)]
    unsafe fn group(&mut self, s: S, i: usize, codes: S::B) {
        // SAFETY: whoever made the visitor gave it room for every number that it will be asked for.
        unsafe { s.b_store(self.0.add(i * 32), codes) }
    }
}

/// Decodes `n` blocks to F32, to the bit as the encoding is defined: `scale` and `code` are exact, so is their product
/// (or it is rounded once, as the definition does).
///
/// # Safety
/// `blocks` has `n` readable blocks, `out` room for their values.
#[inline(always)]
pub(crate) unsafe fn decode_blocks<E: Blocks, S: Simd>(s: S, blocks: *const u8, n: usize, out: *mut f32) {
    let mut codes = [0u8; 256];
    let (mut scale, mut min) = ([0f32; 16], [0f32; 16]);
    for b in 0..n {
        // SAFETY: block `b` of `n`; the three arrays hold the codes and scales of the longest block.
        unsafe {
            let block = blocks.add(b * E::BYTES);
            E::codes(s, block, 0, &mut StoreCodes(codes.as_mut_ptr()));
            E::scales(s, block, 1, scale.as_mut_ptr(), min.as_mut_ptr());
        }
        for g in 0..E::LEN / E::GROUP {
            for i in g * E::GROUP..(g + 1) * E::GROUP {
                let value = if E::MINS {
                    scale[g] * f32::from(codes[i]) - min[g]
                } else {
                    scale[g] * (f32::from(codes[i]) - f32::from(E::ZERO))
                };
                // SAFETY: value `i` of block `b`.
                unsafe { out.add(b * E::LEN + i).write_unaligned(value) };
            }
        }
    }
}

/// Writes zeros from `n` up to the next multiple of [`MAX_LANES`].
///
/// # Safety
/// There is room up to there.
#[inline(always)]
unsafe fn pad<S: Simd>(s: S, p: *mut f32, n: usize) {
    let end = n.next_multiple_of(MAX_LANES);
    let mut at = n;
    // SAFETY: the caller's; the last vector ends where the room does.
    unsafe {
        while at + 8 <= end {
            s.g_store(p.add(at), s.g_zero());
            at += 8;
        }
        while at < end {
            p.add(at).write(0.0);
            at += 1;
        }
    }
}

/// Reads a 16-bit word at any alignment.
///
/// # Safety
/// Two bytes at `p` are readable.
#[inline(always)]
unsafe fn word(p: *const u8) -> u16 {
    // SAFETY: the caller's.
    unsafe { p.cast::<u16>().read_unaligned() }
}

/// Reads a 32-bit word at any alignment.
///
/// # Safety
/// Four bytes at `p` are readable.
#[inline(always)]
unsafe fn dword(p: *const u8) -> u32 {
    // SAFETY: the caller's.
    unsafe { p.cast::<u32>().read_unaligned() }
}
