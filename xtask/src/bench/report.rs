//! What rounds of both sides come to: medians, ratios, a table.

use super::BenchArgs;
use crate::XtaskError;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// One round of one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// Prefilled tokens a second.
    pub prefill_tps: f64,
    /// Decoded tokens a second.
    pub decode_tps: f64,
    /// The most memory that the process had, where it says.
    pub peak_rss_bytes: Option<f64>,
    /// What it says of itself: its policy, or its build.
    pub note: String,
}

impl Side {
    /// Reads what `tranship bench --json` prints.
    ///
    /// # Errors
    /// [`XtaskError::Content`] when keys are missing.
    pub fn of_ours(text: &str) -> Result<Side, XtaskError> {
        let value = parse("tranship bench", text)?;
        let number = |key: &str| value[key].as_f64().ok_or_else(|| lacks("tranship bench", key));
        let word = |key: &str| value[key].as_str().unwrap_or("?").to_owned();
        Ok(Side {
            prefill_tps: number("prefill_tps")?,
            decode_tps: number("decode_tps")?,
            peak_rss_bytes: value["peak_rss_bytes"].as_f64(),
            note: format!("{}, {}", word("backend"), word("policy")),
        })
    }

    /// Reads what `llama-bench -o json` prints: a list with a test of prompts and one of generation.
    ///
    /// # Errors
    /// [`XtaskError::Content`] when one of the tests is missing.
    pub fn of_peer(text: &str) -> Result<Side, XtaskError> {
        let value = parse("llama-bench", text)?;
        let tests: Vec<&Value> = value.as_array().into_iter().flatten().collect();
        let speed = |this: &str, other: &str| {
            let test = tests.iter().find(|t| t[this].as_u64() > Some(0) && t[other].as_u64() == Some(0));
            test.and_then(|t| t["avg_ts"].as_f64()).ok_or_else(|| lacks("llama-bench", this))
        };
        let build = tests.first().and_then(|t| t["build_commit"].as_str()).unwrap_or("?").to_owned();
        Ok(Side {
            prefill_tps: speed("n_prompt", "n_gen")?,
            decode_tps: speed("n_gen", "n_prompt")?,
            peak_rss_bytes: None,
            note: format!("llama.cpp {build}"),
        })
    }
}

fn parse(tool: &str, text: &str) -> Result<Value, XtaskError> {
    serde_json::from_str(text).map_err(|e| XtaskError::tool(tool, format!("printed no JSON: {e}")))
}

fn lacks(tool: &str, key: &str) -> XtaskError {
    XtaskError::Content { path: tool.into(), wanted: format!("a figure for `{key}`"), found: "none".into() }
}

/// The rounds of both sides.
#[derive(Clone, Debug)]
pub struct Table {
    model: String,
    prompt: u32,
    tokens: u32,
    threads: u32,
    compared: bool,
    /// Our rounds.
    pub ours: Vec<Side>,
    /// The peer's rounds.
    pub peer: Vec<Side>,
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[half]),
        _ => Some((values[half - 1] + values[half]) / 2.0),
    }
}

/// One measured quantity: its key, its title, and how it is read.
type Column = (&'static str, &'static str, fn(&Side) -> f64);

const COLUMNS: [Column; 2] =
    [("prefill_tps", "prefill", |s| s.prefill_tps), ("decode_tps", "decode", |s| s.decode_tps)];

impl Table {
    /// A table without rounds.
    pub(super) fn new(args: &BenchArgs, model: &Path, compared: bool) -> Table {
        let model = model.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let (prompt, tokens, threads) = (args.prompt, args.tokens, args.threads);
        Table { model, prompt, tokens, threads, compared, ours: Vec::new(), peer: Vec::new() }
    }

    fn note(sides: &[Side]) -> String {
        sides.first().map_or_else(|| "-".into(), |s| s.note.clone())
    }

    /// The table in Markdown: medians, the range of the rounds, and the ratio.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}, {} threads, medians of {} rounds by turns (least to most), tokens a second\n\n",
            self.model,
            self.threads,
            self.ours.len()
        );
        let (ours, peer) = (Table::note(&self.ours), Table::note(&self.peer));
        let _ = writeln!(text, "| | tranship ({ours}) | {peer} | ratio |\n|---|---|---|---|");
        let sizes = [self.prompt, self.tokens];
        for ((_, title, read), size) in COLUMNS.iter().zip(sizes) {
            let cell = |sides: &[Side]| {
                let values = || sides.iter().map(read);
                let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
                median(values()).map_or("-".into(), |m| format!("{m:.1} ({low:.1} to {high:.1})"))
            };
            let ratio = self.ratio(*read).map_or("-".into(), |r| format!("{r:.2}"));
            let _ =
                writeln!(text, "| {title} {size} | {} | {} | {ratio} |", cell(&self.ours), cell(&self.peer));
        }
        if let Some(bytes) = median(self.ours.iter().filter_map(|s| s.peak_rss_bytes)) {
            let _ = writeln!(text, "| peak memory | {:.0} MB | | |", bytes / 1e6);
        }
        if !self.compared {
            text.push_str("\nWithout llama.cpp: no `llama-bench` was given or found.\n");
        }
        text
    }

    fn ratio(&self, read: fn(&Side) -> f64) -> Option<f64> {
        Some(median(self.ours.iter().map(read))? / median(self.peer.iter().map(read))?)
    }

    /// The table as one JSON object.
    pub fn json(&self) -> Value {
        let side = |sides: &[Side]| {
            let mut object = serde_json::Map::new();
            object.insert("note".into(), Table::note(sides).into());
            for (key, _, read) in COLUMNS {
                object.insert(key.into(), json!(median(sides.iter().map(read))));
                let rounds: Vec<f64> = sides.iter().map(read).collect();
                object.insert(format!("{key}_rounds"), json!(rounds));
            }
            object.insert(
                "peak_rss_bytes".into(),
                json!(median(sides.iter().filter_map(|s| s.peak_rss_bytes))),
            );
            Value::Object(object)
        };
        let peer = if self.compared { side(&self.peer) } else { Value::Null };
        let ratios = COLUMNS.map(|(key, _, read)| (key.to_owned(), json!(self.ratio(read))));
        json!({
            "model": self.model, "prompt": self.prompt, "tokens": self.tokens, "threads": self.threads,
            "rounds": self.ours.len(), "tranship": side(&self.ours), "llama_cpp": peer,
            "ratio": serde_json::Map::from_iter(ratios),
        })
    }
}

