//! Attention over compressed rows (DeepSeek-V4, 2026): `compress`, which makes them, `choose`, which picks some for
//! each query, and `compressed_attend`, which reads a sliding window and the compressed rows under one softmax.

use super::attend::reaches;
use super::{Call, Op};
use crate::{Attr, Columns, Dim, Kind, ProgramError, Shape};

/// The attributes of `compress`.
#[derive(Clone, Debug, PartialEq)]
pub struct Compress {
    /// Tokens for a row.
    pub rate: u64,
    /// Whether a row also takes in the tokens of the row before it.
    pub overlap: bool,
}

/// The attributes of `choose`.
#[derive(Clone, Debug, PartialEq)]
pub struct Choose {
    /// Heads of the queries.
    pub heads: u64,
    /// Rows that are chosen at the most.
    pub top_k: u64,
    /// Tokens for a compressed row.
    pub rate: u64,
    /// What scores are multiplied by.
    pub scale: f64,
}

/// The attributes of `compressed_attend`.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedAttend {
    /// Query heads; keys and values have one.
    pub heads: u64,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// Positions that a query sees in full, its own included.
    pub window: u64,
    /// Tokens for a compressed row.
    pub rate: u64,
}

fn count(key: &'static str, value: u64) -> (&'static str, Attr) {
    (key, Attr::Number(value as f64))
}

impl Compress {
    /// Each column has its own softmax; with `overlap`, two have one.
    pub(super) fn columns(&self, place: usize) -> Columns {
        match place {
            0 | 1 if self.overlap => Columns::Halves,
            0 | 1 => Columns::Each,
            _ => Columns::All,
        }
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let overlap = if self.overlap { "yes" } else { "no" };
        vec![count("rate", self.rate), ("overlap", Attr::Word(overlap.into()))]
    }

    /// `compress(kv, gate, bias, rate, overlap)`: row `i` of the result is the compressed row of the span of `rate`
    /// positions that ends with it, and 0 where none does. `kv` and `gate` are `[before + n, width]` with the rows that
    /// the span reaches back to, `bias` is `[rate, width]`, added to the gates by the place within the span:
    /// `y = Σ_t softmax_t(gate[t] + bias[t]) · kv[t]`, each column on its own. With `overlap`, the first half of the
    /// columns belongs to the *next* span: a row is over twice as many positions, the first half's of the span before
    /// (none at the start) and the second half's of its own, and is half as wide.
    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        call.operands(&[("kv", Kind::Float), ("gate", Kind::Float), ("bias", Kind::Float)], 0)?;
        let (rate, overlap) = (call.count("rate")?, call.flag_or("overlap", false)?);
        let (kv, gate, bias) = (call.shape(0), call.shape(1), call.shape(2));
        let before = if overlap { rate.saturating_mul(2) - 1 } else { rate - 1 };
        let rows = kv.rows() == Dim::After(before) && gate.rows() == kv.rows() && gate.cols() == kv.cols();
        call.hold(rows, &format!("kv and gate alike, with {before} rows from before the step"))?;
        call.hold(bias.fixed_rows() == Some(rate) && bias.cols() == kv.cols(), "a bias [rate, width]")?;
        call.hold(!overlap || kv.cols().is_multiple_of(2), "an even width")?;
        let width = if overlap { kv.cols() / 2 } else { kv.cols() };
        Ok((Op::Compress(Compress { rate, overlap }), Shape::matrix(Dim::N, width)))
    }
}

impl Choose {
    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let counts = [count("heads", self.heads), count("top_k", self.top_k), count("rate", self.rate)];
        counts.into_iter().chain([("scale", Attr::Number(self.scale))]).collect()
    }

    /// `choose(q, c, w, heads, top_k, rate, scale)`: for each row the numbers of the `top_k` compressed rows with the
    /// highest `Σ_h w[i][h] · scale · relu(q[i][h] · c[j])`, of those that are whole at its position (`j <
    /// ⌊(pos + i + 1) / rate⌋`); of equal ones the earlier. In rising order; where there are fewer, the others are
    /// 2^32 − 1. `q` is `[n, heads · dim]`, `c` the compressed rows `[dim]`, `w` `[n, heads]`.
    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        call.operands(&[("q", Kind::Float), ("c", Kind::Float), ("w", Kind::Float)], 0)?;
        let (heads, top_k, rate) = (call.count("heads")?, call.count("top_k")?, call.count("rate")?);
        let scale = call.number("scale", 1e-9..=1e9)?;
        let (q, c, w) = (call.shape(0), call.shape(1), call.shape(2));
        call.hold(c.rows() == Dim::Per(rate), &format!("c as rows [.. (pos+n)/{rate}]"))?;
        call.hold(Some(q.cols()) == c.cols().checked_mul(heads) && q.rows() == Dim::N, "q [n, heads · dim]")?;
        call.hold(w.rows() == Dim::N && w.cols() == heads, "w [n, heads]")?;
        Ok((Op::Choose(Choose { heads, top_k, rate, scale }), Shape::matrix(Dim::N, top_k)))
    }
}

impl CompressedAttend {
    /// Query heads; all of them read the whole of a row.
    pub(super) fn columns(&self, place: usize) -> Columns {
        if place == 0 { Columns::Heads(self.heads) } else { Columns::All }
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let scale = ("scale", Attr::Number(self.scale));
        vec![count("heads", self.heads), scale, count("window", self.window), count("rate", self.rate)]
    }

    /// `compressed_attend(q, kv, c, sinks, chosen, heads, scale, window, rate)`: as `attend` with sinks and one head of
    /// keys, which are the values too. `kv` `[before + n, dim]` are the rows of a sliding window, `c` compressed rows
    /// `[dim]`, of which a query sees those that are whole at its position, or of these the `chosen` ones `[n, k]`.
    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        let kinds = ["q", "kv", "c", "sinks"].map(|name| (name, Kind::Float));
        let kinds: Vec<_> = kinds.into_iter().chain([("chosen", Kind::Index)]).collect();
        call.operands(&kinds, 1)?;
        let (heads, rate, window) = (call.count("heads")?, call.count("rate")?, call.count("window")?);
        let scale = call.number("scale", 1e-9..=1e9)?;
        let (q, kv, c, sinks) = (call.shape(0), call.shape(1), call.shape(2), call.shape(3));
        let Dim::After(before) = kv.rows() else {
            return call
                .hold(false, "kv as rows of a ring and the step's")
                .map(|()| (Op::Silu, Shape::default()));
        };
        reaches(call, before, Some(window))?;
        call.hold(
            Some(q.cols()) == kv.cols().checked_mul(heads) && q.rows() == Dim::N,
            "q [n, heads · dim]",
        )?;
        call.hold(
            c.rows() == Dim::Per(rate) && c.cols() == kv.cols(),
            &format!("c as rows [.. (pos+n)/{rate}]"),
        )?;
        call.hold(sinks.0.len() == 1 && sinks.fixed_rows() == Some(heads), "sinks [heads]")?;
        if let Some(chosen) = call.optional(4) {
            call.hold(chosen.rows() == Dim::N && chosen.0.len() == 2, "chosen [n, k]")?;
        }
        Ok((Op::CompressedAttend(CompressedAttend { heads, scale, window, rate }), q.clone()))
    }
}
