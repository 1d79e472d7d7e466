//! `rope`: pairs of elements turned by the angles of their row's position, in place.

use super::Out;
use crate::arch::{Isa, Kernel, Simd};
use crate::pool::Share;
use std::ops::Range;
use tranship_program::ops::RopeStyle;

/// Rotates `2 · pairs` elements of each head of each row.
#[derive(Clone, Copy)]
pub(crate) struct Rope<'a> {
    /// `[rows, width]`.
    pub(crate) x: Out<'a>,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) style: RopeStyle,
    /// `[rows, pairs]`, for each row's position.
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
    pub(crate) pairs: usize,
    /// Elements of each head before the rotated ones.
    pub(crate) skip: usize,
    /// Whether angles are negative.
    pub(crate) inverse: bool,
}

impl Rope<'_> {
    /// This thread's share of all heads of all rows.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        let rows = self.x.len() / self.width;
        assert!(
            self.cos.len() >= rows * self.pairs && self.sin.len() >= rows * self.pairs,
            "angles for each row"
        );
        assert!(self.skip + 2 * self.pairs <= self.width / self.heads, "no more pairs than a head has");
        let heads = share.range(rows * self.heads, 1);
        isa.dispatch(Heads { op: *self, heads });
    }
}

struct Heads<'a> {
    op: Rope<'a>,
    heads: Range<usize>,
}

impl Kernel for Heads<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let op = self.op;
        let (dim, pairs) = (op.width / op.heads, op.pairs);
        for head in self.heads {
            let row = head / op.heads;
            // SAFETY: each head of each row belongs to one thread; what is turned lies within it.
            let x = unsafe { op.x.range(head * dim + op.skip..head * dim + op.skip + 2 * pairs) };
            let (cos, sin) = (&op.cos[row * pairs..][..pairs], &op.sin[row * pairs..][..pairs]);
            match (op.style, op.inverse) {
                (RopeStyle::Half, false) => halves::<S, false>(s, x, cos, sin),
                (RopeStyle::Half, true) => halves::<S, true>(s, x, cos, sin),
                (RopeStyle::Interleaved, false) => neighbours(x, cos, sin, 1.0),
                (RopeStyle::Interleaved, true) => neighbours(x, cos, sin, -1.0),
            }
        }
    }
}

/// Element `j` with `j + pairs`.
#[inline(always)]
fn halves<S: Simd, const INVERSE: bool>(s: S, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let pairs = cos.len();
    for at in (0..pairs).step_by(S::LANES) {
        let n = S::LANES.min(pairs - at);
        // SAFETY: `n` values from `at` on are within both halves and both tables.
        unsafe {
            let (first, second) = (x.as_mut_ptr().add(at), x.as_mut_ptr().add(pairs + at));
            let (u, v) = (s.load_part(first, n), s.load_part(second, n));
            let (c, d) = (s.load_part(cos.as_ptr().add(at), n), s.load_part(sin.as_ptr().add(at), n));
            let d = if INVERSE { s.sub(s.splat(0.0), d) } else { d };
            s.store_part(first, s.fnma(v, d, s.mul(u, c)), n);
            s.store_part(second, s.fma(v, c, s.mul(u, d)), n);
        }
    }
}

/// Element `2j` with `2j + 1`. A plain loop, which the compiler turns into shuffles of the same instruction set.
#[inline(always)]
fn neighbours(x: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) {
    for ((pair, c), d) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
        let (u, v, d) = (pair[0], pair[1], sign * d);
        pair[0] = (-v).mul_add(d, u * c);
        pair[1] = v.mul_add(*c, u * d);
    }
}
