//! `route(x, w, bias, …)` and `route_by_table(x, w, table, tokens, …)`: which experts a row goes to, and with what
//! weights.
//!
//! The scores of a row are those of `x · wᵀ`, `x` `[n, in]` and `w` `[experts, in]`. The result is `[n, experts]`, the
//! weight of each expert that is chosen and 0 for all others:
//!
//! 1. `logits = x · wᵀ`, plus `bias` with `bias: logits`;
//! 2. `p = softmax(logits)`, `sigmoid(logits)` or `sqrt(softplus(logits))`, by `score`;
//! 3. the `top_k` experts with the highest `p`, or `p + bias` with `bias: choice`; of equal ones the earlier. With
//!    `groups`, experts are in so many equal groups, and only those of the `top_groups` groups are open whose two best
//!    add to the most (or whose best is the most, with `group_score: max`);
//! 4. their weights are `p`, divided by `sum + eps` of the chosen with `normalize: yes`, times `scale`.
//!
//! Softmax over the chosen alone is softmax over all, normalized. By a table, the experts of a row are those that `table`
//! `[vocab, top_k]` lists for its token (DeepSeek-V4, 2026). Sums are in the accumulation type, and nothing is rounded
//! before the weights.

use super::{Call, Op};
use crate::{Attr, Dim, Kind, ProgramError, Shape};

/// The attributes of routing.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Experts of a row.
    pub top_k: u64,
    /// What is made of logits.
    pub score: Score,
    /// What the bias is added to, where there is one.
    pub bias: Option<RouteBias>,
    /// Whether weights are divided by their sum.
    pub normalize: bool,
    /// Added to that sum.
    pub eps: f64,
    /// What weights are multiplied by.
    pub scale: f64,
    /// How experts are grouped, where they are.
    pub groups: Option<Groups>,
}

/// Groups of experts, of which some are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// Groups; divides the experts.
    pub groups: u64,
    /// Groups that are open.
    pub top_groups: u64,
    /// Whether a group's score is that of its best expert, and not the sum of its two best.
    pub by_max: bool,
}

/// What is made of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Each on its own.
    Sigmoid,
    /// `sqrt(ln(1 + e^x))`, each on its own.
    SqrtSoftplus,
}

/// What a bias of routing is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteBias {
    /// The logits.
    Logits,
    /// The scores, for the choice alone: weights are without it.
    Choice,
}

impl Score {
    fn word(self) -> &'static str {
        match self {
            Score::Softmax => "softmax",
            Score::Sigmoid => "sigmoid",
            Score::SqrtSoftplus => "sqrt_softplus",
        }
    }
}

impl Route {
    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let word = |key, word: &str| (key, Attr::Word(word.to_owned()));
        let mut attrs = vec![("top_k", Attr::Number(self.top_k as f64)), word("score", self.score.word())];
        attrs.extend(self.bias.map(|bias| match bias {
            RouteBias::Logits => word("bias", "logits"),
            RouteBias::Choice => word("bias", "choice"),
        }));
        attrs.push(word("normalize", if self.normalize { "yes" } else { "no" }));
        attrs.extend([("eps", Attr::Number(self.eps)), ("scale", Attr::Number(self.scale))]);
        if let Some(Groups { groups, top_groups, by_max }) = self.groups {
            attrs.push(("groups", Attr::Number(groups as f64)));
            attrs.push(("top_groups", Attr::Number(top_groups as f64)));
            attrs.push(word("group_score", if by_max { "max" } else { "top2" }));
        }
        attrs
    }

    fn take(call: &mut Call<'_>, experts: u64) -> Result<Route, ProgramError> {
        let top_k = call.count("top_k")?;
        call.hold_attrs(top_k <= experts, "`top_k` at most the experts")?;
        let score = match call.word_or("score", &["softmax", "sigmoid", "sqrt_softplus"])? {
            Some("sigmoid") => Score::Sigmoid,
            Some("sqrt_softplus") => Score::SqrtSoftplus,
            _ => Score::Softmax,
        };
        let normalize = call.flag_or("normalize", false)?;
        let eps = call.number_or("eps", 0.0..=1.0)?.unwrap_or(0.0);
        let scale = call.number_or("scale", 1e-9..=1e9)?.unwrap_or(1.0);
        Ok(Route { top_k, score, bias: None, normalize, eps, scale, groups: None })
    }

    pub(super) fn lift(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        call.operands(&[("x", Kind::Float), ("w", Kind::Float), ("bias", Kind::Float)], 1)?;
        let experts = experts(call)?;
        let mut route = Route::take(call, experts)?;
        let bias = call.word_or("bias", &["logits", "choice"])?;
        call.hold_attrs(
            bias.is_some() == call.optional(2).is_some(),
            "`bias` to say what the bias is added to",
        )?;
        route.bias = bias.map(|word| if word == "logits" { RouteBias::Logits } else { RouteBias::Choice });
        if let Some(bias) = call.optional(2) {
            call.hold(bias.0.len() == 1 && bias.fixed_rows() == Some(experts), "a bias [experts]")?;
        }
        if let Some(groups) = call.count_or("groups", 1)? {
            let top_groups = call.count("top_groups")?;
            let by_max = call.word_or("group_score", &["top2", "max"])? == Some("max");
            let whole = experts.is_multiple_of(groups) && top_groups <= groups;
            call.hold_attrs(whole, "`groups` to divide the experts, and `top_groups` at most as many")?;
            let open = (experts / groups) * top_groups;
            call.hold_attrs(route.top_k <= open, "`top_k` at most the experts of the open groups")?;
            route.groups = Some(Groups { groups, top_groups, by_max });
        }
        Ok((Op::Route(route), Shape::matrix(Dim::N, experts)))
    }

    pub(super) fn lift_by_table(call: &mut Call<'_>) -> Result<(Op, Shape), ProgramError> {
        let kinds = [("x", Kind::Float), ("w", Kind::Float), ("table", Kind::Float), ("tokens", Kind::Index)];
        call.operands(&kinds, 0)?;
        let experts = experts(call)?;
        let route = Route::take(call, experts)?;
        let (table, tokens) = (call.shape(2), call.shape(3));
        let fits = table.fixed_rows().is_some() && table.0.len() == 2 && table.cols() == route.top_k;
        call.hold(fits, "a table [vocab, top_k]")?;
        call.hold(tokens.0.len() == 1 && tokens.rows() == Dim::N, "an index [n] as tokens")?;
        Ok((Op::RouteByTable(route), Shape::matrix(Dim::N, experts)))
    }
}

/// The experts, of `x` `[n, in]` and `w` `[experts, in]`.
fn experts(call: &Call<'_>) -> Result<u64, ProgramError> {
    let (x, w) = (call.shape(0), call.shape(1));
    let fits = x.rows() == Dim::N && w.0.len() == 2 && w.cols() == x.cols();
    call.hold(fits && w.fixed_rows().is_some(), "x [n, in] and w [experts, in]")?;
    Ok(w.fixed_rows().unwrap_or(1))
}
