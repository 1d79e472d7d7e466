//! Exit codes and messages: 2 where the command line does not parse, else 1 and one line that names the thing.

mod common;

use common::{Scratch, fails, fixture, model, tranship};

#[test]
fn what_does_not_parse_is_exit_code_2() {
    let page = model("page.gguf");
    let cases: &[&[&str]] = &[
        &[],
        &["transship"],
        &["inspect"],
        &["inspect", &page, "--yaml"],
        &["program", &page],
        &["program", &page, "--cut", "layer"],
        &["program", &page, "--cut", "layer:x"],
        &["program", &page, "--cut", "head", "--phase", "later"],
        &["program", &page, "--cut", "head", "--graph", "png"],
        &["contract", &page, "--ctx", "0"],
        &["contract", &page, "--ctx", "-5"],
        &["plan", &page, "--residency", "attic"],
        &["run", &page],
        &["run", &page, "--prompt", "x", "--threads", "0"],
        &["run", &page, "--prompt", "x", "-t", "many"],
        &["run", &page, "--prompt", "x", "--seed", "0.5"],
        &["prefill", &page, "--out", "h"],
        &["prefill", &page, "--out", "h", "--prompt", "x", "--tokens", "1"],
        &["prefill", &page, "--out", "h", "--tokens", "1,two"],
        &["prefill", &page, "--out", "h", "--tokens", ""],
        &["prefill", &page, "--tokens", "1"],
        &["decode", &page],
        &["check", &page],
        &["logits", &page, "--tokens", "1"],
        &["logits", &page, "--tokens", "1,2", "--out", "l", "--split-ctx", "8"],
        &["bench", &page, "-r", "0"],
    ];
    for args in cases {
        let ran = tranship(args);
        assert_eq!(ran.code, 2, "{args:?}: {ran:?}");
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{args:?}: {ran:?}");
    }
}

#[test]
fn what_cannot_be_done_is_exit_code_1_and_names_the_thing() {
    let scratch = Scratch::new();
    let (out, junk) = (scratch.path("out"), scratch.path("junk.gguf"));
    std::fs::write(&junk, b"GGUF\x03\0\0").expect("a file");
    let (page, base, bare) = (model("page.gguf"), model("llama_base"), fixture("configs/smollm2-135m.json"));
    let cases: &[(&[&str], &[&str])] = &[
        (&["inspect", "no/such/model.gguf"], &["no/such/model.gguf"]),
        (&["inspect", &junk], &[&junk]),
        (&["inspect", &fixture("text/page.txt")], &["page.txt"]),
        (&["contract", &page, "--policy", "loose"], &["`loose` is no policy", "parity"]),
        (&["contract", &page, "--ctx", "99999999999"], &["99999999999"]),
        (
            &["run", &page, "--prompt", "x", "--backend", "abacus"],
            &["`abacus` is no backend", "cpu, reference"],
        ),
        (&["run", &page, "--prompt", "x", "--decode-on", "abacus"], &["`abacus` is no backend"]),
        (&["run", &page, "--prompt", "x", "--policy", "loose"], &["`loose` is no policy"]),
        (&["run", &page, "--prompt", "x", "--temperature", "NaN"], &["temperature"]),
        (&["run", &page, "--prompt", ""], &["--prompt \"\"", "no tokens"]),
        (&["logits", &page, "--prompt", "", "--out", &out], &["--prompt \"\"", "no tokens"]),
        (&["prefill", &page, "--prompt", "", "--out", &out], &["--prompt \"\"", "no tokens"]),
        (&["run", &page, "--prompt", "a long prompt", "--ctx", "4"], &["the prompt has", "context of 4"]),
        (&["run", &base, "--prompt", "x"], &["llama_base", "no tokenizer"]),
        (&["run", &bare, "--prompt", "x"], &["smollm2-135m.json", "a configuration alone"]),
        (&["logits", &bare, "--prompt", "x", "--out", &out], &["smollm2-135m.json", "a configuration alone"]),
        (&["decode", &bare, "--handoff", &out], &["smollm2-135m.json", "a configuration alone"]),
        (&["prefill", &base, "--prompt", "x", "--out", &out], &["llama_base", "no tokenizer"]),
        (&["prefill", &bare, "--tokens", "1", "--out", &out], &["smollm2-135m.json", "no weights"]),
        (&["prefill", &page, "--tokens", "288", "--out", &out], &["token 288", "vocabulary of 288"]),
        (
            &["prefill", &page, "--tokens", "1,2,3", "--ctx", "2", "--out", &out],
            &["3 tokens", "context of 2"],
        ),
        (
            &["prefill", &page, "--tokens", "1,2,3", "--ctx", "3", "--out", &out],
            &["3 tokens", "no row", "context of 3"],
        ),
        (&["prefill", &page, "--tokens", "1", "--out", "no/such/folder/h"], &["no/such/folder/h"]),
        (&["decode", &page, "--handoff", "no/such/handoff"], &["no/such/handoff"]),
        (&["decode", &page, "--handoff", &page], &["page.gguf", "no hand-off"]),
        (&["check", &bare, "--handoff", &out], &[&out]),
        (&["logits", &bare, "--tokens", "1", "--out", &out], &["smollm2-135m.json", "no weights"]),
        (&["logits", &page, "--tokens", "1,2", "--split", "2", "--out", &out], &["--split 2", "1 to 1"]),
        (&["logits", &page, "--tokens", "1,2", "--split", "0", "--out", &out], &["--split 0"]),
        (
            &["logits", &page, "--tokens", "1,2", "--split", "1", "--split-ctx", "1", "--out", &out],
            &["--split-ctx 1", "2 tokens"],
        ),
        (&["logits", &page, "--tokens", "1,2", "--out", "no/such/folder/l"], &["no/such/folder/l"]),
        (&["bench", &bare], &["smollm2-135m.json", "no weights"]),
        (&["bench", &page, "-p", "0", "-n", "0"], &["nothing to measure"]),
        (&["bench", &page, "-p", "9", "--ctx", "8"], &["context of 8"]),
    ];
    for (args, says) in cases {
        let ran = fails(args, says);
        assert!(ran.stdout.is_empty(), "{args:?}: {}", ran.stdout);
    }
    assert_eq!(scratch.names(), ["junk.gguf"], "a command that fails leaves nothing behind");
}

/// Whichever part says it, the file is named once.
#[test]
fn a_file_is_named_once() {
    let scratch = Scratch::new();
    let broken = scratch.path("broken.gguf");
    let bytes = std::fs::read(model("page.gguf")).expect("the model");
    let (key, other) = (b"llama.block_count", b"llama.block_c0unt");
    let at = bytes.windows(key.len()).position(|w| w == key).expect("the key");
    let mut bytes = bytes;
    bytes[at..at + key.len()].copy_from_slice(other);
    std::fs::write(&broken, bytes).expect("a model");
    std::fs::copy(model("llama_base/model.safetensors"), scratch.path("alone.safetensors")).expect("weights");
    for (path, says) in
        [(broken, "`llama.block_count`"), (scratch.path("alone.safetensors"), "no config.json")]
    {
        let ran = fails(&["inspect", &path], &[says]);
        assert_eq!(ran.stderr.matches(&path).count(), 1, "{}", ran.stderr);
    }
}

#[test]
fn help_says_where_the_first_token_comes_from() {
    for command in ["prefill", "decode"] {
        let help = tranship(&[command, "--help"]).stdout;
        assert!(help.contains("most probable") && help.contains("--temperature"), "{command}:\n{help}");
    }
}
