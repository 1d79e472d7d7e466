//! Several residual streams: their gates, and what gates do between the streams and one row.
//!
//! The gates are a few dozen numbers for a row: they are made in F64, in plain loops, and so are the same on every
//! instruction set.

use super::Out;
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use crate::scratch::with_scratch;
use std::ops::Range;

/// `stream_gates`: see [`tranship_program::ops::StreamGates`].
#[derive(Clone, Copy)]
pub(crate) struct StreamGates<'a> {
    /// `[rows, (2 + streams) · streams]`, or `[rows, streams]`.
    pub(crate) h: &'a [f32],
    /// As wide as `h`.
    pub(crate) base: &'a [f32],
    /// `[3]`, or `[1]` with the narrow `h`.
    pub(crate) scale: &'a [f32],
    pub(crate) streams: usize,
    pub(crate) iterations: usize,
    pub(crate) eps: f64,
    /// As `h`; may be where it is.
    pub(crate) y: Out<'a>,
}

impl StreamGates<'_> {
    /// This thread's share of the rows.
    pub(crate) fn part(&self, share: Share<'_>) {
        let (width, streams) = (self.base.len(), self.streams);
        let whole = self.scale.len() == 3 && width == (2 + streams) * streams;
        assert!(whole || self.scale.len() == 1 && width == streams, "gates, and a factor for each kind");
        assert_eq!(self.h.len(), self.y.len(), "as many values out as in");
        // Two floats of scratch are one of F64.
        with_scratch(2 * streams * streams, |mix| {
            let mix = &mut bytemuck::cast_slice_mut::<f32, f64>(mix)[..streams * streams];
            for row in share.range(self.h.len() / width, 1) {
                // SAFETY: each row belongs to one thread.
                let y = unsafe { self.y.range(row * width..(row + 1) * width) };
                self.row(&self.h[row * width..(row + 1) * width], mix, y);
            }
        });
    }

    fn row(&self, h: &[f32], mix: &mut [f64], y: &mut [f32]) {
        let streams = self.streams;
        let gate =
            |kind: usize, i: usize| f64::from(self.scale[kind]) * f64::from(h[i]) + f64::from(self.base[i]);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        if self.scale.len() == 3 {
            for (i, mix) in mix.iter_mut().enumerate() {
                *mix = gate(2, 2 * streams + i);
            }
            self.mix(mix);
        }
        for i in 0..streams {
            y[i] = (sigmoid(gate(0, i)) + self.eps) as f32;
        }
        if self.scale.len() == 3 {
            for i in streams..2 * streams {
                y[i] = (2.0 * sigmoid(gate(1, i))) as f32;
            }
            for (y, mix) in y[2 * streams..].iter_mut().zip(mix) {
                *y = *mix as f32;
            }
        }
    }

    /// Makes of logits a matrix whose rows and columns add to about 1.
    fn mix(&self, mix: &mut [f64]) {
        let streams = self.streams;
        for row in mix.chunks_exact_mut(streams) {
            // NaN is kept: a value that is lost shows.
            let most = row.iter().fold(f64::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
            row.iter_mut().for_each(|v| *v = (*v - most).exp());
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|v| *v = *v / sum + self.eps);
        }
        for iteration in 0..self.iterations {
            if iteration > 0 {
                for row in mix.chunks_exact_mut(streams) {
                    let sum: f64 = row.iter().sum();
                    row.iter_mut().for_each(|v| *v /= sum + self.eps);
                }
            }
            for column in 0..streams {
                let sum: f64 = mix[column..].iter().step_by(streams).sum();
                mix[column..].iter_mut().step_by(streams).for_each(|v| *v /= sum + self.eps);
            }
        }
    }
}

/// `y = Σ_s pre[s] · x[s]`.
#[derive(Clone, Copy)]
pub(crate) struct StreamCollapse<'a> {
    /// `[rows, streams · hidden]`.
    pub(crate) x: &'a [f32],
    /// `[rows, gate_cols]`, those for collapsing first.
    pub(crate) gates: &'a [f32],
    pub(crate) gate_cols: usize,
    pub(crate) streams: usize,
    /// `[rows, hidden]`.
    pub(crate) y: Out<'a>,
}

