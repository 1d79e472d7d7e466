//! Every fixture model under every policy, on every instruction set of this machine, against the reference
//! interpreter; and the law that a split of a prompt changes nothing.

mod common;

use common::isas;
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tranship_backend::{Backend, Outputs, Reference};
use tranship_cpu::CpuBackend;
use tranship_ctx::{ComputeCtx, Device, PRESETS};
use tranship_session::{Model, Options, Rows, Session};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models")
}

/// Models with the tokens of their goldens.
fn models() -> Vec<(String, Arc<Model>, Vec<u32>)> {
    let mut models = Vec::new();
    for entry in std::fs::read_dir(fixtures()).expect("fixtures are there") {
        let path = entry.expect("a fixture").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let golden = match name.strip_suffix(".gguf") {
            Some(stem) => fixtures().join(format!("{stem}.golden.safetensors")),
            None => path.join("golden.safetensors"),
        };
        if !golden.exists() {
            continue;
        }
        let bytes = std::fs::read(golden).expect("the golden is there");
        let golden = SafeTensors::deserialize(&bytes).expect("the golden reads");
        let view = golden.tensor("tokens").expect("it has tokens");
        let size = view.data().len() / view.shape()[0];
        let tokens = view.data().chunks_exact(size).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        models.push((name, Arc::new(Model::open(&path).expect("it opens")), tokens.collect()));
    }
    models.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(models.len() >= 14, "only {} fixtures were found", models.len());
    models
}

fn session(model: &Arc<Model>, backend: Arc<dyn Backend>, policy: &str, options: Options) -> Session {
    let policy = ComputeCtx::preset(policy, Device::of(backend.name())).expect("a preset");
    Session::open(model.clone(), backend, policy, options).expect("it compiles")
}

fn logits(session: &mut Session, tokens: &[u32]) -> Vec<f32> {
    let mut sequence = session.sequence().expect("memory");
    session.extend(&mut sequence, tokens, Outputs::All).expect("it runs")
}

/// The root mean square of the error, over the deviation of the reference.
fn error(reference: &[f32], found: &[f32]) -> f64 {
    assert_eq!(reference.len(), found.len());
    let len = reference.len() as f64;
    let mean = reference.iter().map(|&r| f64::from(r)).sum::<f64>() / len;
    let deviation = reference.iter().map(|&r| (f64::from(r) - mean).powi(2)).sum::<f64>();
    let square: f64 = reference.iter().zip(found).map(|(&r, &f)| (f64::from(r) - f64::from(f)).powi(2)).sum();
    (square / deviation).sqrt()
}

/// What an error may be: rounding in F32 in another order; the same 8-bit blocks, where a value at a tie may fall to
/// either side; and BF16 activations, where it does so with steps 256 times as large.
fn bound(policy: &str) -> f64 {
    match policy {
        "parity" => 1e-5,
        "quantized" => 1e-2,
        _ => 3e-2,
    }
}

#[test]
fn every_policy_is_the_references() {
    for (name, model, tokens) in models() {
        for policy in PRESETS {
            let options = Options::new(64);
            let wanted = logits(&mut session(&model, Arc::new(Reference::new()), policy, options), &tokens);
            for isa in isas() {
                let backend = Arc::new(CpuBackend::with_isa(isa, 2).expect("it is available"));
                let found = logits(&mut session(&model, backend, policy, options), &tokens);
                let error = error(&wanted, &found);
                assert!(error <= bound(policy), "{name}, {policy}, {isa}: {error:e}");
            }
        }
    }
}

#[test]
fn a_split_changes_no_bit_under_parity() {
    for (name, model, tokens) in models() {
        for isa in isas() {
            let open = |threads, max_rows| {
                let backend = Arc::new(CpuBackend::with_isa(isa, threads).expect("it is available"));
                session(&model, backend, "parity", Options { ctx: 64, max_rows })
            };
            let whole = logits(&mut open(1, 512), &tokens);
            for (threads, max_rows, split) in [(1, 512, 1), (2, 512, 7), (3, 5, 24), (2, 3, 47), (2, 512, 48)]
            {
                let mut session = open(threads, max_rows);
                let mut sequence = session.sequence().expect("memory");
                let mut found =
                    session.extend(&mut sequence, &tokens[..split], Outputs::All).expect("it runs");
                for token in &tokens[split..] {
                    found.extend(session.extend(&mut sequence, &[*token], Outputs::Last).expect("it runs"));
                }
                let same = whole.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(
                    same && whole.len() == found.len(),
                    "{name}, {isa}, {threads} threads, split {split}"
                );
            }
        }
    }
}

#[test]
fn sequences_of_one_batch_are_as_each_alone() {
    let (name, model, tokens) = models().swap_remove(0);
    for policy in PRESETS {
        let mut session =
            session(&model, Arc::new(CpuBackend::new(Some(2)).expect("threads")), policy, Options::new(64));
        let alone: Vec<Vec<f32>> = [&tokens[..9], &tokens[9..10]].map(|t| logits(&mut session, t)).to_vec();
        let mut both = [session.sequence().expect("memory"), session.sequence().expect("memory")];
        let [first, second] = &mut both;
        let mut found = Vec::new();
        let mut batch = [
            Rows { sequence: first, tokens: &tokens[..9], outputs: Outputs::All },
            Rows { sequence: second, tokens: &tokens[9..10], outputs: Outputs::Last },
        ];
        session.step(&mut batch, &mut found).expect("it runs");
        let wanted = alone.concat();
        let error = error(&wanted, &found);
        assert!(error <= if policy == "parity" { 0.0 } else { bound(policy) }, "{name}, {policy}: {error:e}");
    }
}
