//! The tokenizer of a model, from wherever its checkpoint keeps it.

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tranship::Error;
use tranship::prelude::{Model, Specials};
use tranship::text::{end_ids, tokenizer};

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

#[test]
fn of_a_gguf_file_it_is_in_the_metadata() {
    let model = Model::open(&fixture("models/page.gguf")).expect("a model");
    let tokenizer = tokenizer(&model).expect("a tokenizer");
    let ids = tokenizer.encode_text("the harbour", Specials::Add).expect("tokens");
    assert_eq!(tokenizer.decode_text(&ids).expect("text"), "the harbour");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.pad()), (Some(284), Some(286), Some(287)));
    assert!(tokenizer.chat_template().is_some());
    assert_eq!(end_ids(&model, Some(&tokenizer)), [284, 286]);
}

/// A folder with a configuration, and a tokenizer of three letters and an end.
fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let config = fs::read(fixture("models/llama_base/config.json")).expect("a configuration");
    fs::write(folder.path().join("config.json"), config).expect("written");
    for (name, value) in files {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

fn letters() -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
        "added_tokens": [{ "id": 3, "content": "<end>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false }],
        "model": { "type": "BPE", "vocab": { "a": 0, "b": 1, "ab": 2, "<end>": 3 }, "merges": ["a b"] }
    })
}

#[test]
fn of_a_folder_it_is_beside_the_weights() {
    let bare = folder(&[]);
    let error = tokenizer(&Model::open(bare.path()).expect("a model")).expect_err("there is none");
    assert!(matches!(error, Error::NoTokenizer { .. }), "{error}");
    assert!(error.to_string().contains("tokenizer.json"), "{error}");

    let with = folder(&[
        ("tokenizer.json", letters()),
        ("tokenizer_config.json", json!({ "eos_token": "<end>", "chat_template": "old" })),
        ("generation_config.json", json!({ "eos_token_id": [3, 1] })),
        ("chat_template.jinja", json!("new")),
    ]);
    let model = Model::open(with.path()).expect("a model");
    let found = tokenizer(&model).expect("a tokenizer");
    assert_eq!(found.encode_text("abba", Specials::Add).expect("tokens"), [2, 1, 0]);
    assert_eq!(found.chat_template(), Some("new"));
    // 2 is the end token of the configuration.
    assert_eq!(end_ids(&model, Some(&found)), [1, 2, 3]);
    assert_eq!(end_ids(&model, None), [2]);

    fs::write(with.path().join("chat_template.jinja"), [0xff, 0xfe]).expect("written");
    let error = tokenizer(&model).expect_err("no text");
    assert!(error.to_string().contains("chat_template.jinja is not UTF-8"), "{error}");
}
