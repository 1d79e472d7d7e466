//! The state-space step of Mamba-2.
//!
//! A memory has a row of the state for each element of a head. Rows do not meet, so that four of them go side by side over
//! the state; each result is one vector of sums along it, whose lanes are added in a fixed order.

use super::{dealt, rounded};
use crate::arch::{Isa, Kernel, Simd};
use crate::ops::Out;
use crate::ops::exp::exp;
use crate::pool::Share;
use tranship_dtype::DType;

/// Elements of a head that are a unit of work: a cache line of results.
const UNIT: usize = 16;
/// Rows of the memory that go side by side.
const SIDE: usize = 4;

/// `s ← exp(rate · dt) · s + dt · x ⊗ b`, `y = s c + d · x`, row by row, where the rate is the negated one.
#[derive(Clone, Copy)]
pub(crate) struct StateSpace<'a> {
    /// `[heads, head_dim, state_dim]`.
    pub(crate) state: Out<'a>,
    /// What the memory is rounded to after each row.
    pub(crate) dtype: DType,
    pub(crate) heads: usize,
    /// Divides `heads`.
    pub(crate) groups: usize,
    pub(crate) head_dim: usize,
    pub(crate) state_dim: usize,
    /// `[rows, heads · head_dim]`.
    pub(crate) x: &'a [f32],
    /// `[rows, groups · state_dim]`, as is `c`.
    pub(crate) b: &'a [f32],
    pub(crate) c: &'a [f32],
    /// `[rows, heads]`.
    pub(crate) dt: &'a [f32],
    /// `[heads]`: see [`super::negative_rates`].
    pub(crate) rate: &'a [f32],
    /// `[heads]`.
    pub(crate) d: &'a [f32],
    /// `[rows, heads · head_dim]`.
    pub(crate) y: Out<'a>,
}

impl StateSpace<'_> {
    /// How many units of work there are.
    pub(crate) fn units(&self) -> usize {
        self.heads * self.head_dim.div_ceil(UNIT)
    }

    /// This thread's share of the units.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>, first: usize) {
        let StateSpace { heads, groups, head_dim, state_dim, .. } = *self;
        let rows = self.x.len() / (heads * head_dim);
        assert!(heads.is_multiple_of(groups), "{groups} groups of {heads} heads");
        assert_eq!(self.state.len(), heads * head_dim * state_dim, "the memory's size");
        assert_eq!(self.y.len(), self.x.len(), "as many values out as in");
        assert!(self.x.len() == rows * heads * head_dim && self.dt.len() == rows * heads, "rows of inputs");
        let sized = self.b.len() == rows * groups * state_dim && self.c.len() == self.b.len();
        assert!(sized, "rows of what goes into the state and out of it");
        assert!(self.rate.len() == heads && self.d.len() == heads, "a rate and a factor for each head");
        for unit in dealt(self.units(), first, share) {
            isa.dispatch(Unit { op: self, rows, unit });
        }
    }
}

/// Some elements of a head, by all rows.
struct Unit<'a> {
    op: &'a StateSpace<'a>,
    rows: usize,
    unit: usize,
}

impl Kernel for Unit<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let op = self.op;
        let StateSpace { heads, groups, head_dim, state_dim, .. } = *op;
        let blocks = head_dim.div_ceil(UNIT);
        let (head, block) = (self.unit / blocks, self.unit % blocks);
        let elements = block * UNIT..((block + 1) * UNIT).min(head_dim);
        for row in 0..self.rows {
            let dt = op.dt[row * heads + head];
            let group = (row * groups + head / (heads / groups)) * state_dim;
            let at = Row {
                decay: s.reduce_max(exp(s, s.splat(op.rate[head] * dt))),
                b: &op.b[group..group + state_dim],
                c: &op.c[group..group + state_dim],
                dtype: op.dtype,
            };
            let mut element = elements.start;
            while element < elements.end {
                let held = SIDE.min(elements.end - element);
                let result = (row * heads + head) * head_dim + element;
                let x = &op.x[result..result + held];
                let from = (head * head_dim + element) * state_dim;
                // SAFETY: these rows of the memory and these results are this thread's.
                let (m, y) = unsafe {
                    (op.state.range(from..from + held * state_dim), op.y.range(result..result + held))
                };
                if held == SIDE {
                    at.advance::<S, SIDE>(s, m, x, dt, op.d[head], y);
                } else {
                    for i in 0..held {
                        let m = &mut m[i * state_dim..(i + 1) * state_dim];
                        at.advance::<S, 1>(s, m, &x[i..=i], dt, op.d[head], &mut y[i..=i]);
                    }
                }
                element += held;
            }
        }
    }
}

/// What a row of inputs does to a head.
struct Row<'a> {
    decay: f32,
    b: &'a [f32],
    c: &'a [f32],
    dtype: DType,
}

impl Row<'_> {
    /// Advances `M` rows of the memory; gives their results.
    #[inline(always)]
    fn advance<S: Simd, const M: usize>(
        &self,
        s: S,
        memory: &mut [f32],
        x: &[f32],
        dt: f32,
        d: f32,
        y: &mut [f32],
    ) {
        let state = self.b.len();
        assert!(memory.len() == M * state && x.len() == M && y.len() == M && self.c.len() == state);
        let decay = s.splat(self.decay);
        let (mut inputs, mut sums) = ([s.splat(0.0); M], [s.splat(0.0); SIDE]);
        for i in 0..M {
            inputs[i] = s.splat(dt * x[i]);
        }
        let narrow = self.dtype != DType::F32;
        for at in (0..state).step_by(S::LANES) {
            let n = S::LANES.min(state - at);
            // SAFETY: `n` values from `at` on are within `b`, `c` and each of `M` rows of the memory.
            unsafe {
                let b = s.load_part(self.b.as_ptr().add(at), n);
                let c = s.load_part(self.c.as_ptr().add(at), n);
                for i in 0..M {
                    let p = memory.as_mut_ptr().add(i * state + at);
                    let mut m = s.fma(inputs[i], b, s.mul(decay, s.load_part(p, n)));
                    if narrow {
                        m = rounded(s, m, self.dtype);
                    }
                    s.store_part(p, m, n);
                    sums[i] = s.fma(m, c, sums[i]);
                }
            }
        }
        let sums = s.reduce_add4(sums);
        for i in 0..M {
            y[i] = sums[i] + d * x[i];
        }
    }
}
