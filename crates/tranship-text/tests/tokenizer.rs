//! Ids against the goldens of Python's `tokenizers` and `sentencepiece`; decoding against the text; refusals by name.

mod common;

use common::{byte_level, data, ids, text, tokenizer, vocab};
use serde_json::Value;
use tranship_text::{GgufVocab, Specials, TextError, Tokenizer, TokenizerSource};

/// Each case's text gives its ids, and the ids give the text back, at once and streamed.
fn check(name: &str, tokenizer: &Tokenizer, cases: &Value, written: impl Fn(&str) -> String) {
    let cases = cases.as_array().expect("cases");
    assert!(cases.len() >= 25, "{name}: {} cases", cases.len());
    for case in cases {
        let text = case["text"].as_str().expect("text");
        let found = tokenizer.encode_text(text, Specials::None).expect("text encodes");
        assert_eq!(found, ids(&case["ids"]), "{name}: encode_text({text:?})");
        assert_eq!(tokenizer.decode(&found).expect("own ids"), written(text), "{name}: decode of {text:?}");
        if case["template_ids"].is_array() {
            let found = tokenizer.encode_template(text, Specials::None).expect("text encodes");
            assert_eq!(found, ids(&case["template_ids"]), "{name}: encode_template({text:?})");
            streamed(tokenizer, &found);
        }
        streamed(tokenizer, &found);
    }
}

/// The stream gives what `decode_text` gives, in pieces that are whole characters by their type.
fn streamed(tokenizer: &Tokenizer, ids: &[u32]) {
    let mut decoder = tokenizer.decoder();
    let mut streamed = String::new();
    for id in ids {
        streamed.push_str(decoder.push(*id).expect("known id"));
    }
    streamed.push_str(decoder.finish());
    assert_eq!(streamed, tokenizer.decode_text(ids).expect("known ids"), "{ids:?}");
}

#[test]
fn byte_level_vocabularies_split_as_their_pre_tokenizer_says() {
    let file = data("bpe.json");
    let all = file["cases"].as_object().expect("cases by pre-tokenizer");
    assert_eq!(all.len(), 6);
    for (pre, cases) in all {
        let nfc = pre.starts_with("qwen");
        let written = |text: &str| if nfc { text.replace("e\u{301}", "é") } else { text.to_owned() };
        check(pre, &tokenizer(byte_level(pre)), cases, written);
    }
}

#[test]
fn sentencepiece_vocabularies_join_by_score() {
    let file = data("sentence.json");
    let models = file["models"].as_array().expect("models");
    assert_eq!(models.len(), 2, "with and without a space before the text");
    for model in models {
        let vocab = vocab(&model["vocab"]);
        let name = format!("add_space_prefix {:?}", vocab.add_space_prefix);
        check(&name, &tokenizer(vocab), &model["cases"], str::to_owned);
    }
}

fn from_json(config: Option<&str>, generation: Option<&str>) -> Result<Tokenizer, TextError> {
    let json = text("tokenizer.json");
    Tokenizer::new(TokenizerSource::HfJson {
        tokenizer_json: json.as_bytes(),
        tokenizer_config: config.map(str::as_bytes),
        generation_config: generation.map(str::as_bytes),
        chat_template: None,
    })
}

#[test]
fn tokenizer_json_gives_the_same_ids_and_its_own_specials() {
    let tokenizer = from_json(None, None).expect("good file");
    let cases = &data("tokenizer_cases.json")["cases"];
    check("tokenizer.json", &tokenizer, cases, str::to_owned);
    for case in cases.as_array().expect("cases") {
        let text = case["text"].as_str().expect("text");
        let found = tokenizer.encode_template(text, Specials::Add).expect("text encodes");
        assert_eq!(found, ids(&case["with_specials"]), "{text:?}");
    }
}

#[test]
fn specials_are_added_as_the_file_says() {
    let check = |vocab: GgufVocab, wanted: &[&str]| {
        let tokenizer = tokenizer(vocab);
        let ids = tokenizer.encode_text("x", Specials::Add).expect("text encodes");
        let found: Vec<_> = ids.iter().map(|id| tokenizer.token_text(*id).expect("known")).collect();
        assert_eq!(found, wanted);
    };
    let (bos, eos) = ("<|im_start|>", "<|im_end|>");
    check(byte_level("smollm"), &["x"]);
    check(byte_level("llama-bpe"), &[bos, "x"]);
    check(GgufVocab { add_bos: Some(false), ..byte_level("llama-bpe") }, &["x"]);
    check(GgufVocab { add_bos: Some(true), add_eos: Some(true), ..byte_level("qwen2") }, &[bos, "x", eos]);
    let sentence = vocab(&data("sentence.json")["models"][0]["vocab"]);
    check(sentence.clone(), &["<s>", "▁x"]);
    check(GgufVocab { add_bos: Some(false), add_eos: Some(true), ..sentence }, &["▁x", "</s>"]);
}

