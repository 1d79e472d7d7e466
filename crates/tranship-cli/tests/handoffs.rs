//! prefill, decode and check: the hand-off as a file, whole, and every way in which it is not.

mod common;

use common::{Scratch, fails, fixture, integers, json, list, model, succeeds, tranship};

const PARITY: [&str; 2] = ["--policy", "parity"];

fn prefill(path: &str, tokens: &[u32], out: &str, extra: &[&str]) {
    let tokens = list(tokens);
    succeeds(&[&["prefill", path, "--tokens", &tokens, "--out", out], extra].concat());
}

fn decode(path: &str, handoff: &str, most: &str, extra: &[&str]) -> serde_json::Value {
    json(&[&["decode", path, "--handoff", handoff, "--max-tokens", most, "--json"], extra].concat())
}

/// Prefills a fixture's prompt on one backend, and decodes the rest on another: the golden's greedy text.
fn check_golden(name: &str, golden: &str, here: &str, there: &str) {
    let scratch = Scratch::new();
    let (path, golden, file) = (model(name), model(golden), scratch.path("h.safetensors"));
    let (tokens, greedy) = (integers(&golden, "tokens"), integers(&golden, "greedy"));
    let on = |backend| [&PARITY[..], &["--backend", backend, "-t", "1"]].concat();
    prefill(&path, &tokens[..24], &file, &[&on(here)[..], &["--ctx", "40"]].concat());
    let checked = json(&[&["check", &path, "--handoff", &file, "--json"], &on(there)[..]].concat());
    assert_eq!((&checked["ok"], &checked["position"]), (&true.into(), &24.into()));
    assert_eq!(checked["next_token"], greedy[0]);
    let decoded = decode(&path, &file, "24", &[&on(there)[..], &["--ctx", "48", "--ignore-end"]].concat());
    assert_eq!(decoded["tokens"], serde_json::json!(greedy), "{name}, {here} to {there}");
}

#[test]
fn decoding_from_a_file_gives_the_golden_text() {
    check_golden("llama_base", "llama_base/golden.safetensors", "reference", "reference");
    check_golden("llama_untied_bias", "llama_untied_bias/golden.safetensors", "cpu", "reference");
    check_golden("gguf_q4_1.gguf", "gguf_q4_1.golden.safetensors", "reference", "cpu");
    check_golden("page.gguf", "page.golden.safetensors", "cpu", "cpu");
}

#[test]
fn a_handoff_holds_the_valid_rows_and_little_else() {
    let scratch = Scratch::new();
    let (path, file) = (model("page.gguf"), scratch.path("h.safetensors"));
    prefill(&path, &[1, 2, 3, 4, 5], &file, &[&PARITY[..], &["--ctx", "200"]].concat());
    let (shape, values) = common::tensor(&file, "k2");
    assert_eq!((shape, values.len()), (vec![5, 4, 16], 320));
    let rows = 6 * 5 * 64 * 4;
    let size = std::fs::metadata(&file).expect("the file").len();
    assert!((rows..rows + (32 << 10)).contains(&size), "{size} bytes for {rows} of rows");
    assert_eq!(scratch.names(), ["h.safetensors"], "nothing is left beside it");
    let device = std::path::Path::new("/dev/null");
    if device.exists() {
        // What is no regular file is written to, and stays what it is.
        prefill(&path, &[1], "/dev/null", &PARITY);
        assert!(!device.metadata().expect("the device").is_file());
    }

    let table =
        succeeds(&[&["check", &path, "--handoff", &file, "--tokens", "1,2,3,4,5"], &PARITY[..]].concat());
    for wanted in ["position  5 tokens, next token", "seal", "layers 0-2", "k*", "f32", "5 of 256"] {
        assert!(table.contains(wanted), "wanted {wanted:?} in\n{table}");
    }
}

