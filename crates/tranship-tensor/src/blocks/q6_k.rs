//! `q6_k`: 256 elements in 16 groups of 16. Bytes: 128 of low nibbles, 64 of high bit pairs, 16 signed 8-bit scales,
//! F16 `d`.
//!
//! Each half of 128 elements is four runs of 32. Runs 0 and 1 are the low nibbles of the half's 64 low bytes, runs 2
//! and 3 the high ones; bit pair `r` of the half's 32 high bytes belongs to run `r`. Quants have an offset of 32.

use super::f16_at;

pub(super) fn decode(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = f16_at(block, 208);
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[group] as i8);
        let (half, run, column) = (group / 8, group % 8 / 2, group % 2 * 16);
        let low = &low[half * 64 + run % 2 * 32 + column..][..16];
        let high = &high[half * 32 + column..][..16];
        for ((l, h), x) in low.iter().zip(high).zip(out) {
            let q = (l >> (run / 2 * 4)) & 15 | ((h >> (run * 2)) & 3) << 4;
            *x = scale * f32::from(q as i8 - 32);
        }
    }
}
