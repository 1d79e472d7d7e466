//! run, bench and demo.

mod common;

use common::{Ran, command, json, model, succeeds, tranship};
use std::io::Read;
use std::process::Stdio;

fn run(extra: &[&str]) -> Ran {
    let path = model("page.gguf");
    let ran =
        tranship(&[&["run", &path, "--prompt", "Every cargo that", "--max-tokens", "40"], extra].concat());
    assert_eq!(ran.code, 0, "{extra:?}: {}", ran.stderr);
    ran
}

#[test]
fn text_goes_on_wherever_it_is_computed() {
    let text = " crosses the strait is handled twice. It comes down\n";
    for extra in [
        &[][..],
        &["--backend", "reference"],
        &["--policy", "parity", "-t", "1"],
        &["--prefill-on", "reference", "--decode-on", "cpu"],
        &["--prefill-on", "cpu", "--decode-on", "reference", "--policy", "parity"],
        &["--prefill-on", "reference"],
        &["--decode-on", "reference"],
    ] {
        assert_eq!(run(extra).stdout, text, "{extra:?}");
    }
    let told = run(&["--prefill-on", "reference", "--decode-on", "cpu"]).stderr;
    assert!(told.contains("positions 0-11 on reference, from 12 on cpu;"), "{told}");
    assert!(told.contains("handed over in"), "{told}");
    let alone = run(&[]).stderr;
    assert!(!alone.contains("handed over") && alone.contains("prompt 12 tokens"), "{alone}");
}

#[test]
fn a_context_ends_the_text_and_seeds_repeat_it() {
    let full = run(&["--ctx", "16"]);
    assert!(
        full.stderr.contains("text 5 tokens") && full.stderr.contains("the context is full"),
        "{}",
        full.stderr
    );
    let hot = |seed| run(&["--temperature", "3", "--top-k", "50", "--top-p", "0.95", "--seed", seed]).stdout;
    assert_eq!(hot("1"), hot("1"));
    assert_ne!(hot("1"), hot("2"));
}

#[test]
fn a_chat_is_put_into_the_models_template() {
    let told = run(&["--chat"]).stderr;
    let plain = run(&[]).stderr;
    let tokens = |told: &str| -> u32 {
        let line = told.lines().find_map(|l| l.strip_prefix("prompt ")).expect("the figures");
        line.split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
    };
    assert!(tokens(&told) > tokens(&plain), "{told}{plain}");
    assert!(tokens(&run(&["--chat", "--system", "Be brief."]).stderr) > tokens(&told));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let path = model("page.gguf");
    for args in [&["plan", &path][..], &["run", &path, "--prompt", "Every", "--max-tokens", "200"]] {
        let mut child =
            command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let mut told = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut told).expect("UTF-8");
        let status = child.wait().expect("it ends");
        assert!(status.success() && told.is_empty(), "{args:?}: {status}, {told}");
    }
}

#[test]
fn bench_gives_the_promised_keys() {
    let path = model("page.gguf");
    let figures = json(&["bench", &path, "-p", "16", "-n", "4", "-r", "2", "--json"]);
    for key in ["prefill_tps", "decode_tps", "load_ms"] {
        assert!(figures[key].as_f64().is_some_and(|v| v > 0.0), "{key} of {figures}");
    }
    assert_eq!((&figures["backend"], &figures["policy"]), (&"cpu".into(), &"quantized".into()));
    if cfg!(target_os = "linux") {
        assert!(figures["peak_rss_bytes"].as_u64().is_some_and(|b| b > 1 << 20), "{figures}");
    }
    let alone = json(&["bench", &path, "-p", "0", "-n", "2", "-r", "1", "--json", "--backend", "reference"]);
    assert_eq!((&alone["prefill_tps"], &alone["policy"]), (&serde_json::Value::Null, &"serving".into()));
    let table = succeeds(&["bench", &path, "-p", "8", "-n", "2", "-r", "1"]);
    assert!(table.contains("prefill") && table.contains("decode") && table.contains("tokens/s"), "{table}");
}

#[test]
fn bench_counts_what_a_token_reads() {
    let path = model("../families_gguf/mixtral.gguf");
    let of =
        |more: &[&str]| json(&[&["bench", &path, "-p", "4", "-n", "4", "-r", "1", "--json"], more].concat());
    let number = |figures: &serde_json::Value, key: &str| figures[key].as_u64().expect("a number");
    let (plain, deep) = (of(&[]), of(&["-d", "40", "--sequences", "3"]));
    // Of 41 rows of the table one; of 5 experts in each of 2 layers the 2 that are chosen, each three matrices of 18 by 24.
    let left = 40 * 24 * 2 + 2 * 3 * (3 * 18 * 24 * 2);
    let weights = number(&json(&["inspect", &path, "--json"]), "bytes") - left;
    for figures in [&plain, &deep] {
        assert_eq!(number(figures, "weight_bytes_per_token"), weights, "{figures}");
    }
    // A row of keys and of values for each of the tokens before, 2 heads of 6 in F16 in each layer.
    let carried = |before: u64| before * 2 * 2 * (2 * 6 * 2);
    assert_eq!(number(&plain, "carried_bytes_per_token"), carried(2));
    assert_eq!(number(&deep, "carried_bytes_per_token"), carried(42));
    assert_eq!(
        (&deep["depth_tokens"], &deep["sequences"], &deep["ctx"]),
        (&40.into(), &3.into(), &44.into())
    );
    assert!(plain["first_token_ms"].as_f64() >= plain["load_ms"].as_f64(), "{plain}");
    assert_eq!(plain["limits"], serde_json::Value::Null);
}

#[test]
fn the_demo_shows_every_pair_in_plain_text() {
    let shown = succeeds(&["demo"]);
    assert!(!shown.contains('\x1b'), "no colours where no terminal is");
    assert!(shown.lines().all(|l| l.chars().count() <= 100), "{shown}");
    let line = |here: &str, there: &str| {
        let line = shown.lines().find(|l| {
            let mut words = l.split_whitespace();
            (words.next(), words.next()) == (Some(here), Some(there))
        });
        line.unwrap_or_else(|| panic!("{here} to {there}:\n{shown}")).to_owned()
    };
    for here in ["cpu/parity", "reference/parity"] {
        for there in ["cpu/parity", "reference/parity"] {
            let line = line(here, there);
            assert!(line.ends_with(" 72 of 72"), "{line}");
            let error: f64 =
                line.split_whitespace().nth_back(3).expect("an error").parse().expect("a number");
            assert!(error < 1e-5, "{line}");
        }
    }
    line("cpu/quantized", "reference/serving");
    line("reference/serving", "cpu/quantized");
    for wanted in
        ["pool host", "3 × gated delta rule + experts", "append", "k*, v* of layer 3", "recurrent", "ring"]
    {
        assert!(shown.contains(wanted), "wanted {wanted:?} in\n{shown}");
    }
    // It was not taught the page, and knows the language: of 2048 tokens that were equally likely, each would be 2048.
    for policy in ["cpu/parity", "cpu/serving", "cpu/quantized"] {
        let line = shown.lines().rfind(|l| l.trim_start().starts_with(policy)).expect("a perplexity");
        let found: f64 = line.split_whitespace().nth(1).expect("a figure").parse().expect("a number");
        assert!((2.0..200.0).contains(&found), "{line}");
    }
}
