//! `tranship prefill`: a prompt in, a hand-off out.

use crate::args::{Compute, Input, ModelArg, Parts};
use crate::error::CliError;
use crate::setup::Chip;
use crate::{out, setup};
use clap::Args;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tranship::backend::Outputs;
use tranship::prelude::Session;
use tranship::session::Part;

/// Flags of `prefill`.
#[derive(Args)]
pub struct Prefill {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    input: Input,
    /// The file that the hand-off is written to; - is standard output
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write a stream: the state leaves layer by layer, while later layers run
    #[arg(long)]
    stream: bool,
    #[command(flatten)]
    parts: Parts,
    #[command(flatten)]
    compute: Compute,
}

/// Parts that a model is run in where its state leaves as a stream: the first of them leave while the last ones run.
const PARTS: usize = 8;

/// Runs the prompt and writes the hand-off: its position is the number of tokens, and the token that follows is the most
/// probable one.
pub fn run(command: &Prefill) -> Result<(), CliError> {
    let model = setup::runnable(&command.model.model)?;
    let tokens = command.input.tokens(&model)?;
    let ctx = command.compute.ctx_for(&model, tokens.len() as u64 + 1);
    setup::leaves_a_row(tokens.len(), ctx)?;
    let mut chip = command.compute.chip_of(&command.parts)?;
    if command.stream && chip.parts.is_empty() {
        chip.parts = parts(&chip, model.spec().layers.len());
    }
    let mut session = chip.session(&model, ctx)?;
    let mut sequence = session.sequence()?;
    let start = Instant::now();
    let mut prefilled = Prefilled { elapsed: Duration::ZERO, next: 0 };
    let mut choose = |logits: &[f32]| -> Result<Option<u32>, CliError> {
        prefilled = Prefilled { elapsed: start.elapsed(), next: setup::most_probable(logits)? };
        Ok(Some(prefilled.next))
    };
    let stdout = command.out.as_os_str() == "-";
    if command.stream {
        let mut send = |session: &mut Session, out: &mut (dyn Write + Send)| -> Result<(), CliError> {
            let prompt = (&mut sequence, tokens.as_slice());
            session.prefill_into(prompt, Outputs::Last, out, &mut choose).map(drop)
        };
        if stdout {
            send(&mut session, &mut std::io::stdout())?;
        } else {
            out::write_file(&command.out, |file| send(&mut session, file))?;
        }
    } else {
        let logits = session.extend(&mut sequence, &tokens, Outputs::Last)?;
        let next = choose(&logits)?;
        if stdout {
            let bytes = session.suspend(&sequence, next)?.to_bytes()?;
            let mut out = out::stdout();
            out.write_all(&bytes).and_then(|()| out.flush()).map_err(|e| unwritten(&command.out, e))?;
        } else {
            session.write(&sequence, next, &command.out)?;
        }
    }
    let state = session.contract().bytes(sequence.position() as u64).unwrap_or(0);
    out::note(format_args!(
        "prefilled {} tokens in {:.1} ms; {} of state in {}; next token {}",
        tokens.len(),
        prefilled.elapsed.as_secs_f64() * 1e3,
        out::bytes(state),
        if stdout { "standard output".into() } else { command.out.display().to_string() },
        prefilled.next
    ));
    Ok(())
}

/// That a hand-off could not be written whole, which is an error even where nobody reads on.
fn unwritten(path: &Path, source: std::io::Error) -> CliError {
    CliError::Write { path: path.to_owned(), source }
}

/// What the prompt gave.
struct Prefilled {
    elapsed: Duration,
    next: u32,
}

/// The layers of a model in parts of about as many, all on the chip's backend.
fn parts(chip: &Chip, layers: usize) -> Vec<Part> {
    let count = PARTS.min(layers);
    let part = |i: usize| Part {
        backend: chip.backend.clone(),
        layers: i * layers / count..(i + 1) * layers / count,
    };
    (0..count).map(part).collect()
}
