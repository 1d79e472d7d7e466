//! What every family carries: the contracts of the fixture families, a line for each tensor, as snapshots.
//!
//! A line is: layer, name, extent, axes, type under the policy `quantized`, and the runs of units that it may be cut
//! between, each as a count and the axis, with the size of a unit where it is not 1. The order is that of layers and of first
//! touch. `INSTA_UPDATE=always` writes what was found; the difference is then for a person to read.

use std::fmt::Write as _;
use std::path::Path;
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_handoff::{Carried, Contract};
use tranship_model::ModelSpec;
use tranship_program::Extent;

/// A context that no window and no rate of a fixture divides.
pub const CTX: u64 = 61;

/// The fixture families by name.
pub fn specs() -> Vec<(String, ModelSpec)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families");
    let entries = std::fs::read_dir(folder).expect("the fixture families");
    let mut found: Vec<(String, ModelSpec)> = entries
        .map(|entry| {
            let entry = entry.expect("a folder");
            let name = entry.file_name().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(entry.path().join("config.json")).expect("a configuration");
            let config = serde_json::from_str(&text).expect("JSON");
            (name.clone(), ModelSpec::from_config(&config).unwrap_or_else(|e| panic!("{name}: {e}")))
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() >= 33, "{} families", found.len());
    found
}

fn line(carried: &Carried) -> String {
    let axes: Vec<String> = carried.axes.iter().map(|a| format!("{} {}", a.name, a.size)).collect();
    let Carried { name, layer, extent, dtype, .. } = carried;
    format!("{layer} {name} {extent} [{}] {dtype}: {}", axes.join(", "), carried.units())
}

#[test]
fn every_family_carries_what_it_did() {
    for (name, spec) in specs() {
        let contract = Contract::of(&spec, CTX, &ComputeCtx::quantized(Device::cpu()), None);
        let contract = contract.unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut text = String::new();
        for (layer, spec) in spec.layers.iter().enumerate() {
            let _ = writeln!(text, "# layer {layer}: {}", spec.kind());
            for carried in contract.of_layer(layer as u64) {
                let _ = writeln!(text, "{}", line(carried));
            }
        }
        let bytes: Vec<String> = [1, 7, 48].map(|p| contract.bytes(p).unwrap_or(0).to_string()).into();
        let _ = writeln!(text, "# bytes after 1, 7 and 48 tokens: {}", bytes.join(", "));
        insta::assert_snapshot!(format!("family-{name}"), text);
    }
}

/// Caches take the policy's type for them, and memories stay in F32, whatever the policy.
#[test]
fn memories_are_never_narrowed() {
    let mut memories = 0;
    for (name, spec) in specs() {
        for policy in [ComputeCtx::quantized(Device::cpu()), ComputeCtx::serving(Device::cpu())] {
            let contract = Contract::of(&spec, CTX, &policy, None).unwrap_or_else(|e| panic!("{name}: {e}"));
            for carried in &contract.carried {
                let cache = matches!(carried.name.as_bytes(), [b'k' | b'v' | b'c' | b'r' | b'i', d, ..] if d.is_ascii_digit())
                    || carried.name.starts_with("kv");
                let wanted = if cache { policy.kv } else { DType::F32 };
                assert_eq!(carried.dtype, wanted, "{name}: {}", line(carried));
                memories += usize::from(carried.extent == Extent::Recurrent);
            }
        }
    }
    assert!(memories > 20, "{memories} memories");
}

/// Between them, the families have every extent that there is.
#[test]
fn every_extent_occurs() {
    let mut found = std::collections::BTreeSet::new();
    for (_, spec) in specs() {
        let contract = tranship_handoff::contract(&spec, CTX).expect("a contract");
        found.extend(contract.carried.iter().map(|c| c.extent.name()));
    }
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        ["append", "compressed", "frontier", "recurrent", "ring"]
    );
}
