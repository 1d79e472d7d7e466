//! Everything that can be wrong with a checkpoint, each with its place.

use std::{
    fmt,
    path::{Path, PathBuf},
};
use thiserror::Error;
use tranship_dtype::DType;

/// Where in a file something is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// What was being read.
    pub item: Item,
    /// The byte, counted from the start of the file.
    pub byte: u64,
}

/// The part of a file that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The fixed fields at the front, or a name in the lists that follow them.
    Header,
    /// A metadata key.
    Key(String),
    /// A tensor.
    Tensor(String),
}

impl Place {
    pub(crate) fn header(file: &Path, byte: u64) -> Box<Place> {
        Box::new(Place { file: file.to_owned(), item: Item::Header, byte })
    }

    pub(crate) fn key(file: &Path, key: &str, byte: u64) -> Box<Place> {
        Box::new(Place { file: file.to_owned(), item: Item::Key(key.to_owned()), byte })
    }

    pub(crate) fn tensor(file: &Path, tensor: &str, byte: u64) -> Box<Place> {
        Box::new(Place { file: file.to_owned(), item: Item::Tensor(tensor.to_owned()), byte })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { file, item, byte } = self;
        match item {
            Item::Header => write!(f, "{}: header, byte {byte}", file.display()),
            Item::Key(k) => write!(f, "{}: key `{}`, byte {byte}", file.display(), Short(k)),
            Item::Tensor(t) => write!(f, "{}: tensor `{}`, byte {byte}", file.display(), Short(t)),
        }
    }
}

/// A name from a file, made fit for one line: escaped, and cut after 96 characters.
struct Short<'a>(&'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 96;
        let end = self.0.char_indices().nth(MOST).map_or(self.0.len(), |(i, _)| i);
        write!(f, "{}{}", self.0[..end].escape_debug(), if end < self.0.len() { "…" } else { "" })
    }
}

