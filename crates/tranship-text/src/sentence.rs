//! SentencePiece BPE from a GGUF vocabulary: pieces with scores, spaces as `▁`, and a token for every byte.
//!
//! Text starts as characters. Of all neighbours whose join is a piece, the pair with the highest score is joined, the
//! leftmost of equals first, until none is left; a character that is no piece becomes its bytes.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use crate::bpe::{self, Mode};
use crate::gguf;
use crate::pieces::{Kind, byte_token};
use crate::{GgufVocab, TextError};

/// A vocabulary with scores.
#[derive(Debug)]
pub(crate) struct Sentence {
    /// The pieces that joins may make.
    pieces: HashMap<String, u32>,
    scores: Vec<f32>,
    /// The text of every id.
    pub texts: Vec<String>,
    bytes: [u32; 256],
    /// Tokens that text is cut at, by first byte, longest first.
    markers: HashMap<u8, Vec<Marker>>,
    space_prefix: bool,
}

#[derive(Debug)]
struct Marker {
    text: String,
    id: u32,
    control: bool,
}

/// A run of text that is one piece so far, in a list linked both ways.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    prev: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

/// A join that was possible when it was pushed; `len` tells whether both sides are still what they were.
struct Join {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Join {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Join {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Join {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Join {}

impl Sentence {
    pub fn new(vocab: &GgufVocab) -> Result<Self, TextError> {
        let count = vocab.tokens.len();
        if vocab.scores.len() != count {
            return Err(TextError::ListLength { list: "scores", wanted: count, found: vocab.scores.len() });
        }
        let mut pieces = HashMap::with_capacity(count);
        let mut markers: HashMap<u8, Vec<Marker>> = HashMap::new();
        let mut bytes = [None; 256];
        for (id, text) in (0u32..).zip(&vocab.tokens) {
            if let Some(byte) = byte_token(text) {
                bytes[usize::from(byte)] = Some(id);
            } else if gguf::type_of(vocab, id) == gguf::NORMAL {
                pieces.insert(text.clone(), id);
            } else if let (Some(added), Some(first)) = (gguf::added(vocab, id, text), text.bytes().next()) {
                let control = bpe::kind_of(&added) == Kind::Control;
                markers.entry(first).or_default().push(Marker { text: text.clone(), id, control });
            }
        }
        for list in markers.values_mut() {
            list.sort_by_key(|m| std::cmp::Reverse(m.text.len()));
        }
        let mut byte_ids = [0; 256];
        for (b, id) in bytes.iter().enumerate() {
            byte_ids[b] = id.ok_or_else(|| TextError::MissingByte { wanted: format!("<0x{b:02X}>") })?;
        }
        Ok(Sentence {
            pieces,
            scores: vocab.scores.clone(),
            texts: vocab.tokens.clone(),
            bytes: byte_ids,
            markers,
            space_prefix: vocab.add_space_prefix.unwrap_or(true),
        })
    }

    /// The ids of `text`; the space before it and after every marker is this vocabulary's own.
    pub fn encode(&self, text: &str, mode: Mode) -> Vec<u32> {
        let mut out = Vec::new();
        let mut from = 0;
        let mut at = 0;
        while at < text.len() {
            match self.marker(&text[at..], mode) {
                Some(marker) => {
                    self.fragment(&text[from..at], &mut out);
                    out.push(marker.id);
                    at += marker.text.len();
                    from = at;
                }
                None => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        self.fragment(&text[from..], &mut out);
        out
    }

    fn marker(&self, text: &str, mode: Mode) -> Option<&Marker> {
        let list = self.markers.get(text.as_bytes().first()?)?;
        list.iter().find(|m| (mode == Mode::Template || !m.control) && text.starts_with(&m.text))
    }

    fn fragment(&self, text: &str, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let prefix = if self.space_prefix { "▁" } else { "" };
        let text = format!("{prefix}{}", text.replace(' ', "▁"));
        let mut symbols = symbols_of(&text);
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.propose(&text, &symbols, right - 1, right, &mut queue);
        }
        while let Some(join) = queue.pop() {
            let (left, right) = (symbols[join.left], symbols[join.right]);
            // A side that has been joined since has no length or another one.
            if left.len == 0 || right.len == 0 || left.len + right.len != join.len {
                continue;
            }
            symbols[join.left].len = join.len;
            symbols[join.left].next = right.next;
            symbols[join.right].len = 0;
            if right.next != NONE {
                symbols[right.next].prev = join.left;
                self.propose(&text, &symbols, join.left, right.next, &mut queue);
            }
            if left.prev != NONE {
                self.propose(&text, &symbols, left.prev, join.left, &mut queue);
            }
        }
        for symbol in symbols.iter().filter(|s| s.len > 0) {
            let piece = &text[symbol.start..symbol.start + symbol.len];
            match self.pieces.get(piece) {
                Some(id) => out.push(*id),
                None => out.extend(piece.bytes().map(|b| self.bytes[usize::from(b)])),
            }
        }
    }

    fn propose(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: usize,
        right: usize,
        queue: &mut BinaryHeap<Join>,
    ) {
        let start = symbols[left].start;
        let len = symbols[left].len + symbols[right].len;
        if let Some(id) = self.pieces.get(&text[start..start + len]) {
            queue.push(Join { score: self.scores[*id as usize], left, right, len });
        }
    }
}

fn symbols_of(text: &str) -> Vec<Symbol> {
    let count = text.chars().count();
    let link = |i: Option<usize>| i.filter(|i| *i < count).unwrap_or(NONE);
    text.char_indices()
        .enumerate()
        .map(|(i, (start, c))| Symbol {
            start,
            len: c.len_utf8(),
            prev: link(i.checked_sub(1)),
            next: link(Some(i + 1)),
        })
        .collect()
}
