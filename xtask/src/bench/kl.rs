//! What encodings cost in accuracy beyond themselves: the mean KL divergence of a file under the policy `quantized`
//! from the same file in F32 (`parity`), and llama.cpp's of the file from what it dequantizes to.
//!
//! Both go over the same windows of tokens, which llama.cpp cuts from a text of the fixtures, and score the second half
//! of each: `llama-perplexity` writes the tokens into the file of its base logits, and from there they come to ours.
//! Its base holds the logarithms of probabilities in 16 bits.

use super::suite::Notes;
use super::{BenchArgs, measure, peers};
use crate::XtaskError;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The texts, one after the other.
const TEXTS: [&str; 2] = ["fixtures/text/page.txt", "fixtures/text/held_out.txt"];
/// Tokens of a window.
const WINDOW: usize = 512;
/// Encodings of the real model.
const ENCODINGS: [&str; 15] = [
    "Q4_1", "Q4_0", "Q8_0", "Q4_K_M", "BF16", "F16", "Q5_K_M", "Q6_K", "Q3_K_M", "Q2_K", "Q5_0", "Q5_1",
    "IQ4_NL", "IQ4_XS", "MXFP4",
];

/// A file's divergences.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// The file.
    pub file: String,
    /// Ours, in nats.
    pub ours: Option<f64>,
    /// llama.cpp's.
    pub llama: Option<f64>,
}

impl Divergence {
    /// Whether ours is at most llama.cpp's; `None` where one of them is missing.
    pub fn met(&self) -> Option<bool> {
        self.ours.zip(self.llama).map(|(ours, llama)| ours <= llama)
    }

    /// A row of the table.
    pub fn line(&self) -> String {
        let cell = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.6}"));
        let met = self.met().map_or("?", |met| if met { "yes" } else { "**no**" });
        format!("| {} | {} | {} | {met} |\n", self.file, cell(self.ours), cell(self.llama))
    }

    /// The figures as JSON.
    pub fn json(&self) -> Value {
        json!({ "file": self.file, "tranship": self.ours, "llama_cpp": self.llama, "met": self.met() })
    }
}

/// Measures the encodings of the real model that are in a folder. What fails becomes a note.
///
/// # Errors
/// When llama.cpp's programs are not there, or the folder cannot be written to.
pub fn run(
    ours: &Path,
    root: &Path,
    folder: &Path,
    args: &BenchArgs,
    notes: &mut Notes,
) -> Result<Vec<Divergence>, XtaskError> {
    let program = |name: &str| {
        peers::llama(args, name)
            .ok_or_else(|| XtaskError::Needs(format!("--kl needs {name} beside llama-bench")))
    };
    let (quantize, perplexity) = (program("llama-quantize")?, program("llama-perplexity")?);
    let work = folder.join("kl");
    fs::create_dir_all(&work).map_err(|e| XtaskError::io(&work, e))?;
    let mut whole = String::new();
    for text in TEXTS.map(|text| root.join(text)) {
        whole += &fs::read_to_string(&text).map_err(|e| XtaskError::io(&text, e))?;
    }
    let text = work.join("text.txt");
    fs::write(&text, whole).map_err(|e| XtaskError::io(&text, e))?;
    let windows =
        Windows { ours, quantize: &quantize, perplexity: &perplexity, text: &text, work: &work, args };
    let mut found = Vec::new();
    for encoding in ENCODINGS {
        let file = format!("smollm2-{encoding}");
        let path = folder.join(format!("{file}.gguf"));
        let wanted = |word: &String| file.contains(word.as_str()) || word.contains(&file);
        if !path.is_file() || !(args.only.is_empty() || args.only.iter().any(wanted)) {
            continue;
        }
        eprintln!("divergence of {file}");
        let (tokens, llama) = match notes.kept(&file, windows.of_llama(&path)) {
            Some((tokens, llama)) => (tokens, Some(llama)),
            None => (Vec::new(), None),
        };
        let ours = notes.kept(&file, windows.of_ours(&path, &tokens)).flatten();
        found.push(Divergence { file, ours, llama });
    }
    fs::remove_dir_all(&work).map_err(|e| XtaskError::io(&work, e))?;
    notes.add(format!(
        "Divergences are over {} windows of {WINDOW} tokens of {}, the second half of each.",
        args.windows,
        TEXTS.join(" and ")
    ));
    Ok(found)
}

