//! Token after token from a session, until something says to stop.

use crate::error::CliError;
use tranship::backend::Outputs;
use tranship::prelude::{Rows, Sampler, Sequence, Session};

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model gave one of its end tokens.
    End,
    /// As many tokens were given as were asked for.
    Most,
    /// The context is full.
    Context,
}

impl Finish {
    /// What happened, for a person.
    pub fn phrase(self) -> &'static str {
        match self {
            Finish::End => "the model ended its text",
            Finish::Most => "as many tokens as asked for",
            Finish::Context => "the context is full",
        }
    }
}

/// When to stop.
pub struct Stop {
    /// Tokens to give at most.
    pub most: usize,
    /// Tokens that end the text, and are not given.
    pub ends: Vec<u32>,
}

/// Gives `first` and what follows it, one token at a time, to `each`. Every token given but the last is run.
pub fn generate(
    session: &mut Session,
    sequence: &mut Sequence,
    first: u32,
    sampler: &mut Sampler,
    stop: &Stop,
    mut each: impl FnMut(u32) -> Result<(), CliError>,
) -> Result<Finish, CliError> {
    let mut token = first;
    let mut logits = Vec::new();
    for given in 1.. {
        if stop.ends.contains(&token) {
            return Ok(Finish::End);
        }
        if given > stop.most {
            break;
        }
        each(token)?;
        if given == stop.most {
            break;
        }
        if sequence.position() >= session.ctx() {
            return Ok(Finish::Context);
        }
        logits.clear();
        session.step(&mut [Rows { sequence, tokens: &[token], outputs: Outputs::Last }], &mut logits)?;
        token = sampler.sample(&logits, &[])?;
    }
    Ok(Finish::Most)
}
