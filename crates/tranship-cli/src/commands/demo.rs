//! `tranship demo`: the whole idea on an embedded model, in a few seconds.
//!
//! It is planned, its contract is derived, and its prompt is prefilled and decoded on every ordered pair of backends,
//! in F32 and under each backend's own policy. Every pair is fed the tokens that the F32 reference chose, so that its
//! logits can be set against the reference's at each step; its text is the same if it would have chosen the same tokens.

use crate::commands::plan::ledgers;
use crate::error::CliError;
use crate::{out, setup};
use clap::Args;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;
use tranship::backend::Outputs;
use tranship::backends::{self, BackendOptions};
use tranship::ctx::{ComputeCtx, Device};
use tranship::handoff::{Contract, Conversion, Expect, Handoff};
use tranship::plan::{Load, demands, pools};
use tranship::prelude::{Backend, Model, Options, Session, Specials, Tokenizer};
use tranship::residency::plan;
use tranship::session::argmax;
use tranship::{demo, text};

const PROMPT: &str = "The harbour at the end of the line\n\nEvery cargo that crosses";
/// Rows of a sequence: those that the demo model was taught.
const CTX: u64 = 128;
/// Decoded tokens.
const MOST: usize = 56;

/// Flags of `demo`.
#[derive(Args)]
pub struct Demo {
    /// Threads of a backend on this machine's processor [default: all cores]
    #[arg(short = 't', long, value_name = "THREADS")]
    threads: Option<NonZeroUsize>,
}

/// What the reference gives: tokens, and logits before each.
struct Truth {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

/// What is shown of one pair.
struct Measured {
    handoff_bytes: u64,
    millis: f64,
    /// ‖Δ‖ / ‖reference‖ over all decoded rows.
    error: f64,
    /// The first token that is not the reference's.
    differs_at: Option<usize>,
}

/// Shows the idea.
pub fn run(command: &Demo) -> Result<(), CliError> {
    let file = demo::unpack()?;
    let model = setup::model(file.path())?;
    let tokenizer = text::tokenizer(&model)?;
    let prompt = tokenizer.encode_text(PROMPT, Specials::Add)?;
    let mut out = out::stdout();
    let title = Title { bold: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() };

    let (host, options) = (Device::of(backends::default_name()), BackendOptions { threads: command.threads });
    let policy = ComputeCtx::preset(backends::default_policy(&host.backend)?, host.clone())?;
    let first = backends::open(&host.backend, &options)?;
    write!(out, "{}{}", title.of("The model, embedded in this program"), describe(&model))?;
    let demands = demands(&model, &policy, &first.caps().accepts, &Load::new(CTX))?;
    let planned = plan(&demands, &pools(Some("host=1MiB"))?, policy.residency)?;
    write!(out, "{}{}", title.of("What it takes, counted before a byte of it is loaded"), ledgers(&planned))?;
    let contract = model.contract(CTX, &policy)?;
    write!(
        out,
        "{}{}",
        title.of("What a decode step carries, derived from the programs"),
        carried(&contract)
    )?;

    let truth = truth(&model, &prompt)?;
    let said = tokenizer.decode_text(&truth.tokens)?;
    writeln!(out, "{}prompt  {PROMPT:?}\ntext    {said:?}", title.of("The text, in F32 on the reference"))?;
    write!(out, "{}", title.of("Prefilled here, decoded there, from the bytes of a hand-off"))?;
    writeln!(
        out,
        "{:10} {:10} {:10} {:10} {:>10} {:>9}  {:>11}  text",
        "prefill", "policy", "decode", "policy", "hand-off", "time", "error"
    )?;
    out.flush()?;
    let backends: Vec<(&str, Arc<dyn Backend>)> = backends::names()
        .map(|name| Ok((name, backends::open(name, &options)?)))
        .collect::<Result<_, tranship::Error>>()?;
    for parity in [true, false] {
        for here in &backends {
            for there in &backends {
                let line = pair(&model, &tokenizer, &prompt, &truth, (here, there), parity)?;
                writeln!(out, "{line}")?;
                out.flush()?;
            }
        }
    }
    writeln!(out, "\nerror: ‖logits − reference‖ / ‖reference‖ over {} decoded tokens.", truth.tokens.len())?;
    Ok(out.flush()?)
}

struct Title {
    bold: bool,
}

impl Title {
    fn of(&self, text: &str) -> String {
        if self.bold { format!("\n\x1b[1m{text}\x1b[0m\n") } else { format!("\n{text}\n") }
    }
}

fn describe(model: &Model) -> String {
    let spec = model.spec();
    let bytes = model.checkpoint().tensor_bytes();
    format!(
        "{}: {} layers, {} wide, {} tokens in its vocabulary, {} of weights in {} tensors\n",
        spec.architecture,
        spec.layers.len(),
        spec.hidden,
        spec.vocab,
        out::bytes(bytes),
        model.checkpoint().tensors().len()
    )
}

fn carried(contract: &Contract) -> String {
    let mut text = String::new();
    for tensor in &contract.carried {
        let axes: Vec<String> = tensor.axes.iter().map(|a| format!("{} {}", a.name, a.size)).collect();
        let extent = tensor.extent.name();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:4} [{}] {}, {extent}", tensor.name, axes.join(", "), tensor.dtype);
    }
    let per_token = contract.bytes(1).unwrap_or(0);
    let _ = writeln!(text, "  {} for each token", out::bytes(per_token));
    text
}

