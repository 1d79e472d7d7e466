//! `cargo xtask`: automation of the workspace. One line on stderr and exit code 1 for what fails, 2 for wrong usage.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use std::path::Path;
use std::process::ExitCode;
use xtask::{XtaskError, bench, fetch, fixtures, interop, kernels, parity, state, tidy};

/// Automation of the Tranship workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Holds crates, files and documents to the house rules
    Tidy,
    /// Compares every policy, backend, split and hand-off with the all-F32 reference
    Parity(parity::ParityArgs),
    /// Checks the fixtures, and makes them anew
    Fixtures(fixtures::FixturesArgs),
    /// Hands over between this program and `transformers`, both ways
    Interop(interop::InteropArgs),
    /// Fetches a real model into `models/`
    Fetch(fetch::FetchArgs),
    /// Lists the kernel sources
    Kernels(kernels::KernelsArgs),
    /// Derives what sequences of released models carry
    State(state::StateArgs),
    /// Measures speed side by side with llama.cpp
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    let task = Cli::parse().task;
    match run(&task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task) -> Result<(), XtaskError> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().unwrap_or(here);
    match task {
        Task::Tidy => tidy::run(root),
        Task::Parity(args) => parity::run(root, args),
        Task::Fixtures(args) => fixtures::run(root, args),
        Task::Interop(args) => interop::run(root, args),
        Task::Fetch(args) => fetch::run(root, args),
        Task::Kernels(args) => kernels::run(root, *args),
        Task::State(args) => state::run(root, *args),
        Task::Bench(args) => bench::run(root, args),
    }
}
