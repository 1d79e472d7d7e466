//! `config.json` into specs: what a valid one means, and every way in which one is refused.

use serde_json::{Value, json};
use tranship_dtype::DType;
use tranship_model::{AttentionBiases, Ffn, Gated, GatedBiases, Mixer, ModelSpec, RopeSpec};
use tranship_program::ops::{RopeStyle, Scaling};

/// A valid configuration: 3 layers, 6 heads of 16 over 3, tied, no biases.
fn valid() -> Value {
    json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": null, "vocab_size": 160,
        "max_position_embeddings": 256, "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
        "torch_dtype": "bfloat16",
    })
}

/// Changes a configuration as RFC 7386 has it: objects are merged, and `null` takes a key away.
fn merge(target: &mut Value, patch: &Value) {
    let (Value::Object(patch), false) = (patch, patch.is_null()) else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().shift_remove(key)),
            value => merge(&mut target[key], value),
        }
    }
}

fn changed(patch: Value) -> Value {
    let mut config = valid();
    merge(&mut config, &patch);
    config
}

fn spec(patch: Value) -> ModelSpec {
    let config = changed(patch);
    ModelSpec::from_config(&config).unwrap_or_else(|e| panic!("{config}: {e}"))
}

fn attention(spec: &ModelSpec) -> &tranship_model::Attention {
    match &spec.layers[0].mixer {
        Some(Mixer::Attention(attention)) => attention,
        other => panic!("{other:?}"),
    }
}

fn gated(spec: &ModelSpec) -> &Gated {
    match &spec.layers[0].ffn {
        Some(Ffn::Gated(gated)) => gated,
        other => panic!("{other:?}"),
    }
}

/// A patch of the valid configuration, and the error that it must give, in full.
fn refused(cases: &[(Value, &str)]) {
    for (patch, wanted) in cases {
        match ModelSpec::from_config(&changed(patch.clone())) {
            Ok(_) => panic!("{patch} is accepted, wanted: {wanted}"),
            Err(error) => assert_eq!(error.to_string(), *wanted, "{patch}"),
        }
    }
}

#[test]
fn every_key_is_read() {
    let spec = spec(json!({}));
    assert_eq!((spec.architecture.as_str(), spec.hidden, spec.streams), ("llama", 48, 1));
    assert_eq!((spec.vocab, spec.max_positions, spec.norm_eps), (160, 256, 1e-5));
    assert_eq!((spec.tied_head, spec.layers.len(), spec.dtype), (true, 3, Some(DType::BF16)));
    let a = attention(&spec);
    assert_eq!(
        (a.heads, a.kv_heads, a.head_dim, a.scale, a.biases),
        (6, 3, 16, 0.25, AttentionBiases::default())
    );
    let (style, scaling) = (RopeStyle::Half, Scaling::None);
    assert_eq!(a.rope, Some(RopeSpec { dims: 16, theta: 1e4, style, scaling, long: None, divisors: false }));
    assert_eq!((gated(&spec).width, gated(&spec).biases), (80, GatedBiases::default()));
    assert_eq!(spec.layers[0].kind().to_string(), "attention + gated");
}

#[test]
fn the_defaults_are_those_of_the_family() {
    let drop = |key: &str| spec(json!({ key: null }));
    assert_eq!(attention(&drop("num_key_value_heads")).kv_heads, 6);
    assert_eq!(attention(&drop("head_dim")).head_dim, 8);
    assert_eq!(attention(&drop("rope_theta")).rope.as_ref().unwrap().theta, 10_000.0);
    assert!(!drop("tie_word_embeddings").tied_head);
    assert_eq!(attention(&drop("attention_bias")).biases, AttentionBiases::default());
    assert_eq!(gated(&drop("mlp_bias")).biases, GatedBiases::default());
    assert_eq!(drop("torch_dtype").default_dtype(), DType::F32);
}

