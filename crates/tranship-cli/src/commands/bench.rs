//! `tranship bench`: tokens in a second, prefilling and decoding, and what loading takes.
//!
//! A token that is decoded reads weights and what its sequence carries: how many bytes is said beside its speed, so
//! that both together can be held to what the machine reads in a second.

use crate::args::{Compute, ModelArg, Parts};
use crate::error::CliError;
use crate::setup::Chip;
use crate::{out, setup};
use clap::Args;
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::time::Instant;
use tranship::backend::Outputs;
use tranship::cpu::{Cpu, CpuError, Epilogue, Limits, Weights};
use tranship::dtype::DType;
use tranship::prelude::{Model, Rows, Sequence, Session};
use tranship::program::{Action, Dim, Extent, Op, Origin, ValueId};
use tranship::session::{Part, Phase, Section, chain};

/// Flags of `bench`.
#[derive(Args)]
pub struct Bench {
    #[command(flatten)]
    model: ModelArg,
    /// Tokens of the prompt; 0 leaves prefilling out
    #[arg(short = 'p', long = "prompt-tokens", value_name = "N", default_value_t = 512)]
    prompt: usize,
    /// Tokens that are decoded, one at a time; 0 leaves decoding out
    #[arg(short = 'n', long = "decode-tokens", value_name = "N", default_value_t = 128)]
    decode: usize,
    /// Tokens that are in the context before either begins; their time does not count
    #[arg(short = 'd', long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Sequences that are decoded together, in batches of one token of each; speed is of all tokens
    #[arg(long, value_name = "N", default_value = "1")]
    sequences: NonZeroUsize,
    /// Repeats; figures are medians
    #[arg(short = 'r', long, value_name = "R", default_value = "5")]
    repeats: NonZeroUsize,
    /// Measure, after all else, what this machine's processor can do at most with as many threads
    #[arg(long)]
    limits: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    parts: Parts,
    #[command(flatten)]
    compute: Compute,
}

/// What was measured, each in its own repeats.
struct Figures {
    load_ms: f64,
    first_token_ms: f64,
    prefill_tps: Option<f64>,
    decode_tps: Option<f64>,
    peak_rss_bytes: Option<u64>,
}

/// Measures the model: loading once, then each repeat a prompt in one go, and single tokens, in new sequences.
pub fn run(command: &Bench) -> Result<(), CliError> {
    if command.prompt == 0 && command.decode == 0 {
        return Err(CliError::NothingToMeasure);
    }
    let start = Instant::now();
    let model = setup::runnable(&command.model.model)?;
    let rows = command.depth.saturating_add(command.prompt.max(command.decode));
    let ctx = command.compute.ctx.unwrap_or(rows as u64);
    setup::fits(rows, ctx)?;
    let chip = command.compute.chip_of(&command.parts)?;
    let mut session = chip.session(&model, ctx)?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    let tokens = tokens(rows, model.spec().vocab);
    // What is read for the first time comes from the disk, which is no part of the speeds.
    let mut sequence = session.sequence()?;
    extend(&mut session, &mut [&mut sequence], &tokens[..rows.min(8)], &mut Vec::new())?;
    let first_token_ms = start.elapsed().as_secs_f64() * 1e3;
    drop(sequence);

    let (prefill_tps, decode_tps) = speeds(command, &mut session, &tokens)?;
    let peak_rss_bytes = tranship::plan::peak_rss_bytes();
    let figures = Figures { load_ms, first_token_ms, prefill_tps, decode_tps, peak_rss_bytes };
    let limits = command.limits.then(|| limits(command)).transpose()?;
    if command.json {
        return out::json(&object(command, &figures, (&model, &chip, &session), limits.as_ref())?);
    }
    out::print(table(command, &figures, (&model, &chip), ctx, limits.as_ref()))
}

