//! `attend(q, k, v, sinks, heads, kv_heads, scale, window, softcap)`: causal scaled dot-product attention with
//! grouped heads.
//!
//! `q` is `[n, heads · head_dim]`; `k` and `v` are rows of caches, `[.. pos+n]` or a ring joined with the step's own
//! rows, which hold `kv_heads` vectors each; those of `v` may be of another size. Query head `h` reads key and value
//! head `h / (heads / kv_heads)`. The query of row `i` stands at absolute position `pos + i` and sees the rows up to
//! its own, of these the last `window` where there is one:
//! `y[i] = Σ_j softmax_j(scale · q[i]·k[j]) · v[j]` (Vaswani et al., 2017; Ainslie et al., 2023).
//! With `softcap` `c`, a score `s` becomes `c · tanh(s / c)` (Gemma 2, 2024). `sinks` `[heads]` are scores that take
//! part in the softmax and have no value (gpt-oss, 2025).

use super::{Call, Op};
use crate::{Attr, Columns, Dim, Kind, ProgramError, Shape};

/// The attributes of attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Attend {
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// Positions that a query sees, its own included; all up to its own where there is none.
    pub window: Option<u64>,
    /// The bound that scores are squeezed into.
    pub softcap: Option<f64>,
}

impl Attend {
    /// Query heads, and key and value heads: those that one of these reads lie together.
    pub(super) fn columns(&self, place: usize) -> Columns {
        match place {
            0 => Columns::Heads(self.heads),
            1 | 2 => Columns::Heads(self.kv_heads),
            _ => Columns::All,
        }
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut attrs = vec![
            ("heads", Attr::Number(self.heads as f64)),
            ("kv_heads", Attr::Number(self.kv_heads as f64)),
            ("scale", Attr::Number(self.scale)),
        ];
        attrs.extend(self.window.map(|window| ("window", Attr::Number(window as f64))));
        attrs.extend(self.softcap.map(|cap| ("softcap", Attr::Number(cap))));
        attrs
    }
}

pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    let kinds = [("q", Kind::Float), ("k", Kind::Float), ("v", Kind::Float), ("sinks", Kind::Float)];
    call.operands(&kinds, 1)?;
    let (heads, kv_heads) = (call.count("heads")?, call.count("kv_heads")?);
    let scale = call.number("scale", 1e-9..=1e9)?;
    let window = call.count_or("window", 1)?;
    let softcap = call.number_or("softcap", 1e-6..=1e9)?;
    let (q, k, v) = (call.shape(0), call.shape(1), call.shape(2));
    call.hold(heads.is_multiple_of(kv_heads), "heads to be a multiple of kv_heads")?;
    call.hold(q.rows() == Dim::N && q.cols().is_multiple_of(heads), "q [n, heads · head_dim]")?;
    let head_dim = q.cols() / heads;
    for rows in [k, v] {
        let cached = matches!(rows.rows(), Dim::PosN | Dim::After(_));
        let fits = cached && rows.rows() == k.rows() && rows.cols().is_multiple_of(kv_heads);
        call.hold(fits, "k and v as rows [.. pos+n] of kv_heads vectors")?;
    }
    call.hold(k.cols() == kv_heads * head_dim, "k with q's head size")?;
    if let Dim::After(before) = k.rows() {
        reaches(call, before, window)?;
    }
    if let Some(sinks) = call.optional(3) {
        call.hold(sinks.0.len() == 1 && sinks.fixed_rows() == Some(heads), "sinks [heads]")?;
    }
    let width = heads.saturating_mul(v.cols() / kv_heads);
    Ok((Op::Attend(Attend { heads, kv_heads, scale, window, softcap }), Shape::matrix(Dim::N, width)))
}

/// Holds that rows of a ring reach as far back as a window does.
pub(super) fn reaches(call: &Call<'_>, before: u64, window: Option<u64>) -> Result<(), ProgramError> {
    let back = window.map_or(call.ctx(), |w| (w - 1).min(call.ctx()));
    call.hold(before >= back, "as many rows from before the step as the window reaches back")
}
