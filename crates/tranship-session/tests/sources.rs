//! Weights by their sources, out of a checkpoint: what stays in its map, what is put together, and that a step computes
//! with either as with a copy.

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tranship_backend::{Backend, Chain, Input, MapWeights, Outputs, Reference, Segment, Weight, Weights};
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_program::Program;
use tranship_session::Model;
use tranship_tensor::{Tensor, decode};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// Tensors beside those that the fixture's programs name: name, type, shape, bytes.
type Extra = (&'static str, Dtype, Vec<usize>, Vec<u8>);

/// A fixture's model, with more tensors in its file.
fn model(extra: &[Extra]) -> Model {
    let from = fixture("models/llama_base");
    let stored = std::fs::read(from.join("model.safetensors")).expect("the fixture is there");
    let stored = SafeTensors::deserialize(&stored).expect("it reads");
    let mut tensors: BTreeMap<String, TensorView> = stored.tensors().into_iter().collect();
    for (name, dtype, shape, bytes) in extra {
        let view = TensorView::new(*dtype, shape.clone(), bytes).expect("bytes of that shape");
        tensors.insert((*name).to_owned(), view);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let to = |file: &str| folder.path().join(file);
    std::fs::write(to("model.safetensors"), serialize(tensors, None).expect("it writes")).expect("a file");
    std::fs::copy(from.join("config.json"), to("config.json")).expect("a file");
    Model::open(folder.path()).expect("a model")
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Values without a pattern that a wrong row or column could share.
fn values(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|i| ((i as f32 + seed) * 0.7390851).sin()).collect()
}

fn bound(model: &Model, source: &str) -> Weight {
    model.weights().weight(source).unwrap_or_else(|| panic!("no weight `{source}`"))
}

/// Whether each piece lies inside the map of one of these tensors, in order.
fn in_place(model: &Model, weight: &Weight, tensors: &[&str]) -> bool {
    let maps = tensors.iter().map(|name| model.checkpoint().get(name).expect("a tensor"));
    let maps: Vec<_> = maps.map(|view| view.bytes().as_ptr_range()).collect();
    let inside = |i: usize| {
        let (piece, map) = (weight.pieces[i].bytes().as_ptr_range(), &maps[i.min(maps.len() - 1)]);
        map.start <= piece.start && piece.end <= map.end
    };
    (0..weight.pieces.len()).all(inside)
}

#[test]
fn banks_and_rows_stay_in_the_map() {
    let all = values(3 * 4 * 16, 1.0);
    let expert = |e: usize| floats(&all[e * 64..][..64]);
    let model = model(&[
        ("x.0.w", Dtype::F32, vec![4, 16], expert(0)),
        ("x.1.w", Dtype::F32, vec![4, 16], expert(1)),
        ("x.2.w", Dtype::F32, vec![4, 16], expert(2)),
        ("merged", Dtype::F32, vec![3, 4, 16], floats(&all)),
    ]);
    let rows = |rows: &[usize]| rows.iter().flat_map(|r| all[r * 16..][..16].to_vec()).collect::<Vec<f32>>();
    let apart = ["x.0.w", "x.1.w", "x.2.w"];
    for (source, tensors, shape, pieces, wanted) in [
        ("x.{expert}.w", &apart[..], vec![3, 4, 16], 3, all.clone()),
        ("x.{expert}.w[1..3]", &apart[1..], vec![2, 4, 16], 2, all[64..].to_vec()),
        ("x.{expert}.w[:, 2..4]", &apart, vec![3, 2, 16], 3, rows(&[2, 3, 6, 7, 10, 11])),
        ("merged", &["merged"], vec![3, 4, 16], 1, all.clone()),
        ("merged[1..2]", &["merged"], vec![1, 4, 16], 1, rows(&[4, 5, 6, 7])),
        ("merged[:, 1..3]", &["merged"], vec![3, 2, 16], 3, rows(&[1, 2, 5, 6, 9, 10])),
        ("x.1.w[1..3]", &["x.1.w"], vec![2, 16], 1, rows(&[5, 6])),
    ] {
        assert_eq!(model.stored(source), Some(DType::F32), "{source}");
        let weight = bound(&model, source);
        assert_eq!((&weight.shape, weight.pieces.len()), (&shape, pieces), "{source}");
        assert_eq!(weight.values().expect("floats"), wanted, "{source}");
        assert!(in_place(&model, &weight, tensors), "{source} is a copy");
    }
    let first = bound(&model, "merged[1..2]").pieces[0].bytes().as_ptr();
    let map = model.checkpoint().get("merged").expect("a tensor");
    assert_eq!(first, map.bytes()[256..].as_ptr(), "where the row lies");
}

#[test]
fn strides_and_exchanged_axes_are_put_together_once() {
    let all = values(2 * 6 * 16, 2.0);
    let model = model(&[("merged", Dtype::F32, vec![2, 6, 16], floats(&all))]);
    let row = |r: usize| &all[r * 16..][..16];
    let odd = bound(&model, "merged[:, 1::2]");
    assert_eq!((&odd.shape[..], odd.pieces.len()), (&[2, 3, 16][..], 1));
    assert_eq!(odd.values().expect("floats"), [1, 3, 5, 7, 9, 11].map(row).concat());
    assert!(!in_place(&model, &odd, &["merged"]));
    let again = bound(&model, "merged[:, 1::2]");
    assert_eq!(odd.pieces[0].bytes().as_ptr(), again.pieces[0].bytes().as_ptr(), "held once");
    let turned = bound(&model, "merged^T");
    assert_eq!(turned.shape, [2, 16, 6]);
    let turned = turned.values().expect("floats");
    for (e, r, c) in (0..2 * 6 * 16).map(|i| (i / 96, i / 16 % 6, i % 16)) {
        assert_eq!(turned[e * 96 + c * 6 + r], all[e * 96 + r * 16 + c]);
    }
    for none in ["no.such", "merged[0..3]", "merged[", "merged.{expert}", "mxfp4(merged, merged)"] {
        assert!(model.weights().weight(none).is_none() && model.stored(none).is_none(), "{none}");
    }
}

#[test]
fn mxfp4_in_two_tensors_is_bound_as_blocks() {
    let quants: Vec<u8> = (0..2 * 4 * 2 * 16).map(|i| (i * 89 + 7) as u8).collect();
    let scales: Vec<u8> = (0..16).map(|i| 119 + i as u8).collect();
    let model = model(&[
        ("q", Dtype::U8, vec![2, 4, 2, 16], quants.clone()),
        ("s", Dtype::U8, vec![2, 4, 2], scales.clone()),
    ]);
    const HALVES: [i8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
    let wanted = |row: usize, col: usize| {
        let code = quants[row * 32 + col / 2] >> (col % 2 * 4) & 15;
        let half = f32::from(HALVES[usize::from(code & 7)]) / 2.0;
        let value = half * 2f32.powi(i32::from(scales[row * 2 + col / 32]) - 127);
        if code > 7 { -value } else { value }
    };
    let rows =
        |rows: [usize; 4]| rows.iter().flat_map(|r| (0..64).map(|c| wanted(*r, c))).collect::<Vec<f32>>();
    for (source, first) in [("mxfp4(q, s)[:, 0::2]", [0, 2, 4, 6]), ("mxfp4(q, s)[:, 1::2]", [1, 3, 5, 7])] {
        assert_eq!(model.stored(source), Some(DType::MXFP4));
        let weight = bound(&model, source);
        assert_eq!((weight.dtype, &weight.shape[..]), (DType::MXFP4, &[2, 2, 64][..]));
        let mut decoded = vec![0.0; 256];
        decode(DType::MXFP4, &weight.joined(), &mut decoded).expect("blocks");
        assert_eq!(decoded, rows(first));
    }
}

/// Three rows through a program whose weights are of `weights`.
fn outputs(text: &str, stored: &dyn Fn(&str) -> Option<DType>, weights: &dyn Weights) -> Vec<f32> {
    let backend = Reference::new();
    let graph = Program::parse(text).expect("it parses").lift().expect("it lifts");
    let policy = ComputeCtx::parity(Device::of("reference"));
    let typed = policy.typed(&graph, stored, &backend.caps().accepts).expect("it types");
    let mut step = backend.compile(&Chain::new(vec![Arc::new(typed)], 8), weights).expect("it binds");
    let mut state = step.new_state().expect("memory");
    let segment = Segment { state: state.as_mut(), position: 0, rows: 3, outputs: Outputs::All };
    let mut out = Vec::new();
    step.run(&mut [segment], Input::Rows(&values(3 * 16, 5.0)), &mut out).expect("it runs");
    out
}

#[test]
fn a_step_computes_with_a_source_as_with_a_copy() {
    let all = values(6 * 16, 3.0);
    let model = model(&[
        ("fused", Dtype::F32, vec![6, 16], floats(&all)),
        ("turned", Dtype::F32, vec![16, 6], floats(&all)),
        ("filters", Dtype::F32, vec![6, 1, 16], floats(&all)),
        ("x.0.row", Dtype::F32, vec![16], floats(&all[..16])),
        ("x.1.row", Dtype::F32, vec![16], floats(&all[16..32])),
    ]);
    for (source, outs) in [
        ("fused", 6),
        ("fused[2..5]", 3),
        ("fused[1::2]", 3),
        ("turned^T", 6),
        ("turned^T[0..2]", 2),
        ("filters", 6),
        ("x.{expert}.row", 2),
    ] {
        let text = |name: &str| {
            format!("program p\n  x : [n, 16]\n  w : [{outs}, 16] @ \"{name}\"\n  return linear(x, w)\n")
        };
        let copy = bound(&model, source).values().expect("floats");
        let mut map = MapWeights::default();
        map.insert("w", Tensor::from_f32(&[outs, 16], &copy).expect("a tensor"));
        let wanted = outputs(&text("w"), &|_| Some(DType::F32), &map);
        let found = outputs(&text(source), &|name| model.stored(name), &model.weights());
        assert_eq!((found.len(), found), (3 * outs, wanted), "{source}");
    }
    let second = |text: &str| outputs(text, &|name| model.stored(name), &model.weights());
    let row = |name: &str, outs: usize| {
        second(&format!("program p\n  x : [n, 16]\n  w : [{outs}, 16] @ \"{name}\"\n  return linear(x, w)\n"))
    };
    let (whole, part) = (row("fused", 6), row("fused[4..5]", 1));
    assert_eq!(part, [whole[4], whole[10], whole[16]], "row 4 is the fifth output");
}

#[test]
fn a_bare_configuration_types_sources_by_their_text() {
    let model = Model::open(&fixture("configs/smollm2-135m.json")).expect("a configuration");
    for (source, dtype) in [
        ("anything", DType::BF16),
        ("x.{expert}.w[:, 0..2]", DType::BF16),
        ("mxfp4(q, s)[:, 0::2]", DType::MXFP4),
    ] {
        assert_eq!(model.stored(source), Some(dtype));
    }
    assert_eq!(model.stored("mxfp4(q"), None);
}
