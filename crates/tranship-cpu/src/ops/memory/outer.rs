//! Memories of outer products of keys and values: the gated delta rule, and linear attention with a fixed decay.
//!
//! A memory `[key_dim, value_dim]` is taken a strip of columns at a time. Columns do not meet: each has one sum along the keys
//! for what the memory holds at `k`, and one for what it holds at `q`, both as two interleaved chains. Few rows go over the
//! memory where it lies, which they must read and write once, and that is what takes time. For many rows a strip is
//! copied to scratch, where all rows meet it in the first-level cache.

use super::{dealt, rounded};
use crate::arch::{Isa, Kernel, Simd};
use crate::ops::Out;
use crate::ops::exp::exp;
use crate::pool::Share;
use crate::scratch::{Pieces, piece, with_scratch};
use tranship_dtype::DType;

/// Columns of a unit of work: a whole head's, as a rule.
const UNIT: usize = 128;
/// Columns that many rows go over together: with 128 keys, 32 KB.
const STRIP: usize = 64;
/// From so many rows on a strip is copied.
const MANY_ROWS: usize = 4;

/// The gated delta rule: `s ← exp(g) · s`, then `s ← s + k ⊗ (beta · (v − sᵀ k))`, `y = scale · sᵀ q`, row by row.
#[derive(Clone, Copy)]
pub(crate) struct GatedDelta<'a> {
    /// `[heads, key_dim, value_dim]`.
    pub(crate) state: Out<'a>,
    /// What the memory is rounded to after each row.
    pub(crate) dtype: DType,
    pub(crate) heads: usize,
    /// Divides `heads`.
    pub(crate) key_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) scale: f32,
    /// `[rows, key_heads · key_dim]`, as is `k`.
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    /// `[rows, heads · value_dim]`.
    pub(crate) v: &'a [f32],
    /// `[rows, heads]`, or `[rows, heads · key_dim]` with one for each channel of the keys.
    pub(crate) g: &'a [f32],
    /// `[rows, heads]`.
    pub(crate) beta: &'a [f32],
    /// `[rows, heads · value_dim]`.
    pub(crate) y: Out<'a>,
}

/// Linear attention with a fixed decay: `s ← decay · s + k ⊗ v`, `y = sᵀ q`, row by row.
#[derive(Clone, Copy)]
pub(crate) struct DecayedLinear<'a> {
    /// `[heads, key_dim, value_dim]`.
    pub(crate) state: Out<'a>,
    /// What the memory is rounded to after each row.
    pub(crate) dtype: DType,
    /// `[heads]`: what each head's memory is multiplied by.
    pub(crate) decay: &'a [f32],
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// `[rows, heads · key_dim]`, as is `k`.
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    /// `[rows, heads · value_dim]`.
    pub(crate) v: &'a [f32],
    /// `[rows, heads · value_dim]`.
    pub(crate) y: Out<'a>,
}

impl GatedDelta<'_> {
    /// How many units of work there are.
    pub(crate) fn units(&self) -> usize {
        self.heads * self.value_dim.div_ceil(UNIT)
    }

    /// This thread's share of the units.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>, first: usize) {
        let rows = self.v.len() / (self.heads * self.value_dim);
        assert_eq!(self.beta.len(), rows * self.heads, "a beta for each row and head");
        let decay = if self.g.len() == rows * self.heads {
            Decay::Heads(self.g)
        } else {
            assert_eq!(self.g.len(), rows * self.heads * self.key_dim, "a gate for each row and channel");
            Decay::Channels(self.g)
        };
        let rule = Rule {
            state: self.state,
            dtype: self.dtype,
            heads: self.heads,
            key_heads: self.key_heads,
            keys: self.key_dim,
            values: self.value_dim,
            rows,
            scale: self.scale,
            q: self.q,
            k: self.k,
            v: self.v,
            decay,
            beta: self.beta,
            y: self.y,
        };
        rule.part::<true>(isa, share, first, self.units());
    }
}

impl DecayedLinear<'_> {
    /// How many units of work there are.
    pub(crate) fn units(&self) -> usize {
        self.decay.len() * self.value_dim.div_ceil(UNIT)
    }

    /// This thread's share of the units.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>, first: usize) {
        let heads = self.decay.len();
        let rule = Rule {
            state: self.state,
            dtype: self.dtype,
            heads,
            key_heads: heads,
            keys: self.key_dim,
            values: self.value_dim,
            rows: self.v.len() / (heads * self.value_dim),
            scale: 1.0,
            q: self.q,
            k: self.k,
            v: self.v,
            decay: Decay::Fixed(self.decay),
            beta: &[],
            y: self.y,
        };
        rule.part::<false>(isa, share, first, self.units());
    }
}

