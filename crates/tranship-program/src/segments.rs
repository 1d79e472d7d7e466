//! Where a carried tensor may be cut, so that several holders of one sequence have a share of it each.
//!
//! The walk goes against the flow of a graph. Of each value it keeps how its columns may be dealt out, so that a holder
//! computes its share of everything after it from its share of the value alone, up to where holders exchange rows of the
//! step: the sum of a product with a matrix, of which each has the terms of its own columns, and the results of an
//! operation over heads, of which each has those of its own heads. Each operation says what it asks of an operand's
//! columns ([`Op::columns`]); a tensor asks of what is written to it what its readers ask of the tensor.
//!
//! Columns that some operation mixes are asked for whole, and a tensor of which any are is at every holder whole: who has
//! all columns has any share of them. So nothing is lost where readers do not agree, and a cut is never wrong.
//!
//! Of a run of equal units, the share of holder `i` of `N` are the units `i · count / N` up to `(i + 1) · count / N`. Two
//! readers whose units differ in size agree on every number of holders that divides both counts, if their runs are of
//! the same columns, and on none otherwise. This is also why a query head may be of the key head `⌊h / (heads /
//! key_heads)⌋` and not of `h mod key_heads`: shares of the first lie together, and `tile`, which makes the second, asks
//! for all columns.

use crate::graph::{Action, Graph, ValueId};
use crate::{Dim, Op};
use std::collections::{BTreeMap, BTreeSet};

/// Equal units side by side, that a cut may fall between: heads, groups, channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// How many.
    pub count: u64,
    /// Places on the axis that each of them takes.
    pub size: u64,
}

/// Where a carried tensor may be cut: one of its axes is runs of units, of each of which every holder has as many.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Segments {
    /// The axis, counted from 0.
    pub axis: usize,
    /// Its runs, in their order; together they are as long as the axis.
    pub runs: Vec<Run>,
}

/// What an operation asks of an operand's columns, for its result to be dealt out. A memory that it advances is asked for
/// by its first axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// Column by column: each of the result is of the same one, or, of an operand with a number for each of so many equal
    /// parts, of the number of its part.
    Each,
    /// As [`Columns::Each`], but that columns are mixed within so many equal parts.
    Parts(u64),
    /// So many equal parts, each of which is a head that the operation goes over by itself.
    Heads(u64),
    /// Of each of `heads` equal parts, the columns `from .. to`, and no other ones.
    Slice {
        /// Parts of a row.
        heads: u64,
        /// The first column of each.
        from: u64,
        /// The column after the last.
        to: u64,
    },
    /// Column by column, of both halves: each of the result is of two.
    Halves,
    /// Columns are the terms of a sum.
    Sum,
    /// All are mixed.
    All,
}

impl Segments {
    /// The most holders that can have a share each; a number of holders divides it, or the cut would break a unit.
    pub fn most(&self) -> u64 {
        self.runs.iter().fold(0, |most, run| gcd(most, run.count))
    }
}

impl Graph {
    /// The carried tensors that may be cut, and where. Each other one is at every holder whole.
    pub fn segments(&self) -> BTreeMap<ValueId, Segments> {
        let mut walk = Walk::over(self);
        walk.settle();
        while walk.fill() {
            walk.settle();
        }
        let mut found = walk.found();
        while walk.settle() {
            found = walk.found();
        }
        found
    }
}

/// Columns that are asked for as a run of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    start: u64,
    len: u64,
    /// The columns of a unit; divides `len`.
    size: u64,
}

/// How the columns of a value may be dealt out.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cut {
    /// These runs, by where they start, as they are; columns between them in any way.
    Runs(Vec<Held>),
    /// Not at all: a holder needs every column.
    Whole,
}

impl Held {
    fn count(self) -> u64 {
        self.len / self.size
    }

    fn end(self) -> u64 {
        self.start + self.len
    }

    /// The run in units of whole parts `part` columns wide; none where it does not consist of such.
    fn aligned(self, part: u64) -> Option<Held> {
        let whole = self.start.is_multiple_of(part) && self.len.is_multiple_of(part);
        let count = gcd(self.count(), self.len / part);
        whole.then(|| Held { size: self.len / count, ..self })
    }

    /// The run where every `from` columns are `to` columns; `from` divides its numbers.
    fn scaled(self, from: u64, to: u64) -> Held {
        let scale = |columns: u64| columns / from * to;
        Held { start: scale(self.start), len: scale(self.len), size: scale(self.size) }
    }
}

impl Cut {
    const FREE: Cut = Cut::Runs(Vec::new());

    /// Each run changed; whole if one cannot be.
    fn map(&self, change: impl Fn(Held) -> Option<Held>) -> Cut {
        match self {
            Cut::Whole => Cut::Whole,
            Cut::Runs(runs) => {
                let changed: Option<Vec<Held>> = runs.iter().map(|&run| change(run)).collect();
                changed.map_or(Cut::Whole, Cut::Runs)
            }
        }
    }

