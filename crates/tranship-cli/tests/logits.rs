//! logits: against the goldens, and bit for bit the same wherever the work is split.

mod common;

use common::{Scratch, integers, list, model, succeeds, tensor};

/// ‖ours − theirs‖ / ‖theirs‖
fn distance(ours: &[f32], theirs: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let apart: f64 = ours.iter().zip(theirs).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let norm: f64 = theirs.iter().map(|b| square(f64::from(*b))).sum();
    (apart / norm).sqrt()
}

fn check(name: &str, golden: &str, backend: &str, policy: &str, most: f64) {
    let scratch = Scratch::new();
    let (golden, out) = (model(golden), scratch.path("l.safetensors"));
    let (tokens, (shape, wanted)) = (integers(&golden, "tokens"), tensor(&golden, "logits"));
    let tokens = list(&tokens);
    let args = [
        "logits",
        &model(name),
        "--tokens",
        &tokens,
        "--out",
        &out,
        "--backend",
        backend,
        "--policy",
        policy,
    ];
    assert_eq!(succeeds(&args), "");
    let (found_shape, found) = tensor(&out, "logits");
    assert_eq!(found_shape, shape, "{name}");
    let distance = distance(&found, &wanted);
    assert!(distance <= most, "{name} on {backend}, {policy}: {distance:e} from the golden, wanted {most:e}");
}

#[test]
fn logits_are_those_of_the_golden() {
    for backend in ["reference", "cpu"] {
        check("llama_base", "llama_base/golden.safetensors", backend, "parity", 1e-5);
        check("llama_rope_yarn", "llama_rope_yarn/golden.safetensors", backend, "parity", 1e-5);
        check("gguf_q4_1.gguf", "gguf_q4_1.golden.safetensors", backend, "parity", 1e-5);
        check("gguf_split-00001-of-00002.gguf", "gguf_split.golden.safetensors", backend, "parity", 1e-5);
        // What rounding every activation to BF16, or to 8-bit blocks, costs a model of random weights, whose logits
        // have deviation 1, with a margin of two: `cargo xtask parity` says where the figures come from.
        check("gguf_q4_1.gguf", "gguf_q4_1.golden.safetensors", backend, "serving", 0.04);
        check("gguf_q4_1.gguf", "gguf_q4_1.golden.safetensors", backend, "quantized", 0.08);
    }
}

#[test]
fn a_split_changes_no_bit_under_parity() {
    let scratch = Scratch::new();
    let (path, whole, split) = (model("page.gguf"), scratch.path("whole"), scratch.path("split"));
    let tokens = list(&integers(&model("page.golden.safetensors"), "tokens"));
    for backend in ["cpu", "reference"] {
        let logits = |out: &str, extra: &[&str]| {
            let args = [
                "logits",
                &path,
                "--tokens",
                &tokens,
                "--policy",
                "parity",
                "--backend",
                backend,
                "--out",
                out,
            ];
            succeeds(&[&args[..], extra].concat());
            std::fs::read(out).expect("the logits")
        };
        let wanted = logits(&whole, &["-t", "2"]);
        let splits: [&[&str]; 5] = [
            &["--split", "1"],
            &["--split", "7", "-t", "1"],
            &["--split", "32", "--ctx", "48", "--split-ctx", "200"],
            &["--split", "47", "--ctx", "48", "--split-ctx", "48", "--split-threads", "1"],
            &["-t", "1", "--ctx", "200"],
        ];
        for extra in splits {
            assert!(logits(&split, extra) == wanted, "{backend}, {extra:?}: other bits");
        }
    }
}

#[test]
fn a_prompt_is_its_tokens() {
    let scratch = Scratch::new();
    let (path, out) = (model("page.gguf"), scratch.path("l"));
    succeeds(&["logits", &path, "--prompt", "zq", "--out", &out]);
    let (shape, text) = tensor(&out, "logits");
    assert_eq!(shape, [2, 288]);
    for tokens in ["122,113", " 122, 113 "] {
        succeeds(&["logits", &path, "--tokens", tokens, "--out", &out]);
        assert_eq!(tensor(&out, "logits").1, text, "a byte is a token of its number");
    }
}
