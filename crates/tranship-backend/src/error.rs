//! Why a program cannot be compiled or a step cannot run.

use tranship_dtype::DType;
use tranship_tensor::TensorError;

/// Why a backend refuses.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BackendError {
    /// A weight of a program is not there.
    #[error("weight \"{0}\" is not there")]
    NoWeight(String),
    /// A weight is of another shape or type than its program says.
    #[error("weight \"{name}\" is {found}, wanted {wanted}")]
    WeightShape {
        /// The weight.
        name: String,
        /// Type and shape that the program wants.
        wanted: String,
        /// Type and shape that there are.
        found: String,
    },
    /// A table lists an expert that there is not.
    #[error("weight \"{name}\" lists {found} in row {row}, wanted experts from 0 to {last}")]
    Table {
        /// The weight.
        name: String,
        /// The row.
        row: usize,
        /// What is listed there.
        found: String,
        /// The last expert.
        last: u64,
    },
    /// The backend cannot do what a program asks.
    #[error("{backend} cannot run `{op}`: {why}")]
    Unsupported {
        /// The backend.
        backend: String,
        /// The operation.
        op: String,
        /// What it lacks.
        why: String,
    },
    /// The programs of a chain do not fit together.
    #[error("the chain's programs do not fit: {0}")]
    Chain(String),
    /// A segment goes past the rows that its state has.
    #[error("position {position} and {rows} more rows are past the context of {ctx}")]
    Context {
        /// Rows already there.
        position: usize,
        /// Rows of the step.
        rows: usize,
        /// Rows that the state has.
        ctx: usize,
    },
    /// A token is not in the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// The size of the vocabulary.
        vocab: usize,
    },
    /// A batch is not of the form that the step takes.
    #[error("{0}")]
    Batch(String),
    /// A carried tensor is read or written outside its rows, or with the wrong number of bytes.
    #[error("carried tensor {tensor}: {what}")]
    State {
        /// The tensor's name.
        tensor: String,
        /// What was wanted and found.
        what: String,
    },
    /// A value could not be converted.
    #[error("{value} to {dtype}: {source}")]
    Convert {
        /// The value's name.
        value: String,
        /// The type wanted.
        dtype: DType,
        /// Why not.
        source: TensorError,
    },
    /// The device failed.
    #[error("{backend}: {what}")]
    Device {
        /// The backend.
        backend: String,
        /// What the device said.
        what: String,
    },
}
