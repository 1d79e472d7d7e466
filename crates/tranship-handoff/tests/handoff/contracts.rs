//! Contracts: what is derived from released models' configurations, and their JSON form.

use crate::draft::{WEIGHTS, config, contract, parity};
use proptest::prelude::*;
use serde_json::{Value, json};
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_handoff::{
    Axis, Carried, Contract, HandoffError, Identity, Layers, MOST_HOLDERS, Share, VERSION,
    contract as reference,
};
use tranship_model::{Cut, Mixer, ModelSpec};
use tranship_program::ops::Scaling;
use tranship_program::{Extent, Run, Segments};

/// The manifest of a configuration, and the bytes of a sequence, held to a snapshot and to arithmetic: layers times
/// two caches of `[ctx, kv_heads, head_dim]` in F32.
fn check(name: &str, (layers, kv_heads, head_dim): (u64, u64, u64)) {
    let spec = ModelSpec::from_config(&config(&format!("configs/{name}.json"))).expect("a model");
    let found = reference(&spec, 2048).expect("a contract");
    let row = layers * 2 * kv_heads * head_dim * 4;
    for position in [0, 1, 64, 2047, 2048] {
        assert_eq!(found.bytes(position), Some(row * position), "{name} at {position}");
    }
    assert_eq!(found.bytes(5000), Some(row * 2048), "{name}: no more rows than there are");
    assert_eq!(found.carried.len() as u64, 2 * layers, "{name}");
    let manifest: Value = serde_json::from_str(&found.to_json()).expect("JSON");
    assert_eq!(Contract::from_json(&found.to_json()).expect("it reads"), found, "{name}");
    let snapshot = json!({ "bytes_per_sequence": found.bytes(2048), "contract": manifest });
    insta::assert_json_snapshot!(name, snapshot);

    // Under the quantized policy the caches alone differ, and what says so.
    let quantized =
        Contract::of(&spec, 2048, &ComputeCtx::quantized(Device::cpu()), None).expect("a contract");
    assert_eq!(quantized.bytes(2048), Some(row * 2048 / 2), "{name}");
    assert!(quantized.carried.iter().all(|c| c.dtype == DType::F16), "{name}");
    assert_eq!(quantized.identity.programs, found.identity.programs, "{name}");
    assert_eq!(
        quantized.identity.policy, "compute=f32 kv=f16 accum=f32 state=f32 activations=q8_1",
        "{name}"
    );
    // Another context is another number of rows, and the same programs.
    let longer = reference(&spec, 4096).expect("a contract");
    assert_eq!(longer.identity, found.identity, "{name}");
    assert!(longer.carried.iter().all(|c| c.rows() == 4096), "{name}");
}

#[test]
fn smollm2_135m() {
    check("smollm2-135m", (30, 3, 64));
}

#[test]
fn smollm2_1_7b() {
    check("smollm2-1.7b", (24, 32, 64));
}

#[test]
fn llama_3_2_1b() {
    check("llama-3.2-1b", (16, 8, 64));
}

#[test]
fn llama_3_1_8b() {
    check("llama-3.1-8b", (32, 8, 128));
}

/// The digest of all programs at a context of 1, each lifted by itself: their text goes up to where the model's long
/// contexts begin, if it has any.
fn digest_at_one(spec: &ModelSpec) -> String {
    let text = spec.canonical_programs().expect("programs");
    let end = text.find("\nembed\n").map_or(text.len(), |at| at + 1);
    blake3::hash(format!("tranship programs 1\n{}", &text[..end]).as_bytes()).to_hex().to_string()
}

/// Every configuration of a family that is known: layers share their programs where they are alike, and the contract is
/// the one that each layer's own programs say; the digest is that of all programs.
#[test]
fn every_layer_is_as_its_own_programs_say() {
    let mut known = Vec::new();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/configs");
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        let Ok(spec) = ModelSpec::from_config(&config(&format!("configs/{name}"))) else { continue };
        let ctx = 640;
        let found = reference(&spec, ctx).expect("a contract");
        let mut own = Vec::new();
        for layer in 0..spec.layers.len() {
            let graph =
                spec.program(Cut::DecodeLayer { layer, ctx }).expect("a program").lift().expect("it lifts");
            own.extend(
                graph.roles().carried().map(|c| (layer as u64, c.name.clone(), c.axes.clone(), c.extent)),
            );
        }
        let axes = |c: &Carried| c.axes.iter().map(|a| (a.name.clone(), a.size)).collect::<Vec<_>>();
        let of = |c: &Carried| (c.layer, c.name.clone(), axes(c), c.extent);
        assert_eq!(found.carried.iter().map(of).collect::<Vec<_>>(), own, "{name}");
        assert_eq!(found.identity.programs, digest_at_one(&spec), "{name}");
        known.push(name);
    }
    for name in ["llama-3.1-405b.json", "llama-3.2-1b.json", "smollm2-135m.json"] {
        assert!(known.iter().any(|k| k == name), "{name} is not among {known:?}");
    }
}

