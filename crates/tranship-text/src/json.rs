//! A tokenizer from the files of a Hugging Face folder.

use serde_json::Value;

use crate::bpe::{self, Bpe, Mode};
use crate::pieces::{Entry, Kind, Pieces, Spelling};
use crate::tokenizer::{Engine, Parts, SpecialIds};
use crate::{Specials, TextError};

pub(crate) fn parts(
    tokenizer_json: &[u8],
    tokenizer_config: Option<&[u8]>,
    generation_config: Option<&[u8]>,
    chat_template: Option<&str>,
) -> Result<Parts, TextError> {
    let config = parse("tokenizer_config.json", tokenizer_config)?;
    let generation = parse("generation_config.json", generation_config)?;
    let refuse = |message: String| TextError::TokenizerJson { message };
    let inner = tokenizers::Tokenizer::from_bytes(tokenizer_json).map_err(|e| refuse(e.to_string()))?;
    let bpe = Bpe::new(inner)?;
    let decoder = serde_json::to_value(bpe.inner.get_decoder()).map_err(|e| refuse(e.to_string()))?;
    let pieces = pieces_of(&bpe, &Spelling::from_decoder(&decoder)?);
    let named = |key: &str| token_name(&config[key]).and_then(|name| bpe.inner.token_to_id(name));
    let ids = SpecialIds {
        bos: named("bos_token"),
        eos: named("eos_token"),
        unk: named("unk_token"),
        pad: named("pad_token"),
    };
    let (prefix, suffix) = surroundings(&bpe)?;
    let ends = match &generation["eos_token_id"] {
        Value::Array(list) => list.iter().filter_map(id_of).collect(),
        one => id_of(one).into_iter().collect(),
    };
    let chat_template = chat_template.or_else(|| template_of(&config)).map(str::to_owned);
    Ok(Parts { engine: Engine::Bpe(Box::new(bpe)), pieces, ids, prefix, suffix, ends, chat_template })
}

fn parse(file: &'static str, bytes: Option<&[u8]>) -> Result<Value, TextError> {
    bytes.map_or(Ok(Value::Null), |b| {
        serde_json::from_slice(b).map_err(|source| TextError::Json { file, source })
    })
}

/// A special token is written as its text or as an object that holds it.
fn token_name(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

fn id_of(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// The template of `tokenizer_config.json`: a string, or a list of named ones of which `default` is meant.
fn template_of(config: &Value) -> Option<&str> {
    let template = &config["chat_template"];
    let named = || template.as_array()?.iter().find(|t| t["name"] == "default")?["template"].as_str();
    template.as_str().or_else(named)
}

/// What the post-processor puts before and after a text, seen on one letter.
fn surroundings(bpe: &Bpe) -> Result<(Vec<u32>, Vec<u32>), TextError> {
    let body = bpe.encode("a", Mode::Text, Specials::None)?;
    let all = bpe.encode("a", Mode::Text, Specials::Add)?;
    let at = (0..=all.len().saturating_sub(body.len())).find(|at| all[*at..].starts_with(&body));
    let at = at.ok_or_else(|| TextError::TokenizerJson {
        message: format!("post_processor: wanted the ids {body:?} of \"a\" within its result, found {all:?}"),
    })?;
    Ok((all[..at].to_vec(), all[at + body.len()..].to_vec()))
}

fn pieces_of(bpe: &Bpe, spelling: &Spelling) -> Pieces {
    let added = bpe.inner.get_added_tokens_decoder();
    let vocab = bpe.inner.get_vocab(true);
    let top = vocab.values().chain(added.keys()).max().map_or(0, |id| *id as usize + 1);
    let mut texts: Vec<Option<&str>> = vec![None; top];
    for (text, id) in &vocab {
        texts[*id as usize] = Some(text);
    }
    let entries = (0u32..).zip(&texts).map(|(id, text)| match added.get(&id) {
        Some(token) => Some(Entry { text: &token.content, kind: bpe::kind_of(token), plain: true }),
        None => text.map(|text| Entry { text, kind: Kind::Text, plain: false }),
    });
    Pieces::new(entries, spelling)
}
