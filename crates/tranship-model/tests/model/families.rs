//! Families beside Llama: that fixtures fit, what each layer is, what configurations of either era mean, and which
//! keys are refused.

use super::common::{config, fixture, list};
use serde_json::{Value, json};
use tranship_model::{Attention, Experts, Ffn, Mixer, ModelSpec};
use tranship_program::Op;
use tranship_program::ops::Scaling;
use tranship_weights::Checkpoint;

/// The configuration of a fixture with some keys set.
pub fn changed(family: &str, keys: &[(&str, Value)]) -> Value {
    let mut config = config(&format!("families/{family}/config.json"));
    for (path, value) in keys {
        let mut at = &mut config;
        for key in path.split('.') {
            at = &mut at[key];
        }
        *at = value.clone();
    }
    config
}

pub fn without(family: &str, key: &str) -> Value {
    let mut config = config(&format!("families/{family}/config.json"));
    config.as_object_mut().unwrap().shift_remove(key).unwrap_or_else(|| panic!("{family} has no {key}"));
    config
}

pub fn spec(config: &Value) -> ModelSpec {
    ModelSpec::from_config(config).unwrap_or_else(|e| panic!("{config}: {e}"))
}

pub fn refusal(config: &Value) -> String {
    match ModelSpec::from_config(config) {
        Ok(_) => panic!("accepted: {config}"),
        Err(error) => error.to_string(),
    }
}

pub fn attention(spec: &ModelSpec, layer: usize) -> &Attention {
    match &spec.layers[layer].mixer {
        Some(Mixer::Attention(attention)) => attention,
        other => panic!("{other:?}"),
    }
}

pub fn experts(spec: &ModelSpec, layer: usize) -> &Experts {
    match &spec.layers[layer].ffn {
        Some(Ffn::Experts(experts)) => experts,
        other => panic!("{other:?}"),
    }
}

fn windows(spec: &ModelSpec) -> Vec<Option<u64>> {
    (0..spec.layers.len()).map(|layer| attention(spec, layer).window).collect()
}

/// What checkpoints may hold that no program reads: buffers that follow from the configuration.
const BUFFERS: [&str; 4] = ["slope_rate", "query_decay", "key_decay", "diagonal_decay"];