/// What a memory is multiplied by before a row is taken in.
#[derive(Clone, Copy)]
enum Decay<'a> {
    /// `[heads]`, the same for every row.
    Fixed(&'a [f32]),
    /// Logarithms, `[rows, heads]`.
    Heads(&'a [f32]),
    /// Logarithms, `[rows, heads · keys]`.
    Channels(&'a [f32]),
}

/// Both rules: with `DELTA` what the memory holds already is taken off a value.
#[derive(Clone, Copy)]
struct Rule<'a> {
    state: Out<'a>,
    dtype: DType,
    heads: usize,
    key_heads: usize,
    keys: usize,
    values: usize,
    rows: usize,
    scale: f32,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: Decay<'a>,
    beta: &'a [f32],
    y: Out<'a>,
}

impl Rule<'_> {
    fn part<const DELTA: bool>(&self, isa: Isa, share: Share<'_>, first: usize, units: usize) {
        let Rule { rows, heads, key_heads, keys, values, .. } = *self;
        assert!(heads.is_multiple_of(key_heads), "{key_heads} heads of keys for {heads} of values");
        assert_eq!(self.state.len(), heads * keys * values, "the memory's size");
        assert!(self.v.len() == rows * heads * values && self.y.len() == self.v.len(), "rows of values");
        assert!(self.k.len() == rows * key_heads * keys && self.q.len() == self.k.len(), "rows of keys");
        let copied = if rows >= MANY_ROWS { keys * STRIP } else { 0 };
        with_scratch(2 * piece(keys) + piece(copied), |scratch| {
            let mut pieces = Pieces(scratch);
            let (decay, faded, strip) = (pieces.take(keys), pieces.take(keys), pieces.take(copied));
            let (decay, faded) = (&mut decay[..keys], &mut faded[..keys]);
            for unit in dealt(units, first, share) {
                isa.dispatch(Unit::<DELTA> { rule: self, unit, decay, faded, strip });
            }
        });
    }
}

/// One unit: some columns of a head's memory, by all rows.
struct Unit<'a, const DELTA: bool> {
    rule: &'a Rule<'a>,
    unit: usize,
    /// A row's decay of each key, and its keys times that.
    decay: &'a mut [f32],
    faded: &'a mut [f32],
    /// `[keys, STRIP]`; empty where the memory is worked on where it lies.
    strip: &'a mut [f32],
}

impl<const DELTA: bool> Kernel for Unit<'_, DELTA> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Rule { keys, values, rows, .. } = *self.rule;
        let blocks = values.div_ceil(UNIT);
        let (head, block) = (self.unit / blocks, self.unit % blocks);
        let (start, end) = (block * UNIT, ((block + 1) * UNIT).min(values));
        let state = self.rule.state.ptr().wrapping_add(head * keys * values);
        if self.strip.is_empty() {
            for row in 0..rows {
                self.prepare(s, row, head);
                // SAFETY: this head's memory has `keys` rows of `values`; its columns of this unit are this thread's.
                unsafe { self.row(s, row, head, state.add(start), values, start, end) };
            }
            return;
        }
        for from in (start..end).step_by(STRIP) {
            let to = (from + STRIP).min(end);
            for key in 0..keys {
                // SAFETY: as above; the strip has `keys` rows of `STRIP`.
                unsafe {
                    let there = state.add(key * values + from);
                    self.strip.as_mut_ptr().add(key * STRIP).copy_from_nonoverlapping(there, to - from);
                }
            }
            for row in 0..rows {
                self.prepare(s, row, head);
                let strip = self.strip.as_mut_ptr();
                // SAFETY: the strip, and the columns that it holds.
                unsafe { self.row(s, row, head, strip, STRIP, from, to) };
            }
            for key in 0..keys {
                // SAFETY: as above.
                unsafe {
                    let there = state.add(key * values + from);
                    there.copy_from_nonoverlapping(self.strip.as_ptr().add(key * STRIP), to - from);
                }
            }
        }
    }
}

