//! Memory-mapped GGUF and safetensors checkpoints as named, typed views, with every size checked.
//!
//! [`Checkpoint::open`] takes a `.gguf` file (split ones too), a `.safetensors` file, a folder of safetensors with
//! its `config.json` (sharded ones too), or a bare `config.json`, where only shapes are needed. It reads the
//! headers, checks every number in them against the bytes that are there, and gives a [`View`] for each tensor:
//! name, element type, row-major shape, and the bytes where they lie in the map. Nothing is ever copied.
//!
//! ```
//! use safetensors::{Dtype, serialize, tensor::TensorView};
//! use tranship_dtype::DType;
//! use tranship_weights::{Checkpoint, Format};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let tensor = TensorView::new(Dtype::F32, vec![2, 3], &bytes)?;
//! std::fs::write(folder.path().join("model.safetensors"), serialize([("head.weight", tensor)], None)?)?;
//! std::fs::write(folder.path().join("config.json"), r#"{"model_type": "llama"}"#)?;
//!
//! let checkpoint = Checkpoint::open(folder.path())?;
//! assert_eq!(checkpoint.format(), Format::Safetensors);
//! assert_eq!(checkpoint.config().unwrap()["model_type"], "llama");
//!
//! let head = checkpoint.get("head.weight").unwrap();
//! drop(checkpoint); // a view keeps its file mapped
//! assert_eq!((head.dtype(), head.shape()), (DType::F32, &[2, 3][..])); // [out, in]
//! assert_eq!(head.bytes(), bytes);
//! # Ok(())
//! # }
//! ```
//!
//! # What is trusted
//!
//! Nothing in a file. Arithmetic is checked, counts are held against the bytes that remain before anything is
//! allocated, and each refusal is a [`WeightsError`] that names the file, the key or tensor, and the byte.
//! No input makes this crate panic, and every view lies inside its map. Headers are parsed here rather than by
//! the `safetensors` crate because that one keeps the last of two tensors of one name and cannot say at which
//! byte a header is wrong; it serves the tests as the independent reader.
//!
//! # What a map cannot promise
//!
//! Sizes are checked when the file is opened. If another process *shortens* the file while it is mapped, reading
//! the lost pages raises `SIGBUS`, which this crate does not catch; if another process rewrites it in place, views
//! see the new bytes. Replace model files by renaming a new one over them, which leaves open maps intact.
#![deny(unsafe_code)]

mod checkpoint;
mod error;
mod gguf;
mod json;
mod layout;
mod map;
mod metadata;
mod safetensors;
mod view;

pub use checkpoint::{Checkpoint, Format, MAX_CONFIG_BYTES, MAX_SIDECAR_BYTES};
pub use error::{Item, Place, WeightsError};
pub use gguf::MAX_HEADER_BYTES as MAX_GGUF_HEADER_BYTES;
pub use map::Advice;
pub use metadata::{Array, FromValue, Metadata, Strings, Value};
pub use safetensors::MAX_HEADER_BYTES as MAX_SAFETENSORS_HEADER_BYTES;
pub use view::{Source, View};
