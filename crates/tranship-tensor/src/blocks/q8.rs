//! The 8-bit encodings: `q8_0` (F16 scale), `q8_1` (F16 scale `d` and F16 `s = d · Σq`), both of 32 elements, and
//! `q8_k` (F32 scale, and the sums of each 16 quants as 16-bit integers) of 256.
//!
//! `q8_1` and `q8_k` are meant for activations: their sums are what an integer dot product against an encoding
//! with minimums needs. They take no part in decoding.

use super::{f16_at, inverse, magnitude, peak, put_f16};

fn decode_quants(d: f32, quants: &[u8], out: &mut [f32]) {
    for (q, x) in quants.iter().zip(out) {
        *x = d * f32::from(*q as i8);
    }
}

pub(super) fn decode_q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    decode_quants(f16_at(block, 0), &block[2..], out);
}

pub(super) fn decode_q8_1(block: &[u8; 36], out: &mut [f32; 32]) {
    decode_quants(f16_at(block, 0), &block[4..], out);
}

pub(super) fn decode_q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    decode_quants(d, &block[4..260], out);
}

/// The integer nearest to `x`, ties away from zero, within ±127. (`f32::round` is a call on baseline x86-64.)
#[inline(always)]
fn nearest(x: f32) -> i32 {
    let x = x.clamp(-127.0, 127.0);
    let whole = x as i32;
    let rest = x - whole as f32;
    whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)
}

/// Writes the quants of 32 values, the largest magnitude `top` becoming ±127; gives `d` and `Σq`.
#[inline(always)]
fn quantize_32(values: &[f32; 32], top: f32, quants: &mut [u8]) -> (f32, i32) {
    let d = top / 127.0;
    let id = inverse(d);
    let q = values.map(|x| nearest(x * id));
    for (q, byte) in q.iter().zip(quants) {
        *byte = *q as u8;
    }
    (d, q.iter().sum())
}

pub(super) fn encode_q8_0(values: &[f32; 32], block: &mut [u8; 34]) {
    let top = magnitude(values);
    if !top.is_finite() {
        block.fill(0);
        return put_f16(block, 0, f32::NAN);
    }
    let (d, _) = quantize_32(values, top, &mut block[2..]);
    put_f16(block, 0, d);
}

pub(super) fn encode_q8_1(values: &[f32; 32], block: &mut [u8; 36]) {
    let top = magnitude(values);
    if !top.is_finite() {
        block.fill(0);
        put_f16(block, 2, f32::NAN);
        return put_f16(block, 0, f32::NAN);
    }
    let (d, sum) = quantize_32(values, top, &mut block[4..]);
    put_f16(block, 0, d);
    put_f16(block, 2, sum as f32 * d);
}

/// The element of the largest magnitude becomes -127, exactly; ties to even.
pub(super) fn encode_q8_k(values: &[f32; 256], block: &mut [u8; 292]) {
    block.fill(0);
    let top = magnitude(values);
    if !top.is_finite() {
        return block[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    }
    let scale = -127.0 / peak(values, top);
    if !scale.is_finite() {
        // All zero, or so small that the scale is out of range: the block is zero.
        return;
    }
    // Adding and taking away 1.5 · 2^23 rounds to an integer, ties to even.
    const ROUND: f32 = 12_582_912.0;
    block[..4].copy_from_slice(&(1.0 / scale).to_le_bytes());
    for (group, values) in values.as_chunks::<16>().0.iter().enumerate() {
        let q = values.map(|x| ((scale * x + ROUND) - ROUND).min(127.0) as i16);
        for (i, q) in q.iter().enumerate() {
            block[4 + group * 16 + i] = *q as u8;
        }
        let sum: i16 = q.iter().sum();
        block[260 + 2 * group..262 + 2 * group].copy_from_slice(&sum.to_le_bytes());
    }
}
