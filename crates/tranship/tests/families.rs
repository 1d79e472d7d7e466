//! Every family's fixture on the reference interpreter, against what `transformers` computes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use tranship::ctx::{ComputeCtx, Device};
use tranship::prelude::{Checkpoint, Model, Options, Outputs, Reference, Session};
use tranship::session::argmax;

/// Positions that a session has: at least the golden tokens, and the greedy ones after half of them.
const CTX: u64 = 64;

/// The greatest difference of a logit, in standard deviations of all: rounding in F32 in another order.
const BOUND: f64 = 2e-4;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families")
}

/// A family's model, and what `transformers` gives for some tokens.
struct Fixture {
    name: String,
    model: Arc<Model>,
    tokens: Vec<u32>,
    /// Of all tokens, `[tokens, vocab]`.
    logits: Vec<f32>,
    /// The most probable tokens after the first half of the tokens.
    greedy: Vec<u32>,
}

fn open(folder: &Path) -> Fixture {
    let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
    let model = Arc::new(Model::open(folder).unwrap_or_else(|e| panic!("{name}: {e}")));
    let golden = Checkpoint::open(&folder.join("golden.safetensors")).expect("a golden");
    let words = |tensor: &str| -> Vec<[u8; 4]> {
        let view = golden.get(tensor).unwrap_or_else(|| panic!("{name}: no {tensor}"));
        view.bytes().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect()
    };
    let ids = |tensor| words(tensor).into_iter().map(u32::from_le_bytes).collect();
    let logits = words("logits").into_iter().map(f32::from_le_bytes).collect();
    Fixture { tokens: ids("tokens"), greedy: ids("greedy"), logits, model, name }
}

impl Fixture {
    fn session(&self) -> Session {
        let policy = ComputeCtx::parity(Device::of("reference"));
        let backend = Arc::new(Reference::new());
        Session::open(self.model.clone(), backend, policy, Options::new(CTX))
            .unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// The greatest difference of a logit, over the deviation of all; or what else is wrong.
    fn check(&self) -> Result<f64, String> {
        let mut session = self.session();
        let mut sequence = session.sequence().expect("memory");
        let found = session.extend(&mut sequence, &self.tokens, Outputs::All).map_err(|e| e.to_string())?;
        if found.len() != self.logits.len() {
            return Err(format!("{} logits, wanted {}", found.len(), self.logits.len()));
        }
        let pairs =
            || self.logits.iter().zip(&found).map(|(&wanted, &found)| (f64::from(wanted), f64::from(found)));
        let count = self.logits.len() as f64;
        let mean = pairs().map(|(wanted, _)| wanted).sum::<f64>() / count;
        let deviation = (pairs().map(|(wanted, _)| (wanted - mean).powi(2)).sum::<f64>() / count).sqrt();
        let error = pairs().map(|(wanted, found)| (wanted - found).abs()).fold(0.0, f64::max) / deviation;
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

#[test]
fn every_family_is_what_transformers_computes() {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(fixtures())
        .expect("fixtures are there")
        .map(|entry| entry.expect("a fixture").path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    assert!(folders.len() >= 33, "only {} fixtures were found", folders.len());
    let mut faults = Vec::new();
    for fixture in folders.iter().map(|folder| open(folder)) {
        match fixture.check() {
            Ok(error) => println!("{:24} {error:.1e}", fixture.name),
            Err(fault) => faults.push(format!("{}: {fault}", fixture.name)),
        }
    }
    assert!(faults.is_empty(), "{} families differ:\n{}", faults.len(), faults.join("\n"));
}
