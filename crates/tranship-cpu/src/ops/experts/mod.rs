//! `experts`: the feed-forward parts that rows are routed to, weighted and added.
//!
//! Rows are grouped by expert: a list of pairs of an expert and a row, expert after expert. Each expert then is two or three
//! matrices by the rows that it has, with the kernels of `linear`; weights of experts that have none are not touched. An
//! expert with one row, as in decoding, reads that row where it lies. Results are added to a row's sum in the order
//! of experts, so that it does not depend on the other rows; and since neither do the sums of `linear` in F32, nothing does.
//!
//! What lies between is in memory that is made once for a step, [`ExpertsMemory`]. It has room for some pairs; where a step
//! has more, experts are taken in batches, each of whole experts.

mod act;
mod room;

pub(crate) use room::{ExpertsMemory, ExpertsRoom, ExpertsSizes};

use super::linear_f32::LinearF32;
use super::linear_quant::LinearQuant;
use super::quantize::{BLOCK, BlockRows, Quantize, QuantizedOut, QuantizedRows};
use super::{Epilogue, Out, Weights};
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use act::Act;
use room::Plan;
use std::ops::Range;
use tranship_dtype::DType;
use tranship_program::ops;

/// The matrices of experts, each where it lies.
pub(crate) trait Bank: Sync {
    /// `[width, in]`; there is one for each expert, or for none.
    fn gate(&self, expert: usize) -> Option<Weights<'_>>;
    /// `[width, in]`.
    fn up(&self, expert: usize) -> Weights<'_>;
    /// `[out, width]`.
    fn down(&self, expert: usize) -> Weights<'_>;
}

/// Biases of all experts.
#[derive(Clone, Copy)]
pub(crate) struct Biases<'a> {
    /// `[experts, width]`.
    pub(crate) gate: &'a [f32],
    /// `[experts, width]`.
    pub(crate) up: &'a [f32],
    /// `[experts, out]`.
    pub(crate) down: &'a [f32],
}

/// Rows that experts are given.
#[derive(Clone, Copy)]
pub(crate) enum X<'a> {
    /// `[rows, in]`.
    Floats(&'a [f32]),
    /// `[rows, in]`; what meets `down` is rounded to blocks too.
    Blocks(&'a QuantizedRows),
}

/// `y[i] = Σ_e r[i][e] · down_e · act(gate_e · x[i], up_e · x[i])`, over the experts with `r[i][e] ≠ 0`.
#[derive(Clone, Copy)]
pub(crate) struct Experts<'a> {
    pub(crate) x: X<'a>,
    /// `[rows, experts]`.
    pub(crate) r: &'a [f32],
    pub(crate) experts: usize,
    pub(crate) op: &'a ops::Experts,
    pub(crate) bank: &'a dyn Bank,
    pub(crate) biases: Option<Biases<'a>>,
    pub(crate) room: ExpertsRoom<'a>,
    /// `[rows, out]`; not where `x` is.
    pub(crate) y: Out<'a>,
}

/// The sizes that matrices say.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    input: usize,
    width: usize,
    outs: usize,
}

/// One batch: whole experts, whose pairs have room together.
struct Batch<'a> {
    of: &'a Experts<'a>,
    sizes: Sizes,
    plan: Plan<'a>,
    experts: Range<usize>,
    /// The pairs of these experts.
    pairs: Range<usize>,
}

impl Experts<'_> {
    /// This thread's share of everything, with barriers between. Every thread must call this, and another barrier must lie
    /// before the next use of the same room.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        let (up, down) = (self.bank.up(0), self.bank.down(0));
        let rows = self.r.len() / self.experts;
        let sizes = Sizes { rows, input: up.width(), width: up.outs(), outs: down.outs() };
        let x = match self.x {
            X::Floats(x) => x.len(),
            X::Blocks(x) => x.rows() * x.width(),
        };
        assert!(x == rows * sizes.input && self.y.len() == rows * sizes.outs, "rows in and rows out");
        if share.index() == 0 {
            // SAFETY: the other threads wait below.
            unsafe { self.room.fill_plan(self.r, self.experts) };
        }
        let columns = share.range(sizes.outs, MAX_LANES);
        for row in 0..rows {
            let start = row * sizes.outs;
            // SAFETY: these columns of every row are this thread's.
            unsafe { self.y.range(start + columns.start..start + columns.end).fill(0.0) };
        }
        share.barrier();
        // SAFETY: nobody writes the plan until all have passed the barrier behind this op.
        let plan = unsafe { self.room.plan(rows, self.experts) };
        let (mut expert, most) = (0, self.room.pairs(rows, self.op.top_k as usize));
        while expert < self.experts {
            let from = expert;
            expert += 1;
            while expert < self.experts && plan.pairs(from..expert + 1).len() <= most {
                expert += 1;
            }
            let pairs = plan.pairs(from..expert);
            if pairs.is_empty() {
                continue;
            }
            if pairs.start > 0 {
                // The batch before has been added up.
                share.barrier();
            }
            let batch = Batch { of: self, sizes, plan, experts: from..expert, pairs };
            batch.run(isa, share, columns.clone());
        }
    }
}

