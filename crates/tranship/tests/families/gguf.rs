//! GGUF files of every architecture, made by llama.cpp's converter, against what `transformers` computes for the
//! checkpoint before it was converted.

use crate::golden::{Fixture, hold, models};
use std::collections::BTreeSet;

/// `general.architecture` of the files.
const ARCHITECTURES: [&str; 23] = [
    "deepseek2",
    "deepseek4",
    "gemma2",
    "gemma3",
    "glm4moe",
    "gpt-oss",
    "granitehybrid",
    "kimi-linear",
    "lfm2",
    "llama",
    "minimax-01",
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

fn fixtures() -> Vec<Result<Fixture, String>> {
    let paths = models("families_gguf", |path| path.extension().is_some_and(|e| e == "gguf"));
    paths.iter().map(|path| Fixture::open(path, &path.with_extension("golden.safetensors"))).collect()
}

#[test]
fn the_reference_computes_what_transformers_does() {
    hold(fixtures(), "reference");
}

#[test]
fn the_processor_computes_what_transformers_does() {
    hold(fixtures(), "cpu");
}

#[test]
fn every_architecture_has_a_file_and_every_tensor_is_read() {
    let fixtures: Vec<Fixture> =
        fixtures().into_iter().map(|f| f.unwrap_or_else(|e| panic!("{e}"))).collect();
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
