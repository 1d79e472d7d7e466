//! What a cut of a hand-off means: holders that each have a share of a layer's weights go on from their shares of its
//! state, the sum of what they give is what the whole layer gives, and their states join to the whole one's.
//!
//! The layers are those of fixture families, with weights out of a generator, and what follows the mixer is left out. A
//! holder's program is authored from a configuration with fewer heads, or is the whole one's text with fewer channels.

use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tranship_backend::{Backend, Chain, Input, MapWeights, Outputs, Reference, Segment, State, Step};
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_handoff::{Contract, Handoff, HandoffTensor, Progress, contract};
use tranship_model::{Cut, DeltaProjections, Mixer, ModelSpec};
use tranship_program::{Dim, Graph, Origin, Program};
use tranship_tensor::Tensor;

const CTX: u64 = 40;
/// Rows before the cut, more than any ring has, and after it.
const BEFORE: usize = 13;
const AFTER: usize = 6;
/// The largest error of a sum over holders, as a part of the largest value: it is of other terms in F32.
const BOUND: f32 = 1e-5;

fn numbers(seed: &str, count: usize) -> Vec<f32> {
    let mut state = seed.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| draw()).collect()
}

fn config(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path).join("config.json");
    serde_json::from_slice(&std::fs::read(path).expect("the fixture is there")).expect("it is JSON")
}

fn spec(config: &Value) -> ModelSpec {
    ModelSpec::from_config(config).expect("a model")
}

/// A layer's program up to the output of its mixer, which it returns without the rows that it is added to.
fn mixer(spec: &ModelSpec, layer: usize) -> String {
    let text = spec.program(Cut::DecodeLayer { layer, ctx: CTX }).expect("a program").to_string();
    let (mut lines, mut end) = (Vec::new(), None);
    for line in text.lines() {
        end = ["  m = x + ", "  return x + "].iter().find_map(|start| line.strip_prefix(start));
        if let Some(output) = end {
            lines.push(format!("  return {output}"));
            break;
        }
        lines.push(line.to_owned());
    }
    assert!(end.is_some(), "no mixer in\n{text}");
    // What the rest of the layer alone has a use for is not declared.
    let words = |line: &str| -> Vec<String> {
        line.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect()
    };
    let declares = |line: &str| line.split_once(" : ").map(|(name, _)| name.trim().to_owned());
    let body: Vec<String> =
        lines.iter().filter(|line| declares(line).is_none()).flat_map(|line| words(line)).collect();
    lines.retain(|line| declares(line).is_none_or(|name| body.contains(&name)));
    lines.join("\n") + "\n"
}