impl StreamCollapse<'_> {
    /// This thread's share of the elements.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        assert_eq!(self.x.len(), self.y.len() * self.streams, "as many streams as there are");
        isa.dispatch(Collapse { op: *self, range: share.range(self.y.len(), MAX_LANES) });
    }
}

struct Collapse<'a> {
    op: StreamCollapse<'a>,
    range: Range<usize>,
}

impl Kernel for Collapse<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let StreamCollapse { x, gates, gate_cols, streams, y } = self.op;
        let hidden = y.len() / (gates.len() / gate_cols);
        pieces(self.range, hidden, S::LANES, |row, column, n| {
            let gates = &gates[row * gate_cols..][..streams];
            let mut sum = s.splat(0.0);
            for (stream, gate) in gates.iter().enumerate() {
                let x = &x[(row * streams + stream) * hidden + column..][..n];
                // SAFETY: `n` values are there.
                sum = s.fma(s.splat(*gate), unsafe { s.load_part(x.as_ptr(), n) }, sum);
            }
            // SAFETY: this piece of the row is this thread's.
            unsafe {
                s.store_part(y.range(row * hidden + column..row * hidden + column + n).as_mut_ptr(), sum, n)
            };
        });
    }
}

/// `out[s] = post[s] · y + Σ_t mix[t][s] · x[t]`.
#[derive(Clone, Copy)]
pub(crate) struct StreamExpand<'a> {
    /// `[rows, streams · hidden]`.
    pub(crate) x: &'a [f32],
    /// `[rows, hidden]`.
    pub(crate) y: &'a [f32],
    /// `[rows, (2 + streams) · streams]`.
    pub(crate) gates: &'a [f32],
    pub(crate) streams: usize,
    /// As `x`; not where it is.
    pub(crate) out: Out<'a>,
}

impl StreamExpand<'_> {
    /// This thread's share of the elements of `y`, each with all streams.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        assert!(self.x.len() == self.y.len() * self.streams && self.out.len() == self.x.len(), "all streams");
        isa.dispatch(Expand { op: *self, range: share.range(self.y.len(), MAX_LANES) });
    }
}

struct Expand<'a> {
    op: StreamExpand<'a>,
    range: Range<usize>,
}

impl Kernel for Expand<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let StreamExpand { x, y, gates, streams, out } = self.op;
        let cols = (2 + streams) * streams;
        let hidden = y.len() / (gates.len() / cols);
        pieces(self.range, hidden, S::LANES, |row, column, n| {
            let (_, gates) = gates[row * cols..(row + 1) * cols].split_at(streams);
            let (post, mix) = gates.split_at(streams);
            let at = |stream: usize| (row * streams + stream) * hidden + column;
            // SAFETY: `n` values are there.
            let y = unsafe { s.load_part(y[row * hidden + column..][..n].as_ptr(), n) };
            for stream in 0..streams {
                let mut sum = s.mul(s.splat(post[stream]), y);
                for from in 0..streams {
                    let x = &x[at(from)..][..n];
                    // SAFETY: as above.
                    let x = unsafe { s.load_part(x.as_ptr(), n) };
                    sum = s.fma(s.splat(mix[from * streams + stream]), x, sum);
                }
                // SAFETY: these columns of each stream are this thread's.
                unsafe { s.store_part(out.range(at(stream)..at(stream) + n).as_mut_ptr(), sum, n) };
            }
        });
    }
}

/// Gives `f` the row, the column and the length of each vector of the elements `range` of rows of `width`.
#[inline(always)]
fn pieces(range: Range<usize>, width: usize, lanes: usize, mut f: impl FnMut(usize, usize, usize)) {
    let mut at = range.start;
    while at < range.end {
        let (row, column) = (at / width, at % width);
        let n = lanes.min(width - column).min(range.end - at);
        f(row, column, n);
        at += n;
    }
}
