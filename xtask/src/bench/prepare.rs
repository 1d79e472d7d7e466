//! The files of the suite: the real model in all encodings, and random ones that have what it lacks.
//!
//! llama.cpp's `llama-quantize` makes the encodings, without an importance matrix. What it says of tensors whose width
//! an encoding does not divide is kept in a file beside the models, for the notes of the table.

use super::{BenchArgs, peers};
use crate::{XtaskError, fetch, tool};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What was made and how, beside the models.
const MADE: &str = "made.json";

/// A file that `llama-quantize` makes.
struct Encoded {
    /// Its name, without an ending.
    name: &'static str,
    /// The file that it is made from.
    from: &'static str,
    /// The options, and the type.
    options: &'static [&'static str],
}

const fn of(name: &'static str, from: &'static str, options: &'static [&'static str]) -> Encoded {
    Encoded { name, from, options }
}

const REAL: &str = "smollm2-F32";
/// `llama-quantize` gives MXFP4 to experts alone, unless tensors are named.
const MXFP4: &[&str] = &["--tensor-type", "blk=mxfp4", "Q8_0"];

const FILES: [Encoded; 28] = [
    of(REAL, "smollm2-Q4_1", &["--allow-requantize", "F32"]),
    of("smollm2-Q4_0", REAL, &["Q4_0"]),
    of("smollm2-Q8_0", REAL, &["Q8_0"]),
    of("smollm2-Q4_K_M", REAL, &["Q4_K_M"]),
    of("smollm2-BF16", REAL, &["BF16"]),
    of("smollm2-F16", REAL, &["F16"]),
    of("smollm2-Q5_K_M", REAL, &["Q5_K_M"]),
    of("smollm2-Q6_K", REAL, &["Q6_K"]),
    of("smollm2-Q3_K_M", REAL, &["Q3_K_M"]),
    of("smollm2-Q2_K", REAL, &["Q2_K"]),
    of("smollm2-Q5_0", REAL, &["Q5_0"]),
    of("smollm2-Q5_1", REAL, &["Q5_1"]),
    of("smollm2-IQ4_NL", REAL, &["IQ4_NL"]),
    of("smollm2-IQ4_XS", REAL, &["IQ4_XS"]),
    of("smollm2-MXFP4", REAL, MXFP4),
    of("dense-Q4_K", "dense-BF16", &["--pure", "Q4_K"]),
    of("dense-Q5_K", "dense-BF16", &["--pure", "Q5_K"]),
    of("dense-Q6_K", "dense-BF16", &["--pure", "Q6_K"]),
    of("dense-Q3_K", "dense-BF16", &["--pure", "Q3_K"]),
    of("dense-Q2_K", "dense-BF16", &["--pure", "Q2_K"]),
    of("dense-IQ4_XS", "dense-BF16", &["--pure", "IQ4_XS"]),
    of("dense-MXFP4", "dense-BF16", MXFP4),
    of("experts-Q4_K_M", "experts-BF16", &["Q4_K_M"]),
    of("experts-Q8_0", "experts-BF16", &["Q8_0"]),
    of("delta-Q4_K_M", "delta-BF16", &["Q4_K_M"]),
    of("delta-Q8_0", "delta-BF16", &["Q8_0"]),
    of("memories-Q4_K_M", "memories-BF16", &["Q4_K_M"]),
    of("memories-Q8_0", "memories-BF16", &["Q8_0"]),
];

/// The random models of `bench_models.py`.
const RANDOM: [&str; 4] = ["dense", "experts", "delta", "memories"];

/// Makes the files that a folder lacks.
///
/// # Errors
/// When the real model cannot be had, or Python or `llama-quantize` fails. An encoding that fails is noted and the
/// others are made.
pub fn run(root: &Path, folder: &Path, args: &BenchArgs) -> Result<(), XtaskError> {
    let quantize = peers::llama(args, "llama-quantize").ok_or_else(|| {
        XtaskError::Needs("--prepare needs llama-quantize, which --build-llama builds".into())
    })?;
    fs::create_dir_all(folder).map_err(|e| XtaskError::io(folder, e))?;
    let real = folder.join("smollm2-Q4_1.gguf");
    if !real.is_file() {
        let fetched = fetch::fetch(root, &fetch::SMOLLM2, &args.python)?;
        fs::copy(&fetched, &real).map_err(|e| XtaskError::io(&real, e))?;
    }
    for name in RANDOM.iter().filter(|name| !folder.join(format!("{name}-BF16.gguf")).is_file()) {
        let script = root.join("fixtures/scripts/bench_models.py");
        tool::shown(Command::new(&args.python).arg(script).arg(folder).arg(name))?;
    }
    let mut made = Made::read(folder);
    let threads = args.threads.to_string();
    for file in &FILES {
        let path = folder.join(format!("{}.gguf", file.name));
        if path.is_file() && made.has(file.name) {
            continue;
        }
        eprintln!("{}", path.display());
        let from = folder.join(format!("{}.gguf", file.from));
        let Some((kind, options)) = file.options.split_last() else { continue };
        let mut command = Command::new(&quantize);
        command.args(options).arg(from).arg(&path).args([kind, &threads.as_str()]);
        let how = format!("llama-quantize {} from {}", file.options.join(" "), file.from);
        let note = match super::measure::run(&mut command) {
            Ok(ended) => fallbacks(&[ended.printed, ended.told].concat()),
            Err(error) => {
                // What is left of a file that was not finished would be measured.
                let _ = fs::remove_file(&path);
                Some(format!("cannot be made: {error}"))
            }
        };
        made.add(file.name, &how, note.as_deref());
        made.write(folder)?;
    }
    println!("{}", folder.display());
    Ok(())
}

