//! GGUF files of other architectures than Llama's: what their keys and tensors mean, and that none goes missing in
//! silence.

use super::common::Meta::{self, Bool, F32, F32s, Str, U32, U32s};
use super::common::{fixture, gguf, list};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tranship_model::{
    Activation, Attention, CompressedAttention, DeltaProjections, Experts, Ffn, GatedDeltaNet,
    LatentAttention, LayerSpec, Mixer, ModelSpec, QkNorm, StateSpace,
};
use tranship_program::ops::{DecayForm, RopeStyle, RouteBias, Scaling, Score};
use tranship_weights::Checkpoint;

/// The GGUF files, as paths under `fixtures/`.
fn files() -> Vec<String> {
    let mut files = list("families_gguf");
    files.retain(|path| path.ends_with(".gguf"));
    files.sort();
    assert!(files.len() >= 26, "{files:?}");
    files
}

fn spec(name: &str) -> ModelSpec {
    let checkpoint = Checkpoint::open(&fixture(&format!("families_gguf/{name}.gguf"))).expect("a fixture");
    ModelSpec::of(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn attention(spec: &ModelSpec, layer: usize) -> &Attention {
    match &spec.layers[layer].mixer {
        Some(Mixer::Attention(attention)) => attention,
        other => panic!("{other:?}"),
    }
}

fn experts(spec: &ModelSpec, layer: usize) -> &Experts {
    match &spec.layers[layer].ffn {
        Some(Ffn::Experts(experts)) => experts,
        other => panic!("{other:?}"),
    }
}

fn delta(spec: &ModelSpec, layer: usize) -> &GatedDeltaNet {
    match &spec.layers[layer].mixer {
        Some(Mixer::GatedDelta(delta)) => delta,
        other => panic!("{other:?}"),
    }
}

fn latent(spec: &ModelSpec, layer: usize) -> &LatentAttention {
    match &spec.layers[layer].mixer {
        Some(Mixer::Latent(latent)) => latent,
        other => panic!("{other:?}"),
    }
}

fn compressed(layer: &LayerSpec) -> &CompressedAttention {
    match &layer.mixer {
        Some(Mixer::Compressed(attention)) => attention,
        other => panic!("{other:?}"),
    }
}

fn state_space(spec: &ModelSpec, layer: usize) -> &StateSpace {
    match &spec.layers[layer].mixer {
        Some(Mixer::StateSpace(mixer)) => mixer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn attention_is_what_each_architecture_makes_of_it() {
    let qwen2 = spec("qwen2");
    let biases = attention(&qwen2, 0).biases;
    assert_eq!([biases.q, biases.k, biases.v, biases.o], [true, true, true, false]);
    assert_eq!(attention(&spec("qwen3"), 0).qk_norm, QkNorm::Head);
    let smollm3 = spec("smollm3");
    let placed: Vec<bool> = (0..4).map(|layer| attention(&smollm3, layer).rope.is_some()).collect();
    assert_eq!(placed, [true, true, true, false]);
    assert_eq!(attention(&smollm3, 0).rope.as_ref().unwrap().style, RopeStyle::Interleaved);
    let olmo2 = spec("olmo2");
    assert_eq!(attention(&olmo2, 0).qk_norm, QkNorm::Whole);
    assert!(!olmo2.layers[0].mixer_residual.pre_norm && olmo2.layers[0].ffn_residual.post_norm);
    let gemma2 = spec("gemma2");
    assert_eq!((attention(&gemma2, 0).window, attention(&gemma2, 1).window), (Some(7), None));
    assert_eq!((attention(&gemma2, 0).softcap, gemma2.logit_softcap), (Some(4.0), Some(2.5)));
    assert_eq!((gemma2.gain_offset, gemma2.embed_scale), (0.0, 28f64.sqrt()));
    let gemma3 = spec("gemma3");
    let [sliding, full] = [0, 5].map(|layer| attention(&gemma3, layer));
    assert_eq!((sliding.window, full.window), (Some(11), None));
    let [sliding, full] = [sliding, full].map(|attention| attention.rope.clone().unwrap());
    assert_eq!((sliding.theta, sliding.scaling), (1e4, Scaling::None));
    assert_eq!((full.theta, full.scaling), (1e6, Scaling::Linear { factor: 8.0 }));
    let phi3 = spec("phi3");
    assert_eq!((attention(&phi3, 0).rope.as_ref().unwrap().dims, attention(&phi3, 0).window), (6, Some(11)));
}

#[test]
fn long_rope_is_read_from_two_tensors() {
    let spec = spec("phi3_longrope");
    let rope = attention(&spec, 0).rope.clone().unwrap();
    let Scaling::Listed { divisors, magnitude } = &rope.scaling else { panic!("{rope:?}") };
    assert_eq!(divisors, &[1.0, 1.05, 1.1, 1.3, 1.6, 2.0], "the decimals that were meant");
    assert!((magnitude - (1.0 + 8f64.ln() / 12f64.ln()).sqrt()).abs() < 1e-6, "{magnitude}");
    let Some((12, Scaling::Listed { divisors, .. })) = &rope.long else { panic!("{rope:?}") };
    assert_eq!(divisors, &[1.1, 1.4, 2.0, 3.5, 6.0, 9.0]);
}

#[test]
fn experts_are_what_each_architecture_makes_of_them() {
    for (name, layer, score, normalize, scale) in [
        ("mixtral", 0, Score::Softmax, true, 1.0),
        ("qwen3moe", 1, Score::Softmax, true, 1.0),
        ("minimax_m2", 0, Score::Sigmoid, true, 1.0),
        ("glm4moe", 1, Score::Sigmoid, true, 2.5),
        ("gpt_oss", 0, Score::Softmax, true, 1.0),
        ("kimi_linear", 1, Score::Sigmoid, true, 2.446),
        ("deepseek2", 1, Score::Sigmoid, true, 2.5),
        ("deepseek4", 1, Score::SqrtSoftplus, true, 1.5),
        ("minimax_01", 7, Score::Softmax, true, 1.0),
        ("nemotron_h_moe", 0, Score::Sigmoid, true, 2.5),
    ] {
        let spec = spec(name);
        let route = &experts(&spec, layer).routing.route;
        assert_eq!((route.score, route.normalize, route.scale), (score, normalize, scale), "{name}");
        let bias = match (name, score) {
            ("gpt_oss", _) => Some(RouteBias::Logits),
            (_, Score::Sigmoid | Score::SqrtSoftplus) => Some(RouteBias::Choice),
            _ => None,
        };
        assert_eq!(route.bias, bias, "{name}");
    }
    let gpt_oss = spec("gpt_oss");
    let swish = Activation::Swish { alpha: 1.702 };
    let found = experts(&gpt_oss, 0);
    assert_eq!((found.activation, found.limit, found.biased), (swish, Some(7.0), true));
    assert!(attention(&gpt_oss, 1).sinks && attention(&gpt_oss, 1).window.is_none());
    let Scaling::Yarn { whole, .. } = attention(&gpt_oss, 0).rope.clone().unwrap().scaling else { panic!() };
    assert!(!whole, "the ramp's bounds are not rounded");
    let deepseek = spec("deepseek2");
    let groups = experts(&deepseek, 1).routing.route.groups.unwrap();
    assert_eq!((groups.groups, groups.top_groups), (4, 2));
    assert_eq!(experts(&deepseek, 1).shared.as_ref().unwrap().ffn.width, 20);
    assert!(matches!(&deepseek.layers[0].ffn, Some(Ffn::Gated(gated)) if gated.width == 42));
}

#[test]
fn memories_are_what_each_architecture_makes_of_them() {
    let (next, qwen35, kimi) = (spec("qwen3next"), spec("qwen35"), spec("kimi_linear"));
    assert_eq!(delta(&next, 0).projections, DeltaProjections::GatesByKeyHead);
    let found = delta(&qwen35, 0);
    assert_eq!((found.projections, found.form), (DeltaProjections::InTurns, DecayForm::Negative));
    assert_eq!((found.key_heads, found.heads, found.key_dim, found.value_dim, found.taps), (2, 4, 10, 8, 3));
    assert!(attention(&qwen35, 1).gated && attention(&next, 2).gated);
    assert_eq!((delta(&kimi, 0).heads, delta(&kimi, 2).key_dim, delta(&kimi, 0).taps), (3, 12, 4));
    let found = latent(&kimi, 1);
    assert_eq!((found.key_dim, found.rope_dim, found.value_dim, found.latent), (10, 6, 14, 18));
    assert_eq!((found.rope.is_none(), found.query_rank), (true, None));
    let deepseek = spec("deepseek2");
    let found = latent(&deepseek, 1);
    let m = 0.08 * 5f64.ln() + 1.0;
    assert!((found.scale - m * m / 22f64.sqrt()).abs() < 1e-12, "{}", found.scale);
    assert_eq!((found.query_rank, found.rope.as_ref().unwrap().style), (Some(20), RopeStyle::Interleaved));
    let granite = spec("granitehybrid");
    let found = state_space(&granite, 0);
    assert_eq!((found.heads, found.head_dim, found.groups, found.state, found.taps), (4, 12, 2, 10, 4));
    assert_eq!((found.norm_groups, found.form, found.conv_bias), (2, DecayForm::Negative, true));
    assert_eq!((granite.embed_scale, granite.logit_scale), (3.0, 1.0 / 1.7));
    assert_eq!((attention(&granite, 1).scale, granite.layers[1].mixer_residual.scale), (0.4, 0.6));
    let nemotron = spec("nemotron_h_moe");
    assert_eq!((experts(&nemotron, 0).latent, experts(&nemotron, 0).gated), (Some(16), false));
    assert!(attention(&nemotron, 1).rope.is_none() && nemotron.layers[1].ffn.is_none());
    let lfm2 = spec("lfm2");
    assert!(matches!(&lfm2.layers[0].mixer, Some(Mixer::ShortConv(conv)) if conv.taps == 3 && !conv.biased));
}

#[test]
fn memories_of_minimax_decay_and_what_goes_on_is_normalized() {
    let minimax = spec("minimax_01");
    let rates: Vec<f64> = minimax.layers[..7]
        .iter()
        .map(|layer| match &layer.mixer {
            Some(Mixer::DecayedLinear(mixer)) => {
                assert_eq!((mixer.heads, mixer.head_dim, mixer.eps), (4, 12, 1e-6));
                mixer.rate
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert!((rates[0] - 1.00001).abs() < 1e-12 && (rates[6] - 1.0 / 7.0).abs() < 2e-5, "{rates:?}");
    let full = attention(&minimax, 7);
    let rope = full.rope.as_ref().unwrap();
    assert_eq!((full.kv_heads, rope.dims, rope.style, rope.theta), (2, 8, RopeStyle::Half, 1e7));
    for residual in minimax.layers.iter().flat_map(|layer| [layer.mixer_residual, layer.ffn_residual]) {
        assert_eq!((residual.keep, residual.scale, residual.from_norm), (1.3, 1.0, true));
    }
}

#[test]
fn rows_of_deepseek4_are_compressed_by_layer() {
    let deepseek = spec("deepseek4");
    let layers: Vec<&CompressedAttention> = deepseek.layers.iter().map(compressed).collect();
    let kinds: Vec<_> = layers
        .iter()
        .map(|layer| layer.compressor.as_ref().map(|c| (c.rate, c.overlap, c.indexer.is_some())))
        .collect();
    assert_eq!(kinds, [Some((4, true, true)), Some((128, false, false)), None, Some((4, true, true))]);
    let indexer = layers[3].compressor.as_ref().unwrap().indexer.as_ref().unwrap();
    assert_eq!((indexer.heads, indexer.head_dim, indexer.top_k), (6, 12, 3));
    let thetas: Vec<f64> = layers.iter().map(|layer| layer.rope.theta).collect();
    assert_eq!(thetas, [500.0, 500.0, 2e4, 500.0]);
    let Scaling::Yarn { factor, magnitude, .. } = layers[1].rope.scaling else { panic!("{:?}", layers[1]) };
    assert_eq!((factor, magnitude, &layers[2].rope.scaling), (4.0, 1.0, &Scaling::None));
    assert_eq!((layers[0].window, layers[0].output_groups, layers[0].output_rank), (7, 2, 10));
    let hyper = deepseek.hyper.as_ref().unwrap();
    assert_eq!((deepseek.streams, hyper.iterations, hyper.eps), (4, 4, 1e-3));
    let hashed: Vec<_> = (0..4).map(|layer| experts(&deepseek, layer).routing.by_token).collect();
    assert_eq!(hashed, [true, false, false, false]);
    assert_eq!(experts(&deepseek, 0).routing.route.bias, None);
    let shared = &experts(&deepseek, 2).shared.as_ref().unwrap().ffn;
    assert_eq!((experts(&deepseek, 2).limit, shared.limit, shared.width), (Some(1.0), Some(1.0), 64));
}

/// Where a name stands in a file, after its length.
fn place(file: &[u8], name: &str) -> usize {
    let mut stored = (name.len() as u64).to_le_bytes().to_vec();
    stored.extend(name.bytes());
    let found = file.windows(stored.len()).position(|window| window == stored);
    found.unwrap_or_else(|| panic!("{name} is not in the file")) + stored.len()
}

/// What becomes of a file in which a key or tensor goes by another name: the error, or that there is none.
fn without(file: &[u8], name: &str, at: &Path) -> Result<(), String> {
    let mut changed = file.to_vec();
    changed[place(file, name) - 1] = b'~';
    fs::write(at, changed).unwrap();
    let checkpoint = Checkpoint::open(at).unwrap();
    let spec = ModelSpec::of(&checkpoint).map_err(|e| e.to_string())?;
    spec.check(&checkpoint).map_err(|e| e.to_string())
}

/// A name without what it is of: the layer's number.
fn kind(tensor: &str) -> String {
    let parts =
        tensor.split('.').map(|part| if part.bytes().all(|b| b.is_ascii_digit()) { "N" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

/// What becomes of each file without each key of its architecture, or without each tensor: names whose absence means
/// something, and those whose absence has the file's tensors or other keys at odds with it.
fn missing(of_keys: bool) -> [BTreeSet<String>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let [mut meaning, mut at_odds] = [BTreeSet::new(), BTreeSet::new()];
    for file in files() {
        let bytes = fs::read(fixture(&file)).unwrap();
        let checkpoint = Checkpoint::open(&fixture(&file)).unwrap();
        let prefix = format!("{}.", checkpoint.metadata().get_str("general.architecture").unwrap());
        let names: Vec<String> = match of_keys {
            true => checkpoint.metadata().iter().map(|(key, _)| key.to_owned()).collect(),
            false => checkpoint.tensors().map(|view| view.name().to_owned()).collect(),
        };
        for name in names.iter().filter(|name| !of_keys || name.starts_with(&prefix)) {
            let short = if of_keys { name[prefix.len()..].to_owned() } else { kind(name) };
            match without(&bytes, name, &path) {
                Ok(()) => _ = meaning.insert(short),
                Err(error) if error.contains(name) => {}
                Err(_) => _ = at_odds.insert(short),
            }
        }
    }
    [meaning, at_odds]
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn no_key_goes_missing_in_silence() {
    let [meaning, at_odds] = missing(true);
    // What the format defines for them is on the families' pages; and some are not read of each architecture.
    let defined = "attention.head_count_kv, attention.key_length, attention.layer_norm_epsilon, \
        attention.layer_norm_rms_epsilon, attention.recurrent_layers, attention.scale, attention.sliding_window, \
        attention.value_length, attn_logit_softcapping, embedding_length_out, embedding_scale, expert_count, expert_gating_func, \
        expert_group_count, expert_group_used_count, expert_shared_count, expert_shared_feed_forward_length, \
        expert_used_count, expert_weights_norm, expert_weights_scale, feed_forward_length, final_logit_softcapping, \
        full_attention_interval, logit_scale, residual_scale, rope.dimension_count, rope.dimension_sections, \
        rope.freq_base, rope.freq_base_swa, rope.scaling.attn_factor, rope.scaling.finetuned, \
        rope.scaling.original_context_length, rope.scaling.type, rope.scaling.yarn_beta_fast, \
        rope.scaling.yarn_beta_slow, rope.scaling.yarn_log_multiplier, swiglu_clamp_shexp";
    assert_eq!(meaning, set(&defined.split(", ").collect::<Vec<_>>()));
    // Their defaults do not go with the files, which is said of other keys or of tensors.
    let others = "attention.head_count_kv, attention.key_length, attention.key_length_mla, attention.q_lora_rank, \
        attention.recurrent_layers, attention.value_length_mla, expert_count, expert_feed_forward_length, \
        expert_shared_feed_forward_length, leading_dense_block_count, moe_latent_size, rope.dimension_count";
    assert_eq!(at_odds, set(&others.split(", ").collect::<Vec<_>>()));
}

#[test]
fn no_tensor_goes_missing_in_silence() {
    let [meaning, at_odds] = missing(false);
    // The head is tied then; and a bias that no other layer has is none.
    assert_eq!(meaning, set(&["blk.N.ssm_conv1d.bias", "output.weight"]));
    assert_eq!(at_odds, set(&[]));
}

#[test]
fn what_is_out_of_range_or_not_supported_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (name, key, number, wanted) in [
        (
            "minimax_m2",
            "minimax-m2.expert_gating_func",
            1u32,
            "1 is not supported (2: the sigmoid of scores)",
        ),
        ("deepseek2", "deepseek2.expert_used_count", 9, "wanted 1 to 8, found 9"),
        (
            "deepseek2",
            "deepseek2.expert_group_count",
            3,
            "wanted a divisor of the 8 experts, for groups of two or more, found 3",
        ),
        (
            "deepseek2",
            "deepseek2.expert_group_used_count",
            1,
            "wanted groups with 3 experts or more, of 2 each, found 1",
        ),
        ("deepseek2", "deepseek2.rope.dimension_count", 22, "wanted 1 to 21, found 22"),
        (
            "deepseek2",
            "deepseek2.rope.dimension_count",
            9,
            "wanted an even size, for RoPE turns pairs, found 9",
        ),
        (
            "qwen35",
            "qwen35.ssm.group_count",
            3,
            "wanted a divisor of the 4 of `qwen35.ssm.time_step_rank`, found 3",
        ),
        ("qwen35", "qwen35.ssm.inner_size", 57, "wanted a multiple of the 4 heads, found 57"),
        ("granitehybrid", "granitehybrid.ssm.group_count", 3, "wanted a divisor of the 4 heads, found 3"),
        ("qwen3", "qwen3.attention.value_length", 12, "wanted the size of a head, 14, found 12"),
        ("gpt_oss", "gpt-oss.attention.sliding_window", 0, "wanted 1 to 2147483648, found 0"),
        ("lfm2", "lfm2.shortconv.l_cache", 1, "wanted 2 to "),
        ("nemotron_h_moe", "nemotron_h_moe.expert_shared_count", 2, "2 is not supported (1)"),
        ("phi3_longrope", "phi3.rope.scaling.original_context_length", 0, "wanted 1 to 2147483648, found 0"),
        ("minimax_01", "minimax-01.rope.dimension_count", 14, "wanted 1 to 12, found 14"),
        ("minimax_01", "minimax-01.attention.value_length", 10, "wanted the size of a head, 12, found 10"),
        ("minimax_01", "minimax-01.expert_used_count", 5, "wanted 1 to 4, found 5"),
        ("deepseek4", "deepseek4.attention.head_count_kv", 2, "2 is not supported (1)"),
        (
            "deepseek4",
            "deepseek4.attention.output_group_count",
            3,
            "wanted a divisor of the 4 heads, found 3",
        ),
        ("deepseek4", "deepseek4.attention.indexer.key_length", 6, "wanted 8 to 16777216, found 6"),
        ("deepseek4", "deepseek4.attention.indexer.top_k", 0, "wanted 1 to 65536, found 0"),
        ("deepseek4", "deepseek4.attention.sliding_window", 0, "wanted 1 to 2147483648, found 0"),
        ("deepseek4", "deepseek4.hyper_connection.count", 1, "wanted 2 to 64, found 1"),
        ("deepseek4", "deepseek4.hyper_connection.sinkhorn_iterations", 0, "wanted 1 to 1000, found 0"),
        ("deepseek4", "deepseek4.hash_layer_count", 5, "wanted 0 to 4, found 5"),
        ("deepseek4", "deepseek4.embedding_length_out", 96, "96 is not supported (128)"),
        (
            "deepseek4",
            "deepseek4.expert_gating_func",
            2,
            "2 is not supported (4: the root of the softplus of scores)",
        ),
    ] {
        let mut bytes = fs::read(fixture(&format!("families_gguf/{name}.gguf"))).unwrap();
        // After the key its type, a u32, and the number.
        let at = place(&bytes, key);
        assert_eq!(bytes[at..at + 4], 4u32.to_le_bytes(), "{key} is no u32");
        bytes[at + 4..at + 8].copy_from_slice(&number.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        let error = ModelSpec::of(&Checkpoint::open(&path).unwrap()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(wanted), "{key}: {error}\nwanted: {wanted}");
    }
}

/// What becomes of a file of these keys and one tensor.
fn read(metadata: &[(&str, Meta)], tensor: &str) -> Result<ModelSpec, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, gguf(metadata, &[(tensor.to_owned(), vec![4])])).unwrap();
    ModelSpec::of(&Checkpoint::open(&path).unwrap()).map_err(|e| e.to_string())
}

/// The sources that a file of these keys and tensors needs.
fn required(metadata: &[(&str, Meta)], tensor: &str) -> BTreeSet<String> {
    let spec = read(metadata, tensor).unwrap_or_else(|e| panic!("{e}"));
    spec.required().unwrap().into_iter().map(|(source, _)| source).collect()
}

#[test]
fn layouts_of_older_files_are_known_by_their_tensors() {
    let deepseek = [
        ("general.architecture", Str("deepseek2")),
        ("deepseek2.block_count", U32(1)),
        ("deepseek2.context_length", U32(64)),
        ("deepseek2.embedding_length", U32(32)),
        ("deepseek2.feed_forward_length", U32(48)),
        ("deepseek2.leading_dense_block_count", U32(1)),
        ("deepseek2.attention.head_count", U32(4)),
        ("deepseek2.attention.key_length", U32(12)),
        ("deepseek2.attention.value_length", U32(6)),
        ("deepseek2.attention.kv_lora_rank", U32(10)),
        ("deepseek2.attention.layer_norm_rms_epsilon", F32(1e-6)),
        ("deepseek2.rope.dimension_count", U32(4)),
        ("deepseek2.expert_count", U32(4)),
        ("deepseek2.expert_used_count", U32(2)),
        ("deepseek2.expert_shared_count", U32(1)),
        ("deepseek2.expert_gating_func", U32(2)),
        ("deepseek2.vocab_size", U32(20)),
    ];
    let (older, split) = ("blk.0.attn_kv_b.weight", "beside(blk.0.attn_k_b.weight^T, blk.0.attn_v_b.weight)");
    assert!(required(&deepseek, older).contains(older));
    let newer = required(&deepseek, "blk.0.attn_v_b.weight");
    assert!(newer.contains(split) && !newer.contains(older));
    let next = [
        ("general.architecture", Str("qwen3next")),
        ("qwen3next.block_count", U32(1)),
        ("qwen3next.context_length", U32(64)),
        ("qwen3next.embedding_length", U32(32)),
        ("qwen3next.attention.head_count", U32(4)),
        ("qwen3next.attention.layer_norm_rms_epsilon", F32(1e-6)),
        ("qwen3next.expert_count", U32(4)),
        ("qwen3next.expert_used_count", U32(2)),
        ("qwen3next.expert_feed_forward_length", U32(6)),
        ("qwen3next.expert_shared_feed_forward_length", U32(6)),
        ("qwen3next.ssm.conv_kernel", U32(4)),
        ("qwen3next.ssm.state_size", U32(8)),
        ("qwen3next.ssm.group_count", U32(2)),
        ("qwen3next.ssm.time_step_rank", U32(4)),
        ("qwen3next.ssm.inner_size", U32(32)),
        ("qwen3next.vocab_size", U32(20)),
    ];
    let (older, newer) = ("blk.0.ssm_in.weight", "blk.0.attn_qkv.weight[0..16]");
    assert!(required(&next, older).contains(older) && !required(&next, older).contains(newer));
    assert!(required(&next, "x").contains(newer) && !required(&next, "x").contains(older));
}

/// `deepseek4` of two layers, with a key that is another.
fn deepseek4(key: &'static str, other: Meta) -> Result<ModelSpec, String> {
    let mut metadata = vec![
        ("general.architecture", Str("deepseek4")),
        ("deepseek4.block_count", U32(2)),
        ("deepseek4.context_length", U32(64)),
        ("deepseek4.embedding_length", U32(32)),
        ("deepseek4.attention.head_count", U32(4)),
        ("deepseek4.attention.head_count_kv", U32(1)),
        ("deepseek4.attention.key_length", U32(12)),
        ("deepseek4.attention.value_length", U32(12)),
        ("deepseek4.attention.layer_norm_rms_epsilon", F32(1e-6)),
        ("deepseek4.attention.q_lora_rank", U32(10)),
        ("deepseek4.attention.sliding_window", U32(5)),
        ("deepseek4.attention.indexer.head_count", U32(2)),
        ("deepseek4.attention.indexer.key_length", U32(6)),
        ("deepseek4.attention.indexer.top_k", U32(3)),
        ("deepseek4.attention.output_group_count", U32(2)),
        ("deepseek4.attention.output_lora_rank", U32(6)),
        ("deepseek4.attention.compress_ratios", U32s(vec![0, 4, 128])),
        ("deepseek4.attention.compress_rope_freq_base", F32(500.0)),
        ("deepseek4.rope.dimension_count", U32(4)),
        ("deepseek4.hyper_connection.count", U32(3)),
        ("deepseek4.hyper_connection.sinkhorn_iterations", U32(4)),
        ("deepseek4.hyper_connection.epsilon", F32(1e-3)),
        ("deepseek4.hash_layer_count", U32(1)),
        ("deepseek4.expert_count", U32(4)),
        ("deepseek4.expert_used_count", U32(2)),
        ("deepseek4.expert_shared_count", U32(1)),
        ("deepseek4.expert_feed_forward_length", U32(6)),
        ("deepseek4.expert_gating_func", U32(4)),
        ("deepseek4.expert_weights_norm", Bool(true)),
        ("deepseek4.swiglu_clamp_exp", F32s(vec![2.1, 0.0])),
        ("deepseek4.vocab_size", U32(20)),
    ];
    metadata.retain(|(of, _)| *of != key);
    metadata.push((key, other));
    read(&metadata, "x")
}

#[test]
fn layers_of_deepseek4_have_each_their_own() {
    const LIMITS: &str = "deepseek4.swiglu_clamp_shexp";
    let limits = |spec: &ModelSpec, layer| {
        let experts = experts(spec, layer);
        (experts.limit, experts.shared.as_ref().unwrap().ffn.limit)
    };
    let plain = deepseek4("deepseek4.vocab_size", U32(20)).unwrap();
    assert_eq!(limits(&plain, 0), (Some(2.1), Some(2.1)), "the decimal that was meant");
    assert_eq!(limits(&plain, 1), (None, None));
    let apart = deepseek4(LIMITS, F32(0.5)).unwrap();
    assert_eq!((limits(&apart, 0), limits(&apart, 1)), ((Some(2.1), Some(0.5)), (None, Some(0.5))));
    let rates = |spec: &ModelSpec| -> Vec<_> {
        spec.layers.iter().map(|layer| compressed(layer).compressor.as_ref().map(|c| c.rate)).collect()
    };
    assert_eq!(rates(&plain), [None, Some(4)], "the entry for a layer that is none is left");
    for (key, other, wanted) in [
        ("deepseek4.attention.compress_ratios", U32s(vec![4]), "wanted a rate for each of 2 layers, found 1"),
        ("deepseek4.attention.compress_ratios", U32s(vec![4, 8]), "8 is not supported (0, 4, 128)"),
        ("deepseek4.attention.compress_ratios", U32(4), "found u32 4"),
        (LIMITS, F32s(vec![1.0; 3]), "wanted one number, or one for each of 2 layers, found 3"),
        (LIMITS, F32s(vec![1.0, -1.0]), "wanted 0.0 to 1000000000.0, found -1.0"),
        (LIMITS, U32s(vec![1, 1]), "wanted an array of f32, found [u32; 2]"),
        ("deepseek4.swiglu_clamp_exp", F32(f32::NAN), "wanted 0.0 to 1000000000.0, found NaN"),
        ("deepseek4.hyper_connection.epsilon", F32(2.0), "wanted 1e-30 to 1.0, found 2.0"),
        ("deepseek4.attention.compress_rope_freq_base", F32(1.0), "found 1.0"),
        ("deepseek4.expert_weights_norm", U32(1), "found u32 1"),
    ] {
        let error = deepseek4(key, other).map(|_| ()).unwrap_err();
        assert!(error.contains(key) && error.contains(wanted), "{error}\nwanted: {wanted}");
    }
}

#[test]
fn memories_of_minimax_are_where_keys_say() {
    let full = |key: &'static str, value: Meta| -> Vec<usize> {
        let metadata = [
            ("general.architecture", Str("minimax-01")),
            ("minimax-01.block_count", U32(9)),
            ("minimax-01.context_length", U32(64)),
            ("minimax-01.embedding_length", U32(32)),
            ("minimax-01.feed_forward_length", U32(6)),
            ("minimax-01.attention.head_count", U32(4)),
            ("minimax-01.attention.layer_norm_rms_epsilon", F32(1e-5)),
            ("minimax-01.expert_count", U32(4)),
            ("minimax-01.expert_used_count", U32(2)),
            ("minimax-01.residual_scale", F32(3.5)),
            ("minimax-01.vocab_size", U32(20)),
            (key, value),
        ];
        let spec = read(&metadata, "x").unwrap_or_else(|e| panic!("{e}"));
        let attends = |layer: &usize| matches!(spec.layers[*layer].mixer, Some(Mixer::Attention(_)));
        (0..9).filter(attends).collect()
    };
    assert_eq!(full("minimax-01.other", U32(0)), [7]);
    assert_eq!(full("minimax-01.full_attention_interval", U32(4)), [3, 7]);
    let recurrent = U32s(vec![1, 0, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(full("minimax-01.attention.recurrent_layers", recurrent), [1, 8]);
}
