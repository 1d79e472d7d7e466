//! A real model, where its file is there: `cargo xtask fetch smollm2` fetches it into `models/smollm2/`.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tranship::backends::{self, BackendOptions};
use tranship::ctx::{ComputeCtx, Device};
use tranship::prelude::{ChatTemplate, Checkpoint, Message, Model, Options, Outputs, Session, Tokenizer};
use tranship::prelude::{Rows, Specials};
use tranship::session::argmax;
use tranship::text::{self, GenerationPrompt, RenderOptions};

/// Positions whose most probable token is compared.
const ROWS: usize = 32;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The model, or `None`, and a line that says why, where it is not there.
fn model() -> Option<Arc<Model>> {
    let folder = root().join("models/smollm2");
    let files = std::fs::read_dir(&folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let found = files.into_iter().find(|path| path.extension().is_some_and(|e| e == "gguf"));
    let Some(path) = found else {
        println!("skipped: there is no GGUF file in models/smollm2 (`cargo xtask fetch smollm2`)");
        return None;
    };
    Some(Arc::new(Model::open(&path).expect("a model")))
}

fn json(name: &str) -> Vec<Value> {
    let bytes = std::fs::read(root().join("fixtures/real").join(name)).expect("the fixture");
    serde_json::from_slice(&bytes).expect("a list")
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("tokens")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

#[test]
fn texts_and_chats_are_the_golden_tokens() {
    let Some(model) = model() else { return };
    let tokenizer = text::tokenizer(&model).expect("a tokenizer");
    for case in json("tokenizer.json") {
        let found = tokenizer.encode_template(text(&case["text"]), Specials::None).expect("tokens");
        assert_eq!(found, ids(&case["ids"]), "{}", case["text"]);
        assert_eq!(tokenizer.decode(&found).expect("text"), text(&case["text"]));
    }
    let template = ChatTemplate::new(tokenizer.chat_template().expect("a template")).expect("it parses");
    for case in json("chat.json") {
        check_chat(&tokenizer, &template, &case);
    }
}

fn check_chat(tokenizer: &Tokenizer, template: &ChatTemplate, case: &Value) {
    let messages: Vec<Message> = case["messages"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|m| Message::new(text(&m["role"]), text(&m["content"])))
        .collect();
    let generation_prompt = match case["add_generation_prompt"].as_bool() {
        Some(true) => GenerationPrompt::Add,
        _ => GenerationPrompt::Omit,
    };
    let options = RenderOptions { generation_prompt, ..RenderOptions::default() };
    let rendered = template.render(&messages, &options).expect("it renders");
    assert_eq!(rendered, text(&case["text"]));
    let found = tokenizer.encode_chat(template, &messages, &options).expect("tokens");
    assert_eq!(found, ids(&case["ids"]), "{}", case["text"]);
}

fn golden(file: &Checkpoint, name: &str) -> Vec<u32> {
    let view = file.get(name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(view.dtype().name(), "i32", "{name}");
    view.bytes().as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
}

#[test]
fn its_text_is_the_golden_text() {
    let Some(model) = model() else { return };
    let file = root().join("fixtures/real/smollm2-135m-q4_1.safetensors");
    let file = Checkpoint::open(&file).expect("the fixture");
    let backend = backends::open("cpu", &BackendOptions::default()).expect("a backend");
    let policy = ComputeCtx::parity(Device::of("cpu"));
    let mut session = Session::open(model.clone(), backend, policy, Options::new(128)).expect("a session");

    let mut sequence = session.sequence().expect("a sequence");
    let tokens = &golden(&file, "tokens")[..ROWS];
    let logits = session.extend(&mut sequence, tokens, Outputs::All).expect("logits");
    let best: Vec<u32> = logits.chunks(model.spec().vocab as usize).map(argmax).collect();
    assert_eq!(best, golden(&file, "argmax")[..ROWS]);

    // Past the model's end token, as the golden goes.
    let mut sequence = session.sequence().expect("a sequence");
    let wanted = golden(&file, "greedy");
    let mut logits = session.extend(&mut sequence, &golden(&file, "prompt"), Outputs::Last).expect("logits");
    let mut found = Vec::new();
    while found.len() < wanted.len() {
        let token = argmax(&logits);
        found.push(token);
        logits.clear();
        let rows = Rows { sequence: &mut sequence, tokens: &[token], outputs: Outputs::Last };
        session.step(&mut [rows], &mut logits).expect("logits");
    }
    assert_eq!(found, wanted);
}
