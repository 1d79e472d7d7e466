//! Specs of whole checkpoints: every fixture maps and fits, and what does not fit is all named.

use super::common::{Meta, config, configs, fixture, gguf as build_gguf, list};
use std::fs;
use tranship_dtype::DType;
use tranship_model::{Attention, Ffn, Mixer, ModelError, ModelSpec, TensorFault};
use tranship_program::ops::{RopeStyle, Scaling};
use tranship_weights::{Checkpoint, Format};

fn open(path: &str) -> (Checkpoint, ModelSpec) {
    let checkpoint = Checkpoint::open(&fixture(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    let spec = ModelSpec::of(&checkpoint).unwrap_or_else(|e| panic!("{path}: {e}"));
    (checkpoint, spec)
}

fn attention(spec: &mut ModelSpec, layer: usize) -> &mut Attention {
    match &mut spec.layers[layer].mixer {
        Some(Mixer::Attention(attention)) => attention,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_fixture_maps_and_fits() {
    let (mut gguf, mut safetensors) = (0, 0);
    for name in list("models") {
        let is_model = name.ends_with(".gguf") || fixture(&name).is_dir();
        if !is_model || name.contains("-00002-of-") {
            continue;
        }
        let (checkpoint, spec) = open(&name);
        spec.check(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(spec.unused(&checkpoint).unwrap(), [""; 0], "{name}");
        assert!(spec.canonical_programs().is_ok(), "{name}");
        *if checkpoint.format() == Format::Gguf { &mut gguf } else { &mut safetensors } += 1;
    }
    assert!(gguf >= 7 && safetensors >= 8, "fixtures are missing: {gguf} GGUF, {safetensors} safetensors");
}

#[test]
fn bare_configurations_are_models_too() {
    let (checkpoint, mut spec) = open("configs/llama-3.2-1b.json");
    assert_eq!(checkpoint.format(), Format::ConfigOnly);
    assert_eq!((spec.hidden, spec.layers.len(), spec.default_dtype()), (2048, 16, DType::BF16));
    let scaling = Scaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 };
    assert_eq!(attention(&mut spec, 15).rope.as_ref().unwrap().scaling, scaling);
    let ModelError::Tensors { wanted, faults } = spec.check(&checkpoint).unwrap_err() else { panic!() };
    assert_eq!((wanted, faults.len()), (1 + 16 * 9 + 1, wanted));
    // Parameters, as their publishers count them.
    for (name, millions) in
        [("smollm2-135m", 135), ("llama-3.2-1b", 1236), ("smollm2-1.7b", 1711), ("llama-3.1-8b", 8030)]
    {
        let required = open(&format!("configs/{name}.json")).1.required().unwrap();
        let parameters: u64 = required.iter().map(|(_, shape)| shape.iter().product::<u64>()).sum();
        assert_eq!((parameters as f64 / 1e6).round() as u64, millions, "{name}");
    }
}

/// The same model in both formats: sizes agree, and the pairs that RoPE turns do not.
#[test]
fn formats_agree_on_the_real_model() {
    let json = ModelSpec::from_config(&config("configs/smollm2-135m.json")).unwrap();
    let u32s = |key, v| (key, Meta::U32(v));
    let metadata = [
        ("general.architecture", Meta::Str("llama")),
        u32s("llama.block_count", 30),
        u32s("llama.context_length", 8192),
        u32s("llama.embedding_length", 576),
        u32s("llama.feed_forward_length", 1536),
        u32s("llama.attention.head_count", 9),
        u32s("llama.attention.head_count_kv", 3),
        ("llama.rope.freq_base", Meta::F32(100000.0)),
        ("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
        u32s("llama.vocab_size", 49152),
        u32s("llama.rope.dimension_count", 64),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, build_gguf(&metadata, &[])).unwrap();
    let mut gguf = ModelSpec::of(&Checkpoint::open(&path).unwrap()).unwrap();
    assert_ne!(gguf.canonical_programs().unwrap(), json.canonical_programs().unwrap());
    for layer in 0..30 {
        assert_eq!(attention(&mut gguf, layer).rope.as_ref().unwrap().style, RopeStyle::Interleaved);
        attention(&mut gguf, layer).rope.as_mut().unwrap().style = RopeStyle::Half;
    }
    assert_eq!(gguf.canonical_programs().unwrap(), json.canonical_programs().unwrap());
    assert_eq!(ModelSpec { names: json.names.clone(), dtype: json.dtype, ..gguf }, json);
}

#[test]
fn everything_that_does_not_fit_is_named() {
    let (checkpoint, mut spec) = open("models/llama_base");
    attention(&mut spec, 1).biases.k = true;
    let Some(Ffn::Gated(gated)) = &mut spec.layers[0].ffn else { panic!() };
    gated.width = 81;
    spec.tied_head = false;
    let error = spec.check(&checkpoint).unwrap_err();
    let text = error.to_string();
    let ModelError::Tensors { wanted: 22, faults } = error else { panic!("{error}") };
    let mlp = |part: &str| format!("model.layers.0.mlp.{part}_proj.weight");
    let names: Vec<&str> = faults.iter().map(TensorFault::name).collect();
    let bias = "model.layers.1.self_attn.k_proj.bias".to_owned();
    assert_eq!(names, [mlp("gate"), mlp("up"), mlp("down"), bias, "lm_head.weight".to_owned()]);
    assert_eq!(
        text,
        "5 of 22 tensors do not fit the model: \
         `model.layers.0.mlp.gate_proj.weight` is [80, 48], wanted [81, 48]; \
         `model.layers.0.mlp.up_proj.weight` is [80, 48], wanted [81, 48]; \
         `model.layers.0.mlp.down_proj.weight` is [48, 80], wanted [48, 81]; \
         `model.layers.1.self_attn.k_proj.bias` is missing, wanted [48]; \
         `lm_head.weight` is missing, wanted [160, 48]"
    );
}

#[test]
fn unused_tensors_are_listed() {
    let (checkpoint, mut spec) = open("models/llama_base");
    spec.layers.truncate(1);
    spec.check(&checkpoint).unwrap();
    let unused = spec.unused(&checkpoint).unwrap();
    assert_eq!(unused.len(), 9);
    assert!(unused.iter().all(|name| name.starts_with("model.layers.1.")), "{unused:?}");
}

/// A safetensors file of one tensor, as the format has it: header length, header, data.
fn one_tensor(name: &str, dtype: &str, shape: &str, bytes: usize) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{bytes}]}}}}"#);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.resize(file.len() + bytes, 0);
    file
}

#[test]
fn integers_are_no_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, one_tensor("model.norm.weight", "I32", "[48]", 192)).unwrap();
    let no_config = ModelSpec::of(&Checkpoint::open(folder.path()).unwrap()).unwrap_err().to_string();
    assert!(no_config.ends_with("no config.json beside the weights says what model they are"), "{no_config}");

    fs::copy(fixture("models/llama_base/config.json"), folder.path().join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let error = ModelSpec::of(&checkpoint).unwrap().check(&checkpoint).unwrap_err();
    let ModelError::Tensors { faults, .. } = error else { panic!("{error}") };
    let found = faults.iter().find(|fault| fault.name() == "model.norm.weight").unwrap();
    assert_eq!(found.to_string(), "`model.norm.weight` holds i32, wanted floats or blocks of them");
}

#[test]
fn configurations_of_fixtures_agree_with_their_checkpoints() {
    for (name, mut spec) in configs() {
        let found = open(name.trim_end_matches("/config.json")).1;
        // Its configuration is that of the language model alone, its tensors have the names of the composite.
        if name.contains("qwen3_5_moe_text") {
            spec.names = spec.names.under("model.", "model.language_model.");
        }
        assert_eq!(found, spec, "{name}");
    }
}