fn lift(text: &str) -> Graph {
    Program::parse(text).and_then(|p| p.lift()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn sizes(graph: &Graph) -> Vec<(String, String, Vec<usize>)> {
    let weight = |value: &tranship_program::Value| match &value.origin {
        Origin::Weight(source) => {
            let size = |axis: &tranship_program::Axis| match axis.size {
                Dim::Fixed(size) => size as usize,
                _ => panic!("{} has no size", value.name),
            };
            Some((value.name.clone(), source.clone(), value.shape.0.iter().map(size).collect()))
        }
        _ => None,
    };
    graph.declared().filter_map(|(_, value)| weight(value)).collect()
}

/// The weights of a program that is holder `index`'s part of `whole`: along the axis that is shorter there, its share of
/// each weight's places, which lie side by side.
fn weights(whole: &Graph, own: &Graph, index: usize) -> MapWeights {
    let mut map = MapWeights::default();
    let all = sizes(whole);
    for (name, source, shape) in sizes(own) {
        let (_, _, full) = all.iter().find(|(other, _, _)| *other == name).expect("the whole has it");
        let values = numbers(&name, full.iter().product());
        let axis = (0..shape.len()).find(|&axis| shape[axis] != full[axis]).unwrap_or(0);
        let after: usize = shape[axis + 1..].iter().product();
        let (row, part) = (full[axis] * after, shape[axis] * after);
        let from = if part == row { 0 } else { index * part };
        let own: Vec<f32> = values.chunks(row).flat_map(|row| row[from..from + part].to_vec()).collect();
        map.insert(source, Tensor::from_f32(&shape, &own).expect("a tensor"));
    }
    map
}

/// A layer that is compiled, with the state of a sequence.
struct Layer {
    step: Box<dyn Step>,
    state: Box<dyn State>,
    position: usize,
}

impl Layer {
    fn new(graph: &Graph, weights: &MapWeights) -> Layer {
        let (policy, backend) = (ComputeCtx::parity(Device::of("reference")), Reference::new());
        let typed = policy.typed(graph, &|_| Some(DType::F32), &backend.caps().accepts).expect("it types");
        let chain = Chain::new(vec![Arc::new(typed)], 4);
        let step = backend.compile(&chain, weights).expect("it compiles");
        let state = step.new_state().expect("memory");
        Layer { step, state, position: 0 }
    }

    fn run(&mut self, rows: &[f32], count: usize) -> Vec<f32> {
        let mut out = Vec::new();
        let state = self.state.as_mut();
        let segment = Segment { state, position: self.position, rows: count, outputs: Outputs::All };
        self.step.run(&mut [segment], Input::Rows(rows), &mut out).expect("it runs");
        self.position += count;
        out
    }

    fn suspend(&self, contract: &Contract) -> Handoff {
        let position = self.position as u64;
        let one = |(i, c): (usize, &tranship_handoff::Carried)| {
            let valid = c.valid(position);
            let bytes = self.state.read(i, valid.start as usize..valid.end as usize).expect("rows");
            HandoffTensor::new(&c.name, c.dtype, c.valid_shape(position), bytes)
        };
        let tokens: Vec<u32> = (0..position as u32).collect();
        let state = contract.carried.iter().enumerate().map(one).collect();
        contract.take(Progress::of(&tokens), state).expect("it fits")
    }

    fn resume(&mut self, contract: &Contract, handoff: &Handoff) {
        contract.check(handoff).expect("it is this holder's");
        for (i, carried) in contract.carried.iter().enumerate() {
            let first = carried.valid(handoff.position()).start as usize;
            let tensor = handoff.tensor(&carried.name).expect("it is there");
            self.state.write(i, first, tensor.bytes()).expect("rows");
        }
        self.position = handoff.position() as usize;
    }
}

/// The largest difference between what is summed and what is wanted, as a part of the largest value.
fn error(wanted: &[f32], parts: &[Vec<f32>]) -> f32 {
    let sums = (0..wanted.len()).map(|i| parts.iter().map(|part| part[i]).sum::<f32>());
    let largest = wanted.iter().fold(0f32, |most, v| most.max(v.abs()));
    assert!(largest > 1e-3, "a layer that gives next to nothing shows nothing");
    sums.zip(wanted).map(|(sum, &wanted)| (sum - wanted).abs()).fold(0f32, f32::max) / largest
}

/// Holds the layer `whole` of a model, cut for holders with these programs, to what its contract says of the cut.
fn check(case: &str, spec: &ModelSpec, layer: u64, whole: &str, holders: &[String]) {
    let ours = contract(spec, CTX).expect("a contract").layers(layer..layer + 1).expect("a layer");
    let of = holders.len() as u64;
    let graph = lift(whole);
    let width = spec.hidden as usize;
    let rows = numbers("rows", (BEFORE + AFTER) * width);
    let (before, after) = rows.split_at(BEFORE * width);
    let mut one = Layer::new(&graph, &weights(&graph, &graph, 0));
    one.run(before, BEFORE);
    let shares = one.suspend(&ours).split(of).unwrap_or_else(|e| panic!("{case}: {e}"));
    let wanted = one.run(after, AFTER);

    let resumed = |turn: usize| -> Vec<(Layer, Contract)> {
        let holder = |(index, text): (usize, &String)| {
            let own = lift(text);
            let mut holder = Layer::new(&own, &weights(&graph, &own, index));
            let from = (index + turn) % holders.len();
            let contract = ours.share(from as u64, of).expect("a share");
            let axes: Vec<_> = own.roles().carried().map(|c| (c.name.clone(), c.axes.clone())).collect();
            let listed = |c: &tranship_handoff::Carried| {
                (c.name.clone(), c.axes.iter().map(|a| (a.name.clone(), a.size)).collect::<Vec<_>>())
            };
            assert_eq!(contract.carried.iter().map(listed).collect::<Vec<_>>(), axes, "{case}");
            holder.resume(&contract, &shares[from]);
            (holder, contract)
        };
        holders.iter().enumerate().map(holder).collect()
    };
    let mut holding = resumed(0);
    let parts: Vec<Vec<f32>> = holding.iter_mut().map(|(holder, _)| holder.run(after, AFTER)).collect();
    let found = error(&wanted, &parts);
    println!("{case}: error {found:.1e}");
    assert!(found <= BOUND, "{case}: {found:e}");
    let states: Vec<Handoff> = holding.iter().map(|(holder, contract)| holder.suspend(contract)).collect();
    let joined = Handoff::join_shares(&states).unwrap_or_else(|e| panic!("{case}: {e}"));
    let file = |handoff: &Handoff| handoff.to_bytes().expect("it is sealed");
    assert!(file(&joined) == file(&one.suspend(&ours)), "{case}: states differ");

    // Another holder's share is of the same form, and is not what this one goes on from.
    let mut turned = resumed(1);
    let parts: Vec<Vec<f32>> = turned.iter_mut().map(|(holder, _)| holder.run(after, AFTER)).collect();
    let found = error(&wanted, &parts);
    assert!(found > 1e-2, "{case}: {found:e} with the shares exchanged");
}

/// Layers of a family, for as many holders as there are, with a configuration that has only one's heads.
fn check_family(path: &str, of: usize, layers: &[usize], heads: &[(&str, u64)]) {
    let whole = config(path);
    let mut own = whole.clone();
    if own.get("head_dim").is_none() {
        // It follows from the heads there, and is the same for fewer.
        let [hidden, heads] = ["hidden_size", "num_attention_heads"].map(|key| own[key].as_u64());
        own["head_dim"] = hidden.zip(heads).map_or(Value::Null, |(hidden, heads)| (hidden / heads).into());
    }
    for (key, count) in heads {
        let place = own.pointer_mut(key).unwrap_or_else(|| panic!("{path} has no {key}"));
        assert_eq!(place.as_u64(), Some(count * of as u64), "{path}: {key}");
        *place = (*count).into();
    }
    let (whole, own) = (spec(&whole), spec(&own));
    for &layer in layers {
        let case = format!("{path}, layer {layer}, {}, for {of}", whole.layers[layer].kind());
        check(&case, &whole, layer as u64, &mixer(&whole, layer), &vec![mixer(&own, layer); of]);
    }
}

#[test]
fn attention() {
    let heads = [("/num_attention_heads", 2), ("/num_key_value_heads", 1)];
    check_family("models/llama_base", 3, &[0, 1], &heads);
    // A sliding window, which is past its end at the cut.
    check_family("families/mistral", 2, &[0], &heads);
}

#[test]
fn gated_delta_rule_and_gated_attention() {
    let heads = [
        ("/linear_num_key_heads", 1),
        ("/linear_num_value_heads", 2),
        ("/num_attention_heads", 2),
        ("/num_key_value_heads", 1),
    ];
    check_family("families/qwen3_next", 2, &[0, 1, 2, 3], &heads);
}

#[test]
fn channel_delta_rule() {
    check_family("families/kimi_linear", 3, &[0], &[("/linear_attn_config/num_heads", 1)]);
}

#[test]
fn state_space() {
    let heads = [("/mamba_num_heads", 2), ("/n_groups", 1)];
    check_family("families/nemotron_h", 2, &[0], &heads);
}

/// Replaces in a text what must be there.
fn replaced(text: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "no `{from}` in\n{text}");
        text.replace(from, to)
    })
}

