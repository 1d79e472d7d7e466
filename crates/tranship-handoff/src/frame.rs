//! A safetensors file as a frame: its header written, and read from whatever sent it.
//!
//! The file form of a hand-off is one frame; its stream form is one after the other. A header is held to the bytes that
//! there are where they are all there; where they are still to come, it is held to what the receiver can take.

use crate::HandoffError;
use crate::unique::unique;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use tranship_dtype::DType;

/// Bytes that a header takes at most, where it is read from a file or a stream: what is made of it in memory may be forty
/// times as much. That of a model of a hundred layers has some 100 KiB.
const MOST: u64 = 1 << 22;

/// A tensor as a header lists it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// Its bytes, counted from the end of the header.
    pub range: Range<usize>,
}

/// The header of a frame.
pub(crate) struct Header {
    pub metadata: HashMap<String, String>,
    /// In the order of their bytes.
    pub entries: Vec<Entry>,
    /// Bytes of all tensors.
    pub data: usize,
}

/// The bytes before a frame's tensors: the header's length, the metadata, each tensor in turn, padded with spaces to
/// whole 8 bytes.
///
/// # Errors
/// [`HandoffError::Format`] for a type that safetensors has no name for.
pub(crate) fn prelude<'a>(
    metadata: Value,
    tensors: impl Iterator<Item = (&'a str, DType, Vec<u64>, u64)>,
) -> Result<Vec<u8>, HandoffError> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), metadata);
    let mut at = 0u64;
    for (name, dtype, shape, bytes) in tensors {
        let end = at.saturating_add(bytes);
        let dtype = to_safetensors(dtype)
            .ok_or_else(|| HandoffError::Format(format!("safetensors has no {dtype}")))?;
        let info = json!({ "dtype": dtype.to_string(), "shape": shape, "data_offsets": [at, end] });
        header.insert(name.to_owned(), info);
        at = end;
    }
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    Ok(bytes)
}

fn fault(what: String) -> HandoffError {
    HandoffError::Format(format!("not a safetensors file ({what})"))
}

/// The header of a frame whose bytes are all there, and where its tensors start. What follows them may be another frame.
///
/// # Errors
/// [`HandoffError::Format`].
pub(crate) fn of_bytes(bytes: &[u8]) -> Result<(usize, Header), HandoffError> {
    let (len, rest) = bytes
        .split_first_chunk::<8>()
        .ok_or_else(|| fault(format!("{} bytes, and the length of a header takes 8", bytes.len())))?;
    let len = u64::from_le_bytes(*len);
    let header = usize::try_from(len).ok().and_then(|len| rest.get(..len));
    let header =
        header.ok_or_else(|| fault(format!("a header of {len} bytes, and {} are there", rest.len())))?;
    Ok((8 + header.len(), parse(header)?))
}

/// The next frame's header; `None` where the input ends before it. Memory is taken as the bytes come.
///
/// # Errors
/// [`HandoffError::Format`], or what the input says.
pub(crate) fn next(input: &mut impl Read) -> Result<Option<Header>, HandoffError> {
    let mut start = Vec::new();
    input.by_ref().take(8).read_to_end(&mut start).map_err(HandoffError::input)?;
    if start.is_empty() {
        return Ok(None);
    }
    let len = <[u8; 8]>::try_from(start.as_slice())
        .map(u64::from_le_bytes)
        .map_err(|_| fault(format!("{} bytes, and the length of a header takes 8", start.len())))?;
    if len > MOST {
        return Err(fault(format!("a header of {len} bytes: {MOST} are read at most")));
    }
    let mut header = Vec::new();
    input.by_ref().take(len).read_to_end(&mut header).map_err(HandoffError::input)?;
    if header.len() as u64 != len {
        return Err(fault(format!("a header of {len} bytes, and {} are there", header.len())));
    }
    parse(&header).map(Some)
}

fn parse(header: &[u8]) -> Result<Header, HandoffError> {
    let metadata: Metadata = serde_json::from_slice(header).map_err(|e| fault(e.to_string()))?;
    unique(header).map_err(|e| fault(e.to_string()))?;
    let mut entries = Vec::new();
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else { continue };
        let dtype = from_safetensors(info.dtype).ok_or_else(|| {
            HandoffError::Format(format!("`{name}` is {:?}, which no carried tensor is", info.dtype))
        })?;
        let shape = info.shape.iter().map(|&s| s as u64).collect();
        entries.push(Entry { name, dtype, shape, range: info.data_offsets.0..info.data_offsets.1 });
    }
    let data = metadata.data_len();
    Ok(Header { metadata: metadata.metadata().clone().unwrap_or_default(), entries, data })
}

impl Header {
    /// Puts tensors without rows, which share a place, in the order of `place`.
    pub fn order(&mut self, place: impl Fn(&str) -> Option<usize>) {
        if self.entries.iter().any(|e| e.range.is_empty()) {
            self.entries.sort_by_cached_key(|e| (e.range.start, place(&e.name)));
        }
    }
}

/// The names of element types there. No carried tensor is of integers; they are read for the check to refuse them.
fn to_safetensors(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        _ => return None,
    })
}

fn from_safetensors(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|&d| to_safetensors(d) == Some(dtype))
}
