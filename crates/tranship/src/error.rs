//! The error of everything that this crate brings together.

use std::path::PathBuf;

/// Why something could not be done, by the crate that refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model could not be opened, bound or run.
    #[error(transparent)]
    Session(#[from] tranship_session::SessionError),
    /// A checkpoint could not be read.
    #[error(transparent)]
    Weights(#[from] tranship_weights::WeightsError),
    /// A model is not one that is known here.
    #[error(transparent)]
    Model(#[from] tranship_model::ModelError),
    /// A program does not verify.
    #[error(transparent)]
    Program(#[from] tranship_program::ProgramError),
    /// A policy cannot be applied.
    #[error(transparent)]
    Ctx(#[from] tranship_ctx::CtxError),
    /// A backend refuses.
    #[error(transparent)]
    Backend(#[from] tranship_backend::BackendError),
    /// A hand-off could not be read or written, or a contract not derived.
    #[error(transparent)]
    Handoff(#[from] tranship_handoff::HandoffError),
    /// A hand-off does not fit, for every reason that there is.
    #[error(transparent)]
    Refused(#[from] tranship_handoff::Refusal),
    /// Text could not be made into tokens, or tokens into text.
    #[error(transparent)]
    Text(#[from] tranship_text::TextError),
    /// A tensor could not be converted.
    #[error(transparent)]
    Tensor(#[from] tranship_tensor::TensorError),
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] tranship_residency::PlanError),
    /// A name is no backend.
    #[error("`{name}` is no backend; there are {known}")]
    UnknownBackend {
        /// The name.
        name: String,
        /// The names that there are, comma-separated.
        known: String,
    },
    /// A backend's device cannot be used as asked.
    #[error("{backend}: {what}")]
    Device {
        /// The backend.
        backend: &'static str,
        /// What it says.
        what: String,
    },
    /// A model says nothing of how text becomes tokens.
    #[error("{}: there is no tokenizer, wanted {wanted}", path.display())]
    NoTokenizer {
        /// The model.
        path: PathBuf,
        /// Where one would be.
        wanted: &'static str,
    },
    /// A file beside a model is no text.
    #[error("{}: {file} is not UTF-8", path.display())]
    NotText {
        /// The model.
        path: PathBuf,
        /// The file beside it.
        file: &'static str,
    },
    /// A text is no budget.
    #[error("budget `{text}`: {why}; wanted POOL=SIZE, as in host=8GiB,gpu=512MB")]
    Budget {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A size that cannot be counted, or is no whole number of blocks.
    #[error("{name}: {shape:?} in {dtype} is no countable number of whole blocks")]
    Size {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its type.
        dtype: tranship_dtype::DType,
    },
    /// The memory of this machine is not known.
    #[error("the memory of this machine is not known here; a budget must be given")]
    NoMemory,
    /// A file that this crate makes could not be written.
    #[error("{what}: {source}")]
    Io {
        /// What was to be written.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}
