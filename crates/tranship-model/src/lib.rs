//! What a language model is, as data, and the author of its programs.
//!
//! A [`ModelSpec`] comes from a Hugging Face `config.json` or from GGUF metadata. From it one short program is
//! written for each [`Cut`]: the embedding, each layer in its prefill and decode form, the head. Nothing else about
//! the model is needed to plan it, to derive what its decode step carries, or to run it.
//!
//! ```
//! use tranship_model::{Cut, ModelSpec};
//! use tranship_program::same_state;
//!
//! let config = serde_json::json!({
//!     "model_type": "llama", "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536,
//!     "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
//!     "rope_theta": 100000, "vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": true,
//! });
//! let spec = ModelSpec::from_config(&config)?;
//! assert_eq!((spec.hidden, spec.layers.len()), (576, 30));
//!
//! let prefill = spec.program(Cut::PrefillLayer { layer: 3, ctx: 2048 })?.lift()?;
//! let decode = spec.program(Cut::DecodeLayer { layer: 3, ctx: 2048 })?.lift()?;
//! same_state(&prefill, &decode)?;
//! let carried: Vec<_> = decode.roles().carried().map(|c| c.name.as_str()).collect();
//! assert_eq!(carried, ["k3", "v3"]); // derived from the text: nothing lists them
//!
//! let mut odd = config.clone();
//! odd["num_key_value_heads"] = 4.into();
//! let error = ModelSpec::from_config(&odd).unwrap_err();
//! assert_eq!(error.to_string(), "`num_key_value_heads`: wanted a divisor of the 9 heads, found 4");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where things are
//!
//! * A *family* (`families/`) is a mapping: from the keys of a format to a spec, and nothing more. A new one is a
//!   function there, by its kin, and a line in the table of `families/mod.rs`.
//! * A *kind* of layer part ([`Mixer`], [`Ffn`]) is what programs are written from: one author function each
//!   (`author/`), shared by every family that has it. No author function knows a family.
//! * [`Names`] says what a checkpoint calls each [`Part`]; which tensors a model needs is read off its programs
//!   ([`ModelSpec::required`]), so that no list can go stale.
//! * A program's weight names a [`Source`]: a tensor, rows of one, a bank of experts' tensors. [`Source::find`] looks it
//!   up in a checkpoint, and copies nothing.
//!
//! # The identity of programs
//!
//! [`ModelSpec::canonical_programs`] is the text of a model's programs by which two are the same. It holds no
//! tensor names, no policy and no context length, so the same model under Hugging Face's names and under others has
//! one identity, and two ends may differ in `ctx`. It does hold the style of RoPE: GGUF files of the Llama
//! architecture have the rows of their query and key matrices permuted, and so the elements of the keys they leave in
//! a cache. A cache filled from one form is nothing to the other, and the digest keeps them apart.
//!
//! Frequencies may be other ones in long contexts (LongRoPE). Which of them a session has is chosen by its context when
//! it is opened, so that all rows of a cache are of one kind; the text holds both, and
//! [`ModelSpec::identity_note`] says which of them a context has. The digest in a hand-off is of the programs as an end's
//! context has them, so that ends on the two sides of that length refuse each other.
#![forbid(unsafe_code)]

mod author;
mod check;
mod error;
mod families;
mod found;
mod names;
mod source;
mod spec;

pub use author::{Cut, MAX_CTX};
pub use error::{ModelError, TensorFault};
pub use families::{MAX_LAYERS, MAX_VOCAB, MAX_WIDTH};
pub use found::{Found, Piece};
pub use names::{Names, Part};
pub use source::{Base, Name, Pick, Source, SourceError};
pub use spec::{
    Activation, Attention, AttentionBiases, CompressedAttention, Compressor, DecayedLinearAttention,
    DeltaDecay, DeltaGate, DeltaProjections, Experts, Ffn, Gated, GatedBiases, GatedDeltaNet,
    HyperConnections, Indexer, LatentAttention, LayerKind, LayerSpec, Mixer, ModelSpec, QkNorm, Residual,
    RopeSpec, Routing, SharedExpert, ShortConv, StateSpace,
};
