//! `tranship run`: a prompt in, text out as it comes; on one backend, or prefilled on one and decoded on another.

use crate::args::{Compute, ModelArg, Parts, Sampling};
use crate::error::CliError;
use crate::generate::{Stop, generate};
use crate::{out, setup};
use clap::Args;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tranship::backend::Outputs;
use tranship::handoff::{Conversion, Expect, HandoffError, Opening};
use tranship::prelude::{ChatTemplate, Message, Model, Sampler, Sequence, Session, Specials, Tokenizer};
use tranship::session::{Part, SessionError};
use tranship::text::{self, Date, RenderOptions};

/// Flags of `run`.
#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    model: ModelArg,
    /// The text to go on from, or with --chat what the user says
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// Tokens to give at most; an end token stops earlier, and is not given
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: usize,
    /// Put the prompt into the model's own chat template
    #[arg(long)]
    chat: bool,
    /// What the chat template is told as the system's words
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Go on past end tokens
    #[arg(long)]
    ignore_end: bool,
    /// Run the prompt on this backend, and hand off
    #[arg(long, value_name = "B", conflicts_with = "layers")]
    prefill_on: Option<String>,
    /// Decode on this backend, from a hand-off
    #[arg(long, value_name = "B", conflicts_with = "layers")]
    decode_on: Option<String>,
    #[command(flatten)]
    parts: Parts,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    compute: Compute,
}

/// Continues the prompt.
pub fn run(command: &Run) -> Result<(), CliError> {
    let model = setup::runnable(&command.model.model)?;
    let tokenizer = text::tokenizer(&model).map_err(|e| setup::of(&model, e))?;
    let mut sampler = command.sampling.sampler()?;
    let prompt = prompt(command, &model, &tokenizer)?;
    if prompt.is_empty() {
        return Err(CliError::EmptyPrompt { prompt: command.prompt.clone() });
    }
    let ctx =
        command.compute.ctx_for(&model, (prompt.len() as u64).saturating_add(command.max_tokens as u64));
    setup::fits(prompt.len(), ctx)?;

    let chip = match &command.prefill_on {
        Some(prefill_on) => command.compute.chip_named(prefill_on)?,
        None => command.compute.chip_of(&command.parts)?,
    };
    let mut session = chip.session(&model, ctx)?;
    // Opened before anything is computed, so that what it refuses it refuses at once.
    let mut other = match (&command.prefill_on, &command.decode_on) {
        (None, None) => None,
        (_, decode_on) => {
            setup::leaves_a_row(prompt.len(), ctx)?;
            let name = decode_on.as_deref().unwrap_or(command.compute.backend_name());
            Some(command.compute.chip_named(name)?.session(&model, ctx)?)
        }
    };
    let start = Instant::now();
    let (mut sequence, first, prefilled) = match &mut other {
        Some(other) => hand_over(&mut session, other, &prompt, &mut sampler)?,
        None => {
            let mut sequence = session.sequence()?;
            let logits = session.extend(&mut sequence, &prompt, Outputs::Last)?;
            let first = sampler.sample(&logits, &[])?;
            (sequence, first, start.elapsed())
        }
    };
    let decoding = other.as_mut().unwrap_or(&mut session);

    let ends = if command.ignore_end { vec![] } else { text::end_ids(&model, Some(&tokenizer)) };
    let stop = Stop { most: command.max_tokens, ends };
    let mut decoder = if command.chat { tokenizer.decoder() } else { tokenizer.decoder_after(&prompt)? };
    let mut stdout = out::stdout();
    let mut given = 0usize;
    let start = Instant::now();
    let finish = generate(decoding, &mut sequence, first, &mut sampler, &stop, |token| {
        given += 1;
        stdout.write_all(decoder.push(token)?.as_bytes())?;
        Ok(stdout.flush()?)
    })?;
    let decoded = start.elapsed();
    writeln!(stdout, "{}", decoder.finish())?;
    stdout.flush()?;
    // The first token came with the prompt.
    let steps = sequence.position() - prompt.len();
    if !chip.parts.is_empty() {
        tell_parts(&session);
    }
    out::note(format_args!(
        "prompt {} tokens, {:.1} tokens/s; text {given} tokens, {:.1} tokens/s; {}",
        prompt.len(),
        prompt.len() as f64 / prefilled.as_secs_f64().max(1e-9),
        steps as f64 / decoded.as_secs_f64().max(1e-9),
        finish.phrase()
    ));
    Ok(())
}