#[test]
fn the_text_goes_with_the_tokens_and_stops_at_an_end() {
    let scratch = Scratch::new();
    let (path, file) = (model("page.gguf"), scratch.path("h"));
    let prompt = ["--prompt", "Every cargo that"];
    succeeds(&[&["prefill", &path, "--out", &file], &prompt[..]].concat());
    let decoded = decode(&path, &file, "20", &[]);
    assert_eq!(decoded["text"], " crosses the strait is handl");
    assert_eq!(decoded["tokens"].as_array().map(Vec::len), Some(20));
    assert_eq!(decode(&path, &file, "20", &prompt)["text"], decoded["text"]);
    let plain = ["decode", &path, "--handoff", &file, "--max-tokens", "20"];
    assert_eq!(succeeds(&plain), " crosses the strait is handl\n");
    let none = decode(&path, &file, "0", &[]);
    assert_eq!(none, serde_json::json!({ "tokens": [], "text": "" }));

    // The temperature makes a difference, and the seed alone decides which.
    let hot = |seed| decode(&path, &file, "20", &["--temperature", "4", "--seed", seed]);
    assert_eq!(hot("7"), hot("7"));
    assert_ne!(hot("7")["tokens"], hot("8")["tokens"]);
    assert_eq!(hot("7")["tokens"][0], decoded["tokens"][0], "the hand-off's next token comes first");

    // A full context stops too: the last token is given, and not run.
    let full = decode(&path, &file, "20", &["--ctx", "14"]);
    assert_eq!(full["tokens"].as_array().map(Vec::len), Some(3));
}

#[test]
fn an_end_token_stops_and_is_not_given() {
    let scratch = Scratch::new();
    let (path, file) = (model("llama_base"), scratch.path("h"));
    // The end token of this copy is one that the model gives.
    let golden = model("llama_base/golden.safetensors");
    let (tokens, greedy) = (integers(&golden, "tokens"), integers(&golden, "greedy"));
    let stop = (1..24).find(|i| !greedy[..*i].contains(&greedy[*i])).expect("a token that is new");
    let config = std::fs::read_to_string(format!("{path}/config.json")).expect("a configuration");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["eos_token_id"] = greedy[stop].into();
    std::fs::write(scratch.path("config.json"), config.to_string()).expect("a configuration");
    std::fs::copy(format!("{path}/model.safetensors"), scratch.path("model.safetensors")).expect("weights");
    let copy = scratch.folder().display().to_string();
    prefill(&copy, &tokens[..24], &file, &PARITY);
    let decoded = decode(&copy, &file, "24", &PARITY);
    assert_eq!(decoded, serde_json::json!({ "tokens": &greedy[..stop], "text": "" }));
    let on = decode(&copy, &file, "24", &[&PARITY[..], &["--ignore-end"]].concat());
    assert_eq!(on["tokens"], serde_json::json!(greedy));
}

#[test]
fn another_policy_must_be_declared() {
    let scratch = Scratch::new();
    let (path, file) = (model("page.gguf"), scratch.path("h"));
    succeeds(&["prefill", &path, "--prompt", "Every cargo that", "--out", &file, "--policy", "quantized"]);
    let check = ["check", path.as_str(), "--handoff", &file, "--policy", "parity"];
    fails(&check, &["policies differ", "`k0` is f16, wanted f32", "`v2` is f16, wanted f32"]);
    succeeds(&[&check[..], &["--convert"]].concat());
    let decode = ["decode", path.as_str(), "--handoff", &file, "--max-tokens", "9", "--policy", "parity"];
    fails(&decode, &["policies differ"]);
    assert_eq!(succeeds(&[&decode[..], &["--convert"]].concat()), " crosses the st\n");
}

