//! What a plan counts, against arithmetic by hand.

use std::path::{Path, PathBuf};
use tranship::handoff::Contract;
use tranship::plan::{Load, demands};
use tranship::prelude::{ComputeCtx, DType, Device, Model};
use tranship::residency::Kind;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn bytes(demands: &[tranship::residency::Demand], kind: Kind) -> u64 {
    demands.iter().filter(|d| d.what == kind).map(|d| d.bytes).sum()
}

#[test]
fn a_bare_configuration_is_counted_to_the_byte() {
    let model = Model::open(&fixture("configs/smollm2-135m.json")).expect("a configuration");
    let policy = ComputeCtx::serving(Device::of("anywhere"));
    let load = Load { sequences: 3, ..Load::new(1000) };
    let all = demands(&model, &policy, &Default::default(), &load).expect("countable");
    assert_eq!(bytes(&all, Kind::Weights), 134_515_008 * 2);
    // Keys and values of 30 layers, 192 F32 each for every position of every sequence.
    assert_eq!(bytes(&all, Kind::Carried), 3 * 30 * 2 * 1000 * 192 * 4);
    let contract = Contract::of(model.spec(), 1000, &policy, None).expect("a contract");
    assert_eq!(Some(bytes(&all, Kind::Carried)), contract.bytes(1000).map(|b| 3 * b));
    // A score of each of 9 heads for each position, in F32.
    assert_eq!(bytes(&all, Kind::Scratch), 3 * 9 * 1000 * 4);
}

/// Whatever sources divide a checkpoint among the weights, each byte that is read is counted, and none twice.
#[test]
fn weights_are_counted_once() {
    let mut counted = 0;
    for entry in std::fs::read_dir(fixture("models")).expect("fixtures are there") {
        let path = entry.expect("a fixture").path();
        if !path.is_dir() && path.extension().is_none_or(|e| e != "gguf")
            || path.to_string_lossy().contains("-00002-of-")
        {
            continue;
        }
        let model = Model::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let policy = ComputeCtx::parity(Device::of("anywhere"));
        let all = demands(&model, &policy, &Default::default(), &Load::new(8)).expect("countable");
        let unused = model.spec().unused(model.checkpoint()).expect("programs");
        let used = model.checkpoint().tensors().filter(|view| !unused.iter().any(|name| name == view.name()));
        let used: u64 = used.map(|view| view.source().bytes).sum();
        assert_eq!(bytes(&all, Kind::Weights), used, "{}", path.display());
        counted += 1;
    }
    assert!(counted >= 15, "only {counted} fixtures were found");
}

#[test]
fn activations_are_the_most_rows_that_live_at_once() {
    let model = Model::open(&fixture("models/llama_base")).expect("a model");
    let policy = ComputeCtx::parity(Device::of("anywhere"));
    let load = Load { rows: 10, ..Load::new(64) };
    let all = demands(&model, &policy, &Default::default(), &load).expect("countable");
    let named = |name: &str| all.iter().find(|d| d.name == name).map(|d| d.bytes);
    // While the gate is multiplied in: the residual row of 48, and three of the gated width, 80. While the queries are
    // turned it is as many: two rows of 48, and two of 6 heads of 16.
    assert_eq!(named("rows of a batch"), Some(10 * (48 + 3 * 80) * 4));
    // The last row of one sequence: it, its norm, and a logit for each of 160 tokens.
    assert_eq!(named("logits"), Some((48 + 160) * 4));
}

#[test]
fn weights_that_a_device_does_not_take_are_counted_widened() {
    let model = Model::open(&fixture("models/gguf_q4_1.gguf")).expect("a model");
    let policy = ComputeCtx::parity(Device::of("anywhere"));
    let mut accepts = tranship::ctx::Accepts::default();
    let stored = demands(&model, &policy, &accepts, &Load::new(8)).expect("countable");
    assert_eq!(bytes(&stored, Kind::Weights), model.checkpoint().tensor_bytes());
    accepts.weights = tranship::ctx::DTypeSet::of(&[DType::F32]);
    let wide = demands(&model, &policy, &accepts, &Load::new(8)).expect("countable");
    let elements: u64 = model.checkpoint().tensors().map(|v| v.elements() as u64).sum();
    assert_eq!(bytes(&wide, Kind::Weights), 4 * elements);
}
