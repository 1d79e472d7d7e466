//! Why a model cannot be run.

use tranship_backend::BackendError;
use tranship_ctx::CtxError;
use tranship_handoff::{HandoffError, Refusal};
use tranship_model::ModelError;
use tranship_program::ProgramError;
use tranship_weights::WeightsError;

/// Why a model cannot be opened, bound or run.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The files cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The model is not one that is known here, or its tensors do not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A program does not verify.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The policy cannot be applied.
    #[error(transparent)]
    Ctx(#[from] CtxError),
    /// The backend refuses.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A contract cannot be derived, or a hand-off not read or written.
    #[error(transparent)]
    Handoff(#[from] HandoffError),
    /// A hand-off does not fit.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The model has no weights: a bare configuration.
    #[error("{0} holds a configuration alone, and no weights to run")]
    NoWeights(String),
    /// A context outside what is possible.
    #[error("a context of {ctx} is not possible: wanted 1 to {most}")]
    Context {
        /// The context asked for.
        ctx: u64,
        /// The largest.
        most: u64,
    },
    /// Parts that are not all layers of a model, each once and in order.
    #[error("a layer split of {layers} layers in {parts} part{}: {what}", if *.parts == 1 { "" } else { "s" })]
    Layers {
        /// The model's layers.
        layers: usize,
        /// How many parts there are.
        parts: usize,
        /// Which layers are missing or doubled, or which part is wrong.
        what: String,
    },
    /// Programs of a part that carry something other than what the contract has for its layers.
    #[error("`{tensor}` of {part} {what}")]
    Carried {
        /// The carried tensor.
        tensor: String,
        /// The part: its layers and its backend.
        part: String,
        /// What was wanted and found.
        what: String,
    },
    /// A step failed while it ran on this sequence, so its state is not whole.
    #[error("the sequence was left incomplete by a step that failed")]
    Incomplete,
    /// A session would give another one's state away under its own name.
    #[error("the sequence is of a session of another model, policy or context")]
    Foreign,
    /// Nothing was given to run.
    #[error("there are no tokens to run")]
    NoTokens,
}