#[test]
fn a_handoff_that_does_not_fit_is_refused_for_every_reason_at_once() {
    let scratch = Scratch::new();
    let (path, file) = (model("page.gguf"), scratch.path("h"));
    prefill(&path, &[1, 2, 3, 4, 5], &file, &PARITY);
    let refused = |path: &str, file: &str, extra: &[&str], says: &[&str]| {
        for command in ["check", "decode"] {
            let ran = fails(&[&[command, path, "--handoff", file], &PARITY[..], extra].concat(), says);
            // A check says what the hand-off is all the same, where it can be read.
            let told = command == "check" && !file.ends_with("cut");
            assert_eq!(ran.stdout.contains("  fits      no: "), told, "{}", ran.stdout);
            assert_eq!(ran.stdout.is_empty(), !told, "{}", ran.stdout);
        }
    };
    refused(&path, &file, &["--tokens", "1,2,3,4,6"], &["tokens differ", "expected 5"]);
    refused(&path, &file, &["--ctx", "5", "--tokens", "1"], &["position 5", "context of 5", "tokens differ"]);
    refused(&model("gguf_q4_1.gguf"), &file, &[], &["weights differ", "programs differ", "hidden rows"]);

    // A flipped bit of the last value, which stays a number.
    let whole = std::fs::read(&file).expect("the hand-off");
    let (mut bytes, at) = (whole.clone(), whole.len() - 4);
    bytes[at] ^= 1;
    let flipped = scratch.path("flipped");
    std::fs::write(&flipped, &bytes).expect("a file");
    refused(&path, &flipped, &["--tokens", "9"], &["seal is broken", "tokens differ"]);

    // Without its end it is no safetensors file at all.
    let cut = scratch.path("cut");
    std::fs::write(&cut, &whole[..whole.len() - 8]).expect("a file");
    refused(&path, &cut, &[], &["cut", "no hand-off"]);

    let json = tranship(&["check", &path, "--handoff", &flipped, "--policy", "parity", "--json"]);
    assert_eq!(json.code, 1);
    let found: serde_json::Value = serde_json::from_str(&json.stdout).expect("one object");
    assert_eq!((&found["ok"], &found["seal"]), (&false.into(), &serde_json::Value::Null));
    assert_eq!(found["reasons"].as_array().map(Vec::len), Some(1));
}

