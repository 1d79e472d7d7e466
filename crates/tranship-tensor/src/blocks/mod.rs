//! The block encodings: what each block means in F32, and the quantizers of the simple ones.
//!
//! One file for each family, each with the plain loop over one block. Every product and sum is rounded to F32
//! by itself, in the order given here; this *defines* the values of an encoding, and agrees bit for bit with the
//! `gguf` Python package (which has no decoder for `q8_1` and `q8_k`; these are `d · q`).
//!
//! | encoding | elements | value of an element |
//! |---|---|---|
//! | `q4_0`, `q5_0` | 32 | `d · (q - 8)`, `d · (q - 16)` |
//! | `q4_1`, `q5_1` | 32 | `(d · q) + m` |
//! | `q8_0`, `q8_1`, `q8_k` | 32, 32, 256 | `d · q` |
//! | `q2_k`, `q4_k`, `q5_k` | 256 | `((d · scale) · q) - (dmin · min)` |
//! | `q3_k`, `q6_k` | 256 | `(d · scale) · q`, all signed |
//! | `iq4_nl`, `iq4_xs` | 32, 256 | `d · level[q]`, `(d · scale) · level[q]` |
//! | `mxfp4` | 32 | `(2^(e - 127) / 2) · twice[q]`; `e` = 255 is a power of two like the others |
//!
//! The scales are F16 (F32 for `q8_k`) and may be anything, so values may be infinite or NaN.

mod iq4;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4;
mod q4_k;
mod q5;
mod q6_k;
mod q8;

use half::f16;
use tranship_dtype::Encoding;

/// Decodes whole blocks; `bytes` and `out` have matching lengths.
pub(crate) fn decode(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    use Encoding::*;
    match encoding {
        Q4_0 => each(bytes, out, q4::decode_q4_0),
        Q4_1 => each(bytes, out, q4::decode_q4_1),
        Q5_0 => each(bytes, out, q5::decode_q5_0),
        Q5_1 => each(bytes, out, q5::decode_q5_1),
        Q8_0 => each(bytes, out, q8::decode_q8_0),
        Q8_1 => each(bytes, out, q8::decode_q8_1),
        Q8_K => each(bytes, out, q8::decode_q8_k),
        Q2_K => each(bytes, out, q2_k::decode),
        Q3_K => each(bytes, out, q3_k::decode),
        Q4_K => each(bytes, out, q4_k::decode_q4_k),
        Q5_K => each(bytes, out, q4_k::decode_q5_k),
        Q6_K => each(bytes, out, q6_k::decode),
        IQ4_NL => each(bytes, out, iq4::decode_iq4_nl),
        IQ4_XS => each(bytes, out, iq4::decode_iq4_xs),
        MXFP4 => each(bytes, out, mxfp4::decode),
    }
}

/// Encodes whole blocks; `false` if there is no quantizer for the encoding.
pub(crate) fn encode(encoding: Encoding, values: &[f32], out: &mut [u8]) -> bool {
    use Encoding::*;
    match encoding {
        Q4_0 => each(values, out, q4::encode_q4_0),
        Q4_1 => each(values, out, q4::encode_q4_1),
        Q5_0 => each(values, out, q5::encode_q5_0),
        Q5_1 => each(values, out, q5::encode_q5_1),
        Q8_0 => each(values, out, q8::encode_q8_0),
        Q8_1 => each(values, out, q8::encode_q8_1),
        Q8_K => each(values, out, q8::encode_q8_k),
        Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_NL | IQ4_XS | MXFP4 => return false,
    }
    true
}

/// Whether [`encode`] has a quantizer for the encoding.
pub(crate) fn can_encode(encoding: Encoding) -> bool {
    encode(encoding, &[], &mut [])
}

/// Calls `f` with each block and its place in the output.
#[inline(always)]
fn each<A, B, const N: usize, const M: usize>(from: &[A], to: &mut [B], f: impl Fn(&[A; N], &mut [B; M])) {
    for (a, b) in from.as_chunks::<N>().0.iter().zip(to.as_chunks_mut::<M>().0) {
        f(a, b);
    }
}

/// The F16 at byte `at` of a block, as F32.
#[inline(always)]
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Stores `x`, rounded to F16, at byte `at` of a block.
#[inline(always)]
fn put_f16(block: &mut [u8], at: usize, x: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
}

/// `1 / d`, or 0 for a block that is all zero.
#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The first element of the largest magnitude, which is `top`, with its sign.
#[inline(always)]
fn peak(values: &[f32], top: f32) -> f32 {
    values.iter().copied().find(|x| x.abs() == top).unwrap_or(top)
}

/// The largest magnitude; infinite or NaN if, and only if, some value is.
///
/// The magnitudes of floats are ordered as their bits are, NaN last, and a maximum of integers vectorizes.
#[inline(always)]
fn magnitude(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |top, x| top.max(x.abs().to_bits())))
}
