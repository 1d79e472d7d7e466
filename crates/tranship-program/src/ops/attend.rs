//! `attend(q, k, v, heads, kv_heads, scale)`: causal scaled dot-product attention with grouped heads.
//!
//! `q` is `[n, heads · head_dim]`; `k` and `v` are rows `[.. pos+n]` of caches whose rows hold `kv_heads`
//! vectors of `head_dim`. Query head `h` reads key and value head `h / (heads / kv_heads)`. The query of row `i`
//! stands at absolute position `pos + i` and sees the rows up to its own:
//! `y[i] = Σ_j softmax_j(scale · q[i]·k[j]) · v[j]` for `j ≤ pos + i` (Vaswani et al., 2017; Ainslie et al., 2023).

use super::{Call, Op};
use crate::{Attr, Dim, Kind, ProgramError, Shape};

/// The attributes of attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Attend {
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
}

impl Attend {
    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("heads", Attr::Number(self.heads as f64)),
            ("kv_heads", Attr::Number(self.kv_heads as f64)),
            ("scale", Attr::Number(self.scale)),
        ]
    }
}

pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    call.operands(&[("q", Kind::Float), ("k", Kind::Float), ("v", Kind::Float)], 0)?;
    let (heads, kv_heads) = (call.count("heads")?, call.count("kv_heads")?);
    let scale = call.number("scale", 1e-9..=1e9)?;
    let (q, k, v) = (call.shape(0), call.shape(1), call.shape(2));
    call.hold(heads.is_multiple_of(kv_heads), "heads to be a multiple of kv_heads")?;
    call.hold(q.rows() == Dim::N && q.cols().is_multiple_of(heads), "q [n, heads · head_dim]")?;
    let head_dim = q.cols() / heads;
    for rows in [k, v] {
        let fits = rows.rows() == Dim::PosN && rows.cols().is_multiple_of(kv_heads);
        call.hold(fits, "k and v as rows [.. pos+n] of kv_heads vectors")?;
    }
    call.hold(k.cols() == kv_heads * head_dim, "k with q's head size")?;
    call.hold(v.cols() == k.cols(), "v with k's head size")?;
    Ok((Op::Attend(Attend { heads, kv_heads, scale }), Shape::matrix(Dim::N, q.cols())))
}