/// What `llama-quantize` says of tensors that it gave another encoding.
fn fallbacks(said: &str) -> Option<String> {
    let line = said.lines().find(|l| l.contains("required fallback quantization"))?;
    let at = line.find("WARNING: ").map_or(0, |at| at + "WARNING: ".len());
    Some(line[at..].trim().to_owned())
}

/// How the files of a folder were made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Made(Vec<(String, String, Option<String>)>);

impl Made {
    /// What a folder says of its files; nothing where it says nothing.
    pub fn read(folder: &Path) -> Made {
        let text = fs::read_to_string(folder.join(MADE)).unwrap_or_default();
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        let word = |entry: &Value, key: &str| entry[key].as_str().map(str::to_owned);
        let entries = value.as_array().into_iter().flatten();
        let known = entries.filter_map(|e| Some((word(e, "file")?, word(e, "how")?, word(e, "note"))));
        Made(known.collect())
    }

    fn write(&self, folder: &Path) -> Result<(), XtaskError> {
        let entries =
            self.0.iter().map(|(file, how, note)| json!({ "file": file, "how": how, "note": note }));
        let path = folder.join(MADE);
        let text = format!("{:#}\n", Value::from_iter(entries));
        fs::write(&path, text).map_err(|e| XtaskError::io(&path, e))
    }

    fn has(&self, file: &str) -> bool {
        self.0.iter().any(|(known, _, _)| known == file)
    }

    fn add(&mut self, file: &str, how: &str, note: Option<&str>) {
        self.0.retain(|(known, _, _)| known != file);
        self.0.push((file.into(), how.into(), note.map(str::to_owned)));
    }

    /// Lines for below a table: of the files that are not what their names say throughout.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        let mut kinds: Vec<&str> = self.0.iter().filter_map(|(_, _, note)| note.as_deref()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            let of = self.0.iter().filter(|(_, _, note)| note.as_deref() == Some(kind));
            let files: Vec<&str> = of.map(|(file, _, _)| file.as_str()).collect();
            notes.push(format!("{kind}: {}", files.join(", ")));
        }
        if !self.0.is_empty() {
            let how = "Encodings are llama-quantize's, without an importance matrix; where an encoding does not divide \
                       a width, another takes its place. MXFP4 is of the layers' matrices alone, the others are Q8_0.";
            notes.insert(0, how.into());
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallbacks_are_read_and_kept() {
        let said = "quant size  =    82.41 MiB\nllama_model_quantize_impl: WARNING: 180 of 272 tensor(s) required \
                    fallback quantization\n\n";
        let note = fallbacks(said);
        assert_eq!(note.as_deref(), Some("180 of 272 tensor(s) required fallback quantization"));
        assert_eq!(fallbacks("quant size = 3"), None);
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Made::read(folder.path()), Made::default());
        let mut made = Made::default();
        made.add("a", "old", None);
        made.add("b", "llama-quantize Q8_0 from c", None);
        made.add("a", "llama-quantize Q2_K from c", note.as_deref());
        made.write(folder.path()).expect("it is written");
        let read = Made::read(folder.path());
        assert_eq!(read, made);
        assert!(read.has("a") && !read.has("c"));
        assert_eq!(read.notes().len(), 2);
        assert_eq!(read.notes()[1], "180 of 272 tensor(s) required fallback quantization: a");
    }

    #[test]
    fn every_file_is_made_from_one_that_is_there_before() {
        for (at, file) in FILES.iter().enumerate() {
            let before = FILES[..at].iter().map(|f| f.name);
            let random = RANDOM.map(|name| format!("{name}-BF16"));
            let there = before.chain(["smollm2-Q4_1"]).chain(random.iter().map(String::as_str));
            assert!(there.into_iter().any(|name| name == file.from), "{}", file.name);
            assert!(FILES[..at].iter().all(|f| f.name != file.name), "{}", file.name);
        }
    }
}
