//! A panel of block-encoded weights, made in whole 512-bit registers.
//!
//! 64 codes of each of sixteen outputs come into sixteen registers, which a transposition turns into sixteen times four
//! values of each output. Nothing rests in memory between: a core reads slowly as a whole what it has just written in
//! parts.

use super::panel::{MAX_PANEL, Panel};
use crate::arch::avx512_rows::{Rows, Whole, WithWhole, with_whole};
use crate::arch::{Isa, MAX_LANES};
use crate::ops::Weights;
use std::arch::x86_64::*;
use std::ops::Range;
use tranship_dtype::DType;

/// Groups whose scales are made together, and outputs of a vector.
const SIDE: usize = MAX_LANES;

/// Makes a panel of the weight rows `outs`; what is in it past them is left as it was. `false`, and nothing is done, where
/// `isa`, the encoding or the number of outputs ask for another way.
pub(super) fn fill(w: Weights<'_>, isa: Isa, outs: Range<usize>, panel: Panel) -> bool {
    let DType::Block(encoding) = w.dtype() else { return false };
    if !super::gemv::in_whole_registers(isa) || !outs.len().is_multiple_of(SIDE) {
        return false;
    }
    assert!(isa.missing().is_none(), "{isa} is not of this machine");
    assert!(outs.end <= w.outs(), "rows that there are");
    with_whole(encoding, Fill { w, outs, panel })
}

struct Fill<'a> {
    w: Weights<'a>,
    outs: Range<usize>,
    panel: Panel,
}

impl WithWhole for Fill<'_> {
    fn with<P: Whole>(self) {
        for vector in 0..MAX_PANEL / SIDE {
            let first = self.outs.start + vector * SIDE;
            if first >= self.outs.end {
                break;
            }
            let rows = Rows { first: self.w.row_ptr(first), stride: self.w.row_bytes() };
            // SAFETY: sixteen rows of the weights, and a panel that was made for their width; `fill` has asked for the instructions.
            unsafe {
                scales::<P>(rows, self.w.width(), &self.panel, vector);
                codes::<P>(rows, self.w.width(), &self.panel, vector);
            }
        }
    }
}

/// Scales and mins of one vector of outputs.
///
/// # Safety
/// Each of `rows` has `width` values, and the panel was made for that width. The processor has the instructions.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn scales<P: Whole>(rows: Rows, width: usize, panel: &Panel, vector: usize) {
    let groups = width / P::GROUP;
    for group in (0..groups).step_by(SIDE) {
        let held = SIDE.min(groups - group);
        let at = group * P::GROUP / P::LEN * P::BYTES;
        // SAFETY: groups `group .. group + held` of each row.
        let all = unsafe { P::turned_scales(rows.on(at), held) };
        for i in 0..held {
            // SAFETY: group `group + i` of the panel.
            unsafe {
                _mm512_storeu_ps(panel.scale_ptr(group + i, vector, SIDE), all.scale[i]);
                if P::MINS {
                    let min = _mm512_sub_ps(_mm512_setzero_ps(), all.min[i]);
                    _mm512_storeu_ps(panel.low_ptr(group + i, vector, SIDE), min);
                }
            }
        }
    }
}

/// Codes of one vector of outputs, signed where there is a zero point, and then what sums start with.
///
/// # Safety
/// As [`scales`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn codes<P: Whole>(rows: Rows, width: usize, panel: &Panel, vector: usize) {
    let zero = _mm512_set1_epi8(P::ZERO as i32 as u8 as i8);
    // Groups of the steps in which an encoding counts its 64 codes.
    let per_step = 16 * P::GROUP / 64;
    for k in (0..width).step_by(64) {
        let (step, i) = (k / 64 / per_step, k / 64 % per_step);
        let at = step * 16 * P::GROUP / P::LEN * P::BYTES;
        let half = width - k < 64;
        // SAFETY: values `k .. k + 64` of each row, or the 32 that are left.
        let mut quads = unsafe { P::quads(rows.on(at), i, half) };
        if P::ZERO != 0.0 {
            for quad in &mut quads {
                *quad = _mm512_sub_epi8(*quad, zero);
            }
        }
        for (i, quad) in quads.into_iter().enumerate().take(if half { 8 } else { 16 }) {
            // SAFETY: four values deep at `k / 4 + i` of the panel.
            unsafe { _mm512_storeu_si512(panel.codes_ptr(k / 4 + i, vector, SIDE).cast(), quad) };
        }
        if !P::MINS {
            let groups = if half { 32 } else { 64 } / P::GROUP;
            for (g, quads) in quads.chunks_exact(P::GROUP / 4).enumerate().take(groups) {
                let mut sum = _mm512_setzero_si512();
                for quad in quads {
                    // The activations' offset, 128, times the sum of the codes.
                    sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), *quad);
                }
                let start = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
                // SAFETY: a group of the panel.
                unsafe { _mm512_storeu_si512(panel.low_ptr(k / P::GROUP + g, vector, SIDE).cast(), start) };
            }
        }
    }
}
