//! The bytes that each token stands for, worked out once, so that decoding is a copy.
//!
//! Three spellings exist: printable characters that each stand for one byte (byte-level BPE), `▁` for a space and `<0x0A>`
//! for a byte (SentencePiece), and plain text (tokens added by hand).

use std::collections::HashMap;

use serde_json::Value;

use crate::TextError;

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No token has this id.
    Absent,
    /// Text.
    Text,
    /// Structure: starts, ends, roles. Never comes from plain text, and is no part of an answer.
    Control,
}

/// How the tokens of a vocabulary spell bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Spelling {
    byte_level: bool,
    replace: Vec<(String, String)>,
    byte_tokens: bool,
    /// Spaces taken off the front of a whole text.
    strip: usize,
}

impl Spelling {
    /// Printable characters that each stand for a byte.
    pub fn byte_level() -> Self {
        Spelling { byte_level: true, ..Spelling::default() }
    }

    /// `▁` for a space, `<0x0A>` for a byte; `strip` spaces come off the front of a text.
    pub fn sentence(strip: usize) -> Self {
        Spelling {
            replace: vec![("▁".into(), " ".into())], byte_tokens: true, strip, ..Spelling::default()
        }
    }

    /// Reads the `decoder` of a `tokenizer.json`.
    pub fn from_decoder(decoder: &Value) -> Result<Self, TextError> {
        let mut spelling = Spelling::default();
        spelling.take(decoder)?;
        Ok(spelling)
    }

    fn take(&mut self, part: &Value) -> Result<(), TextError> {
        let refuse = || TextError::UnknownDecoder { found: part.to_string() };
        match part["type"].as_str().unwrap_or_default() {
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_tokens = true,
            "Fuse" => {}
            "Metaspace" => {
                let mark = part["replacement"].as_str().ok_or_else(refuse)?;
                self.replace.push((mark.to_owned(), " ".to_owned()));
                self.strip = usize::from(part["prepend_scheme"].as_str() != Some("never"));
            }
            "Replace" => {
                let from = part["pattern"]["String"].as_str().filter(|s| !s.is_empty()).ok_or_else(refuse)?;
                let to = part["content"].as_str().ok_or_else(refuse)?;
                self.replace.push((from.to_owned(), to.to_owned()));
            }
            "Strip" if part["content"] == " " && part["stop"] == 0 => {
                self.strip = part["start"].as_u64().ok_or_else(refuse)? as usize;
            }
            "Sequence" => {
                for part in part["decoders"].as_array().ok_or_else(refuse)? {
                    self.take(part)?;
                }
            }
            _ => return Err(refuse()),
        }
        Ok(())
    }

    fn bytes_of(&self, token: &str, byte_of: &HashMap<char, u8>, out: &mut Vec<u8>) {
        if self.byte_tokens
            && let Some(byte) = byte_token(token)
        {
            return out.push(byte);
        }
        if self.byte_level {
            let start = out.len();
            for c in token.chars() {
                match byte_of.get(&c) {
                    Some(byte) => out.push(*byte),
                    // Not a byte-level spelling at all: the token is its own text.
                    None => {
                        out.truncate(start);
                        return out.extend_from_slice(token.as_bytes());
                    }
                }
            }
            return;
        }
        let mut text = token.to_owned();
        for (from, to) in &self.replace {
            text = text.replace(from, to);
        }
        out.extend_from_slice(text.as_bytes());
    }
}

/// One token as the vocabulary gives it.
pub(crate) struct Entry<'a> {
    pub text: &'a str,
    pub kind: Kind,
    /// The text is the token's bytes as they are.
    pub plain: bool,
}

/// The bytes and kind of every id.
#[derive(Debug, Clone)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    kinds: Vec<Kind>,
    /// Spaces taken off the front of a whole text.
    pub strip: usize,
}

impl Pieces {
    /// `entries` in order of id; `None` where no token has the id.
    pub fn new<'a>(entries: impl Iterator<Item = Option<Entry<'a>>>, spelling: &Spelling) -> Self {
        let byte_of = byte_alphabet();
        let mut pieces = Pieces { bytes: vec![], ends: vec![], kinds: vec![], strip: spelling.strip };
        for entry in entries {
            match &entry {
                None => {}
                Some(e) if e.plain => pieces.bytes.extend_from_slice(e.text.as_bytes()),
                Some(e) => spelling.bytes_of(e.text, &byte_of, &mut pieces.bytes),
            }
            pieces.ends.push(pieces.bytes.len());
            pieces.kinds.push(entry.map_or(Kind::Absent, |e| e.kind));
        }
        pieces
    }

    /// Number of ids, gaps included.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    pub fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Absent)
    }

    pub fn bytes(&self, id: u32) -> Result<&[u8], TextError> {
        match self.kind(id) {
            Kind::Absent => Err(TextError::UnknownToken { id, vocab_size: self.len() }),
            _ => {
                let i = id as usize;
                let start = if i == 0 { 0 } else { self.ends[i - 1] };
                Ok(&self.bytes[start..self.ends[i]])
            }
        }
    }
}

/// `<0x0A>` → 10.
pub(crate) fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// The character that stands for each byte: printable Latin-1 for itself, the others from U+0100 on, in order.
fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    (0..=255)
        .map(|b: u8| {
            let code = if printable(b) {
                u32::from(b)
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(code).expect("below the surrogates"), b)
        })
        .collect()
}
