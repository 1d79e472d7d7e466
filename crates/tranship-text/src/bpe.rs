//! The `tokenizers` library behind this crate's rule: plain text never becomes a control token.

use tokenizers::tokenizer::pre_tokenizer::PreTokenizedString;
use tokenizers::{AddedToken, AddedVocabulary, Model, OffsetType, PreTokenizer, Tokenizer};

use crate::pieces::Kind;
use crate::{Specials, TextError};

/// Whether control tokens written out in the input are those tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// They are text like any other.
    Text,
    /// They are themselves.
    Template,
}

/// A tokenizer with two views of its added tokens.
pub(crate) struct Bpe {
    pub inner: Tokenizer,
    /// The added tokens that plain text is cut at: all but the control tokens.
    text: AddedVocabulary,
}

impl std::fmt::Debug for Bpe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bpe").field("text", &self.text).finish_non_exhaustive()
    }
}

/// An added token is control if the file says special, or if it is spelled `<|…|>`, which only control tokens are:
/// some files forget to say it.
pub(crate) fn kind_of(token: &AddedToken) -> Kind {
    let spelled = token.content.starts_with("<|") && token.content.ends_with("|>");
    if token.special || spelled { Kind::Control } else { Kind::Text }
}

impl Bpe {
    /// Takes over a tokenizer whose added tokens are complete.
    pub fn new(mut inner: Tokenizer) -> Result<Self, TextError> {
        let refuse = |e: tokenizers::Error| TextError::TokenizerJson { message: e.to_string() };
        // Cutting to a length and padding are for batches of training text, not for a prompt.
        inner.with_truncation(None).map_err(refuse)?.with_padding(None);
        let mut text = inner.get_added_vocabulary().clone();
        let mut controls: Vec<AddedToken> = text
            .get_added_tokens_decoder()
            .values()
            .filter(|t| kind_of(t) == Kind::Control)
            .map(|t| t.clone().special(true))
            .collect();
        controls.sort_by(|a, b| a.content.cmp(&b.content));
        text.add_tokens(controls, inner.get_model(), inner.get_normalizer()).map_err(refuse)?;
        text.set_encode_special_tokens(true);
        Ok(Bpe { inner, text })
    }

    /// The ids of `text`; with [`Specials::Add`] the file's post-processor adds its own at both ends.
    pub fn encode(&self, text: &str, mode: Mode, specials: Specials) -> Result<Vec<u32>, TextError> {
        self.encode_pieces(text, mode, specials)
            .map_err(|e| TextError::Encode { bytes: text.len(), message: e.to_string() })
    }

    fn encode_pieces(&self, text: &str, mode: Mode, specials: Specials) -> tokenizers::Result<Vec<u32>> {
        let added = match mode {
            Mode::Text => &self.text,
            Mode::Template => self.inner.get_added_vocabulary(),
        };
        let mut words: PreTokenizedString = added.extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(pre) = self.inner.get_pre_tokenizer() {
            pre.pre_tokenize(&mut words)?;
        }
        self.inner.get_model().tokenize_in_pretokenized(&mut words, None)?;
        let encoding = words.into_encoding(None, 0, OffsetType::None)?;
        let encoding = self.inner.post_process(encoding, None, specials == Specials::Add)?;
        Ok(encoding.get_ids().to_vec())
    }
}
