//! Folders of safetensors as every family is released, against what `transformers` computes for them.

use crate::golden::{Fixture, hold, models};
use std::path::Path;

fn fixtures() -> Vec<Result<Fixture, String>> {
    let folders = models("families", Path::is_dir);
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
