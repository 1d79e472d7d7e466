//! The traits that a backend implements, and what passes through them.

use crate::{BackendError, Chain, Limits, State, Weights};
use tranship_ctx::Accepts;

/// What a device is and takes.
#[derive(Clone, Debug)]
pub struct Caps {
    /// The device in words: `AVX-512 (VNNI, BF16), 2 threads`.
    pub description: String,
    /// The types it takes, for each purpose.
    pub accepts: Accepts,
    /// Bytes of memory that weights and states may take, where the device knows.
    pub memory_bytes: Option<u64>,
    /// Whether weights are read in place, from memory that the host has mapped.
    pub reads_mapped: bool,
}

/// One backend: a kind of chip that compiles typed programs.
pub trait Backend: Send + Sync {
    /// The name that users type: `cpu`, `reference`.
    fn name(&self) -> &str;

    /// What the device is and takes.
    fn caps(&self) -> &Caps;

    /// Compiles a chain of programs over its weights.
    ///
    /// States made by a step serve every step that the same backend compiled from chains with the same carried
    /// tensors, as a prefill and a decode chain of one model have.
    ///
    /// # Errors
    /// A weight that is missing or misshapen, an operation that the device lacks, programs that do not fit.
    fn compile(&self, chain: &Chain, weights: &dyn Weights) -> Result<Box<dyn Step>, BackendError>;
}

/// A compiled chain: preallocated buffers and a flat list of kernel calls.
pub trait Step: Send {
    /// An empty state for one sequence.
    ///
    /// # Errors
    /// When memory for it is not to be had.
    fn new_state(&self) -> Result<Box<dyn State>, BackendError>;

    /// Runs all segments as one batch, in place on their states, and appends the wanted output rows to `out` in
    /// the order of the segments, as F32: logits where the chain ends in the head, else rows of the hidden width.
    ///
    /// Batches may be longer than the chain's `max_rows`: a step splits them.
    ///
    /// # Errors
    /// A batch of the wrong form: nothing has run then. A device's failure: the states are no longer to be used.
    fn run(
        &mut self,
        batch: &mut [Segment<'_>],
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError>;
}

/// Rows of one sequence within a batch.
pub struct Segment<'s> {
    /// The sequence's carried tensors.
    pub state: &'s mut dyn State,
    /// Rows that the state holds already: the absolute position of the first row.
    pub position: usize,
    /// Rows of this segment.
    pub rows: usize,
    /// Which of its rows are put out.
    pub outputs: Outputs,
}

/// Which rows of a segment are put out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// None: the states alone matter.
    None,
    /// The last one.
    Last,
    /// All of them.
    All,
}

impl Outputs {
    /// The first row that is put out, of `rows`.
    pub fn first(self, rows: usize) -> usize {
        match self {
            Outputs::None => rows,
            Outputs::Last => rows.saturating_sub(1),
            Outputs::All => 0,
        }
    }
}

/// The input of a batch: all segments' rows, one after the other.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Tokens, for a chain that starts with the embedding; later programs that declare tokens get the same.
    Tokens(&'a [u32]),
    /// Rows of the hidden width, for any other.
    Rows(&'a [f32]),
    /// Rows of the hidden width and the tokens that they came of, for a chain that starts with rows and has programs
    /// that declare tokens. One that has none does not look at the tokens.
    RowsAndTokens(&'a [f32], &'a [u32]),
}

impl<'a> Input<'a> {
    /// The tokens; none where there are rows alone.
    pub fn tokens(self) -> Option<&'a [u32]> {
        match self {
            Input::Tokens(tokens) | Input::RowsAndTokens(_, tokens) => Some(tokens),
            Input::Rows(_) => None,
        }
    }

    /// The rows; none where there are tokens alone.
    pub fn rows(self) -> Option<&'a [f32]> {
        match self {
            Input::Rows(rows) | Input::RowsAndTokens(rows, _) => Some(rows),
            Input::Tokens(_) => None,
        }
    }
}

/// Holds a batch to the limits of the chain that it is for, before anything runs. Returns the number of rows.
///
/// # Errors
/// The first thing that is wrong: no rows, rows past the context, an input of the wrong kind or length, tokens that are
/// not there, a token outside the vocabulary.
pub fn check_batch(limits: &Limits, batch: &[Segment<'_>], input: Input<'_>) -> Result<usize, BackendError> {
    let mut rows = 0usize;
    for segment in batch {
        let end = segment.position.checked_add(segment.rows);
        if let Some(ctx) = limits.ctx
            && end.is_none_or(|end| end > ctx)
        {
            return Err(BackendError::Context { position: segment.position, rows: segment.rows, ctx });
        }
        if end.is_none() {
            let what =
                format!("position {} and {} more rows are not countable", segment.position, segment.rows);
            return Err(BackendError::Batch(what));
        }
        if segment.rows == 0 {
            return Err(BackendError::Batch("a segment of the batch has no rows".into()));
        }
        rows = rows.saturating_add(segment.rows);
    }
    check_input(limits, rows, input)?;
    Ok(rows)
}

/// Holds the input of so many rows to what a chain takes.
fn check_input(limits: &Limits, rows: usize, input: Input<'_>) -> Result<(), BackendError> {
    let wrong =
        |wanted: String, found: String| Err(BackendError::Batch(format!("wanted {wanted}, found {found}")));
    match (input.rows(), limits.width_in) {
        (None, Some(_)) => return wrong("input rows".into(), "tokens".into()),
        (Some(_), None) => return wrong("tokens".into(), "input rows".into()),
        (Some(values), Some(width)) => {
            let wanted = rows.saturating_mul(width);
            if values.len() != wanted {
                return wrong(format!("{wanted} values of input rows"), values.len().to_string());
            }
        }
        (None, None) => {}
    }
    match (input.tokens(), limits.vocab) {
        (None, Some(_)) => wrong("tokens beside the input rows".into(), "none".into()),
        (Some(tokens), _) if tokens.len() != rows => {
            wrong(format!("{rows} tokens"), tokens.len().to_string())
        }
        (Some(tokens), Some(vocab)) => match tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(BackendError::Token { token, vocab }),
            None => Ok(()),
        },
        (_, None) => Ok(()),
    }
}
