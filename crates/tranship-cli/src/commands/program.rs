//! `tranship program`: the program of one cut, as authored, or typed with its cast ledger.

use crate::args::{Compute, ModelArg};
use crate::error::CliError;
use crate::{out, setup};
use clap::{Args, ValueEnum};
use std::str::FromStr;
use tranship::model::Cut;

/// Flags of `program`.
#[derive(Args)]
pub struct ProgramOf {
    #[command(flatten)]
    model: ModelArg,
    /// Which part of the model: embed, layer:K or head
    #[arg(long, value_name = "embed|layer:K|head")]
    cut: Where,
    /// Which of a layer's two programs; the embedding and the head have one
    #[arg(long, value_enum, default_value_t = Phase::Decode)]
    phase: Phase,
    /// Print the graph in this form instead
    #[arg(long, value_enum)]
    graph: Option<GraphForm>,
    #[command(flatten)]
    compute: Compute,
}

/// A part of a model.
#[derive(Clone, Copy)]
enum Where {
    Embed,
    Layer(usize),
    Head,
}

impl FromStr for Where {
    type Err = String;

    fn from_str(text: &str) -> Result<Where, String> {
        match (text, text.strip_prefix("layer:").map(str::parse)) {
            ("embed", _) => Ok(Where::Embed),
            ("head", _) => Ok(Where::Head),
            (_, Some(Ok(layer))) => Ok(Where::Layer(layer)),
            _ => Err("wanted embed, layer:K or head, K counting from 0".to_owned()),
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Phase {
    Prefill,
    Decode,
}

#[derive(Clone, Copy, ValueEnum)]
enum GraphForm {
    /// The language of Graphviz
    Dot,
}

/// Prints the program. With a policy it is typed for the backend that is asked for, or the default.
pub fn run(command: &ProgramOf) -> Result<(), CliError> {
    let model = setup::model(&command.model.model)?;
    let ctx = command.compute.ctx_for(&model, 0);
    let cut = match (command.cut, command.phase) {
        (Where::Embed, _) => Cut::Embed,
        (Where::Head, _) => Cut::Head,
        (Where::Layer(layer), Phase::Prefill) => Cut::PrefillLayer { layer, ctx },
        (Where::Layer(layer), Phase::Decode) => Cut::DecodeLayer { layer, ctx },
    };
    let program = model.spec().program(cut)?;
    if command.compute.policy.is_none() {
        return match command.graph {
            None => out::print(program),
            Some(GraphForm::Dot) => out::print(program.lift()?.dot()),
        };
    }
    let chip = command.compute.chip()?;
    let typed =
        chip.policy.typed(&program.lift()?, &|name| model.stored(name), &chip.backend.caps().accepts)?;
    match command.graph {
        None => out::print(typed),
        Some(GraphForm::Dot) => out::print(typed.graph().dot()),
    }
}