#[test]
fn biases_and_dtypes_are_read() {
    let biased = spec(json!({"attention_bias": true, "mlp_bias": true}));
    assert_eq!(attention(&biased).biases, AttentionBiases { q: true, k: true, v: true, o: true });
    assert_eq!(gated(&biased).biases, GatedBiases { gate: true, up: true, down: true });
    for (name, dtype) in
        [("float64", DType::F64), ("float32", DType::F32), ("float16", DType::F16), ("bfloat16", DType::BF16)]
    {
        assert_eq!(spec(json!({"torch_dtype": name})).default_dtype(), dtype);
        assert_eq!(spec(json!({"torch_dtype": null, "dtype": name})).default_dtype(), dtype);
    }
}

/// Each scaling in the form before transformers 5 and in the form since.
#[test]
fn rope_is_read_in_both_forms() {
    let check = |keys: Value, wanted: Scaling| {
        let mut since = keys.clone();
        since["rope_theta"] = json!(5e5);
        let before = spec(json!({"rope_theta": 500000, "rope_scaling": keys}));
        let since = spec(json!({"rope_theta": null, "rope_scaling": null, "rope_parameters": since}));
        for spec in [before, since] {
            assert_eq!(
                (
                    attention(&spec).rope.as_ref().unwrap().theta,
                    &attention(&spec).rope.as_ref().unwrap().scaling
                ),
                (5e5, &wanted)
            );
        }
    };
    check(json!({"rope_type": "default"}), Scaling::None);
    check(json!({"type": "linear", "factor": 2}), Scaling::Linear { factor: 2.0 });
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    check(llama3, Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 });
    let yarn = json!({"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 16,
        "beta_slow": 2.5, "attention_factor": 1.5});
    let (factor, original) = (40.0, 4096.0);
    check(
        yarn,
        Scaling::Yarn { factor, original, beta_fast: 16.0, beta_slow: 2.5, magnitude: 1.5, whole: true },
    );
}

/// Magnitudes by `transformers` 5.14, `ROPE_INIT_FUNCTIONS["yarn"]`.
#[test]
fn yarn_magnitudes_are_those_of_transformers() {
    for (keys, wanted) in [
        (json!({}), 1.3688879454113936),
        (json!({"factor": 0.5}), 1.0),
        (json!({"mscale": 0.707, "mscale_all_dim": 1.0}), 0.9210423553163399),
        (json!({"mscale": 1.0}), 1.3688879454113936),
        (json!({"mscale": 0.0, "mscale_all_dim": 1.0}), 1.3688879454113936),
        (json!({"attention_factor": 1.25, "mscale": 0.7, "mscale_all_dim": 1.0}), 1.25),
    ] {
        let mut yarn = json!({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096});
        merge(&mut yarn, &keys);
        match attention(&spec(json!({"rope_scaling": yarn}))).rope.as_ref().unwrap().scaling {
            Scaling::Yarn { magnitude, beta_fast, beta_slow, .. } => {
                assert!((magnitude - wanted).abs() < 1e-15, "{keys}: {magnitude}, wanted {wanted}");
                assert_eq!((beta_fast, beta_slow), (32.0, 1.0));
            }
            ref other => panic!("{keys}: {other:?}"),
        }
    }
}

#[test]
fn an_original_context_beside_the_scaling_counts() {
    let scaling = json!({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64});
    let spec = spec(json!({"rope_scaling": scaling, "original_max_position_embeddings": 32}));
    assert!(matches!(attention(&spec).rope.as_ref().unwrap().scaling, Scaling::Yarn { original: 32.0, .. }));
}

#[test]
fn mistral_is_llama_with_or_without_a_window() {
    let mut config = changed(json!({"model_type": "mistral"}));
    let refusal = |config: &Value| ModelSpec::from_config(config).unwrap_err().to_string();
    let absent = "`sliding_window`: missing, wanted a whole number, or null for attention over all positions";
    assert_eq!(refusal(&config), absent);
    config["sliding_window"] = json!(4096);
    let sliding = ModelSpec::from_config(&config).unwrap();
    assert_eq!(attention(&sliding).window, Some(4096));
    config["sliding_window"] = Value::Null;
    let mistral = ModelSpec::from_config(&config).unwrap();
    assert_eq!(mistral, ModelSpec { architecture: "mistral".into(), ..spec(json!({})) });
    config.as_object_mut().unwrap().shift_remove("num_key_value_heads");
    assert_eq!(refusal(&config), "`num_key_value_heads`: missing, wanted a whole number");
}