/// What is no hand-off at all is refused with an object too.
#[test]
fn what_cannot_be_read_is_refused_in_json() {
    let scratch = Scratch::new();
    let (path, file) = (model("page.gguf"), scratch.path("h"));
    let header = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let cases = [
        (b"junk".to_vec(), "not a safetensors file"),
        (vec![b'x'; 100], "not a safetensors file"),
        (header("{}"), "its metadata has no `tranship`"),
        (header(r#"{"__metadata__":{"tranship":"{}"}}"#), "its manifest's `format`"),
    ];
    for (bytes, says) in cases {
        std::fs::write(&file, bytes).expect("a file");
        let ran = fails(&["check", &path, "--handoff", &file, "--json"], &["no hand-off", says]);
        let found: serde_json::Value = serde_json::from_str(&ran.stdout).expect("one object");
        let reasons = found["reasons"].as_array().expect("a list");
        assert_eq!((&found["ok"], reasons.len()), (&false.into(), 1), "{found}");
        assert!(reasons[0].as_str().is_some_and(|r| r.contains(says)), "{found}");
    }
}

/// A hand-off that fits cannot write lines of its own into the table.
#[test]
fn a_handoff_forges_no_lines() {
    use tranship::handoff::{Handoff, Progress};
    let scratch = Scratch::new();
    let (path, file) = (model("page.gguf"), scratch.path("h"));
    prefill(&path, &[1, 2, 3], &file, &PARITY);
    let check = ["check", &path, "--handoff", &file, "--convert", "--policy", "parity"];
    let lines = succeeds(&check).lines().count();
    let handoff = Handoff::read(file.as_ref()).expect("a hand-off");
    let mut contract = handoff.contract().clone();
    contract.identity.policy = "x\n  seal      whole\u{1b}[2J\u{202e}".into();
    let progress = Progress { next_token: None, ..handoff.progress().expect("a digest") };
    let forged = contract.take(progress, handoff.state().to_vec()).expect("it fits itself");
    forged.write(file.as_ref()).expect("it can be written");
    let table = succeeds(&check);
    assert!(
        table.contains("next token unknown") && table.contains(r"x\n  seal      whole\u{1b}[2J\u{202e}"),
        "{table}"
    );
    assert_eq!((table.lines().count(), table.contains('\u{1b}')), (lines, false), "{table}");
    fails(&check[..4], &[r"in the hand-off x\n  seal      whole\u{1b}[2J\u{202e}"]);
}

/// A configuration is a shape, and that is what is checked; whose weights they are it cannot say.
#[test]
fn a_bare_configuration_checks_the_shape() {
    let handoff = fixture("handoff/llama_base.safetensors");
    let rest = ["--handoff", &handoff, "--policy", "parity"];
    for (name, whole) in [("llama_base", true), ("llama_base/config.json", false)] {
        let path = model(name);
        let check = [&["check", &path], &rest[..]].concat();
        let table = succeeds(&check);
        assert_eq!(table.contains("not compared"), !whole, "{table}");
        assert_eq!(json(&[&check[..], &["--json"]].concat())["weights_compared"], whole);
    }
    let other = model("llama_mha/config.json");
    fails(&[&["check", &other], &rest[..]].concat(), &["programs differ", "hidden rows"]);
}

/// Makes a number of a copy of a model NaN: the first value of the row of a tensor in F32.
fn poisoned(name: &str, copy: &str, tensor: &str, row: usize) {
    let checkpoint = tranship::prelude::Checkpoint::open(name.as_ref()).expect("a model");
    let view = checkpoint.get(tensor).expect("the tensor");
    assert_eq!(view.dtype().name(), "f32");
    let mut bytes = std::fs::read(name).expect("the model");
    let at = bytes.windows(view.bytes().len()).position(|w| w == view.bytes()).expect("its bytes");
    let cols = view.shape().last().copied().expect("axes");
    let at = at + row * cols * 4;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(copy, bytes).expect("a copy");
}

/// No token is made of logits that are not numbers: neither a hand-off's, nor a text's.
#[test]
fn logits_that_are_not_numbers_are_an_error() {
    let scratch = Scratch::new();
    let (path, file) = (scratch.path("nan.gguf"), scratch.path("h"));
    poisoned(&model("page.gguf"), &path, "output_norm.weight", 0);
    let says = "logit of token 0: wanted a finite value or -inf, found NaN";
    for backend in ["cpu", "reference"] {
        fails(&["prefill", &path, "--tokens", "1,2", "--out", &file, "--backend", backend], &[says]);
        fails(&["run", &path, "--prompt", "x", "--backend", backend], &[says]);
    }
    assert_eq!(scratch.names(), ["nan.gguf"], "no hand-off is written");

    // A model that fails at the token which the hand-off names.
    let golden = model("llama_untied_bias/golden.safetensors");
    let (tokens, greedy) = (integers(&golden, "tokens"), integers(&golden, "greedy"));
    assert!(!tokens[..24].contains(&greedy[0]));
    let config = format!("{}/config.json", model("llama_untied_bias"));
    std::fs::copy(config, scratch.path("config.json")).expect("a configuration");
    let weights = scratch.path("model.safetensors");
    let whole = format!("{}/model.safetensors", model("llama_untied_bias"));
    poisoned(&whole, &weights, "model.embed_tokens.weight", greedy[0] as usize);
    prefill(&weights, &tokens[..24], &file, &PARITY);
    let decode = ["decode", &weights, "--handoff", &file, "--policy", "parity", "--max-tokens", "2"];
    fails(&decode, &[says]);
}

#[test]
fn weights_of_the_same_shape_are_told_apart() {
    let scratch = Scratch::new();
    let (path, file, other) = (model("gguf_q8_0.gguf"), scratch.path("h"), scratch.path("other.gguf"));
    prefill(&path, &[1, 2, 3], &file, &PARITY);
    let mut bytes = std::fs::read(&path).expect("the model");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&other, bytes).expect("a model");
    let ran = fails(&["check", &other, "--handoff", &file, "--policy", "parity"], &["weights differ"]);
    assert!(!ran.stderr.contains("programs differ"), "{}", ran.stderr);
}
