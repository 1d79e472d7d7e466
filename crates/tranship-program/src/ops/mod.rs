//! The operations: one file each, or for a few that belong together, with operands, attributes, shape rule and formula.
//!
//! A new operation is a file here, a plain loop in the reference interpreter, and one file of the same name in
//! each backend. `docs/ops.md` states the meanings in full.

mod attend;
mod call;
mod columns;
mod compressed;
mod conv;
mod elementwise;
mod experts;
mod gather;
mod latent_attend;
mod linear;
mod memory;
mod rms_norm;
mod rope;
mod route;
mod streams;

pub use attend::Attend;
pub use call::Call;
pub use columns::Slice;
pub use compressed::{Choose, Compress, CompressedAttend};
pub use elementwise::Unary;
pub use experts::{ExpertAct, Experts};
pub use latent_attend::LatentAttend;
pub use linear::Linear;
pub use memory::{DecayForm, DecayedLinear, GatedDelta, StateSpace};
pub use rms_norm::{L2Norm, RmsNorm};
pub use rope::{Rope, RopeStyle, Scaling};
pub use route::{Groups, Route, RouteBias, Score};
pub use streams::StreamGates;

use crate::error::{ProgramError, Rule, fault};
use crate::{Attr, Columns, Kind, Shape};
use tranship_dtype::DType;

/// An operation with its attributes.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Rows of a table, by index.
    Gather,
    /// Root-mean-square normalization.
    RmsNorm(RmsNorm),
    /// Normalization by length.
    L2Norm(L2Norm),
    /// `x · wᵀ`, with a bias where there is one.
    Linear(Linear),
    /// Rotary position embedding.
    Rope(Rope),
    /// Causal scaled dot-product attention with grouped heads.
    Attend(Attend),
    /// Attention over compressed rows that weights expand.
    LatentAttend(LatentAttend),
    /// Rows of a span of positions, made one.
    Compress(Compress),
    /// The compressed rows that each query reads.
    Choose(Choose),
    /// Attention over a sliding window and compressed rows.
    CompressedAttend(CompressedAttend),
    /// `x · sigmoid(x)`.
    Silu,
    /// Another element-wise function.
    Unary(Unary),
    /// Element-wise sum.
    Add,
    /// Element-wise product.
    Mul,
    /// Columns of a row's equal parts.
    Slice(Slice),
    /// Each row as often, side by side.
    Tile(
        /// How often.
        u64,
    ),
    /// Rows from before the step, then the step's own.
    Join,
    /// Causal convolution over positions, each channel on its own.
    Conv,
    /// The logarithm of a decay.
    LogDecay(DecayForm),
    /// The gated delta rule.
    GatedDelta(GatedDelta),
    /// Linear attention with a fixed decay for each head.
    DecayedLinear(DecayedLinear),
    /// The state-space step of Mamba-2.
    StateSpace(StateSpace),
    /// Weights of the experts that a row goes to.
    Route(Route),
    /// As `Route`, with experts by the row's token.
    RouteByTable(Route),
    /// The feed-forward parts that a row is routed to.
    Experts(Experts),
    /// Gates of several residual streams.
    StreamGates(StreamGates),
    /// Streams into one row.
    StreamCollapse(
        /// How many streams.
        u64,
    ),
    /// A row back onto the streams.
    StreamExpand(
        /// How many streams.
        u64,
    ),
    /// A change of dtype. No author writes it: the typing pass alone places it.
    Cast(DType),
}

/// How an operation meets the numeric policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Computed in the accumulation type; the result comes back at the activations' type.
    Accum,
    /// Computed in the join of the operands' types.
    Join,
    /// Values are moved, and nothing is computed.
    Move,
}

impl Op {
    /// The names that programs use.
    pub const NAMES: [&'static str; 35] = [
        "gather",
        "rms_norm",
        "l2_norm",
        "linear",
        "rope",
        "attend",
        "latent_attend",
        "compress",
        "choose",
        "compressed_attend",
        "silu",
        "gelu",
        "gelu_tanh",
        "sigmoid",
        "softplus",
        "relu2",
        "softcap",
        "scale",
        "clamp",
        "add",
        "mul",
        "slice",
        "tile",
        "join",
        "conv",
        "log_decay",
        "gated_delta",
        "decayed_linear",
        "state_space",
        "route",
        "route_by_table",
        "experts",
        "stream_gates",
        "stream_collapse",
        "stream_expand",
    ];

