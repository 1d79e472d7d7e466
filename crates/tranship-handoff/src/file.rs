//! The hand-off as a file: safetensors, with the manifest and the seal in its metadata.
//!
//! `docs/handoff-format.md` describes it for those who write one elsewhere. A file is written beside its place and
//! then moved there, so that no reader sees half of one; it is read once, and its tensors stay parts of that one
//! buffer.

use crate::handoff::{FORMAT, Manifest, Seal, content_digest};
use crate::unique::unique;
use crate::{Handoff, HandoffError, HandoffTensor, VERSION};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use tranship_dtype::DType;

impl Handoff {
    /// Writes the hand-off to a file. What is there and no regular file, as a pipe, is written to where it is.
    ///
    /// # Errors
    /// [`HandoffError::Io`], [`HandoffError::Unsealed`] for a hand-off whose seal was not found whole.
    pub fn write(&self, path: &Path) -> Result<(), HandoffError> {
        let io =
            |e: std::io::Error| HandoffError::Io { path: path.display().to_string(), what: e.to_string() };
        let header = self.header()?;
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let beside = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
        // Moving a file there would put it in the place of a pipe or a device.
        let in_place = path.metadata().is_ok_and(|m| !m.is_file());
        let place = if in_place { path } else { &beside };
        let written = (|| {
            let mut file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(place)?);
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(header.as_bytes())?;
            for tensor in &self.state {
                file.write_all(tensor.bytes())?;
            }
            file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
            if in_place { Ok(()) } else { std::fs::rename(&beside, path) }
        })();
        if written.is_err() && !in_place {
            // What is left of a failed write is of no use; that it could not be removed changes nothing.
            let _ = std::fs::remove_file(&beside);
        }
        written.map_err(io)
    }

    /// The bytes of the file form.
    ///
    /// # Errors
    /// [`HandoffError::Unsealed`] for a hand-off whose seal was not found whole.
    pub fn to_bytes(&self) -> Result<Vec<u8>, HandoffError> {
        let header = self.header()?;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        for tensor in &self.state {
            bytes.extend_from_slice(tensor.bytes());
        }
        Ok(bytes)
    }

    /// Reads a hand-off from a file. What is wrong with it beyond its form, [`crate::Contract::check`] says.
    ///
    /// # Errors
    /// [`HandoffError::Io`], [`HandoffError::Format`] or [`HandoffError::Version`].
    pub fn read(path: &Path) -> Result<Handoff, HandoffError> {
        let bytes = std::fs::read(path)
            .map_err(|e| HandoffError::Io { path: path.display().to_string(), what: e.to_string() })?;
        Handoff::from_bytes(bytes)
    }

    /// Reads a hand-off from the bytes of its file form.
    ///
    /// # Errors
    /// [`HandoffError::Format`] or [`HandoffError::Version`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Handoff, HandoffError> {
        let format = |what: String| HandoffError::Format(what);
        let (start, metadata) = read_header(&bytes)?;
        let texts = metadata.metadata().clone().unwrap_or_default();
        let line = texts.get("tranship").ok_or_else(|| format("its metadata has no `tranship`".into()))?;
        let manifest = manifest(line)?;
        let data = Arc::new(bytes);
        let mut state = Vec::new();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            let dtype = from_safetensors(info.dtype)
                .ok_or_else(|| format(format!("`{name}` is {:?}, which no carried tensor is", info.dtype)))?;
            let range = start + info.data_offsets.0..start + info.data_offsets.1;
            let shape = info.shape.iter().map(|&s| s as u64).collect();
            state.push(HandoffTensor::part(name, dtype, shape, data.clone(), range));
        }
        // Tensors without rows share a place: their order is that of the manifest.
        let listed = |name: &str| manifest.contract.carried.iter().position(|c| c.name == name);
        if state.iter().any(|t| t.bytes().is_empty()) {
            state.sort_by_cached_key(|t| (t.start(), listed(&t.name)));
        }
        let content = content_digest(line, &state);
        let seal = match texts.get("seal") {
            None => Seal::Absent,
            Some(found) if *found == content => Seal::Whole(content),
            Some(found) => Seal::Broken { content, found: found.clone() },
        };
        Ok(Handoff { manifest, line: line.clone(), state, seal })
    }

    /// The safetensors header: metadata first, then each tensor, padded with spaces to whole 8 bytes.
    fn header(&self) -> Result<String, HandoffError> {
        let seal = self.seal().ok_or(HandoffError::Unsealed)?;
        let mut header = Map::new();
        header.insert("__metadata__".into(), json!({ "tranship": self.line, "seal": seal }));
        let mut at = 0u64;
        for tensor in &self.state {
            let end = at + tensor.bytes().len() as u64;
            let dtype = to_safetensors(tensor.dtype)
                .ok_or_else(|| HandoffError::Format(format!("safetensors has no {}", tensor.dtype)))?;
            header.insert(
                tensor.name.clone(),
                json!({ "dtype": dtype.to_string(), "shape": tensor.shape, "data_offsets": [at, end] }),
            );
            at = end;
        }
        let mut header = Value::Object(header).to_string();
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        Ok(header)
    }
}

/// The header of a safetensors file, and where its data starts. The header is held to the bytes that there are.
fn read_header(bytes: &[u8]) -> Result<(usize, Metadata), HandoffError> {
    let format = |what: String| HandoffError::Format(format!("not a safetensors file ({what})"));
    let (len, rest) = bytes
        .split_first_chunk::<8>()
        .ok_or_else(|| format(format!("{} bytes, and the length of a header takes 8", bytes.len())))?;
    let len = u64::from_le_bytes(*len);
    let header = usize::try_from(len).ok().and_then(|len| rest.get(..len));
    let header =
        header.ok_or_else(|| format(format!("a header of {len} bytes, and {} are there", rest.len())))?;
    let metadata: Metadata = serde_json::from_slice(header).map_err(|e| format(e.to_string()))?;
    unique(header).map_err(|e| format(e.to_string()))?;
    let data = rest.len() - header.len();
    if metadata.data_len() != data {
        return Err(format(format!("{} bytes of tensors, and {data} are there", metadata.data_len())));
    }
    Ok((8 + header.len(), metadata))
}

fn manifest(line: &str) -> Result<Manifest, HandoffError> {
    let format = |e: serde_json::Error| HandoffError::Format(format!("its manifest: {e}"));
    let value: Value = serde_json::from_str(line).map_err(format)?;
    unique(line.as_bytes()).map_err(format)?;
    let found = value.get("version").and_then(Value::as_u64);
    if value.get("format").and_then(Value::as_str) != Some(FORMAT) {
        return Err(HandoffError::Format(format!("its manifest's `format` is not \"{FORMAT}\"")));
    }
    match found {
        Some(VERSION) => {}
        Some(found) => return Err(HandoffError::Version { wanted: VERSION, found }),
        None => return Err(HandoffError::Format("its manifest has no `version`".into())),
    }
    let manifest: Manifest = serde_json::from_value(value).map_err(format)?;
    manifest.contract.valid()?;
    Ok(manifest)
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