    /// What serves both: runs of the same columns in units that both can be dealt out by.
    fn meet(&self, other: &Cut) -> Cut {
        let (Cut::Runs(a), Cut::Runs(b)) = (self, other) else { return Cut::Whole };
        let mut all: Vec<Held> = a.iter().chain(b).copied().collect();
        all.sort_by_key(|run| (run.start, run.len));
        let mut met: Vec<Held> = Vec::with_capacity(all.len());
        for run in all {
            match met.last_mut() {
                Some(last) if (last.start, last.len) == (run.start, run.len) => {
                    last.size = run.len / gcd(last.count(), run.count());
                }
                Some(last) if last.end() > run.start => return Cut::Whole,
                _ => met.push(run),
            }
        }
        Cut::Runs(met)
    }

    /// The columns of `width` between the runs, as runs of units of `size` columns; none where there are no such columns.
    fn gaps(&self, width: u64, size: u64) -> Option<Cut> {
        let Cut::Runs(runs) = self else { return None };
        let starts = std::iter::once(0).chain(runs.iter().map(|run| run.end()));
        let ends = runs.iter().map(|run| run.start).chain([width]);
        let gaps = starts.zip(ends).filter(|(start, end)| start < end);
        let gaps: Vec<Held> = gaps.map(|(start, end)| Held { start, len: end - start, size: 1 }).collect();
        (!gaps.is_empty()).then(|| Cut::Runs(gaps).map(|gap| gap.aligned(size)))
    }

    /// The most holders between which the runs can be dealt out; 1 if every one of them needs all.
    fn most(&self) -> u64 {
        match self {
            Cut::Whole => 1,
            Cut::Runs(runs) => runs.iter().fold(0, |most, run| gcd(most, run.count())),
        }
    }
}

impl Columns {
    /// What is asked of an operand `width` columns wide, where a result of `wide` columns is asked for by `result`.
    fn asks(self, width: u64, result: &Cut, wide: u64) -> Cut {
        match self {
            Columns::Each if width == wide => result.clone(),
            Columns::Each if width > 0 && wide.is_multiple_of(width) => {
                let part = wide / width;
                result.map(|run| Some(run.aligned(part)?.scaled(part, 1)))
            }
            Columns::Parts(parts) if parts > 1 && width.is_multiple_of(parts) => {
                result.map(|run| run.aligned(width / parts))
            }
            Columns::Heads(heads) if heads > 0 && width.is_multiple_of(heads) => {
                Cut::Runs(vec![Held { start: 0, len: width, size: width / heads }])
            }
            Columns::Slice { heads: 1, from, .. } => {
                result.map(|run| Some(Held { start: run.start + from, ..run }))
            }
            Columns::Slice { heads, from, to } if heads > 0 && from < to => {
                let taken = to - from;
                result.map(|run| Some(run.aligned(taken)?.scaled(taken, width / heads)))
            }
            Columns::Halves => match result {
                Cut::Whole => Cut::Whole,
                Cut::Runs(first) => {
                    let second = first.iter().map(|run| Held { start: run.start + wide, ..*run });
                    Cut::Runs(first.iter().copied().chain(second).collect())
                }
            },
            Columns::Sum => Cut::FREE,
            _ => Cut::Whole,
        }
    }

    /// Whether what is asked of the result is asked of the operand.
    fn passes(self) -> bool {
        !matches!(self, Columns::Heads(_) | Columns::Sum | Columns::All)
    }

    /// The units that columns are dealt out by where nothing else says how: of an operand `width` columns wide.
    fn own(self, width: u64) -> Option<u64> {
        match self {
            Columns::Sum => Some(1),
            Columns::Parts(parts) if parts > 1 && width.is_multiple_of(parts) => Some(width / parts),
            _ => None,
        }
    }
}

/// The walk over a graph: for each value, what is asked of its columns so far. It only ever grows.
struct Walk<'g> {
    graph: &'g Graph,
    cuts: Vec<Cut>,
    /// Memories that an operation advances, which are asked for by their first axis.
    memories: BTreeSet<ValueId>,
    /// For each value, whether what is asked of its columns is asked of a tensor's rows in the end.
    of_rows: Vec<bool>,
}