#[test]
fn missing_keys_are_named() {
    let number = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    ];
    for key in number {
        refused(&[(json!({ key: null }), &format!("`{key}`: missing, wanted a whole number"))]);
    }
    refused(&[
        (json!({"rms_norm_eps": null}), "`rms_norm_eps`: missing, wanted a number"),
        (json!({"hidden_act": null}), "`hidden_act`: missing, wanted a text"),
        (json!({"model_type": null}), "`model_type`: missing, wanted a text"),
    ]);
    let scaling = |keys: Value| json!({"rope_scaling": keys});
    refused(&[
        (scaling(json!({"type": "linear"})), "`rope_scaling.factor`: missing, wanted a number"),
        (
            scaling(json!({"type": "yarn", "factor": 2})),
            "`rope_scaling.original_max_position_embeddings`: missing, wanted a whole number",
        ),
        (
            scaling(json!({"type": "llama3", "factor": 2, "high_freq_factor": 4})),
            "`rope_scaling.low_freq_factor`: missing, wanted a number",
        ),
        (
            scaling(json!({"factor": 2})),
            "`rope_scaling.rope_type`: missing, wanted the type that `factor` belongs to",
        ),
        (
            json!({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}),
            "`rope_parameters.rope_type`: missing, wanted the type that `full_attention` belongs to",
        ),
    ]);
}

#[test]
fn wrong_types_are_named() {
    assert_eq!(
        ModelSpec::from_config(&json!([1, 2])).unwrap_err().to_string(),
        "the configuration is not a JSON object, found an array of 2"
    );
    refused(&[
        (json!({"hidden_size": "48"}), "`hidden_size`: wanted a whole number, found \"48\""),
        (json!({"hidden_size": 48.5}), "`hidden_size`: wanted a whole number, found 48.5"),
        (json!({"hidden_size": -48}), "`hidden_size`: wanted a whole number, found -48"),
        (
            json!({"num_hidden_layers": [3]}),
            "`num_hidden_layers`: wanted a whole number, found an array of 1",
        ),
        (json!({"rms_norm_eps": "1e-5"}), "`rms_norm_eps`: wanted a number, found \"1e-5\""),
        (json!({"tie_word_embeddings": 1}), "`tie_word_embeddings`: wanted true or false, found 1"),
        (json!({"attention_bias": "no"}), "`attention_bias`: wanted true or false, found \"no\""),
        (json!({"mlp_bias": 0}), "`mlp_bias`: wanted true or false, found 0"),
        (json!({"model_type": 7}), "`model_type`: wanted a text, found 7"),
        (json!({"rope_scaling": "yarn"}), "`rope_scaling`: wanted an object, found \"yarn\""),
        (json!({"rope_scaling": {"type": 3}}), "`rope_scaling.type`: wanted a text, found 3"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": {"at": 2}}}),
            "`rope_scaling.factor`: wanted a number, found an object",
        ),
        (json!({"torch_dtype": 32}), "`torch_dtype`: wanted a text, found 32"),
    ]);
}

