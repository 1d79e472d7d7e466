//! The program as users run it: arguments in; exit code, output and errors out.
#![allow(dead_code)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a run of the program gave.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// A file of the fixtures.
pub fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
    assert!(path.exists(), "{} is no fixture", path.display());
    path.display().to_string()
}

/// A model among the fixtures.
pub fn model(name: &str) -> String {
    fixture(&format!("models/{name}"))
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tranship"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs the program.
pub fn tranship(args: &[&str]) -> Ran {
    let output = command(args).output().expect("the program starts");
    Ran {
        code: output.status.code().expect("it ends by itself"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// Runs the program, which must succeed, and gives its standard output.
pub fn succeeds(args: &[&str]) -> String {
    let ran = tranship(args);
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
    ran.stdout
}

/// Runs the program, which must succeed and print one JSON object and nothing else.
pub fn json(args: &[&str]) -> Value {
    let value: Value = serde_json::from_str(&succeeds(args)).expect("one JSON value and nothing else");
    assert!(value.is_object(), "{args:?}: wanted an object, found {value}");
    value
}

/// Runs the program, which must fail with exit code 1 and one line on standard error that holds all of `says`.
pub fn fails(args: &[&str], says: &[&str]) -> Ran {
    let ran = tranship(args);
    assert_eq!(ran.code, 1, "{args:?}: {ran:?}");
    assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{args:?}: {}", ran.stderr);
    for wanted in says {
        assert!(ran.stderr.contains(wanted), "{args:?}: wanted {wanted:?} in {}", ran.stderr);
    }
    ran
}

/// A folder for one test, removed with it.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.0.path())
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    pub fn folder(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

/// A tensor of a safetensors file: its shape, and its values as F32.
pub fn tensor(path: &str, name: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(path).expect("the file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let view = file.tensor(name).expect("the tensor");
    assert_eq!(view.dtype(), safetensors::Dtype::F32, "{path}: {name}");
    let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    (view.shape().to_vec(), values.collect())
}

/// Whole numbers of a safetensors file.
pub fn integers(path: &str, name: &str) -> Vec<u32> {
    let bytes = std::fs::read(path).expect("the file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let view = file.tensor(name).expect("the tensor");
    assert_eq!(view.dtype(), safetensors::Dtype::I32, "{path}: {name}");
    view.data().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Tokens as the command line takes them.
pub fn list(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
