//! `tranship logits`: a row of logits for each token, as a safetensors file.

use crate::args::{Compute, Input, ModelArg, Parts};
use crate::error::CliError;
use crate::{out, setup};
use clap::Args;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use tranship::backend::Outputs;
use tranship::handoff::{Expect, Handoff};
use tranship::prelude::{Sequence, Session};

/// Rows whose logits are held at once: with a vocabulary of 150,000 they take 75 MiB.
const ROWS: usize = 128;

/// Flags of `logits`.
#[derive(Args)]
pub struct Logits {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    input: Input,
    /// The file: safetensors with `logits` F32 [n, vocab]
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Prefills this many tokens, then steps one by one through a fresh session that is given the hand-off's bytes alone
    #[arg(long, value_name = "A")]
    split: Option<usize>,
    /// The context of that session [default: the first one's]
    #[arg(long, value_name = "N", requires = "split", value_parser = clap::value_parser!(u64).range(1..))]
    split_ctx: Option<u64>,
    /// The threads of that session [default: the first one's]
    #[arg(long, value_name = "THREADS", requires = "split")]
    split_threads: Option<NonZeroUsize>,
    #[command(flatten)]
    parts: Parts,
    #[command(flatten)]
    compute: Compute,
}

/// Writes the logits.
pub fn run(command: &Logits) -> Result<(), CliError> {
    let model = setup::runnable(&command.model.model)?;
    let tokens = command.input.tokens(&model)?;
    let ctx = command.compute.ctx_for(&model, tokens.len() as u64);
    let split = command.split.unwrap_or(tokens.len());
    if command.split.is_some() && !(1..tokens.len()).contains(&split) {
        return Err(CliError::Split { split, tokens: tokens.len() });
    }
    let split_ctx = command.split_ctx.unwrap_or(ctx);
    if command.split.is_some() {
        setup::leaves_a_row(split, ctx)?;
    }
    match command.split_ctx {
        Some(ctx) if tokens.len() as u64 > ctx => {
            return Err(CliError::SplitCtx { ctx, tokens: tokens.len() });
        }
        _ => setup::fits(tokens.len(), split_ctx)?,
    }
    let mut session = command.compute.chip_of(&command.parts)?.session(&model, ctx)?;
    let mut second = match command.split {
        None => None,
        Some(_) => {
            let threads = command.split_threads.or(command.compute.threads);
            let compute = Compute { threads, ..command.compute.clone() };
            Some(compute.chip_of(&command.parts)?.session(&model, split_ctx)?)
        }
    };
    let (before, after) = tokens.split_at(split);
    let vocab = model.spec().vocab as usize;
    out::write_file(&command.out, |file| {
        let fault = |source| CliError::Write { path: command.out.clone(), source };
        file.write_all(&header(tokens.len(), vocab)).map_err(fault)?;
        let mut write =
            |rows: &[f32]| rows.iter().try_for_each(|v| file.write_all(&v.to_le_bytes())).map_err(fault);
        let mut sequence = session.sequence()?;
        step_all(&mut session, &mut sequence, before, ROWS, &mut write)?;
        if let Some(second) = &mut second {
            let bytes = session.suspend(&sequence, None)?.to_bytes()?;
            let handoff = Handoff::from_bytes(bytes)?;
            let mut resumed =
                second.resume(&handoff, &Expect { tokens: Some(before), ..Expect::default() })?;
            step_all(second, &mut resumed, after, 1, &mut write)?;
        }
        Ok(())
    })
}

/// Runs tokens, `rows` at a time, and writes the logits of each.
fn step_all(
    session: &mut Session,
    sequence: &mut Sequence,
    tokens: &[u32],
    rows: usize,
    write: &mut impl FnMut(&[f32]) -> Result<(), CliError>,
) -> Result<(), CliError> {
    for tokens in tokens.chunks(rows) {
        let logits = session.extend(sequence, tokens, Outputs::All)?;
        write(&logits)?;
    }
    Ok(())
}

/// The header of a safetensors file with one tensor, padded with spaces to whole 8 bytes.
fn header(rows: usize, vocab: usize) -> Vec<u8> {
    let bytes = rows as u64 * vocab as u64 * 4;
    let mut text = serde_json::json!({
        "logits": { "dtype": "F32", "shape": [rows, vocab], "data_offsets": [0, bytes] }
    })
    .to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend_from_slice(text.as_bytes());
    header
}
