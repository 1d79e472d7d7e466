//! What a sequence carries, for released models: derived from their configurations alone, and written into
//! `docs/state.md`.

use crate::XtaskError;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_handoff::{Carried, Contract};
use tranship_session::Model;

/// The page that the figures are written into.
const PAGE: &str = "docs/state.md";

/// Between these lines, the page is what this command writes.
const MARKS: [&str; 2] = ["<!-- figures -->\n", "<!-- end of figures -->\n"];

/// Models by the names of their configurations in `fixtures/configs`.
const MODELS: [(&str, &str); 9] = [
    ("Llama-3.1-405B", "llama-3.1-405b"),
    ("gpt-oss-120b", "gpt-oss-120b"),
    ("MiniMax-M2", "minimax-m2"),
    ("MiniMax-Text-01", "minimax-text-01-hf"),
    ("Qwen3-Next-80B-A3B", "qwen3-next-80b-a3b-instruct"),
    ("Kimi-Linear-48B-A3B", "kimi-linear-48b-a3b-instruct"),
    ("DeepSeek-V3", "deepseek-v3"),
    ("DeepSeek-V4-Flash", "deepseek-v4-flash"),
    ("DeepSeek-V4-Pro", "deepseek-v4-pro"),
];

/// Tokens that a sequence has.
const LENGTHS: [(u64, &str); 3] = [(4096, "4k"), (32_768, "32k"), (131_072, "128k")];

/// Prints the figures, or writes them into the page.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct StateArgs {
    /// Writes them into docs/state.md
    #[arg(long)]
    write: bool,
}

/// Derives the contracts and prints what they say, with the time that each took.
///
/// # Errors
/// A configuration that cannot be read or mapped, a page without its marks.
pub fn run(root: &Path, args: StateArgs) -> Result<(), XtaskError> {
    for (title, file) in MODELS {
        let model = open(root, file)?;
        let start = Instant::now();
        let contract = model.contract(131_072, &policy())?;
        let took = start.elapsed().as_secs_f64() * 1e3;
        println!(
            "{title}: {} tensors in {} layers, derived in {took:.1} ms",
            contract.carried.len(),
            layers(&model)
        );
    }
    let figures = figures(root)?;
    if !args.write {
        println!("\n{figures}");
        return Ok(());
    }
    let path = root.join(PAGE);
    let page = std::fs::read_to_string(&path).map_err(|e| XtaskError::io(&path, e))?;
    let (before, rest) = page.split_once(MARKS[0]).ok_or_else(|| unmarked(0))?;
    let (_, after) = rest.split_once(MARKS[1]).ok_or_else(|| unmarked(1))?;
    let text = format!("{before}{}{figures}{}{after}", MARKS[0], MARKS[1]);
    std::fs::write(&path, text).map_err(|e| XtaskError::io(&path, e))
}

fn unmarked(mark: usize) -> XtaskError {
    XtaskError::Content {
        path: PAGE.into(),
        wanted: format!("the line `{}`", MARKS[mark].trim_end()),
        found: "none".into(),
    }
}

/// The figures that the page holds now.
///
/// # Errors
/// When the page cannot be read, or has no marks.
pub fn written(root: &Path) -> Result<String, XtaskError> {
    let path = root.join(PAGE);
    let page = std::fs::read_to_string(&path).map_err(|e| XtaskError::io(&path, e))?;
    let rest = page.split_once(MARKS[0]).ok_or_else(|| unmarked(0))?.1;
    Ok(rest.split_once(MARKS[1]).ok_or_else(|| unmarked(1))?.0.to_owned())
}

fn open(root: &Path, file: &str) -> Result<Model, XtaskError> {
    Ok(Model::open(&root.join("fixtures/configs").join(format!("{file}.json")))?)
}

fn layers(model: &Model) -> usize {
    model.spec().layers.len()
}

