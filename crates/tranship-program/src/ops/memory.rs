//! Operations that go over the step's rows in order and advance a memory by each: `gated_delta`, `decayed_linear` and
//! `state_space`; and `log_decay`, which makes the gates of the first. Their first operand is the memory, and they are
//! written as `y, s[..] = op(s[..], …)`. Row `i`'s result is read after row `i` has been taken in.

use super::{Call, Op};
use crate::{Attr, Columns, Dim, Kind, ProgramError, Shape};

/// The attributes of `gated_delta`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDelta {
    /// Heads of values and of the memory.
    pub heads: u64,
    /// Heads of queries and keys; divides `heads`.
    pub key_heads: u64,
    /// What results are multiplied by.
    pub scale: f64,
}

/// The attributes of `decayed_linear`.
#[derive(Clone, Debug, PartialEq)]
pub struct DecayedLinear {
    /// Heads.
    pub heads: u64,
    /// The factor of the slopes.
    pub rate: f64,
}

/// The attributes of `state_space`.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpace {
    /// Heads of the inputs and of the memory.
    pub heads: u64,
    /// Groups that share `b` and `c`; divides `heads`.
    pub groups: u64,
    /// What the decay is given as.
    pub form: DecayForm,
}

/// What a decay is given as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecayForm {
    /// The logarithm of the rate: Hugging Face checkpoints (`A_log`).
    Log,
    /// The negative rate itself: GGUF files.
    Negative,
}

impl DecayForm {
    /// The rate, from 0 up.
    pub fn rate(self, value: f64) -> f64 {
        match self {
            DecayForm::Log => value.exp(),
            DecayForm::Negative => -value,
        }
    }

    fn take(call: &mut Call<'_>) -> Result<DecayForm, ProgramError> {
        Ok(match call.word_or("form", &["log", "negative"])? {
            Some("negative") => DecayForm::Negative,
            _ => DecayForm::Log,
        })
    }

    fn attr(self) -> (&'static str, Attr) {
        let word = match self {
            DecayForm::Log => "log",
            DecayForm::Negative => "negative",
        };
        ("form", Attr::Word(word.into()))
    }
}

fn count(key: &'static str, value: u64) -> (&'static str, Attr) {
    (key, Attr::Number(value as f64))
}

/// The sizes of a memory `[heads, rows, cols]`.
fn memory(call: &Call<'_>, heads: u64) -> Result<(u64, u64), ProgramError> {
    let sizes: Vec<u64> =
        call.shape(0).0.iter().map(|a| if let Dim::Fixed(s) = a.size { s } else { 0 }).collect();
    let fits = sizes.len() == 3 && sizes[0] == heads;
    call.hold(fits, "a memory with the axes of its heads, keys and values")?;
    Ok((sizes.get(1).copied().unwrap_or(0), sizes.get(2).copied().unwrap_or(0)))
}

/// Whether an operand is rows of the step, of `parts` times `width` elements.
fn rows(shape: &Shape, parts: u64, width: u64) -> bool {
    shape.rows() == Dim::N && parts.checked_mul(width) == Some(shape.cols())
}

fn floats(call: &Call<'_>, names: &[&'static str]) -> Result<(), ProgramError> {
    let kinds: Vec<(&str, Kind)> = names.iter().map(|name| (*name, Kind::Float)).collect();
    call.operands(&kinds, 0)
}

impl GatedDelta {
    /// Heads of the memory, its values and its gates; and of queries and keys, where those of one lie together.
    pub(super) fn columns(&self, place: usize) -> Columns {
        Columns::Heads(if matches!(place, 1 | 2) { self.key_heads } else { self.heads })
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            count("heads", self.heads),
            count("key_heads", self.key_heads),
            ("scale", Attr::Number(self.scale)),
        ]
    }

    /// The gated delta rule (Yang et al., *Gated Delta Networks*, 2024; per channel: Kimi Linear, 2025). The memory
    /// `s` is `[heads, key_dim, value_dim]`, `q` and `k` `[n, key_heads · key_dim]`, `v` `[n, heads · value_dim]`,
    /// `beta` `[n, heads]`; `g` is the logarithm of the decay, `[n, heads]`, or `[n, heads · key_dim]` with one for
    /// each channel of the keys. For each row and head, whose queries and keys are of key head `h / (heads /
    /// key_heads)`:
    ///
    /// ```text
    /// s ← exp(g) · s
    /// s ← s + k ⊗ (beta · (v − sᵀ k))
    /// y = scale · sᵀ q
    /// ```
    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        floats(call, &["s", "q", "k", "v", "g", "beta"])?;
        let (heads, key_heads) = (call.count("heads")?, call.count("key_heads")?);
        let scale = call.number("scale", 1e-9..=1e9)?;
        call.hold(heads.is_multiple_of(key_heads), "heads to be a multiple of key_heads")?;
        let (key_dim, value_dim) = memory(call, heads)?;
        for i in [1, 2] {
            call.hold(rows(call.shape(i), key_heads, key_dim), "q and k [n, key_heads · key_dim]")?;
        }
        call.hold(rows(call.shape(3), heads, value_dim), "v [n, heads · value_dim]")?;
        let g = call.shape(4);
        let gates = rows(g, heads, 1) || rows(g, heads, key_dim);
        call.hold(gates, "g [n, heads] or [n, heads · key_dim]")?;
        call.hold(rows(call.shape(5), heads, 1), "beta [n, heads]")?;
        let y = call.shape(3).clone();
        Ok((Op::GatedDelta(GatedDelta { heads, key_heads, scale }), y))
    }
}

