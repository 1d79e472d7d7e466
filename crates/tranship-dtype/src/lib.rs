//! Element types and block encodings of language models, with exact sizes and a total join.
//!
//! Dtypes form a join-semilattice: any two either have exactly one smallest type that holds all values of both,
//! or a typed [`NoJoin`]. Nothing here ever narrows.
//!
//! ```
//! use tranship_dtype::{DType, join};
//!
//! assert_eq!(join(DType::F16, DType::BF16), Ok(DType::F32));
//! assert_eq!(join(DType::Q4_K, DType::F32), Ok(DType::F32));
//! assert!(join(DType::I64, DType::F32).is_err()); // an index is not an activation
//! assert_eq!(DType::Q4_0.row_bytes(64), Some(36)); // two blocks of 18 bytes
//! assert_eq!(DType::Q4_0.bits(), (9, 2)); // four and a half bits for each element
//! ```
#![forbid(unsafe_code)]

mod dtype;
mod encoding;
mod join;

pub use dtype::{Class, DType, UnknownDType};
pub use encoding::Encoding;
pub use join::{NoJoin, join};
