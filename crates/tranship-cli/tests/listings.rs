//! Commands that describe a model: inspect, program, contract, plan, backends.

mod common;

use common::{fails, fixture, json, model, succeeds};
use serde_json::{Value, json as value};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn inspect_describes_a_model_and_a_bare_configuration() {
    let gguf = json(&["inspect", &model("page.gguf"), "--json"]);
    assert_eq!(gguf["architecture"], "llama");
    assert_eq!((&gguf["hidden"], &gguf["vocab"]), (&value!(128), &value!(288)));
    assert_eq!(gguf["layers"], value!([{ "kind": "attention + gated", "first": 0, "count": 3 }]));
    assert_eq!(gguf["encodings"]["q8_0"]["tensors"], 1);
    let sum: u64 =
        gguf["encodings"].as_object().expect("encodings").values().filter_map(|e| e["bytes"].as_u64()).sum();
    assert_eq!(gguf["bytes"], sum);
    assert_eq!(gguf["tokenizer"]["chat_template"], true);
    assert_eq!(gguf["tokenizer"]["eos"], value!({ "id": 286, "text": "<|im_end|>" }));

    let bare = json(&["inspect", &fixture("configs/smollm2-135m.json"), "--json"]);
    assert_eq!(bare["parameters"], 134_515_008u64);
    assert_eq!(bare["bytes"], 2 * 134_515_008u64, "declared as bf16");
    assert_eq!(
        (&bare["layer_count"], &bare["context"], &bare["tokenizer"]),
        (&value!(30), &value!(8192), &Value::Null)
    );

    let text = succeeds(&["inspect", &model("llama_sharded")]);
    for wanted in ["llama, from safetensors", "tied to the embedding", "2 × attention + gated", "none"] {
        assert!(text.contains(wanted), "wanted {wanted:?} in\n{text}");
    }
}

#[test]
fn programs_are_printed_as_authored_typed_and_drawn() {
    let path = model("page.gguf");
    let program = |extra: &[&str]| succeeds(&[&["program", &path, "--ctx", "64"], extra].concat());
    let authored = program(&["--cut", "layer:1", "--phase", "decode"]);
    assert!(authored.starts_with("program decode layer=1 ctx=64\n"), "{authored}");
    assert!(authored.contains("k1[pos .. pos+n] = "), "{authored}");
    assert!(
        program(&["--cut", "layer:1", "--phase", "prefill"]).starts_with("program prefill layer=1 ctx=64\n")
    );
    assert!(program(&["--cut", "embed"]).contains("return gather(table, tokens)"));
    assert!(program(&["--cut", "head"]).starts_with("program head"));

    let typed = program(&["--cut", "layer:0", "--policy", "quantized"]);
    assert!(typed.contains("cast ledger: 6 casts"), "{typed}");
    assert!(typed.contains("f32 -> q8_1"), "{typed}");
    let f32 = succeeds(&["program", &model("llama_base"), "--cut", "layer:0", "--policy", "parity"]);
    assert!(f32.contains("cast ledger: no casts"), "{f32}");
    for policy in [&[][..], &["--policy", "parity"]] {
        let dot = program(&[&["--cut", "layer:0", "--graph", "dot"], policy].concat());
        assert!(dot.starts_with("digraph program {") && dot.trim_end().ends_with('}'), "{dot}");
    }
    let bare = fixture("configs/llama-3.1-8b.json");
    assert!(succeeds(&["program", &bare, "--cut", "layer:31"]).contains("ctx=2048"));
    fails(&["program", &path, "--cut", "layer:3"], &["layer 3", "3 layers"]);
}