/// Adds a table to a document, under the date and the machine.
///
/// # Errors
/// When the document cannot be written.
pub fn append(path: &Path, table: &str) -> Result<(), XtaskError> {
    let io = |e| XtaskError::io(path, e);
    let mut text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            "# Speed on processors\n\nEach table is of one run of `cargo xtask bench`.\n".into()
        }
        Err(e) => return Err(io(e)),
    };
    let _ = write!(text, "\n## {}, {}\n\n{table}", today(), this_machine());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(io)?;
    }
    std::fs::write(path, text).map_err(io)
}

/// The date.
pub fn today() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400);
    date(days)
}

/// The processors of the machine that this runs on.
pub fn this_machine() -> String {
    machine(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

/// The machine's processors, by what Linux says of them.
fn machine(cpuinfo: &str) -> String {
    let values = |key: &str| {
        let lines = cpuinfo.lines().filter_map(|l| l.split_once(':'));
        lines.filter(|(k, _)| k.trim() == key).map(|(_, v)| v.trim().to_owned()).collect::<Vec<_>>()
    };
    let names = values("model name");
    let flags = values("flags").first().cloned().unwrap_or_default();
    let sets = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8"];
    let has: Vec<&str> = sets.into_iter().filter(|s| flags.split(' ').any(|f| f == *s)).collect();
    match names.first() {
        Some(name) => format!("{} × {name} ({})", names.len(), has.join(", ")),
        None => format!("an {} machine", std::env::consts::ARCH),
    }
}

/// A date of the Gregorian calendar, by the days since 1970-01-01.
fn date(days: u64) -> String {
    let leap = |y: u64| (y.is_multiple_of(4) && !y.is_multiple_of(100)) || y.is_multiple_of(400);
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = r#"{"prefill_tps": 1200.5, "decode_tps": 180, "load_ms": 9, "peak_rss_bytes": 150e6,
        "backend": "cpu", "policy": "quantized"}"#;
    const PEER: &str = r#"[{"build_commit": "abc", "n_prompt": 512, "n_gen": 0, "avg_ts": 1000.0},
        {"build_commit": "abc", "n_prompt": 0, "n_gen": 128, "avg_ts": 90.0}]"#;

    fn table(rounds: &[(f64, f64)]) -> Table {
        let side = |tps: f64| Side { prefill_tps: tps, decode_tps: tps / 10.0, ..Side::default() };
        Table {
            model: "m.gguf".into(),
            prompt: 512,
            tokens: 128,
            threads: 2,
            compared: true,
            ours: rounds.iter().map(|r| side(r.0)).collect(),
            peer: rounds.iter().map(|r| side(r.1)).collect(),
        }
    }

    #[test]
    fn both_sides_are_read() {
        let ours = Side::of_ours(OURS).expect("it reads");
        assert_eq!((ours.prefill_tps, ours.decode_tps, ours.peak_rss_bytes), (1200.5, 180.0, Some(150e6)));
        let peer = Side::of_peer(PEER).expect("it reads");
        assert_eq!((peer.prefill_tps, peer.decode_tps), (1000.0, 90.0));
        assert_eq!(peer.note, "llama.cpp abc");
        for broken in ["", "{}", "[]"] {
            assert!(Side::of_ours(broken).is_err() && Side::of_peer(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn medians_and_ratios_are_of_the_rounds() {
        let table = table(&[(100.0, 40.0), (300.0, 50.0), (200.0, 60.0)]);
        let json = table.json();
        assert_eq!(json["tranship"]["prefill_tps"], 200.0);
        assert_eq!(json["llama_cpp"]["decode_tps"], 5.0);
        assert_eq!(json["ratio"]["prefill_tps"], 4.0);
        assert!(
            table.text().contains("| prefill 512 | 200.0 (100.0 to 300.0) | 50.0 (40.0 to 60.0) | 4.00 |")
        );
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), Some(2.5));
    }

    #[test]
    fn a_table_is_added_to_those_before_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bench/cpu.md");
        append(&path, &table(&[(1.0, 1.0)]).text()).expect("it is written");
        append(&path, &table(&[(2.0, 1.0)]).text()).expect("it is written");
        let text = std::fs::read_to_string(&path).expect("it is there");
        assert_eq!((text.matches("\n## ").count(), text.matches("# Speed").count()), (2, 1));
    }

    #[test]
    fn dates_and_machines_are_named() {
        assert_eq!(
            [0, 59, 11_016, 20_787].map(date),
            ["1970-01-01", "1970-03-01", "2000-02-29", "2026-11-30"]
        );
        let cpuinfo = "model name\t: Chip 9\nflags\t\t: fpu avx2 amx_int8\nmodel name\t: Chip 9\n";
        assert_eq!(machine(cpuinfo), "2 × Chip 9 (avx2, amx_int8)");
    }
}
