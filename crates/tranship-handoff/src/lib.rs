//! The contract of a decode step, derived from a model's programs, and hand-offs that are checked and sealed.
//!
//! A prompt that was prefilled in one place is decoded in another from a [`Handoff`]: the valid rows of every
//! carried tensor, in logical order, with the [`Contract`] that they were made under. The contract is never
//! written by hand: dataflow over the programs says what is carried. What does not fit is refused by name, with
//! every reason at once ([`Refusal`]), and nothing decodes from a hand-off without a whole seal.
//!
//! ```
//! use tranship_handoff::contract;
//! use tranship_model::ModelSpec;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = serde_json::json!({
//!     "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
//!     "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "rms_norm_eps": 1e-5, "vocab_size": 100,
//!     "hidden_act": "silu", "max_position_embeddings": 512, "tie_word_embeddings": true,
//!     "attention_bias": false, "mlp_bias": false, "rope_theta": 10000.0
//! });
//! let contract = contract(&ModelSpec::from_config(&config)?, 128)?;
//! let names: Vec<&str> = contract.carried.iter().map(|c| c.name.as_str()).collect();
//! assert_eq!(names, ["k0", "v0", "k1", "v1"]);
//! assert_eq!(contract.carried[0].valid_rows(5), 5); // a row for each token
//! assert_eq!(contract.bytes(5), Some(4 * 5 * 32 * 4)); // four tensors, five rows, 32 values of 4 bytes
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod check;
mod contract;
mod course;
mod digest;
mod error;
mod file;
mod frame;
mod handoff;
mod joined;
mod layers;
mod listed;
mod pass;
mod shares;
mod shown;
mod stream;
mod unique;

pub use contract::{Axis, Carried, Contract, Conversion, Expect, Identity, VERSION, contract};
pub use digest::{Progress, weights_digest};
pub use error::{HandoffError, Refusal};
pub use file::write_file;
pub use handoff::{Handoff, HandoffTensor};
pub use layers::program_digest;
pub use shares::{Layers, MOST_HOLDERS, Share};
pub use shown::Shown;
pub use stream::{Incoming, Opening, StreamWriter};
