//! Everything that can be wrong between a checkpoint and its programs.

use crate::{Cut, Part, SourceError};
use std::{fmt, path::PathBuf};
use tranship_dtype::DType;
use tranship_program::ProgramError;
use tranship_weights::WeightsError;

/// Why a model was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Safetensors without a `config.json` beside them.
    #[error("{}: no config.json beside the weights says what model they are", path.display())]
    NoConfig {
        /// What was opened.
        path: PathBuf,
    },
    /// The configuration is no JSON object.
    #[error("the configuration is not a JSON object, found {found}")]
    NotAnObject {
        /// What it is.
        found: String,
    },
    /// A key that the family needs and the configuration lacks.
    #[error("`{key}`: missing, wanted {wanted}")]
    MissingKey {
        /// The key, with those it lies under: `rope_scaling.factor`.
        key: String,
        /// What its value should be.
        wanted: String,
    },
    /// A value that cannot be: of another type, out of its range, at odds with another.
    #[error("`{key}`: wanted {wanted}, found {found}")]
    Value {
        /// The key, with those it lies under.
        key: String,
        /// What its value should be.
        wanted: String,
        /// What it is, in short.
        found: String,
    },
    /// A value that means something which no program can say yet.
    #[error("`{key}`: {found} is not supported ({supported})")]
    Unsupported {
        /// The key, with those it lies under.
        key: String,
        /// What it is.
        found: String,
        /// What is supported.
        supported: String,
    },
    /// Metadata that is missing or malformed.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Tensors that are not as the spec wants them; every one of them.
    #[error("{} of {wanted} tensors do not fit the model: {}", faults.len(), list(faults))]
    Tensors {
        /// How many the model wants.
        wanted: usize,
        /// What is wrong, in the order of the programs.
        faults: Vec<TensorFault>,
    },
    /// A layer that the model does not have.
    #[error("layer {layer}: the model has {layers} layers, counted from 0")]
    NoLayer {
        /// The layer asked for.
        layer: usize,
        /// How many there are.
        layers: usize,
    },
    /// A layer without a mixer and without a feed-forward part.
    #[error("layer {layer} has neither a mixer nor a feed-forward part")]
    NoParts {
        /// The layer.
        layer: usize,
    },
    /// A context length that is 0 or absurd.
    #[error("ctx={ctx}: wanted 1 to {} positions", crate::MAX_CTX)]
    Ctx {
        /// The length asked for.
        ctx: u64,
    },
    /// A part that the spec has and its checkpoint's names lack.
    #[error("the checkpoint's names have none for {part:?}")]
    NoName {
        /// The part.
        part: Part,
    },
    /// A program that the language refuses: sizes in the spec that do not fit together.
    #[error("program of {cut}: {source}")]
    Program {
        /// Which program.
        cut: Cut,
        /// The rule that it breaks, and where.
        source: ProgramError,
    },
}

/// One tensor that is not as the spec wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorFault {
    /// It is not there.
    Missing {
        /// Its name.
        name: String,
        /// The shape wanted.
        wanted: Vec<u64>,
    },
    /// It has another shape.
    Shape {
        /// Its name.
        name: String,
        /// The shape wanted.
        wanted: Vec<u64>,
        /// Its shape.
        found: Vec<u64>,
    },
    /// It is taken in parts, which do not make up its rows.
    Rows {
        /// Its name.
        name: String,
        /// The axis that is divided.
        axis: usize,
        /// The rows that the model takes.
        wanted: u64,
        /// The rows that there are.
        found: u64,
    },
    /// Its elements are no real numbers, or no integers where those are wanted.
    Elements {
        /// Its name.
        name: String,
        /// The type of its elements.
        found: DType,
        /// Whether integers are wanted: the expert numbers of a table.
        integers: bool,
    },
    /// It is put together from tensors, which do not make it up.
    Source(SourceError),
}

impl TensorFault {
    /// The tensor's name; of a weight that is put together, of the tensor at fault, where it is one.
    pub fn name(&self) -> &str {
        match self {
            TensorFault::Missing { name, .. }
            | TensorFault::Shape { name, .. }
            | TensorFault::Rows { name, .. }
            | TensorFault::Elements { name, .. } => name,
            TensorFault::Source(error) => error.name(),
        }
    }
}

impl fmt::Display for TensorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorFault::Missing { name, wanted } => write!(f, "`{name}` is missing, wanted {wanted:?}"),
            TensorFault::Shape { name, wanted, found } => {
                write!(f, "`{name}` is {found:?}, wanted {wanted:?}")
            }
            TensorFault::Rows { name, axis, wanted, found } => {
                write!(
                    f,
                    "`{name}` has {found} rows in axis {axis}, and the model's parts of it take {wanted}"
                )
            }
            TensorFault::Elements { name, found, integers } => {
                let wanted = if *integers { "integers" } else { "floats or blocks of them" };
                write!(f, "`{name}` holds {found}, wanted {wanted}")
            }
            TensorFault::Source(error) => write!(f, "{error}"),
        }
    }
}

fn list(faults: &[TensorFault]) -> String {
    faults.iter().map(|f| f.to_string()).collect::<Vec<_>>().join("; ")
}
