//! `tranship check`: a hand-off held to a model, with every reason against it at once.

use crate::args::{Compute, Covers, ModelArg};
use crate::commands::decode::{conversion, unread};
use crate::error::CliError;
use crate::{out, setup};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use tranship::handoff::{Expect, Handoff, Shown};

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
    /// Print one JSON object, also of a hand-off that is refused or cannot be read
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    covers: Covers,
    #[command(flatten)]
    compute: Compute,
}

/// Checks the hand-off as a decode would, without computing anything. Of a bare configuration, which has no weights, the
/// identity of the weights is not compared.
pub fn run(command: &Check) -> Result<(), CliError> {
    let model = setup::model(&command.model.model)?;
    let chip = command.compute.chip()?;
    let read = Handoff::read(&command.handoff);
    if let (Err(error), true) = (&read, command.json) {
        out::json(&json!({ "ok": false, "reasons": [error.to_string()] }))?;
    }
    let handoff = read.map_err(|e| unread(&command.handoff, e))?;
    let ctx = command.compute.ctx_for(&model, handoff.position().saturating_add(1));
    let covers = command.covers.tokens(&model)?;
    let contract = model.contract(ctx, &chip.policy)?;
    let expect = Expect {
        conversion: conversion(command.convert),
        tokens: covers.as_deref(),
        vocab: Some(model.spec().vocab),
    };
    let found = contract.check_for(&handoff, &expect);
    if command.json {
        let reasons: Vec<String> =
            found.as_ref().err().map_or(vec![], |r| r.errors.iter().map(ToString::to_string).collect());
        let mut summary = summary(&handoff, found.is_ok(), &reasons);
        summary["weights_compared"] = model.has_weights().into();
        out::json(&summary)?;
    }
    match found {
        Err(refusal) => Err(CliError::Refused { path: command.handoff.clone(), refusal }),
        Ok(()) if command.json => Ok(()),
        Ok(()) => out::print(table(command, &handoff, model.has_weights())),
    }
}

fn summary(handoff: &Handoff, ok: bool, reasons: &[String]) -> Value {
    let tensors: Vec<Value> = handoff
        .state()
        .iter()
        .map(|t| json!({ "name": t.name, "dtype": t.dtype.name(), "shape": t.shape, "bytes": t.bytes().len() }))
        .collect();
    json!({
        "ok": ok,
        "reasons": reasons,
        "position": handoff.position(),
        "next_token": handoff.next_token(),
        "tokens": handoff.tokens(),
        "bytes": handoff.bytes(),
        "policy": handoff.contract().identity.policy,
        "weights": handoff.contract().identity.weights,
        "programs": handoff.contract().identity.programs,
        "seal": handoff.seal(),
        "tensors": tensors,
    })
}

fn table(command: &Check, handoff: &Handoff, compared: bool) -> String {
    let short = |digest: &str| Shown(&digest.chars().take(16).collect::<String>()).to_string();
    let identity = &handoff.contract().identity;
    let next = handoff.next_token().map_or("unknown".to_owned(), |t| t.to_string());
    let mut weights = identity.weights.as_deref().map_or("none".to_owned(), short);
    if !compared {
        weights += " (not compared: the model is a bare configuration)";
    }
    let lines = [
        ("fits", command.model.model.display().to_string()),
        ("position", format!("{} tokens, next token {next}", handoff.position())),
        ("tokens", short(handoff.tokens())),
        ("weights", weights),
        ("programs", short(&identity.programs)),
        ("policy", Shown(&identity.policy).to_string()),
        ("seal", handoff.seal().map_or("none".to_owned(), short)),
        ("state", out::bytes(handoff.bytes())),
    ];
    let mut text = format!("{}\n", command.handoff.display());
    for (key, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {key:9} {value}");
    }
    for tensor in handoff.state() {
        let shape = format!("{:?}", tensor.shape);
        let bytes = out::bytes(tensor.bytes().len() as u64);
        let name = Shown(&tensor.name).to_string();
        let _ = writeln!(text, "    {name:8} {:6} {shape:18} {bytes:>10}", tensor.dtype);
    }
    text
}
