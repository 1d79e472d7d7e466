//! Folders of safetensors as every family is released, against what `transformers` computes for them.

use crate::golden::{Fixture, hold};
use std::path::{Path, PathBuf};

fn fixtures() -> Vec<Result<Fixture, String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families");
    let entries = std::fs::read_dir(folder).expect("the fixtures are there");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("a fixture").path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    assert!(folders.len() >= 33, "only {} fixtures were found", folders.len());
    folders.iter().map(|folder| Fixture::open(folder, &folder.join("golden.safetensors"))).collect()
}

#[test]
fn the_reference_computes_what_transformers_does() {
    hold(fixtures(), "reference");
}

#[test]
fn the_processor_computes_what_transformers_does() {
    hold(fixtures(), "cpu");
}