impl Batch<'_> {
    fn run(&self, isa: Isa, share: Share<'_>, columns: Range<usize>) {
        let (of, n) = (self.of, self.pairs.len());
        let Sizes { rows, width, outs, .. } = self.sizes;
        if rows > 1 || self.widened() {
            self.gather(share);
            share.barrier();
        }
        // SAFETY: each of these is used in turn, with barriers between writing and reading.
        let (wide, gate, up) =
            unsafe { (of.room.wide(n * outs), of.room.gate(n * width), of.room.up(n * width)) };
        self.each(|expert, pairs| self.project(isa, share, expert, pairs, gate, up));
        share.barrier();
        let blocks = matches!(of.x, X::Blocks(_)) && width.is_multiple_of(BLOCK);
        let hidden = of.room.hidden.shaped(width);
        self.act(isa, share, gate, up, blocks.then_some(hidden));
        share.barrier();
        self.each(|expert, pairs| {
            let down = of.bank.down(expert);
            let bias = of.biases.map(|biases| &biases.down[expert * outs..(expert + 1) * outs]);
            let epilogue = Epilogue { bias, add: false };
            // SAFETY: the results of these pairs; what is read was written before the barrier.
            unsafe {
                let y = part(wide, &pairs, outs);
                if blocks && matches!(down.dtype(), DType::Block(_)) {
                    let x = hidden.view(n).some(pairs.start, 1, pairs.len());
                    LinearQuant::strided(x, down, epilogue, y, outs).part(isa, share);
                } else {
                    LinearF32::new(floats(gate, &pairs, width), down, epilogue, y).part(isa, share);
                }
            }
        });
        share.barrier();
        isa.dispatch(Combine { batch: self, wide, columns });
    }

    /// Calls `f` with each expert that has pairs, and with these, counted from the batch's first.
    fn each(&self, mut f: impl FnMut(usize, Range<usize>)) {
        for expert in self.experts.clone() {
            let pairs = self.plan.pairs(expert..expert + 1);
            if !pairs.is_empty() {
                f(expert, pairs.start - self.pairs.start..pairs.end - self.pairs.start);
            }
        }
    }

    /// Whether rows come as blocks and meet weights that are none.
    fn widened(&self) -> bool {
        let plain = |w: Weights<'_>| !matches!(w.dtype(), DType::Block(_));
        let bank = self.of.bank;
        matches!(self.of.x, X::Blocks(_)) && (plain(bank.up(0)) || bank.gate(0).is_some_and(plain))
    }

    /// Puts the rows of each expert side by side: this thread's share.
    fn gather(&self, share: Share<'_>) {
        let (of, input, widened) = (self.of, self.sizes.input, self.widened());
        // SAFETY: each pair belongs to one thread.
        let wide = unsafe { of.room.wide(self.pairs.len() * input) };
        let blocks = of.room.input.shaped(input);
        self.each(|_, pairs| {
            if pairs.len() == 1 && !widened {
                return;
            }
            for pair in pairs.filter(|pair| pair % share.of() == share.index()) {
                let row = self.row(pair);
                // SAFETY: as above.
                unsafe {
                    let to = wide.range(pair * input..(pair + 1) * input);
                    match of.x {
                        X::Floats(x) => to.copy_from_slice(&x[row * input..(row + 1) * input]),
                        X::Blocks(x) if widened => x.decode_row(row, to),
                        X::Blocks(_) => {}
                    }
                    if let X::Blocks(x) = of.x {
                        blocks.copy_row(&x.view(), row, pair);
                    }
                }
            }
        });
    }

    /// The row of a pair, counted from the batch's first.
    fn row(&self, pair: usize) -> usize {
        self.plan.rows[self.pairs.start + pair] as usize
    }

    /// An expert's rows by its gate and by `up`: this thread's share of the outputs.
    fn project(
        &self,
        isa: Isa,
        share: Share<'_>,
        expert: usize,
        pairs: Range<usize>,
        gate: Out<'_>,
        up: Out<'_>,
    ) {
        let (of, Sizes { input, width, .. }) = (self.of, self.sizes);
        let own = expert * width..(expert + 1) * width;
        let gates = of.bank.gate(expert).map(|w| (w, of.biases.map(|b| &b.gate[own.clone()]), gate));
        let ups = (of.bank.up(expert), of.biases.map(|b| &b.up[own.clone()]), up);
        for (w, bias, y) in gates.into_iter().chain([ups]) {
            let epilogue = Epilogue { bias, add: false };
            // SAFETY: the results of these pairs; rows were put together before the last barrier.
            let y = unsafe { part(y, &pairs, width) };
            if let Some(x) = self.blocks(&pairs).filter(|_| matches!(w.dtype(), DType::Block(_))) {
                LinearQuant::strided(x, w, epilogue, y, width).part(isa, share);
                continue;
            }
            let x = match of.x {
                X::Floats(x) if pairs.len() == 1 => &x[self.row(pairs.start) * input..][..input],
                // SAFETY: as above.
                _ => unsafe { floats(of.room.wide(self.pairs.len() * input), &pairs, input) },
            };
            LinearF32::new(x, w, epilogue, y).part(isa, share);
        }
    }

    /// The rows of some pairs of one expert as blocks, where rows come so.
    fn blocks(&self, pairs: &Range<usize>) -> Option<BlockRows<'_>> {
        let X::Blocks(x) = self.of.x else { return None };
        if pairs.len() == 1 {
            return Some(x.view().some(self.row(pairs.start), 1, 1));
        }
        // SAFETY: rows were put together before the last barrier.
        let all = unsafe { self.of.room.input.shaped(self.sizes.input).view(self.pairs.len()) };
        Some(all.some(pairs.start, 1, pairs.len()))
    }

    /// What is between the projections, in the place of the gate: this thread's share of the elements. With `hidden`, it is
    /// rounded to blocks there.
    fn act(&self, isa: Isa, share: Share<'_>, gate: Out<'_>, up: Out<'_>, hidden: Option<QuantizedOut<'_>>) {
        let (all, width) = (gate.len(), self.sizes.width);
        let own = share.range(all, MAX_LANES);
        // SAFETY: these elements are this thread's; both were written before the barrier.
        unsafe {
            let (gate, up) = (gate.range(own.clone()), up.range(own));
            isa.dispatch(Act { op: self.of.op, gate, up });
        }
        let Some(out) = hidden else { return };
        share.barrier();
        // SAFETY: written before the barrier, and not again before the next.
        let x = unsafe { floats(gate, &(0..all / width), width) };
        Quantize { x, out }.part(isa, share);
        if matches!(self.of.bank.down(0).dtype(), DType::Block(_)) {
            return;
        }
        // What blocks stand for meets weights that are none.
        share.barrier();
        for row in share.range(all / width, 1) {
            // SAFETY: blocks were written before the barrier; each row belongs to one thread.
            unsafe { out.view(all / width).decode_row(row, gate.range(row * width..(row + 1) * width)) };
        }
    }
}