    /// Resolves a call: the operation, and the shape of its result.
    pub(crate) fn lift(mut call: Call<'_>) -> Result<(Op, Shape), ProgramError> {
        let lifted = match call.name() {
            "gather" => gather::lift(&mut call),
            "rms_norm" => RmsNorm::lift(&mut call),
            "l2_norm" => L2Norm::lift(&mut call),
            "linear" => linear::lift(&mut call),
            "rope" => rope::lift(&mut call),
            "attend" => attend::lift(&mut call),
            "latent_attend" => latent_attend::lift(&mut call),
            "compress" => Compress::lift(&mut call),
            "choose" => Choose::lift(&mut call),
            "compressed_attend" => CompressedAttend::lift(&mut call),
            "silu" => elementwise::unary(&mut call, Op::Silu),
            "gelu" | "gelu_tanh" | "sigmoid" | "softplus" | "relu2" | "softcap" | "scale" | "clamp" => {
                Unary::lift(&mut call)
            }
            "add" => elementwise::binary(&mut call, Op::Add),
            "mul" => elementwise::binary(&mut call, Op::Mul),
            "slice" => Slice::lift(&mut call),
            "tile" => columns::tile(&mut call),
            "join" => columns::join(&mut call),
            "conv" => conv::lift(&mut call),
            "log_decay" => memory::log_decay(&mut call),
            "gated_delta" => GatedDelta::lift(&mut call),
            "decayed_linear" => DecayedLinear::lift(&mut call),
            "state_space" => StateSpace::lift(&mut call),
            "route" => Route::lift(&mut call),
            "route_by_table" => Route::lift_by_table(&mut call),
            "experts" => experts::lift(&mut call),
            "stream_gates" => StreamGates::lift(&mut call),
            "stream_collapse" => streams::collapse(&mut call),
            "stream_expand" => streams::expand(&mut call),
            other => {
                let known = Op::NAMES.join(", ");
                Err(fault(Rule::UnknownOp, call.span(), format!("`{other}` is none of {known}")))
            }
        }?;
        call.finish()?;
        Ok(lifted)
    }

