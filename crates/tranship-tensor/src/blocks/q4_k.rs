//! `q4_k` and `q5_k`: 256 elements in 8 groups of 32. Bytes: F16 `d`, F16 `dmin`, 12 of 6-bit scales and minimums,
//! for `q5_k` 32 of fifth bits, 128 of quants.
//!
//! Each 32 bytes of quants hold two groups, the first in the low nibbles. Bit `g` of fifth-bit byte `l` belongs to
//! element `l` of group `g`.

use super::f16_at;

/// The 6-bit scale and minimum of a group.
///
/// The first four groups have them in the low bits of bytes `g` and `g + 4`. The last four have the nibbles of byte
/// `g + 4`, with their high two bits in those left over in bytes `g - 4` and `g`.
#[inline(always)]
fn scale_and_min(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let low = packed[group + 4];
        (low & 15 | (packed[group - 4] >> 6) << 4, low >> 4 | (packed[group] >> 6) << 4)
    }
}

/// Decodes either encoding, `fifth(group, i)` being the fifth bit of an element, in place.
#[inline(always)]
fn decode(head: &[u8], quants: &[u8], fifth: impl Fn(usize, usize) -> u8, out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(head, 0), f16_at(head, 2));
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&head[4..16], group);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let (first, shift) = (group / 2 * 32, group % 2 * 4);
        for (i, (q, x)) in quants[first..first + 32].iter().zip(out).enumerate() {
            *x = scale * f32::from((q >> shift) & 15 | fifth(group, i)) - min;
        }
    }
}

pub(super) fn decode_q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    decode(&block[..16], &block[16..], |_, _| 0, out);
}

pub(super) fn decode_q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let high = &block[16..48];
    decode(&block[..16], &block[48..], |group, i| ((high[i] >> group) & 1) << 4, out);
}
