//! `route` and `route_by_table`: which experts a row goes to, and with what weights.
//!
//! Logits are one `linear` in F32, whose sums depend on nothing but the row. The rest is a row's own, on one thread.

use super::exp::exp;
use super::functions::{sigmoid, softplus};
use super::linear_f32::LinearF32;
use super::{Epilogue, Out, Weights};
use crate::arch::{Isa, Kernel, Simd};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use std::ops::Range;
use tranship_program::ops::{self, Groups, RouteBias, Score};

/// The weight of each expert of a row: 0 for those that it does not go to.
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    /// `[rows, in]`.
    pub(crate) x: &'a [f32],
    /// `[experts, in]`.
    pub(crate) w: Weights<'a>,
    /// `[experts]`, where `route` says what it is added to.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) route: &'a ops::Route,
    /// The experts of each token, where they are not chosen by score.
    pub(crate) table: Option<Table<'a>>,
    /// `[rows, experts]`; not where `x` is.
    pub(crate) y: Out<'a>,
}

/// Experts by token.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    /// `[vocab, top_k]`, whole numbers as floats.
    pub(crate) experts: &'a [f32],
    /// The token of each row.
    pub(crate) tokens: &'a [u32],
}

impl Route<'_> {
    /// Floats of scratch for `experts`.
    fn scratch(experts: usize) -> usize {
        3 * piece(experts)
    }

    /// This thread's share: of the logits, and behind a barrier of the rows. Every thread must call this.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        let experts = self.w.outs();
        let bias = self.bias.filter(|_| self.route.bias == Some(RouteBias::Logits));
        LinearF32::new(self.x, self.w, Epilogue { bias, add: false }, self.y).part(isa, share);
        share.barrier();
        let rows = share.range(self.y.len() / experts, 1);
        with_scratch(Route::scratch(experts), |scratch| {
            let mut pieces = Pieces(scratch);
            let [score, chosen, open] = [(); 3].map(|()| &mut pieces.take(experts)[..experts]);
            isa.dispatch(Rows { op: self, rows, score, chosen, open });
        });
    }
}

struct Rows<'a> {
    op: &'a Route<'a>,
    rows: Range<usize>,
    /// The scores that the choice is by; how often each is chosen; the groups' scores. Each `[experts]`.
    score: &'a mut [f32],
    chosen: &'a mut [f32],
    open: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Rows { op, rows, score, chosen, open } = self;
        let experts = score.len();
        for row in rows {
            // SAFETY: each row belongs to one thread.
            let y = unsafe { op.y.range(row * experts..(row + 1) * experts) };
            scores(s, op.route.score, y);
            chosen.fill(0.0);
            match op.table {
                Some(table) => table.choose(row, op.route.top_k as usize, chosen),
                None => {
                    score.copy_from_slice(y);
                    if let Some(bias) = op.bias.filter(|_| op.route.bias == Some(RouteBias::Choice)) {
                        score.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
                    }
                    if let Some(groups) = op.route.groups {
                        close(groups, score, open);
                    }
                    best(op.route.top_k as usize, score, chosen);
                }
            }
            weigh(op.route, y, chosen);
        }
    }
}

impl Table<'_> {
    /// Counts the experts of the row's token. The batch was held to the table's rows; its entries are held to the experts here.
    fn choose(&self, row: usize, top_k: usize, chosen: &mut [f32]) {
        for expert in &self.experts[self.tokens[row] as usize * top_k..][..top_k] {
            if let Some(chosen) = chosen.get_mut(*expert as usize) {
                *chosen += 1.0;
            }
        }
    }
}

/// Turns logits into scores.
#[inline(always)]
fn scores<S: Simd>(s: S, score: Score, x: &mut [f32]) {
    let map = |x: &mut [f32], f: &dyn Fn(S::F) -> S::F| {
        for at in (0..x.len()).step_by(S::LANES) {
            let n = S::LANES.min(x.len() - at);
            // SAFETY: `n` values from `at` on are within `x`.
            unsafe {
                let p = x.as_mut_ptr().add(at);
                s.store_part(p, f(s.load_part(p, n)), n);
            }
        }
    };
    match score {
        Score::Sigmoid => map(x, &|v| sigmoid(s, v)),
        Score::SqrtSoftplus => {
            map(x, &|v| softplus(s, v));
            x.iter_mut().for_each(|v| *v = v.sqrt());
        }
        Score::Softmax => {
            let most = x.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
            map(x, &|v| exp(s, s.sub(v, s.splat(most))));
            // In F64, so that the order is of no account to the last bit that is kept, and the same everywhere.
            let sum: f64 = x.iter().map(|v| f64::from(*v)).sum();
            x.iter_mut().for_each(|v| *v = (f64::from(*v) / sum) as f32);
        }
    }
}

/// Takes the experts of all but the best groups out of the choice.
fn close(groups: Groups, score: &mut [f32], open: &mut [f32]) {
    let (count, size) = (groups.groups as usize, score.len() / groups.groups as usize);
    let open = &mut open[..count];
    for (group, of) in score.chunks_exact(size).zip(&mut *open) {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for v in group {
            if *v > first {
                (first, second) = (*v, first);
            } else if *v > second {
                second = *v;
            }
        }
        *of = if groups.by_max || size == 1 { first } else { first + second };
    }
    for _ in 0..groups.top_groups {
        // Taken groups are marked by NaN, which is above nothing.
        open[greatest(open)] = f32::NAN;
    }
    for (group, of) in score.chunks_exact_mut(size).zip(open) {
        if !of.is_nan() {
            group.fill(f32::NAN);
        }
    }
}

/// Marks the `top_k` greatest scores, of equal ones the earlier.
fn best(top_k: usize, score: &mut [f32], chosen: &mut [f32]) {
    for _ in 0..top_k {
        let expert = greatest(score);
        chosen[expert] = 1.0;
        score[expert] = f32::NAN;
    }
}

/// Where the greatest number is, the first of equal ones; where there is none, the first place.
fn greatest(values: &[f32]) -> usize {
    let mut at = 0;
    for (i, v) in values.iter().enumerate() {
        if *v > values[at] || values[at].is_nan() && !v.is_nan() {
            at = i;
        }
    }
    at
}

/// Turns scores into weights: those of the chosen, as often as each is, and 0.
fn weigh(route: &ops::Route, y: &mut [f32], chosen: &[f32]) {
    let mut factor = route.scale;
    if route.normalize {
        let of = |(y, chosen): (&f32, &f32)| {
            if *chosen > 0.0 { f64::from(*y) * f64::from(*chosen) } else { 0.0 }
        };
        factor /= y.iter().zip(chosen).map(of).sum::<f64>() + route.eps;
    }
    for (y, chosen) in y.iter_mut().zip(chosen) {
        *y = if *chosen > 0.0 { (f64::from(*y) * f64::from(*chosen) * factor) as f32 } else { 0.0 };
    }
}
