//! A file mapped read-only: the one place where a model file is opened, and the one use of `unsafe`.

use crate::WeightsError;
use memmap2::Mmap;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

/// How the bytes of a checkpoint will be read, as a hint to the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// All of it soon: start reading ahead now.
    WillNeed,
    /// From front to back, once.
    Sequential,
    /// Here and there: do not read ahead.
    Random,
}

/// A regular, non-empty file, mapped whole and read-only.
pub(crate) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// [`WeightsError::Io`], [`WeightsError::NotAFile`] (a pipe would block, a folder has no bytes), or
    /// [`WeightsError::Empty`].
    pub(crate) fn open(path: &Path) -> Result<Arc<MappedFile>, WeightsError> {
        let io = |source| WeightsError::Io { file: path.to_owned(), source };
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(WeightsError::NotAFile { file: path.to_owned() });
        }
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() == 0 {
            return Err(WeightsError::Empty { file: path.to_owned() });
        }
        #[allow(unsafe_code)]
        // SAFETY: the map is read-only and never handed out mutably, so nothing in this process writes what a shared slice
        // of it shows, and its length does not change after `map` takes it from the file. What remains is that *another*
        // process writes or shortens the file meanwhile; no system call excludes that, and Rust's memory model does
        // not cover it. In practice a rewrite shows as other bytes, and every byte is a valid `u8` (whatever must stay
        // valid, such as metadata text, is copied out when it is checked); a shortened file raises SIGBUS, which
        // ends the process. The crate's documentation makes leaving an open file alone the user's part.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Arc::new(MappedFile { path: path.to_owned(), map }))
    }

    /// Where the file is, as it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Every byte of the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Passes `advice` on for `len` bytes from `start`; a refusal is ignored, since it is only a hint.
    pub(crate) fn advise(&self, advice: Advice, start: usize, len: usize) {
        #[cfg(unix)]
        {
            let advice = match advice {
                Advice::WillNeed => memmap2::Advice::WillNeed,
                Advice::Sequential => memmap2::Advice::Sequential,
                Advice::Random => memmap2::Advice::Random,
            };
            let _ = self.map.advise_range(advice, start, len);
        }
        #[cfg(not(unix))]
        let _ = (advice, start, len);
    }
}

/// The bytes of a small file, at most `most`; `None` where there is no such file.
///
/// # Errors
/// [`WeightsError::Io`], [`WeightsError::NotAFile`] or [`WeightsError::TooLarge`].
pub(crate) fn read_small(path: &Path, most: u64) -> Result<Option<Vec<u8>>, WeightsError> {
    use std::io::Read;
    let io = |source| WeightsError::Io { file: path.to_owned(), source };
    let bytes = match fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(e)),
        Ok(m) if !m.is_file() => return Err(WeightsError::NotAFile { file: path.to_owned() }),
        Ok(m) => m.len(),
    };
    let too_large = |bytes| WeightsError::TooLarge { file: path.to_owned(), bytes, most };
    if bytes > most {
        return Err(too_large(bytes));
    }
    // The file may grow between the two calls; `take` holds the bound whatever it does.
    let mut content = Vec::new();
    File::open(path).map_err(io)?.take(most.saturating_add(1)).read_to_end(&mut content).map_err(io)?;
    if content.len() as u64 > most {
        return Err(too_large(content.len() as u64));
    }
    Ok(Some(content))
}