/// The results of some pairs.
///
/// # Safety
/// As [`Out::range`].
unsafe fn part<'a>(of: Out<'a>, pairs: &Range<usize>, width: usize) -> Out<'a> {
    assert!(pairs.end * width <= of.len(), "room for all pairs");
    // SAFETY: within `of`; the rest is the caller's.
    unsafe { Out::from_raw(of.ptr().add(pairs.start * width), pairs.len() * width) }
}

/// The rows of some pairs.
///
/// # Safety
/// Nobody writes them as long as they are used.
unsafe fn floats<'a>(of: Out<'a>, pairs: &Range<usize>, width: usize) -> &'a [f32] {
    // SAFETY: the caller's.
    unsafe {
        let part = part(of, pairs, width);
        std::slice::from_raw_parts(part.ptr(), part.len())
    }
}

/// Adds what the experts of a batch give to the rows, expert after expert: some columns.
struct Combine<'a> {
    batch: &'a Batch<'a>,
    wide: Out<'a>,
    columns: Range<usize>,
}

impl Kernel for Combine<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Combine { batch, wide, columns } = self;
        let (of, outs) = (batch.of, batch.sizes.outs);
        for expert in batch.experts.clone() {
            let pairs = batch.plan.pairs(expert..expert + 1);
            for pair in pairs.start - batch.pairs.start..pairs.end - batch.pairs.start {
                let row = batch.row(pair);
                let weight = s.splat(of.r[row * of.experts + expert]);
                // SAFETY: these columns are this thread's; the experts' results were written before the barrier.
                let (x, y) = unsafe {
                    let of_row = |row: usize| row * outs + columns.start..row * outs + columns.end;
                    (&*wide.range(of_row(pair)), of.y.range(of_row(row)))
                };
                for at in (0..y.len()).step_by(S::LANES) {
                    let n = S::LANES.min(y.len() - at);
                    // SAFETY: `n` values from `at` on are within both.
                    unsafe {
                        let p = y.as_mut_ptr().add(at);
                        let x = s.load_part(x.as_ptr().add(at), n);
                        s.store_part(p, s.fma(weight, x, s.load_part(p, n)), n);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
