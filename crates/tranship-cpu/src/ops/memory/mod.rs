//! Operations that advance a memory row by row: `gated_delta` and `decayed_linear` in [`outer`], `state_space` here; and
//! `log_decay`, which makes the gates of the first.
//!
//! All are strictly recurrent: a row is taken in, then its result is read, then comes the next. So a step of many rows
//! does the same additions in the same order as many steps of one, and has the same bits. Parts of a memory that do not
//! meet are shared over the threads: heads, columns of values, rows of a state space.
//!
//! The work is that of one segment. Its units are dealt in turn over the threads, from `first` on: the number of units that
//! the segments before it have.

mod outer;
mod state_space;

pub(crate) use outer::{DecayedLinear, GatedDelta};
pub(crate) use state_space::StateSpace;

use super::Out;
use super::elementwise::{round_bf16, round_f16};
use super::functions::softplus;
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use std::ops::Range;
use tranship_dtype::DType;
use tranship_program::ops::DecayForm;

/// The negated rate of each of `width` columns, which belong to as many heads as `a` has values.
pub(crate) fn negative_rates(a: &[f32], form: DecayForm, width: usize) -> Vec<f32> {
    let dim = width / a.len();
    (0..width).map(|column| -form.rate(f64::from(a[column / dim])) as f32).collect()
}

/// The numbers of this thread's units of `units`, when those before have `first`.
pub(super) fn dealt(units: usize, first: usize, share: Share<'_>) -> impl Iterator<Item = usize> {
    let start = (share.index() + share.of() - first % share.of()) % share.of();
    (start..units).step_by(share.of())
}

/// A vector rounded to `dtype`.
#[inline(always)]
fn rounded<S: Simd>(s: S, v: S::F, dtype: DType) -> S::F {
    let mut values = [0.0; MAX_LANES];
    // SAFETY: there is room for the widest vector.
    unsafe { s.store(values.as_mut_ptr(), v) };
    match dtype {
        DType::F16 => values.iter_mut().for_each(|v| *v = round_f16(*v)),
        DType::BF16 => values.iter_mut().for_each(|v| *v = round_bf16(*v)),
        _ => return v,
    }
    // SAFETY: as above.
    unsafe { s.load(values.as_ptr()) }
}

/// `y = rate · softplus(x + bias)`, where the rate is the negated one.
#[derive(Clone, Copy)]
pub(crate) struct LogDecay<'a> {
    /// `[rows, width]`.
    pub(crate) x: &'a [f32],
    /// `[width]`: see [`negative_rates`].
    pub(crate) rate: &'a [f32],
    /// `[width]`.
    pub(crate) bias: &'a [f32],
    /// `[rows, width]`; may be where `x` is.
    pub(crate) y: Out<'a>,
}

impl LogDecay<'_> {
    /// This thread's share of the elements.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        assert_eq!(self.rate.len(), self.bias.len(), "a rate and a bias for each column");
        assert_eq!(self.x.len(), self.y.len(), "as many values out as in");
        isa.dispatch(Decays { op: *self, range: share.range(self.x.len(), MAX_LANES) });
    }
}

struct Decays<'a> {
    op: LogDecay<'a>,
    range: Range<usize>,
}

impl Kernel for Decays<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LogDecay { x, rate, bias, y } = self.op;
        let (width, mut at) = (bias.len(), self.range.start);
        while at < self.range.end {
            let column = at % width;
            let n = (width - column).min(self.range.end - at).min(S::LANES);
            // SAFETY: `n` values from `at` on are within `x` and `y`, of this thread, and of one row.
            unsafe {
                let v = s.add(s.load_part(x[at..].as_ptr(), n), s.load_part(bias[column..].as_ptr(), n));
                let decay = s.mul(s.load_part(rate[column..].as_ptr(), n), softplus(s, v));
                s.store_part(y.ptr().add(at), decay, n);
            }
            at += n;
        }
    }
}

#[cfg(test)]
mod tests;
