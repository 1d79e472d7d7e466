//! What is run: fixture models with the logits that an independent implementation gives, or a model of one's own.

use crate::{XtaskError, fetch};
use std::path::{Path, PathBuf};
use tranship_dtype::DType;
use tranship_weights::Checkpoint;

/// A model with its prompt.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The name, as `--model` takes it.
    pub name: String,
    /// The model's file or folder.
    pub path: PathBuf,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// What another implementation says of it.
    pub golden: Option<Golden>,
    /// Where the prompt is split.
    pub splits: Vec<usize>,
}

/// Logits by an independent implementation: `[rows, columns]`.
#[derive(Clone, Debug)]
pub struct Golden {
    /// The values.
    pub logits: Vec<f32>,
    /// The vocabulary entries that the columns are of; all of them where there is no list.
    pub columns: Option<Vec<usize>>,
}

impl Golden {
    /// The columns of `logits` (`[rows, vocab]`) that the golden has, for as many rows as both have.
    pub fn pick(&self, logits: &[f32], vocab: usize) -> (Vec<f32>, Vec<f32>, usize) {
        let width = self.columns.as_ref().map_or(vocab, Vec::len);
        let ours: Vec<f32> = match &self.columns {
            None => logits.to_vec(),
            Some(columns) => logits.chunks(vocab).flat_map(|row| columns.iter().map(|&c| row[c])).collect(),
        };
        let wanted = self.logits[..ours.len().min(self.logits.len())].to_vec();
        (wanted, ours, width)
    }
}

/// The folder of the fixture models.
const MODELS: &str = "fixtures/models";

/// The folder of the families' fixtures. Tests of the façade split each at every token; here each is split once.
const FAMILIES: &str = "fixtures/families";

/// The fixture models of the workspace at `root`, by name; only those that are named, where any are.
///
/// # Errors
/// [`XtaskError::Unknown`] for a name that no fixture has; a fixture that cannot be read.
pub fn fixtures(root: &Path, named: &[String]) -> Result<Vec<Subject>, XtaskError> {
    let mut found = Vec::new();
    for (folder, splits) in [(MODELS, splits as Splits), (FAMILIES, once)] {
        found.extend(models(&root.join(folder))?.into_iter().map(|model| (model, splits)));
    }
    for name in named {
        if !found.iter().any(|((known, ..), _)| known == name) {
            let known = found.iter().map(|((known, ..), _)| known.as_str());
            return Err(XtaskError::unknown("model", name, known));
        }
    }
    let wanted = found.into_iter().filter(|((name, ..), _)| named.is_empty() || named.contains(name));
    wanted.map(|((name, path, golden), splits)| subject(name, path, &golden, splits)).collect()
}

/// Where a prompt of so many rows is split.
type Splits = fn(usize) -> Vec<usize>;

/// A model by name, with its path and its golden.
type Found = (String, PathBuf, PathBuf);

/// The models of a folder, in the order of their names.
fn models(folder: &Path) -> Result<Vec<Found>, XtaskError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| XtaskError::io(folder, e))? {
        let path = entry.map_err(|e| XtaskError::io(folder, e))?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            found.push((name, path.clone(), path.join("golden.safetensors")));
        } else if let Some(stem) = name.strip_suffix(".golden.safetensors") {
            let whole = folder.join(format!("{stem}.gguf"));
            let parts = folder.join(format!("{stem}-00001-of-00002.gguf"));
            found.push((stem.to_owned(), if whole.exists() { whole } else { parts }, path));
        }
    }
    found.sort();
    Ok(found)
}

fn subject(name: String, path: PathBuf, golden: &Path, splits: Splits) -> Result<Subject, XtaskError> {
    let file = Checkpoint::open(golden).map_err(|e| XtaskError::io(golden, e))?;
    let tokens: Vec<u32> = numbers(&file, golden, "tokens")?.into_iter().map(|t| t as u32).collect();
    let logits = numbers(&file, golden, "logits")?;
    let splits = splits(tokens.len());
    Ok(Subject { name, path, tokens, golden: Some(Golden { logits, columns: None }), splits })
}

/// Where a prompt is split: after its first token, early, in the middle, before its last token.
fn splits(rows: usize) -> Vec<usize> {
    let mut splits: Vec<usize> = [1, 7, rows / 2, rows.saturating_sub(1)].into();
    splits.retain(|&s| s > 0 && s < rows);
    splits.dedup();
    splits
}

/// Where a prompt is split once: near its middle, at no multiple of 2, 3 or 5.
fn once(rows: usize) -> Vec<usize> {
    let mut splits: Vec<usize> =
        (1..rows).filter(|s| ![2, 3, 5].iter().any(|by| s.is_multiple_of(*by))).collect();
    splits.sort_by_key(|s| s.abs_diff(rows / 2));
    splits.truncate(1);
    splits
}

/// The real model's goldens.
const REAL: &str = "fixtures/real/smollm2-135m-q4_1.safetensors";

/// A model file of one's own, with the first `rows` tokens of a page of prose. The page is tokenized for
/// SmolLM2; for another vocabulary its ids are taken modulo that vocabulary, which is a prompt like any other. The
/// goldens count only for the file that they were made from.
///
/// # Errors
/// When the file or the goldens cannot be read.
pub fn real(root: &Path, path: &Path, rows: usize) -> Result<Subject, XtaskError> {
    let source = root.join(REAL);
    let file = Checkpoint::open(&source).map_err(|e| XtaskError::io(&source, e))?;
    let tokens = numbers(&file, &source, "tokens")?.into_iter().take(rows.max(2));
    let model = tranship_session::Model::open(path)?;
    let vocab = model.spec().vocab.max(1);
    let tokens: Vec<u32> = tokens.map(|t| (t as u64 % vocab) as u32).collect();
    let known = path.is_file() && fetch::digest(path)? == fetch::SMOLLM2.digest;
    let golden = if known {
        let columns = numbers(&file, &source, "sample_ids")?.into_iter().map(|c| c as usize).collect();
        let logits = numbers(&file, &source, "samples")?;
        Some(Golden { logits, columns: Some(columns) })
    } else {
        None
    };
    let name = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let splits = vec![tokens.len() / 2];
    Ok(Subject { name, path: path.to_owned(), tokens, golden, splits })
}

/// The values of a tensor of a golden, whole numbers as they are.
pub(crate) fn numbers(file: &Checkpoint, path: &Path, name: &str) -> Result<Vec<f32>, XtaskError> {
    let view = file.get(name).ok_or_else(|| XtaskError::Content {
        path: path.display().to_string(),
        wanted: format!("a tensor `{name}`"),
        found: "none".into(),
    })?;
    let words = view.bytes().as_chunks::<4>().0.iter();
    match view.dtype() {
        DType::F32 => Ok(words.map(|w| f32::from_le_bytes(*w)).collect()),
        DType::I32 => Ok(words.map(|w| i32::from_le_bytes(*w) as f32).collect()),
        other => Err(XtaskError::Content {
            path: path.display().to_string(),
            wanted: format!("`{name}` in f32 or i32"),
            found: other.to_string(),
        }),
    }
}
