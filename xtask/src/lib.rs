//! Automation of the workspace: what `cargo xtask` does, as a library, so that its rules are tests too.
//!
//! | command | what it does | module |
//! |---|---|---|
//! | `tidy` | holds crates and files to the house rules | [`tidy`] |
//! | `parity` | compares every policy, backend, split and hand-off with the all-F32 reference | [`parity`] |
//! | `fixtures` | checks the fixtures, and makes them anew | [`fixtures`] |
//! | `interop` | hands over between this program and `transformers`, both ways | [`interop`] |
//! | `fetch NAME` | fetches a real model into an ignored folder | [`fetch`] |
//! | `kernels` | lists kernel sources | [`kernels`] |
//! | `state` | derives what sequences of released models carry | [`state`] |
//! | `bench` | measures speed side by side with llama.cpp | [`mod@bench`] |
//!
//! ```
//! // The layer table is data: a row uses rows above it.
//! let session = xtask::tidy::LAYERS.iter().find(|l| l.name == "tranship-session").unwrap();
//! assert!(session.uses.contains(&"tranship-backend"));
//! assert!(!session.uses.contains(&"tranship-cpu")); // no backend by name
//! ```
#![forbid(unsafe_code)]

pub mod backends;
pub mod bench;
mod error;
pub mod fetch;
pub mod fixtures;
pub mod interop;
pub mod kernels;
pub mod parity;
pub mod state;
pub mod tidy;
mod tool;

pub use error::XtaskError;
