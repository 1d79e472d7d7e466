//! `q3_k`: 256 elements in 16 groups of 16. Bytes: 32 of high bits, 64 of low bits, 12 of 6-bit scales, F16 `d`.
//!
//! The low bits lie as in `q2_k`. Bit `k` of high-bit byte `l` belongs to element `32 k + l`, and *clear* means
//! minus 4. Scale `i` has its low four bits in nibble `i / 8` of byte `i % 8`, its high two in bits `2 (i / 4)` of
//! byte `8 + i % 4`, and an offset of 32.

use super::f16_at;

/// The signed 6-bit scale of a group.
fn scale(scales: &[u8], group: usize) -> i8 {
    let low = (scales[group % 8] >> (group / 8 * 4)) & 15;
    let high = (scales[8 + group % 4] >> (group / 4 * 2)) & 3;
    (low | high << 4) as i8 - 32
}

pub(super) fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, low, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = f16_at(block, 108);
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scale(scales, group));
        let (column, bit) = (group % 2 * 16, group / 2);
        let (first, shift) = (group / 8 * 32 + column, group % 8 / 2 * 2);
        for (i, x) in out.iter_mut().enumerate() {
            let q = ((low[first + i] >> shift) & 3) as i8;
            let four = (!(high[column + i] >> bit) & 1) as i8 * 4;
            *x = scale * f32::from(q - four);
        }
    }
}
