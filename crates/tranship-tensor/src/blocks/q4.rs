//! `q4_0` (F16 scale, 4-bit `q - 8`) and `q4_1` (F16 scale and minimum, 4-bit `q`): 32 elements, where byte `i`
//! of the quants holds element `i` in its low and element `i + 16` in its high nibble.

use super::{f16_at, inverse, magnitude, peak, put_f16};

pub(super) fn decode_q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for i in 0..16 {
        let q = block[2 + i];
        out[i] = d * f32::from((q & 15) as i8 - 8);
        out[i + 16] = d * f32::from((q >> 4) as i8 - 8);
    }
}

pub(super) fn decode_q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for i in 0..16 {
        let q = block[4 + i];
        out[i] = (d * f32::from(q & 15)) + m;
        out[i + 16] = (d * f32::from(q >> 4)) + m;
    }
}

/// The element of the largest magnitude becomes -8, exactly.
pub(super) fn encode_q4_0(values: &[f32; 32], block: &mut [u8; 18]) {
    let top = magnitude(values);
    if !top.is_finite() {
        block.fill(0);
        return put_f16(block, 0, f32::NAN);
    }
    let d = peak(values, top) / -8.0;
    let id = inverse(d);
    put_f16(block, 0, d);
    let q = |x: f32| ((x * id + 8.5) as u8).min(15);
    for i in 0..16 {
        block[2 + i] = q(values[i]) | q(values[i + 16]) << 4;
    }
}

/// The range from the smallest to the largest element, in 15 steps.
pub(super) fn encode_q4_1(values: &[f32; 32], block: &mut [u8; 20]) {
    if !magnitude(values).is_finite() {
        block.fill(0);
        return put_f16(block, 0, f32::NAN);
    }
    let (min, max) = extent(values);
    let d = (max - min) / 15.0;
    let id = inverse(d);
    put_f16(block, 0, d);
    put_f16(block, 2, min);
    let q = |x: f32| (((x - min) * id + 0.5) as u8).min(15);
    for i in 0..16 {
        block[4 + i] = q(values[i]) | q(values[i + 16]) << 4;
    }
}

/// The smallest and the largest element.
pub(super) fn extent(values: &[f32; 32]) -> (f32, f32) {
    values.iter().fold((values[0], values[0]), |(min, max), &x| {
        (if x < min { x } else { min }, if x > max { x } else { max })
    })
}