/// Why a checkpoint, or a part of it, was refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The operating system refused.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file or folder.
        file: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// A pipe, a device or a folder where a file is wanted.
    #[error("{}: not a regular file", file.display())]
    NotAFile {
        /// The path.
        file: PathBuf,
    },
    /// A file of 0 bytes.
    #[error("{}: the file is empty, byte 0", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// Neither a known ending nor a known magic number.
    #[error("{}: wanted a .gguf or .safetensors file, a config.json, or a folder with them", file.display())]
    UnknownFormat {
        /// The path.
        file: PathBuf,
    },
    /// A folder that does not hold exactly one model.
    #[error("{}: {reason}", folder.display())]
    NoModel {
        /// The folder.
        folder: PathBuf,
        /// What was looked for, and what was there.
        reason: String,
    },
    /// A file read whole (a configuration, an index, a tokenizer) beyond its cap.
    #[error("{}: {bytes} bytes, the most accepted is {most}", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// Its size.
        bytes: u64,
        /// The cap.
        most: u64,
    },
    /// A name that leaves the model's folder, or is no file name.
    #[error("{}: `{}` is not a plain file name", file.display(), Short(name))]
    FileName {
        /// The file or folder that the name was to be looked up beside.
        file: PathBuf,
        /// The name.
        name: String,
    },
    /// The first four bytes are not `GGUF`.
    #[error("{at}: wrong magic: wanted \"GGUF\", found \"{}\"", found.escape_ascii())]
    Magic {
        /// Where.
        at: Box<Place>,
        /// The bytes there.
        found: [u8; 4],
    },
    /// A GGUF version other than 2 and 3.
    #[error("{at}: GGUF version {found} is not supported, wanted 2 or 3")]
    Version {
        /// Where.
        at: Box<Place>,
        /// The version there.
        found: u32,
    },
    /// A GGUF file in big-endian byte order.
    #[error("{at}: big-endian GGUF (version {version}) is not supported, wanted little-endian")]
    BigEndian {
        /// Where.
        at: Box<Place>,
        /// The version, read in that order.
        version: u32,
    },
    /// The file ends inside something.
    #[error("{at}: truncated: {what} takes {wanted} bytes, {remain} remain")]
    Truncated {
        /// Where.
        at: Box<Place>,
        /// What was being read.
        what: &'static str,
        /// Its size in bytes.
        wanted: u64,
        /// The bytes from there to the end of the file.
        remain: u64,
    },
    /// A header larger than any real one.
    #[error("{at}: the header takes {bytes} bytes or more, the most accepted is {most}")]
    HeaderTooLarge {
        /// Where.
        at: Box<Place>,
        /// The size that it has or claims.
        bytes: u64,
        /// The cap.
        most: u64,
    },
    /// A count that the rest of the header cannot hold.
    #[error("{at}: {count} {what}, where there is room for at most {most}")]
    Count {
        /// Where.
        at: Box<Place>,
        /// Of what.
        what: &'static str,
        /// The number claimed.
        count: u64,
        /// The most that could be there.
        most: u64,
    },
    /// Text that is not UTF-8.
    #[error("{at}: {what} is not valid UTF-8")]
    Utf8 {
        /// The first byte that is wrong.
        at: Box<Place>,
        /// What was being read.
        what: &'static str,
    },
    /// A GGUF value type that does not exist.
    #[error("{at}: unknown value type {id}, wanted 0 to 12")]
    ValueType {
        /// Where.
        at: Box<Place>,
        /// The number there.
        id: u32,
    },
    /// An array of arrays.
    #[error("{at}: an array of arrays is not supported")]
    NestedArray {
        /// Where.
        at: Box<Place>,
    },
    /// A truth value other than 0 and 1.
    #[error("{at}: a truth value must be 0 or 1, found {found}")]
    Bool {
        /// Where.
        at: Box<Place>,
        /// The byte there.
        found: u8,
    },
    /// Two values under one key.
    #[error("{at}: duplicate key, first at byte {first}")]
    DuplicateKey {
        /// The second.
        at: Box<Place>,
        /// The byte of the first.
        first: u64,
    },
    /// Two tensors of one name, in one file or in two.
    #[error("{at}: duplicate tensor name, first in {} at byte {byte}", first.display())]
    DuplicateTensor {
        /// The second.
        at: Box<Place>,
        /// The file of the first.
        first: PathBuf,
        /// Where that declares it.
        byte: u64,
    },
    /// `general.alignment` is not a power of two.
    #[error("{at}: alignment {found} is not a power of two")]
    Alignment {
        /// Where.
        at: Box<Place>,
        /// The value there.
        found: u64,
    },
    /// A GGUF tensor type that cannot be read.
    #[error("{at}: {}", type_name(*id, *name))]
    TypeId {
        /// Where.
        at: Box<Place>,
        /// The number there.
        id: u32,
        /// Its name, where it is a type that others know.
        name: Option<&'static str>,
    },
    /// A safetensors element type that cannot be read.
    #[error("{at}: unsupported element type `{}`", Short(found))]
    ElementType {
        /// Where.
        at: Box<Place>,
        /// The name there.
        found: String,
    },
    /// More axes than the format (GGUF) or any model (safetensors) has.
    #[error("{at}: {found} dimensions, the most accepted is {most}")]
    TooManyDims {
        /// Where.
        at: Box<Place>,
        /// The number of axes.
        found: u64,
        /// The cap.
        most: u64,
    },
    /// A size that does not fit in a machine word.
    #[error("{at}: the size of {dtype} {shape:?} overflows")]
    Overflow {
        /// Where.
        at: Box<Place>,
        /// The element type.
        dtype: DType,
        /// The shape, outermost axis first.
        shape: Vec<u64>,
    },
    /// A row that ends inside a block.
    #[error("{at}: rows of {row} elements are not whole {dtype} blocks of {block}")]
    PartialBlock {
        /// Where.
        at: Box<Place>,
        /// The element type.
        dtype: DType,
        /// Elements of a row.
        row: u64,
        /// Elements of a block.
        block: usize,
    },
    /// A data offset that is not a multiple of the file's alignment.
    #[error("{at}: data offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// Where.
        at: Box<Place>,
        /// The offset, from the start of the data.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// Data that ends past the end of the file.
    #[error("{at}: data at bytes {begin} to {end}, but the file has {file_bytes} bytes")]
    OutOfRange {
        /// Where the header says so.
        at: Box<Place>,
        /// The first byte claimed, from the start of the file.
        begin: u128,
        /// The end claimed.
        end: u128,
        /// The size of the file.
        file_bytes: u64,
    },
    /// Offsets of which the second comes first.
    #[error("{at}: data offsets {begin} to {end} run backwards")]
    Backwards {
        /// Where the header says so.
        at: Box<Place>,
        /// The first offset.
        begin: u64,
        /// The second.
        end: u64,
    },
    /// Two tensors that share bytes.
    #[error("{at}: data at byte {begin} overlaps that of `{}`, which ends at {end}", Short(other))]
    Overlap {
        /// Where the header says so.
        at: Box<Place>,
        /// The first byte of this one.
        begin: u64,
        /// The other tensor.
        other: String,
        /// The end of the other one.
        end: u64,
    },
    /// Bytes between tensors or after the last that belong to none (safetensors allows none).
    #[error("{}: bytes {begin} to {end} belong to no tensor", file.display())]
    Gap {
        /// The file.
        file: PathBuf,
        /// The first byte that is left over.
        begin: u64,
        /// The end.
        end: u64,
    },
    /// Offsets that do not agree with shape and type.
    #[error("{at}: {dtype} {shape:?} takes {wanted} bytes, its data offsets give {found}")]
    Size {
        /// Where.
        at: Box<Place>,
        /// The element type.
        dtype: DType,
        /// The shape.
        shape: Vec<usize>,
        /// The bytes of that shape.
        wanted: u64,
        /// The bytes between the offsets.
        found: u64,
    },
    /// Malformed JSON, or JSON of another form than wanted.
    #[error("{at}: {reason}")]
    Json {
        /// Where.
        at: Box<Place>,
        /// What is wrong.
        reason: String,
    },
    /// A shard that an index names and the folder lacks.
    #[error("{at}: shard `{}` does not exist", Short(shard))]
    MissingShard {
        /// Where the index names it.
        at: Box<Place>,
        /// The name.
        shard: String,
    },
    /// A tensor that the index places in a shard that lacks it.
    #[error("{at}: shard {} lacks this tensor", shard.display())]
    ShardLacks {
        /// Where the index places it.
        at: Box<Place>,
        /// The shard.
        shard: PathBuf,
    },
    /// A tensor of a shard that the index does not place there.
    #[error("{at}: {} does not place this tensor in this shard", index.display())]
    ShardExtra {
        /// Where the shard declares it.
        at: Box<Place>,
        /// The index.
        index: PathBuf,
    },
    /// A part of a split file that is not beside the others.
    #[error("{}: part {number} of {count} is missing", file.display())]
    MissingPart {
        /// The file that is missing.
        file: PathBuf,
        /// Its number, from 1.
        number: u64,
        /// How many there are.
        count: u64,
    },
    /// A part whose metadata disagrees with its name or with the other parts.
    #[error("{at}: split mismatch: wanted {wanted}, found {found}")]
    Split {
        /// The key that disagrees.
        at: Box<Place>,
        /// What the file name, or the parts together, say.
        wanted: u64,
        /// What the key says.
        found: u64,
    },
    /// A part whose name does not say which one it is.
    #[error("{}: is one of {count} parts, but its name does not end in -0000N-of-{count:05}.gguf", file.display())]
    PartName {
        /// The file.
        file: PathBuf,
        /// How many parts there are.
        count: u64,
    },
    /// A key that is not there.
    #[error("{}: key `{}` is missing, wanted {wanted}", file.display(), Short(key))]
    MissingKey {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// The type of value wanted.
        wanted: &'static str,
    },
    /// A key whose value has another type, or is out of that type's range.
    #[error("{at}: wanted {wanted}, found {found}")]
    WrongType {
        /// Where.
        at: Box<Place>,
        /// The type of value wanted.
        wanted: &'static str,
        /// The value there, in short.
        found: String,
    },
    /// A tensor that is not there.
    #[error("{}: tensor `{}` is missing", file.display(), Short(tensor))]
    MissingTensor {
        /// The file or folder.
        file: PathBuf,
        /// The name.
        tensor: String,
    },
}

fn type_name(id: u32, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("tensor type {id} ({name}) is not supported"),
        None => format!("unknown tensor type {id}"),
    }
}
