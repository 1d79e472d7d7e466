//! `tranship decode`: a hand-off in, tokens and text out.

use crate::args::{Compute, Covers, ModelArg, Parts, Sampling};
use crate::error::CliError;
use crate::generate::{Stop, generate};
use crate::{out, setup};
use clap::Args;
use serde_json::json;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tranship::handoff::{Conversion, Expect, Handoff, HandoffError, Opening, Refusal};
use tranship::prelude::Session;
use tranship::session::SessionError;
use tranship::text;

/// Flags of `decode`.
#[derive(Args)]
pub struct Decode {
    #[command(flatten)]
    model: ModelArg,
    /// The hand-off, a file or a stream; - is standard input
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

/// The opening of a hand-off in a file, or from standard input.
fn opening(path: &Path) -> Result<Opening<Box<dyn Read>>, HandoffError> {
    if path.as_os_str() == "-" {
        return Opening::read(Box::new(std::io::stdin().lock()));
    }
    Ok(Opening::of_file(path)?.map(|file| Box::new(file) as Box<dyn Read>))
}

/// Every reason against a hand-off that was refused as it came: those of a file can all be looked for.
fn every_reason(path: &Path, session: &Session, expect: &Expect<'_>) -> Option<Refusal> {
    if !path.metadata().is_ok_and(|m| m.is_file()) {
        return None;
    }
    let vocab = Some(session.model().spec().vocab);
    let handoff = Handoff::read(path).ok()?;
    session.contract().check_for(&handoff, &Expect { vocab, ..*expect }).err()
}

/// Goes on from the hand-off. Its next token comes first.
pub fn run(command: &Decode) -> Result<(), CliError> {
    let model = setup::runnable(&command.model.model)?;
    let mut sampler = command.sampling.sampler()?;
    let opening = opening(&command.handoff).map_err(|e| unread(&command.handoff, e))?;
    let rows = opening.position().saturating_add(command.max_tokens as u64);
    let ctx = command.compute.ctx_for(&model, rows);
    let covers = command.covers.tokens(&model)?;
    let mut session = command.compute.chip_of(&command.parts)?.session(&model, ctx)?;
    let expect =
        Expect { conversion: conversion(command.convert), tokens: covers.as_deref(), ..Expect::default() };
    let path = || command.handoff.clone();
    let (mut sequence, _) = session.receive(opening, &expect).map_err(|e| match e {
        SessionError::Refused(refusal) => {
            let every = every_reason(&command.handoff, &session, &expect);
            CliError::Refused { path: path(), refusal: every.unwrap_or(refusal) }
        }
        other => other.into(),
    })?;
    let next = sequence.progress().next_token;
    let first = next.ok_or_else(|| CliError::NoNextToken { path: path() })?;
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
