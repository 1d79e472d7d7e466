//! safetensors: the length of a JSON header in 8 bytes, the header, then the data that its offsets count from.
//!
//! The format allows no holes and no overlaps: sorted by offset, the tensors cover the data exactly. Tensors may
//! start at any byte.

mod index;

pub(crate) use index::{is_plain, open_sharded};

use crate::{
    Metadata, Place, Value, View, WeightsError,
    json::{Pairs, Text},
    layout,
    map::MappedFile,
    metadata::Entry,
    view::Declared,
};
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;
use std::{borrow::Cow, path::Path, sync::Arc};
use tranship_dtype::DType;

/// The most that a header may take: the format's own limit.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// More axes than any tensor of a language model has.
const MAX_DIMS: usize = 8;

/// The content of one file, or of all shards.
pub(crate) struct Safetensors {
    pub(crate) files: Vec<Arc<MappedFile>>,
    /// The strings of `__metadata__`, of the first shard.
    pub(crate) metadata: Metadata,
    pub(crate) views: Vec<View>,
}

/// Opens one file.
pub(crate) fn open(path: &Path) -> Result<Safetensors, WeightsError> {
    let file = MappedFile::open(path)?;
    let (metadata, views) = parse(&file)?;
    Ok(Safetensors { files: vec![file], metadata, views })
}

fn dtype_of(name: &str) -> Option<DType> {
    Some(match name {
        "BOOL" => DType::Bool,
        "U8" => DType::U8,
        "U16" => DType::U16,
        "U32" => DType::U32,
        "U64" => DType::U64,
        "I8" => DType::I8,
        "I16" => DType::I16,
        "I32" => DType::I32,
        "I64" => DType::I64,
        "F4" => DType::F4E2M1,
        "F6_E2M3" => DType::F6E2M3,
        "F6_E3M2" => DType::F6E3M2,
        "F8_E4M3" => DType::F8E4M3,
        "F8_E5M2" => DType::F8E5M2,
        "F8_E8M0" => DType::F8E8M0,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "F32" => DType::F32,
        "F64" => DType::F64,
        _ => return None,
    })
}

/// What the header says of one tensor.
#[derive(Deserialize)]
struct Info<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Shape,
    /// First byte and end, from the start of the data.
    data_offsets: (u64, u64),
}

/// Sizes, outermost first; those past [`MAX_DIMS`] are counted, not kept.
struct Shape {
    sizes: Vec<u64>,
    dims: u64,
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Shape, D::Error> {
        struct Sizes;
        impl<'de> de::Visitor<'de> for Sizes {
            type Value = Shape;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an array of sizes")
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut shape = Shape { sizes: Vec::new(), dims: 0 };
                while let Some(size) = seq.next_element()? {
                    shape.dims += 1;
                    if shape.sizes.len() < MAX_DIMS {
                        shape.sizes.push(size);
                    }
                }
                Ok(shape)
            }
        }
        d.deserialize_seq(Sizes)
    }
}

/// Reads and checks the header of one file.
fn parse(file: &Arc<MappedFile>) -> Result<(Metadata, Vec<View>), WeightsError> {
    let (header, data) = header(file)?;
    let Pairs(members) = header.read::<Pairs<'_, &RawValue>>()?;
    let mut metadata = None;
    let mut views = Vec::new();
    for (name, raw) in members {
        let member = header.member(raw);
        if name == "__metadata__" {
            let at = member.base;
            if let Some(first) = metadata.replace((at, strings(member)?)).map(|(byte, _)| byte) {
                let at = Place::key(file.path(), &name, at);
                return Err(WeightsError::DuplicateKey { at, first });
            }
        } else {
            views.push(view(file, member, name.into_owned(), data)?);
        }
    }
    let metadata = Metadata::new(file.path(), metadata.map_or_else(Vec::new, |(_, entries)| entries))?;
    layout::by_name(&views)?;
    layout::no_overlap(&views)?;
    views.sort_by_key(|v| (v.source().offset, v.source().bytes));
    no_gap(file, &views, data)?;
    Ok((metadata, views))
}

/// The text of the header, and the byte at which the data begins.
fn header(file: &MappedFile) -> Result<(Text<'_>, usize), WeightsError> {
    let (path, bytes) = (file.path(), file.bytes());
    let truncated = |byte: u64, what, wanted, remain: usize| WeightsError::Truncated {
        at: Place::header(path, byte),
        what,
        wanted,
        remain: remain as u64,
    };
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(truncated(0, "the length of the header", 8, bytes.len()));
    };
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER_BYTES {
        let at = Place::header(path, 0);
        return Err(WeightsError::HeaderTooLarge { at, bytes: len, most: MAX_HEADER_BYTES });
    }
    // At most 100 MB, so it fits any machine word.
    let Some(text) = rest.get(..len as usize) else {
        return Err(truncated(8, "the header", len, rest.len()));
    };
    Ok((Text::new(path, text, 8)?, 8 + text.len()))
}

fn strings<'a>(member: Text<'a>) -> Result<Vec<Entry>, WeightsError> {
    let Pairs(pairs) = member.read_key::<Pairs<'_, &RawValue>>("__metadata__")?;
    let entry = |(key, raw): (Cow<'a, str>, &'a RawValue)| {
        let text = member.member(raw);
        let value = Value::Str(text.read_key(&key)?);
        Ok(Entry { key: key.into_owned(), value, byte: text.base })
    };
    pairs.into_iter().map(entry).collect()
}

fn view(file: &Arc<MappedFile>, member: Text<'_>, name: String, data: usize) -> Result<View, WeightsError> {
    let info: Info<'_> = member.read_of(&name)?;
    let at = || Place::tensor(file.path(), &name, member.base);
    let Some(dtype) = dtype_of(&info.dtype) else {
        return Err(WeightsError::ElementType { at: at(), found: info.dtype.into_owned() });
    };
    if info.shape.dims > MAX_DIMS as u64 {
        let most = MAX_DIMS as u64;
        return Err(WeightsError::TooManyDims { at: at(), found: info.shape.dims, most });
    }
    let (shape, len) = layout::byte_len(at, dtype, &info.shape.sizes)?;
    let (begin, end) = info.data_offsets;
    let Some(found) = end.checked_sub(begin) else {
        return Err(WeightsError::Backwards { at: at(), begin, end });
    };
    if found != len as u64 {
        return Err(WeightsError::Size { at: at(), dtype, shape, wanted: len as u64, found });
    }
    let place = at();
    let declared = Declared { name, dtype, shape, declared_at: member.base };
    let start = usize::try_from(begin).ok().and_then(|b| b.checked_add(data));
    let view = start.and_then(|start| View::new(file, declared, start, len));
    view.ok_or_else(|| WeightsError::OutOfRange {
        at: place,
        begin: u128::from(begin) + data as u128,
        end: u128::from(end) + data as u128,
        file_bytes: file.bytes().len() as u64,
    })
}

/// Checks that `views`, sorted and free of overlaps, cover the data.
fn no_gap(file: &MappedFile, views: &[View], data: usize) -> Result<(), WeightsError> {
    let mut end = data as u64;
    let places = views.iter().map(|v| (v.source().offset, v.source().bytes));
    for (begin, bytes) in places.chain([(file.bytes().len() as u64, 0)]) {
        if begin != end {
            return Err(WeightsError::Gap { file: file.path().to_owned(), begin: end, end: begin });
        }
        end += bytes;
    }
    Ok(())
}