/// Medians of tokens in a second: of prompts, and of tokens one at a time.
fn speeds(
    command: &Bench,
    session: &mut Session,
    tokens: &[u32],
) -> Result<(Option<f64>, Option<f64>), CliError> {
    let (before, after) = tokens.split_at(command.depth);
    let (mut prefills, mut decodes, mut logits) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..command.repeats.get() {
        if command.prompt > 0 {
            let mut sequence = filled(session, before, &mut logits)?;
            let seconds = extend(session, &mut [&mut sequence], &after[..command.prompt], &mut logits)?;
            prefills.push(command.prompt as f64 / seconds);
        }
        if command.decode > 0 {
            let count = command.sequences.get();
            let sequences = (0..count).map(|_| filled(session, before, &mut logits));
            let mut sequences = sequences.collect::<Result<Vec<_>, CliError>>()?;
            let mut batch: Vec<&mut Sequence> = sequences.iter_mut().collect();
            let mut seconds = 0.0;
            for token in after[..command.decode].chunks(1) {
                seconds += extend(session, &mut batch, token, &mut logits)?;
            }
            decodes.push((command.decode * count) as f64 / seconds);
        }
    }
    Ok((median(&mut prefills), median(&mut decodes)))
}

/// The figures, what they are of, and on what, as JSON.
fn object(
    command: &Bench,
    figures: &Figures,
    (model, chip, session): (&Model, &Chip, &Session),
    limits: Option<&(Limits, f64)>,
) -> Result<Value, CliError> {
    let limits = limits.map(|(limits, matmul)| {
        json!({
            "isa": limits.isa.name(),
            "threads": limits.threads,
            "read_bytes_per_s": limits.read_bytes,
            "f32_ops_per_s": limits.f32_ops,
            "byte_ops_per_s": limits.byte_ops,
            "bf16_ops_per_s": limits.bf16_ops,
            "f32_matmul_ops_per_s": matmul,
        })
    });
    let position = command.depth.saturating_add(command.decode / 2);
    Ok(json!({
        "prefill_tps": figures.prefill_tps,
        "decode_tps": figures.decode_tps,
        "load_ms": figures.load_ms,
        "first_token_ms": figures.first_token_ms,
        "peak_rss_bytes": figures.peak_rss_bytes,
        "weight_bytes_per_token": weight_bytes(model, chip, session.ctx() as u64)?,
        "carried_bytes_per_token": carried_bytes(session, position as u64),
        "limits": limits,
        "backend": chip.backends(|b| b.name()).join("+"),
        "layers": layers(session),
        "crossing_bytes": session.crossing_bytes(),
        "policy": chip.policy_name,
        "model": model.checkpoint().path().display().to_string(),
        "device": chip.backends(|b| &b.caps().description).join("; "),
        "threads": threads(command),
        "ctx": session.ctx(),
        "prompt_tokens": command.prompt,
        "decode_tokens": command.decode,
        "depth_tokens": command.depth,
        "sequences": command.sequences,
        "repeats": command.repeats,
    }))
}

/// The figures for a person.
fn table(
    command: &Bench,
    figures: &Figures,
    (model, chip): (&Model, &Chip),
    ctx: u64,
    limits: Option<&(Limits, f64)>,
) -> String {
    let tps = |value: Option<f64>| value.map_or("not measured".to_owned(), |v| format!("{v:10.1} tokens/s"));
    let mut text = format!(
        "{}\n{} on {} ({}), ctx {ctx}, medians of {}\n  prefill {:5}  {}\n  decode  {:5}  {}\n  \
         load           {:10.1} ms\n  first token    {:10.1} ms\n  peak memory    {:>10}\n",
        model.checkpoint().path().display(),
        chip.policy_name,
        chip.backends(|b| b.name()).join("+"),
        chip.backends(|b| &b.caps().description).join("; "),
        command.repeats,
        command.prompt,
        tps(figures.prefill_tps),
        command.decode,
        tps(figures.decode_tps),
        figures.load_ms,
        figures.first_token_ms,
        figures.peak_rss_bytes.map_or("unknown".to_owned(), out::bytes),
    );
    if let Some((limits, matmul)) = limits {
        let all = [limits.read_bytes, limits.f32_ops, *matmul, limits.byte_ops];
        let [read, floats, matmul, bytes] = all.map(|v| v / 1e9);
        text += &format!(
            "  this machine   {read:10.1} GB/s read, {floats:.0} GFLOP/s ({matmul:.0} in a product of matrices), \
             {bytes:.0} GOP/s of bytes\n"
        );
    }
    text
}