/// A short convolution, whose channels are the terms of its output's sums: cut between any two.
#[test]
fn short_convolution() {
    let spec = spec(&config("families/lfm2"));
    let whole = mixer(&spec, 0);
    for of in [2usize, 3, 4, 9, 36] {
        let own = 36 / of;
        let (rows, cols) = (format!("[{own}, 36]"), format!("[36, {own}]"));
        let mut holder = String::new();
        for line in whole.lines() {
            let name = line.split_once(" : ").map_or("", |(name, _)| name.trim());
            let line = match name {
                "wb" | "wx" | "wc" => replaced(line, &[("[36, 36]", &rows)]),
                "wo" => replaced(line, &[("[36, 36]", &cols)]),
                "conv_t" => replaced(line, &[("[36, 3]", &format!("[{own}, 3]"))]),
                "conv0" => replaced(line, &[("channel 36", &format!("channel {own}"))]),
                _ => line.to_owned(),
            };
            holder += &(line + "\n");
        }
        check(&format!("a short convolution for {of}"), &spec, 0, &whole, &vec![holder; of]);
    }
}

/// Value head `h` of key head `h mod 2`, as GGUF files have them: queries and keys are at both holders whole, and of the
/// heads that they are tiled to each takes those of its share.
#[test]
fn key_heads_in_turns() {
    let mut spec = spec(&config("families/qwen3_next"));
    let Some(Mixer::GatedDelta(delta)) = &mut spec.layers[0].mixer else { panic!("it is a delta rule") };
    delta.projections = DeltaProjections::InTurns;
    let whole = mixer(&spec, 0);
    let holder = |index: u64| {
        let own = format!("times: 2), from: {}, to: {}), ", index * 20, (index + 1) * 20);
        let text = replaced(&whole, &[("times: 2), ", &own), (" tile(", " slice(tile(")]);
        let changes = [
            ("head 4, ", "head 2, "),
            ("[56, ", "[28, "),
            ("[36, 56]", "[36, 28]"),
            ("[4, 36]", "[2, 36]"),
            (": [4] ", ": [2] "),
            ("heads: 4", "heads: 2"),
        ];
        replaced(&text, &changes)
    };
    check("key heads in turns", &spec, 0, &whole, &[holder(0), holder(1)]);
}
