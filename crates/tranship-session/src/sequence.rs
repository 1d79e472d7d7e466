//! One text in progress.

use crate::parts::Layout;
use std::sync::Arc;
use tranship_backend::{Outputs, State};
use tranship_handoff::Progress;

/// A sequence: its carried tensors, and how far it has come.
pub struct Sequence {
    /// One for each part of the session.
    pub(crate) states: Vec<Box<dyn State>>,
    /// What they are made for.
    pub(crate) layout: Arc<Layout>,
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
        self.states.iter().map(|state| state.memory_bytes()).sum()
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
