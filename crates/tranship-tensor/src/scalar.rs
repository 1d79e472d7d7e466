//! The scalar floats between F32 and their stored bytes, little-endian, whole slices at a time.

use crate::{TensorError, small_float as sf};
use half::{bf16, f16, slice::HalfFloatSliceExt};
use tranship_dtype::DType;

/// Elements converted at a time where a conversion goes through a buffer.
const CHUNK: usize = 64;

pub(crate) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    let mut halves = [f16::ZERO; CHUNK];
    for (bytes, out) in bytes.chunks(2 * CHUNK).zip(out.chunks_mut(CHUNK)) {
        let halves = &mut halves[..out.len()];
        for (h, b) in halves.iter_mut().zip(bytes.as_chunks().0) {
            *h = f16::from_le_bytes(*b);
        }
        halves.convert_to_f32_slice(out);
    }
}

pub(crate) fn encode_f16(values: &[f32], out: &mut [u8]) {
    let mut halves = [f16::ZERO; CHUNK];
    for (values, out) in values.chunks(CHUNK).zip(out.chunks_mut(2 * CHUNK)) {
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        for (h, b) in halves.iter().zip(out.as_chunks_mut().0) {
            *b = h.to_le_bytes();
        }
    }
}

pub(crate) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (b, x) in bytes.as_chunks().0.iter().zip(out) {
        *x = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
    }
}

pub(crate) fn encode_bf16(values: &[f32], out: &mut [u8]) {
    for (x, b) in values.iter().zip(out.as_chunks_mut().0) {
        *b = bf16::from_f32(*x).to_le_bytes();
    }
}

pub(crate) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (b, x) in bytes.as_chunks().0.iter().zip(out) {
        *x = f32::from_le_bytes(*b);
    }
}

pub(crate) fn encode_f32(values: &[f32], out: &mut [u8]) {
    for (x, b) in values.iter().zip(out.as_chunks_mut().0) {
        *b = x.to_le_bytes();
    }
}

pub(crate) fn decode_f64(bytes: &[u8], out: &mut [f32]) {
    for (b, x) in bytes.as_chunks().0.iter().zip(out) {
        *x = f64::from_le_bytes(*b) as f32;
    }
}

pub(crate) fn encode_f64(values: &[f32], out: &mut [u8]) {
    for (x, b) in values.iter().zip(out.as_chunks_mut().0) {
        *b = f64::from(*x).to_le_bytes();
    }
}

/// F64 to F32 *to odd*: an inexact result has its last bit set, so that a second rounding, to nearest and at
/// least two bits shorter, gives what one rounding of the F64 would have given.
pub(crate) fn decode_f64_to_odd(bytes: &[u8], out: &mut [f32]) {
    for (b, x) in bytes.as_chunks().0.iter().zip(out) {
        let wide = f64::from_le_bytes(*b);
        let near = wide as f32;
        let back = f64::from(near);
        *x = if wide.is_nan() || back == wide {
            near
        } else {
            let truncated = near.to_bits() - (back.abs() > wide.abs()) as u32;
            f32::from_bits(truncated | 1)
        };
    }
}

/// Decodes a float that takes one byte.
fn bytes_to_f32(table: &[f32; 256], bytes: &[u8], out: &mut [f32]) {
    for (b, x) in bytes.iter().zip(out) {
        *x = table[usize::from(*b)];
    }
}

/// Decodes two 4-bit floats of each byte, the low nibble first.
fn nibbles_to_f32(table: &[f32; 16], bytes: &[u8], out: &mut [f32]) {
    for (b, x) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
        *x = [table[usize::from(b & 15)], table[usize::from(b >> 4)]];
    }
}

/// Decodes four 6-bit floats of each three bytes, the lowest bits first.
fn sextets_to_f32(table: &[f32; 64], bytes: &[u8], out: &mut [f32]) {
    for (b, x) in bytes.as_chunks::<3>().0.iter().zip(out.as_chunks_mut::<4>().0) {
        let word = u32::from_le_bytes([b[0], b[1], b[2], 0]);
        *x = std::array::from_fn(|i| table[(word >> (6 * i)) as usize & 63]);
    }
}

/// Decodes the 4-, 6- and 8-bit floats; `false` if `dtype` is none of them.
pub(crate) fn decode_small(dtype: DType, bytes: &[u8], out: &mut [f32]) -> bool {
    static E4M3: [f32; 256] = sf::F8E4M3.table();
    static E5M2: [f32; 256] = sf::F8E5M2.table();
    static E8M0: [f32; 256] = sf::F8E8M0.table();
    static E2M3: [f32; 64] = sf::F6E2M3.table();
    static E3M2: [f32; 64] = sf::F6E3M2.table();
    static E2M1: [f32; 16] = sf::F4E2M1.table();
    match dtype {
        DType::F8E4M3 => bytes_to_f32(&E4M3, bytes, out),
        DType::F8E5M2 => bytes_to_f32(&E5M2, bytes, out),
        DType::F8E8M0 => bytes_to_f32(&E8M0, bytes, out),
        DType::F6E2M3 => sextets_to_f32(&E2M3, bytes, out),
        DType::F6E3M2 => sextets_to_f32(&E3M2, bytes, out),
        DType::F4E2M1 => nibbles_to_f32(&E2M1, bytes, out),
        _ => return false,
    }
    true
}

/// Encodes groups of `N` values, whose codes `pack` puts into `B` bytes.
#[inline(always)]
fn encode_groups<const N: usize, const B: usize>(
    to: DType,
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(f32) -> Option<u8>,
    pack: impl Fn([u8; N]) -> [u8; B],
) -> Result<(), TensorError> {
    let groups = values.as_chunks::<N>().0.iter().zip(out.as_chunks_mut::<B>().0);
    for (group, (values, out)) in groups.enumerate() {
        let mut codes = [0; N];
        for (i, x) in values.iter().enumerate() {
            codes[i] = encode(*x).ok_or(TensorError::NoNan { to, index: group * N + i })?;
        }
        *out = pack(codes);
    }
    Ok(())
}

/// Encodes to the 4-, 6- and 8-bit floats; `None` if `dtype` is none of them.
pub(crate) fn encode_small(dtype: DType, values: &[f32], out: &mut [u8]) -> Option<Result<(), TensorError>> {
    let one = |codes: [u8; 1]| codes;
    let two = |[low, high]: [u8; 2]| [low | high << 4];
    let four = |codes: [u8; 4]| {
        let word = (0..4).fold(0, |word, i| word | u32::from(codes[i]) << (6 * i));
        let [a, b, c, _] = word.to_le_bytes();
        [a, b, c]
    };
    Some(match dtype {
        DType::F8E4M3 => encode_groups(dtype, values, out, |x| sf::F8E4M3.encode(x), one),
        DType::F8E5M2 => encode_groups(dtype, values, out, |x| sf::F8E5M2.encode(x), one),
        DType::F8E8M0 => encode_groups(dtype, values, out, |x| sf::F8E8M0.encode(x), one),
        DType::F6E2M3 => encode_groups(dtype, values, out, |x| sf::F6E2M3.encode(x), four),
        DType::F6E3M2 => encode_groups(dtype, values, out, |x| sf::F6E3M2.encode(x), four),
        DType::F4E2M1 => encode_groups(dtype, values, out, |x| sf::F4E2M1.encode(x), two),
        _ => return None,
    })
}
