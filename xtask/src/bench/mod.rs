//! Speed, side by side: rounds of `tranship bench` and of llama.cpp's `llama-bench` by turns, on one machine, one
//! model and as many threads.
//!
//! With one model it is one table of two figures. `--suite DIR` goes over files of all encodings, long contexts,
//! experts, memories, sequences, threads, starting and memory, each with its target, and with `--kl` over accuracy.
//! `--prepare DIR` makes these files; `--build-llama` and `--build-candle` build the peers, and say how.

mod build;
mod kl;
mod measure;
mod peers;
mod prepare;
mod report;
mod rows;
mod suite;
mod summary;

pub use report::{Side, Table};

use crate::{XtaskError, tool};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// The model file
    #[arg(required_unless_present_any = ["build_llama", "build_candle", "prepare", "suite"])]
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
    /// llama.cpp's `llama-bench`, with its other programs beside it; by default the one on the path, if there is one
    #[arg(long, value_name = "PATH")]
    llama_bench: Option<PathBuf>,
    /// The program that `--build-candle` builds
    #[arg(long, value_name = "PATH")]
    candle: Option<PathBuf>,
    /// Builds llama.cpp's programs from the sources of the package `llama-cpp-python` into a folder, says how, and ends
    #[arg(long, value_name = "DIR")]
    build_llama: Option<PathBuf>,
    /// Builds the program of `bench/peers/candle` into a folder, says how, and ends
    #[arg(long, value_name = "DIR")]
    build_candle: Option<PathBuf>,
    /// The Python that has pip, and for --prepare `gguf` and `numpy`
    #[arg(long, default_value = "python3", value_name = "PATH")]
    python: PathBuf,
    /// Makes the files of the suite that a folder lacks, and ends
    #[arg(long, value_name = "DIR")]
    prepare: Option<PathBuf>,
    /// Measures the suite over the files of a folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "prepare"])]
    suite: Option<PathBuf>,
    /// Of the suite, only the rows whose title contains one of these words
    #[arg(long, value_name = "WORD,...", value_delimiter = ',', requires = "suite")]
    only: Vec<String>,
    /// Repeats within each run of the suite
    #[arg(long, default_value_t = 1, value_name = "N")]
    repeats: u32,
    /// Tokens of a long context
    #[arg(long, default_value_t = 8192, value_name = "N")]
    long: u32,
    /// Measures accuracy too: the KL divergence of each encoding from F32
    #[arg(long, requires = "suite")]
    kl: bool,
    /// Measures accuracy alone
    #[arg(long, requires = "suite")]
    kl_only: bool,
    /// Windows of 512 tokens that accuracy is measured over
    #[arg(long, default_value_t = 2, value_name = "N")]
    windows: u32,
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
        return build::llama(folder, &args.python);
    }
    if let Some(folder) = &args.build_candle {
        return build::candle(root, folder);
    }
    if let Some(folder) = &args.prepare {
        return prepare::run(root, folder, args);
    }
    if let Some(folder) = &args.suite {
        let summary = suite::run(root, folder, args)?;
        let mut object = summary.json();
        (object["date"], object["machine"]) = (report::today().into(), report::this_machine().into());
        return told(root, args, &summary.text(), &object);
    }
    let Some(model) = &args.model else { return Err(XtaskError::Needs("no model is given".into())) };
    if !model.is_file() {
        return Err(XtaskError::io(model, "is no file"));
    }
    let ours = tranship(root)?;
    let peer = peers::llama_bench(args);
    let mut table = Table::new(args, model, peer.is_some());
    for round in 1..=args.rounds.max(1) {
        eprintln!("round {round} of {}", args.rounds.max(1));
        table.ours.push(one_of_ours(&ours, model, args)?);
        if let Some(peer) = &peer {
            table.peer.push(one_of_peer(peer, model, args)?);
        }
    }
    told(root, args, &table.text(), &table.json())
}

/// Prints results as they are wanted, and adds them to the document if they are.
fn told(root: &Path, args: &BenchArgs, text: &str, object: &Value) -> Result<(), XtaskError> {
    if args.json {
        println!("{object:#}");
    } else {
        print!("{text}");
    }
    if args.write {
        let path = root.join("docs/bench/cpu.md");
        report::append(&path, text)?;
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
