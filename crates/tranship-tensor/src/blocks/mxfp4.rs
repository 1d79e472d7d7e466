//! `mxfp4`: 32 elements of F4E2M1 under a shared F8E8M0 exponent byte, quants laid out as in `q4_0`.
//!
//! The elements are taken twice as large, so that they are integers, and the scale half as large. The code for
//! minus zero decodes to plus zero, and exponent 255 to a power of two, where the OCP format has NaN.

/// Twice the value of each F4E2M1 code.
const TWICE: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// `2^(e - 128)`, subnormal for `e` below 2.
fn half_scale(e: u8) -> f32 {
    let bits = if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 };
    f32::from_bits(bits)
}

pub(super) fn decode(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = half_scale(block[0]);
    for (i, q) in block[1..].iter().enumerate() {
        out[i] = d * TWICE[usize::from(q & 15)];
        out[i + 16] = d * TWICE[usize::from(q >> 4)];
    }
}