#[test]
fn plain_text_never_holds_a_control_token() {
    let sentence = vocab(&data("sentence.json")["models"][0]["vocab"]);
    let all = [tokenizer(byte_level("smollm")), tokenizer(byte_level("llama-bpe")), tokenizer(sentence)];
    for tokenizer in all.iter().chain([&from_json(None, None).expect("good file")]) {
        let mut controls = 0;
        for id in 0..tokenizer.vocab_size() as u32 {
            let spelling = tokenizer.token_text(id).expect("no gaps");
            if !tokenizer.is_control(id) {
                continue;
            }
            controls += 1;
            let text = format!("a{spelling}b {spelling}");
            let plain = tokenizer.encode_text(&text, Specials::None).expect("text encodes");
            assert!(!plain.contains(&id), "{spelling} came out of plain text");
            assert_eq!(tokenizer.decode(&plain).expect("own ids"), text);
            let parsed = tokenizer.encode_template(&text, Specials::None).expect("text encodes");
            assert_eq!(parsed.iter().filter(|i| **i == id).count(), 2, "{spelling} in a template");
            assert!(!tokenizer.decode_text(&parsed).expect("own ids").contains(&spelling));
        }
        assert!(controls >= 2);
    }
    // An added token that is no control token is itself in plain text too, and part of what is read.
    let smollm = &all[0];
    let think = smollm.token_id("<think>").expect("in the vocabulary");
    assert_eq!(smollm.encode_text("<think>", Specials::None).expect("encodes"), [think]);
    assert_eq!(smollm.decode_text(&[think]).expect("known"), "<think>");
}

