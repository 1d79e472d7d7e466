//! `conv`: causal convolution over positions, each channel on its own.
//!
//! A unit of work is 64 channels of all rows of a segment. Its weights are turned once, so that channels are lanes; a result
//! is one sum over the taps, the oldest first, and then the bias.

use super::Out;
use super::memory::dealt;
use super::rows::Window;
use crate::arch::{Isa, Kernel, Simd};
use crate::pool::Share;
use crate::scratch::with_scratch;
use std::ops::Range;

/// Channels of a unit of work.
const UNIT: usize = 64;

/// `y[i][c] = Σ_j w[c][j] · x[i − (taps − 1) + j][c] (+ bias[c])`, where rows before the start are zeros.
#[derive(Clone, Copy)]
pub(crate) struct Conv<'a> {
    /// The rows before the step, and the step's.
    pub(crate) x: Window<'a>,
    pub(crate) taps: usize,
    /// `[channels, taps]`.
    pub(crate) w: &'a [f32],
    /// `[channels]`.
    pub(crate) bias: Option<&'a [f32]>,
    /// `[rows, channels]`.
    pub(crate) y: Out<'a>,
}

impl Conv<'_> {
    /// How many units of work there are.
    pub(crate) fn units(&self) -> usize {
        self.x.width.div_ceil(UNIT)
    }

    /// This thread's share of the units, of which the segments before have `first`.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>, first: usize) {
        let channels = self.x.width;
        assert_eq!(self.w.len(), channels * self.taps, "taps for each channel");
        assert!(self.bias.is_none_or(|bias| bias.len() == channels), "a bias for each channel");
        assert_eq!(self.y.len(), self.x.new.len(), "as many rows as the step has");
        with_scratch(UNIT * self.taps, |turned| {
            for unit in dealt(self.units(), first, share) {
                let channels = unit * UNIT..((unit + 1) * UNIT).min(channels);
                for (i, channel) in channels.clone().enumerate() {
                    for tap in 0..self.taps {
                        turned[tap * UNIT + i] = self.w[channel * self.taps + tap];
                    }
                }
                isa.dispatch(Channels { op: self, channels, turned });
            }
        });
    }
}

/// Some channels of all rows.
struct Channels<'a> {
    op: &'a Conv<'a>,
    channels: Range<usize>,
    /// `[taps, UNIT]`.
    turned: &'a [f32],
}

impl Kernel for Channels<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Conv { x, taps, bias, y, .. } = *self.op;
        for row in 0..y.len() / x.width {
            for at in self.channels.clone().step_by(S::LANES) {
                let n = S::LANES.min(self.channels.end - at);
                let turned = &self.turned[at - self.channels.start..];
                let mut sum = s.splat(0.0);
                for tap in 0..taps {
                    let position = (x.position + row + tap) as isize - (taps - 1) as isize;
                    let Some(from) = x.row(position) else { continue };
                    // SAFETY: `n` channels from `at` on are within the row, and within the unit's weights.
                    unsafe {
                        let w = s.load_part(turned[tap * UNIT..].as_ptr(), n);
                        sum = s.fma(w, s.load_part(from[at..at + n].as_ptr(), n), sum);
                    }
                }
                if let Some(bias) = bias {
                    // SAFETY: `n` channels from `at` on.
                    sum = s.add(sum, unsafe { s.load_part(bias[at..at + n].as_ptr(), n) });
                }
                let start = row * x.width + at;
                // SAFETY: these channels of every row are this thread's.
                unsafe { s.store_part(y.range(start..start + n).as_mut_ptr(), sum, n) };
            }
        }
    }
}
