//! `tranship inspect`: what a model is.

use crate::args::ModelArg;
use crate::error::CliError;
use crate::{out, setup};
use clap::Args;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use tranship::prelude::{Model, Tokenizer};
use tranship::{Error, text};

/// Flags of `inspect`.
#[derive(Args)]
pub struct Inspect {
    #[command(flatten)]
    model: ModelArg,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A run of layers of one kind.
struct Run {
    kind: String,
    first: usize,
    count: usize,
}

/// Tensors of one type.
struct Stored {
    dtype: &'static str,
    tensors: u64,
    bytes: u64,
}

/// Describes the model.
pub fn run(command: &Inspect) -> Result<(), CliError> {
    let model = setup::model(&command.model.model)?;
    let spec = model.spec();
    let shapes = spec.required()?;
    let elements = |shape: &[u64]| shape.iter().fold(1u64, |n, s| n.saturating_mul(*s));
    let parameters = shapes.iter().fold(0u64, |n, (_, shape)| n.saturating_add(elements(shape)));
    let (runs, stored) = (layers(&model), encodings(&model, &shapes)?);
    let bytes = stored.iter().map(|s| s.bytes).sum::<u64>();
    let tokenizer = match text::tokenizer(&model) {
        Err(Error::NoTokenizer { .. }) => None,
        found => Some(found),
    };
    if !command.json {
        let unread = spec.unused(model.checkpoint())?;
        return out::print(table(&model, &runs, &stored, (bytes, parameters), tokenizer.as_ref(), &unread));
    }
    let layers: Vec<Value> =
        runs.iter().map(|r| json!({ "kind": r.kind, "first": r.first, "count": r.count })).collect();
    let encodings: Map<String, Value> = stored
        .iter()
        .map(|s| (s.dtype.to_owned(), json!({ "tensors": s.tensors, "bytes": s.bytes })))
        .collect();
    out::json(&json!({
        "path": model.checkpoint().path().display().to_string(),
        "format": format_name(&model),
        "architecture": spec.architecture,
        "hidden": spec.hidden,
        "streams": spec.streams,
        "vocab": spec.vocab,
        "context": spec.max_positions,
        "tied_head": spec.tied_head,
        "layer_count": spec.layers.len(),
        "layers": layers,
        "parameters": parameters,
        "tensors": stored.iter().map(|s| s.tensors).sum::<u64>(),
        "bytes": bytes,
        "file_bytes": model.checkpoint().file_bytes(),
        "encodings": encodings,
        "unused": spec.unused(model.checkpoint())?,
        "tokenizer": tokenizer.as_ref().map(|t| tokenizer_json(&model, t)),
    }))
}

fn format_name(model: &Model) -> &'static str {
    use tranship::weights::Format;
    match model.checkpoint().format() {
        Format::Gguf => "gguf",
        Format::Safetensors => "safetensors",
        Format::ConfigOnly => "config",
    }
}

fn layers(model: &Model) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (i, layer) in model.spec().layers.iter().enumerate() {
        let kind = layer.kind().to_string();
        match runs.last_mut() {
            Some(run) if run.kind == kind => run.count += 1,
            _ => runs.push(Run { kind, first: i, count: 1 }),
        }
    }
    runs
}

/// By type: the checkpoint's tensors, or of a bare configuration those that the programs name.
fn encodings(model: &Model, shapes: &[(String, Vec<u64>)]) -> Result<Vec<Stored>, CliError> {
    let mut stored: Vec<Stored> = Vec::new();
    let mut add = |dtype: &'static str, bytes: u64| match stored.iter_mut().find(|s| s.dtype == dtype) {
        Some(one) => {
            one.tensors += 1;
            one.bytes = one.bytes.saturating_add(bytes);
        }
        None => stored.push(Stored { dtype, tensors: 1, bytes }),
    };
    if model.has_weights() {
        model.checkpoint().tensors().for_each(|v| add(v.dtype().name(), v.source().bytes));
    } else {
        for (name, shape) in shapes {
            let dtype = model.stored(name).unwrap_or(model.spec().default_dtype());
            let bytes = tranship::plan::tensor_bytes(dtype, shape);
            let size = || Error::Size { name: name.clone(), shape: shape.clone(), dtype };
            add(dtype.name(), bytes.ok_or_else(size)?);
        }
    }
    stored.sort_by_key(|s| std::cmp::Reverse(s.bytes));
    Ok(stored)
}

