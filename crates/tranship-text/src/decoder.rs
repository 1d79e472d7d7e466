//! Token ids to text, one at a time: only whole characters come out.

use crate::TextError;
use crate::pieces::{Kind, Pieces};

/// Turns a stream of ids into text, holding back a character until its last byte is there.
///
/// What it gives, joined and finished, is what [`Tokenizer::decode_text`](crate::Tokenizer::decode_text) gives for the same
/// ids: control tokens are left out and bytes that are no UTF-8 become U+FFFD.
#[derive(Debug, Clone)]
pub struct Decoder<'t> {
    pieces: &'t Pieces,
    controls: Controls,
    pending: Vec<u8>,
    out: String,
    strip: usize,
}

/// Whether control tokens are part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controls {
    Hide,
    Show,
}

impl<'t> Decoder<'t> {
    pub(crate) fn new(pieces: &'t Pieces, controls: Controls) -> Self {
        Decoder { pieces, controls, pending: Vec::new(), out: String::new(), strip: pieces.strip }
    }

    /// Takes the next id and returns the characters it completes, perhaps none.
    ///
    /// # Errors
    /// An id that is not in the vocabulary; the stream goes on as if it had not been there.
    pub fn push(&mut self, id: u32) -> Result<&str, TextError> {
        let bytes = self.pieces.bytes(id)?;
        self.out.clear();
        if self.controls == Controls::Show || self.pieces.kind(id) == Kind::Text {
            let spaces = bytes.iter().take(self.strip).take_while(|b| **b == b' ').count();
            self.strip = if spaces == bytes.len() { self.strip - spaces } else { 0 };
            self.pending.extend_from_slice(&bytes[spaces..]);
            self.drain();
        }
        Ok(&self.out)
    }

    /// Ends the text and returns what is left: U+FFFD if a character was begun and never completed, else nothing.
    pub fn finish(&mut self) -> &str {
        self.out.clear();
        if !self.pending.is_empty() {
            self.out.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
        &self.out
    }

    /// Moves every complete character from `pending` to `out`; wrong bytes go as U+FFFD.
    fn drain(&mut self) {
        let mut done = 0;
        while done < self.pending.len() {
            let rest = &self.pending[done..];
            let (good, bad) = match std::str::from_utf8(rest) {
                Ok(_) => (rest.len(), Some(0)),
                Err(e) => (e.valid_up_to(), e.error_len()),
            };
            self.out.push_str(std::str::from_utf8(&rest[..good]).unwrap_or_default());
            done += good;
            match bad {
                Some(0) => {}
                Some(length) => {
                    self.out.push(char::REPLACEMENT_CHARACTER);
                    done += length;
                }
                // The start of a character: the next token may complete it.
                None => break,
            }
        }
        self.pending.drain(..done);
    }
}
