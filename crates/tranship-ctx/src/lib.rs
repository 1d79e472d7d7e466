//! One numeric policy for a whole model: eager combinators for tensors, and a pass that types programs.
//!
//! A [`ComputeCtx`] says in which types a model computes, caches, accumulates and remembers. It is applied in two
//! ways, and no cast exists outside them:
//!
//! - to tensors, one at a time: [`ComputeCtx::precise`], [`ComputeCtx::to_compute`], [`ComputeCtx::to_kv`],
//!   [`promoted`], [`cast_if`];
//! - to a lifted program, at once: [`ComputeCtx::typed`] gives every value a dtype and every precision-sensitive
//!   operation its accumulator, and makes every cast a node. The list of those nodes is the [`CastLedger`]. What
//!   this pass accepts cannot fail on a dtype or a device later.
//!
//! ```
//! use tranship_ctx::{Accepts, ComputeCtx, Device};
//! use tranship_dtype::DType;
//! use tranship_program::Program;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = r#"
//! program layer
//!   x : [n, 64]
//!   w : [32, 64] @ "w"
//!   b : [32] @ "b"
//!   return linear(x, w) + b
//! "#;
//! let graph = Program::parse(text)?.lift()?;
//! let stored = |name: &str| Some(if name == "w" { DType::Q4_0 } else { DType::F32 });
//!
//! // In F32 there is nothing to cast.
//! let parity = ComputeCtx::parity(Device::cpu()).typed(&graph, &stored, &Accepts::default())?;
//! assert!(parity.ledger().is_empty());
//!
//! // In BF16 the sum with an F32 bias is joined upwards, and comes back.
//! let serving = ComputeCtx::serving(Device::cpu()).typed(&graph, &stored, &Accepts::default())?;
//! assert_eq!(serving.ledger().len(), 2);
//!
//! // Quantized, the activations meet the blocks as 8-bit blocks.
//! let quantized = ComputeCtx::quantized(Device::cpu()).typed(&graph, &stored, &Accepts::default())?;
//! assert_eq!(quantized.ledger().iter().next().map(|c| c.to), Some(DType::Q8_1));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod accepts;
mod device;
mod eager;
mod error;
mod ledger;
mod pass;
mod policy;
mod typed;

pub use accepts::{Accepts, DTypeSet};
pub use device::Device;
pub use eager::{cast_if, promote, promoted};
pub use error::CtxError;
pub use ledger::{Cast, CastLedger, Reason};
pub use policy::{Activations, ComputeCtx, LayerPolicy, PRESETS};
pub use tranship_residency::Residency;
pub use typed::Typed;
