//! `iq4_nl` and `iq4_xs`: 4-bit quants that index a fixed table of unevenly spaced levels.
//!
//! `iq4_nl` is `q4_0` with levels. `iq4_xs` has 256 elements in 8 groups of 32. Bytes: F16 `d`, 16 bits with the high
//! two bits of each group's scale, 4 with the low nibbles, 128 of quants; scales have an offset of 32.

use super::f16_at;

/// The levels of a 4-bit quant.
const LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

#[inline(always)]
fn decode_16(d: f32, quants: &[u8], out: &mut [f32; 32]) {
    for (i, q) in quants.iter().enumerate() {
        out[i] = d * LEVELS[usize::from(q & 15)];
        out[i + 16] = d * LEVELS[usize::from(q >> 4)];
    }
}

pub(super) fn decode_iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    decode_16(f16_at(block, 0), &block[2..], out);
}

pub(super) fn decode_iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let (high, low) = (u16::from_le_bytes([block[2], block[3]]), &block[4..8]);
    let quants = block[8..].chunks_exact(16);
    for (group, (quants, out)) in quants.zip(out.as_chunks_mut().0).enumerate() {
        let low = (low[group / 2] >> (group % 2 * 4)) & 15;
        let high = ((high >> (group * 2)) & 3) as u8;
        let scale = (low | high << 4) as i8 - 32;
        decode_16(d * f32::from(scale), quants, out);
    }
}
