//! Families with memories, state spaces, convolutions, latent and compressed rows: what each layer is, what
//! configurations of either era mean, and which keys are refused.

use super::common::config;
use super::families::{attention, attrs, changed, experts, refusal, spec, without};
use serde_json::{Value, json};
use tranship_model::{Cut, Ffn, Mixer, ModelSpec, StateSpace};
use tranship_program::ops::Scaling;

fn released(name: &str) -> ModelSpec {
    spec(&config(&format!("configs/{name}.json")))
}

fn kinds(spec: &ModelSpec) -> Vec<String> {
    spec.layers.iter().map(|layer| layer.kind().to_string()).collect()
}

fn state_space(spec: &ModelSpec, layer: usize) -> &StateSpace {
    match &spec.layers[layer].mixer {
        Some(Mixer::StateSpace(mixer)) => mixer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn layers_are_of_the_kinds_that_families_have() {
    let (delta, latent, state) = ("gated delta rule", "latent attention", "state space");
    let channel = "channel delta rule + experts";
    let linear = "decayed linear attention + experts";
    let (conv, attends) = ("short convolution + gated", "attention + gated");
    let with = |mixer: &str, ffn: &str| format!("{mixer} + {ffn}");
    let (moe, gated) = (|mixer| with(mixer, "experts"), |mixer| with(mixer, "gated"));
    for (family, wanted) in [
        ("qwen3_next", vec![moe(delta), gated(delta), moe("attention"), moe(delta)]),
        ("qwen3_5_text", vec![gated(delta), gated("attention"), gated(delta)]),
        ("qwen3_5_moe_text", vec![moe(delta), moe(delta), moe("attention")]),
        ("minimax", [linear, linear, "attention + experts", linear].map(String::from).to_vec()),
        ("kimi_linear", vec![gated("channel delta rule"), channel.into(), moe(latent), channel.into()]),
        ("lfm2", [conv, attends, conv, attends].map(String::from).to_vec()),
        ("granitemoehybrid", vec![moe(state), moe("attention"), moe(state)]),
        ("granitemoehybrid_rope", vec![gated("attention"), gated(state)]),
        ("nemotron_h", [state, "experts", "attention", "plain", state].map(String::from).to_vec()),
        ("nemotron_h_latent", ["experts", "attention", state].map(String::from).to_vec()),
        ("deepseek_v3", vec![gated(latent), moe(latent), moe(latent)]),
        (
            "deepseek_v4",
            vec![
                with("sliding shared attention", "hash experts"),
                moe("compressed sparse attention"),
                moe("compressed attention"),
                moe("compressed sparse attention"),
            ],
        ),
    ] {
        assert_eq!(kinds(&spec(&changed(family, &[]))), wanted, "{family}");
    }
}

/// What a step carries, in the order in which programs first touch it.
#[test]
fn what_layers_carry_is_named_after_them() {
    for (family, layer, wanted) in [
        ("qwen3_next", 0, "conv_q0 conv_k0 conv_v0 s0"),
        ("qwen3_next", 2, "k2 v2"),
        ("kimi_linear", 1, "conv_q1 conv_k1 conv_v1 s1"),
        ("kimi_linear", 2, "c2 r2"),
        ("minimax", 3, "s3"),
        ("lfm2", 2, "conv2"),
        ("granitemoehybrid", 2, "conv_x2 conv_b2 conv_c2 s2"),
        ("nemotron_h", 1, ""),
        ("deepseek_v3", 0, "c0 r0"),
        ("deepseek_v4", 0, "kv0"),
    ] {
        let spec = spec(&changed(family, &[]));
        let graph = spec.program(Cut::DecodeLayer { layer, ctx: 48 }).unwrap().lift().unwrap();
        let carried: Vec<&str> = graph.roles().carried().map(|c| c.name.as_str()).collect();
        assert_eq!(carried.join(" "), wanted, "{family}, layer {layer}");
    }
}

/// Counts of released models, as their publishers state them, without layers that predict further tokens.
#[test]
fn released_models_have_the_parameters_that_they_are_known_by() {
    for (name, billions) in [
        ("qwen3-next-80b-a3b-instruct", 79.67),
        ("minimax-text-01", 456.09),
        ("minimax-text-01-hf", 456.09),
        ("kimi-linear-48b-a3b-instruct", 49.12),
        ("lfm2-1.2b", 1.17),
        ("granite-4.0-h-small", 32.21),
        ("nemotron-3-nano-30b-a3b", 31.58),
        ("nemotron-h-8b-base-8k", 8.10),
        ("deepseek-v3", 671.03),
    ] {
        let required = released(name).required().unwrap();
        let parameters: u64 = required.iter().map(|(_, shape)| shape.iter().product::<u64>()).sum();
        let found = parameters as f64 / 1e9;
        assert!((found - billions).abs() < 0.006, "{name}: {found:.3} billion parameters, wanted {billions}");
    }
}

#[test]
fn a_composite_is_its_language_model() {
    let (whole, text) = (released("qwen3.5-9b"), released("qwen3.5-9b-text"));
    let names = text.names.clone().under("model.", "model.language_model.");
    assert_eq!(whole, ModelSpec { names, ..text });
    let first = &whole.required().unwrap()[0].0;
    assert_eq!(first, "model.language_model.embed_tokens.weight");

    let change = |path: &[&str], value: Value| {
        let mut config = config("configs/qwen3.5-9b.json");
        *path.iter().fold(&mut config, |at, key| &mut at[*key]) = value;
        config
    };
    let tied = spec(&change(&["tie_word_embeddings"], json!(true)));
    assert!(tied.tied_head && !whole.tied_head);
    for (path, value, wanted) in [
        (&["text_config"][..], json!(null), "`text_config`: missing, wanted an object"),
        (
            &["text_config", "model_type"],
            json!("qwen3"),
            "`text_config.model_type`: \"qwen3\" is not supported (\"qwen3_5_text\")",
        ),
        (
            &["text_config", "hidden_size"],
            json!(null),
            "`text_config.hidden_size`: missing, wanted a whole number",
        ),
        (
            &["text_config", "num_key_value_heads"],
            json!(3),
            "`text_config.num_key_value_heads`: wanted a divisor of the 16 heads, found 3",
        ),
    ] {
        assert_eq!(refusal(&change(path, value)), wanted);
    }
    let experts = json!({"model_type": "qwen3_5_moe", "text_config": changed("qwen3_5_moe_text", &[])});
    let merged = &spec(&experts).required().unwrap();
    let gates = "model.language_model.layers.0.mlp.experts.gate_up_proj[:, 0..10]";
    assert!(merged.iter().any(|(name, shape)| name == gates && *shape == [5, 10, 36]), "{merged:?}");
}

#[test]
fn attention_is_in_the_layers_that_say_so() {
    let full = |spec: &ModelSpec| -> Vec<usize> {
        (0..spec.layers.len()).filter(|&i| kinds(spec)[i].contains("attention +")).collect()
    };
    assert_eq!(full(&released("qwen3-next-80b-a3b-instruct"))[..3], [3, 7, 11]);
    assert_eq!(full(&released("qwen3.5-9b"))[..3], [3, 7, 11]);
    assert_eq!(full(&released("kimi-linear-48b-a3b-instruct")), [3, 7, 11, 15, 19, 23, 26]);
    assert_eq!(full(&released("lfm2-1.2b")), [2, 5, 8, 10, 12, 14]);
    let (linear, attends) = ("linear_attention", "full_attention");
    let listed = changed("qwen3_next", &[("layer_types", json!([attends, linear, linear, linear]))]);
    assert_eq!(full(&spec(&listed)), [0]);
    let lfm2 = changed("lfm2", &[("layer_types", json!(["conv", "conv", attends, "conv"]))]);
    assert_eq!(full(&spec(&lfm2)), [2]);
}

/// The two configurations of one model differ in what is rotated: that of `transformers` has no word for it.
#[test]
fn minimax_is_one_model_in_two_configurations() {
    let (hf, own) = (released("minimax-text-01-hf"), released("minimax-text-01"));
    let dims = |spec: &ModelSpec| attention(spec, 7).rope.as_ref().unwrap().dims;
    assert_eq!((dims(&hf), dims(&own)), (128, 64));
    let mut same = own.clone();
    same.architecture = hf.architecture.clone();
    for layer in same.layers.iter_mut() {
        if let Some(Mixer::Attention(attention)) = &mut layer.mixer {
            attention.rope.as_mut().unwrap().dims = 128;
        }
    }
    assert_eq!(same, hf);
    let rate = |layer: usize| match &own.layers[layer].mixer {
        Some(Mixer::DecayedLinear(linear)) => linear.rate,
        other => panic!("{other:?}"),
    };
    assert!((rate(0) - 1.00001).abs() < 1e-12 && (rate(78) - (1.0 - 78.0 / 79.00001 + 1e-5)).abs() < 1e-12);

    let spec = spec(&changed("minimax", &[]));
    let factors = |layer: usize| {
        let layer = &spec.layers[layer];
        [layer.mixer_residual, layer.ffn_residual].map(|r| (r.keep, r.scale, r.from_norm))
    };
    assert_eq!(factors(0), [(1.2, 1.1, true), (1.4, 0.8, true)]);
    assert_eq!(factors(2), [(1.3, 0.9, true), (1.4, 0.8, true)]);
}

/// Layers that compress have positions of their own, by keys that differ with the age of the file.
#[test]
fn deepseek_v4_has_positions_of_two_kinds_in_both_eras() {
    let before = changed("deepseek_v4", &[]);
    let mut since = without("deepseek_v4", "rope_scaling");
    let mut compressed = before["rope_scaling"].clone();
    compressed["rope_theta"] = before["compress_rope_theta"].clone();
    compressed["rope_type"] = json!("yarn");
    let main = json!({"rope_type": "default", "rope_theta": before["rope_theta"]});
    since["rope_parameters"] = json!({"main": main, "compress": compressed});
    let (before, since) = (spec(&before), spec(&since));
    assert_eq!(before, since);
    let rope = |layer: usize| match &since.layers[layer].mixer {
        Some(Mixer::Compressed(mixer)) => mixer.rope.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(rope(0).scaling, Scaling::None);
    assert!(matches!(rope(1).scaling, Scaling::Yarn { magnitude: 1.0, .. }), "{:?}", rope(1));
    assert!(rope(0).theta != rope(1).theta && rope(1) == rope(2));
}

#[test]
fn lfm2_adjusts_the_width_that_is_written() {
    let width = |spec: &ModelSpec| match &spec.layers[0].ffn {
        Some(Ffn::Gated(gated)) => gated.width,
        other => panic!("{other:?}"),
    };
    assert_eq!(width(&released("lfm2-1.2b")), 8192);
    assert_eq!(width(&spec(&changed("lfm2", &[]))), 72);
    assert_eq!(width(&spec(&changed("lfm2_bias", &[]))), 50);
    let none = [("block_ffn_dim_multiplier", json!(null)), ("block_ff_dim", json!(91))];
    assert_eq!(width(&spec(&changed("lfm2", &none))), 72);
    assert_eq!(width(&spec(&changed("lfm2", &[("block_multiple_of", json!(1))]))), 61);
    let untied = |key: &str| !spec(&changed("lfm2", &[(key, json!(false))])).tied_head;
    assert!(untied("tie_word_embeddings") && untied("tie_embedding"));
    assert!(spec(&changed("lfm2", &[])).tied_head);
}

#[test]
fn granite_multiplies_what_its_keys_say() {
    let spec = spec(&changed("granitemoehybrid", &[]));
    assert_eq!((spec.embed_scale, spec.logit_scale, spec.tied_head), (3.0, 1.0 / 1.7, true));
    assert_eq!((spec.layers[1].mixer_residual.scale, spec.layers[1].ffn_residual.scale), (0.6, 0.6));
    assert_eq!((attention(&spec, 1).scale, &attention(&spec, 1).rope), (0.4, &None));
    let rope = self::spec(&changed("granitemoehybrid_rope", &[]));
    assert_eq!(attention(&rope, 0).rope.as_ref().unwrap().dims, 12);
    let auto = self::spec(&changed("granitemoehybrid", &[("mamba_d_head", json!("auto"))]));
    assert_eq!(state_space(&auto, 0).head_dim, 18);
}

#[test]
fn nemotron_names_its_parts_in_two_ways() {
    let pattern = spec(&changed("nemotron_h", &[]));
    let older = json!(["mamba", "moe", "attention", "mlp", "mamba"]);
    let newer = json!(["linear_attention", "moe", "full_attention", "mlp", "linear_attention"]);
    for types in [older, newer] {
        let mut config = without("nemotron_h", "hybrid_override_pattern");
        config["layers_block_type"] = types;
        assert_eq!(spec(&config), pattern);
        // Newer files do not count the layers beside the list.
        config.as_object_mut().unwrap().shift_remove("num_hidden_layers");
        assert_eq!(spec(&config), pattern);
    }
    assert_eq!(attention(&released("nemotron-h-8b-base-8k"), 7).head_dim, 128);
    let latent = spec(&changed("nemotron_h_latent", &[]));
    let own = experts(&latent, 0);
    assert_eq!((own.latent, own.latent_biased, own.biased, own.gated), (Some(16), true, false, false));
    assert!(state_space(&latent, 2).proj_bias && !state_space(&pattern, 0).proj_bias);
}

/// A bound above that is no bound is written as infinite.
#[test]
fn time_steps_have_the_bounds_that_are_written() {
    let limits = |value: Value| {
        let config = changed("granitemoehybrid", &[("time_step_limit", value)]);
        state_space(&spec(&config), 0).dt_limits
    };
    let infinite = json!({"__float__": "Infinity"});
    assert_eq!(limits(json!(null)), (None, None));
    assert_eq!(limits(json!([0.0, infinite])), (None, None));
    assert_eq!(limits(json!([0.001, infinite])), (Some(0.001), None));
    assert_eq!(limits(json!([0.0, 0.1])), (None, Some(0.1)));
    let clamped = changed("granitemoehybrid", &[("time_step_limit", json!([0.01, 0.1]))]);
    let program = spec(&clamped).program(Cut::PrefillLayer { layer: 0, ctx: 4 }).unwrap();
    assert!(program.to_string().contains("min: 0.01, max: 0.1"), "{program}");
    program.lift().unwrap();
    for (value, wanted) in [
        (json!([0.1]), "`time_step_limit`: wanted a least and a greatest number, found 1 of them"),
        (json!([0.2, 0.1]), "`time_step_limit`: wanted a least and a greatest number, found 0.2 and 0.1"),
        (json!([0.0, "Infinity"]), "`time_step_limit[1]`: wanted a number, found \"Infinity\""),
        (json!([-1.0, 0.1]), "`time_step_limit[0]`: wanted 0.0 to 1000000000000.0, found -1.0"),
    ] {
        assert_eq!(refusal(&changed("granitemoehybrid", &[("time_step_limit", value)])), wanted);
    }
}

#[test]
fn routing_is_as_each_family_has_it() {
    let softmax = "top_k: 2, score: softmax, normalize: yes, eps: 0, scale: 1";
    let sigmoid = "top_k: 2, score: sigmoid, bias: choice, normalize: yes, eps: 1e-20, scale:";
    for (family, layer, wanted) in [
        ("qwen3_next", 0, softmax.to_owned()),
        ("qwen3_5_moe_text", 0, softmax.to_owned()),
        ("minimax", 0, softmax.to_owned()),
        ("granitemoehybrid", 0, softmax.to_owned()),
        ("kimi_linear", 1, format!("{sigmoid} 2.446")),
        ("nemotron_h", 1, format!("{sigmoid} 2.5")),
        ("nemotron_h_latent", 0, format!("{sigmoid} 2.5, groups: 4, top_groups: 2, group_score: top2")),
    ] {
        assert_eq!(attrs(&spec(&changed(family, &[])), layer), wanted, "{family}");
    }
    let plain = spec(&changed("qwen3_next", &[("norm_topk_prob", json!(false))]));
    assert_eq!(attrs(&plain, 0), "top_k: 2, score: softmax, normalize: no, eps: 0, scale: 1");
    let shared = |family: &str, layer| {
        let spec = spec(&changed(family, &[]));
        experts(&spec, layer).shared.as_ref().map(|shared| (shared.ffn.width, shared.gated))
    };
    assert_eq!(shared("qwen3_next", 0), Some((14, true)));
    assert_eq!(shared("kimi_linear", 1), Some((10, false)));
    assert_eq!(shared("nemotron_h", 1), Some((26, false)));
    assert_eq!(shared("minimax", 0), None);
}

/// What each family needs, and no default stands in for.
const NEEDED: &[(&str, &str)] = &[
    ("qwen3_next", "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim"),
    ("qwen3_next", "linear_conv_kernel_dim head_dim full_attention_interval moe_intermediate_size"),
    ("qwen3_next", "num_experts num_experts_per_tok shared_expert_intermediate_size hidden_act"),
    ("qwen3_5_text", "linear_num_key_heads linear_num_value_heads linear_key_head_dim head_dim"),
    ("qwen3_5_text", "linear_conv_kernel_dim intermediate_size hidden_act rms_norm_eps"),
    ("qwen3_5_moe_text", "num_experts num_experts_per_tok shared_expert_intermediate_size hidden_act"),
    ("minimax", "layer_types num_local_experts num_experts_per_tok intermediate_size"),
    ("kimi_linear", "linear_attn_config kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"),
    ("kimi_linear", "first_k_dense_replace num_experts num_experts_per_token num_shared_experts"),
    ("kimi_linear", "num_expert_group topk_group routed_scaling_factor model_max_length"),
    ("lfm2", "conv_L_cache full_attn_idxs block_multiple_of block_ffn_dim_multiplier norm_eps"),
    ("granitemoehybrid", "layer_types attention_multiplier embedding_multiplier logits_scaling"),
    ("granitemoehybrid", "residual_multiplier mamba_n_heads mamba_n_groups mamba_d_head mamba_d_state"),
    ("granitemoehybrid", "mamba_d_conv mamba_expand num_local_experts shared_intermediate_size"),
    ("granitemoehybrid", "intermediate_size"),
    ("nemotron_h", "hybrid_override_pattern head_dim num_key_value_heads mamba_num_heads mamba_head_dim"),
    ("nemotron_h", "n_groups ssm_state_size conv_kernel mlp_hidden_act intermediate_size"),
    ("nemotron_h", "n_routed_experts moe_intermediate_size moe_shared_expert_intermediate_size"),
    ("nemotron_h", "layer_norm_epsilon"),
    ("deepseek_v3", "kv_lora_rank qk_nope_head_dim n_group n_routed_experts"),
    ("deepseek_v4", "hc_mult o_groups index_topk swiglu_limit sliding_window compress_rope_theta"),
];

#[test]
fn keys_that_a_family_needs_are_named_where_they_are_missing() {
    const ALL: &str = "hidden_size num_hidden_layers num_attention_heads vocab_size";
    for (family, own) in NEEDED {
        for key in own.split(' ').chain(ALL.split(' ')) {
            let found = refusal(&without(family, key));
            assert!(found.starts_with(&format!("`{key}`: missing, wanted ")), "{family}: {found}");
        }
    }
    let inner =
        |key: &str| refusal(&changed("kimi_linear", &[(&format!("linear_attn_config.{key}"), json!(null))]));
    for key in ["full_attn_layers", "kda_layers", "num_heads", "head_dim", "short_conv_kernel_size"] {
        let wanted = format!("`linear_attn_config.{key}`: missing, wanted ");
        assert!(inner(key).starts_with(&wanted), "{}", inner(key));
    }
    let text_01 = |key: &str| {
        let mut config = config("configs/minimax-text-01.json");
        config.as_object_mut().unwrap().shift_remove(key).unwrap();
        refusal(&config)
    };
    assert_eq!(text_01("attn_type_list"), "`attn_type_list`: missing, wanted 0 or 1, for each layer");
    assert_eq!(text_01("postnorm"), "`postnorm`: missing, wanted true");
}

#[test]
fn values_that_cannot_be_are_named() {
    for (family, key, value, wanted) in [
        (
            "qwen3_next",
            "linear_num_key_heads",
            json!(3),
            "wanted a divisor of the 4 of `linear_num_value_heads`, found 3",
        ),
        ("qwen3_next", "linear_conv_kernel_dim", json!(1), "wanted 2 to 4096, found 1"),
        ("qwen3_next", "full_attention_interval", json!(0), "wanted 1 to 4096, found 0"),
        ("qwen3_5_text", "layer_types", json!(["conv"]), "wanted an entry for each of 3 layers, found 1"),
        ("qwen3_5_moe_text", "num_experts_per_tok", json!(6), "wanted 1 to 5, found 6"),
        ("minimax", "mlp_alpha_factor", json!(0), "wanted 1e-6 to 1000000.0, found 0.0"),
        (
            "kimi_linear",
            "linear_attn_config.kda_layers",
            json!([1, 2]),
            "wanted each of 4 layers, in it or in `full_attn_layers`, found 3 in both",
        ),
        (
            "kimi_linear",
            "linear_attn_config.kda_layers",
            json!([1, 2, 3, 4]),
            "wanted each layer once, in one list, found 3 again",
        ),
        ("kimi_linear", "first_k_dense_replace", json!(5), "wanted 0 to 4, found 5"),
        ("granitemoehybrid", "mamba_n_groups", json!(3), "wanted a divisor of the 4 heads, found 3"),
        (
            "granitemoehybrid",
            "mamba_d_head",
            json!(17),
            "wanted heads that make up 72 elements, 4 of them, found 17",
        ),
        ("nemotron_h", "n_groups", json!(3), "wanted a divisor of the 4 heads, found 3"),
        (
            "nemotron_h",
            "hybrid_override_pattern",
            json!("ME*-X"),
            "wanted the letters M, *, - and E, found 'X'",
        ),
        (
            "nemotron_h",
            "hybrid_override_pattern",
            json!("ME"),
            "wanted an entry for each of 5 layers, found 2",
        ),
        ("nemotron_h", "mamba_num_heads", json!(0), "wanted 1 to 16777216, found 0"),
        (
            "nemotron_h",
            "mamba_num_heads",
            json!(1 << 22),
            "wanted at most 16777216 elements, 12 each, found 4194304",
        ),
    ] {
        assert_eq!(refusal(&changed(family, &[(key, value)])), format!("`{key}`: {wanted}"), "{family}");
    }
    let wide = [("block_ff_dim", json!(1 << 24)), ("block_ffn_dim_multiplier", json!(2.0))];
    let wanted = "`block_ff_dim`: wanted 1 to 16777216, found 22369626";
    assert_eq!(refusal(&changed("lfm2", &wide)), wanted);
    let elements = [
        (
            "kimi_linear",
            "linear_attn_config.full_attn_layers",
            json!([0]),
            "`linear_attn_config.full_attn_layers[0]`: wanted 1 to 4, found 0",
        ),
        (
            "granitemoehybrid",
            "layer_types",
            json!(["mamba", "attention", "conv"]),
            "`layer_types[2]`: wanted mamba or linear_attention or attention or full_attention, found \"conv\"",
        ),
        (
            "nemotron_h",
            "layers_block_type",
            json!(["mamba", "moe", "attention", "dense", "mamba"]),
            "`layers_block_type[3]`: wanted mamba, attention, mlp or moe, found \"dense\"",
        ),
        ("lfm2", "full_attn_idxs", json!([1, 4]), "`full_attn_idxs[1]`: wanted 0 to 3, found 4"),
    ];
    for (family, key, value, wanted) in elements {
        assert_eq!(refusal(&changed(family, &[(key, value)])), wanted, "{family}");
    }
}

#[test]
fn what_is_not_computed_is_named() {
    for (family, key, value, wanted) in [
        ("qwen3_next", "use_sliding_window", json!(true), "true is not supported (false)"),
        ("qwen3_next", "hidden_act", json!("gelu"), "\"gelu\" is not supported (\"silu\")"),
        ("qwen3_5_text", "attn_output_gate", json!(false), "false is not supported (true)"),
        ("minimax", "postnorm", json!(false), "false is not supported (true)"),
        ("minimax", "hidden_act", json!("gelu"), "\"gelu\" is not supported (\"silu\")"),
        ("kimi_linear", "mla_use_nope", json!(false), "false is not supported (true)"),
        ("kimi_linear", "moe_layer_freq", json!(2), "2 is not supported (1)"),
        (
            "kimi_linear",
            "moe_router_activation_func",
            json!("softmax"),
            "\"softmax\" is not supported (\"sigmoid\")",
        ),
        ("lfm2", "conv_dim", json!(40), "40 is not supported (36)"),
        ("lfm2", "block_use_swiglu", json!(false), "false is not supported (true)"),
        (
            "granitemoehybrid",
            "position_embedding_type",
            json!("alibi"),
            "\"alibi\" is not supported (rope, nope)",
        ),
        (
            "granitemoehybrid",
            "normalization_function",
            json!("layernorm"),
            "\"layernorm\" is not supported (\"rmsnorm\")",
        ),
        (
            "nemotron_h",
            "sliding_window",
            json!(64),
            "64 is not supported (null: attention over all positions)",
        ),
        ("nemotron_h", "mamba_hidden_act", json!("gelu"), "\"gelu\" is not supported (\"silu\")"),
        ("nemotron_h", "mamba_proj_bias", json!(true), "true is not supported (false)"),
        ("nemotron_h", "n_shared_experts", json!(2), "2 is not supported (1)"),
    ] {
        assert_eq!(refusal(&changed(family, &[(key, value)])), format!("`{key}`: {wanted}"), "{family}");
    }
}
