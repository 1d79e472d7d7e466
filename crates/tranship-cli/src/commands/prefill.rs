//! `tranship prefill`: a prompt in, a hand-off out.

use crate::args::{Compute, Input, ModelArg, Parts};
use crate::error::CliError;
use crate::{out, setup};
use clap::Args;
use std::path::PathBuf;
use std::time::Instant;
use tranship::backend::Outputs;

/// Flags of `prefill`.
#[derive(Args)]
pub struct Prefill {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    input: Input,
    /// The file that the hand-off is written to
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    parts: Parts,
    #[command(flatten)]
    compute: Compute,
}

/// Runs the prompt and writes the hand-off: its position is the number of tokens, and the token that follows is the most
/// probable one.
pub fn run(command: &Prefill) -> Result<(), CliError> {
    let model = setup::runnable(&command.model.model)?;
    let tokens = command.input.tokens(&model)?;
    let ctx = command.compute.ctx_for(&model, tokens.len() as u64 + 1);
    setup::leaves_a_row(tokens.len(), ctx)?;
    let mut session = command.compute.chip_of(&command.parts)?.session(&model, ctx)?;
    let mut sequence = session.sequence()?;
    let start = Instant::now();
    let logits = session.extend(&mut sequence, &tokens, Outputs::Last)?;
    let elapsed = start.elapsed();
    let next = setup::most_probable(&logits)?;
    let handoff = session.suspend(&sequence, Some(next))?;
    handoff.write(&command.out)?;
    out::note(format_args!(
        "prefilled {} tokens in {:.1} ms; {} of state in {}; next token {next}",
        tokens.len(),
        elapsed.as_secs_f64() * 1e3,
        out::bytes(handoff.bytes()),
        command.out.display()
    ));
    Ok(())
}
