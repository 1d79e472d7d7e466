//! Text to token ids and back.

use crate::bpe::{Bpe, Mode};
use crate::decoder::{Controls, Decoder};
use crate::pieces::{Kind, Pieces};
use crate::sentence::Sentence;
use crate::{TextError, TokenizerSource, gguf, json};

/// Whether the vocabulary's own start and end tokens are put around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// As the file says: often a start token, rarely an end token, sometimes neither.
    Add,
    /// Neither: for text that goes on, and for a rendered chat template, which writes its own.
    None,
}

/// A vocabulary with its rules, from [`TokenizerSource`].
#[derive(Debug)]
pub struct Tokenizer {
    parts: Parts,
    end_ids: Vec<u32>,
}

/// What the two kinds of source come down to.
#[derive(Debug)]
pub(crate) struct Parts {
    pub engine: Engine,
    pub pieces: Pieces,
    pub ids: SpecialIds,
    /// What [`Specials::Add`] puts before a text.
    pub prefix: Vec<u32>,
    /// What [`Specials::Add`] puts after a text.
    pub suffix: Vec<u32>,
    /// The end tokens that the files declare.
    pub ends: Vec<u32>,
    pub chat_template: Option<String>,
}

#[derive(Debug)]
pub(crate) enum Engine {
    Bpe(Box<Bpe>),
    Sentence(Box<Sentence>),
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpecialIds {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
}

/// Control tokens that end an answer in the model families that have them, whatever the files say of their end token.
const END_NAMES: [&str; 13] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "</s>",
    "<eos>",
    "<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
];

/// Ends an answer too, unless the vocabulary has `<|return|>`: then it only ends a message within one.
const END_OF_MESSAGE: &str = "<|end|>";

impl Tokenizer {
    /// Builds the tokenizer.
    ///
    /// # Errors
    /// Files that do not parse, kinds of vocabulary, splitting or decoding that this crate does not have (each named),
    /// lists of unequal length, repeated tokens, merges of unknown tokens, special ids outside the vocabulary.
    pub fn new(source: TokenizerSource<'_>) -> Result<Self, TextError> {
        let mut parts = match source {
            TokenizerSource::Gguf(vocab) => gguf::parts(vocab)?,
            TokenizerSource::HfJson {
                tokenizer_json,
                tokenizer_config,
                generation_config,
                chat_template,
            } => json::parts(tokenizer_json, tokenizer_config, generation_config, chat_template)?,
        };
        let vocab_size = parts.pieces.len();
        let ids = parts.ids;
        for (role, id) in [("bos", ids.bos), ("eos", ids.eos), ("unk", ids.unk), ("pad", ids.pad)]
            .into_iter()
            .chain(parts.ends.iter().map(|id| ("end", Some(*id))))
        {
            if let Some(id) = id.filter(|id| *id as usize >= vocab_size) {
                return Err(TextError::SpecialId { role, id, vocab_size });
            }
        }
        let mut end_ids = std::mem::take(&mut parts.ends);
        end_ids.extend(ids.eos);
        let mut tokenizer = Tokenizer { parts, end_ids };
        tokenizer.add_ends_by_name();
        Ok(tokenizer)
    }

    fn add_ends_by_name(&mut self) {
        let returns = self.token_id("<|return|>").is_some();
        let names = END_NAMES.into_iter().chain((!returns).then_some(END_OF_MESSAGE));
        let found: Vec<u32> =
            names.filter_map(|name| self.token_id(name)).filter(|id| self.is_control(*id)).collect();
        self.end_ids.extend(found);
        self.end_ids.sort_unstable();
        self.end_ids.dedup();
    }

