//! A tokenizer from the metadata of a GGUF file.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::{AddedToken, Tokenizer};

use crate::bpe::{self, Bpe};
use crate::pieces::{Entry, Kind, Pieces, Spelling};
use crate::pre::Pre;
use crate::sentence::Sentence;
use crate::tokenizer::{Engine, Parts, SpecialIds};
use crate::{GgufVocab, TextError};

/// Token types of the format.
pub(crate) const NORMAL: i32 = 1;
pub(crate) const CONTROL: i32 = 3;
pub(crate) const USER_DEFINED: i32 = 4;

pub(crate) fn parts(vocab: GgufVocab) -> Result<Parts, TextError> {
    check(&vocab)?;
    let (engine, spelling, bos_by_default) = match vocab.model.as_str() {
        "gpt2" => {
            let pre = Pre::named(vocab.pre.as_deref())?;
            (Engine::Bpe(Box::new(byte_level(&vocab, pre)?)), Spelling::byte_level(), pre.add_bos)
        }
        "llama" => {
            let strip = usize::from(vocab.add_space_prefix.unwrap_or(true));
            (Engine::Sentence(Box::new(Sentence::new(&vocab)?)), Spelling::sentence(strip), true)
        }
        other => return Err(TextError::UnknownModel { found: other.to_owned() }),
    };
    let entries = (0u32..).zip(&vocab.tokens).map(|(id, text)| {
        let added = added(&vocab, id, text);
        let kind = added.as_ref().map_or(Kind::Text, bpe::kind_of);
        Some(Entry { text, kind, plain: added.is_some() })
    });
    Ok(Parts {
        pieces: Pieces::new(entries, &spelling),
        engine,
        ids: SpecialIds { bos: vocab.bos, eos: vocab.eos, unk: vocab.unk, pad: vocab.pad },
        prefix: vocab.bos.filter(|_| vocab.add_bos.unwrap_or(bos_by_default)).into_iter().collect(),
        suffix: vocab.eos.filter(|_| vocab.add_eos.unwrap_or(false)).into_iter().collect(),
        ends: vocab.eot.into_iter().collect(),
        chat_template: vocab.chat_template,
    })
}

fn check(vocab: &GgufVocab) -> Result<(), TextError> {
    let wanted = vocab.tokens.len();
    let found = vocab.token_types.len();
    if found != 0 && found != wanted {
        return Err(TextError::ListLength { list: "token_type", wanted, found });
    }
    let mut seen = HashMap::with_capacity(wanted);
    for (second, token) in (0u32..).zip(&vocab.tokens) {
        if let Some(first) = seen.insert(token, second) {
            return Err(TextError::DuplicateToken { token: token.clone(), first, second });
        }
    }
    Ok(())
}

/// The type of `id`; normal where the file lists none.
pub(crate) fn type_of(vocab: &GgufVocab, id: u32) -> i32 {
    vocab.token_types.get(id as usize).copied().unwrap_or(NORMAL)
}

/// Control and user-defined tokens are what text is cut at before anything else.
pub(crate) fn added(vocab: &GgufVocab, id: u32, text: &str) -> Option<AddedToken> {
    match type_of(vocab, id) {
        CONTROL => Some(AddedToken::from(text, true)),
        USER_DEFINED => Some(AddedToken::from(text, false).normalized(false)),
        _ => None,
    }
}

fn byte_level(vocab: &GgufVocab, pre: &Pre) -> Result<Bpe, TextError> {
    let ids: Vocab = vocab.tokens.iter().cloned().zip(0u32..).collect();
    let mut merges = Vec::with_capacity(vocab.merges.len());
    for (index, merge) in vocab.merges.iter().enumerate() {
        let refuse = |message: String| TextError::Merge { index, merge: merge.clone(), message };
        let (left, right) = merge.split_once(' ').ok_or_else(|| refuse("no space".into()))?;
        for token in [left, right, &format!("{left}{right}")] {
            if !ids.contains_key(token) {
                return Err(refuse(format!("{token:?} is no token")));
            }
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    let refuse = |e: tokenizers::Error| TextError::TokenizerJson { message: e.to_string() };
    let model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(pre.whole_words)
        .build()
        .map_err(refuse)?;
    let mut inner = Tokenizer::new(model);
    if pre.nfc {
        inner.with_normalizer(Some(NFC)).map_err(refuse)?;
    }
    inner.with_pre_tokenizer(Some(pre.build()?));
    inner
        .add_tokens((0u32..).zip(&vocab.tokens).filter_map(|(id, text)| added(vocab, id, text)))
        .map_err(refuse)?;
    Bpe::new(inner)
}
