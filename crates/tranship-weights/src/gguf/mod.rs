//! GGUF, versions 2 and 3, little-endian; whole, or split into parts that lie side by side.
//!
//! ```text
//! "GGUF"  version: u32  tensors: u64  keys: u64
//! keys    × (name: string, type: u32, value)
//! tensors × (name: string, axes: u32, sizes: [u64; axes] innermost first, type: u32, offset: u64)
//! padding to `general.alignment` (32 unless given), then the data that the offsets count from
//! ```
//! A string is its length as u64, then UTF-8.

mod cursor;
mod types;
mod values;

use crate::{Metadata, Place, View, WeightsError, layout, map::MappedFile, metadata::Entry, view::Declared};
use cursor::{Cursor, Of};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The most that the front of a GGUF file, keys and tensor list together, may take: ten times that of the largest
/// vocabularies, and a bound on what opening a file can allocate.
pub const MAX_HEADER_BYTES: u64 = 256 << 20;

/// GGUF's own limit.
const MAX_DIMS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";

/// The content of one file, or of all parts of a split one.
pub(crate) struct Gguf {
    pub(crate) files: Vec<Arc<MappedFile>>,
    /// Of the first part; the others hold only their number.
    pub(crate) metadata: Metadata,
    pub(crate) views: Vec<View>,
}

/// Opens the file at `path`; where its name is that of one part of several, all of them.
pub(crate) fn open(path: &Path) -> Result<Gguf, WeightsError> {
    match PartName::of(path) {
        Some(name) if name.count > 1 => open_parts(path, &name),
        _ => {
            let file = MappedFile::open(path)?;
            let (metadata, views) = parse(&file)?;
            match metadata.optional::<u64>("split.count")? {
                Some(count) if count > 1 => Err(WeightsError::PartName { file: path.to_owned(), count }),
                _ => Ok(Gguf { files: vec![file], metadata, views }),
            }
        }
    }
}

/// What `prefix-00002-of-00003.gguf` says.
struct PartName {
    prefix: String,
    number: u64,
    count: u64,
}

impl PartName {
    fn of(path: &Path) -> Option<PartName> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |s: &str| {
            let five = s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
            five.then(|| s.parse::<u64>().ok()).flatten()
        };
        Some(PartName { prefix: prefix.to_owned(), number: digits(number)?, count: digits(count)? })
    }

    fn part(&self, beside: &Path, number: u64) -> PathBuf {
        beside.with_file_name(format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.count))
    }
}

fn open_parts(path: &Path, name: &PartName) -> Result<Gguf, WeightsError> {
    if name.number == 0 || name.number > name.count {
        return Err(WeightsError::PartName { file: path.to_owned(), count: name.count });
    }
    let mut parts = Vec::new();
    let mut files = Vec::new();
    let mut views = Vec::new();
    for number in 1..=name.count {
        let part = name.part(path, number);
        let file = match MappedFile::open(&part) {
            Err(WeightsError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(WeightsError::MissingPart { file: part, number, count: name.count });
            }
            other => other?,
        };
        let (metadata, more) = parse(&file)?;
        must_be(&part, &metadata, "split.count", name.count)?;
        must_be(&part, &metadata, "split.no", number - 1)?;
        parts.push((part, metadata));
        files.push(file);
        views.extend(more);
    }
    for (part, metadata) in &parts {
        if metadata.get("split.tensors.count").is_some() {
            must_be(part, metadata, "split.tensors.count", views.len() as u64)?;
        }
    }
    let (_, metadata) = parts.swap_remove(0);
    Ok(Gguf { files, metadata, views })
}

fn must_be(file: &Path, metadata: &Metadata, key: &str, wanted: u64) -> Result<(), WeightsError> {
    let found = metadata.get_u64(key)?;
    if found != wanted {
        let at = Place::key(file, key, metadata.byte_of(key));
        return Err(WeightsError::Split { at, wanted, found });
    }
    Ok(())
}