/// The prompt's tokens, as text or through the chat template.
fn prompt(command: &Run, model: &Model, tokenizer: &Tokenizer) -> Result<Vec<u32>, CliError> {
    if !command.chat {
        return Ok(tokenizer.encode_text(&command.prompt, Specials::Add)?);
    }
    let missing = || CliError::NoChatTemplate { path: model.checkpoint().path().to_owned() };
    let template = ChatTemplate::new(tokenizer.chat_template().ok_or_else(missing)?)?;
    let system = command.system.iter().map(|text| Message::new("system", text.as_str()));
    let messages: Vec<Message> = system.chain([Message::new("user", command.prompt.as_str())]).collect();
    let spelled = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
    let (bos, eos) = (spelled(tokenizer.bos()), spelled(tokenizer.eos()));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let options = RenderOptions {
        bos: bos.as_deref(),
        eos: eos.as_deref(),
        date: now.and_then(|n| Date::from_unix(n.as_secs()).ok()),
        ..Default::default()
    };
    Ok(tokenizer.encode_template(&template.render(&messages, &options)?, Specials::None)?)
}

/// Tells standard error which layers ran where, and what crossed between them.
fn tell_parts(session: &Session) {
    let part = |part: &Part| {
        let (first, last) = (part.layers.start, part.layers.end.saturating_sub(1));
        let layers = if first == last { first.to_string() } else { format!("{first}-{last}") };
        format!("{layers} on {}", part.backend.name())
    };
    let parts: Vec<String> = session.parts().map(part).collect();
    let bytes = session.crossing_bytes();
    out::note(format_args!("layers {}; {bytes} bytes of rows crossed for each token", parts.join(", ")));
}

/// Runs the prompt in one session and gives its state to another, which is given a stream and nothing else, and installs the
/// first layers while the last ones run. Returns the sequence there, the token that follows, and how long the prompt ran.
/// Tells standard error what was computed where.
fn hand_over(
    from: &mut Session,
    to: &mut Session,
    prompt: &[u32],
    sampler: &mut Sampler,
) -> Result<(Sequence, u32, Duration), CliError> {
    let start = Instant::now();
    let mut sequence = from.sequence()?;
    let (input, output) = std::io::pipe()?;
    let expect = Expect { conversion: Conversion::Declared, tokens: Some(prompt), ..Expect::default() };
    let names = [&*from, &*to].map(|session| session.backend().name().to_owned());
    let (mut first, mut prefilled) = (0, Duration::ZERO);
    let (sent, received) = std::thread::scope(|scope| {
        let receiving = scope.spawn(move || -> Result<Sequence, SessionError> {
            let opening = Opening::read(input)?;
            Ok(to.receive(opening, &expect)?.0)
        });
        let choose = |logits: &[f32]| -> Result<Option<u32>, CliError> {
            (first, prefilled) = (sampler.sample(logits, &[])?, start.elapsed());
            Ok(Some(first))
        };
        let out = Counted { output, count: 0 };
        let sent = from.prefill_into((&mut sequence, prompt), Outputs::Last, out, choose);
        // Its end is closed with it, so that who reads does not wait for more.
        let sent = sent.map(|(_, out)| out.count);
        (sent, receiving.join())
    });
    let received = received.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (sent, resumed) = match (sent, received) {
        (Ok(sent), Ok(resumed)) => (sent, resumed),
        // What fails at one end ends the other early.
        (Err(error), Ok(_)) => return Err(error),
        (Err(error), Err(refused)) if ends_early(&refused) => return Err(error),
        (_, Err(refused)) => return Err(refused.into()),
    };
    let position = resumed.position();
    out::note(format_args!(
        "positions 0-{} on {}, from {position} on {}; {} handed over in {:.1} ms",
        position.saturating_sub(1),
        names[0],
        names[1],
        out::bytes(sent),
        (start.elapsed() - prefilled).as_secs_f64() * 1e3
    ));
    Ok((resumed, first, prefilled))
}

/// Whether a receiver lacks what was still to come, and nothing else.
fn ends_early(error: &SessionError) -> bool {
    let ends = |error: &HandoffError| matches!(error, HandoffError::Ends(_));
    match error {
        SessionError::Handoff(error) => ends(error),
        SessionError::Refused(refusal) => refusal.errors.iter().all(ends),
        _ => false,
    }
}

/// Counts the bytes that pass.
struct Counted<W> {
    output: W,
    count: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.output.write(bytes)?;
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.output.flush()
    }
}