#[test]
fn values_out_of_range_are_named() {
    refused(&[
        (json!({"num_attention_heads": 0}), "`num_attention_heads`: wanted 1 to 16777216, found 0"),
        (json!({"num_key_value_heads": 0}), "`num_key_value_heads`: wanted 1 to 16777216, found 0"),
        (
            json!({"num_key_value_heads": 4}),
            "`num_key_value_heads`: wanted a divisor of the 6 heads, found 4",
        ),
        (json!({"head_dim": 15}), "`head_dim`: wanted an even size, for RoPE turns pairs, found 15"),
        (json!({"head_dim": 0}), "`head_dim`: wanted 1 to 16777216, found 0"),
        (
            json!({"head_dim": 16777216}),
            "`head_dim`: wanted at most 16777216 elements in 6 heads, found 16777216",
        ),
        (
            json!({"head_dim": null, "hidden_size": 50}),
            "`num_attention_heads`: wanted a divisor of the hidden width 50, found 6",
        ),
        (json!({"hidden_size": 0}), "`hidden_size`: wanted 1 to 16777216, found 0"),
        (json!({"hidden_size": u64::MAX}), "`hidden_size`: wanted 1 to 16777216, found 18446744073709551615"),
        (
            json!({"intermediate_size": 1u64 << 40}),
            "`intermediate_size`: wanted 1 to 16777216, found 1099511627776",
        ),
        (json!({"num_hidden_layers": 0}), "`num_hidden_layers`: wanted 1 to 4096, found 0"),
        (json!({"num_hidden_layers": 4097}), "`num_hidden_layers`: wanted 1 to 4096, found 4097"),
        (json!({"vocab_size": 1u64 << 29}), "`vocab_size`: wanted 1 to 268435456, found 536870912"),
        (json!({"max_position_embeddings": 0}), "`max_position_embeddings`: wanted 1 to 2147483648, found 0"),
        (json!({"rms_norm_eps": 0}), "`rms_norm_eps`: wanted 1e-30 to 1.0, found 0.0"),
        (json!({"rms_norm_eps": 2}), "`rms_norm_eps`: wanted 1e-30 to 1.0, found 2.0"),
        (json!({"rope_theta": 1}), "`rope_theta`: wanted 1.000001 to 1000000000000.0, found 1.0"),
        (json!({"rope_theta": -1e4}), "`rope_theta`: wanted 1.000001 to 1000000000000.0, found -10000.0"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 0}}),
            "`rope_scaling.factor`: wanted 1e-6 to 1000000000000.0, found 0.0",
        ),
        (
            json!({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                "original_max_position_embeddings": 64}}),
            "`rope_scaling.high_freq_factor`: wanted more than `low_freq_factor` 4.0, found 4.0",
        ),
        (
            json!({"rope_scaling": {"type": "yarn", "factor": 8, "beta_fast": 1, "beta_slow": 2,
                "original_max_position_embeddings": 64}}),
            "`rope_scaling.beta_fast`: wanted at least beta_slow 2.0, found 1.0",
        ),
        (
            json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
            "`rope_parameters.rope_theta`: wanted 10000.0, as elsewhere, found 500000.0",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}}),
            "`rope_parameters`: wanted the same as `rope_scaling`, found another scaling",
        ),
        (
            json!({"torch_dtype": "int8"}),
            "`torch_dtype`: wanted float64, float32, float16 or bfloat16, found \"int8\"",
        ),
    ]);
}

#[test]
fn what_no_program_can_say_is_named() {
    refused(&[
        (
            json!({"hidden_act": "gelu_fast"}),
            "`hidden_act`: \"gelu_fast\" is not supported (silu, gelu, gelu_pytorch_tanh, relu2)",
        ),
        (
            json!({"sliding_window": 4096}),
            "`sliding_window`: 4096 is not supported (null: attention over all positions)",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq"}}),
            "`quantization_config`: a quantized checkpoint is not supported (plain float weights)",
        ),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2}}),
            "`rope_scaling.type`: \"dynamic\" is not supported (default, linear, llama3, yarn)",
        ),
        (
            json!({"rope_parameters": {"rope_type": "longrope"}}),
            "`rope_parameters.rope_type`: \"longrope\" is not supported (default, linear, llama3, yarn)",
        ),
        (json!({"partial_rotary_factor": 0.5}), "`partial_rotary_factor`: 0.5 is not supported (1)"),
        (
            json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}),
            "`rope_parameters.partial_rotary_factor`: 0.25 is not supported (1)",
        ),
        // What was found is cut to fit one line.
        (
            json!({"hidden_act": "x".repeat(200)}),
            &format!(
                "`hidden_act`: \"{}… is not supported (silu, gelu, gelu_pytorch_tanh, relu2)",
                "x".repeat(63)
            ),
        ),
    ]);
    let unknown = ModelSpec::from_config(&changed(json!({"model_type": "qwen9"}))).unwrap_err().to_string();
    assert!(unknown.starts_with("`model_type`: \"qwen9\" is not supported ("), "{unknown}");
    assert!(unknown.contains(", llama, ") && unknown.ends_with(')'), "{unknown}");
}