/// What both sides need.
struct Windows<'a> {
    ours: &'a Path,
    quantize: &'a Path,
    perplexity: &'a Path,
    text: &'a Path,
    work: &'a Path,
    args: &'a BenchArgs,
}

impl Windows<'_> {
    /// The tokens of all windows, and llama.cpp's divergence.
    fn of_llama(&self, path: &Path) -> Result<(Vec<u32>, f64), XtaskError> {
        let (whole, base) = (self.work.join("F32.gguf"), self.work.join("base.kld"));
        let threads = self.args.threads.to_string();
        let mut command = Command::new(self.quantize);
        command.arg("--allow-requantize").arg(path).arg(&whole).args(["F32", &threads]);
        measure::run(&mut command)?;
        let (chunks, window) = (self.args.windows.to_string(), WINDOW.to_string());
        let common = ["-c", &window, "-b", &window, "--chunks", &chunks, "-t", &threads];
        let perplexity = |model: &Path| {
            let mut command = Command::new(self.perplexity);
            command.arg("-m").arg(model).arg("--kl-divergence-base").arg(&base).args(common);
            command
        };
        measure::run(perplexity(&whole).arg("-f").arg(self.text))?;
        let ended = measure::run(perplexity(path).arg("--kl-divergence"))?;
        let said = [ended.printed, ended.told].concat();
        let mean = mean(&said).ok_or_else(|| XtaskError::Content {
            path: "llama-perplexity".into(),
            wanted: "a line `Mean KLD`".into(),
            found: "none".into(),
        })?;
        let bytes = fs::read(&base).map_err(|e| XtaskError::io(&base, e))?;
        let tokens = tokens(&bytes).ok_or_else(|| XtaskError::Content {
            path: base.display().to_string(),
            wanted: format!("windows of {WINDOW} tokens"),
            found: "other".into(),
        })?;
        Ok((tokens, mean))
    }

    /// Our divergence over windows of tokens; `None` where there are none.
    fn of_ours(&self, path: &Path, tokens: &[u32]) -> Result<Option<f64>, XtaskError> {
        let mut sum = Sum::default();
        for window in tokens.chunks_exact(WINDOW) {
            let exact = self.logits(path, window, "parity")?;
            sum.add(&exact, &self.logits(path, window, "quantized")?)?;
        }
        Ok(sum.mean())
    }

    /// Logits of each token of a window under a policy: the bytes of the only tensor of a safetensors file.
    fn logits(&self, path: &Path, window: &[u32], policy: &str) -> Result<Logits, XtaskError> {
        let out: PathBuf = self.work.join(format!("{policy}.safetensors"));
        let ids = window.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new(self.ours);
        command.arg("logits").arg(path).args(["--tokens", &ids, "--policy", policy, "--out"]).arg(&out);
        measure::run(command.args(["--backend", &self.args.backend, "-t", &self.args.threads.to_string()]))?;
        let bytes = fs::read(&out).map_err(|e| XtaskError::io(&out, e))?;
        Logits::of(bytes).ok_or_else(|| XtaskError::Content {
            path: out.display().to_string(),
            wanted: format!("logits of {WINDOW} tokens"),
            found: "other".into(),
        })
    }
}

/// The figure of `Mean    KLD:   0.003171 ±   0.000094`.
fn mean(said: &str) -> Option<f64> {
    let line = said.lines().find(|l| {
        let mut words = l.split_whitespace();
        (words.next(), words.next()) == (Some("Mean"), Some("KLD:"))
    })?;
    line.split_whitespace().nth(2)?.parse().ok()
}

/// The tokens of a file of base logits: `_logits_`, then as I32 tokens of a window, vocabulary, windows, all tokens.
fn tokens(base: &[u8]) -> Option<Vec<u32>> {
    let rest = base.strip_prefix(b"_logits_")?;
    let number = |at: usize| Some(u32::from_le_bytes(rest.get(4 * at..)?.first_chunk::<4>().copied()?));
    let (window, windows) = (number(0)? as usize, number(2)? as usize);
    if window != WINDOW {
        return None;
    }
    let count = window.checked_mul(windows)?;
    (3..count.checked_add(3)?).map(number).collect()
}

/// Rows of logits, one for each token of a window.
struct Logits {
    bytes: Vec<u8>,
    start: usize,
    vocab: usize,
}