/// Reads and checks the front of one file.
fn parse(file: &Arc<MappedFile>) -> Result<(Metadata, Vec<View>), WeightsError> {
    let mut c = Cursor::new(file.path(), file.bytes());
    version(&mut c)?;
    // The least that a tensor takes: an empty name, no axes, a type and an offset. A key: an empty name, a type and
    // a byte.
    let tensors = c.count(24, "tensors", Of::Header)?;
    let keys = c.count(13, "keys", Of::Header)?;
    let mut entries = Vec::new();
    for _ in 0..keys {
        let key = c.string("the name of a key", Of::Header)?.to_owned();
        let byte = c.at();
        let value = values::value(&mut c, &key)?;
        entries.push(Entry { key, value, byte });
    }
    let metadata = Metadata::new(file.path(), entries)?;
    let alignment = alignment(file.path(), &metadata)?;
    let mut declared = Vec::new();
    for _ in 0..tensors {
        declared.push(declaration(&mut c)?);
    }
    let data = c.at().next_multiple_of(alignment);
    let views: Vec<View> =
        declared.into_iter().map(|d| place(file, d, data, alignment)).collect::<Result<_, _>>()?;
    layout::by_name(&views)?;
    layout::no_overlap(&views)?;
    Ok((metadata, views))
}

fn version(c: &mut Cursor<'_>) -> Result<(), WeightsError> {
    let found: [u8; 4] = c.fixed("the magic number", Of::Header)?;
    if &found != b"GGUF" {
        return Err(WeightsError::Magic { at: c.place(Of::Header, 0), found });
    }
    let found = c.u32("the version", Of::Header)?;
    let at = || c.place(Of::Header, 4);
    match found {
        2 | 3 => Ok(()),
        // A small number whose bytes are swapped.
        _ if found & 0xffff == 0 && found != 0 => {
            Err(WeightsError::BigEndian { at: at(), version: found.swap_bytes() })
        }
        _ => Err(WeightsError::Version { at: at(), found }),
    }
}

fn alignment(file: &Path, metadata: &Metadata) -> Result<u64, WeightsError> {
    let found = metadata.optional::<u32>(ALIGNMENT_KEY)?.map_or(DEFAULT_ALIGNMENT, u64::from);
    if !found.is_power_of_two() {
        let at = Place::key(file, ALIGNMENT_KEY, metadata.byte_of(ALIGNMENT_KEY));
        return Err(WeightsError::Alignment { at, found });
    }
    Ok(found)
}

/// One entry of the tensor list, sizes checked, not yet placed.
struct Declaration {
    tensor: Declared,
    bytes: usize,
    offset: u64,
    /// The byte of the file that holds `offset`.
    offset_at: u64,
}

fn declaration(c: &mut Cursor<'_>) -> Result<Declaration, WeightsError> {
    let declared_at = c.at();
    let name = c.string("the name of a tensor", Of::Header)?.to_owned();
    let of = Of::Tensor(&name);
    let dims_at = c.at();
    let dims = c.u32("the number of dimensions", of)?;
    if dims > MAX_DIMS {
        let at = c.place(of, dims_at);
        return Err(WeightsError::TooManyDims { at, found: dims.into(), most: MAX_DIMS.into() });
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        shape.push(c.u64("a dimension", of)?);
    }
    shape.reverse();
    let type_at = c.at();
    let id = c.u32("a tensor type", of)?;
    let dtype =
        types::dtype_of(id).map_err(|name| WeightsError::TypeId { at: c.place(of, type_at), id, name })?;
    let (shape, bytes) = layout::byte_len(|| c.place(of, dims_at), dtype, &shape)?;
    let offset_at = c.at();
    let offset = c.u64("a data offset", of)?;
    Ok(Declaration { tensor: Declared { name, dtype, shape, declared_at }, bytes, offset, offset_at })
}

fn place(file: &Arc<MappedFile>, d: Declaration, data: u64, alignment: u64) -> Result<View, WeightsError> {
    let at = Place::tensor(file.path(), &d.tensor.name, d.offset_at);
    if !d.offset.is_multiple_of(alignment) {
        return Err(WeightsError::Misaligned { at, offset: d.offset, alignment });
    }
    let begin = u128::from(data) + u128::from(d.offset);
    let view = usize::try_from(begin).ok().and_then(|start| View::new(file, d.tensor, start, d.bytes));
    view.ok_or_else(|| WeightsError::OutOfRange {
        at,
        begin,
        end: begin + d.bytes as u128,
        file_bytes: file.bytes().len() as u64,
    })
}
