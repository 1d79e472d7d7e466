//! Every fixture model on the reference interpreter, against the logits and the greedy text that `transformers` gives
//! for it in F32 (each golden's own metadata says which version).

mod common;

use common::{bits, parity, run};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tranship_backend::{Backend, Bytes, Chain, Input, Reference, Step, Weight, Weights};
use tranship_model::{Cut, ModelSpec};
use tranship_weights::{Checkpoint, View};

/// The golden's own rounding error is under 2e-6 of its length (`f64_error` in its metadata), and the reference
/// rounds every value to F32 as well.
const BOUND: f64 = 5e-6;

struct Mapped(View);

impl Bytes for Mapped {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// A checkpoint as a backend's source of weights.
struct OfCheckpoint<'c>(&'c Checkpoint);

impl Weights for OfCheckpoint<'_> {
    fn weight(&self, name: &str) -> Option<Weight> {
        let view = self.0.get(name)?;
        Some(Weight::whole(view.dtype(), view.shape().to_vec(), Arc::new(Mapped(view))))
    }
}

struct Golden {
    tokens: Vec<u32>,
    logits: Vec<f32>,
    greedy: Vec<u32>,
}

fn golden(path: &Path) -> Golden {
    let file = Checkpoint::open(path).unwrap_or_else(|e| panic!("{e}"));
    let words = |name: &str| -> Vec<[u8; 4]> {
        let view = file.get(name).unwrap_or_else(|| panic!("no `{name}` in {}", path.display()));
        view.bytes().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect()
    };
    let tokens = |name| words(name).into_iter().map(u32::from_le_bytes).collect();
    let logits = words("logits").into_iter().map(f32::from_le_bytes).collect();
    Golden { tokens: tokens("tokens"), logits, greedy: tokens("greedy") }
}

/// The models, each with its golden.
fn models() -> Vec<(PathBuf, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models");
    let mut models: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    models.retain(|path| path.is_dir() || path.extension().is_some_and(|e| e == "gguf"));
    // Weights that are parts of tensors are for a session to find; its own goldens have that model.
    models.retain(|path| !path.ends_with("demo"));
    // A split file is opened by its first part.
    models.retain(|path| !path.to_string_lossy().contains("-00002-of-"));
    models.sort();
    assert!(models.len() >= 15, "{models:?}");
    let golden = |path: &PathBuf| match path.is_dir() {
        true => path.join("golden.safetensors"),
        false => {
            let name = path.to_string_lossy().replace("-00001-of-00002", "");
            PathBuf::from(name).with_extension("golden.safetensors")
        }
    };
    models.iter().map(|path| (path.clone(), golden(path))).collect()
}

fn compile(checkpoint: &Checkpoint, spec: &ModelSpec, ctx: usize) -> Box<dyn Step> {
    let backend = Reference::new();
    let cuts = spec.cuts(ctx as u64).filter(|c| !matches!(c, Cut::DecodeLayer { .. }));
    let typed = cuts.map(|cut| {
        let graph = spec.program(cut).unwrap().lift().unwrap();
        let stored = |name: &str| checkpoint.get(name).map(|v| v.dtype());
        Arc::new(parity().typed(&graph, &stored, &backend.caps().accepts).unwrap())
    });
    let chain = Chain::new(typed.collect(), ctx);
    backend.compile(&chain, &OfCheckpoint(checkpoint)).unwrap_or_else(|e| panic!("{e}"))
}

fn largest(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap()
}

/// Logits near the golden's, the same choice at every position, the same greedy text; and the same bits when the rows
/// are split between two steps.
fn check(model: &Path, golden: &Golden) {
    let name = model.display();
    let checkpoint = Checkpoint::open(model).unwrap_or_else(|e| panic!("{e}"));
    let spec = ModelSpec::of(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut step = compile(&checkpoint, &spec, golden.tokens.len());
    let vocab = golden.logits.len() / golden.tokens.len();

    let mut state = step.new_state().unwrap();
    let all = run(step.as_mut(), state.as_mut(), 0, golden.tokens.len(), Input::Tokens(&golden.tokens));
    let square = |v: f64| v * v;
    let pairs = || all.iter().zip(&golden.logits).map(|(f, w)| (f64::from(*f), f64::from(*w)));
    assert_eq!(all.len(), golden.logits.len(), "{name}");
    let error: f64 = pairs().map(|(f, w)| square(f - w)).sum();
    let distance = (error / pairs().map(|(_, w)| square(w)).sum::<f64>()).sqrt();
    assert!(distance <= BOUND, "{name}: {distance:e}");
    for (position, (found, wanted)) in all.chunks(vocab).zip(golden.logits.chunks(vocab)).enumerate() {
        assert_eq!(largest(found), largest(wanted), "{name}, position {position}");
    }

    let half = golden.tokens.len() / 2;
    let mut state = step.new_state().unwrap();
    let first = run(step.as_mut(), state.as_mut(), 0, half, Input::Tokens(&golden.tokens[..half]));
    assert_eq!(bits(&first), bits(&all[..half * vocab]), "{name}");
    let mut last = first[(half - 1) * vocab..].to_vec();
    let mut greedy = Vec::new();
    for position in half..half + golden.greedy.len() {
        greedy.push(largest(&last) as u32);
        let token = Input::Tokens(&greedy[position - half..]);
        last = run(step.as_mut(), state.as_mut(), position, 1, token);
    }
    assert_eq!(greedy, golden.greedy, "{name}");

    // From the same half on, the golden's own tokens in one step.
    let rest = run(step.as_mut(), state.as_mut(), half, half, Input::Tokens(&golden.tokens[half..]));
    assert_eq!(bits(&rest), bits(&all[half * vocab..]), "{name}");
    println!("{name}: {distance:.2e}");
}

#[test]
fn every_fixture_model_gives_its_golden() {
    for (model, path) in models() {
        check(&model, &golden(&path));
    }
}