    /// The ids of plain text: a control token written out in it is text like any other, so that what a user types cannot
    /// end a turn or open another role.
    ///
    /// Control tokens are those that the file calls special or control, and any added token spelled `<|…|>`.
    ///
    /// # Errors
    /// [`TextError::Encode`] from the library; [`TextError::ControlInText`] where a vocabulary makes a control token out of
    /// plain text all the same.
    pub fn encode_text(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TextError> {
        let body = self.encode(text, Mode::Text)?;
        let stray = body.iter().find(|id| self.is_control(**id) && Some(**id) != self.parts.ids.unk);
        if let Some(id) = stray {
            return Err(TextError::ControlInText {
                token: self.token_text(*id).unwrap_or_default(),
                id: *id,
            });
        }
        Ok(self.surround(body, specials))
    }

    /// The ids of a rendered chat template: a control token written out in it is that token, whoever wrote it.
    /// [`Tokenizer::encode_chat`] tells the template's from those in a message.
    ///
    /// A template writes its own start token; give [`Specials::None`] for it.
    ///
    /// # Errors
    /// [`TextError::Encode`] from the library.
    pub fn encode_template(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TextError> {
        Ok(self.surround(self.encode(text, Mode::Template)?, specials))
    }

    fn encode(&self, text: &str, mode: Mode) -> Result<Vec<u32>, TextError> {
        match &self.parts.engine {
            Engine::Bpe(bpe) => bpe.encode(text, mode, Specials::None),
            Engine::Sentence(sentence) => Ok(sentence.encode(text, mode)),
        }
    }

    fn surround(&self, body: Vec<u32>, specials: Specials) -> Vec<u32> {
        match specials {
            Specials::None => body,
            Specials::Add => {
                [&self.parts.prefix, &body, &self.parts.suffix].into_iter().flatten().copied().collect()
            }
        }
    }

    /// The text of `ids`, control tokens written out. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        self.decode_all(ids, Controls::Show)
    }

    /// The text of `ids` as a reader should see it: control tokens left out.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn decode_text(&self, ids: &[u32]) -> Result<String, TextError> {
        self.decode_all(ids, Controls::Hide)
    }

    fn decode_all(&self, ids: &[u32], controls: Controls) -> Result<String, TextError> {
        let mut decoder = Decoder::new(&self.parts.pieces, controls);
        let mut text = String::new();
        for id in ids {
            text.push_str(decoder.push(*id)?);
        }
        text.push_str(decoder.finish());
        Ok(text)
    }

    /// A stream from ids to text that begins a text.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder::new(&self.parts.pieces, Controls::Hide)
    }

    /// A stream that goes on after `context`, such as the prompt: a first word keeps its space, and a character begun in
    /// the context is completed.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn decoder_after(&self, context: &[u32]) -> Result<Decoder<'_>, TextError> {
        let mut decoder = self.decoder();
        for id in context {
            decoder.push(*id)?;
        }
        Ok(decoder)
    }

    /// One more than the highest id. A model's head may be wider: its last rows are then padding.
    pub fn vocab_size(&self) -> usize {
        self.parts.pieces.len()
    }

    /// The token as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`, `<|im_end|>`).
    pub fn token_text(&self, id: u32) -> Option<String> {
        match &self.parts.engine {
            Engine::Bpe(bpe) => bpe.inner.id_to_token(id),
            Engine::Sentence(sentence) => sentence.texts.get(id as usize).cloned(),
        }
    }

    /// The bytes that the token stands for; a part of a character is possible.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TextError> {
        self.parts.pieces.bytes(id)
    }

    /// The id of a token as the vocabulary spells it.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        match &self.parts.engine {
            Engine::Bpe(bpe) => bpe.inner.token_to_id(text),
            Engine::Sentence(sentence) => sentence.texts.iter().position(|t| t == text).map(|i| i as u32),
        }
    }

    /// Whether the token is structure and no part of the text.
    pub fn is_control(&self, id: u32) -> bool {
        self.parts.pieces.kind(id) == Kind::Control
    }

    /// The token that begins a sequence, where the vocabulary has one. Whether it is *put* there is for [`Specials::Add`].
    pub fn bos(&self) -> Option<u32> {
        self.parts.ids.bos
    }

    /// The declared end token.
    pub fn eos(&self) -> Option<u32> {
        self.parts.ids.eos
    }

    /// The padding token.
    pub fn pad(&self) -> Option<u32> {
        self.parts.ids.pad
    }

    /// Every id that ends an answer, ascending: the declared end token, those of `generation_config.json`, the end of a
    /// turn, and control tokens known by name (`<|im_end|>`, `<|eot_id|>`, `<|endoftext|>`, …).
    pub fn eos_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// The source of the model's own chat template, for [`ChatTemplate::new`](crate::ChatTemplate::new).
    pub fn chat_template(&self) -> Option<&str> {
        self.parts.chat_template.as_deref()
    }
}
