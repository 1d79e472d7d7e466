//! The command line: names and flags that scripts depend on.

use crate::commands::{
    backends, bench, check, contract, decode, demo, inspect, logits, plan, prefill, program, run,
};
use clap::{Args, Parser, Subcommand};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;

/// One language model across unlike chips: prefill here, decode there.
#[derive(Parser)]
#[command(name = "tranship", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Show the whole idea on an embedded model
    Demo(demo::Demo),
    /// Say what a model is: layers, encodings, bytes, tokenizer
    Inspect(inspect::Inspect),
    /// Print the program of one cut of a model
    Program(program::ProgramOf),
    /// Print what a decode step carries, as JSON
    Contract(contract::ContractOf),
    /// Count the memory that a model takes, and place it
    Plan(plan::PlanOf),
    /// Continue a prompt, streamed
    Run(run::Run),
    /// Run a prompt and write the hand-off
    ///
    /// The hand-off names the token that follows, which is always the most probable one: `decode --temperature` chooses
    /// from the token after it on.
    Prefill(prefill::Prefill),
    /// Go on from a hand-off
    ///
    /// The first token is the one that the hand-off names, the most probable after the prompt; --temperature, --top-k,
    /// --top-p and --seed choose the tokens after it.
    Decode(decode::Decode),
    /// Examine a hand-off
    Check(check::Check),
    /// Write the logits of tokens to a safetensors file
    Logits(logits::Logits),
    /// Measure prefill and decode
    Bench(bench::Bench),
    /// List the backends: devices, types, encodings, limits
    Backends(backends::Backends),
}

/// The model.
#[derive(Args)]
pub struct ModelArg {
    /// A .gguf file, a folder or file of safetensors, or (where no weights are needed) a config.json
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
}

/// Where and how to compute.
#[derive(Args, Clone)]
pub struct Compute {
    /// The backend; `tranship backends` lists them
    #[arg(long, value_name = "B")]
    pub backend: Option<String>,
    /// The numeric policy: parity, serving or quantized [default: quantized on cpu, serving elsewhere]
    #[arg(long, value_name = "P")]
    pub policy: Option<String>,
    /// Rows that a sequence may have [default: 2048, or what the tokens need, up to what the model was made for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub ctx: Option<u64>,
    /// Threads of a backend on this machine's processor [default: all cores]
    #[arg(short = 't', long, value_name = "THREADS")]
    pub threads: Option<NonZeroUsize>,
}

/// A model in parts, each a run of layers on a backend.
#[derive(Args, Clone)]
pub struct Parts {
    /// Run the layers in parts: on which backend which layers, from 0 and inclusive, as in cpu=0-14,reference=15-29
    #[arg(
        long,
        value_name = "B=A-C,...",
        value_delimiter = ',',
        value_parser = layer_run,
        conflicts_with = "backend"
    )]
    pub layers: Vec<LayerRun>,
}

/// Layers of a part, on a backend by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRun {
    /// The backend.
    pub backend: String,
    /// The layers.
    pub layers: Range<usize>,
}

/// `B=A-C`, or `B=A` for one layer.
fn layer_run(text: &str) -> Result<LayerRun, String> {
    let wanted = || "wanted BACKEND=FIRST-LAST, as in cpu=0-14".to_owned();
    let (backend, layers) = text.trim().split_once('=').ok_or_else(wanted)?;
    let (first, last) = layers.split_once('-').unwrap_or((layers, layers));
    let number = |text: &str| text.trim().parse::<usize>().map_err(|e| format!("layer `{text}`: {e}"));
    let (first, last) = (number(first)?, number(last)?);
    if last < first {
        return Err(format!("layer {last} comes before layer {first}"));
    }
    let end = last.checked_add(1).ok_or_else(|| format!("layer {last} is not countable"))?;
    Ok(LayerRun { backend: backend.trim().to_owned(), layers: first..end })
}

/// What to run: exactly one of the two.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct Input {
    /// Text, which the model's tokenizer makes tokens of
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Tokens, comma-separated
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token)]
    pub tokens: Option<Vec<u32>>,
}

/// What a hand-off must cover: at most one of the two.
#[derive(Args)]
#[group(multiple = false)]
pub struct Covers {
    /// The text that the hand-off must be of
    #[arg(id = "covers_prompt", long = "prompt", value_name = "TEXT")]
    pub prompt: Option<String>,
    /// The tokens that the hand-off must be of, comma-separated
    #[arg(id = "covers_tokens", long = "tokens", value_name = "IDS", value_delimiter = ',', value_parser = token)]
    pub tokens: Option<Vec<u32>>,
}

/// A token of a list, with spaces around it or without.
fn token(text: &str) -> Result<u32, std::num::ParseIntError> {
    text.trim().parse()
}

/// How the next token is chosen.
#[derive(Args)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most probable token
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub temperature: f32,
    /// Chooses among this many of the most probable tokens; 0 among all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Chooses among the most probable tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Chooses the sequence of random numbers
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

impl Sampling {
    /// The sampler.
    pub fn sampler(&self) -> Result<tranship::text::Sampler, tranship::text::TextError> {
        tranship::text::Sampler::new(tranship::text::SamplerOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
            ..Default::default()
        })
    }
}
