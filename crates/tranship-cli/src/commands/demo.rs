//! `tranship demo`: the whole idea on an embedded model, in a few seconds.
//!
//! It is planned, its contract is derived, and its prompt is prefilled and decoded on every ordered pair of backends,
//! in F32 and under each backend's own policy. Every pair is fed the tokens that the F32 reference chose, so that its
//! logits, and the tokens that it would have chosen, can be set against the reference's at each step.

use crate::commands::plan::ledgers;
use crate::error::CliError;
use crate::held::{pattern, runs};
use crate::{out, setup};
use clap::Args;
use std::io::{BufWriter, IsTerminal, StdoutLock, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;
use tranship::backend::Outputs;
use tranship::backends::{self, BackendOptions};
use tranship::ctx::{ComputeCtx, Device, PRESETS};
use tranship::handoff::{Carried, Contract, Conversion, Expect, Handoff};
use tranship::plan::{Load, demands, pools};
use tranship::prelude::{Backend, Model, Options, Sampler, SamplerOptions, Session, Specials};
use tranship::program::Extent;
use tranship::residency::plan;
use tranship::{demo, text};

/// Of the last chapter of a novel, which the model was not taught.
const PROMPT: &str = "Anne had no Uppercross Hall before her, no landed estate, no headship of a family; and if they could but \
                      keep Captain Wentworth from being made a baronet, she would not change situations with Anne.\n\n\
                      It would be well for the eldest sister if she were equally satisfied with her situation, for";
/// Rows of a sequence where the prompt is prefilled, and where it is decoded.
const HERE: u64 = 192;
const THERE: u64 = 256;
/// Decoded tokens.
const MOST: usize = 72;
/// How a token is chosen. Each end draws the same numbers, so that the same logits give the same text.
const CHOICE: SamplerOptions =
    SamplerOptions { temperature: 0.7, top_k: 40, top_p: 0.9, min_p: 0.0, repetition_penalty: 1.0, seed: 2 };

/// Flags of `demo`.
#[derive(Args)]
pub struct Demo {
    /// Threads of a backend on this machine's processor: a model this small has no work for more
    #[arg(short = 't', long, value_name = "THREADS", default_value = "1")]
    threads: NonZeroUsize,
}

/// What the reference gives: tokens, and logits before each.
struct Truth {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

/// A backend under a policy.
struct End {
    backend: Arc<dyn Backend>,
    policy: &'static str,
}

/// A prompt that has run on an end.
struct Prefilled<'a> {
    end: &'a End,
    millis: f64,
    /// The logits after it.
    logits: Vec<f32>,
    /// The hand-off, and what it took to make it.
    bytes: Vec<u8>,
    suspending: f64,
}

/// What is shown of one pair.
struct Measured {
    /// From one session's state to the other's, by way of the bytes.
    handing: f64,
    decoding: f64,
    /// ‖Δ‖ / ‖reference‖ over all decoded rows.
    error: f64,
    /// Tokens that are the reference's.
    alike: usize,
}

/// Shows the idea.
pub fn run(command: &Demo) -> Result<(), CliError> {
    let folder = demo::unpack()?;
    let model = setup::model(folder.path())?;
    let tokenizer = text::tokenizer(&model)?;
    let prompt = tokenizer.encode_text(PROMPT, Specials::Add)?;
    let bold = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let mut shown = Shown { out: out::stdout(), bold };

    let options = BackendOptions { threads: Some(command.threads) };
    let first = End::open(backends::default_name(), None, &options)?;
    shown.title("The model, embedded in this program")?;
    shown.text(&describe(&model))?;
    let demands = demands(&model, &first.ctx()?, &first.backend.caps().accepts, &Load::new(THERE))?;
    let planned = plan(&demands, &pools(Some("host=8MiB"))?, first.ctx()?.residency)?;
    shown.title("What it takes, counted before a byte of it is loaded")?;
    write!(shown.out, "{}", ledgers(&planned))?;
    shown.title("What a decode step carries, derived from the programs")?;
    let contract = model.contract(THERE, &first.ctx()?)?;
    write!(shown.out, "{}", carried(&contract, prompt.len() as u64))?;

    let truth = truth(&model, &prompt)?;
    shown.title("A prompt that it was not taught")?;
    shown.text(PROMPT)?;
    shown.title("How it goes on, in F32 on the reference")?;
    shown.text(&format!("…{} …", tokenizer.decode_text(&truth.tokens)?))?;

    shown.title("Prefilled here, decoded there, from the bytes of a hand-off")?;
    pairs(&mut shown, &model, (&prompt, &truth), &options)?;
    let page = tokenizer.encode_text(demo::PAGE, Specials::Add)?;
    shown.title(&format!(
        "Perplexity of a page that it was not taught, {} tokens, under each policy",
        page.len()
    ))?;
    perplexities(&mut shown, &model, &page, &options)?;
    Ok(shown.out.flush()?)
}

/// Standard output with titles.
struct Shown {
    out: BufWriter<StdoutLock<'static>>,
    bold: bool,
}

impl Shown {
    fn title(&mut self, text: &str) -> Result<(), CliError> {
        let (on, off) = if self.bold { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        writeln!(self.out, "\n{on}{text}{off}")?;
        // What follows may take a while.
        Ok(self.out.flush()?)
    }

    /// Paragraphs, in lines that fit.
    fn text(&mut self, text: &str) -> Result<(), CliError> {
        for paragraph in text.lines().filter(|line| !line.trim().is_empty()) {
            write!(self.out, "{}", out::wrap(paragraph, "  ", "  "))?;
        }
        Ok(())
    }
}

impl End {
    /// A backend by name, under a policy or its own.
    fn open(name: &str, policy: Option<&'static str>, options: &BackendOptions) -> Result<End, CliError> {
        let own = backends::default_policy(name)?;
        Ok(End { backend: backends::open(name, options)?, policy: policy.unwrap_or(own) })
    }

    fn ctx(&self) -> Result<ComputeCtx, CliError> {
        Ok(ComputeCtx::preset(self.policy, Device::of(self.backend.name()))?)
    }

    fn session(&self, model: &Arc<Model>, ctx: u64) -> Result<Session, CliError> {
        Ok(Session::open(model.clone(), self.backend.clone(), self.ctx()?, Options::new(ctx))?)
    }

    fn label(&self) -> String {
        format!("{}/{}", self.backend.name(), self.policy)
    }
}

fn describe(model: &Model) -> String {
    let spec = model.spec();
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for layer in &spec.layers {
        let kind = layer.kind().to_string();
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
    format!(
        "{}: {}; {} wide, {} tokens in its vocabulary, {} of weights in {} tensors",
        spec.architecture,
        kinds.join(", "),
        spec.hidden,
        spec.vocab,
        out::bytes(model.checkpoint().tensor_bytes()),
        model.checkpoint().tensors().len()
    )
}

/// A line for each form of state: which tensors of which layers, their type, and their bytes after so many tokens.
fn carried(contract: &Contract, position: u64) -> String {
    let mut kinds: Vec<(Extent, Vec<&Carried>)> = Vec::new();
    for tensor in &contract.carried {
        match kinds.iter_mut().find(|(extent, of)| *extent == tensor.extent && of[0].dtype == tensor.dtype) {
            Some((_, tensors)) => tensors.push(tensor),
            None => kinds.push((tensor.extent, vec![tensor])),
        }
    }
    let mut text = String::new();
    for (extent, tensors) in kinds {
        let (mut names, mut layers) = (Vec::new(), Vec::new());
        for tensor in &tensors {
            let name = pattern(&tensor.name, tensor.layer);
            if !names.contains(&name) {
                names.push(name);
            }
            layers.push(tensor.layer);
        }
        layers.dedup();
        let what = match extent {
            Extent::Append => "a row for each token".to_owned(),
            Extent::Recurrent => "the same at any length".to_owned(),
            Extent::Ring => "rows of the last tokens".to_owned(),
            other => other.to_string(),
        };
        let bytes: u64 = tensors.iter().filter_map(|t| t.bytes(t.valid_rows(position))).sum();
        let place = format!(
            "{} of layer{} {}",
            names.join(", "),
            if layers.len() > 1 { "s" } else { "" },
            runs(&layers)
        );
        let dtype = tensors[0].dtype.to_string();
        text += &format!("  {:10} {place:42} {dtype:5} {:>10}  {what}\n", extent.name(), out::bytes(bytes));
    }
    let all = contract.bytes(position).map_or("more than can be counted".to_owned(), out::bytes);
    text + &format!("  {:59} {all:>10}  after {position} tokens\n", "together")
}

/// A text in F32 on the reference, uninterrupted, and its logits.
fn truth(model: &Arc<Model>, prompt: &[u32]) -> Result<Truth, CliError> {
    let end = End::open("reference", Some("parity"), &BackendOptions::default())?;
    let mut session = end.session(model, THERE)?;
    let mut sequence = session.sequence()?;
    let mut sampler = Sampler::new(CHOICE)?;
    let mut row = session.extend(&mut sequence, prompt, Outputs::Last)?;
    let mut truth = Truth { tokens: vec![], logits: vec![] };
    loop {
        let token = sampler.sample(&row, &[])?;
        truth.tokens.push(token);
        truth.logits.push(row);
        if truth.tokens.len() == MOST || sequence.position() == session.ctx() {
            return Ok(truth);
        }
        row = session.extend(&mut sequence, &[token], Outputs::Last)?;
    }
}

/// The table of pairs.
fn pairs(
    shown: &mut Shown,
    model: &Arc<Model>,
    (prompt, truth): (&[u32], &Truth),
    options: &BackendOptions,
) -> Result<(), CliError> {
    writeln!(
        shown.out,
        "  {:17} {:17} {:>7} {:>10} {:>6} {:>7} {:>5} {:>7}  tokens",
        "prefill", "decode", "prefill", "hand-off", "handed", "decode", "MiB/s", "error"
    )?;
    for policy in [Some("parity"), None] {
        let ends: Vec<End> =
            backends::names().map(|name| End::open(name, policy, options)).collect::<Result<_, _>>()?;
        for here in &ends {
            let prefilled = prefill(here, model, prompt)?;
            for there in &ends {
                let measured = hand_over(&prefilled, there, model, (prompt, truth))?;
                writeln!(shown.out, "{}", line(&prefilled, there, &measured, truth))?;
                shown.out.flush()?;
            }
        }
    }
    let told = format!(
        "{} tokens are prefilled and {} decoded; times are in ms. Handed: from one session's state to the other's, checks \
         and seal included. Error: ‖logits − reference‖ / ‖reference‖ over the decoded tokens, in F32 on the reference. \
         Tokens: how many it would have chosen as the reference did.",
        prompt.len(),
        truth.tokens.len()
    );
    shown.text(&told)
}

/// One line of the table.
fn line(from: &Prefilled<'_>, there: &End, measured: &Measured, truth: &Truth) -> String {
    let speed = from.bytes.len() as f64 / f64::from(1 << 20) / (measured.handing / 1e3).max(1e-9);
    format!(
        "  {:17} {:17} {:>7.1} {:>10} {:>6.2} {:>7.1} {speed:>5.0} {:>7.0e}  {} of {}",
        from.end.label(),
        there.label(),
        from.millis,
        out::bytes(from.bytes.len() as u64),
        measured.handing,
        measured.decoding,
        measured.error,
        measured.alike,
        truth.tokens.len()
    )
}

/// Runs the prompt on an end and makes the hand-off.
fn prefill<'a>(end: &'a End, model: &Arc<Model>, prompt: &[u32]) -> Result<Prefilled<'a>, CliError> {
    let mut session = end.session(model, HERE)?;
    let mut sequence = session.sequence()?;
    let start = Instant::now();
    let logits = session.extend(&mut sequence, prompt, Outputs::Last)?;
    let millis = millis_since(start);
    let start = Instant::now();
    let bytes = session.suspend(&sequence, None)?.to_bytes()?;
    Ok(Prefilled { end, millis, logits, bytes, suspending: millis_since(start) })
}

/// Takes the hand-off and decodes the reference's tokens.
fn hand_over(
    from: &Prefilled<'_>,
    there: &End,
    model: &Arc<Model>,
    (prompt, truth): (&[u32], &Truth),
) -> Result<Measured, CliError> {
    let mut session = there.session(model, THERE)?;
    let bytes = from.bytes.clone();
    let start = Instant::now();
    let handoff = Handoff::from_bytes(bytes)?;
    let expect = Expect { conversion: Conversion::Declared, tokens: Some(prompt), ..Expect::default() };
    let mut sequence = session.resume(&handoff, &expect)?;
    let handing = from.suspending + millis_since(start);
    let mut sampler = Sampler::new(CHOICE)?;
    let (mut row, mut distance, mut norm, mut alike) = (from.logits.clone(), 0f64, 0f64, 0);
    let start = Instant::now();
    for (i, (token, wanted)) in truth.tokens.iter().zip(&truth.logits).enumerate() {
        if i > 0 {
            row = session.extend(&mut sequence, &truth.tokens[i - 1..i], Outputs::Last)?;
        }
        for (ours, theirs) in row.iter().zip(wanted) {
            distance += (f64::from(*ours) - f64::from(*theirs)).powi(2);
            norm += f64::from(*theirs).powi(2);
        }
        alike += usize::from(sampler.sample(&row, &[])? == *token);
    }
    let error = (distance / norm.max(f64::MIN_POSITIVE)).sqrt();
    Ok(Measured { handing, decoding: millis_since(start), error, alike })
}

fn millis_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// The perplexity of a page under each policy, on the default backend, beside that in F32.
fn perplexities(
    shown: &mut Shown,
    model: &Arc<Model>,
    page: &[u32],
    options: &BackendOptions,
) -> Result<(), CliError> {
    let mut first = None;
    for policy in PRESETS {
        let end = End::open(backends::default_name(), Some(policy), options)?;
        let mut session = end.session(model, page.len() as u64)?;
        let mut sequence = session.sequence()?;
        let logits = session.extend(&mut sequence, page, Outputs::All)?;
        let vocab = usize::try_from(model.spec().vocab).unwrap_or(usize::MAX);
        let perplexity = text::surprise(&logits, vocab, page).exp();
        let beside = 100.0 * (perplexity / *first.get_or_insert(perplexity) - 1.0);
        let beside = if policy == PRESETS[0] { String::new() } else { format!("  {beside:+.3} %") };
        writeln!(shown.out, "  {:17} {perplexity:8.3}{beside}", end.label())?;
    }
    Ok(())
}
