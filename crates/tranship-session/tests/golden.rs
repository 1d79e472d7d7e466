//! Every fixture model, on the reference interpreter under `parity`, against the logits of `transformers` in F32.

use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tranship_backend::{Outputs, Reference};
use tranship_ctx::{ComputeCtx, Device};
use tranship_session::{Model, Options, Session, argmax};

/// The largest error of a logit, as a part of the logits' standard deviation: both sides round to F32 in every
/// operation, in other orders.
const BOUND: f64 = 2e-4;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models")
}

/// Model files and folders with the golden that belongs to each.
fn models() -> Vec<(PathBuf, PathBuf)> {
    let mut models = Vec::new();
    for entry in std::fs::read_dir(fixtures()).expect("fixtures are there") {
        let path = entry.expect("a fixture").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            models.push((path.clone(), path.join("golden.safetensors")));
        } else if let Some(stem) = name.strip_suffix(".golden.safetensors") {
            let whole = fixtures().join(format!("{stem}.gguf"));
            let split = fixtures().join(format!("{stem}-00001-of-00002.gguf"));
            models.push((if whole.exists() { whole } else { split }, path));
        }
    }
    models.sort();
    models
}

fn numbers(file: &SafeTensors<'_>, name: &str) -> Vec<f64> {
    let view = file.tensor(name).expect("the golden has it");
    let data = view.data();
    match view.dtype() {
        safetensors::Dtype::F32 => {
            data.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect()
        }
        safetensors::Dtype::I32 => {
            data.as_chunks::<4>().0.iter().map(|b| f64::from(i32::from_le_bytes(*b))).collect()
        }
        safetensors::Dtype::I64 => {
            data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect()
        }
        other => panic!("{name} is {other:?}"),
    }
}

fn session(path: &Path) -> Session {
    let model = Arc::new(Model::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())));
    let policy = ComputeCtx::parity(Device::of("reference"));
    Session::open(model, Arc::new(Reference::new()), policy, Options::new(80)).expect("it compiles")
}

#[test]
fn logits_are_those_of_transformers() {
    let models = models();
    assert!(models.len() >= 15, "only {} fixtures were found", models.len());
    for (path, golden) in models {
        let bytes = std::fs::read(&golden).expect("the golden is there");
        let golden = SafeTensors::deserialize(&bytes).expect("the golden reads");
        let tokens: Vec<u32> = numbers(&golden, "tokens").iter().map(|&t| t as u32).collect();
        let wanted = numbers(&golden, "logits");
        let mut session = session(&path);
        let mut sequence = session.sequence().expect("memory");
        let logits = session.extend(&mut sequence, &tokens, Outputs::All).expect("it runs");
        assert_eq!(logits.len(), wanted.len(), "{}", path.display());
        let mean = wanted.iter().sum::<f64>() / wanted.len() as f64;
        let deviation = (wanted.iter().map(|w| (w - mean).powi(2)).sum::<f64>() / wanted.len() as f64).sqrt();
        let error = wanted.iter().zip(&logits).map(|(w, &l)| (w - f64::from(l)).abs()).fold(0.0, f64::max);
        println!("{}: error {:.2e} of the deviation", path.display(), error / deviation);
        assert!(error <= BOUND * deviation, "{}: {error:e} of {deviation}", path.display());
    }
}

#[test]
fn greedy_text_is_that_of_transformers() {
    let mut checked = 0;
    for (path, golden) in models() {
        let bytes = std::fs::read(&golden).expect("the golden is there");
        let golden = SafeTensors::deserialize(&bytes).expect("the golden reads");
        if golden.tensor("greedy").is_err() {
            continue;
        }
        let tokens: Vec<u32> = numbers(&golden, "tokens").iter().map(|&t| t as u32).collect();
        let wanted: Vec<u32> = numbers(&golden, "greedy").iter().map(|&t| t as u32).collect();
        let mut session = session(&path);
        let mut sequence = session.sequence().expect("memory");
        let mut logits = session.extend(&mut sequence, &tokens[..24], Outputs::Last).expect("it runs");
        for (i, token) in wanted.iter().enumerate() {
            assert_eq!(argmax(&logits), *token, "{}: token {i}", path.display());
            logits = session.extend(&mut sequence, &[*token], Outputs::Last).expect("it runs");
        }
        checked += 1;
    }
    assert!(checked >= 7, "only {checked} goldens have greedy text");
}
