//! Fixtures as the tests of this crate see them.

use std::path::PathBuf;
use tranship_model::ModelSpec;

/// A path under `fixtures/`.
pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(path)
}

/// A `config.json` under `fixtures/`.
pub fn config(path: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(fixture(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The specs of all bare configurations, and of the tiny models that have one: (path, spec).
pub fn configs() -> Vec<(String, ModelSpec)> {
    let mut paths = list("configs");
    for folder in ["models", "families"] {
        paths.extend(list(folder).into_iter().map(|p| p + "/config.json").filter(|p| fixture(p).is_file()));
    }
    paths.sort();
    assert!(paths.len() >= 70, "fixtures are missing: {paths:?}");
    paths.into_iter().map(spec).collect()
}

/// The paths in a folder of fixtures.
pub fn list(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(fixture(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    entries.map(|entry| format!("{folder}/{}", entry.unwrap().file_name().to_string_lossy())).collect()
}

fn spec(path: String) -> (String, ModelSpec) {
    let spec = ModelSpec::from_config(&config(&path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    (path, spec)
}

/// A metadata value of a GGUF file.
#[derive(Clone, Debug)]
pub enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Str(&'static str),
    U32s(Vec<u32>),
    F32s(Vec<f32>),
    Strs(Vec<&'static str>),
}

/// The bytes of a GGUF file (version 3) with F32 tensors of zeros; shapes are row-major.
pub fn gguf(metadata: &[(&str, Meta)], tensors: &[(String, Vec<u64>)]) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut file, key);
        meta(&mut file, value);
    }
    let mut offset = 0u64;
    for (name, shape) in tensors {
        text(&mut file, name);
        file.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|size| file.extend(size.to_le_bytes()));
        file.extend(0u32.to_le_bytes()); // F32
        file.extend(offset.to_le_bytes());
        offset = (offset + 4 * shape.iter().product::<u64>()).next_multiple_of(32);
    }
    file.resize(file.len().next_multiple_of(32) + offset as usize, 0);
    file
}

fn text(file: &mut Vec<u8>, text: &str) {
    file.extend((text.len() as u64).to_le_bytes());
    file.extend(text.as_bytes());
}

fn meta(file: &mut Vec<u8>, value: &Meta) {
    let mut tag = |id: u32| file.extend(id.to_le_bytes());
    match value {
        Meta::U32(v) => (tag(4), file.extend(v.to_le_bytes())).1,
        Meta::F32(v) => (tag(6), file.extend(v.to_le_bytes())).1,
        Meta::Bool(v) => (tag(7), file.push(u8::from(*v))).1,
        Meta::Str(v) => (tag(8), text(file, v)).1,
        Meta::U32s(items) => {
            [9, 4].into_iter().for_each(&mut tag);
            file.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|v| file.extend(v.to_le_bytes()));
        }
        Meta::F32s(items) => {
            [9, 6].into_iter().for_each(&mut tag);
            file.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|v| file.extend(v.to_le_bytes()));
        }
        Meta::Strs(items) => {
            [9, 8].into_iter().for_each(&mut tag);
            file.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|v| text(file, v));
        }
    }
}
