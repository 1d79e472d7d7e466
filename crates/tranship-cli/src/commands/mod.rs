//! The commands, one file each: its flags, and what it prints.

pub mod backends;
pub mod bench;
pub mod check;
pub mod contract;
pub mod decode;
pub mod demo;
pub mod inspect;
pub mod logits;
pub mod plan;
pub mod prefill;
pub mod program;
pub mod run;

use crate::args::{Cli, Command};
use crate::error::CliError;

/// Runs a command.
pub fn run(cli: Cli) -> Result<(), CliError> {
    match cli.command {
        Command::Demo(c) => demo::run(&c),
        Command::Inspect(c) => inspect::run(&c),
        Command::Program(c) => program::run(&c),
        Command::Contract(c) => contract::run(&c),
        Command::Plan(c) => plan::run(&c),
        Command::Run(c) => run::run(&c),
        Command::Prefill(c) => prefill::run(&c),
        Command::Decode(c) => decode::run(&c),
        Command::Check(c) => check::run(&c),
        Command::Logits(c) => logits::run(&c),
        Command::Bench(c) => bench::run(&c),
        Command::Backends(c) => backends::run(&c),
    }
}
