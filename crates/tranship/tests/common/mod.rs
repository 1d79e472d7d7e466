//! What tests of all families share: the fixtures as they are on disk, the backends, and states on their way.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod programs;

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tranship::backends::BackendOptions;
use tranship::prelude::*;

/// A family's model with the prompt of its golden.
pub struct Fixture {
    /// The folder's name.
    pub name: String,
    /// The model.
    pub model: Arc<Model>,
    /// The prompt.
    pub tokens: Vec<u32>,
}

/// Every backend that there is, the processor first. Each computes on one thread: the models are small, and tests run
/// beside each other.
pub fn backends() -> Vec<Arc<dyn Backend>> {
    let options = BackendOptions { threads: NonZeroUsize::new(1) };
    let open = |name| tranship::backends::open(name, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
    tranship::backends::names().map(open).collect()
}

/// Values as their bits.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The states after some numbers of a fixture's tokens, of which all from the first on are fed one by one.
pub fn decoded(
    fixture: &Fixture,
    backend: &Arc<dyn Backend>,
    policy: &str,
    at: RangeInclusive<usize>,
) -> Vec<Handoff> {
    let mut session = fixture.session(backend, policy, 64, 64);
    let mut sequence = session.sequence().expect("memory");
    let mut states = Vec::new();
    for position in at {
        let tokens = &fixture.tokens[sequence.position()..position];
        session
            .extend(&mut sequence, tokens, Outputs::None)
            .unwrap_or_else(|e| panic!("{}: {e}", fixture.name));
        states.push(session.suspend(&sequence, None).unwrap_or_else(|e| panic!("{}: {e}", fixture.name)));
    }
    states
}

/// The folder of the fixtures.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families")
}

/// The names of all fixtures, read from the folder: none is listed, so none can be left out.
pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).expect("the fixtures are there");
    let paths = entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir());
    let mut names: Vec<String> =
        paths.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect();
    names.sort();
    assert!(names.len() >= 33, "only {} fixtures were found", names.len());
    names
}

/// A fixture by name; one that does not open is a failure.
pub fn open(name: &str) -> Fixture {
    let path = folder().join(name);
    let model = Model::open(&path).unwrap_or_else(|e| panic!("{name} does not open: {e}"));
    let golden = Checkpoint::open(&path.join("golden.safetensors")).expect("a golden");
    let tokens = golden.get("tokens").expect("the golden's tokens");
    let words = tokens.bytes().as_chunks::<4>().0.iter();
    let tokens = words.map(|word| u32::from_le_bytes(*word)).collect();
    Fixture { name: name.to_owned(), model: Arc::new(model), tokens }
}

impl Fixture {
    /// A session of a backend under a preset.
    pub fn session(&self, backend: &Arc<dyn Backend>, policy: &str, ctx: usize, max_rows: usize) -> Session {
        let policy = ComputeCtx::preset(policy, Device::of(backend.name())).expect("a preset");
        let options = Options { ctx: ctx as u64, max_rows };
        Session::open(self.model.clone(), backend.clone(), policy, options)
            .unwrap_or_else(|e| panic!("{} on {}: {e}", self.name, backend.name()))
    }

    /// The contract under a preset.
    pub fn contract(&self, policy: &str, ctx: u64) -> Contract {
        let policy = ComputeCtx::preset(policy, Device::of("reference")).expect("a preset");
        self.model.contract(ctx, &policy).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}
