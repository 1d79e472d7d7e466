//! `compress`, which makes one row of a span of positions, and `choose`, which picks the compressed rows that each query
//! reads. What reads them is [`super::attend`].

use super::Out;
use super::exp::exp;
use super::rows::Past;
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use std::ops::Range;

/// Compressed rows that are scored together.
pub(crate) const KEYS: usize = 64;

/// `compress`: the rows of one segment.
#[derive(Clone, Copy)]
pub(crate) struct Compress<'a> {
    /// `[_, width]`, by their positions, back to the start of the spans that end here.
    pub(crate) values: Past<'a>,
    pub(crate) gates: Past<'a>,
    /// `[rate, width]`.
    pub(crate) bias: &'a [f32],
    pub(crate) rate: usize,
    /// Whether a row takes in the first half of the columns of the span before, and of its own the second.
    pub(crate) overlap: bool,
    /// The first row's.
    pub(crate) position: usize,
    /// `[rows, width]`, or half as wide.
    pub(crate) y: Out<'a>,
}

impl Compress<'_> {
    fn out_width(&self) -> usize {
        if self.overlap { self.values.width / 2 } else { self.values.width }
    }

    /// How many units of work there are: one for each row.
    pub(crate) fn units(&self) -> usize {
        self.y.len() / self.out_width()
    }

    /// This thread's share of the units, dealt out in turn; `first` is the number of the first unit in the batch.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>, first: usize) {
        let (width, rate) = (self.out_width(), self.rate);
        let pad = width.next_multiple_of(MAX_LANES);
        let terms = if self.overlap { 2 * rate } else { rate };
        with_scratch(piece(terms * pad) + piece(pad), |scratch| {
            for row in (0..self.units()).filter(|row| (first + row) % share.of() == share.index()) {
                // SAFETY: each row belongs to one thread.
                let y = unsafe { self.y.range(row * width..(row + 1) * width) };
                let end = self.position + row + 1;
                if !end.is_multiple_of(rate) {
                    y.fill(0.0);
                    continue;
                }
                let mut pieces = Pieces(&mut *scratch);
                let (gates, value) = (pieces.take(terms * pad), pieces.take(pad));
                isa.dispatch(Span { op: *self, end, gates, value, y });
            }
        });
    }
}

/// The row of the span that ends before a position.
struct Span<'a> {
    op: Compress<'a>,
    end: usize,
    /// `[terms, width padded]`.
    gates: &'a mut [f32],
    /// `[width padded]`.
    value: &'a mut [f32],
    y: &'a mut [f32],
}

impl Kernel for Span<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Span { op, end, gates, value, y } = self;
        let (width, rate) = (y.len(), op.rate);
        let pad = width.next_multiple_of(MAX_LANES);
        // The span before, where there is one, then its own: the position, the place within the span, the columns.
        let before = if op.overlap && end > rate { 2 * rate } else { rate };
        let terms = (end - before..end).map(|position| {
            let first = if op.overlap && position + rate >= end { width } else { 0 };
            (position, position % rate, first..first + width)
        });
        for ((position, place, cols), gate) in terms.clone().zip(gates.chunks_exact_mut(pad)) {
            op.gates.widen(s, position, cols.clone(), gate);
            let bias = &op.bias[place * op.values.width..][cols];
            gate.iter_mut().zip(bias).for_each(|(g, b)| *g += b);
        }
        for at in (0..pad).step_by(S::LANES) {
            let from = gates.as_mut_ptr();
            // SAFETY: gates have `pad` floats a row, whole vectors.
            unsafe {
                let gate = |term: usize| s.load(from.add(term * pad + at));
                let most = (1..before).fold(gate(0), |most, term| s.max(most, gate(term)));
                let mut total = s.splat(0.0);
                for term in 0..before {
                    let weight = exp(s, s.sub(gate(term), most));
                    total = s.add(total, weight);
                    s.store(from.add(term * pad + at), weight);
                }
                for term in 0..before {
                    let p = from.add(term * pad + at);
                    s.store(p, s.div(s.load(p), total));
                }
            }
        }
        y.fill(0.0);
        for ((position, _, cols), weight) in terms.zip(gates.chunks_exact(pad)) {
            op.values.widen(s, position, cols, value);
            for at in (0..width).step_by(S::LANES) {
                let n = S::LANES.min(width - at);
                // SAFETY: `n` floats from `at` on are within `y`; values and weights are padded to whole vectors.
                unsafe {
                    let p = y.as_mut_ptr().add(at);
                    let (v, w) = (s.load(value.as_ptr().add(at)), s.load(weight.as_ptr().add(at)));
                    s.store_part(p, s.fma(v, w, s.load_part(p, n)), n);
                }
            }
        }
    }
}

