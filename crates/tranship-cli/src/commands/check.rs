//! `tranship check`: a hand-off held to a model, with every reason against it at once.

use crate::args::{Compute, Covers, ModelArg};
use crate::commands::decode::{conversion, unread};
use crate::error::CliError;
use crate::held::{Held, Line};
use crate::{out, setup};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use tranship::handoff::{Contract, Expect, Handoff, HandoffError, Refusal, Shown};
use tranship::prelude::Model;
use tranship::program::Extent;

/// Flags of `check`.
#[derive(Args)]
pub struct Check {
    #[command(flatten)]
    model: ModelArg,
    /// The hand-off
    #[arg(long, value_name = "FILE")]
    handoff: PathBuf,
    /// Accept another policy or cache type, as a decode with --convert does
    #[arg(long)]
    convert: bool,
    /// Hold what is a share of a state, or some of its layers, to that part of the model's contract; a decode takes whole
    /// hand-offs alone
    #[arg(long)]
    part: bool,
    /// Show each layer by itself, also where many are alike
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// Print one JSON object, also of a hand-off that is refused or cannot be read
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    covers: Covers,
    #[command(flatten)]
    compute: Compute,
}

/// Checks the hand-off as a decode would, without computing anything, and prints what it is and what does not match. Of a
/// bare configuration, which has no weights, the identity of the weights is not compared.
pub fn run(command: &Check) -> Result<(), CliError> {
    let model = setup::model(&command.model.model)?;
    let chip = command.compute.chip()?;
    // All of it is held while it is looked at: what comes through a pipe could be without end.
    if command.handoff.metadata().is_ok_and(|m| !m.is_file()) {
        let what = "is no regular file; `decode` checks what comes through a pipe as it comes".into();
        return Err(HandoffError::Io { path: command.handoff.display().to_string(), what }.into());
    }
    let read = Handoff::read(&command.handoff);
    if let (Err(error), true) = (&read, command.json) {
        out::json(&json!({ "ok": false, "reasons": [error.to_string()] }))?;
    }
    let handoff = read.map_err(|e| unread(&command.handoff, e))?;
    let ctx = command.compute.ctx_for(&model, handoff.position().saturating_add(1));
    let covers = command.covers.tokens(&model)?;
    let whole = model.contract(ctx, &chip.policy)?;
    let contract = if command.part { part_of(command, &whole, &handoff)? } else { whole };
    let expect = Expect {
        conversion: conversion(command.convert),
        tokens: covers.as_deref(),
        vocab: Some(model.spec().vocab),
    };
    let found = contract.check_for(&handoff, &expect);
    let held = Held::new(&contract, &handoff, found.as_ref().err());
    if command.json {
        out::json(&summary(&model, &handoff, &held, found.as_ref().err()))?;
    } else {
        out::print(table(command, &model, &contract, &handoff, &held))?;
    }
    found.map_err(|refusal| CliError::Refused { path: command.handoff.clone(), refusal })
}

/// The part of a contract that a hand-off says it is of.
fn part_of(command: &Check, whole: &Contract, handoff: &Handoff) -> Result<Contract, CliError> {
    let of = |error| CliError::of(&command.handoff, error);
    let (share, layers) = (handoff.contract().share, handoff.contract().layers);
    let part = match layers {
        Some(layers) => whole.layers(layers.from..layers.to).map_err(of)?,
        None => whole.clone(),
    };
    share.map_or(Ok(part.clone()), |share| part.share(share.index, share.of).map_err(of))
}

fn summary(model: &Model, handoff: &Handoff, held: &Held<'_>, refusal: Option<&Refusal>) -> Value {
    let reasons: Vec<String> = refusal.map_or(vec![], |r| r.errors.iter().map(ToString::to_string).collect());
    let identity = &handoff.contract().identity;
    let layers = handoff.contract().layers.map(|l| json!({ "from": l.from, "to": l.to }));
    json!({
        "ok": refusal.is_none(),
        "reasons": reasons,
        "form": form(handoff),
        "position": handoff.position(),
        "next_token": handoff.next_token(),
        "tokens": handoff.tokens(),
        "bytes": handoff.bytes(),
        "policy": identity.policy,
        "weights": identity.weights,
        "programs": identity.programs,
        "seal": handoff.seal(),
        "share": handoff.contract().share,
        "layers": layers,
        "tensors": held.lines.iter().map(|line| tensor(line, handoff.position())).collect::<Vec<_>>(),
        "weights_compared": model.has_weights(),
    })
}