impl DecayedLinear {
    /// Heads throughout. The decay of each is by its number among all.
    pub(super) fn columns(&self) -> Columns {
        Columns::Heads(self.heads)
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![count("heads", self.heads), ("rate", Attr::Number(self.rate))]
    }

    /// What the memory of a head is multiplied by for each row: `exp(−rate · 2^(−8 (h + 1) / heads))`.
    pub fn decay(&self, head: u64) -> f64 {
        let slope = (-8.0 * (head + 1) as f64 / self.heads as f64).exp2();
        (-self.rate * slope).exp()
    }

    /// Linear attention with a fixed decay for each head (Lightning Attention: Qin et al., 2024; MiniMax-01, 2025). The
    /// memory `s` is `[heads, key_dim, value_dim]`, `q` and `k` are `[n, heads · key_dim]`, `v` `[n, heads ·
    /// value_dim]`: `s ← decay_h · s + k ⊗ v`, `y = sᵀ q`.
    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        floats(call, &["s", "q", "k", "v"])?;
        let heads = call.count("heads")?;
        let rate = call.number("rate", 0.0..=1e6)?;
        let (key_dim, value_dim) = memory(call, heads)?;
        for i in [1, 2] {
            call.hold(rows(call.shape(i), heads, key_dim), "q and k [n, heads · key_dim]")?;
        }
        call.hold(rows(call.shape(3), heads, value_dim), "v [n, heads · value_dim]")?;
        let y = call.shape(3).clone();
        Ok((Op::DecayedLinear(DecayedLinear { heads, rate }), y))
    }
}

impl StateSpace {
    /// Heads of the memory, its inputs and steps; and groups of `b` and `c`, whose heads lie together.
    pub(super) fn columns(&self, place: usize) -> Columns {
        match place {
            0 | 1 | 4 => Columns::Heads(self.heads),
            2 | 3 => Columns::Heads(self.groups),
            _ => Columns::All,
        }
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![count("heads", self.heads), count("groups", self.groups), self.form.attr()]
    }

    /// The state-space step of Mamba-2 (Dao and Gu, 2024). The memory `s` is `[heads, head_dim, state]`, `x` `[n, heads ·
    /// head_dim]`, `b` and `c` `[n, groups · state]`, `dt` `[n, heads]` (from 0 up), `a` and `d` `[heads]`. For each row
    /// and head, whose `b` and `c` are of group `h / (heads / groups)`, with the rate that `a` gives:
    ///
    /// ```text
    /// s ← exp(−rate · dt) · s + dt · x ⊗ b
    /// y = s c + d · x
    /// ```
    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        floats(call, &["s", "x", "b", "c", "dt", "a", "d"])?;
        let (heads, groups) = (call.count("heads")?, call.count("groups")?);
        let form = DecayForm::take(call)?;
        call.hold(heads.is_multiple_of(groups), "heads to be a multiple of groups")?;
        let (head_dim, state) = memory(call, heads)?;
        call.hold(rows(call.shape(1), heads, head_dim), "x [n, heads · head_dim]")?;
        for i in [2, 3] {
            call.hold(rows(call.shape(i), groups, state), "b and c [n, groups · state]")?;
        }
        call.hold(rows(call.shape(4), heads, 1), "dt [n, heads]")?;
        for i in [5, 6] {
            let one = call.shape(i).0.len() == 1 && call.shape(i).fixed_rows() == Some(heads);
            call.hold(one, "a and d [heads]")?;
        }
        let y = call.shape(1).clone();
        Ok((Op::StateSpace(StateSpace { heads, groups, form }), y))
    }
}

/// `log_decay(x, a, bias)`: `−rate_h · softplus(x + bias)`, the logarithm of a decay between 0 and 1. `x` and `bias`
/// are `[n, heads · dim]` and `[heads · dim]`, `a` `[heads]` gives each head's rate in the `form`.
pub(super) fn log_decay(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
    floats(call, &["x", "a", "bias"])?;
    let form = DecayForm::take(call)?;
    let (x, a, bias) = (call.shape(0), call.shape(1), call.shape(2));
    let heads = a.fixed_rows().filter(|heads| a.0.len() == 1 && x.cols().is_multiple_of(*heads));
    call.hold(x.rows() == Dim::N && heads.is_some(), "x [n, heads · dim] and a [heads]")?;
    call.hold(bias.0.len() == 1 && bias.fixed_rows() == Some(x.cols()), "a bias of x's width")?;
    Ok((Op::LogDecay(form), x.clone()))
}

/// The attributes of `log_decay`.
pub(super) fn log_decay_attrs(form: DecayForm) -> Vec<(&'static str, Attr)> {
    vec![form.attr()]
}

/// What `log_decay` asks: each column has its own decay.
pub(super) fn log_decay_columns(place: usize) -> Columns {
    if place == 0 { Columns::Each } else { Columns::All }
}