/// Caches in F16 and memories in F32: what the policy of the processor keeps.
fn policy() -> ComputeCtx {
    ComputeCtx::quantized(Device::of("cpu"))
}

/// The tables: bytes for each model and length, then each model's tensors by kind.
///
/// # Errors
/// A configuration that cannot be read or mapped.
pub fn figures(root: &Path) -> Result<String, XtaskError> {
    let mut text =
        String::from("\n| model | layers | bytes at 4k | at 32k | at 128k | each further token |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    let mut details = String::new();
    for (title, file) in MODELS {
        let model = open(root, file)?;
        let contract = model.contract(131_072, &policy())?;
        let bytes = |position| contract.bytes(position).unwrap_or(u64::MAX);
        let sizes: Vec<String> = LENGTHS.iter().map(|(length, _)| size(bytes(*length))).collect();
        // Over a span that every rate divides, so that compressed rows count as they come.
        let span = 16_384;
        let each = (bytes(131_072) - bytes(131_072 - span)) as f64 / span as f64;
        let kinds = kinds(&model);
        let _ = writeln!(text, "| {title} | {kinds} | {} | {each:.0} B |", sizes.join(" | "));
        let _ = write!(details, "\n### {title}\n\n{}", tensors(&contract));
    }
    Ok(format!("{text}{details}\n"))
}

/// The layers by the kinds of their mixers, in the order of their first.
fn kinds(model: &Model) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for layer in &model.spec().layers {
        let kind = layer.kind().mixer;
        match counts.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => counts.push((kind, 1)),
        }
    }
    let counts: Vec<String> = counts.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
    counts.join(", ")
}

/// A model's carried tensors, those that are alike in one row.
fn tensors(contract: &Contract) -> String {
    let mut text = String::from("| tensor | layers | extent | axes | cut | type | bytes at 4k | at 128k |\n");
    text.push_str("|---|---|---|---|---|---|---|---|\n");
    let mut alike: Vec<(String, Vec<&Carried>)> = Vec::new();
    for carried in &contract.carried {
        let key = row(carried);
        match alike.iter_mut().find(|(known, _)| *known == key) {
            Some((_, all)) => all.push(carried),
            None => alike.push((key, vec![carried])),
        }
    }
    for (key, all) in alike {
        let bytes = |position| -> u64 {
            all.iter()
                .map(|c| c.bytes(c.valid_rows(position)).unwrap_or(u64::MAX))
                .fold(0, u64::saturating_add)
        };
        let [name, rest] = key.split_once('|').map_or([key.as_str(), ""], |(a, b)| [a, b]);
        let (least, most) = (size(bytes(4096)), size(bytes(131_072)));
        let _ = writeln!(text, "| {name} | {} |{rest} | {least} | {most} |", all.len());
    }
    text
}

/// What a tensor is, without the number of its layer.
fn row(carried: &Carried) -> String {
    let name = carried.name.trim_end_matches(|c: char| c.is_ascii_digit());
    let axes: Vec<String> = carried.axes.iter().map(|a| format!("{} {}", a.name, a.size)).collect();
    let (axes, cut) = (axes.join(", "), carried.units());
    format!("`{name}`| {} | {axes} | {cut} | {}", carried.extent, dtype(carried.dtype))
}

fn dtype(dtype: DType) -> String {
    dtype.name().to_owned()
}

/// Bytes, to four digits.
fn size(bytes: u64) -> String {
    let units: BTreeMap<u32, &str> = [(0, "B"), (1, "KiB"), (2, "MiB"), (3, "GiB"), (4, "TiB")].into();
    let power = (0..5).rev().find(|p| bytes >= 1 << (10 * p)).unwrap_or(0);
    let value = bytes as f64 / f64::from(1u32 << (10 * power.min(3))) / if power == 4 { 1024.0 } else { 1.0 };
    let digits = if value < 10.0 && power > 0 {
        2
    } else if value < 100.0 && power > 0 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {}", units[&power])
}
