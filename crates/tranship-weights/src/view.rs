//! One tensor of a checkpoint: its name, type and shape, and its bytes where they lie in the map.

use crate::map::{Advice, MappedFile};
use std::{fmt, path::Path, sync::Arc};
use tranship_dtype::DType;

/// A tensor in a mapped file.
///
/// It owns a share of the map, so it outlives its [`Checkpoint`](crate::Checkpoint); a clone is one reference count.
#[derive(Clone)]
pub struct View(Arc<Entry>);

struct Entry {
    file: Arc<MappedFile>,
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    /// Byte of the file at which the header declares the tensor.
    declared_at: u64,
    start: usize,
    len: usize,
}

/// Where the bytes of a view lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source<'a> {
    /// The file, as it was opened.
    pub file: &'a Path,
    /// The first byte of the data, from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl View {
    /// A view of `len` bytes from `start`; `None` unless they lie inside the file.
    pub(crate) fn new(file: &Arc<MappedFile>, decl: Declared, start: usize, len: usize) -> Option<View> {
        file.bytes().get(start..start.checked_add(len)?)?;
        let Declared { name, dtype, shape, declared_at } = decl;
        Some(View(Arc::new(Entry { file: file.clone(), name, dtype, shape, declared_at, start, len })))
    }

    /// The tensor's name, as the file spells it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Its row-major shape, outermost axis first: `[out, in]` for a matrix. GGUF's reversed order is undone.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// The number of its elements.
    pub fn elements(&self) -> usize {
        // Checked when the header was read: no overflow here.
        self.0.shape.iter().product()
    }

    /// Its bytes, in the map: little-endian elements or blocks, row after row.
    ///
    /// They may begin at any address: safetensors aligns nothing, and a GGUF file may choose an alignment of 1.
    pub fn bytes(&self) -> &[u8] {
        &self.0.file.bytes()[self.0.start..self.0.start + self.0.len]
    }

    /// The file and the place in it that [`View::bytes`] shows.
    pub fn source(&self) -> Source<'_> {
        Source { file: self.0.file.path(), offset: self.0.start as u64, bytes: self.0.len as u64 }
    }

    /// Tells the operating system how these bytes will be read; best effort.
    pub fn advise(&self, advice: Advice) {
        self.0.file.advise(advice, self.0.start, self.0.len);
    }

    /// The byte of the file at which the header declares the tensor.
    pub(crate) fn declared_at(&self) -> u64 {
        self.0.declared_at
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("name", &self.name())
            .field("dtype", &self.dtype())
            .field("shape", &self.shape())
            .field("source", &self.source())
            .finish()
    }
}

/// What a header says of one tensor, sizes checked.
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) declared_at: u64,
}
