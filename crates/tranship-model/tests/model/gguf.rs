//! GGUF metadata into specs: what a valid file means, and every way in which one is refused.

use super::common::Meta::{self, *};
use super::common::gguf as build_gguf;
use std::fs;
use tranship_model::{Attention, Ffn, Mixer, ModelSpec, Names};
use tranship_program::ops::{RopeStyle, Scaling};
use tranship_weights::Checkpoint;

/// The metadata of a valid file: 2 layers, 4 heads of 8 over 2, hidden 32, no biases.
fn valid() -> Vec<(&'static str, Meta)> {
    vec![
        ("general.architecture", Str("llama")),
        ("llama.block_count", U32(2)),
        ("llama.context_length", U32(64)),
        ("llama.embedding_length", U32(32)),
        ("llama.feed_forward_length", U32(48)),
        ("llama.attention.head_count", U32(4)),
        ("llama.attention.head_count_kv", U32(2)),
        ("llama.attention.layer_norm_rms_epsilon", F32(1e-5)),
        ("llama.rope.freq_base", F32(500000.0)),
        ("llama.rope.dimension_count", U32(8)),
        ("llama.vocab_size", U32(20)),
    ]
}

/// The valid metadata with other values, keys taken away (`None`), or keys added.
fn changed(changes: &[(&'static str, Option<Meta>)]) -> Vec<(&'static str, Meta)> {
    let mut metadata = valid();
    for (key, value) in changes {
        metadata.retain(|(k, _)| k != key);
        metadata.extend(value.clone().map(|value| (*key, value)));
    }
    metadata
}

/// The tensors that are read for what they are there: `output.weight` is not, so the head is tied.
fn open(metadata: &[(&str, Meta)], tensors: &[&str]) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let tensors: Vec<_> = tensors.iter().map(|name| (name.to_string(), vec![4])).collect();
    fs::write(&path, build_gguf(metadata, &tensors)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    (folder, checkpoint)
}

fn spec(changes: &[(&'static str, Option<Meta>)], tensors: &[&str]) -> ModelSpec {
    let (_folder, checkpoint) = open(&changed(changes), tensors);
    ModelSpec::of(&checkpoint).unwrap_or_else(|e| panic!("{changes:?}: {e}"))
}

fn attention(spec: &ModelSpec, layer: usize) -> &Attention {
    match &spec.layers[layer].mixer {
        Some(Mixer::Attention(attention)) => attention,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_key_is_read() {
    let spec = spec(&[], &[]);
    assert_eq!((spec.architecture.as_str(), spec.hidden, spec.vocab), ("llama", 32, 20));
    assert_eq!((spec.max_positions, spec.layers.len(), spec.tied_head), (64, 2, true));
    assert_eq!(spec.norm_eps, 1e-5, "the decimal that was meant, not the F32 nearest to it");
    assert_eq!((spec.names.clone(), spec.dtype), (Names::gguf(), None));
    let a = attention(&spec, 1);
    assert_eq!((a.heads, a.kv_heads, a.head_dim, a.scale), (4, 2, 8, 1.0 / 8f64.sqrt()));
    assert_eq!(
        (a.rope.as_ref().unwrap().dims, a.rope.as_ref().unwrap().theta, a.rope.as_ref().unwrap().style),
        (8, 5e5, RopeStyle::Interleaved)
    );
    assert_eq!(
        (&a.rope.as_ref().unwrap().scaling, a.rope.as_ref().unwrap().divisors),
        (&Scaling::None, false)
    );
    assert!(matches!(&spec.layers[0].ffn, Some(Ffn::Gated(gated)) if gated.width == 48));
}

#[test]
fn the_defaults_are_those_of_the_format() {
    let drop = |key| spec(&[(key, None)], &[]);
    assert_eq!(attention(&drop("llama.attention.head_count_kv"), 0).kv_heads, 4);
    assert_eq!(attention(&drop("llama.rope.freq_base"), 0).rope.as_ref().unwrap().theta, 10_000.0);
    assert_eq!(attention(&drop("llama.rope.dimension_count"), 0).rope.as_ref().unwrap().dims, 8);
    let tokens = ("tokenizer.ggml.tokens", Some(Strs(vec!["a", "b", "c"])));
    assert_eq!(spec(&[("llama.vocab_size", None), tokens], &[]).vocab, 3);
}

#[test]
fn tensors_that_are_there_count() {
    let spec = spec(&[], &["output.weight", "rope_freqs.weight", "blk.1.attn_k.bias", "blk.0.ffn_up.bias"]);
    assert!(!spec.tied_head);
    let biases = |layer| {
        let b = attention(&spec, layer).biases;
        [b.q, b.k, b.v, b.o]
    };
    assert_eq!((biases(0), biases(1)), ([false; 4], [false, true, false, false]));
    assert!(attention(&spec, 0).rope.as_ref().unwrap().divisors);
    let up = |layer: usize| match &spec.layers[layer].ffn {
        Some(Ffn::Gated(gated)) => gated.biases.up,
        other => panic!("{other:?}"),
    };
    assert!(up(0) && !up(1));
    let text = spec.program(tranship_model::Cut::DecodeLayer { layer: 1, ctx: 64 }).unwrap().to_string();
    assert!(text.contains("divisors : [4] @ \"rope_freqs.weight\""), "{text}");
    assert!(text.contains("rope(linear(h, wk, bk), pos, divisors, heads: 2, dims: 8,"), "{text}");
}

#[test]
fn arrays_give_each_layer_its_own() {
    let spec = spec(
        &[
            ("llama.attention.head_count", Some(U32s(vec![4, 8]))),
            ("llama.attention.head_count_kv", Some(U32s(vec![2, 1]))),
            ("llama.feed_forward_length", Some(U32s(vec![48, 40]))),
            ("llama.attention.key_length", Some(U32(8))),
            ("llama.attention.value_length", Some(U32(8))),
        ],
        &[],
    );
    let sizes = |layer: usize| {
        let (a, Some(Ffn::Gated(gated))) = (attention(&spec, layer), &spec.layers[layer].ffn) else {
            return [0; 4];
        };
        [a.heads, a.kv_heads, a.head_dim, gated.width]
    };
    assert_eq!((sizes(0), sizes(1)), ([4, 2, 8, 48], [8, 1, 8, 40]));
}

#[test]
fn scalings_are_read() {
    let check = |keys: &[(&'static str, Meta)], wanted: Scaling| {
        let keys: Vec<_> = keys.iter().map(|(k, v)| (*k, Some(v.clone()))).collect();
        assert_eq!(attention(&spec(&keys, &[]), 0).rope.as_ref().unwrap().scaling, wanted, "{keys:?}");
    };
    let kind = |kind| ("llama.rope.scaling.type", Str(kind));
    let factor = |v| ("llama.rope.scaling.factor", F32(v));
    check(&[kind("none"), factor(4.0)], Scaling::None);
    check(&[kind("linear"), factor(4.0)], Scaling::Linear { factor: 4.0 });
    check(&[factor(4.0)], Scaling::Linear { factor: 4.0 });
    check(&[("llama.rope.scale_linear", F32(2.0))], Scaling::Linear { factor: 2.0 });
    check(&[kind("linear"), factor(1.0)], Scaling::None);
    let yarn = |beta_fast, magnitude| Scaling::Yarn {
        factor: 4.0,
        original: 16.0,
        beta_fast,
        beta_slow: 1.0,
        magnitude,
        whole: true,
    };
    let original = ("llama.rope.scaling.original_context_length", U32(16));
    let plain = 0.1 * 4f64.ln() + 1.0;
    check(&[kind("yarn"), factor(4.0), original.clone()], yarn(32.0, plain));
    let attn = ("llama.rope.scaling.attn_factor", F32(0.5));
    let fast = ("llama.rope.scaling.yarn_beta_fast", F32(24.0));
    check(&[kind("yarn"), factor(4.0), original.clone(), attn, fast], yarn(24.0, plain * 0.5));
    let log = ("llama.rope.scaling.yarn_log_multiplier", F32(0.5));
    check(&[kind("yarn"), factor(4.0), original, log], yarn(32.0, plain / (0.05 * 4f64.ln() + 1.0)));
}

#[test]
fn an_own_scale_counts() {
    let scaled = spec(&[("llama.attention.scale", Some(F32(0.1)))], &[]);
    assert_eq!(attention(&scaled, 0).scale, 0.1);
}

/// Changes of the valid metadata, and how the error that they must give ends.
fn refused(cases: &[(&'static str, Option<Meta>, &str)]) {
    for (key, value, wanted) in cases {
        let (_folder, checkpoint) = open(&changed(&[(key, value.clone())]), &[]);
        match ModelSpec::of(&checkpoint) {
            Ok(_) => panic!("{key} {value:?} is accepted, wanted: {wanted}"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.ends_with(wanted), "{key} {value:?}: {error}\nwanted: {wanted}");
            }
        }
    }
}

#[test]
fn missing_keys_are_named() {
    let number = ["block_count", "embedding_length", "context_length"];
    for key in number.map(|key| format!("llama.{key}")) {
        let key: &'static str = valid().into_iter().map(|(k, _)| k).find(|k| *k == key).unwrap();
        refused(&[(key, None, &format!("key `{key}` is missing, wanted an integer that is not negative"))]);
    }
    let each = "is missing, wanted an integer, or an array with one for each layer";
    refused(&[
        ("general.architecture", None, "key `general.architecture` is missing, wanted a string"),
        ("llama.feed_forward_length", None, &format!("key `llama.feed_forward_length` {each}")),
        ("llama.attention.head_count", None, &format!("key `llama.attention.head_count` {each}")),
        (
            "llama.attention.layer_norm_rms_epsilon",
            None,
            "key `llama.attention.layer_norm_rms_epsilon` is missing, wanted an f32 or f64",
        ),
        (
            "llama.vocab_size",
            None,
            "key `llama.vocab_size` is missing, wanted an integer, or the list `tokenizer.ggml.tokens`",
        ),
        (
            "llama.rope.scaling.type",
            Some(Str("linear")),
            "key `llama.rope.scaling.factor` is missing, wanted an f32",
        ),
    ]);
}

#[test]
fn wrong_values_are_named() {
    refused(&[
        ("llama.block_count", Some(Str("2")), "wanted an integer that is not negative, found string \"2\""),
        ("llama.block_count", Some(U32(0)), "`llama.block_count`: wanted 1 to 4096, found 0"),
        ("llama.block_count", Some(U32(5000)), "`llama.block_count`: wanted 1 to 4096, found 5000"),
        (
            "llama.attention.head_count_kv",
            Some(U32(3)),
            "`llama.attention.head_count_kv`: wanted a divisor of the 4 heads, found 3",
        ),
        (
            "llama.attention.head_count_kv",
            Some(U32s(vec![2, 0])),
            "`llama.attention.head_count_kv`: wanted 1 to 16777216, found 0",
        ),
        (
            "llama.attention.head_count",
            Some(U32(5)),
            "`llama.attention.head_count`: wanted a divisor of the hidden width 32, found 5",
        ),
        (
            "llama.feed_forward_length",
            Some(U32s(vec![48; 3])),
            "`llama.feed_forward_length`: wanted one number, or one for each of 2 layers, found 3",
        ),
        (
            "llama.attention.key_length",
            Some(U32(16)),
            "`llama.rope.dimension_count`: wanted the size of a head, 16, found 8",
        ),
        (
            "llama.attention.value_length",
            Some(U32(16)),
            "`llama.attention.value_length`: wanted the size of a head, 8, found 16",
        ),
        (
            "llama.rope.freq_base",
            Some(F32(f32::NAN)),
            "`llama.rope.freq_base`: wanted 1.000001 to 1000000000000.0, found NaN",
        ),
        (
            "llama.attention.layer_norm_rms_epsilon",
            Some(F32(0.0)),
            "`llama.attention.layer_norm_rms_epsilon`: wanted 1e-30 to 1.0, found 0.0",
        ),
        ("llama.attention.layer_norm_rms_epsilon", Some(U32(1)), "wanted an f32 or f64, found u32 1"),
    ]);
}

#[test]
fn what_no_program_can_say_is_named() {
    refused(&[
        (
            "general.architecture",
            Some(Str("gpt9")),
            "`general.architecture`: \"gpt9\" is not supported (deepseek2, deepseek4, gemma2, gemma3, glm4moe, \
             gpt-oss, granitehybrid, kimi-linear, lfm2, llama, minimax-01, minimax-m2, nemotron_h, nemotron_h_moe, \
             olmo2, phi3, qwen2, qwen3, qwen35, qwen35moe, qwen3moe, qwen3next, smollm3)",
        ),
        (
            "llama.expert_count",
            Some(U32(8)),
            "key `llama.expert_used_count` is missing, wanted an integer that is not negative",
        ),
        (
            "llama.attention.sliding_window",
            Some(U32(4096)),
            "`llama.attention.sliding_window`: 4096 is not supported (0: attention over all positions)",
        ),
        (
            "llama.attention.causal",
            Some(Bool(false)),
            "`llama.attention.causal`: false is not supported (true)",
        ),
        (
            "llama.rope.scaling.type",
            Some(Str("longrope")),
            "`llama.rope.scaling.type`: \"longrope\" is not supported (none, linear, yarn)",
        ),
    ]);
}
