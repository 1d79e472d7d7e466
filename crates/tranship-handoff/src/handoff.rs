//! A hand-off: the valid rows of every carried tensor at a position, with the contract they were made under.

use crate::digest::add;
use crate::{Contract, HandoffError, Progress, VERSION};
use blake3::Hasher;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use tranship_dtype::DType;

/// A sequence's state on its way from one session to another.
#[derive(Clone, Debug)]
pub struct Handoff {
    pub(crate) manifest: Manifest,
    pub(crate) state: Vec<HandoffTensor>,
    pub(crate) seal: Seal,
}

/// The manifest of a hand-off: what its file's metadata holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub format: String,
    pub version: u64,
    pub position: u64,
    pub tokens: String,
    pub next_token: Option<u32>,
    pub contract: Contract,
}

/// What a hand-off's seal was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seal {
    /// Made here, or read and found whole.
    Whole(String),
    /// Read, and not that of the content.
    Broken { content: String, found: String },
    /// Not there.
    Absent,
}

/// The name of the format in its manifest.
pub(crate) const FORMAT: &str = "tranship-handoff";

/// The valid rows of one carried tensor, row-major, in the order of its declared axes.
#[derive(Clone, Debug)]
pub struct HandoffTensor {
    /// The tensor's name.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// Valid rows, then the sizes of the other axes.
    pub shape: Vec<u64>,
    data: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl HandoffTensor {
    /// A tensor from its rows' bytes.
    pub fn new(name: impl Into<String>, dtype: DType, shape: Vec<u64>, bytes: Vec<u8>) -> HandoffTensor {
        let range = 0..bytes.len();
        HandoffTensor { name: name.into(), dtype, shape, data: Arc::new(bytes), range }
    }

    /// A tensor that is part of a larger buffer; `range` lies within it.
    pub(crate) fn part(
        name: String,
        dtype: DType,
        shape: Vec<u64>,
        data: Arc<Vec<u8>>,
        range: Range<usize>,
    ) -> HandoffTensor {
        HandoffTensor { name, dtype, shape, data, range }
    }

    /// The bytes of the rows.
    pub fn bytes(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }

    /// Rows: the size of the first axis.
    pub fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }
}

impl Handoff {
    /// A sealed hand-off of tensors. [`Contract::take`] makes one and holds it to the contract.
    pub(crate) fn new(contract: Contract, progress: Progress, state: Vec<HandoffTensor>) -> Handoff {
        let manifest = Manifest {
            format: FORMAT.into(),
            version: VERSION,
            position: progress.position,
            tokens: progress.digest.to_hex().to_string(),
            next_token: progress.next_token,
            contract,
        };
        let seal = Seal::Whole(content_digest(&manifest.to_line(), &state));
        Handoff { manifest, state, seal }
    }

    /// How far the sequence has come.
    ///
    /// # Errors
    /// [`HandoffError::Format`] when the digest of the tokens is none.
    pub fn progress(&self) -> Result<Progress, HandoffError> {
        let digest = blake3::Hash::from_hex(&self.manifest.tokens).map_err(|_| {
            HandoffError::Format(format!("`{}` is no digest of tokens", self.manifest.tokens))
        })?;
        Ok(Progress { position: self.position(), digest, next_token: self.next_token() })
    }

    /// Tokens that the state covers: the next step writes row `position`, counting from 0.
    pub fn position(&self) -> u64 {
        self.manifest.position
    }

    /// The digest of those tokens.
    pub fn tokens(&self) -> &str {
        &self.manifest.tokens
    }

    /// The token that follows, where the sender knew it.
    pub fn next_token(&self) -> Option<u32> {
        self.manifest.next_token
    }

    /// The contract that the state was made under.
    pub fn contract(&self) -> &Contract {
        &self.manifest.contract
    }

    /// The carried tensors, as the hand-off holds them.
    pub fn state(&self) -> &[HandoffTensor] {
        &self.state
    }

    /// A carried tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&HandoffTensor> {
        self.state.iter().find(|t| t.name == name)
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.state.iter().map(|t| t.bytes().len() as u64).sum()
    }

    /// The seal, if it is whole.
    pub fn seal(&self) -> Option<&str> {
        match &self.seal {
            Seal::Whole(digest) => Some(digest),
            _ => None,
        }
    }
}

impl Manifest {
    /// The manifest in one line of JSON: the form that is sealed.
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The digest that seals a hand-off: BLAKE3 over `tranship handoff 1`, a line feed, the manifest's line, a line
/// feed, and each tensor's bytes in the order in which the file holds them.
pub(crate) fn content_digest(manifest: &str, state: &[HandoffTensor]) -> String {
    let mut hasher = Hasher::new();
    hasher.update(b"tranship handoff 1\n");
    hasher.update(manifest.as_bytes());
    hasher.update(b"\n");
    for tensor in state {
        add(&mut hasher, tensor.bytes());
    }
    hasher.finalize().to_hex().to_string()
}
