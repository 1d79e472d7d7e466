//! A hand-off: the valid rows of every carried tensor at a position, with the contract they were made under.

use crate::pass::{Examined, examine};
use crate::unique::unique;
use crate::{Contract, HandoffError, Progress, VERSION};
use blake3::{Hash, Hasher};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use tranship_dtype::DType;

/// A sequence's state on its way from one session to another.
#[derive(Clone, Debug)]
pub struct Handoff {
    pub(crate) manifest: Manifest,
    /// The manifest as it is sealed: who made the hand-off chose its spaces and the order of its keys.
    pub(crate) line: String,
    pub(crate) state: Vec<HandoffTensor>,
    pub(crate) seal: Seal,
    pub(crate) streamed: bool,
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
    examined: OnceLock<Examined>,
}

impl HandoffTensor {
    /// A tensor from its rows' bytes.
    pub fn new(name: impl Into<String>, dtype: DType, shape: Vec<u64>, bytes: Vec<u8>) -> HandoffTensor {
        let range = 0..bytes.len();
        HandoffTensor {
            name: name.into(),
            dtype,
            shape,
            data: Arc::new(bytes),
            range,
            examined: OnceLock::new(),
        }
    }

    /// A tensor whose bytes were examined on their way in.
    pub(crate) fn examined_as(self, examined: Examined) -> HandoffTensor {
        HandoffTensor { examined: OnceLock::from(examined), ..self }
    }

    /// What its bytes are found to be, when that is first asked for.
    pub(crate) fn examined(&self) -> &Examined {
        self.examined.get_or_init(|| examine(self.dtype, self.bytes()))
    }

    /// A tensor that is part of a larger buffer; `range` lies within it.
    pub(crate) fn part(
        name: String,
        dtype: DType,
        shape: Vec<u64>,
        data: Arc<Vec<u8>>,
        range: Range<usize>,
    ) -> HandoffTensor {
        HandoffTensor { name, dtype, shape, data, range, examined: OnceLock::new() }
    }

    /// The bytes of the rows.
    pub fn bytes(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }

    /// Its memory, if nothing else holds it.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        Arc::into_inner(self.data).unwrap_or_default()
    }

    /// Rows: the size of the first axis.
    pub fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }
}

impl Handoff {
    /// A sealed hand-off of tensors. [`Contract::take`] makes one and holds it to the contract.
    pub(crate) fn new(contract: Contract, progress: Progress, state: Vec<HandoffTensor>) -> Handoff {
        let manifest = Manifest::new(contract, progress);
        let line = manifest.to_line();
        let seal = Seal::Whole(content_digest(&line, &state));
        Handoff { manifest, line, state, seal, streamed: false }
    }

    /// How far the sequence has come.
    ///
    /// # Errors
    /// [`HandoffError::Format`] when the digest of the tokens is none.
    pub fn progress(&self) -> Result<Progress, HandoffError> {
        self.manifest.progress()
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

    /// Whether it was read from the stream form.
    pub fn was_streamed(&self) -> bool {
        self.streamed
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
    /// The manifest of a state after `progress`.
    pub fn new(contract: Contract, progress: Progress) -> Manifest {
        Manifest {
            format: FORMAT.into(),
            version: VERSION,
            position: progress.position,
            tokens: progress.digest.to_hex().to_string(),
            next_token: progress.next_token,
            contract,
        }
    }

    /// Reads a manifest's line.
    pub fn from_line(line: &str) -> Result<Manifest, HandoffError> {
        let format = |e: serde_json::Error| HandoffError::Format(format!("its manifest: {e}"));
        let value: Value = serde_json::from_str(line).map_err(format)?;
        unique(line.as_bytes()).map_err(format)?;
        let found = value.get("version").and_then(Value::as_u64);
        if value.get("format").and_then(Value::as_str) != Some(FORMAT) {
            return Err(HandoffError::Format(format!("its manifest's `format` is not \"{FORMAT}\"")));
        }
        match found {
            Some(VERSION) => {}
            Some(found) => return Err(HandoffError::Version { wanted: VERSION, found }),
            None => return Err(HandoffError::Format("its manifest has no `version`".into())),
        }
        let manifest: Manifest = serde_json::from_value(value).map_err(format)?;
        manifest.contract.valid()?;
        Ok(manifest)
    }

    /// How far the sequence has come.
    pub fn progress(&self) -> Result<Progress, HandoffError> {
        let digest = Hash::from_hex(&self.tokens)
            .map_err(|_| HandoffError::Format(format!("`{}` is no digest of tokens", self.tokens)))?;
        Ok(Progress { position: self.position, digest, next_token: self.next_token })
    }

    /// The manifest in one line of JSON, as hand-offs that are made here have it.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The digest that seals a hand-off.
pub(crate) fn content_digest(manifest: &str, state: &[HandoffTensor]) -> String {
    let mut content = Content::default();
    for tensor in state {
        content.add(&tensor.name, tensor.dtype, &tensor.shape, tensor.examined().digest);
    }
    content.digest(manifest)
}

/// What a seal is made over: BLAKE3 of `tranship handoff 1`, a line feed, the manifest's line, a line feed, and for each
/// tensor, in the order of the names' bytes, a line `name dtype [sizes] digest`, the last being that of the tensor's
/// bytes. So the seal does not depend on where in a file a tensor is, and can be had while tensors come one by one.
#[derive(Default)]
pub(crate) struct Content(Vec<(String, String)>);

impl Content {
    /// Adds a tensor.
    pub fn add(&mut self, name: &str, dtype: DType, shape: &[u64], digest: Hash) {
        let line = format!("{name} {dtype} {shape:?} {}\n", digest.to_hex());
        self.0.push((name.to_owned(), line));
    }

    /// The digest under a manifest.
    pub fn digest(mut self, manifest: &str) -> String {
        self.0.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut hasher = Hasher::new();
        for part in
            ["tranship handoff 1\n", manifest, "\n"].into_iter().chain(self.0.iter().map(|(_, l)| l.as_str()))
        {
            hasher.update(part.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}
