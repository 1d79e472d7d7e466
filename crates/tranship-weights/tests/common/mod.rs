//! Small files, written byte by byte by the tests themselves.
#![allow(dead_code)] // each test binary uses its own part

use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tranship_weights::{Checkpoint, WeightsError};

/// Value type numbers of GGUF.
pub mod ty {
    pub const U8: u32 = 0;
    pub const U16: u32 = 2;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STR: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const F64: u32 = 12;
}

/// A GGUF file as its parts, each open to being made wrong.
#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    /// What the header claims instead of the true numbers of tensors and keys.
    pub tensor_count: Option<u64>,
    pub key_count: Option<u64>,
    pub keys: Vec<(String, u32, Vec<u8>)>,
    pub tensors: Vec<Tensor>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    /// Innermost first, as the file has them.
    pub dims: Vec<u64>,
    pub ty: u32,
    pub offset: u64,
}

impl Default for Gguf {
    fn default() -> Gguf {
        Gguf {
            version: 3,
            tensor_count: None,
            key_count: None,
            keys: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            data: Vec::new(),
        }
    }
}

pub fn string(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

/// An array's value: element type, count, elements.
pub fn array(ty: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

impl Gguf {
    pub fn key(mut self, key: &str, ty: u32, value: impl AsRef<[u8]>) -> Gguf {
        self.keys.push((key.to_owned(), ty, value.as_ref().to_vec()));
        self
    }

    pub fn tensor(mut self, name: &str, dims: &[u64], ty: u32, data: &[u8]) -> Gguf {
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        let offset = self.data.len() as u64;
        self.data.extend_from_slice(data);
        self.tensors.push(Tensor { name: name.to_owned(), dims: dims.to_vec(), ty, offset });
        self
    }

    /// The part before the padding.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, ty, value) in &self.keys {
            out.extend(string(key));
            out.extend(ty.to_le_bytes());
            out.extend(value);
        }
        for t in &self.tensors {
            out.extend(string(&t.name));
            out.extend((t.dims.len() as u32).to_le_bytes());
            out.extend(t.dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(t.ty.to_le_bytes());
            out.extend(t.offset.to_le_bytes());
        }
        out
    }

    pub fn build(&self) -> Vec<u8> {
        let mut out = self.header();
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}

/// A file of two keys and two tensors: `a` F32 `[2, 3]`, `b` Q4_0 `[2, 32]`.
pub fn small_gguf() -> Gguf {
    let a: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let b: Vec<u8> = (0..36).collect();
    Gguf::default()
        .key("general.architecture", ty::STR, string("llama"))
        .key("general.alignment", ty::U32, 32u32.to_le_bytes())
        .key("list", ty::ARRAY, array(ty::STR, 2, &[string("x"), string("yz")].concat()))
        .tensor("a", &[3, 2], 0, &a)
        .tensor("b", &[32, 2], 2, &b)
}

/// A safetensors file with this header and data.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// A folder that files are written to and opened in.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a folder for temporary files"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file, replacing one of the name rather than changing it: it may still be mapped.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, bytes).expect("the file to be written");
        path
    }

    pub fn open(&self, name: &str, bytes: impl AsRef<[u8]>) -> Result<Checkpoint, WeightsError> {
        Checkpoint::open(&self.write(name, bytes))
    }
}

/// Asserts that a refusal has this text, names its file and (unless the case says otherwise) a byte.
pub fn refused(case: &str, result: Result<Checkpoint, WeightsError>, file: &str, wanted: &str) {
    let Err(e) = result else { panic!("{case}: accepted, wanted a refusal with {wanted:?}") };
    let text = e.to_string();
    assert!(text.contains(wanted), "{case}: wanted {wanted:?}, found {text:?}");
    assert!(text.contains(file), "{case}: {text:?} does not name {file:?}");
    assert!(!text.contains('\n'), "{case}: {text:?} is more than one line");
}

/// Asserts that every view lies in its file and has the size of its shape.
pub fn views_are_sound(checkpoint: &Checkpoint) {
    for view in checkpoint.tensors() {
        let bytes = view.bytes().len();
        let row = view.shape().last().copied().unwrap_or(1);
        let rows: usize = view.shape().iter().rev().skip(1).product();
        assert_eq!(view.dtype().row_bytes(row).unwrap() * rows, bytes, "{view:?}");
        let source = view.source();
        let file = std::fs::metadata(source.file).unwrap().len();
        assert!(source.offset + source.bytes <= file, "{view:?} in a file of {file} bytes");
        assert_eq!(source.bytes, bytes as u64);
        // Touches the last page too.
        assert!(view.bytes().iter().map(|&b| u64::from(b)).sum::<u64>() <= 255 * bytes as u64);
        assert_eq!(checkpoint.get(view.name()).unwrap().source(), source);
    }
}

/// Numbers that look random and are the same each time (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
