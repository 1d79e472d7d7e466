//! Speed, side by side: rounds of `tranship bench` and of llama.cpp's `llama-bench` by turns, on one machine, one
//! model and as many threads.

mod build;
mod report;

pub use report::{Side, Table};

use crate::{XtaskError, tool};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// The model file
    #[arg(required_unless_present = "build_llama")]
    model: Option<PathBuf>,
    /// Tokens that are prefilled
    #[arg(short = 'p', long, default_value_t = 512, value_name = "N")]
    prompt: u32,
    /// Tokens that are decoded
    #[arg(short = 'n', long, default_value_t = 128, value_name = "N")]
    tokens: u32,
    /// Threads
    #[arg(short = 't', long, default_value_t = 2, value_name = "N")]
    threads: u32,
    /// Rounds of each side
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: u32,
    /// The backend
    #[arg(long, default_value = "cpu", value_name = "NAME")]
    backend: String,
    /// The policy; by default the backend's own
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// llama.cpp's `llama-bench`; by default the one on the path, if there is one
    #[arg(long, value_name = "PATH")]
    llama_bench: Option<PathBuf>,
    /// Builds `llama-bench` from the sources of the package `llama-cpp-python` into a folder, says how, and ends
    #[arg(long, value_name = "DIR")]
    build_llama: Option<PathBuf>,
    /// The Python that has pip, to get those sources
    #[arg(long, default_value = "python3", value_name = "PATH")]
    python: PathBuf,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
    /// Adds the table to docs/bench/cpu.md, with the date and the machine
    #[arg(long)]
    write: bool,
}

/// Measures and prints one table.
///
/// # Errors
/// A program that is not there, fails, or prints other than expected.
pub fn run(root: &Path, args: &BenchArgs) -> Result<(), XtaskError> {
    if let Some(folder) = &args.build_llama {
        return build::run(folder, &args.python);
    }
    let Some(model) = &args.model else { return Err(XtaskError::Needs("no model is given".into())) };
    if !model.is_file() {
        return Err(XtaskError::io(model, "is no file"));
    }
    let ours = tranship(root)?;
    let peer = args.llama_bench.clone().or_else(on_path);
    let mut table = Table::new(args, model, peer.is_some());
    for round in 1..=args.rounds.max(1) {
        eprintln!("round {round} of {}", args.rounds.max(1));
        table.ours.push(one_of_ours(&ours, model, args)?);
        if let Some(peer) = &peer {
            table.peer.push(one_of_peer(peer, model, args)?);
        }
    }
    if args.json {
        println!("{:#}", table.json());
    } else {
        print!("{}", table.text());
    }
    if args.write {
        let path = root.join("docs/bench/cpu.md");
        table.append_to(&path)?;
        eprintln!("added to {}", path.display());
    }
    Ok(())
}

/// Builds the program for release, and gives its path.
fn tranship(root: &Path) -> Result<PathBuf, XtaskError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["build", "--release", "--package", "tranship-cli", "--message-format", "json"];
    let said = tool::output(Command::new(cargo).args(arguments).current_dir(root))?;
    let built = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = built.filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
    let program = programs.find(|p| p.file_stem().is_some_and(|n| n == "tranship"));
    program.ok_or_else(|| XtaskError::tool("cargo build", "built no program `tranship`"))
}

/// `llama-bench` in one of the folders of `PATH`.
fn on_path() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let name = format!("llama-bench{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(&folders).map(|folder| folder.join(&name)).find(|path| path.is_file())
}

fn one_of_ours(program: &Path, model: &Path, args: &BenchArgs) -> Result<Side, XtaskError> {
    let mut command = Command::new(program);
    command.arg("bench").arg(model).arg("--json").args(["--backend", &args.backend]);
    command.args(["-p", &args.prompt.to_string(), "-n", &args.tokens.to_string()]);
    command.args(["-t", &args.threads.to_string()]);
    if let Some(policy) = &args.policy {
        command.args(["--policy", policy]);
    }
    Side::of_ours(&tool::output(&mut command)?)
}

fn one_of_peer(program: &Path, model: &Path, args: &BenchArgs) -> Result<Side, XtaskError> {
    let mut command = Command::new(program);
    command.arg("-m").arg(model).args(["-o", "json", "-r", "3"]);
    command.args(["-p", &args.prompt.to_string(), "-n", &args.tokens.to_string()]);
    Side::of_peer(&tool::output(command.args(["-t", &args.threads.to_string()]))?)
}
