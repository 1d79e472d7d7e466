//! Reading forward through a header, every step held against the bytes that remain.

use super::MAX_HEADER_BYTES;
use crate::{Place, WeightsError};
use std::path::Path;

/// What is being read, for the error that says so.
#[derive(Clone, Copy)]
pub(super) enum Of<'n> {
    Header,
    Key(&'n str),
    Tensor(&'n str),
}

/// A position in the bytes of one file.
pub(super) struct Cursor<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a Path, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { file, bytes, at: 0 }
    }

    /// The next byte to be read, counted from the start of the file.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// The place `byte` of what is being read.
    pub(super) fn place(&self, of: Of<'_>, byte: u64) -> Box<Place> {
        match of {
            Of::Header => Place::header(self.file, byte),
            Of::Key(key) => Place::key(self.file, key, byte),
            Of::Tensor(tensor) => Place::tensor(self.file, tensor, byte),
        }
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// [`WeightsError::Truncated`], or [`WeightsError::HeaderTooLarge`] where the file has them but no real header
    /// is that long.
    pub(super) fn take(&mut self, n: u64, what: &'static str, of: Of<'_>) -> Result<&'a [u8], WeightsError> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = usize::try_from(n).ok().and_then(|n| rest.get(..n)) else {
            let at = self.place(of, self.at());
            return Err(WeightsError::Truncated { at, what, wanted: n, remain: rest.len() as u64 });
        };
        let end = self.at + taken.len();
        if end as u64 > MAX_HEADER_BYTES {
            let at = self.place(of, self.at());
            return Err(WeightsError::HeaderTooLarge { at, bytes: end as u64, most: MAX_HEADER_BYTES });
        }
        self.at = end;
        Ok(taken)
    }

    /// The next `N` bytes, as an array to be read as a number.
    pub(super) fn fixed<const N: usize>(
        &mut self,
        what: &'static str,
        of: Of<'_>,
    ) -> Result<[u8; N], WeightsError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what, of)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &'static str, of: Of<'_>) -> Result<u32, WeightsError> {
        self.fixed(what, of).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str, of: Of<'_>) -> Result<u64, WeightsError> {
        self.fixed(what, of).map(u64::from_le_bytes)
    }

    /// A count of things that take at least `size` bytes each in what follows.
    ///
    /// # Errors
    /// [`WeightsError::Count`] where the rest of the header cannot hold so many.
    pub(super) fn count(&mut self, size: u64, what: &'static str, of: Of<'_>) -> Result<u64, WeightsError> {
        let at = self.at();
        let count = self.u64(what, of)?;
        let most = (self.bytes.len() as u64).min(MAX_HEADER_BYTES).saturating_sub(self.at()) / size;
        if count > most {
            return Err(WeightsError::Count { at: self.place(of, at), what, count, most });
        }
        Ok(count)
    }

    /// A string: its length in 8 bytes, then UTF-8.
    pub(super) fn string(&mut self, what: &'static str, of: Of<'_>) -> Result<&'a str, WeightsError> {
        let len = self.u64(what, of)?;
        let at = self.at();
        let bytes = self.take(len, what, of)?;
        std::str::from_utf8(bytes)
            .map_err(|e| WeightsError::Utf8 { at: self.place(of, at + e.valid_up_to() as u64), what })
    }
}
