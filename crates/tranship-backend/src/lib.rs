//! The seam between typed programs and the chips that run them, and the plain reference interpreter.
//!
//! A [`Backend`] compiles a [`Chain`] of typed programs (the embedding, layers, the head, or any run of them) into
//! a [`Step`], once. A step then takes batches of segments: rows of several sequences, some prefilling, some
//! decoding. Each sequence's carried tensors live in a [`State`], whose edge is the logical row-major order of the
//! contract, whatever layout the backend keeps inside.
//!
//! [`Reference`] is the backend that all others are held to: plain loops, one for each operation, sums in F64.
//!
//! ```
//! use std::sync::Arc;
//! use tranship_backend::{Backend, Chain, Input, MapWeights, Outputs, Reference, Segment};
//! use tranship_ctx::{ComputeCtx, Device};
//! use tranship_dtype::DType;
//! use tranship_program::Program;
//! use tranship_tensor::Tensor;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = r#"
//! program layer
//!   x : [n, 2]
//!   w : [1, 2] @ "w"
//!   return linear(x, w)
//! "#;
//! let backend = Reference::new();
//! let mut weights = MapWeights::default();
//! weights.insert("w", Tensor::from_f32(&[1, 2], &[3.0, 0.5])?);
//! let graph = Program::parse(text)?.lift()?;
//! let ctx = ComputeCtx::parity(Device::of("reference"));
//! let typed = ctx.typed(&graph, &|_| Some(DType::F32), &backend.caps().accepts)?;
//!
//! let mut step = backend.compile(&Chain::new(vec![Arc::new(typed)], 8), &weights)?;
//! let mut state = step.new_state()?;
//! let segment = Segment { state: state.as_mut(), position: 0, rows: 2, outputs: Outputs::All };
//! let mut out = Vec::new();
//! step.run(&mut [segment], Input::Rows(&[1.0, 2.0, -1.0, 4.0]), &mut out)?;
//! assert_eq!(out, [4.0, -1.0]);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod chain;
mod error;
mod reference;
mod rope_table;
mod round;
mod seam;
mod state;
mod table;
mod weights;

pub use chain::{CarriedSpec, Chain, Limits};
pub use error::BackendError;
pub use reference::Reference;
pub use rope_table::RopeTable;
pub use round::{BF16_MAX, round_to};
pub use seam::{Backend, Caps, Input, Outputs, Segment, Step, check_batch};
pub use state::{RowState, State};
pub use table::experts_of;
pub use weights::{Bytes, MapWeights, Weight, Weights};
