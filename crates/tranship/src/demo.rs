//! A small trained model inside the program, so that everything can be tried on a machine that has none.
//!
//! It is a hybrid in the form of Qwen3-Next (layers of the gated delta rule and one of attention, experts in each) with
//! two million parameters, taught the novels of Jane Austen, all but two chapters of *Persuasion*.

use crate::Error;
use std::path::Path;
use tempfile::TempDir;

/// The model's files, by name: its configuration, its weights in BF16, its tokenizer.
pub const FILES: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../demo/config.json")),
    ("generation_config.json", include_bytes!("../demo/generation_config.json")),
    ("tokenizer.json", include_bytes!("../demo/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../demo/tokenizer_config.json")),
    ("model.safetensors", include_bytes!("../demo/model.safetensors")),
];

/// A page that the model was not taught: the beginning of the last chapter of *Persuasion*.
pub const PAGE: &str = include_str!("../demo/held_out.txt");

/// The demo model as a folder, removed when this is dropped.
pub struct DemoFolder(TempDir);

impl DemoFolder {
    /// Where it lies.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Writes the demo model where the system keeps temporary files.
///
/// # Errors
/// [`Error::Io`].
pub fn unpack() -> Result<DemoFolder, Error> {
    let io = |source| Error::Io { what: "the demo model".into(), source };
    let folder = tempfile::Builder::new().prefix("tranship-demo-").tempdir().map_err(io)?;
    for (name, bytes) in FILES {
        std::fs::write(folder.path().join(name), bytes).map_err(io)?;
    }
    Ok(DemoFolder(folder))
}
