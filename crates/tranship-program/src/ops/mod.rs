//! The operations: one file each, with the operation's operands, attributes, shape rule and formula.
//!
//! A new operation is a file here, a plain loop in the reference interpreter, and one file of the same name in
//! each backend. `docs/ops.md` states the meanings in full.

mod attend;
mod call;
mod elementwise;
mod gather;
mod linear;
mod rms_norm;
mod rope;

pub use attend::Attend;
pub use call::Call;
pub use rms_norm::RmsNorm;
pub use rope::{Rope, RopeStyle, Scaling};

use crate::error::{ProgramError, Rule, fault};
use crate::{Attr, Shape};
use tranship_dtype::DType;

/// An operation with its attributes.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Rows of a table, by index.
    Gather,
    /// Root-mean-square normalization with a gain.
    RmsNorm(RmsNorm),
    /// `x · wᵀ`, with a bias where there is one.
    Linear,
    /// Rotary position embedding.
    Rope(Rope),
    /// Causal scaled dot-product attention with grouped heads.
    Attend(Attend),
    /// `x · sigmoid(x)`.
    Silu,
    /// Element-wise sum.
    Add,
    /// Element-wise product.
    Mul,
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
    pub const NAMES: [&'static str; 8] =
        ["gather", "rms_norm", "linear", "rope", "attend", "silu", "add", "mul"];

    /// Resolves a call: the operation, and the shape of its result.
    pub(crate) fn lift(mut call: Call<'_>) -> Result<(Op, Shape), ProgramError> {
        let lifted = match call.name() {
            "gather" => gather::lift(&mut call),
            "rms_norm" => rms_norm::lift(&mut call),
            "linear" => linear::lift(&mut call),
            "rope" => rope::lift(&mut call),
            "attend" => attend::lift(&mut call),
            "silu" => elementwise::unary(&mut call, Op::Silu),
            "add" => elementwise::binary(&mut call, Op::Add),
            "mul" => elementwise::binary(&mut call, Op::Mul),
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
            Op::Linear => "linear",
            Op::Rope(_) => "rope",
            Op::Attend(_) => "attend",
            Op::Silu => "silu",
            Op::Add => "add",
            Op::Mul => "mul",
            Op::Cast(_) => "cast",
        }
    }

    /// The attributes, as text gives them.
    pub fn attrs(&self) -> Vec<(&'static str, Attr)> {
        match self {
            Op::RmsNorm(op) => op.attrs(),
            Op::Rope(op) => op.attrs(),
            Op::Attend(op) => op.attrs(),
            Op::Cast(to) => vec![("to", Attr::Word(to.to_string()))],
            Op::Gather | Op::Linear | Op::Silu | Op::Add | Op::Mul => Vec::new(),
        }
    }

    /// How the operation meets the numeric policy.
    pub fn precision(&self) -> Precision {
        match self {
            Op::RmsNorm(_) | Op::Linear | Op::Rope(_) | Op::Attend(_) | Op::Silu => Precision::Accum,
            Op::Add | Op::Mul => Precision::Join,
            Op::Gather | Op::Cast(_) => Precision::Move,
        }
    }
}
