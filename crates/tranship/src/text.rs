//! Tokenizer, chat template and sampler, and the tokenizer of a model from wherever its checkpoint keeps it.

use crate::Error;
use tranship_session::Model;
use tranship_weights::{Checkpoint, Format};

pub use tranship_text::*;

/// The tokenizer of a model: from the metadata of a GGUF file, else from `tokenizer.json` and what lies beside it.
///
/// # Errors
/// [`Error::NoTokenizer`] where there is none, [`Error::Text`] of one that is malformed.
pub fn tokenizer(model: &Model) -> Result<Tokenizer, Error> {
    let checkpoint = model.checkpoint();
    match checkpoint.format() {
        Format::Gguf => from_gguf(checkpoint),
        _ => from_files(checkpoint),
    }
}

/// How much a model is surprised by a text: the mean over its tokens but the first of −ln of the probability that the
/// model gave them, in nats. `logits` is `[tokens, vocab]`, a row after each token. The exponential is the perplexity for a
/// token. A row that is missing, or has no place for the token, makes it infinite; a text of fewer than two tokens is
/// no surprise.
///
/// ```
/// // Two tokens that are equally likely, always: a surprise of ln 2 each time.
/// let surprise = tranship::text::surprise(&[1.0; 6], 2, &[0, 1, 1]);
/// assert!((surprise - 2f64.ln()).abs() < 1e-12);
/// ```
pub fn surprise(logits: &[f32], vocab: usize, tokens: &[u32]) -> f64 {
    let next = tokens.get(1..).unwrap_or_default();
    let mut rows = logits.chunks_exact(vocab.max(1));
    let nats = |token: &u32| {
        let row = rows.next().unwrap_or_default();
        let Some(own) = row.get(*token as usize) else { return f64::INFINITY };
        let top = row.iter().fold(f64::NEG_INFINITY, |most, v| most.max(f64::from(*v)));
        top + row.iter().map(|v| (f64::from(*v) - top).exp()).sum::<f64>().ln() - f64::from(*own)
    };
    next.iter().map(nats).sum::<f64>() / next.len().max(1) as f64
}

/// The ids that end a text, ascending: those of the tokenizer, if there is one, and those that the model's
/// configuration names.
pub fn end_ids(model: &Model, tokenizer: Option<&Tokenizer>) -> Vec<u32> {
    let mut ids: Vec<u32> = tokenizer.map(|t| t.eos_ids().to_vec()).unwrap_or_default();
    let config = model.checkpoint().config().map(|c| &c["eos_token_id"]);
    let named =
        config.into_iter().flat_map(|v| v.as_array().map_or(std::slice::from_ref(v), |a| a.as_slice()));
    ids.extend(named.filter_map(|v| v.as_u64().and_then(|id| u32::try_from(id).ok())));
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn from_gguf(checkpoint: &Checkpoint) -> Result<Tokenizer, Error> {
    let meta = checkpoint.metadata();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    // `none` is how the format says that a file has no vocabulary.
    let Some(model) = meta.optional::<&str>(&key("model"))?.filter(|model| *model != "none") else {
        let path = checkpoint.path().to_owned();
        return Err(Error::NoTokenizer { path, wanted: "tokenizer.ggml.model in its metadata" });
    };
    let strings = |name: &str| -> Result<Vec<String>, Error> {
        let list = meta.optional::<&tranship_weights::Strings>(&key(name))?;
        Ok(list.map(|l| l.iter().map(str::to_owned).collect()).unwrap_or_default())
    };
    let id = |name: &str| meta.optional::<u32>(&key(name));
    let flag = |name: &str| meta.optional::<bool>(&key(name));
    let vocab = GgufVocab {
        model: model.to_owned(),
        pre: meta.optional::<&str>(&key("pre"))?.map(str::to_owned),
        tokens: strings("tokens")?,
        merges: strings("merges")?,
        scores: meta.optional::<&[f32]>(&key("scores"))?.map(<[f32]>::to_vec).unwrap_or_default(),
        token_types: meta.optional::<Vec<i32>>(&key("token_type"))?.unwrap_or_default(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        chat_template: meta.optional::<&str>("tokenizer.chat_template")?.map(str::to_owned),
    };
    Ok(Tokenizer::new(TokenizerSource::Gguf(vocab))?)
}

fn from_files(checkpoint: &Checkpoint) -> Result<Tokenizer, Error> {
    let path = || checkpoint.path().to_owned();
    let Some(tokenizer_json) = checkpoint.sidecar("tokenizer.json")? else {
        return Err(Error::NoTokenizer { path: path(), wanted: "tokenizer.json beside it" });
    };
    let config = checkpoint.sidecar("tokenizer_config.json")?;
    let generation = checkpoint.sidecar("generation_config.json")?;
    const TEMPLATE: &str = "chat_template.jinja";
    let template = match checkpoint.sidecar(TEMPLATE)? {
        None => None,
        Some(bytes) => {
            Some(String::from_utf8(bytes).map_err(|_| Error::NotText { path: path(), file: TEMPLATE })?)
        }
    };
    Ok(Tokenizer::new(TokenizerSource::HfJson {
        tokenizer_json: &tokenizer_json,
        tokenizer_config: config.as_deref(),
        generation_config: generation.as_deref(),
        chat_template: template.as_deref(),
    })?)
}
