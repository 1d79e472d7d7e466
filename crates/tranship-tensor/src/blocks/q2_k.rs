//! `q2_k`: 256 elements in 16 groups of 16. Bytes: 16 of scales (low nibble) and minimums (high), 64 of quants,
//! F16 `d`, F16 `dmin`.
//!
//! Each half of 128 elements has 32 bytes of quants; byte `l` holds elements `l`, `l + 32`, `l + 64`, `l + 96` of
//! the half, two bits each, lowest first.

use super::f16_at;

pub(super) fn decode(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[group] & 15);
        let min = dmin * f32::from(scales[group] >> 4);
        let (first, shift) = (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2);
        for (q, x) in quants[first..first + 16].iter().zip(out) {
            *x = scale * f32::from((q >> shift) & 3) - min;
        }
    }
}
