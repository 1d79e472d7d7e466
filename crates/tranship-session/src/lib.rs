//! Running a model: its weights bound to a backend, steps over batches of sequences, and sequences that are
//! suspended here and resumed elsewhere.
//!
//! A [`Model`] is a checkpoint with its specification. A [`Session`] compiles the model's programs once under one
//! policy, on one backend or, cut between layers, in parts on several ([`Session::split`]). A [`Sequence`] is one text in progress; its state leaves as a hand-off
//! ([`Session::suspend`]) and comes back in this or another session ([`Session::resume`]).
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//! use tranship_backend::{Outputs, Reference};
//! use tranship_ctx::{ComputeCtx, Device};
//! use tranship_handoff::Expect;
//! use tranship_session::{Model, Options, Session};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Arc::new(Model::open(Path::new("model.gguf"))?);
//! let policy = ComputeCtx::parity(Device::of("reference"));
//! let open = || Session::open(model.clone(), Arc::new(Reference::new()), policy.clone(), Options::new(512));
//!
//! let (mut here, mut there) = (open()?, open()?);
//! let mut sequence = here.sequence()?;
//! let logits = here.extend(&mut sequence, &[504, 3575, 282], Outputs::Last)?;
//! let handoff = here.suspend(&sequence, Some(tranship_session::argmax(&logits)))?;
//!
//! let mut resumed = there.resume(&handoff, &Expect::default())?;
//! let next = handoff.next_token().unwrap_or(0);
//! there.extend(&mut resumed, &[next], Outputs::Last)?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod batches;
mod chains;
mod error;
mod generate;
mod model;
mod parts;
mod prefill;
mod sequence;
mod session;
mod sources;
mod streaming;
mod transfer;

pub use chains::{Phase, Section, chain};
pub use error::SessionError;
pub use generate::{Next, argmax};
pub use model::{Bound, Model};
pub use parts::Part;
pub use prefill::Finished;
pub use sequence::{Rows, Sequence};
pub use session::{Options, Session};