impl<'g> Walk<'g> {
    fn over(graph: &'g Graph) -> Walk<'g> {
        let advanced = graph.nodes.iter().filter_map(|node| match node.action {
            Action::Update { tensor, .. } => Some(tensor),
            _ => None,
        });
        let mut of_rows = vec![false; graph.values.len()];
        for node in &graph.nodes {
            match &node.action {
                Action::Read { out, .. } => of_rows[out.0] = true,
                Action::Apply { op, args, out } => {
                    let mut asked = (0..).zip(args).filter(|(place, _)| op.columns(*place).passes());
                    of_rows[out.0] = asked.any(|(_, arg)| of_rows[arg.0]);
                }
                Action::Update { .. } | Action::Write { .. } => {}
            }
        }
        let cuts = vec![Cut::FREE; graph.values.len()];
        let mut walk = Walk { graph, cuts, memories: advanced.collect(), of_rows };
        walk.ask(graph.result, &Cut::Whole);
        walk
    }

    fn width(&self, id: ValueId) -> u64 {
        self.graph.value(id).shape.cols()
    }

    /// Asks for the columns of a value, beside what is asked already. Whether that is more.
    fn ask(&mut self, id: ValueId, cut: &Cut) -> bool {
        // What has one axis has no columns to deal out.
        let columns = self.graph.value(id).shape.0.len() >= 2;
        let met = if columns { self.cuts[id.0].meet(cut) } else { Cut::Whole };
        let more = met != self.cuts[id.0];
        self.cuts[id.0] = met;
        more
    }

    /// Carries what is asked from results to operands, until no more is. Whether any was.
    fn settle(&mut self) -> bool {
        let mut any = false;
        while self.pass() {
            any = true;
        }
        any
    }

    fn pass(&mut self) -> bool {
        let graph = self.graph;
        let mut more = false;
        for node in graph.nodes.iter().rev() {
            match &node.action {
                Action::Apply { op, args, out } => {
                    for (place, &arg) in args.iter().enumerate() {
                        let cut = self.asked(op, place, arg, *out);
                        more |= self.ask(arg, &cut);
                    }
                }
                Action::Update { op, tensor, args, out } => {
                    more |= self.ask(*tensor, &self.first_axis(op, *tensor));
                    // Who has the memory whole advances it by all heads.
                    let whole = self.cuts[tensor.0] == Cut::Whole;
                    for (place, &arg) in (1..).zip(args) {
                        let cut = if whole { Cut::Whole } else { self.asked(op, place, arg, *out) };
                        more |= self.ask(arg, &cut);
                    }
                }
                Action::Read { tensor, out, .. } => {
                    let cut =
                        if self.memories.contains(tensor) { Cut::Whole } else { self.cuts[out.0].clone() };
                    more |= self.ask(*tensor, &cut);
                }
                Action::Write { tensor, value, .. } => {
                    if self.memories.contains(tensor) {
                        more |= self.ask(*tensor, &Cut::Whole);
                    }
                    let cut = self.cuts[tensor.0].clone();
                    more |= self.ask(*value, &cut);
                }
            }
        }
        more
    }

    fn asked(&self, op: &Op, place: usize, arg: ValueId, out: ValueId) -> Cut {
        self.columns(op, place, arg).asks(self.width(arg), &self.cuts[out.0], self.width(out))
    }

    /// What an operation asks of an operand. The terms of a sum over earlier rows would have to be exchanged for all of
    /// these in every step, so they are asked for whole.
    fn columns(&self, op: &Op, place: usize, arg: ValueId) -> Columns {
        match op.columns(place) {
            Columns::Sum if self.graph.value(arg).shape.rows() != Dim::N => Columns::All,
            columns => columns,
        }
    }

    fn first_axis(&self, op: &Op, memory: ValueId) -> Cut {
        let rows = self.graph.value(memory).shape.fixed_rows().unwrap_or(0);
        op.columns(0).asks(rows, &Cut::Whole, rows)
    }

    /// Deals out the columns of one operand that nothing has asked for otherwise: the last one by the order of the text.
    /// Whether there was any.
    fn fill(&mut self) -> bool {
        let graph = self.graph;
        let applied = graph.nodes.iter().rev().filter_map(|node| match &node.action {
            Action::Apply { op, args, .. } => Some((op, args)),
            _ => None,
        });
        for (op, args) in applied {
            for (place, &arg) in args.iter().enumerate().filter(|(_, arg)| self.of_rows[arg.0]) {
                let width = self.width(arg);
                let Some(size) = self.columns(op, place, arg).own(width) else { continue };
                if let Some(gaps) = self.cuts[arg.0].gaps(width, size) {
                    return self.ask(arg, &gaps);
                }
            }
        }
        false
    }

    /// The carried tensors that may be cut as it is now. Others are asked for whole from here on.
    fn found(&mut self) -> BTreeMap<ValueId, Segments> {
        let graph = self.graph;
        let mut found = BTreeMap::new();
        for carried in graph.roles().carried() {
            let (id, sizes) = (carried.value, carried.axes.iter().map(|(_, size)| *size));
            let sizes: Vec<u64> = sizes.collect();
            let memory = self.memories.contains(&id);
            // Columns are dealt out along the outermost axis that has several.
            let axis = if memory { Some(0) } else { (1..sizes.len()).find(|&axis| sizes[axis] > 1) };
            let Some(axis) = axis else {
                self.ask(id, &Cut::Whole);
                continue;
            };
            let place: u64 = if memory { 1 } else { sizes[axis + 1..].iter().product() };
            if let Some(gaps) = self.cuts[id.0].gaps(sizes[axis] * place, place) {
                self.ask(id, &gaps);
            }
            let cut = self.cuts[id.0].map(|run| run.aligned(place));
            match &cut {
                Cut::Runs(runs) if cut.most() > 1 => {
                    let run = |held: &Held| Run { count: held.count(), size: held.size / place };
                    found.insert(id, Segments { axis, runs: runs.iter().map(run).collect() });
                }
                _ => {
                    self.ask(id, &Cut::Whole);
                }
            }
        }
        found
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
