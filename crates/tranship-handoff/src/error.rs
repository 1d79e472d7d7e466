//! Why a hand-off is refused: each reason by name, and all of them at once.

use crate::{MOST_HOLDERS, Shown};
use std::fmt;
use tranship_dtype::DType;
use tranship_model::ModelError;
use tranship_program::{ProgramError, Role};

/// One reason to refuse a hand-off. Each is displayed as a sentence that names the tensor and both sizes; what comes from
/// the hand-off is in it as [`Shown`] gives it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandoffError {
    /// A model's programs could not be authored.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A model's programs could not be lifted, or prefill and decode carry different tensors.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A program takes something over from the step before it, or reads what nothing gives it, and it is no layer's
    /// carried tensor: no hand-off would hold it.
    #[error(
        "`{name}` of {program} is {role}: it is no layer's carried tensor, and no hand-off would hold it"
    )]
    Homeless {
        /// The tensor.
        name: String,
        /// The program that declares it.
        program: String,
        /// What it is there.
        role: Role,
    },
    /// A carried tensor is not in the hand-off.
    #[error("`{}` of layer {layer} is missing", Shown(name))]
    Missing {
        /// The tensor.
        name: String,
        /// Its layer.
        layer: u64,
    },
    /// The hand-off holds a tensor that the model does not carry.
    #[error("`{}` is no carried tensor of this model", Shown(name))]
    Unknown {
        /// The tensor.
        name: String,
    },
    /// A tensor has more or fewer rows than are valid at the hand-off's position.
    #[error("`{}` has {found} rows; {wanted} are valid after {position} tokens", Shown(name))]
    Length {
        /// The tensor.
        name: String,
        /// Valid rows at the position.
        wanted: u64,
        /// Rows that there are.
        found: u64,
        /// The position.
        position: u64,
    },
    /// A tensor has more or fewer bytes than its shape takes.
    #[error("`{}` has {found} bytes; its shape takes {wanted}", Shown(name))]
    Size {
        /// The tensor.
        name: String,
        /// Bytes that its shape takes.
        wanted: String,
        /// Bytes that there are.
        found: u64,
    },
    /// A tensor is given more than once.
    #[error("`{}` is there twice", Shown(name))]
    Twice {
        /// The tensor.
        name: String,
    },
    /// A tensor has other axes, or the same in another order.
    #[error("`{}` has axes {}, wanted {wanted}", Shown(name), Shown(found))]
    Axes {
        /// The tensor.
        name: String,
        /// The axes that the contract gives it.
        wanted: String,
        /// The axes that there are.
        found: String,
    },
    /// A tensor has another element type, and no conversion was declared.
    #[error("`{}` is {found}, wanted {wanted} (a conversion must be declared)", Shown(name))]
    Dtype {
        /// The tensor.
        name: String,
        /// The type that the contract gives it.
        wanted: DType,
        /// The type that it has.
        found: DType,
    },
    /// No step can follow at this position: it would write row `position` of `ctx`, counting from 0.
    #[error("position {position} leaves no row for the next step in a context of {ctx}")]
    Position {
        /// Tokens that the hand-off covers.
        position: u64,
        /// Rows that the receiver has.
        ctx: u64,
    },
    /// The hidden rows at a cut have another width, or there are more or fewer streams of them.
    #[error("hidden rows are {found}, wanted {wanted} (width × streams)")]
    Hidden {
        /// Ours.
        wanted: String,
        /// Theirs.
        found: String,
    },
    /// The hand-off was made from other weights.
    #[error("weights differ: this model has {wanted}, the hand-off was made with {}", Shown(found))]
    Weights {
        /// Our digest.
        wanted: String,
        /// Theirs.
        found: String,
    },
    /// The hand-off was made by other programs.
    #[error("programs differ: this model has {wanted}, the hand-off was made with {}", Shown(found))]
    Programs {
        /// Our digest.
        wanted: String,
        /// Theirs.
        found: String,
    },
    /// The hand-off was made under another numeric policy, and no conversion was declared.
    #[error(
        "policies differ: here {wanted}; in the hand-off {} (a conversion must be declared)",
        Shown(found)
    )]
    Policy {
        /// Ours.
        wanted: String,
        /// Theirs.
        found: String,
    },
    /// The hand-off covers other tokens than the ones expected.
    #[error(
        "tokens differ: the expected {count} have digest {wanted}, the hand-off's {position} have {}",
        Shown(found)
    )]
    Tokens {
        /// The number of tokens expected.
        count: u64,
        /// The digest expected.
        wanted: String,
        /// The tokens that the hand-off covers.
        position: u64,
        /// Its digest.
        found: String,
    },
    /// The next token is outside the vocabulary.
    #[error("the next token, {token}, is outside the vocabulary of {vocab}")]
    NextToken {
        /// The token.
        token: u32,
        /// Tokens in the vocabulary.
        vocab: u64,
    },
    /// The hand-off carries no seal.
    #[error("the hand-off is not sealed")]
    Unsealed,
    /// The seal is not that of what the hand-off holds.
    #[error("the seal is broken: it is {}, and the content has {wanted}", Shown(found))]
    Seal {
        /// The digest of the content.
        wanted: String,
        /// The seal that the hand-off carries.
        found: String,
    },
    /// A tensor holds NaN.
    #[error("`{}` holds NaN in row {row}", Shown(name))]
    Nan {
        /// The tensor.
        name: String,
        /// The first row that does.
        row: u64,
    },
    /// So many holders cannot have a share of a tensor each: a cut would break one of its units.
    #[error("`{}` has {count} units of {}, which {of} holders cannot share", Shown(name), Shown(axis))]
    Cut {
        /// The tensor.
        name: String,
        /// What the axis counts.
        axis: String,
        /// Units of a run on that axis.
        count: u64,
        /// The holders.
        of: u64,
    },
    /// There is no such holder.
    #[error(
        "there is no share {index} of {of}: holders are counted from 0, and are at most {}",
        MOST_HOLDERS
    )]
    Holder {
        /// The holder's number.
        index: u64,
        /// The holders.
        of: u64,
    },
    /// There are no such layers.
    #[error("layers {from}..{to} are not among the contract's layers {first}..{last}")]
    Layers {
        /// The first layer.
        from: u64,
        /// The layer after the last.
        to: u64,
        /// The contract's first layer.
        first: u64,
        /// The layer after its last.
        last: u64,
    },
    /// The hand-off is another share of the state.
    #[error("the hand-off is {found} of the state, wanted {wanted}")]
    Share {
        /// Ours.
        wanted: String,
        /// Theirs.
        found: String,
    },
    /// Of the parts of a hand-off, one cannot be joined with others.
    #[error("{part}: {error}")]
    Part {
        /// The part.
        part: String,
        /// What is wrong with it.
        error: Box<HandoffError>,
    },
    /// The parts of a hand-off are not all there.
    #[error("no part has {what}")]
    Lost {
        /// What is in no part.
        what: String,
    },
    /// Two parts of a hand-off are the same one.
    #[error("two parts have {what}")]
    Doubled {
        /// What is in two parts.
        what: String,
    },
    /// The parts of a hand-off are not of one.
    #[error("{} differs between parts: {} in the first, {} here", Shown(what), Shown(wanted), Shown(found))]
    Differs {
        /// What differs.
        what: String,
        /// The first part's.
        wanted: String,
        /// This part's.
        found: String,
    },
    /// The manifest and the tensors of a hand-off do not agree.
    #[error("`{}` is {found} in the file and {wanted} in its manifest", Shown(name))]
    Manifest {
        /// The tensor.
        name: String,
        /// What the manifest says.
        wanted: String,
        /// What the file holds.
        found: String,
    },
    /// The format's version is not one that is read here.
    #[error("the hand-off has format version {found}; version {wanted} is read here")]
    Version {
        /// The version that is read.
        wanted: u64,
        /// The version found.
        found: u64,
    },
    /// The bytes are no hand-off.
    #[error("this is no hand-off: {}", Shown(.0))]
    Format(String),
    /// The bytes end before the hand-off does.
    #[error("the hand-off ends early: {}", Shown(.0))]
    Ends(String),
    /// A file could not be read or written.
    #[error("{path}: {what}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        what: String,
    },
}

/// Every reason for which a hand-off is refused.
#[derive(Debug)]
pub struct Refusal {
    /// The reasons; there is at least one.
    pub errors: Vec<HandoffError>,
}

impl HandoffError {
    /// The carried tensor that it is about, where it is about one.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            HandoffError::Missing { name, .. }
            | HandoffError::Unknown { name }
            | HandoffError::Length { name, .. }
            | HandoffError::Size { name, .. }
            | HandoffError::Twice { name }
            | HandoffError::Axes { name, .. }
            | HandoffError::Dtype { name, .. }
            | HandoffError::Nan { name, .. }
            | HandoffError::Cut { name, .. }
            | HandoffError::Manifest { name, .. } => Some(name),
            HandoffError::Part { error, .. } => error.tensor(),
            _ => None,
        }
    }

    /// What an input said that is no file of a name known here.
    pub(crate) fn input(error: std::io::Error) -> HandoffError {
        HandoffError::Io { path: "the hand-off".into(), what: error.to_string() }
    }
}

impl From<HandoffError> for Refusal {
    fn from(error: HandoffError) -> Refusal {
        Refusal { errors: vec![error] }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            write!(f, "{}{error}", if i > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}
