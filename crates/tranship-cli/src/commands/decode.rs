//! `tranship decode`: a hand-off in, tokens and text out.

use crate::args::{Compute, Covers, ModelArg, Parts, Sampling};
use crate::error::CliError;
use crate::generate::{Stop, generate};
use crate::{out, setup};
use clap::Args;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use tranship::handoff::{Conversion, Expect, Handoff, HandoffError};
use tranship::session::SessionError;
use tranship::text;

/// Flags of `decode`.
#[derive(Args)]
pub struct Decode {
    #[command(flatten)]
    model: ModelArg,
    /// The hand-off
    #[arg(long, value_name = "FILE")]
    handoff: PathBuf,
    /// Tokens to give at most; an end token stops earlier, and is not given
    #[arg(long, value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    /// Go on past end tokens, and give them
    #[arg(long)]
    ignore_end: bool,
    /// Take a hand-off of another policy or cache type, and convert it
    #[arg(long)]
    convert: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    covers: Covers,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    parts: Parts,
    #[command(flatten)]
    compute: Compute,
}

/// What `--convert` says.
pub fn conversion(convert: bool) -> Conversion {
    if convert { Conversion::Declared } else { Conversion::None }
}

/// Why a hand-off cannot be read, naming the file.
pub fn unread(path: &Path, error: HandoffError) -> CliError {
    match error {
        // It names the file itself.
        io @ HandoffError::Io { .. } => io.into(),
        other => CliError::of(path, other),
    }
}

/// Goes on from the hand-off. Its next token comes first.
pub fn run(command: &Decode) -> Result<(), CliError> {
    let model = setup::runnable(&command.model.model)?;
    let handoff = Handoff::read(&command.handoff).map_err(|e| unread(&command.handoff, e))?;
    let mut sampler = command.sampling.sampler()?;
    let rows = handoff.position().saturating_add(command.max_tokens as u64);
    let ctx = command.compute.ctx_for(&model, rows);
    let covers = command.covers.tokens(&model)?;
    let mut session = command.compute.chip_of(&command.parts)?.session(&model, ctx)?;
    let expect =
        Expect { conversion: conversion(command.convert), tokens: covers.as_deref(), ..Expect::default() };
    let mut sequence = session.resume(&handoff, &expect).map_err(|e| match e {
        SessionError::Refused(refusal) => CliError::Refused { path: command.handoff.clone(), refusal },
        other => other.into(),
    })?;
    let path = || command.handoff.clone();
    let first = handoff.next_token().ok_or_else(|| CliError::NoNextToken { path: path() })?;
    let tokenizer = setup::tokenizer(&model)?;
    let ends = if command.ignore_end { vec![] } else { text::end_ids(&model, tokenizer.as_ref()) };
    let stop = Stop { most: command.max_tokens, ends };
    let mut tokens = Vec::new();
    let mut whole = String::new();
    let mut decoder = tokenizer.as_ref().map(|t| t.decoder());
    let mut stdout = out::stdout();
    generate(&mut session, &mut sequence, first, &mut sampler, &stop, |token| {
        tokens.push(token);
        let Some(decoder) = &mut decoder else { return Ok(()) };
        let text = decoder.push(token)?;
        whole.push_str(text);
        if !command.json {
            stdout.write_all(text.as_bytes())?;
            stdout.flush()?;
        }
        Ok(())
    })?;
    let rest = decoder.as_mut().map_or("", |d| d.finish());
    whole.push_str(rest);
    print_rest(command, &mut stdout, (&tokens, &whole, rest), tokenizer.is_some())
}

/// What is left to print: the object, or the end of the text, or tokens where there is no text.
fn print_rest(
    command: &Decode,
    stdout: &mut impl Write,
    (tokens, whole, rest): (&[u32], &str, &str),
    has_text: bool,
) -> Result<(), CliError> {
    if command.json {
        writeln!(stdout, "{}", json!({ "tokens": tokens, "text": whole }))?;
    } else if has_text {
        writeln!(stdout, "{rest}")?;
    } else {
        let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
        writeln!(stdout, "{}", ids.join(","))?;
    }
    Ok(stdout.flush()?)
}
