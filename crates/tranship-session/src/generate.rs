//! Token after token, chosen by whoever asks.

use crate::{Sequence, Session, SessionError};
use tranship_backend::Outputs;

/// What follows a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This token.
    Token(u32),
    /// Nothing: the text ends here.
    Stop,
}

impl Session {
    /// Runs `first` and every token that `choose` gives from the logits after it, until it stops or the context is
    /// full. Returns the number of tokens that were run.
    ///
    /// # Errors
    /// As [`Session::step`], and what `choose` says.
    pub fn generate<E: From<SessionError>>(
        &mut self,
        sequence: &mut Sequence,
        first: u32,
        mut choose: impl FnMut(&[f32]) -> Result<Next, E>,
    ) -> Result<usize, E> {
        let mut token = first;
        let mut logits = Vec::new();
        let mut count = 0;
        while sequence.position() < self.ctx() {
            logits.clear();
            self.step(
                &mut [crate::Rows { sequence, tokens: &[token], outputs: Outputs::Last }],
                &mut logits,
            )?;
            count += 1;
            match choose(&logits)? {
                Next::Token(next) => token = next,
                Next::Stop => break,
            }
        }
        Ok(count)
    }
}

/// The index of the largest value; of equal ones the first. NaN is never the largest.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, value) in logits.iter().enumerate() {
        if *value > logits[best] || logits[best].is_nan() {
            best = i;
        }
    }
    best as u32
}
