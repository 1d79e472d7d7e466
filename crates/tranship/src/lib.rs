//! One language model across unlike chips: prefill here, decode there.
//!
//! This crate is the front of the house. It gives every crate of the workspace under its short name
//! ([`dtype`], [`weights`], [`session`], …), the main types at once in [`prelude`], and a home to the few things that
//! need several crates: [`backends`] by name, the tokenizer of a model ([`text::tokenizer`]), the memory that a model
//! takes ([`plan`]), and a model to try things on ([`demo`]).
//!
//! ```
//! use tranship::prelude::*;
//! use tranship::{backends, demo, session::argmax};
//!
//! # fn main() -> Result<(), tranship::Error> {
//! let folder = demo::unpack()?;
//! let model = std::sync::Arc::new(Model::open(folder.path())?);
//! let backend = backends::open("reference", &backends::BackendOptions::default())?;
//! let policy = ComputeCtx::parity(Device::of("reference"));
//! let open = || Session::open(model.clone(), backend.clone(), policy.clone(), Options::new(64));
//!
//! // Prefill in one session …
//! let mut here = open()?;
//! let mut sequence = here.sequence()?;
//! let logits = here.extend(&mut sequence, &[72, 101, 108], Outputs::Last)?;
//! let bytes = here.suspend(&sequence, Some(argmax(&logits)))?.to_bytes()?;
//!
//! // … and decode in another, which knows nothing but the bytes.
//! let mut there = open()?;
//! let handoff = Handoff::from_bytes(bytes)?;
//! let mut resumed = there.resume(&handoff, &Expect::default())?;
//! let next = handoff.next_token().unwrap_or(0);
//! let resumed = there.extend(&mut resumed, &[next], Outputs::Last)?;
//! assert_eq!(resumed, here.extend(&mut sequence, &[next], Outputs::Last)?); // bit for bit
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod backends;
pub mod demo;
mod error;
pub mod plan;
pub mod text;

pub use error::Error;

pub use tranship_backend as backend;
pub use tranship_cpu as cpu;
pub use tranship_ctx as ctx;
pub use tranship_dtype as dtype;
pub use tranship_handoff as handoff;
pub use tranship_model as model;
pub use tranship_program as program;
pub use tranship_residency as residency;
pub use tranship_session as session;
pub use tranship_tensor as tensor;
pub use tranship_weights as weights;

/// The types that most programs want.
pub mod prelude {
    pub use crate::Error;
    pub use crate::backends::BackendOptions;
    pub use tranship_backend::{Backend, Caps, Outputs, Reference};
    pub use tranship_ctx::{ComputeCtx, Device, Typed};
    pub use tranship_dtype::{DType, Encoding};
    pub use tranship_handoff::{Contract, Conversion, Expect, Handoff};
    pub use tranship_model::{Cut, ModelSpec};
    pub use tranship_program::{Graph, Program};
    pub use tranship_residency::{Demand, Plan, Pool, Residency};
    pub use tranship_session::{Model, Options, Rows, Sequence, Session};
    pub use tranship_tensor::Tensor;
    pub use tranship_text::{ChatTemplate, Message, Sampler, SamplerOptions, Specials, Tokenizer};
    pub use tranship_weights::Checkpoint;
}