/// Bytes of the weights that a decoded token reads: of a table its row, of experts those that are chosen.
fn weight_bytes(model: &Model, chip: &Chip, ctx: u64) -> Result<u64, CliError> {
    let accepts = &chip.backend.caps().accepts;
    let chain = chain(model, &chip.policy, accepts, (&Section::whole(model), Phase::Decode), (ctx, 1))?;
    let mut sum = 0u64;
    for part in &chain.parts {
        let graph = part.graph();
        let read = |id: ValueId| {
            let value = graph.value(id);
            let Origin::Weight(name) = &value.origin else { return None };
            let sizes = value.shape.0.iter().map(|axis| match axis.size {
                Dim::Fixed(size) => size,
                _ => 1,
            });
            let shape: Vec<u64> = sizes.collect();
            let dtype = model.stored(name).unwrap_or(model.spec().default_dtype());
            Some((tranship::plan::tensor_bytes(dtype, &shape)?, shape.first().copied().unwrap_or(1).max(1)))
        };
        for node in &graph.nodes {
            let (op, args) = match &node.action {
                Action::Apply { op, args, .. } | Action::Update { op, args, .. } => (Some(op), &args[..]),
                Action::Read { .. } | Action::Write { .. } => (None, &[][..]),
            };
            for (bytes, rows) in args.iter().filter_map(|id| read(*id)) {
                let bytes = match op {
                    Some(Op::Gather | Op::RouteByTable(_)) => bytes / rows,
                    Some(Op::Experts(experts)) => bytes / rows * experts.top_k.min(rows),
                    _ => bytes,
                };
                sum = sum.saturating_add(bytes);
            }
        }
    }
    Ok(sum)
}

/// Bytes of what a sequence carries that a token at a position reads; what it rewrites whole counts twice.
fn carried_bytes(session: &Session, position: u64) -> u64 {
    let carried = session.contract().carried;
    let bytes = carried.iter().map(|tensor| {
        let bytes = tensor.bytes(tensor.valid_rows(position)).unwrap_or(0);
        if tensor.extent == Extent::Recurrent { bytes.saturating_mul(2) } else { bytes }
    });
    bytes.fold(0, u64::saturating_add)
}

/// The limits of this machine's processor, with the threads of the measurement, and the operations in a second of a
/// product of F32 matrices with them.
fn limits(command: &Bench) -> Result<(Limits, f64), CliError> {
    let all = std::thread::available_parallelism().ok();
    let threads = command.compute.threads.or(all).map_or(1, NonZeroUsize::get);
    let device = |e: CpuError| tranship::Error::Device { backend: "cpu", what: e.to_string() };
    let cpu = Cpu::new(threads).map_err(device)?;
    Ok((Limits::measure(threads).map_err(device)?, matmul(&cpu)))
}

/// 512 rows by a matrix of 2048 by 2048, the best of some times.
fn matmul(cpu: &Cpu) -> f64 {
    let (rows, width) = (512, 2048);
    let (x, mut y) = (vec![0.5f32; rows * width], vec![0.0; rows * width]);
    let w = 0.25f32.to_le_bytes().repeat(width * width);
    let times = (0..5).map(|_| {
        let start = Instant::now();
        cpu.linear(&x, Weights::new(DType::F32, &w, width, width), Epilogue::default(), &mut y);
        start.elapsed().as_secs_f64()
    });
    2.0 * (rows * width * width) as f64 / times.fold(f64::INFINITY, f64::min)
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

/// A new sequence with these tokens in its context.
fn filled(session: &mut Session, tokens: &[u32], logits: &mut Vec<f32>) -> Result<Sequence, CliError> {
    let mut sequence = session.sequence()?;
    if !tokens.is_empty() {
        extend(session, &mut [&mut sequence], tokens, logits)?;
    }
    Ok(sequence)
}

/// Seconds for the tokens, the same of each sequence, all at once, with the logits of each sequence's last. The buffer
/// is the caller's, so that a token's step does not ask for memory.
fn extend(
    session: &mut Session,
    sequences: &mut [&mut Sequence],
    tokens: &[u32],
    logits: &mut Vec<f32>,
) -> Result<f64, CliError> {
    let rows = sequences.iter_mut();
    let mut batch: Vec<Rows> =
        rows.map(|sequence| Rows { sequence, tokens, outputs: Outputs::Last }).collect();
    logits.clear();
    let start = Instant::now();
    session.step(&mut batch, logits)?;
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