/// `choose`: the compressed rows that each row of one segment reads.
#[derive(Clone, Copy)]
pub(crate) struct Choose<'a> {
    /// `[rows, heads · dim]`.
    pub(crate) q: &'a [f32],
    /// `[_, dim]`.
    pub(crate) compressed: Past<'a>,
    /// `[rows, heads]`.
    pub(crate) w: &'a [f32],
    /// The first row's.
    pub(crate) position: usize,
    pub(crate) heads: usize,
    pub(crate) top_k: usize,
    pub(crate) rate: usize,
    pub(crate) scale: f32,
    /// Memory of all threads for the scores of one row, whole blocks of [`KEYS`]: where this row is the step's only one.
    pub(crate) scores: Option<Out<'a>>,
    /// `[rows, top_k]`, in rising order, then `u32::MAX`.
    pub(crate) chosen: Out<'a, u32>,
}

impl Choose<'_> {
    /// How many units of work there are: one for each row.
    pub(crate) fn units(&self) -> usize {
        self.chosen.len() / self.top_k
    }

    /// This thread's share of the units, dealt out in turn; `first` is the number of the first unit in the batch.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>, first: usize) {
        let wanted = ((self.position + 1) / self.rate).next_multiple_of(KEYS);
        if let (Some(scores), 1, 2..) = (self.scores.filter(|s| s.len() >= wanted), self.units(), share.of())
        {
            return self.one_row(isa, share, scores);
        }
        let pad = self.compressed.width.next_multiple_of(MAX_LANES);
        let most = (self.position + self.units()) / self.rate;
        let scores = most.next_multiple_of(KEYS);
        with_scratch(2 * piece(KEYS * pad) + 2 * piece(scores), |scratch| {
            for row in (0..self.units()).filter(|row| (first + row) % share.of() == share.index()) {
                // SAFETY: each row belongs to one thread.
                let chosen = unsafe { self.chosen.range(row * self.top_k..(row + 1) * self.top_k) };
                let whole = (self.position + row + 1) / self.rate;
                if whole <= self.top_k {
                    all(whole, chosen);
                    continue;
                }
                let mut pieces = Pieces(&mut *scratch);
                let (rows, keys) = (pieces.take(KEYS * pad), pieces.take(KEYS * pad));
                let (scores, sorted) = (pieces.take(scores), pieces.take(scores));
                let blocks = 0..whole.div_ceil(KEYS);
                let own = &mut scores[..blocks.len() * KEYS];
                isa.dispatch(Scores { op: *self, row, whole, blocks, rows, keys, scores: own });
                pick(&scores[..whole], &mut sorted[..whole], chosen);
            }
        });
    }
}

impl Choose<'_> {
    /// The only row: each thread scores some blocks of compressed rows, then the first picks.
    fn one_row(&self, isa: Isa, share: Share<'_>, all_scores: Out<'_>) {
        let whole = (self.position + 1) / self.rate;
        if whole <= self.top_k {
            if share.index() == 0 {
                // SAFETY: the first thread alone writes.
                all(whole, unsafe { self.chosen.range(0..self.top_k) });
            }
            return;
        }
        let pad = self.compressed.width.next_multiple_of(MAX_LANES);
        let blocks = share.range(whole.div_ceil(KEYS), 1);
        if !blocks.is_empty() {
            with_scratch(2 * piece(KEYS * pad), |scratch| {
                let mut pieces = Pieces(scratch);
                let (rows, keys) = (pieces.take(KEYS * pad), pieces.take(KEYS * pad));
                // SAFETY: each block is one thread's until the barrier.
                let scores = unsafe { all_scores.range(blocks.start * KEYS..blocks.end * KEYS) };
                isa.dispatch(Scores { op: *self, row: 0, whole, blocks: blocks.clone(), rows, keys, scores });
            });
        }
        share.barrier();
        if share.index() == 0 {
            with_scratch(piece(whole), |sorted| {
                // SAFETY: all have been written, and the first thread alone goes on.
                let (scores, chosen) =
                    unsafe { (all_scores.range(0..whole), self.chosen.range(0..self.top_k)) };
                pick(scores, &mut sorted[..whole], chosen);
            });
        }
    }
}

