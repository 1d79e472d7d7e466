//! One text in progress.

use tranship_backend::{Outputs, State};
use tranship_handoff::Progress;

/// A sequence: its carried tensors, and how far it has come.
pub struct Sequence {
    pub(crate) state: Box<dyn State>,
    pub(crate) progress: Progress,
    /// A step failed while it ran: the state is of no position.
    pub(crate) incomplete: bool,
}

impl Sequence {
    /// Tokens so far: the next one writes row `position`.
    pub fn position(&self) -> usize {
        self.progress.position as usize
    }

    /// How far the sequence has come.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Bytes of memory that its carried tensors take.
    pub fn memory_bytes(&self) -> usize {
        self.state.memory_bytes()
    }
}

/// Tokens of one sequence within a batch.
pub struct Rows<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// Its next tokens.
    pub tokens: &'a [u32],
    /// Which of their logits are wanted.
    pub outputs: Outputs,
}
