//! GGUF files of every architecture, made by llama.cpp's converter, on every backend, against what `transformers` computes
//! for the checkpoint before it was converted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tranship::backends::{self, BackendOptions};
use tranship::ctx::{ComputeCtx, Device};
use tranship::prelude::{Backend, Checkpoint, Model, Options, Outputs, Session};
use tranship::session::argmax;

/// Positions that a session has: at least the golden tokens, and the greedy ones after half of them.
const CTX: u64 = 64;

/// The greatest difference of a logit, in standard deviations of all: rounding in F32 in another order. The files hold
/// every weight as it is, but for gains and decays that the converter computes in F32.
const BOUND: f64 = 2e-4;

/// `general.architecture` of the files.
const ARCHITECTURES: [&str; 21] = [
    "deepseek2",
    "gemma2",
    "gemma3",
    "glm4moe",
    "gpt-oss",
    "granitehybrid",
    "kimi-linear",
    "lfm2",
    "llama",
    "minimax-m2",
    "nemotron_h",
    "nemotron_h_moe",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "smollm3",
];

/// A file's model, and what `transformers` gives for some tokens.
struct Fixture {
    name: String,
    model: Arc<Model>,
    tokens: Vec<u32>,
    /// Of all tokens, `[tokens, vocab]`.
    logits: Vec<f32>,
    /// The most probable tokens after the first half of the tokens.
    greedy: Vec<u32>,
}

fn fixtures() -> Vec<Fixture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families_gguf");
    let entries = std::fs::read_dir(folder).expect("the fixtures are there");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "gguf")).collect();
    paths.sort();
    let (fixtures, faults): (Vec<_>, Vec<_>) = paths.iter().map(|path| open(path)).partition(Result::is_ok);
    let faults: Vec<String> = faults.into_iter().filter_map(Result::err).collect();
    assert!(faults.is_empty(), "{} files do not open:\n{}", faults.len(), faults.join("\n"));
    fixtures.into_iter().filter_map(Result::ok).collect()
}

fn open(path: &Path) -> Result<Fixture, String> {
    let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
    let model = Arc::new(Model::open(path).map_err(|e| format!("{name}: {e}"))?);
    let golden = Checkpoint::open(&path.with_extension("golden.safetensors")).expect("a golden");
    let words = |tensor: &str| -> Vec<[u8; 4]> {
        let view = golden.get(tensor).unwrap_or_else(|| panic!("{name}: no {tensor}"));
        view.bytes().as_chunks::<4>().0.to_vec()
    };
    let ids = |tensor| words(tensor).into_iter().map(u32::from_le_bytes).collect();
    let logits = words("logits").into_iter().map(f32::from_le_bytes).collect();
    Ok(Fixture { tokens: ids("tokens"), greedy: ids("greedy"), logits, model, name })
}

impl Fixture {
    fn session(&self, backend: &str) -> Session {
        let options = BackendOptions::default();
        let opened: Arc<dyn Backend> = backends::open(backend, &options).expect("a backend");
        let policy = ComputeCtx::parity(Device::of(backend));
        Session::open(self.model.clone(), opened, policy, Options::new(CTX))
            .unwrap_or_else(|e| panic!("{} on {backend}: {e}", self.name))
    }

    /// The greatest difference of a logit, over the deviation of all; or what else is wrong.
    fn check(&self, backend: &str) -> Result<f64, String> {
        let mut session = self.session(backend);
        let mut sequence = session.sequence().expect("memory");
        let found = session.extend(&mut sequence, &self.tokens, Outputs::All).map_err(|e| e.to_string())?;
        if found.len() != self.logits.len() {
            return Err(format!("{} logits, wanted {}", found.len(), self.logits.len()));
        }
        let count = self.logits.len() as f64;
        let wanted = || self.logits.iter().map(|&logit| f64::from(logit));
        let mean = wanted().sum::<f64>() / count;
        let deviation = (wanted().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count).sqrt();
        let apart = wanted().zip(&found).map(|(wanted, &found)| (wanted - f64::from(found)).abs());
        let error = apart.fold(0.0, f64::max) / deviation;
        if found.iter().any(|logit| !logit.is_finite()) || error > BOUND {
            return Err(format!("the greatest difference is {error:.1e} deviations"));
        }
        self.generate(&mut session)?;
        Ok(error)
    }

    /// Holds the greedy continuation of the first half, token by token, to the golden one.
    fn generate(&self, session: &mut Session) -> Result<(), String> {
        let half = self.tokens.len() / 2;
        let mut sequence = session.sequence().expect("memory");
        let mut next = &self.tokens[..half];
        for (i, token) in self.greedy.iter().enumerate() {
            let logits = session.extend(&mut sequence, next, Outputs::Last).map_err(|e| e.to_string())?;
            if argmax(&logits) != *token {
                return Err(format!("greedy token {i} is {}, wanted {token}", argmax(&logits)));
            }
            next = std::slice::from_ref(token);
        }
        Ok(())
    }
}

/// Every architecture on a backend; prints the differences.
fn hold(backend: &str) {
    let mut faults = Vec::new();
    for fixture in fixtures() {
        match fixture.check(backend) {
            Ok(error) => println!("{backend} {:24} {error:.1e}", fixture.name),
            Err(fault) => faults.push(format!("{}: {fault}", fixture.name)),
        }
    }
    assert!(faults.is_empty(), "{} files differ on {backend}:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_reference_computes_what_transformers_does() {
    hold("reference");
}

#[test]
fn the_processor_computes_what_transformers_does() {
    hold("cpu");
}

#[test]
fn every_architecture_has_a_file_and_every_tensor_is_read() {
    let fixtures = fixtures();
    let found: BTreeSet<&str> = fixtures.iter().map(|f| f.model.spec().architecture.as_str()).collect();
    assert_eq!(found, BTreeSet::from(ARCHITECTURES));
    for fixture in &fixtures {
        let checkpoint = fixture.model.checkpoint();
        let mut unread = fixture.model.spec().unused(checkpoint).expect("programs");
        // Divisors are in the programs themselves.
        unread.retain(|tensor| !tensor.starts_with("rope_factors_"));
        assert!(unread.is_empty(), "{}: {unread:?}", fixture.name);
    }
}