/// All compressed rows that there are, where these are not more than are chosen: nothing is to be compared.
fn all(whole: usize, chosen: &mut [u32]) {
    chosen.iter_mut().enumerate().for_each(|(i, c)| *c = if i < whole { i as u32 } else { u32::MAX });
}

/// The places of the greatest scores in rising order; of equal ones the earlier. `sorted` is room for as many.
fn pick(scores: &[f32], sorted: &mut [f32], chosen: &mut [u32]) {
    sorted.copy_from_slice(scores);
    let last = chosen.len() - 1;
    let (above, least, _) = sorted.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
    let least = *least;
    let above = above.iter().filter(|s| s.total_cmp(&least).is_gt()).count();
    let (mut equal, mut at) = (chosen.len() - above, 0);
    for (i, score) in scores.iter().enumerate() {
        let order = score.total_cmp(&least);
        if order.is_gt() || (order.is_eq() && equal > 0) {
            equal -= usize::from(order.is_eq());
            chosen[at] = i as u32;
            at += 1;
        }
    }
}

/// The scores of some blocks of compressed rows for one row of queries.
struct Scores<'a> {
    op: Choose<'a>,
    row: usize,
    whole: usize,
    blocks: Range<usize>,
    /// A block of compressed rows in F32, `[KEYS, dim padded]`, and transposed, `[dim padded, KEYS]`.
    rows: &'a mut [f32],
    keys: &'a mut [f32],
    /// `[blocks, KEYS]`.
    scores: &'a mut [f32],
}

impl Kernel for Scores<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let op = self.op;
        let pad = op.compressed.width.next_multiple_of(MAX_LANES);
        self.scores.fill(0.0);
        for (index, block) in self.blocks.clone().enumerate() {
            let block = block * KEYS;
            for (key, to) in self.rows[..KEYS * pad].chunks_exact_mut(pad).enumerate() {
                if block + key < self.whole {
                    op.compressed.widen(s, block + key, 0..op.compressed.width, to);
                } else {
                    to.fill(0.0);
                }
            }
            for key in (0..KEYS).step_by(S::LANES) {
                for at in (0..pad).step_by(S::LANES) {
                    // SAFETY: `KEYS` and `pad` are whole numbers of vectors; both arrays hold their product.
                    unsafe {
                        let src = self.rows.as_ptr().add(key * pad + at);
                        let dst = self.keys.as_mut_ptr().add(at * KEYS + key);
                        s.transpose(src.cast(), pad * 4, dst.cast(), KEYS * 4);
                    }
                }
            }
            let mut head = 0;
            while head + 4 <= op.heads {
                self.add::<S, 4>(s, index * KEYS, head);
                head += 4;
            }
            while head < op.heads {
                self.add::<S, 1>(s, index * KEYS, head);
                head += 1;
            }
        }
        // A sum of zeros of either sign is the same score.
        self.scores.iter_mut().for_each(|score| *score += 0.0);
    }
}

impl Scores<'_> {
    /// Adds the parts of `R` heads from `head` on to the scores from `first` on, those of the block, head after head.
    #[inline(always)]
    fn add<S: Simd, const R: usize>(&mut self, s: S, first: usize, head: usize) {
        let op = self.op;
        let dim = op.compressed.width;
        let q = &op.q[(self.row * op.heads + head) * dim..][..R * dim];
        let w = &op.w[self.row * op.heads + head..][..R];
        for key in (0..KEYS).step_by(2 * S::LANES) {
            let mut sums = [[s.splat(0.0); 2]; R];
            for at in 0..dim {
                // SAFETY: row `at` of the keys has `KEYS` floats, a multiple of two vectors; there are `R` queries.
                unsafe {
                    let keys = self.keys.as_ptr().add(at * KEYS + key);
                    let ks = [s.load(keys), s.load(keys.add(S::LANES))];
                    for r in 0..R {
                        let x = s.splat(*q.get_unchecked(r * dim + at));
                        for n in 0..2 {
                            sums[r][n] = s.fma(x, ks[n], sums[r][n]);
                        }
                    }
                }
            }
            for n in 0..2 {
                // SAFETY: there is a score for each key of the block.
                unsafe {
                    let p = self.scores.as_mut_ptr().add(first + key + n * S::LANES);
                    let mut score = s.load(p);
                    for r in 0..R {
                        let part = s.max(sums[r][n], s.splat(0.0));
                        score = s.fma(s.splat(w[r] * op.scale), part, score);
                    }
                    s.store(p, score);
                }
            }
        }
    }
}
