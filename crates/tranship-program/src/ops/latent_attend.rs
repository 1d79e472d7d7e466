//! `latent_attend(q, c, r, w, heads, key_dim, scale)`: attention over compressed rows (multi-head latent attention,
//! DeepSeek-V2, 2024).
//!
//! The cache holds for each position one latent row `c[j]` `[latent]` and one rotated key `r[j]` `[rope_dim]` that all
//! heads share. `w` `[heads · (key_dim + value_dim), latent]` expands a latent row: of head `h` the first `key_dim`
//! rows give its key, the others its value. `q` is `[n, heads · (key_dim + rope_dim)]`, the rotated part last:
//!
//! ```text
//! s[j]    = scale · (q[i][h][..key_dim] · (w_key[h] · c[j])  +  q[i][h][key_dim..] · r[j])      for j ≤ pos + i
//! y[i][h] = Σ_j softmax_j(s) · (w_value[h] · c[j])
//! ```
//!
//! A backend may expand each row once (many queries) or absorb `w` into the query and the result (few): the meaning
//! is the same, the rounding is not, so under a policy that is split-invariant it chooses one for all steps.

use super::{Call, Op};
use crate::{Attr, Columns, Dim, Kind, ProgramError, Shape};

/// The attributes of latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttend {
    /// Query heads.
    pub heads: u64,
    /// Elements of a head's key that come from the latent row.
    pub key_dim: u64,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
}

impl LatentAttend {
    /// Query heads; all of them read the whole of a cached row.
    pub(super) fn columns(&self, place: usize) -> Columns {
        if place == 0 { Columns::Heads(self.heads) } else { Columns::All }
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("heads", Attr::Number(self.heads as f64)),
            ("key_dim", Attr::Number(self.key_dim as f64)),
            ("scale", Attr::Number(self.scale)),
        ]
    }
}

pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("q", Kind::Float), ("c", Kind::Float), ("r", Kind::Float), ("w", Kind::Float)], 0)?;
    let (heads, key_dim) = (call.count("heads")?, call.count("key_dim")?);
    let scale = call.number("scale", 1e-9..=1e9)?;
    let (q, c, r, w) = (call.shape(0), call.shape(1), call.shape(2), call.shape(3));
    let rows = c.rows() == Dim::PosN && r.rows() == Dim::PosN;
    call.hold(rows, "c and r as rows [.. pos+n]")?;
    let expanded =
        w.fixed_rows().filter(|rows| w.0.len() == 2 && w.cols() == c.cols() && rows.is_multiple_of(heads));
    let per_head = expanded.map_or(0, |rows| rows / heads);
    call.hold(per_head > key_dim, "w [heads · (key_dim + value_dim), latent]")?;
    let wanted = key_dim.checked_add(r.cols()).and_then(|dim| dim.checked_mul(heads));
    call.hold(q.rows() == Dim::N && Some(q.cols()) == wanted, "q [n, heads · (key_dim + rope_dim)]")?;
    let shape = Shape::matrix(Dim::N, heads * (per_head - key_dim));
    Ok((Op::LatentAttend(LatentAttend { heads, key_dim, scale }), shape))
}