/// A tensor of the hand-off, or one that it lacks: what it has of it is null then.
fn tensor(line: &Line<'_>, position: u64) -> Value {
    let (listed, found) = (line.listed(), line.tensor);
    let (rate, keep) = match listed.map(|c| c.extent) {
        Some(Extent::Compressed { rate }) => (Some(rate), None),
        Some(Extent::Frontier { rate, keep }) => (Some(rate), Some(keep)),
        _ => (None, None),
    };
    let segments = listed.and_then(|c| c.segments.as_ref()).map(|segments| {
        let runs = segments.runs.iter().map(|run| json!({ "count": run.count, "size": run.size }));
        json!({ "axis": segments.axis, "runs": runs.collect::<Vec<_>>() })
    });
    json!({
        "name": line.name,
        "layer": listed.map(|c| c.layer),
        "kind": listed.map(|c| c.extent.name()),
        "rate": rate,
        "keep": keep,
        "rows": {
            "found": found.map(|t| t.rows()),
            "valid": listed.map(|c| c.valid_rows(position)),
            "of": listed.map(|c| c.rows()),
        },
        "axes": listed.map(|c| &c.axes),
        "segments": segments,
        "dtype": found.map(|t| t.dtype.name()),
        "shape": found.map(|t| &t.shape),
        "bytes": found.map(|t| t.bytes().len()),
        "faults": line.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn form(handoff: &Handoff) -> &'static str {
    if handoff.was_streamed() { "stream" } else { "file" }
}

/// Whose share and which layers a hand-off is of.
fn part(handoff: &Handoff) -> String {
    let (share, layers) = (handoff.contract().share, handoff.contract().layers);
    let parts = [share.map(|s| s.to_string()), layers.map(|l| l.to_string())];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "the whole state".to_owned() } else { parts.join(", ") }
}

/// Whether it fits, and where it does not.
fn verdict(held: &Held<'_>) -> String {
    let tensors = held.lines.iter().filter(|line| !line.faults.is_empty()).count();
    let many = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    match (tensors, held.others.len()) {
        (0, 0) => "yes".to_owned(),
        (0, others) => format!("no: {}", many(others, "fault")),
        (tensors, 0) => format!("no: {} at fault", many(tensors, "tensor")),
        (tensors, others) => {
            format!("no: {} at fault, {} beside", many(tensors, "tensor"), many(others, "fault"))
        }
    }
}

fn table(command: &Check, model: &Model, contract: &Contract, handoff: &Handoff, held: &Held<'_>) -> String {
    let short = |digest: &str| Shown(&digest.chars().take(16).collect::<String>()).to_string();
    let identity = &handoff.contract().identity;
    let next = handoff.next_token().map_or("unknown".to_owned(), |t| t.to_string());
    let mut weights = identity.weights.as_deref().map_or("none".to_owned(), short);
    if !model.has_weights() {
        weights += " (not compared: the model is a bare configuration)";
    }
    let spec = model.spec();
    let (bytes, tensors) = (out::bytes(handoff.bytes()), handoff.state().len());
    let lines = [
        ("", format!("{}, {} layers, ctx {}", spec.architecture, spec.layers.len(), contract.ctx)),
        ("fits", verdict(held)),
        ("form", format!("a {}, {bytes} of state in {tensors} tensors", form(handoff))),
        ("of", part(handoff)),
        ("position", format!("{} tokens, next token {next}", handoff.position())),
        ("tokens", short(handoff.tokens())),
        ("weights", weights),
        ("programs", short(&identity.programs)),
        ("policy", Shown(&identity.policy).to_string()),
        ("seal", handoff.seal().map_or("none that is whole".to_owned(), short)),
    ];
    let paths = (command.handoff.display(), command.model.model.display());
    let mut text = format!("{}\n  model     {}\n", paths.0, paths.1);
    for (key, value) in lines {
        text.push_str(&out::wrap(&value, &format!("  {key:9} "), "            "));
    }
    text.push_str(&held.table(command.all));
    if !held.others.is_empty() {
        text.push_str("  beside the tensors\n");
        held.others.iter().for_each(|e| text.push_str(&out::wrap(&e.to_string(), "    ! ", "      ")));
    }
    text
}