impl Logits {
    /// Of a safetensors file whose only tensor has [`WINDOW`] rows of F32.
    fn of(bytes: Vec<u8>) -> Option<Logits> {
        let header = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
        let start = usize::try_from(header).ok()?.checked_add(8)?;
        let data = bytes.len().checked_sub(start)?;
        let vocab = data / 4 / WINDOW;
        (vocab > 0 && data == vocab * 4 * WINDOW).then_some(Logits { bytes, start, vocab })
    }

    /// Logarithms of the probabilities after a token of the window.
    fn log_probabilities(&self, row: usize) -> Vec<f64> {
        let row = &self.bytes[self.start + row * self.vocab * 4..][..self.vocab * 4];
        let (values, _) = row.as_chunks::<4>();
        log_softmax(values.iter().map(|v| f64::from(f32::from_le_bytes(*v))).collect())
    }
}

/// Less the logarithm of the sum of exponentials.
fn log_softmax(mut values: Vec<f64>) -> Vec<f64> {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum = values.iter().map(|v| (v - most).exp()).sum::<f64>().ln() + most;
    values.iter_mut().for_each(|v| *v -= sum);
    values
}

/// Divergences of rows.
#[derive(Default)]
struct Sum {
    nats: f64,
    rows: usize,
}

impl Sum {
    /// Adds the second half of a window, as `llama-perplexity` does: the last token, which nothing follows, has no
    /// part.
    fn add(&mut self, exact: &Logits, other: &Logits) -> Result<(), XtaskError> {
        if exact.vocab != other.vocab {
            let (wanted, found) = (format!("{} logits a token", exact.vocab), other.vocab.to_string());
            return Err(XtaskError::Content { path: "tranship logits".into(), wanted, found });
        }
        for row in WINDOW / 2..WINDOW - 1 {
            self.nats += divergence(&exact.log_probabilities(row), &other.log_probabilities(row));
            self.rows += 1;
        }
        Ok(())
    }

    fn mean(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.nats / self.rows as f64)
    }
}

/// `Σ p (ln p − ln q)`
fn divergence(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_read_from_what_llama_perplexity_says() {
        let said = "====== KL divergence statistics ======\nMean    KLD:   0.003171 ±   0.000094\nMaximum KLD:   0.2\n";
        assert_eq!(mean(said), Some(0.003171));
        assert_eq!((mean("Mean KLD: nan-ish"), mean("Mean Δp: 3 %"), mean("Mean KLD:")), (None, None, None));
    }

    #[test]
    fn tokens_are_read_from_a_base() {
        let mut base = b"_logits_".to_vec();
        for number in [512u32, 49152, 2].into_iter().chain(0..1024) {
            base.extend(number.to_le_bytes());
        }
        assert_eq!(tokens(&base), Some((0..1024).collect()));
        base.truncate(2000);
        assert_eq!((tokens(&base), tokens(b"_logits_"), tokens(b"other")), (None, None, None));
    }

    /// A file of logits, the same for each token.
    fn file(row: &[f32]) -> Vec<u8> {
        let mut bytes = 2u64.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        (0..WINDOW).for_each(|_| row.iter().for_each(|v| bytes.extend(v.to_le_bytes())));
        bytes
    }

    #[test]
    fn divergences_are_of_probabilities() {
        let of = |row: &[f32]| Logits::of(file(row)).expect("it reads");
        // Probabilities 1/2 and 1/2 from 1/4 and 3/4, each with logits a constant above.
        let (p, q) = (of(&[7.0, 7.0]), of(&[1.0, 1.0 + 3f32.ln()]));
        let mut sum = Sum::default();
        sum.add(&p, &q).expect("they fit");
        let wanted = 0.5 * (2f64.ln() + (2.0f64 / 3.0).ln());
        assert!((sum.mean().expect("rows") - wanted).abs() < 1e-7 && sum.rows == 255, "{:?}", sum.mean());
        assert!(sum.add(&p, &of(&[1.0])).is_err());
        assert_eq!(Sum::default().mean(), None);
        assert!(Logits::of(vec![0; 7]).is_none() && Logits::of(vec![255; 64]).is_none());
    }

    #[test]
    fn ours_may_be_as_much_as_the_peers() {
        let of = |ours, llama| Divergence { file: "m".into(), ours, llama };
        assert_eq!(of(Some(0.1), Some(0.1)).met(), Some(true));
        assert_eq!(of(Some(0.1), None).met(), None);
        assert_eq!(of(Some(0.2), Some(0.1)).line(), "| m | 0.200000 | 0.100000 | **no** |\n");
    }
}