#[test]
fn contracts_are_manifests_with_the_digest_of_the_weights() {
    let contract = |path: &str, policy: &str| json(&["contract", path, "--ctx", "64", "--policy", policy]);
    let page = contract(&model("page.gguf"), "parity");
    assert_eq!(keys(&page), ["version", "ctx", "hidden", "streams", "carried", "identity"]);
    assert_eq!((&page["ctx"], &page["hidden"]), (&value!(64), &value!(128)));
    let names: Vec<&str> =
        page["carried"].as_array().expect("tensors").iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, ["k0", "v0", "k1", "v1", "k2", "v2"]);
    assert_eq!(page["carried"][0]["dtype"], "f32");
    assert_eq!(page["identity"]["weights"].as_str().map(str::len), Some(64));
    assert_eq!(contract(&model("page.gguf"), "quantized")["carried"][0]["dtype"], "f16");
    let bare = contract(&fixture("configs/llama-3.2-1b.json"), "serving");
    assert_eq!(bare["identity"]["weights"], Value::Null);
    assert_eq!(bare["carried"].as_array().map(Vec::len), Some(32));
}

#[test]
fn plans_count_to_the_byte_and_place_every_tensor() {
    let bare = fixture("configs/llama-3.1-8b.json");
    let plan = |budget: &str| json(&["plan", &bare, "--ctx", "8192", "--budget", budget, "--json"]);
    let fits = plan("gpu=24GiB,host=64GB");
    assert_eq!(fits["residency"], "device");
    let ledger = &fits["ledgers"][0];
    assert_eq!((&ledger["pool"], &ledger["capacity_bytes"]), (&value!("gpu"), &value!(24u64 << 30)));
    assert_eq!(ledger["weights_bytes"], 2 * 8_030_261_248u64);
    assert_eq!(ledger["carried_bytes"], 1u64 << 30, "32 layers, 2 · 8192 · 1024 values of 2 bytes");
    assert_eq!(fits["ledgers"][1]["capacity_bytes"], 64_000_000_000u64);
    let placements = fits["placements"].as_array().expect("placements");
    assert_eq!(placements.len(), 291);
    assert!(placements.iter().all(|p| p["home"]["pool"] == "gpu"), "{placements:?}");

    let mapped = plan("gpu=8GiB");
    assert_eq!((&mapped["residency"], &mapped["mapped_bytes"]), (&value!("mmap"), &ledger["weights_bytes"]));
    assert_eq!(mapped["placements"][0]["home"], "mapped");

    let text = succeeds(&["plan", &model("page.gguf"), "--ctx", "64", "--budget", "host=2MiB"]);
    for wanted in ["pool host: 2.0 MiB", "weights", "carried", "free", "token_embd.weight"] {
        assert!(text.contains(wanted), "wanted {wanted:?} in\n{text}");
    }
    assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
    succeeds(&["plan", &model("page.gguf")]);

    fails(&["plan", &bare, "--ctx", "8192", "--budget", "gpu=1GiB"], &["pool `gpu`", "would fit"]);
    let device = ["plan", &bare, "--ctx", "8192", "--budget", "gpu=8GiB", "--residency", "device"];
    fails(&device, &["pool `gpu`", "mapping the weights"]);
    fails(&["plan", &bare, "--budget", "gpu"], &["budget `gpu`", "no `=`"]);
    fails(&["plan", &bare, "--budget", "gpu=much"], &["`much` is no size"]);
}

#[test]
fn backends_are_listed_with_types_encodings_and_limits() {
    let listed = json(&["backends", "--json"]);
    let backends = listed["backends"].as_array().expect("backends");
    let by_name =
        |name: &str| backends.iter().find(|b| b["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(by_name("cpu")["default_policy"], "quantized");
    assert_eq!(by_name("reference")["default_policy"], "serving");
    assert_eq!(backends.iter().filter(|b| b["default"] == true).count(), 1);
    for backend in backends {
        for key in ["devices", "types", "encodings", "limits"] {
            assert!(!backend[key].is_null(), "{key} of {backend}");
        }
        assert!(backend["types"]["accum"].as_array().expect("types").contains(&value!("f32")), "{backend}");
        let text = succeeds(&["backends"]);
        assert!(
            text.contains(backend["devices"][0]["description"].as_str().expect("a description")),
            "{text}"
        );
    }
}