#[test]
fn a_stream_holds_back_what_is_no_whole_character() {
    let tokenizer = tokenizer(byte_level("gpt-2"));
    let byte = |spelling: &str| tokenizer.token_id(spelling).expect("every byte is a token");
    // 🚢 is F0 9F 9A A2, spelled one character for each byte.
    let ship = ["ð", "Ł", "ļ", "¢"].map(byte);
    let mut decoder = tokenizer.decoder();
    for id in &ship[..3] {
        assert_eq!(decoder.push(*id).expect("known"), "");
    }
    assert_eq!(decoder.push(ship[3]).expect("known"), "🚢");
    assert_eq!(decoder.finish(), "");
    // Begun and broken off: one mark for what was there, then the text goes on.
    assert_eq!(decoder.push(ship[0]).expect("known"), "");
    assert_eq!(decoder.push(byte("A")).expect("known"), "\u{fffd}A");
    assert_eq!(decoder.push(ship[0]).expect("known"), "");
    assert!(matches!(decoder.push(99_999), Err(TextError::UnknownToken { id: 99_999, .. })));
    assert_eq!(decoder.finish(), "\u{fffd}");
    // Begun in the prompt, completed in the answer.
    let mut decoder = tokenizer.decoder_after(&ship[..2]).expect("known");
    assert_eq!(decoder.push(ship[2]).expect("known"), "");
    assert_eq!(decoder.push(ship[3]).expect("known"), "🚢");
    // Any bytes at all: the same as reading them at once.
    let mut draw = 1u32;
    for length in 0..200 {
        let ids: Vec<u32> = (0..length)
            .map(|_| {
                draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                3 + (draw >> 16) % 256
            })
            .collect();
        streamed(&tokenizer, &ids);
        let bytes: Vec<u8> =
            ids.iter().flat_map(|id| tokenizer.token_bytes(*id).expect("known")).copied().collect();
        assert_eq!(tokenizer.decode(&ids).expect("known"), String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn a_first_word_keeps_its_space_only_after_a_context() {
    let tokenizer = tokenizer(vocab(&data("sentence.json")["models"][0]["vocab"]));
    let ids = tokenizer.encode_text("the ship", Specials::None).expect("encodes");
    assert_eq!(tokenizer.decode_text(&ids).expect("known"), "the ship");
    let mut text = String::new();
    let mut decoder = tokenizer.decoder_after(&ids).expect("known");
    ids.iter().for_each(|id| text.push_str(decoder.push(*id).expect("known")));
    assert_eq!(text, " the ship");
}

#[test]
fn every_end_is_found() {
    let check = |tokenizer: Tokenizer, wanted: &[u32]| assert_eq!(tokenizer.eos_ids(), wanted);
    check(tokenizer(byte_level("smollm")), &[0, 2]);
    check(tokenizer(GgufVocab { eos: None, eot: Some(7), ..byte_level("smollm") }), &[0, 2, 7]);
    check(from_json(None, None).expect("good"), &[0, 2]);
    check(
        from_json(Some(r#"{"eos_token": "<think>"}"#), Some(r#"{"eos_token_id": 5}"#)).expect("good"),
        &[0, 2, 5, 727],
    );
    let config = r#"{"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>"}"#;
    let both = from_json(Some(config), Some(r#"{"eos_token_id": [9, 8]}"#)).expect("good");
    assert_eq!((both.bos(), both.eos()), (Some(1), Some(2)));
    check(both, &[0, 2, 8, 9]);
}

#[test]
fn the_chat_template_is_found() {
    let check = |config: &str, wanted: Option<&str>| {
        assert_eq!(from_json(Some(config), None).expect("good").chat_template(), wanted);
    };
    check("{}", None);
    check(r#"{"chat_template": "one"}"#, Some("one"));
    check(
        r#"{"chat_template": [{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}]}"#,
        Some("b"),
    );
    let gguf = GgufVocab { chat_template: Some("two".into()), ..byte_level("smollm") };
    assert_eq!(tokenizer(gguf).chat_template(), Some("two"));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let check = |change: &dyn Fn(&mut GgufVocab), wanted: &str| {
        let mut vocab = byte_level("smollm");
        change(&mut vocab);
        let error = Tokenizer::new(TokenizerSource::Gguf(vocab)).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
    };
    check(&|v| v.pre = Some("tekken".into()), "unknown pre-tokenizer `tekken`; known: gpt-2,");
    check(&|v| v.pre = None, "tokenizer.ggml.pre is missing");
    check(&|v| v.model = "rwkv".into(), "found `rwkv`");
    check(&|v| v.tokens[7] = v.tokens[5].clone(), "wanted one id, found 5 and 7");
    check(&|v| v.token_types.truncate(728), "token_type: wanted 729 entries");
    check(&|v| v.merges[3] = "xyz".into(), "merge 3 \"xyz\"");
    check(&|v| v.merges[4] = "a qqqq".into(), "\"qqqq\" is no token");
    check(&|v| v.eos = Some(729), "eos token: wanted an id below 729, found 729");
    check(&|v| v.eot = Some(9999), "end token: wanted an id below 729, found 9999");
    check(&|v| v.model = "llama".into(), "scores: wanted 729 entries, one for each token, found 0");
    let scored = |v: &mut GgufVocab| (v.model, v.scores) = ("llama".into(), vec![0.0; 729]);
    check(&scored, "byte token \"<0x00>\" is missing");

    let json = |change: &dyn Fn(&str) -> String, wanted: &str| {
        let json = change(&text("tokenizer.json"));
        let error = Tokenizer::new(TokenizerSource::HfJson {
            tokenizer_json: json.as_bytes(),
            tokenizer_config: None,
            generation_config: None,
            chat_template: None,
        });
        let error = error.expect_err(wanted).to_string();
        assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
    };
    json(&|j| j[..j.len() / 2].to_owned(), "tokenizer.json: ");
    let decoder =
        r#""decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}"#;
    let wordpiece = r#""decoder":{"type":"WordPiece","prefix":"x","cleanup":true}"#;
    assert!(text("tokenizer.json").contains(decoder));
    json(&|j| j.replace(decoder, wordpiece), "found {\"type\":\"WordPiece\"");
    json(&|j| j.replace(decoder, r#""decoder":null"#), "found null");
    let error = from_json(Some("{"), None).expect_err("not JSON").to_string();
    assert!(error.starts_with("tokenizer_config.json: not valid JSON"), "{error}");
}

/// A real vocabulary and ids of its reference tokenizer, in the form of `sentence.json`'s models, where
/// `TRANSHIP_TOKENIZER_JSON` names such a file.
#[test]
fn a_real_vocabulary_gives_its_reference_ids() {
    let Ok(path) = std::env::var("TRANSHIP_TOKENIZER_JSON") else {
        println!("skipped: TRANSHIP_TOKENIZER_JSON names no vocabulary to check");
        return;
    };
    let file = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let file: Value = serde_json::from_str(&file).expect("valid JSON");
    check(&path, &tokenizer(vocab(&file["vocab"])), &file["cases"], str::to_owned);
}
