//! `q5_0` (F16 scale, 5-bit `q - 16`) and `q5_1` (F16 scale and minimum, 5-bit `q`): 32 elements, low bits as in
//! `q4_0`, bit `i` of a 32-bit word being the fifth bit of element `i`.

use super::{f16_at, inverse, magnitude, peak, put_f16, q4::extent};

/// The quant of element `i`, from the word of fifth bits and the bytes of low bits.
#[inline(always)]
fn quant(high: u32, low: &[u8], i: usize) -> u8 {
    let nibble = if i < 16 { low[i] & 15 } else { low[i - 16] >> 4 };
    nibble | (((high >> i) & 1) as u8) << 4
}

/// Packs 32 five-bit quants into the word of fifth bits and the bytes of low bits.
fn pack(block: &mut [u8], q: impl Fn(usize) -> u8) {
    let mut high = 0u32;
    for i in 0..16 {
        let (a, b) = (q(i), q(i + 16));
        high |= u32::from(a >> 4) << i | u32::from(b >> 4) << (i + 16);
        block[4 + i] = (a & 15) | b << 4;
    }
    block[..4].copy_from_slice(&high.to_le_bytes());
}

fn high_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

pub(super) fn decode_q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let (d, high) = (f16_at(block, 0), high_bits(block, 2));
    for (i, x) in out.iter_mut().enumerate() {
        *x = d * f32::from(quant(high, &block[6..], i) as i8 - 16);
    }
}

pub(super) fn decode_q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m, high) = (f16_at(block, 0), f16_at(block, 2), high_bits(block, 4));
    for (i, x) in out.iter_mut().enumerate() {
        *x = (d * f32::from(quant(high, &block[8..], i))) + m;
    }
}

/// The element of the largest magnitude becomes -16, exactly.
pub(super) fn encode_q5_0(values: &[f32; 32], block: &mut [u8; 22]) {
    let top = magnitude(values);
    if !top.is_finite() {
        block.fill(0);
        return put_f16(block, 0, f32::NAN);
    }
    let d = peak(values, top) / -16.0;
    let id = inverse(d);
    put_f16(block, 0, d);
    pack(&mut block[2..], |i| ((values[i] * id + 16.5) as u8).min(31));
}

/// The range from the smallest to the largest element, in 31 steps.
pub(super) fn encode_q5_1(values: &[f32; 32], block: &mut [u8; 24]) {
    if !magnitude(values).is_finite() {
        block.fill(0);
        return put_f16(block, 0, f32::NAN);
    }
    let (min, max) = extent(values);
    let d = (max - min) / 31.0;
    let id = inverse(d);
    put_f16(block, 0, d);
    put_f16(block, 2, min);
    pack(&mut block[4..], |i| (((values[i] - min) * id + 0.5) as u8).min(31));
}