    /// The operation's name.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Gather => "gather",
            Op::RmsNorm(_) => "rms_norm",
            Op::L2Norm(_) => "l2_norm",
            Op::Linear(_) => "linear",
            Op::Rope(_) => "rope",
            Op::Attend(_) => "attend",
            Op::LatentAttend(_) => "latent_attend",
            Op::Compress(_) => "compress",
            Op::Choose(_) => "choose",
            Op::CompressedAttend(_) => "compressed_attend",
            Op::Silu => "silu",
            Op::Unary(op) => op.name(),
            Op::Add => "add",
            Op::Mul => "mul",
            Op::Slice(_) => "slice",
            Op::Tile(_) => "tile",
            Op::Join => "join",
            Op::Conv => "conv",
            Op::LogDecay(_) => "log_decay",
            Op::GatedDelta(_) => "gated_delta",
            Op::DecayedLinear(_) => "decayed_linear",
            Op::StateSpace(_) => "state_space",
            Op::Route(_) => "route",
            Op::RouteByTable(_) => "route_by_table",
            Op::Experts(_) => "experts",
            Op::StreamGates(_) => "stream_gates",
            Op::StreamCollapse(_) => "stream_collapse",
            Op::StreamExpand(_) => "stream_expand",
            Op::Cast(_) => "cast",
        }
    }

    /// The attributes, as text gives them.
    pub fn attrs(&self) -> Vec<(&'static str, Attr)> {
        match self {
            Op::RmsNorm(op) => op.attrs(),
            Op::L2Norm(op) => op.attrs(),
            Op::Linear(op) => op.attrs(),
            Op::Rope(op) => op.attrs(),
            Op::Attend(op) => op.attrs(),
            Op::LatentAttend(op) => op.attrs(),
            Op::Compress(op) => op.attrs(),
            Op::Choose(op) => op.attrs(),
            Op::CompressedAttend(op) => op.attrs(),
            Op::Unary(op) => op.attrs(),
            Op::Slice(op) => op.attrs(),
            Op::Tile(times) => vec![("times", Attr::Number(*times as f64))],
            Op::LogDecay(form) => memory::log_decay_attrs(*form),
            Op::GatedDelta(op) => op.attrs(),
            Op::DecayedLinear(op) => op.attrs(),
            Op::StateSpace(op) => op.attrs(),
            Op::Route(op) | Op::RouteByTable(op) => op.attrs(),
            Op::Experts(op) => op.attrs(),
            Op::StreamGates(op) => op.attrs(),
            Op::StreamCollapse(streams) | Op::StreamExpand(streams) => {
                vec![("streams", Attr::Number(*streams as f64))]
            }
            Op::Cast(to) => vec![("to", Attr::Word(to.to_string()))],
            Op::Gather | Op::Silu | Op::Add | Op::Mul | Op::Join | Op::Conv => Vec::new(),
        }
    }

    /// How the operation meets the numeric policy.
    pub fn precision(&self) -> Precision {
        match self {
            Op::Add | Op::Mul => Precision::Join,
            Op::Gather | Op::Slice(_) | Op::Tile(_) | Op::Join | Op::Cast(_) => Precision::Move,
            _ => Precision::Accum,
        }
    }

    /// What the result holds.
    pub fn kind(&self) -> Kind {
        if matches!(self, Op::Choose(_)) { Kind::Index } else { Kind::Float }
    }

    /// What is asked of the columns of the operand in a place, for the result to be dealt out between holders.
    pub fn columns(&self, place: usize) -> Columns {
        match self {
            Op::RmsNorm(op) => op.columns(place),
            Op::L2Norm(op) => Columns::Parts(op.heads),
            Op::Linear(_) => linear::columns(place),
            Op::Rope(op) => op.columns(place),
            Op::Attend(op) => op.columns(place),
            Op::LatentAttend(op) => op.columns(place),
            Op::Compress(op) => op.columns(place),
            Op::CompressedAttend(op) => op.columns(place),
            Op::Slice(op) => op.columns(),
            Op::Silu | Op::Unary(_) | Op::Add | Op::Mul | Op::Join | Op::Cast(_) => Columns::Each,
            Op::Conv => conv::columns(place),
            Op::LogDecay(_) => memory::log_decay_columns(place),
            Op::GatedDelta(op) => op.columns(place),
            Op::DecayedLinear(op) => op.columns(),
            Op::StateSpace(op) => op.columns(place),
            Op::Gather
            | Op::Choose(_)
            | Op::Tile(_)
            | Op::Route(_)
            | Op::RouteByTable(_)
            | Op::Experts(_)
            | Op::StreamGates(_)
            | Op::StreamCollapse(_)
            | Op::StreamExpand(_) => Columns::All,
        }
    }

    /// Whether the operation advances a state, which is its first operand.
    pub fn updates(&self) -> bool {
        matches!(self, Op::GatedDelta(_) | Op::DecayedLinear(_) | Op::StateSpace(_))
    }

    /// Whether the operation is attention, or chooses rows for it: rows of past positions that it reads are a cache.
    pub fn attends(&self) -> bool {
        matches!(self, Op::Attend(_) | Op::LatentAttend(_) | Op::CompressedAttend(_) | Op::Choose(_))
    }

    /// Whether the operation takes rows from before the step joined with the step's own: it knows where each stands, and
    /// leaves out those before the first position.
    pub fn reaches_back(&self) -> bool {
        matches!(self, Op::Conv | Op::Attend(_) | Op::Compress(_) | Op::CompressedAttend(_))
    }

    /// The weights that activations may meet as 8-bit blocks: the places among the operands of the matrices that the
    /// first operand is multiplied with. They are met so if all of them are block-encoded.
    pub fn blocks_against(&self) -> &'static [usize] {
        match self {
            Op::Linear(_) => &[1],
            Op::Experts(op) if op.gated => &[2, 3],
            Op::Experts(_) => &[2],
            _ => &[],
        }
    }

    /// Whether operand `i` takes part in the promotion of dtypes. A table of whole numbers does not.
    pub fn promotes(&self, i: usize) -> bool {
        !(matches!(self, Op::RouteByTable(_)) && i == 2)
    }
}