/// Rotations that are stretched in long contexts alone: caches of the two are nothing to each other, and the digest keeps
/// them apart; contexts on one side of the bound are alike.
#[test]
fn programs_that_the_context_changes() {
    let mut spec = ModelSpec::from_config(&config("models/llama_base/config.json")).expect("a model");
    let programs = |spec: &ModelSpec, ctx: u64| reference(spec, ctx).expect("a contract").identity.programs;
    let plain = programs(&spec, 300);
    let Some(Mixer::Attention(attention)) = &mut spec.layers[1].mixer else { panic!("it is attention") };
    let rope = attention.rope.as_mut().expect("it rotates");
    rope.long = Some((200, Scaling::Linear { factor: 8.0 }));
    assert_eq!(programs(&spec, 200), digest_at_one(&spec));
    assert_eq!(programs(&spec, 200), plain, "no program is other there");
    assert_eq!(programs(&spec, 1), plain);
    assert_ne!(programs(&spec, 201), plain);
    assert_eq!(programs(&spec, 201), programs(&spec, 4000));
}

#[test]
fn layers_apart() {
    let found = contract(
        80,
        &parity().with_layer(1, tranship_ctx::LayerPolicy { kv: Some(DType::BF16), ..Default::default() }),
    );
    let of = |layer: u64| -> Vec<(&str, DType)> {
        found.of_layer(layer).map(|c| (c.name.as_str(), c.dtype)).collect()
    };
    assert_eq!(of(0), [("k0", DType::F32), ("v0", DType::F32)]);
    assert_eq!(of(1), [("k1", DType::BF16), ("v1", DType::BF16)]);
    assert_eq!(of(2), []);
    let k0 = found.of_layer(0).next().expect("it is there");
    assert_eq!(
        (k0.rows(), k0.cols(), k0.bytes(7), k0.valid_shape(7)),
        (80, 48, Some(7 * 192), vec![7, 3, 16])
    );
}

#[test]
fn json_that_is_no_contract() {
    let good: Value = serde_json::from_str(&contract(80, &parity()).to_json()).expect("JSON");
    let check = |edit: &dyn Fn(&mut Value), wanted: &str| {
        let mut value = good.clone();
        edit(&mut value);
        let error = Contract::from_json(&value.to_string()).expect_err(wanted);
        assert_eq!(error.to_string(), wanted);
    };
    check(&|v| *v = json!({ "version": 7 }), "the hand-off has format version 7; version 1 is read here");
    check(&|v| v["version"] = Value::Null, "this is no hand-off: invalid type: null, expected u64");
    check(&|v| v["carried"][1]["name"] = json!("k0"), "this is no hand-off: the manifest lists `k0` twice");
    check(
        &|v| v["carried"][0]["axes"][1]["size"] = json!(u64::MAX),
        "this is no hand-off: the manifest's axes of `k0` have no size: empty, too large, or no whole blocks of f32",
    );
    assert!(matches!(Contract::from_json("{"), Err(HandoffError::Format(_))));
    assert!(matches!(Contract::from_json(&"[".repeat(1_000_000)), Err(HandoffError::Format(_))));
}

fn any_carried() -> impl Strategy<Value = Carried> {
    let dtype =
        prop::sample::select(DType::ALL.into_iter().filter(|d| d.block_len() == 1).collect::<Vec<_>>());
    let axes = prop::collection::vec(("[a-z_\"\\\\é]{0,6}", 1u64..2000), 1..4);
    let extent = prop_oneof![
        Just(Extent::Append),
        Just(Extent::Recurrent),
        Just(Extent::Ring),
        (1..=u64::MAX).prop_map(|rate| Extent::Compressed { rate }),
        (1u64..900, 0u64..900).prop_map(|(rate, keep)| Extent::Frontier { rate, keep }),
    ];
    let cut = (any::<bool>(), 1usize..3, 1u64..5);
    (0..1u64 << 40, axes, dtype, extent, cut).prop_map(|(layer, axes, dtype, extent, (cut, axis, size))| {
        let axes: Vec<Axis> = axes.into_iter().map(|(name, size)| Axis { name, size }).collect();
        // Units of a size, and what is left of the axis as a run of its own.
        let runs = |all: u64| {
            let (units, rest) = (Run { count: all / size, size }, Run { count: 1, size: all % size });
            let runs = [units, rest].into_iter().filter(|run| run.count > 0 && run.size > 0).collect();
            Segments { axis, runs }
        };
        let segments = axes.get(axis).filter(|_| cut).map(|axis| runs(axis.size));
        Carried { name: String::new(), layer, axes, dtype, extent, segments }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn json_and_back(
        ctx in 1..=1u64 << 20,
        (hidden, streams) in any::<(u64, u64)>(),
        carried in prop::collection::vec(any_carried(), 0..6),
        policy in ".{0,20}",
        weighed in any::<bool>(),
        share in prop::option::of((0u64..64, 64u64..=MOST_HOLDERS)),
        layered in any::<bool>(),
    ) {
        let named = |(i, mut c): (usize, Carried)| {
            match c.extent {
                Extent::Append => c.axes[0].size = ctx,
                Extent::Compressed { rate } => c.axes[0].size = (ctx / rate).max(1),
                Extent::Frontier { rate, keep } => c.axes[0].size += rate + keep,
                _ => {}
            }
            Carried { name: format!("t{i}"), ..c }
        };
        let contract = Contract {
            version: VERSION,
            ctx,
            hidden,
            streams,
            carried: carried.into_iter().enumerate().map(named).collect(),
            identity: Identity { weights: weighed.then(|| WEIGHTS.into()), programs: "p".into(), policy },
            share: share.map(|(index, of)| Share { index, of }),
            layers: layered.then_some(Layers { from: 0, to: 1 << 50, of: 1 << 40 }),
        };
        prop_assert_eq!(Contract::from_json(&contract.to_json()).expect("it reads"), contract);
    }
}
