//! A small model inside the program, so that everything can be tried on a machine that has none.

use crate::Error;
use std::io::Write;
use std::path::Path;
use tempfile::NamedTempFile;

/// The model's file: GGUF with a byte-level vocabulary.
pub const GGUF: &[u8] = include_bytes!("../demo.gguf");

/// The demo model as a file, removed when this is dropped.
pub struct DemoFile(NamedTempFile);

impl DemoFile {
    /// Where it lies.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Writes the demo model where the system keeps temporary files.
///
/// # Errors
/// [`Error::Io`].
pub fn unpack() -> Result<DemoFile, Error> {
    let io = |source| Error::Io { what: "the demo model".into(), source };
    let mut file =
        tempfile::Builder::new().prefix("tranship-demo-").suffix(".gguf").tempfile().map_err(io)?;
    file.write_all(GGUF).map_err(io)?;
    file.flush().map_err(io)?;
    Ok(DemoFile(file))
}
