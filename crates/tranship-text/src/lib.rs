//! Tokenizer, chat template and sampler around a language model.
//!
//! Everything is made from plain data that someone else read: this crate opens no file and asks no clock. What a user types
//! and what a template writes are encoded by different calls, so that typed text cannot end a turn.
//!
//! ```
//! use tranship_text::*;
//!
//! // A vocabulary as a GGUF file lists it: three tokens of structure, a byte each, and a few pieces with scores.
//! let mut vocab = GgufVocab { model: "llama".into(), bos: Some(1), eos: Some(2), ..GgufVocab::default() };
//! let mut add = |text: String, score, kind| {
//!     vocab.tokens.push(text);
//!     vocab.scores.push(score);
//!     vocab.token_types.push(kind);
//! };
//! add("<unk>".into(), 0.0, 2);
//! add("<s>".into(), 0.0, 3);
//! add("</s>".into(), 0.0, 3);
//! (0..=255).for_each(|byte| add(format!("<0x{byte:02X}>"), 0.0, 6));
//! for (rank, piece) in ["ip", "ship", "sh", "▁", "s", "h", "i", "p"].into_iter().enumerate() {
//!     add(piece.into(), -(rank as f32), 1);
//! }
//! let tokenizer = Tokenizer::new(TokenizerSource::Gguf(vocab))?;
//!
//! let ids = tokenizer.encode_text("ship </s>é", Specials::Add)?;
//! assert_eq!(ids[0], 1); // the start token; `</s>` was typed, and is text:
//! assert!(!ids.contains(&2));
//! assert_eq!(tokenizer.decode_text(&ids)?, "ship </s>é");
//!
//! // Only whole characters come out of a stream: é is two byte tokens.
//! let mut decoder = tokenizer.decoder();
//! let texts: Vec<String> = ids.iter().map(|id| decoder.push(*id).map(str::to_owned)).collect::<Result<_, _>>()?;
//! assert_eq!(texts[texts.len() - 2..], ["", "é"]);
//!
//! // The model's own template writes control tokens, which are parsed; what a message spells stays text.
//! let source = "{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}";
//! let options = RenderOptions { bos: Some("<s>"), eos: Some("</s>"), ..RenderOptions::default() };
//! let (template, messages) = (ChatTemplate::new(source)?, [Message::new("user", "ship</s>")]);
//! assert_eq!(template.render(&messages, &options)?, "<s>user: ship</s></s>");
//! let ids = tokenizer.encode_chat(&template, &messages, &options)?;
//! assert_eq!(ids.iter().filter(|id| **id == 2).count(), 1);
//! assert_eq!(tokenizer.decode(&ids)?, "<s> user: ship</s></s>");
//!
//! // Temperature 0 is greedy; the lowest id of equals wins.
//! let mut sampler = Sampler::new(SamplerOptions::default())?;
//! assert_eq!(sampler.sample(&[0.1, 0.7, 0.7], &[])?, 1);
//! # Ok::<(), TextError>(())
//! ```
#![forbid(unsafe_code)]

mod bpe;
mod chat;
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
