//! --layers: a model in parts gives the text, the logits and the hand-off of a whole one, and says what is wrong with
//! parts that are not it.

mod common;

use common::{Scratch, fails, json, model, succeeds, tensor, tranship};

const PARITY: [&str; 4] = ["--policy", "parity", "-t", "1"];

/// The layers of the demo model, which are three or more.
fn layers(path: &str) -> usize {
    let count = json(&["inspect", path, "--json"])["layer_count"].as_u64().expect("a number") as usize;
    assert!(count >= 3);
    count
}

#[test]
fn text_goes_on_wherever_it_is_cut() {
    let path = model("page.gguf");
    let last = layers(&path) - 1;
    let run = |extra: &[&str]| {
        let line = ["run", &path, "--prompt", "Every cargo that", "--max-tokens", "24"];
        let ran = tranship(&[&line[..], &PARITY, extra].concat());
        assert_eq!(ran.code, 0, "{extra:?}: {}", ran.stderr);
        ran
    };
    let whole = run(&[]);
    assert!(whole.stdout.len() > 20 && !whole.stderr.contains("crossed"), "{whole:?}");
    let hidden = json(&["inspect", &path, "--json"])["hidden"].as_u64().expect("a number");
    for (parts, told, cuts) in [
        (format!("cpu=0,reference=1-{last}"), format!("layers 0 on cpu, 1-{last} on reference; "), 1),
        (format!("reference=0-0,cpu=1-{last}"), format!("layers 0 on reference, 1-{last} on cpu; "), 1),
        (format!("cpu=0, cpu=1, cpu=2-{last}"), format!("layers 0 on cpu, 1 on cpu, 2-{last} on cpu; "), 2),
        (format!("cpu=0-{last}"), format!("layers 0-{last} on cpu; "), 0),
    ] {
        let told = if last == 2 { told.replace("2-2", "2") } else { told };
        let ran = run(&["--layers", &parts]);
        assert_eq!(ran.stdout, whole.stdout, "{parts}");
        let told = format!("{told}{} bytes of rows crossed for each token", cuts * hidden * 4);
        assert!(ran.stderr.contains(&told), "{parts}: {}", ran.stderr);
    }
}

/// Taken from a model in parts, resumed in a whole one, and the other way: the very same file.
#[test]
fn hand_offs_and_logits_know_no_cut() {
    let scratch = Scratch::new();
    let path = model("page.gguf");
    let last = layers(&path) - 1;
    let parts = format!("cpu=0-1,cpu=2-{last}");
    let split = ["--layers", parts.as_str()];
    let (whole, cut) = (scratch.path("whole"), scratch.path("cut"));
    for (out, extra) in [(&whole, &[][..]), (&cut, &split)] {
        let line = ["prefill", &path, "--tokens", "1,2,3,4,5", "--ctx", "64", "--out", out];
        succeeds(&[&line[..], &PARITY, extra].concat());
    }
    let read = |path: &str| std::fs::read(path).expect("the file");
    assert!(read(&whole) == read(&cut), "other bytes");
    let decode = |extra: &[&str]| {
        let line = ["decode", &path, "--handoff", &cut, "--max-tokens", "9", "--ignore-end", "--json"];
        json(&[&line[..], &PARITY, extra].concat())
    };
    let other = format!("reference=0,cpu=1-{last}");
    assert_eq!(decode(&[]), decode(&["--layers", &other]));
    let (one, two) = (scratch.path("one"), scratch.path("two"));
    let line = ["logits", &path, "--tokens", "1,2,3,4,5,6", "--split", "3", "--out"];
    succeeds(&[&line[..], &[&one], &PARITY].concat());
    succeeds(&[&line[..], &[&two], &PARITY, &split].concat());
    assert_eq!(tensor(&one, "logits"), tensor(&two, "logits"));
}

#[test]
fn bench_names_every_backend() {
    let path = model("page.gguf");
    let last = layers(&path) - 1;
    let parts = format!("reference=0,cpu=1-{last}");
    let line = ["bench", &path, "-p", "4", "-n", "2", "-r", "1", "--json", "--layers", &parts];
    let figures = json(&line);
    assert_eq!(figures["backend"], "reference+cpu");
    // The first backend's own policy.
    assert_eq!(figures["policy"], "serving");
    assert_eq!(figures["layers"][1], serde_json::json!({ "backend": "cpu", "first": 1, "last": last }));
    assert!(figures["decode_tps"].as_f64().is_some_and(|v| v > 0.0), "{figures}");
}

#[test]
fn parts_that_are_not_the_model_are_refused() {
    let path = model("page.gguf");
    let count = layers(&path);
    let last = count - 1;
    let run = ["run", &path, "--prompt", "x", "--layers"];
    for (parts, says) in [
        (format!("cpu=0-{}", last - 1), format!("layer {last} is in none")),
        (format!("cpu=0-1,reference=1-{last}"), "layer 1 is in more than one".to_owned()),
        (format!("cpu=0-0,cpu=1-{count}"), format!("layer {count} is not there")),
        (format!("cpu=1-{last},cpu=0"), "layer 0 after layers".to_owned()),
        (format!("cpu=0,abacus=1-{last}"), "`abacus` is no backend".to_owned()),
    ] {
        fails(&[&run[..], &[&parts]].concat(), &[&says]);
    }
}

#[test]
fn lines_that_cannot_be_meant_are_usage_errors() {
    let path = model("page.gguf");
    let run = ["run", &path, "--prompt", "x", "--layers"];
    for (extra, says) in [
        (&["cpu"][..], &["--layers", "wanted BACKEND=FIRST-LAST"][..]),
        (&["cpu=2-1"], &["--layers", "layer 1 comes before layer 2"]),
        (&["cpu=a-b"], &["--layers", "layer `a`"]),
        (&["cpu=0-18446744073709551615"], &["--layers", "not countable"]),
        (&["cpu=0-1", "--backend", "cpu"], &["--layers", "--backend"]),
        (&["cpu=0-1", "--prefill-on", "cpu"], &["--layers", "--prefill-on"]),
        (&["cpu=0-1", "--decode-on", "cpu"], &["--layers", "--decode-on"]),
    ] {
        let ran = tranship(&[&run[..], extra].concat());
        assert_eq!(ran.code, 2, "{extra:?}: {ran:?}");
        assert!(says.iter().all(|says| ran.stderr.contains(says)), "{extra:?}: {}", ran.stderr);
    }
    // Where nothing runs, there are no parts.
    assert_eq!(tranship(&["plan", &path, "--layers", "cpu=0-1"]).code, 2);
}
