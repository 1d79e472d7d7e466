//! Tokenizer, chat template and sampler around a language model.
#![forbid(unsafe_code)]

mod bpe;
mod date;
mod decoder;
mod error;
mod gguf;
mod json;
mod pieces;
mod pre;
mod python;
mod sampler;
mod sentence;
mod source;
mod template;
mod tokenizer;

pub use date::Date;
pub use decoder::Decoder;
pub use error::TextError;
pub use sampler::{Candidate, Sampler, SamplerOptions};
pub use source::{GgufVocab, TokenizerSource};
pub use template::{ChatTemplate, GenerationPrompt, Message, RenderOptions};
pub use tokenizer::{Specials, Tokenizer};