fn kind_of(model: &Model) -> String {
    let ggml = model.checkpoint().metadata().optional::<&str>("tokenizer.ggml.model");
    ggml.ok().flatten().map_or("tokenizer.json".to_owned(), |name| format!("gguf {name}"))
}

/// The special tokens of a tokenizer by role.
fn specials(tokenizer: &Tokenizer) -> [(&'static str, Option<u32>); 3] {
    [("bos", tokenizer.bos()), ("eos", tokenizer.eos()), ("pad", tokenizer.pad())]
}

fn tokenizer_json(model: &Model, found: &Result<Tokenizer, Error>) -> Value {
    let tokenizer = match found {
        Ok(tokenizer) => tokenizer,
        Err(error) => return json!({ "kind": kind_of(model), "error": error.to_string() }),
    };
    let mut value = json!({ "kind": kind_of(model), "vocab": tokenizer.vocab_size() });
    for (role, id) in specials(tokenizer) {
        value[role] = id.map_or(Value::Null, |id| json!({ "id": id, "text": tokenizer.token_text(id) }));
    }
    value["end_ids"] = json!(text::end_ids(model, Some(tokenizer)));
    value["chat_template"] = json!(tokenizer.chat_template().is_some());
    value
}

fn table(
    model: &Model,
    runs: &[Run],
    stored: &[Stored],
    (bytes, parameters): (u64, u64),
    tokenizer: Option<&Result<Tokenizer, Error>>,
    unread: &[String],
) -> String {
    let spec = model.spec();
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", model.checkpoint().path().display());
    let weights = if model.has_weights() {
        out::bytes(bytes)
    } else {
        format!("no weights; {} if stored as declared", out::bytes(bytes))
    };
    let head = if spec.tied_head { "tied to the embedding" } else { "of its own" };
    let lines = [
        ("architecture", format!("{}, from {}", spec.architecture, format_name(model))),
        ("parameters", format!("{} ({parameters})", out::count(parameters))),
        ("weights", weights),
        ("hidden", format!("{} wide", spec.hidden)),
        ("vocabulary", format!("{} tokens, head {head}", spec.vocab)),
        ("context", format!("{} positions", spec.max_positions)),
    ];
    for (key, value) in lines {
        let _ = writeln!(text, "  {key:13} {value}");
    }
    for (i, run) in runs.iter().enumerate() {
        let key = if i == 0 { "layers" } else { "" };
        let range = if run.count == 1 {
            run.first.to_string()
        } else {
            format!("{}-{}", run.first, run.first + run.count - 1)
        };
        let _ = writeln!(text, "  {key:13} {range:9} {} × {}", run.count, run.kind);
    }
    for (i, one) in stored.iter().enumerate() {
        let key = if i == 0 { "encodings" } else { "" };
        let _ = writeln!(
            text,
            "  {key:13} {:9} {:>5} tensors  {:>10}",
            one.dtype,
            one.tensors,
            out::bytes(one.bytes)
        );
    }
    let _ = writeln!(text, "  {:13} {}", "tokenizer", tokenizer_line(model, tokenizer));
    if !unread.is_empty() {
        let some: Vec<&str> = unread.iter().take(3).map(String::as_str).collect();
        let more = if unread.len() > some.len() { ", …" } else { "" };
        let _ = writeln!(text, "  {:13} {} tensors: {}{more}", "unread", unread.len(), some.join(", "));
    }
    text
}

fn tokenizer_line(model: &Model, found: Option<&Result<Tokenizer, Error>>) -> String {
    let tokenizer = match found {
        None => return "none".to_owned(),
        Some(Err(error)) => return format!("{}: {error}", kind_of(model)),
        Some(Ok(tokenizer)) => tokenizer,
    };
    let mut line = format!("{}, {} tokens", kind_of(model), tokenizer.vocab_size());
    for (role, id) in specials(tokenizer) {
        if let Some(id) = id {
            let _ = write!(line, ", {role} {id} {:?}", tokenizer.token_text(id).unwrap_or_default());
        }
    }
    line.push_str(if tokenizer.chat_template().is_some() { ", chat template" } else { ", no chat template" });
    line
}
