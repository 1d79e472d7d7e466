//! The memory that experts work in, made once for a step.

use crate::ops::Out;
use crate::ops::quantize::{BLOCK, QuantizedOut, QuantizedRows};
use std::ops::Range;

/// Pairs of an expert and a row that are done together, unless a step's rows are more: enough to fill the tiles of `linear`.
const PAIRS: usize = 1024;

/// The memory of all `experts` operations of a step, which use it one after the other.
pub(crate) struct ExpertsMemory {
    /// Rows that are run together at the most.
    max_rows: usize,
    /// The list of pairs, see [`Plan`].
    plan: Vec<u32>,
    /// `[pairs, in]`, then `[pairs, out]`.
    wide: Vec<f32>,
    /// Each `[pairs, width]`.
    gate: Vec<f32>,
    up: Vec<f32>,
    /// `[pairs, in]` and `[pairs, width]`.
    input: QuantizedRows,
    hidden: QuantizedRows,
}

/// The sizes of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertsSizes {
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    pub(crate) input: usize,
    pub(crate) width: usize,
    pub(crate) outs: usize,
    /// Whether rows come as 8-bit blocks.
    pub(crate) blocks: bool,
}

/// How many pairs there is room for.
fn pairs(max_rows: usize, top_k: usize) -> usize {
    max_rows.max(max_rows.saturating_mul(top_k).min(PAIRS))
}

impl ExpertsMemory {
    /// Nothing yet, for steps of up to `max_rows` rows.
    pub(crate) fn new(max_rows: usize) -> ExpertsMemory {
        ExpertsMemory {
            max_rows,
            plan: Vec::new(),
            wide: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
            input: QuantizedRows::new(),
            hidden: QuantizedRows::new(),
        }
    }

    /// Makes room for one operation more.
    pub(crate) fn add(&mut self, sizes: &ExpertsSizes) {
        let ExpertsSizes { experts, top_k, input, width, outs, blocks } = *sizes;
        let pairs = pairs(self.max_rows, top_k);
        let grow = |of: &mut Vec<f32>, floats: usize| of.resize(of.len().max(floats), 0.0);
        self.plan.resize(self.plan.len().max(Plan::len(self.max_rows, experts)), 0);
        grow(&mut self.wide, pairs * input.max(outs));
        grow(&mut self.gate, pairs * width);
        grow(&mut self.up, pairs * width);
        if blocks {
            self.input.make_room(pairs, input);
            if width.is_multiple_of(BLOCK) {
                self.hidden.make_room(pairs, width);
            }
        }
    }

    /// The memory as threads share it.
    pub(crate) fn room(&mut self) -> ExpertsRoom<'_> {
        ExpertsRoom {
            max_rows: self.max_rows,
            plan: Out::new(&mut self.plan),
            wide: Out::new(&mut self.wide),
            gate: Out::new(&mut self.gate),
            up: Out::new(&mut self.up),
            input: self.input.out(),
            hidden: self.hidden.out(),
        }
    }
}

/// [`ExpertsMemory`] while threads work in it.
#[derive(Clone, Copy)]
pub(crate) struct ExpertsRoom<'a> {
    max_rows: usize,
    plan: Out<'a, u32>,
    wide: Out<'a>,
    gate: Out<'a>,
    up: Out<'a>,
    pub(super) input: QuantizedOut<'a>,
    pub(super) hidden: QuantizedOut<'a>,
}

/// Rows by expert: those of expert `e` are `rows[starts[e] .. starts[e + 1]]`, in order.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    starts: &'a [u32],
    pub(super) rows: &'a [u32],
}

impl Plan<'_> {
    /// Numbers that a plan takes at the most.
    fn len(rows: usize, experts: usize) -> usize {
        2 * experts + 1 + rows * experts
    }

    /// The pairs of some experts.
    pub(super) fn pairs(&self, experts: Range<usize>) -> Range<usize> {
        self.starts[experts.start] as usize..self.starts[experts.end] as usize
    }
}

impl<'a> ExpertsRoom<'a> {
    /// How many pairs may be done together.
    pub(super) fn pairs(&self, rows: usize, top_k: usize) -> usize {
        assert!(rows <= self.max_rows, "{rows} rows in memory for {}", self.max_rows);
        pairs(self.max_rows, top_k)
    }

    /// Lists the pairs whose weight is not 0, of `r` `[rows, experts]`.
    ///
    /// # Safety
    /// Nobody else has the plan.
    pub(super) unsafe fn fill_plan(&self, r: &[f32], experts: usize) {
        let rows = r.len() / experts;
        // SAFETY: the caller's.
        let all = unsafe { self.plan.range(0..Plan::len(rows, experts)) };
        let (starts, all) = all.split_at_mut(experts + 1);
        let (next, list) = all.split_at_mut(experts);
        next.fill(0);
        for r in r.chunks_exact(experts) {
            next.iter_mut().zip(r).for_each(|(count, r)| *count += u32::from(*r != 0.0));
        }
        starts[0] = 0;
        for expert in 0..experts {
            starts[expert + 1] = starts[expert] + next[expert];
            next[expert] = starts[expert];
        }
        for (row, r) in r.chunks_exact(experts).enumerate() {
            for (next, _) in next.iter_mut().zip(r).filter(|(_, r)| **r != 0.0) {
                list[*next as usize] = row as u32;
                *next += 1;
            }
        }
    }

    /// The list.
    ///
    /// # Safety
    /// Nobody writes it as long as it is used.
    pub(super) unsafe fn plan(&self, rows: usize, experts: usize) -> Plan<'a> {
        let len = Plan::len(rows, experts);
        assert!(len <= self.plan.len(), "{len} numbers in a plan of {}", self.plan.len());
        // SAFETY: in bounds; the caller's word for the rest.
        let all: &[u32] = unsafe { std::slice::from_raw_parts(self.plan.ptr(), len) };
        Plan { starts: &all[..=experts], rows: &all[2 * experts + 1..] }
    }

    /// The first floats for inputs and results of experts.
    ///
    /// # Safety
    /// As of the memory itself: [`Out::range`].
    pub(super) unsafe fn wide(&self, floats: usize) -> Out<'a> {
        // SAFETY: the caller's.
        unsafe { first(self.wide, floats) }
    }

    /// The first floats for gates.
    ///
    /// # Safety
    /// As [`ExpertsRoom::wide`].
    pub(super) unsafe fn gate(&self, floats: usize) -> Out<'a> {
        // SAFETY: the caller's.
        unsafe { first(self.gate, floats) }
    }

    /// The first floats for what is gated.
    ///
    /// # Safety
    /// As [`ExpertsRoom::wide`].
    pub(super) unsafe fn up(&self, floats: usize) -> Out<'a> {
        // SAFETY: the caller's.
        unsafe { first(self.up, floats) }
    }
}

/// The first floats of a piece of memory.
///
/// # Safety
/// As [`Out::range`].
unsafe fn first(of: Out<'_>, floats: usize) -> Out<'_> {
    assert!(floats <= of.len(), "{floats} floats in memory for {}", of.len());
    // SAFETY: in bounds; the caller's word for the rest.
    unsafe { Out::from_raw(of.ptr(), floats) }
}
