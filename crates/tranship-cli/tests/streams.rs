//! Hand-offs through pipes: a prompt in one process, its text in another, with nothing between them but a stream.

mod common;

use common::{Scratch, command, fails, json, model, succeeds, tranship};
use std::process::Stdio;

const PARITY: [&str; 4] = ["--policy", "parity", "-t", "1"];

/// `prefill` into a pipe that `decode` reads from; the text, and what `prefill` told.
fn piped(path: &str, prefill: &[&str], decode: &[&str]) -> (String, String) {
    let line = ["prefill", path, "--prompt", "Every cargo that", "--out", "-"];
    let mut sender = command(&[&line[..], &PARITY, prefill].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let line = ["decode", path, "--handoff", "-", "--max-tokens", "24"];
    let output = command(&[&line[..], &PARITY, decode].concat())
        .stdin(sender.stdout.take().expect("a pipe"))
        .output()
        .expect("it starts");
    let sent = sender.wait_with_output().expect("it ends");
    let told = String::from_utf8(sent.stderr).expect("UTF-8");
    assert!(sent.status.success(), "{told}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).expect("UTF-8"), told)
}

/// A stream, a whole hand-off and a file give one text, on one backend and over two.
#[test]
fn one_text_however_it_is_sent() {
    let (scratch, path) = (Scratch::new(), model("page.gguf"));
    let file = scratch.path("state");
    let line = ["prefill", &path, "--prompt", "Every cargo that", "--out", &file];
    succeeds(&[&line[..], &PARITY].concat());
    let decode = |file: &str| {
        succeeds(&[&["decode", &path, "--handoff", file, "--max-tokens", "24"][..], &PARITY].concat())
    };
    let text = decode(&file);
    assert!(text.len() > 20, "{text:?}");
    for (prefill, there) in [
        (&[][..], &[][..]),
        (&["--stream"], &[]),
        (&["--stream", "--layers", "cpu=0,reference=1-2"], &[]),
        (&["--stream", "--backend", "reference"], &["--backend", "cpu"]),
        (&["--stream"], &["--backend", "reference"]),
    ] {
        let (found, told) = piped(&path, prefill, there);
        assert_eq!(found, text, "{prefill:?} {there:?}");
        assert!(told.contains("of state in standard output; next token "), "{told}");
    }
    // A stream in a file is read from it, and checked.
    let stream = scratch.path("stream");
    let line = ["prefill", &path, "--prompt", "Every cargo that", "--stream", "--out", &stream];
    succeeds(&[&line[..], &PARITY].concat());
    assert_eq!(decode(&stream), text);
    assert_eq!(scratch.names(), ["state", "stream"], "nothing is left beside them");
    let seal = |file: &str| {
        let line = ["check", &path, "--handoff", file, "--json"];
        json(&[&line[..], &PARITY].concat())["seal"].as_str().expect("a seal").to_owned()
    };
    assert_eq!(seal(&stream), seal(&file), "one seal, whatever the form");
}

/// What a receiver refuses, and what does not come, is said by both ends; nothing is left of what failed.
#[test]
fn streams_that_do_not_arrive() {
    let (scratch, path) = (Scratch::new(), model("page.gguf"));
    let stream = scratch.path("stream");
    let line = ["prefill", &path, "--prompt", "Every cargo that", "--stream", "--out", &stream];
    succeeds(&[&line[..], &PARITY].concat());
    let bytes = std::fs::read(&stream).expect("it is there");
    let cut = scratch.path("cut");
    for (len, says) in [
        (0, "the hand-off ends early: before its first byte"),
        (bytes.len() / 2, "the hand-off ends early: after "),
        (bytes.len() - 9, "a header of "),
    ] {
        std::fs::write(&cut, &bytes[..len]).expect("it is written");
        let line = ["decode", &path, "--handoff", &cut];
        fails(&[&line[..], &PARITY].concat(), &["cut: ", says]);
    }
    let other = model("llama_base");
    let line = ["decode", &other, "--handoff", &stream];
    fails(&[&line[..], &PARITY].concat(), &["stream: ", "programs differ", "weights differ", "`k2` is no"]);
    let ran = tranship(&["decode", &path, "--handoff", "-"]);
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (1, "tranship: -: the hand-off ends early: before its first byte\n")
    );
    let nowhere = scratch.path("no/such/folder");
    let line = ["prefill", &path, "--prompt", "Every cargo that", "--stream", "--out", &nowhere];
    fails(&line, &["no/such/folder"]);
    let full = ["prefill", &path, "--prompt", "Every cargo that", "--stream", "--out", "/dev/full"];
    if std::path::Path::new("/dev/full").exists() {
        fails(&full, &["No space left"]);
    }
}