#[test]
fn every_fixture_of_a_family_fits() {
    let folders = list("families");
    assert!(folders.len() >= 33, "fixtures are missing: {folders:?}");
    for path in folders {
        let checkpoint = Checkpoint::open(&fixture(&path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        let spec = ModelSpec::of(&checkpoint).unwrap_or_else(|e| panic!("{path}: {e}"));
        spec.check(&checkpoint).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut unused = spec.unused(&checkpoint).unwrap();
        unused.retain(|name| !BUFFERS.iter().any(|buffer| name.ends_with(buffer)));
        assert_eq!(unused, [""; 0], "{path}");
    }
}

#[test]
fn layers_are_of_the_kinds_that_families_have() {
    let (full, sliding) = ("attention + gated", "sliding attention + gated");
    let (experts, sliding_experts) = ("attention + experts", "sliding attention + experts");
    for (family, wanted) in [
        ("mistral", vec![sliding; 2]),
        ("qwen2", vec![full; 2]),
        ("qwen2_window", vec![full, sliding, sliding]),
        ("qwen3", vec![full; 2]),
        ("smollm3", vec![full; 4]),
        ("olmo2", vec![full; 2]),
        ("phi3", vec![sliding; 2]),
        ("phi3_longrope", vec![sliding; 2]),
        ("gemma2", vec![sliding, full, sliding]),
        ("gemma3_text", vec![sliding, sliding, full, sliding]),
        ("mixtral", vec![experts; 2]),
        ("qwen3_moe", vec![experts, full, experts]),
        ("qwen3_moe_step", vec![full, experts]),
        ("minimax_m2", vec![experts; 2]),
        ("glm4_moe", vec![full, experts, experts]),
        ("gpt_oss", vec![sliding_experts, experts, sliding_experts]),
        ("gpt_oss_bf16", vec![sliding_experts, experts, sliding_experts]),
    ] {
        let spec = spec(&changed(family, &[]));
        let kinds: Vec<String> = spec.layers.iter().map(|layer| layer.kind().to_string()).collect();
        assert_eq!(kinds, wanted, "{family}");
    }
}

/// Counts of released models, as their publishers state them: what the programs name is all that there is.
#[test]
fn released_models_have_the_parameters_that_they_are_known_by() {
    for (name, billions) in [
        ("mistral-7b-v0.1", 7.24),
        ("qwen2.5-7b", 7.62),
        ("qwen3-8b", 8.19),
        ("smollm3-3b-base", 3.08),
        ("olmo-2-1124-7b", 7.30),
        ("phi-3.5-mini-instruct", 3.82),
        ("phi-4-mini-instruct", 3.84),
        ("gemma-2-9b", 9.24),
        ("gemma-3-1b-it", 1.00),
        ("mixtral-8x7b-v0.1", 46.70),
        ("qwen3-30b-a3b", 30.53),
        ("minimax-m2", 228.69),
        ("glm-4.5-air", 106.85),
        ("gpt-oss-20b", 20.91),
        ("gpt-oss-120b", 116.83),
    ] {
        let required = spec(&config(&format!("configs/{name}.json"))).required().unwrap();
        let parameters: u64 = required.iter().map(|(_, shape)| shape.iter().product::<u64>()).sum();
        let found = parameters as f64 / 1e9;
        assert!((found - billions).abs() < 0.006, "{name}: {found:.3} billion parameters, wanted {billions}");
    }
}

#[test]
fn windows_are_of_the_layers_that_slide() {
    let types = |types: &[&str]| ("layer_types", json!(types));
    let (full, sliding) = ("full_attention", "sliding_attention");
    let found = |family, keys: &[(&str, Value)]| windows(&spec(&changed(family, keys)));
    assert_eq!(found("mistral", &[("sliding_window", json!(null))]), [None, None]);
    assert_eq!(found("qwen2_window", &[("max_window_layers", json!(0))]), [Some(11); 3]);
    assert_eq!(found("qwen2_window", &[("max_window_layers", json!(3))]), [None; 3]);
    let listed = types(&[sliding, full, full]);
    assert_eq!(found("qwen2_window", &[listed]), [Some(11), None, None]);
    // Of SmolLM3, the layers without positions slide.
    let used = [("use_sliding_window", json!(true)), ("sliding_window", json!(9))];
    let derived = [&used[..], &[("layer_types", json!(null))]].concat();
    assert_eq!(found("smollm3", &derived), [None, Some(9), None, Some(9)]);
    assert_eq!(found("phi3", &[("sliding_window", json!(null))]), [None, None]);
    assert_eq!(found("gemma2", &[types(&[full, full, sliding])]), [None, None, Some(7)]);
    let six = spec(&without("gemma3_text", "sliding_window_pattern"));
    assert_eq!(windows(&six), [Some(11); 4]);
    let moe = [("use_sliding_window", json!(true)), ("sliding_window", json!(5))];
    assert_eq!(found("qwen3_moe", &moe), [Some(5); 3]);
    assert_eq!(found("gpt_oss", &[("layer_types", json!(null))]), [Some(7), None, Some(7)]);
}

#[test]
fn layers_without_positions_are_those_listed_or_each_so_many_th() {
    let has = |spec: &ModelSpec| (0..4).map(|i| attention(spec, i).rope.is_some()).collect::<Vec<_>>();
    let listed = spec(&changed("smollm3", &[("no_rope_layers", json!([0, 1, 1, 0]))]));
    assert_eq!(has(&listed), [false, true, true, false]);
    let both = [("rope_parameters", json!({"rope_type": "default"}))];
    let wanted = "`rope_parameters`: wanted `rope_scaling` or this, found both";
    assert_eq!(refusal(&changed("phi3_longrope", &both)), wanted);
    let wanted = "`rope_parameters`: wanted `rope_scaling` or this, found both";
    assert_eq!(refusal(&changed("gemma3_text", &both)), wanted);
    let interval = [("no_rope_layers", json!(null)), ("no_rope_layer_interval", json!(3))];
    assert_eq!(has(&spec(&changed("smollm3", &interval))), [true, true, false, true]);
}

#[test]
fn gemma_3_has_positions_of_two_kinds_in_both_eras() {
    let before = spec(&changed("gemma3_text", &[]));
    let nested = json!({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000},
    });
    let mut config = changed("gemma3_text", &[("rope_parameters", nested), ("dtype", json!("bfloat16"))]);
    for key in ["rope_theta", "rope_local_base_freq", "rope_scaling", "torch_dtype"] {
        config.as_object_mut().unwrap().shift_remove(key);
    }
    let since = spec(&config);
    assert_eq!(before, since);
    let of = |layer| attention(&since, layer).rope.clone().unwrap();
    assert_eq!((of(2).theta, of(2).scaling, of(2).dims), (1e6, Scaling::Linear { factor: 8.0 }, 18));
    assert_eq!((of(0).theta, of(0).scaling), (1e4, Scaling::None));
    assert_eq!(attention(&since, 0).scale, 26f64.powf(-0.5));
    assert_eq!((since.embed_scale, since.gain_offset, since.tied_head), (6.0, 1.0, true));
}

/// What transformers 5 makes of the older keys when it writes a configuration again.
fn rewritten(mut config: Value) -> Value {
    let keys = config.as_object_mut().unwrap();
    let mut rope = keys.shift_remove("rope_scaling").filter(Value::is_object).unwrap_or(json!({}));
    let of = rope.as_object_mut().unwrap();
    let rope_type = of.get("rope_type").or(of.get("type")).cloned().unwrap_or(json!("default"));
    of.insert("rope_type".into(), rope_type);
    for key in ["rope_theta", "partial_rotary_factor"] {
        of.extend(keys.get(key).cloned().map(|value| (key.to_owned(), value)));
    }
    keys.shift_remove("rope_theta");
    let dtype = keys.shift_remove("torch_dtype");
    keys.extend(dtype.map(|dtype| ("dtype".to_owned(), dtype)));
    keys.insert("rope_parameters".into(), rope);
    if keys["model_type"] == "qwen3_moe" {
        let experts = keys.shift_remove("num_experts").unwrap();
        keys.insert("num_local_experts".into(), experts);
    }
    config
}

#[test]
fn configurations_of_either_era_mean_the_same() {
    let families = [
        "mistral",
        "qwen2_window",
        "qwen3",
        "smollm3",
        "olmo2",
        "phi3",
        "phi3_longrope",
        "gemma2",
        "mixtral",
        "qwen3_moe",
        "minimax_m2",
        "glm4_moe",
        "gpt_oss",
    ];
    for family in families {
        let before = changed(family, &[]);
        assert_eq!(spec(&rewritten(before.clone())), spec(&before), "{family}");
    }
    let mut both = changed("qwen3_moe", &[]);
    both["num_local_experts"] = json!(8);
    assert_eq!(refusal(&both), "`num_local_experts`: wanted 6, as `num_experts`, found 8");
}

#[test]
fn positions_may_turn_a_part_of_each_head() {
    let dims = |config: &Value| attention(&spec(config), 0).rope.as_ref().unwrap().dims;
    assert_eq!(dims(&changed("phi3", &[])), 12);
    assert_eq!(dims(&without("phi3", "partial_rotary_factor")), 16);
    assert_eq!(dims(&changed("minimax_m2", &[])), 8);
    assert_eq!(dims(&without("minimax_m2", "rotary_dim")), 14);
    assert_eq!(dims(&without("glm4_moe", "partial_rotary_factor")), 10);
    let inside = json!({"rope_type": "default", "partial_rotary_factor": 0.2});
    let mut glm = without("glm4_moe", "partial_rotary_factor");
    glm["rope_parameters"] = inside.clone();
    assert_eq!(dims(&glm), 4);
    glm["partial_rotary_factor"] = json!(0.5);
    let wanted = "`rope_parameters.partial_rotary_factor`: wanted 0.5, as elsewhere, found 0.2";
    assert_eq!(refusal(&glm), wanted);
}

/// Frequencies are chosen by the context, and the identity tells the two apart.
#[test]
fn long_contexts_of_phi_3_have_frequencies_of_their_own() {
    let spec = spec(&changed("phi3_longrope", &[]));
    let rope = attention(&spec, 0).rope.clone().unwrap();
    let magnitude = (1.0 + (96f64 / 12.0).ln() / 12f64.ln()).sqrt();
    let listed = |divisors: [f64; 6]| Scaling::Listed { divisors: divisors.to_vec(), magnitude };
    assert_eq!(rope.scaling_at(12), &listed([1.0, 1.05, 1.1, 1.3, 1.6, 2.0]));
    assert_eq!(rope.scaling_at(13), &listed([1.1, 1.4, 2.0, 3.5, 6.0, 9.0]));
    assert_eq!(spec.identity_note(12), Some("rope=short"));
    assert_eq!(spec.identity_note(13), Some("rope=long"));
    let other = |key: &str| {
        let factors = json!([1.1, 1.4, 2.0, 3.5, 6.0, 9.5]);
        let path = format!("rope_scaling.{key}");
        let config = changed("phi3_longrope", &[(path.as_str(), factors)]);
        ModelSpec::from_config(&config).unwrap().canonical_programs().unwrap()
    };
    let text = spec.canonical_programs().unwrap();
    assert_ne!(other("long_factor"), text);
    assert_ne!(other("short_factor"), text);
    for name in ["su", "yarn"] {
        let older = changed("phi3_longrope", &[("rope_scaling.type", json!(name))]);
        assert_eq!(ModelSpec::from_config(&older).unwrap(), spec);
    }
    let plain = ModelSpec::from_config(&changed("phi3", &[])).unwrap();
    assert_eq!(plain.identity_note(1 << 20), None);
}

#[test]
fn routing_is_as_each_family_has_it() {
    for (family, layer, wanted) in [
        ("mixtral", 0, "top_k: 2, score: softmax, normalize: yes, eps: 0, scale: 1"),
        ("qwen3_moe", 0, "top_k: 3, score: softmax, normalize: yes, eps: 0, scale: 1"),
        ("qwen3_moe_step", 1, "top_k: 2, score: softmax, normalize: no, eps: 0, scale: 1"),
        ("minimax_m2", 0, "top_k: 3, score: sigmoid, bias: choice, normalize: yes, eps: 0, scale: 1"),
        ("glm4_moe", 1, "top_k: 3, score: sigmoid, bias: choice, normalize: yes, eps: 1e-20, scale: 2.5"),
        ("gpt_oss", 0, "top_k: 2, score: softmax, bias: logits, normalize: yes, eps: 0, scale: 1"),
    ] {
        let spec = spec(&changed(family, &[]));
        assert_eq!(attrs(&spec, layer), wanted, "{family}");
    }
    let grouped = [("n_group", json!(3)), ("topk_group", json!(2))];
    let spec = spec(&changed("glm4_moe", &grouped));
    assert!(attrs(&spec, 1).ends_with(", groups: 3, top_groups: 2, group_score: top2"));
    let shared = experts(&spec, 1).shared.as_ref().unwrap();
    assert_eq!((shared.ffn.width, shared.gated), (14, false));
}

pub fn attrs(spec: &ModelSpec, layer: usize) -> String {
    let op = Op::Route(experts(spec, layer).routing.route.clone());
    op.attrs().iter().map(|(key, value)| format!("{key}: {value}")).collect::<Vec<_>>().join(", ")
}

/// What each family needs, and no default stands in for.
#[test]
fn keys_that_a_family_needs_are_named_where_they_are_missing() {
    let all = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
    let own: [(&str, &[&str]); 13] = [
        ("mistral", &["num_key_value_heads", "sliding_window", "hidden_act", "rms_norm_eps"]),
        ("qwen2_window", &["num_key_value_heads", "sliding_window", "max_window_layers"]),
        ("qwen3", &["num_key_value_heads", "head_dim", "max_position_embeddings"]),
        ("smollm3", &["num_key_value_heads", "hidden_act"]),
        ("olmo2", &["rms_norm_eps", "max_position_embeddings"]),
        ("phi3_longrope", &["original_max_position_embeddings", "max_position_embeddings"]),
        ("gemma2", &["hidden_activation", "head_dim", "query_pre_attn_scalar", "attn_logit_softcapping"]),
        ("gemma3_text", &["hidden_activation", "head_dim", "query_pre_attn_scalar"]),
        ("mixtral", &["num_local_experts", "num_experts_per_tok", "hidden_act"]),
        ("qwen3_moe", &["num_experts", "num_experts_per_tok", "moe_intermediate_size", "head_dim"]),
        ("minimax_m2", &["num_local_experts", "num_experts_per_tok", "head_dim", "num_key_value_heads"]),
        (
            "glm4_moe",
            &["n_routed_experts", "n_shared_experts", "n_group", "topk_group", "first_k_dense_replace"],
        ),
        ("gpt_oss", &["num_local_experts", "head_dim", "sliding_window", "rope_scaling"]),
    ];
    for (family, own) in own {
        for key in own.iter().chain(&all) {
            let found = refusal(&without(family, key));
            assert!(found.starts_with(&format!("`{key}`: missing, wanted ")), "{family}: {found}");
        }
    }
    let scaling = refusal(&without("glm4_moe", "routed_scaling_factor"));
    assert_eq!(scaling, "`routed_scaling_factor`: missing, wanted a number");
    let final_cap = refusal(&without("gemma2", "final_logit_softcapping"));
    assert_eq!(final_cap, "`final_logit_softcapping`: missing, wanted a number, or null");
}

#[test]
fn values_that_cannot_be_are_named() {
    for (family, key, value, wanted) in [
        ("mistral", "sliding_window", json!(0), "wanted 1 to 2147483648, found 0"),
        ("mistral", "sliding_window", json!("7"), "wanted a whole number, found \"7\""),
        ("qwen2", "use_sliding_window", json!("no"), "wanted true or false, found \"no\""),
        ("qwen2_window", "max_window_layers", json!(-1), "wanted a whole number, found -1"),
        ("qwen2_window", "layer_types", json!("full"), "wanted a list of texts, found \"full\""),
        (
            "qwen2_window",
            "layer_types",
            json!(["full_attention"]),
            "wanted an entry for each of 3 layers, found 1",
        ),
        ("smollm3", "no_rope_layers", json!([1, 0]), "wanted an entry for each of 4 layers, found 2"),
        (
            "phi3",
            "partial_rotary_factor",
            json!(0.7),
            "wanted an even part of the 16 elements of a head, for RoPE turns pairs, found 0.7, which is 11",
        ),
        (
            "phi3_longrope",
            "rope_scaling.long_factor",
            json!([1.0, 2.0]),
            "wanted a number for each of 6 pairs, found 2",
        ),
        ("phi3_longrope", "rope_scaling.short_factor", json!(2), "wanted a list of numbers, found 2"),
        ("gemma2", "query_pre_attn_scalar", json!(0), "wanted 1e-6 to 1000000000000.0, found 0.0"),
        ("gemma2", "final_logit_softcapping", json!(-1.5), "wanted 1e-6 to 1000000000000.0, found -1.5"),
        (
            "gemma2",
            "sliding_window",
            json!(null),
            "wanted a window, for attention of layer 0 slides, found none",
        ),
        ("gemma3_text", "sliding_window_pattern", json!(0), "wanted 1 to 4096, found 0"),
        ("gemma3_text", "head_dim", json!(17), "wanted an even size, for RoPE turns pairs, found 17"),
        ("mixtral", "num_experts_per_tok", json!(6), "wanted 1 to 5, found 6"),
        ("mixtral", "num_key_value_heads", json!(3), "wanted a divisor of the 4 heads, found 3"),
        ("qwen3_moe", "decoder_sparse_step", json!(0), "wanted 1 to 4096, found 0"),
        ("qwen3_moe", "mlp_only_layers", json!(1), "wanted a list of whole numbers, found 1"),
        ("qwen3_moe", "norm_topk_prob", json!(1), "wanted true or false, found 1"),
        ("minimax_m2", "attn_type_list", json!([1]), "wanted an entry for each of 2 layers, found 1"),
        ("minimax_m2", "rotary_dim", json!(16), "wanted 2 to 14, found 16"),
        (
            "glm4_moe",
            "n_group",
            json!(4),
            "wanted a divisor of the 6 experts, for groups of two or more, found 4",
        ),
        ("glm4_moe", "first_k_dense_replace", json!(4), "wanted 0 to 3, found 4"),
        ("glm4_moe", "routed_scaling_factor", json!(0), "wanted 1e-9 to 1000000000.0, found 0.0"),
        ("gpt_oss", "swiglu_limit", json!("7"), "wanted a number, found \"7\""),
        ("gpt_oss", "num_experts_per_tok", json!(0), "wanted 1 to 5, found 0"),
    ] {
        assert_eq!(refusal(&changed(family, &[(key, value)])), format!("`{key}`: {wanted}"), "{family}");
    }
    let elements = [
        (
            "qwen2_window",
            "layer_types",
            json!(["full_attention", "linear", "full_attention"]),
            "`layer_types[1]`: wanted full_attention or sliding_attention, found \"linear\"",
        ),
        ("smollm3", "no_rope_layers", json!([1, 0, 2, 0]), "`no_rope_layers[2]`: wanted 0 to 1, found 2"),
        ("qwen3_moe", "mlp_only_layers", json!([0, 3]), "`mlp_only_layers[1]`: wanted 0 to 2, found 3"),
        (
            "phi3_longrope",
            "rope_scaling.long_factor",
            json!([1, 2, 0, 1, 1, 1]),
            "`rope_scaling.long_factor[2]`: wanted 1e-6 to 1000000000000.0, found 0.0",
        ),
    ];
    for (family, key, value, wanted) in elements {
        assert_eq!(refusal(&changed(family, &[(key, value)])), wanted, "{family}");
    }
    let interval = [("no_rope_layers", json!(null)), ("no_rope_layer_interval", json!(true))];
    let wanted = "`no_rope_layer_interval`: wanted a whole number, found true";
    assert_eq!(refusal(&changed("smollm3", &interval)), wanted);
    let groups = [("n_group", json!(3)), ("topk_group", json!(1))];
    let wanted = "`topk_group`: wanted groups with 3 experts or more, of 2 each, found 1";
    assert_eq!(refusal(&changed("glm4_moe", &groups)), wanted);
    let dims = [("rope_parameters", json!({"rope_type": "default", "partial_rotary_factor": 0.3}))];
    let wanted = "`rotary_dim`: wanted the 4 elements of `partial_rotary_factor`, found 8";
    assert_eq!(refusal(&changed("minimax_m2", &dims)), wanted);
}

#[test]
fn what_is_not_computed_is_named() {
    let fp4 = json!({"quant_method": "mxfp4"});
    for (family, key, value, wanted) in [
        (
            "qwen3",
            "hidden_act",
            json!("mish"),
            "\"mish\" is not supported (silu, gelu, gelu_pytorch_tanh, relu2)",
        ),
        ("mixtral", "hidden_act", json!("relu2"), "\"relu2\" of gated experts is not supported (silu, gelu)"),
        ("olmo2", "partial_rotary_factor", json!(0.5), "0.5 is not supported (1)"),
        ("phi3", "attention_bias", json!(true), "true is not supported (false)"),
        ("gemma2", "use_bidirectional_attention", json!(true), "true is not supported (false)"),
        ("minimax_m2", "scoring_func", json!("softmax"), "\"softmax\" is not supported (\"sigmoid\")"),
        ("minimax_m2", "use_routing_bias", json!(false), "false is not supported (true)"),
        ("minimax_m2", "shared_intermediate_size", json!(64), "64 is not supported (0)"),
        ("minimax_m2", "layernorm_mlp_beta", json!(0.5), "0.5 is not supported (1)"),
        (
            "minimax_m2",
            "sliding_window",
            json!(64),
            "64 is not supported (null: attention over all positions)",
        ),
        ("gpt_oss", "hidden_act", json!("gelu"), "\"gelu\" is not supported (\"silu\")"),
        (
            "qwen3",
            "quantization_config",
            fp4,
            "a quantized checkpoint is not supported (plain float weights)",
        ),
    ] {
        assert_eq!(refusal(&changed(family, &[(key, value)])), format!("`{key}`: {wanted}"), "{family}");
    }
    let rope =
        |family, name: &str| refusal(&changed(family, &[("rope_scaling", json!({"rope_type": name}))]));
    let known = "is not supported (default, linear, llama3, yarn)";
    assert_eq!(rope("qwen3", "longrope"), format!("`rope_scaling.rope_type`: \"longrope\" {known}"));
    let phi3 = "`rope_scaling.rope_type`: \"llama3\" is not supported (default, longrope)";
    assert_eq!(rope("phi3", "llama3"), phi3);
}

/// Scales of FP8 weights are read by no program: the model is known, and can be planned for, but its files are refused.
#[test]
fn fp8_is_for_planning_alone() {
    let folder = tempfile::tempdir().unwrap();
    let fp8 = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let config = changed("qwen3", &[("quantization_config", fp8)]);
    let spec = spec(&config);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let bare = Checkpoint::open(&folder.path().join("config.json")).unwrap();
    assert_eq!(ModelSpec::of(&bare).unwrap(), spec);
    let weights = fixture("families/qwen3/model.safetensors");
    std::fs::copy(weights, folder.path().join("model.safetensors")).unwrap();
    let error = ModelSpec::of(&Checkpoint::open(folder.path()).unwrap()).unwrap_err().to_string();
    let wanted = "`quantization_config`: a quantized checkpoint is not supported (plain float weights)";
    assert_eq!(error, wanted);
}