/// The most probable text in F32 on the reference, uninterrupted, and its logits.
fn truth(model: &Arc<Model>, prompt: &[u32]) -> Result<Truth, CliError> {
    let backend = backends::open("reference", &BackendOptions::default())?;
    let policy = ComputeCtx::parity(Device::of("reference"));
    let mut session = Session::open(model.clone(), backend, policy, Options::new(CTX))?;
    let mut sequence = session.sequence()?;
    let mut row = session.extend(&mut sequence, prompt, Outputs::Last)?;
    let mut truth = Truth { tokens: vec![], logits: vec![] };
    while truth.tokens.len() < MOST && sequence.position() < session.ctx() {
        let token = argmax(&row);
        truth.tokens.push(token);
        truth.logits.push(row);
        row = session.extend(&mut sequence, &[token], Outputs::Last)?;
    }
    Ok(truth)
}

type Named = (&'static str, Arc<dyn Backend>);

/// One line of the table.
fn pair(
    model: &Arc<Model>,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    truth: &Truth,
    (here, there): (&Named, &Named),
    parity: bool,
) -> Result<String, CliError> {
    let name = |on: &Named| if parity { Ok("parity") } else { backends::default_policy(on.0) };
    let (policy_here, policy_there) = (name(here)?, name(there)?);
    let open = |on: &Named, policy: &str| {
        let policy = ComputeCtx::preset(policy, Device::of(on.0))?;
        Ok::<_, CliError>(Session::open(model.clone(), on.1.clone(), policy, Options::new(CTX))?)
    };
    let m = measure(&mut open(here, policy_here)?, &mut open(there, policy_there)?, prompt, truth)?;
    let same = match m.differs_at {
        None => "the same".to_owned(),
        Some(at) => {
            let kept = tokenizer.decode_text(&truth.tokens[..at])?;
            format!(
                "differs after {:?}",
                kept.chars().rev().take(12).collect::<Vec<_>>().iter().rev().collect::<String>()
            )
        }
    };
    Ok(format!(
        "{:10} {policy_here:10} {:10} {policy_there:10} {:>10} {:>6.1} ms  {:>11.1e}  {same}",
        here.0,
        there.0,
        out::bytes(m.handoff_bytes),
        m.millis,
        m.error
    ))
}

/// Prefills in one session and decodes the reference's tokens in the other.
fn measure(
    here: &mut Session,
    there: &mut Session,
    prompt: &[u32],
    truth: &Truth,
) -> Result<Measured, CliError> {
    let start = Instant::now();
    let mut sequence = here.sequence()?;
    let mut row = here.extend(&mut sequence, prompt, Outputs::Last)?;
    let bytes = here.suspend(&sequence, Some(argmax(&row)))?.to_bytes()?;
    let handoff_bytes = bytes.len() as u64;
    let handoff = Handoff::from_bytes(bytes)?;
    let expect = Expect { conversion: Conversion::Declared, tokens: Some(prompt), ..Expect::default() };
    let mut resumed = there.resume(&handoff, &expect)?;
    let (mut distance, mut norm, mut differs_at) = (0f64, 0f64, None);
    for (i, (token, wanted)) in truth.tokens.iter().zip(&truth.logits).enumerate() {
        for (ours, theirs) in row.iter().zip(wanted) {
            distance += (f64::from(*ours) - f64::from(*theirs)).powi(2);
            norm += f64::from(*theirs).powi(2);
        }
        if argmax(&row) != *token && differs_at.is_none() {
            differs_at = Some(i);
        }
        if i + 1 < truth.tokens.len() {
            row = there.extend(&mut resumed, &[*token], Outputs::Last)?;
        }
    }
    let millis = start.elapsed().as_secs_f64() * 1e3;
    Ok(Measured { handoff_bytes, millis, error: (distance / norm.max(f64::MIN_POSITIVE)).sqrt(), differs_at })
}