impl<const DELTA: bool> Unit<'_, DELTA> {
    /// A row's decays, and its keys times those.
    #[inline(always)]
    fn prepare<S: Simd>(&mut self, s: S, row: usize, head: usize) {
        let rule = self.rule;
        let keys = rule.keys;
        match rule.decay {
            Decay::Fixed(decay) => self.decay.fill(decay[head]),
            Decay::Heads(g) => {
                self.decay.fill(s.reduce_max(exp(s, s.splat(g[row * rule.heads + head]))));
            }
            Decay::Channels(g) => {
                let g = &g[(row * rule.heads + head) * keys..][..keys];
                for at in (0..keys).step_by(S::LANES) {
                    let n = S::LANES.min(keys - at);
                    // SAFETY: `n` values from `at` on are within both.
                    unsafe {
                        let g = exp(s, s.load_part(g.as_ptr().add(at), n));
                        s.store_part(self.decay.as_mut_ptr().add(at), g, n);
                    }
                }
            }
        }
        if DELTA {
            let k = rule.key(rule.k, row, head);
            for (faded, (k, decay)) in self.faded.iter_mut().zip(k.iter().zip(&*self.decay)) {
                *faded = k * decay;
            }
        }
    }

    /// One row by the columns `from .. to`, whose memory begins at `m`, rows `stride` apart.
    ///
    /// # Safety
    /// The memory has a row for each key, and nobody else has these columns.
    #[inline(always)]
    #[allow(
        clippy::too_many_arguments,
        reason = "a part of the loop above, which is told apart for its two callers"
    )]
    unsafe fn row<S: Simd>(
        &self,
        s: S,
        row: usize,
        head: usize,
        m: *mut f32,
        stride: usize,
        from: usize,
        to: usize,
    ) {
        let rule = self.rule;
        let at = (row * rule.heads + head) * rule.values;
        let (v, y) = (rule.v[at..at + rule.values].as_ptr(), rule.y.ptr().wrapping_add(at));
        let columns = Columns::<DELTA> {
            q: rule.key(rule.q, row, head),
            k: rule.key(rule.k, row, head),
            decay: self.decay,
            faded: self.faded,
            beta: if DELTA { rule.beta[row * rule.heads + head] } else { 1.0 },
            scale: rule.scale,
            dtype: rule.dtype,
            stride,
        };
        let mut column = from;
        // SAFETY: columns up to `to` of the memory, the value and the result.
        unsafe {
            if S::MANY_REGISTERS {
                while column + 4 * S::LANES <= to {
                    columns.go::<S, 4, false>(s, m.add(column - from), v.add(column), y.add(column), 0);
                    column += 4 * S::LANES;
                }
            }
            while column + 2 * S::LANES <= to {
                columns.go::<S, 2, false>(s, m.add(column - from), v.add(column), y.add(column), 0);
                column += 2 * S::LANES;
            }
            while column < to {
                let n = S::LANES.min(to - column);
                columns.go::<S, 1, true>(s, m.add(column - from), v.add(column), y.add(column), n);
                column += n;
            }
        }
    }
}

impl<'a> Rule<'a> {
    /// The query or key of a head.
    #[inline(always)]
    fn key(&self, of: &'a [f32], row: usize, head: usize) -> &'a [f32] {
        let key_head = head / (self.heads / self.key_heads);
        &of[(row * self.key_heads + key_head) * self.keys..][..self.keys]
    }
}

/// What columns of a memory meet.
struct Columns<'a, const DELTA: bool> {
    q: &'a [f32],
    k: &'a [f32],
    decay: &'a [f32],
    faded: &'a [f32],
    beta: f32,
    scale: f32,
    dtype: DType,
    stride: usize,
}

impl<const DELTA: bool> Columns<'_, DELTA> {
    /// `V` vectors of columns; with `PART` one, of which `n` lanes are there.
    #[inline(always)]
    unsafe fn go<S: Simd, const V: usize, const PART: bool>(
        &self,
        s: S,
        m: *mut f32,
        v: *const f32,
        y: *mut f32,
        n: usize,
    ) {
        let keys = self.q.len();
        let (k, q, decay, faded) =
            (self.k.as_ptr(), self.q.as_ptr(), self.decay.as_ptr(), self.faded.as_ptr());
        let narrow = self.dtype != DType::F32;
        // SAFETY: the caller's: `keys` rows of the memory, and as many columns of it, of `v` and of `y`.
        unsafe {
            let load = |p: *const f32| if PART { s.load_part(p, n) } else { s.load(p) };
            let mut new = [s.splat(0.0); V];
            for (t, new) in new.iter_mut().enumerate() {
                *new = load(v.add(t * S::LANES));
            }
            if DELTA {
                let mut held = [[s.splat(0.0); V]; 2];
                for key in 0..keys {
                    let faded = s.splat(faded.add(key).read());
                    for t in 0..V {
                        let m = load(m.add(key * self.stride + t * S::LANES));
                        held[key & 1][t] = s.fma(faded, m, held[key & 1][t]);
                    }
                }
                let beta = s.splat(self.beta);
                for (t, new) in new.iter_mut().enumerate() {
                    *new = s.mul(beta, s.sub(*new, s.add(held[0][t], held[1][t])));
                }
            }
            let mut sums = [[s.splat(0.0); V]; 2];
            for key in 0..keys {
                let (k, q) = (s.splat(k.add(key).read()), s.splat(q.add(key).read()));
                let decay = s.splat(decay.add(key).read());
                for t in 0..V {
                    let p = m.add(key * self.stride + t * S::LANES);
                    let mut m = s.fma(k, new[t], s.mul(decay, load(p)));
                    if narrow {
                        m = rounded(s, m, self.dtype);
                    }
                    if PART {
                        s.store_part(p, m, n);
                    } else {
                        s.store(p, m);
                    }
                    sums[key & 1][t] = s.fma(q, m, sums[key & 1][t]);
                }
            }
            let scale = s.splat(self.scale);
            for t in 0..V {
                let sum = s.mul(scale, s.add(sums[0][t], sums[1][t]));
                s.store_part(y.add(t * S::LANES), sum, if PART { n } else { S::LANES });
            }
        }
    }
}
