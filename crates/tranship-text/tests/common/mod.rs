//! Reading the fixtures of `tests/data`.

use serde_json::Value;
use tranship_text::{GgufVocab, Tokenizer, TokenizerSource};

/// The JSON file of that name in `tests/data`.
pub fn data(name: &str) -> Value {
    serde_json::from_str(&text(name)).expect("fixtures are valid JSON")
}

/// The text of a file in `tests/data`.
pub fn text(name: &str) -> String {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A list of ids.
#[allow(dead_code)]
pub fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap_or_else(|| panic!("wanted a list of ids, found {value}"));
    list.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// A vocabulary as the fixtures write it.
#[allow(dead_code)]
pub fn vocab(value: &Value) -> GgufVocab {
    let strings = |key: &str| -> Vec<String> {
        let list = value[key].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().map(|v| v.as_str().expect("a string").to_owned()).collect()
    };
    let floats = value["scores"].as_array().map(Vec::as_slice).unwrap_or_default();
    let id = |key: &str| value[key].as_u64().map(|id| id as u32);
    GgufVocab {
        model: value["model"].as_str().expect("model").to_owned(),
        pre: value["pre"].as_str().map(str::to_owned),
        tokens: strings("tokens"),
        merges: strings("merges"),
        scores: floats.iter().map(|s| s.as_f64().expect("a score") as f32).collect(),
        token_types: ids(&value["token_types"]).into_iter().map(|t| t as i32).collect(),
        bos: id("bos"),
        eos: id("eos"),
        eot: id("eot"),
        unk: id("unk"),
        pad: id("pad"),
        add_bos: value["add_bos"].as_bool(),
        add_eos: value["add_eos"].as_bool(),
        add_space_prefix: value["add_space_prefix"].as_bool(),
        chat_template: value["chat_template"].as_str().map(str::to_owned),
    }
}

/// The small byte-level vocabulary with the given pre-tokenizer.
#[allow(dead_code)]
pub fn byte_level(pre: &str) -> GgufVocab {
    GgufVocab { pre: Some(pre.to_owned()), ..vocab(&data("bpe.json")["vocab"]) }
}

/// A tokenizer from a GGUF vocabulary.
#[allow(dead_code)]
pub fn tokenizer(vocab: GgufVocab) -> Tokenizer {
    Tokenizer::new(TokenizerSource::Gguf(vocab)).expect("the fixture vocabulary is good")
}
