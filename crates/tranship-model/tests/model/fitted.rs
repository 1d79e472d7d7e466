//! Checkpoints whose configuration has been changed: tensors that are taken in parts are of the sizes that it says, and a
//! head that is there is the head.

use super::common::{config, fixture};
use serde_json::{Value, json};
use tranship_model::{ModelError, ModelSpec, TensorFault};
use tranship_weights::Checkpoint;

/// A fixture family with some keys of its configuration set, as it opens.
fn open(family: &str, keys: &[(&str, Value)]) -> (Checkpoint, ModelSpec) {
    let folder = tempfile::tempdir().unwrap();
    let weights = fixture(&format!("families/{family}/model.safetensors"));
    std::fs::copy(weights, folder.path().join("model.safetensors")).unwrap();
    let mut config = config(&format!("families/{family}/config.json"));
    for (key, value) in keys {
        config[*key] = value.clone();
    }
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let spec = ModelSpec::of(&checkpoint).unwrap_or_else(|e| panic!("{family}: {e}"));
    (checkpoint, spec)
}

/// The tensors of rows left over, by name.
fn left_over(family: &str, keys: &[(&str, Value)]) -> Vec<String> {
    let (checkpoint, spec) = open(family, keys);
    let Err(ModelError::Tensors { faults, .. }) = spec.check(&checkpoint) else { return Vec::new() };
    let rows = faults.into_iter().filter_map(|fault| match fault {
        TensorFault::Rows { name, .. } => Some(name),
        _ => None,
    });
    rows.collect()
}

/// Each of these sizes takes fewer rows than there are, so that every part is to be had, and another's.
#[test]
fn tensors_in_parts_are_taken_whole() {
    for (family, keys, tensor) in [
        ("nemotron_h", vec![("ssm_state_size", json!(9))], "mixer.in_proj"),
        ("nemotron_h", vec![("n_groups", json!(1))], "mixer.conv1d"),
        ("granitemoehybrid", vec![("mamba_d_state", json!(9))], "mamba.in_proj"),
        ("qwen3_5_text", vec![("linear_key_head_dim", json!(9))], "linear_attn.in_proj_qkv"),
    ] {
        let found = left_over(family, &keys);
        assert!(found.iter().any(|name| name.contains(tensor)), "{family} {keys:?}: {found:?}");
        assert_eq!(left_over(family, &[]), [""; 0], "{family}");
    }
}

#[test]
fn the_fault_names_tensor_and_rows() {
    let (checkpoint, spec) = open("nemotron_h", &[("ssm_state_size", json!(9))]);
    let error = spec.check(&checkpoint).unwrap_err().to_string();
    assert!(error.contains("rows in axis 0, and the model's parts of it take"), "{error}");
}

/// A head that differs from the table is used, although the configuration says that they are one.
#[test]
fn a_head_that_is_there_is_the_head() {
    let (checkpoint, spec) = open("qwen3_next", &[("tie_word_embeddings", json!(true))]);
    assert!(checkpoint.get("lm_head.weight").is_some() && !spec.tied_head);
    let (_, tied) = open("lfm2", &[]);
    assert!(tied.tied_head);
}

/// What multiplies scores of DeepSeek-V3 is of any stretching, and an absent base is the class's own.
#[test]
fn numbers_follow_the_classes_of_transformers() {
    let scaled = json!({"type": "linear", "factor": 4.0, "mscale_all_dim": 0.8});
    let (_, plain) = open("deepseek_v3_noq", &[]);
    let (_, spec) = open("deepseek_v3_noq", &[("rope_scaling", scaled)]);
    let scale = |spec: &ModelSpec| match &spec.layers[0].mixer {
        Some(tranship_model::Mixer::Latent(latent)) => latent.scale,
        other => panic!("{other:?}"),
    };
    let m = 0.1 * 0.8 * 4f64.ln() + 1.0;
    assert!((scale(&spec) / scale(&plain) - m * m).abs() < 1e-12);

    let mut minimax = config("families/minimax/config.json");
    minimax.as_object_mut().unwrap().remove("rope_theta");
    let spec = ModelSpec::from_config(&minimax).unwrap();
    let thetas: Vec<f64> = spec
        .layers
        .iter()
        .filter_map(|layer| match &layer.mixer {
            Some(tranship_model::Mixer::Attention(attention)) => attention.rope.as_ref().map(|r| r.theta),
            _ => None,
        })
        .collect();
    assert!(!thetas.is_empty() && thetas.iter().all(|theta| *theta == 1e6), "{thetas:?}");

    let mut nemotron = config("families/nemotron_h/config.json");
    nemotron["time_step_min"] = json!(0.25);
    let spec = ModelSpec::from_config(&nemotron).unwrap();
    let Some(tranship_model::Mixer::StateSpace(mixer)) = &spec.layers[0].mixer else { panic!() };
    assert_eq!(mixer.dt_limits, (Some(0.25), None));
}
