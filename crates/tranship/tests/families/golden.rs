//! A model with what `transformers` computes for it, and how a backend is held to that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use tranship::backends::{self, BackendOptions};
use tranship::ctx::{ComputeCtx, Device};
use tranship::prelude::{Backend, Checkpoint, Model, Options, Outputs, Session};
use tranship::session::argmax;

/// Positions that a session has: at least the golden tokens, and the greedy ones after half of them.
const CTX: u64 = 64;

/// The greatest difference of a logit, in standard deviations of all: rounding in F32 in another order. GGUF files hold
/// every weight as it is, but for gains and decays that the converter computes in F32.
const BOUND: f64 = 2e-4;

/// A model, and what `transformers` gives for some tokens.
pub struct Fixture {
    /// The name of its folder or file.
    pub name: String,
    /// The model.
    pub model: Arc<Model>,
    tokens: Vec<u32>,
    /// Of all tokens, `[tokens, vocab]`.
    logits: Vec<f32>,
    /// The most probable tokens after the first half of the tokens.
    greedy: Vec<u32>,
}

impl Fixture {
    /// Opens a model and its golden.
    pub fn open(path: &Path, golden: &Path) -> Result<Fixture, String> {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let model = Arc::new(Model::open(path).map_err(|e| format!("{name}: {e}"))?);
        let golden = Checkpoint::open(golden).map_err(|e| format!("{name}: {e}"))?;
        let words = |tensor: &str| -> Vec<[u8; 4]> {
            let view = golden.get(tensor).unwrap_or_else(|| panic!("{name}: no {tensor}"));
            view.bytes().as_chunks::<4>().0.to_vec()
        };
        let ids = |tensor| words(tensor).into_iter().map(u32::from_le_bytes).collect();
        let logits = words("logits").into_iter().map(f32::from_le_bytes).collect();
        Ok(Fixture { tokens: ids("tokens"), greedy: ids("greedy"), logits, model, name })
    }

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
        let vocab = self.logits.len() / self.tokens.len();
        let best = |logits: &[f32]| logits.chunks(vocab).map(argmax).collect::<Vec<_>>();
        if best(&found) != best(&self.logits) {
            return Err("the most probable tokens are others".into());
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

/// The models in a folder of the fixtures, in the order of their names.
pub fn models(folder: &str, is_model: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(folder);
    let entries = std::fs::read_dir(folder).expect("the fixtures are there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a fixture").path()).collect();
    paths.retain(|path| is_model(path));
    paths.sort();
    paths
}

/// Every model on a backend, whole and token by token; prints the differences.
pub fn hold(fixtures: Vec<Result<Fixture, String>>, backend: &str) {
    let (mut faults, count) = (Vec::new(), fixtures.len());
    for fixture in fixtures {
        let named = |fixture: Fixture| match fixture.check(backend) {
            Ok(error) => {
                println!("{backend} {:24} {error:.1e}", fixture.name);
                Ok(())
            }
            Err(fault) => Err(format!("{}: {fault}", fixture.name)),
        };
        faults.extend(fixture.and_then(named).err());
    }
    assert!(faults.is_empty(), "{} of {count} differ on {backend}:\n{}", faults.len(), faults.join("\n"));
}
