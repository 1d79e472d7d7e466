//! `tranship bench`: tokens in a second, prefilling and decoding, and what loading takes.

use crate::args::{Compute, ModelArg, Parts};
use crate::error::CliError;
use crate::{out, setup};
use clap::Args;
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::time::Instant;
use tranship::backend::Outputs;
use tranship::prelude::{Rows, Session};
use tranship::session::Part;

/// Flags of `bench`.
#[derive(Args)]
pub struct Bench {
    #[command(flatten)]
    model: ModelArg,
    /// Tokens of the prompt; 0 leaves prefilling out
    #[arg(short = 'p', long = "prompt-tokens", value_name = "N", default_value_t = 512)]
    prompt: usize,
    /// Tokens that are decoded, one at a time from an empty context; 0 leaves decoding out
    #[arg(short = 'n', long = "decode-tokens", value_name = "N", default_value_t = 128)]
    decode: usize,
    /// Repeats; figures are medians
    #[arg(short = 'r', long, value_name = "R", default_value = "5")]
    repeats: NonZeroUsize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    parts: Parts,
    #[command(flatten)]
    compute: Compute,
}

/// Measures the model: loading once, then each repeat a prompt in one go, and single tokens, in new sequences.
pub fn run(command: &Bench) -> Result<(), CliError> {
    if command.prompt == 0 && command.decode == 0 {
        return Err(CliError::NothingToMeasure);
    }
    let start = Instant::now();
    let model = setup::runnable(&command.model.model)?;
    let rows = command.prompt.max(command.decode);
    let ctx = command.compute.ctx.unwrap_or(rows as u64);
    setup::fits(rows, ctx)?;
    let chip = command.compute.chip_of(&command.parts)?;
    let mut session = chip.session(&model, ctx)?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;

    let tokens = tokens(rows, model.spec().vocab);
    // What is read for the first time comes from the disk, which is no part of these figures.
    prefill(&mut session, &tokens[..rows.min(8)])?;
    let (mut prefills, mut decodes) = (Vec::new(), Vec::new());
    for _ in 0..command.repeats.get() {
        if command.prompt > 0 {
            prefills.push(command.prompt as f64 / prefill(&mut session, &tokens[..command.prompt])?);
        }
        if command.decode > 0 {
            decodes.push(command.decode as f64 / decode(&mut session, &tokens[..command.decode])?);
        }
    }
    let rss = tranship::plan::peak_rss_bytes();
    let (prefill_tps, decode_tps) = (median(&mut prefills), median(&mut decodes));
    let path = model.checkpoint().path().display().to_string();
    if command.json {
        return out::json(&json!({
            "prefill_tps": prefill_tps,
            "decode_tps": decode_tps,
            "load_ms": load_ms,
            "peak_rss_bytes": rss,
            "backend": chip.backends(|b| b.name()).join("+"),
            "layers": layers(&session),
            "crossing_bytes": session.crossing_bytes(),
            "policy": chip.policy_name,
            "model": path,
            "device": chip.backends(|b| &b.caps().description).join("; "),
            "threads": threads(command),
            "ctx": ctx,
            "prompt_tokens": command.prompt,
            "decode_tokens": command.decode,
            "repeats": command.repeats,
        }));
    }
    let tps = |value: Option<f64>| value.map_or("not measured".to_owned(), |v| format!("{v:10.1} tokens/s"));
    out::print(format_args!(
        "{path}\n{} on {} ({}), ctx {ctx}, medians of {}\n  prefill {:5}  {}\n  decode  {:5}  {}\n  \
         load           {load_ms:10.1} ms\n  peak memory    {:>10}\n",
        chip.policy_name,
        chip.backends(|b| b.name()).join("+"),
        chip.backends(|b| &b.caps().description).join("; "),
        command.repeats,
        command.prompt,
        tps(prefill_tps),
        command.decode,
        tps(decode_tps),
        rss.map_or("unknown".to_owned(), out::bytes),
    ))
}

/// Which layers ran where.
fn layers(session: &Session) -> Vec<Value> {
    let last = |part: &Part| part.layers.end.saturating_sub(1);
    let one = |part: &Part| json!({ "backend": part.backend.name(), "first": part.layers.start, "last": last(part) });
    session.parts().map(one).collect()
}

fn threads(command: &Bench) -> Value {
    let all = std::thread::available_parallelism().ok();
    json!(command.compute.threads.or(all).map(NonZeroUsize::get))
}

/// Tokens spread over the vocabulary, the same each time.
fn tokens(count: usize, vocab: u64) -> Vec<u32> {
    (1..=count as u64)
        .map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % vocab.max(1))
        .map(|t| t as u32)
        .collect()
}

/// Seconds for all tokens at once, with the logits of the last.
fn prefill(session: &mut Session, tokens: &[u32]) -> Result<f64, CliError> {
    let mut sequence = session.sequence()?;
    let mut logits = Vec::new();
    let start = Instant::now();
    session.step(&mut [Rows { sequence: &mut sequence, tokens, outputs: Outputs::Last }], &mut logits)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds for the tokens one at a time, each with its logits.
fn decode(session: &mut Session, tokens: &[u32]) -> Result<f64, CliError> {
    let mut sequence = session.sequence()?;
    let mut logits = Vec::new();
    let start = Instant::now();
    for token in tokens.chunks(1) {
        logits.clear();
        session.step(
            &mut [Rows { sequence: &mut sequence, tokens: token, outputs: Outputs::Last }],
            &mut logits,
        )?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// The middle value, or the mean of the two in the middle.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some((values[low] + values[high]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        for (mut values, wanted) in [
            (vec![], None),
            (vec![3.0], Some(3.0)),
            (vec![9.0, 1.0], Some(5.0)),
            (vec![7.0, 1.0, 2.0], Some(2.0)),
        ] {
            assert_eq!(median(&mut values), wanted);
        }
    }

    #[test]
    fn tokens_are_in_the_vocabulary_and_differ() {
        let tokens = tokens(512, 97);
        assert!(tokens.iter().all(|t| *t < 97));
        assert!(tokens.iter().collect::<std::collections::HashSet<_>>().len() > 60);
    }
}
