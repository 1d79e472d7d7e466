//! The `tranship` program: plan, prefill, hand off and decode language models.
//!
//! Each command is one file of `commands/`. An error is one line on standard error that names the thing, and exit
//! code 1; a command line that does not parse is exit code 2.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod error;
mod generate;
mod held;
mod out;
mod setup;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(args::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the output has had enough of it.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tranship: {}", error.line());
            ExitCode::FAILURE
        }
    }
}
