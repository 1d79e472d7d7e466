//! What other systems got wrong when they moved the state of a sequence, each fault as a test that it fails.
//!
//! Each test says at its head what the fault was. Numbers that are worked out by hand are chosen so that the fault gives
//! others: sizes are equal where a transposed tensor would otherwise be refused for its shape.

mod common;

use common::{Fixture, backends, bits, decoded, programs};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use tranship::backend::{Input, Segment, Step};
use tranship::ctx::PRESETS;
use tranship::dtype::DType;
use tranship::handoff::{HandoffError, HandoffTensor, Progress};
use tranship::model::{Ffn, LayerSpec};
use tranship::prelude::*;
use tranship::program::{Extent, Role, Rule};
use tranship::session::{Phase, Section, SessionError, chain};

/// Tokens after which states are looked at: past every window, and no multiple of any rate.
const AT: usize = 23;

fn families() -> impl Iterator<Item = Fixture> {
    common::names().into_iter().map(|name| common::open(&name))
}

/// The rows of a hand-off's tensor by their logical numbers.
fn rows(handoff: &Handoff, name: &str) -> BTreeMap<u64, Vec<u8>> {
    let tensor = handoff.tensor(name).unwrap_or_else(|| panic!("no `{name}`"));
    let carried = handoff.contract().carried.iter().find(|c| c.name == name).expect("it is listed");
    let valid = carried.valid(handoff.position());
    let width = tensor.bytes().len() / tensor.rows().max(1) as usize;
    valid.zip(tensor.bytes().chunks(width.max(1)).map(<[u8]>::to_vec)).collect()
}

/// The axes of a carried tensor: `head 4, key 10, value 14`.
fn axes(contract: &Contract, name: &str) -> String {
    let carried = contract.carried.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no `{name}`"));
    let axes: Vec<String> = carried.axes.iter().map(|a| format!("{} {}", a.name, a.size)).collect();
    axes.join(", ")
}

/// The same state without some tensors, as a sender that does not know of them would make it.
fn without(handoff: &Handoff, absent: &dyn Fn(&str) -> bool) -> Handoff {
    let mut contract = handoff.contract().clone();
    contract.carried.retain(|c| !absent(&c.name));
    let tensors = handoff.state().iter().filter(|t| !absent(&t.name)).cloned().collect();
    let progress = handoff.progress().expect("a digest");
    let less = contract.take(progress, tensors).expect("it fits its own contract");
    Handoff::from_bytes(less.to_bytes().expect("sealed")).expect("it reads")
}

/// The names that a session misses in a hand-off; anything else that it says is a failure.
fn missing(session: &Session, handoff: &Handoff) -> BTreeSet<String> {
    let refused = match session.resume(handoff, &Expect::default()) {
        Err(SessionError::Refused(refusal)) => refusal.errors,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was accepted"),
    };
    let name = |error: &HandoffError| match error {
        HandoffError::Missing { name, .. } => name.clone(),
        other => panic!("{other}"),
    };
    refused.iter().map(name).collect()
}

/// A convolution's inputs kept by channel, `[channels, taps − 1]`, where another end reads them by time, `[taps − 1,
/// channels]`: with as many channels as kept rows nothing but the values tells. Here both are 3.
#[test]
fn a_convolution_keeps_rows_by_time() {
    let text = "program decode layer=0 ctx=16
  x    : [n, 3]
  pos  : index
  conv : [position 3, channel 3]
  taps : [3, 4] @ \"taps\"
  y = conv(join(conv[pos-3 .. pos], x), taps)
  conv[pos+n-3 .. pos+n] = x
  return y
";
    // Each channel takes one tap: the first its input of 3 rows before, the last that of the row itself.
    let taps = ("taps", vec![3, 4], vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    for backend in backends() {
        let mut end = programs::compile(&backend, &[text], std::slice::from_ref(&taps));
        let inputs: Vec<f32> = (1..=5).flat_map(|t| [10.0, 20.0, 30.0].map(|c| c + t as f32)).collect();
        let mut state = end.new_state().expect("memory");
        let mut out = programs::run(end.as_mut(), state.as_mut(), 0, &inputs[..6], 3);
        assert_eq!(out, [0.0, 0.0, 31.0, 0.0, 21.0, 32.0], "{}", backend.name());
        out = programs::run(end.as_mut(), state.as_mut(), 2, &inputs[6..], 3);
        let wanted = [0.0, 22.0, 33.0, 11.0, 23.0, 34.0, 12.0, 24.0, 35.0];
        assert_eq!(out, wanted, "{}", backend.name());
        // The rows of the last 3 positions, oldest first, each with its channels side by side.
        let kept = state.read(0, 2..5).expect("rows");
        let wanted = [13.0, 23.0, 33.0, 14.0, 24.0, 34.0, 15.0, 25.0, 35.0];
        assert_eq!(programs::floats(&kept), wanted, "{}", backend.name());
    }
    // And so in the families: the first axis of every ring counts positions.
    let mut rings = 0;
    for fixture in families() {
        let contract = fixture.contract("parity", 64);
        for carried in contract.carried.iter().filter(|c| c.extent.is_ring()) {
            assert_eq!(carried.axes[0].name, "position", "{}: `{}`", fixture.name, carried.name);
            rings += 1;
        }
    }
    assert!(rings > 30, "only {rings} rings");
}

/// A memory kept as `[value, key]` where another end reads `[key, value]`: with as many of each the shape is the same,
/// and the text goes on with the transposed memory. Worked out by hand for 2 by 2.
#[test]
fn memories_are_keys_by_values() {
    let head = "program decode layer=0 ctx=16\n  x : [n, 8]\n";
    let delta = format!(
        "{head}  s : [head 1, key 2, value 2]
  q = slice(x, to: 2)
  k = slice(x, from: 2, to: 4)
  v = slice(x, from: 4, to: 6)
  beta = slice(x, from: 6, to: 7)
  g = slice(x, from: 7, to: 8)
  y, s[..] = gated_delta(s[..], q, k, v, g, beta, heads: 1, key_heads: 1, scale: 1.0)
  return y
"
    );
    // Queries, keys, values, how much is written, and the logarithm of what is kept.
    let step = [[1.0, 0.0, 1.0, 2.0, 3.0, 5.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.5, 0.0]];
    // k ⊗ v; then of key 1 half of (1, 1) − (6, 10) is added.
    check_memory(&delta, &[], &step, &[[3.0, 5.0, 6.0, 10.0], [3.0, 5.0, 3.5, 5.5]], &[3.0, 5.0, 3.5, 5.5]);
    let space = format!(
        "{head}  s : [head 1, dim 2, state 2]
  a : [1] @ \"a\"
  d : [1] @ \"d\"
  i = slice(x, to: 2)
  b = slice(x, from: 2, to: 4)
  c = slice(x, from: 4, to: 6)
  dt = slice(x, from: 6, to: 7)
  y, s[..] = state_space(s[..], i, b, c, dt, a, d, heads: 1, groups: 1, form: negative)
  return y
"
    );
    let none = [("a", vec![1], vec![0.0]), ("d", vec![1], vec![0.0])];
    let step = [[3.0, 5.0, 1.0, 2.0, 1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.5, 0.0]];
    // x ⊗ b, read by (1, 0); then half of (1, 1) is added for state 1, read by (0, 1).
    check_memory(
        &space,
        &none,
        &step,
        &[[3.0, 6.0, 5.0, 10.0], [3.0, 6.5, 5.0, 10.5]],
        &[3.0, 5.0, 6.5, 10.5],
    );
    let linear = format!(
        "{head}  s : [head 1, key 2, value 2]
  q = slice(x, to: 2)
  k = slice(x, from: 2, to: 4)
  v = slice(x, from: 4, to: 6)
  y, s[..] = decayed_linear(s[..], q, k, v, heads: 1, rate: 0.0)
  return y
"
    );
    let step = [[1.0, 0.0, 1.0, 2.0, 3.0, 5.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]];
    check_memory(
        &linear,
        &[],
        &step,
        &[[3.0, 5.0, 6.0, 10.0], [3.0, 5.0, 7.0, 11.0]],
        &[3.0, 5.0, 7.0, 11.0],
    );
    // And so in the families, of which kimi_linear has as many values as keys.
    let of = |name: &str, tensor: &str| axes(&common::open(name).contract("parity", 64), tensor);
    assert_eq!(of("kimi_linear", "s0"), "head 3, key 12, value 12");
    assert_eq!(of("qwen3_next", "s0"), "head 4, key 10, value 14");
    assert_eq!(of("minimax", "s0"), "head 4, key 12, value 12");
    assert_eq!(of("granitemoehybrid", "s0"), "head 4, dim 18, state 10");
}

/// Steps row by row through a program with one memory, and holds memory and results after each.
fn check_memory(
    text: &str,
    weights: &[programs::Given],
    steps: &[[f32; 8]; 2],
    memories: &[[f32; 4]; 2],
    results: &[f32; 4],
) {
    for backend in backends() {
        let mut end = programs::compile(&backend, &[text], weights);
        let mut state = end.new_state().expect("memory");
        for (position, (row, memory)) in steps.iter().zip(memories).enumerate() {
            let out = programs::run(end.as_mut(), state.as_mut(), position, row, 8);
            assert_eq!(out, results[2 * position..2 * position + 2], "{}:\n{text}", backend.name());
            let rows = state.read(0, 0..1).expect("a head");
            assert_eq!(programs::floats(&rows), memory, "{}:\n{text}", backend.name());
        }
    }
}

/// The inputs of the convolutions of `[q | k | v]` kept as one block of channels, which a split by heads cuts through at
/// the wrong places: the block has no axis of heads. Here each is a tensor of its own, with its heads.
#[test]
fn convolutions_of_queries_keys_and_values_are_apart() {
    let contract = common::open("qwen3_next").contract("parity", 64);
    let names: Vec<&str> = contract.of_layer(0).map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["conv_q0", "conv_k0", "conv_v0", "s0"]);
    assert_eq!(axes(&contract, "conv_q0"), "position 3, head 2, dim 10");
    assert_eq!(axes(&contract, "conv_k0"), "position 3, head 2, dim 10");
    assert_eq!(axes(&contract, "conv_v0"), "position 3, head 4, dim 14");
    let contract = common::open("granitemoehybrid").contract("parity", 64);
    let names: Vec<&str> = contract.of_layer(0).map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["conv_x0", "conv_b0", "conv_c0", "s0"]);
    assert_eq!(axes(&contract, "conv_x0"), "position 3, head 4, dim 18");
    assert_eq!(axes(&contract, "conv_b0"), "position 3, group 2, state 10");
    assert_eq!(axes(&contract, "conv_c0"), "position 3, group 2, state 10");
    // In every family: a convolution beside a memory has an axis of what the layer is split by.
    let mut found = 0;
    for fixture in families() {
        let contract = fixture.contract("parity", 64);
        for conv in contract.carried.iter().filter(|c| c.name.starts_with("conv_")) {
            assert_eq!(conv.axes.len(), 3, "{}: `{}`", fixture.name, conv.name);
            assert!(["head", "group"].contains(&conv.axes[1].name.as_str()), "{}", fixture.name);
            found += 1;
        }
    }
    assert!(found >= 40, "only {found} convolutions");
}

/// A ring handed over from its first slot on, whatever the phase: right until it wraps, and rotated afterwards. Here rows
/// go by their positions: what two hand-offs both hold is the same in both, at every phase of every ring.
#[test]
fn rings_leave_oldest_first_at_every_phase() {
    let [cpu, _] = &backends()[..] else { panic!("two backends") };
    let mut wrapped = 0;
    for fixture in families() {
        let states = decoded(&fixture, cpu, "parity", 1..=40);
        for name in states[0].state().iter().map(|t| t.name.clone()) {
            let carried = states[0].contract().carried.iter().find(|c| c.name == name).expect("it is listed");
            if carried.extent == Extent::Recurrent {
                continue;
            }
            let label = format!("{}: `{name}`", fixture.name);
            for pair in states.windows(2) {
                let (before, after) = (rows(&pair[0], &name), rows(&pair[1], &name));
                for (at, row) in &before {
                    assert!(
                        after.get(at).is_none_or(|r| r == row),
                        "{label}: row {at} after {}",
                        pair[1].position()
                    );
                }
            }
            if carried.extent != Extent::Ring {
                continue;
            }
            // Positions that share their slots do not share their rows.
            let length = carried.rows();
            let ring = |at: u64| states[at as usize - 1].tensor(&name).expect("it is there").bytes().to_vec();
            for at in length + 1..=40u64.saturating_sub(length) {
                assert_ne!(ring(at), ring(at + length), "{label}: {at} and {}", at + length);
                wrapped += 1;
            }
        }
    }
    assert!(wrapped > 1000, "only {wrapped} positions were past a wrap");
}

/// A memory kept or sent in BF16, as the activations are: it loses a little at every token, and drifts. Here memories and
/// convolutions' inputs are F32 under every preset, have bits below BF16, and pass a hand-off with every bit.
#[test]
fn memories_are_never_rounded_to_activations() {
    let mut memories = 0;
    for fixture in families() {
        for policy in PRESETS {
            let contract = fixture.contract(policy, 64);
            let state = |c: &&tranship::handoff::Carried| {
                matches!(c.extent, Extent::Recurrent | Extent::Frontier { .. }) || c.name.starts_with("conv")
            };
            for carried in contract.carried.iter().filter(state) {
                assert_eq!(carried.dtype, DType::F32, "{} under {policy}: `{}`", fixture.name, carried.name);
            }
        }
        for backend in backends() {
            let mut states = decoded(&fixture, &backend, "serving", AT..=AT);
            let sent = states.pop().expect("one state");
            let session = fixture.session(&backend, "serving", 60, 4);
            let names = |c: &&tranship::handoff::Carried| c.extent == Extent::Recurrent;
            for carried in sent.contract().carried.iter().filter(names) {
                let label = format!("{} on {}: `{}`", fixture.name, backend.name(), carried.name);
                let tensor = sent.tensor(&carried.name).expect("it is there");
                let below = tensor.bytes().chunks_exact(4).filter(|v| v[..2] != [0, 0]).count();
                let all = tensor.bytes().len() / 4;
                assert!(below * 10 > all * 9, "{label}: {below} of {all} values have bits below BF16");
                // One bit of one value, the lowest, arrives.
                let mut bytes = tensor.bytes().to_vec();
                bytes[0] ^= 1;
                let edited = HandoffTensor::new(&*carried.name, DType::F32, tensor.shape.clone(), bytes);
                let swap =
                    |t: &HandoffTensor| if t.name == carried.name { edited.clone() } else { t.clone() };
                let tensors = sent.state().iter().map(swap).collect();
                let progress = sent.progress().expect("a digest");
                let handoff = session.contract().take(progress, tensors).expect("it fits");
                let resumed = session.resume(&handoff, &Expect::default()).expect("it fits");
                let back = session.suspend(&resumed, None).expect("it fits");
                assert_eq!(
                    back.tensor(&carried.name).map(HandoffTensor::bytes),
                    Some(edited.bytes()),
                    "{label}"
                );
                memories += 1;
            }
        }
    }
    assert!(memories >= 38, "only {memories} memories");
}

/// A memory updated in a copy that is thrown away: each step is right by itself, and the next starts from the old memory.
/// Here every memory and every ring is another after every token.
#[test]
fn memories_and_rings_advance_with_every_token() {
    let mut found = 0;
    for fixture in families() {
        for backend in backends() {
            for pair in decoded(&fixture, &backend, "parity", 17..=21).windows(2) {
                for (before, after) in pair[0].state().iter().zip(pair[1].state()) {
                    let carried = pair[0].contract().carried.iter().find(|c| c.name == before.name);
                    if matches!(carried.expect("it is listed").extent, Extent::Compressed { .. }) {
                        continue;
                    }
                    let label = format!("{} on {}: `{}`", fixture.name, backend.name(), before.name);
                    assert_ne!(before.bytes(), after.bytes(), "{label} at {}", pair[0].position());
                    found += 1;
                }
            }
        }
    }
    assert!(found > 1000, "only {found} tensors");
}

/// Attention's rows restored and the memories left at zero: the text goes on, and is wrong. Here what is absent is missing
/// by name, all of it at once.
#[test]
fn rows_without_memories_are_refused() {
    let [cpu, _] = &backends()[..] else { panic!("two backends") };
    let mut hybrids = 0;
    for fixture in families() {
        let handoff = decoded(&fixture, cpu, "parity", AT..=AT).pop().expect("one state");
        let cached = |name: &str| {
            let carried = handoff.contract().carried.iter().find(|c| c.name == name);
            carried.is_some_and(|c| c.extent == Extent::Append)
        };
        let absent: BTreeSet<String> =
            handoff.state().iter().map(|t| t.name.clone()).filter(|name| !cached(name)).collect();
        if absent.is_empty() {
            continue;
        }
        let session = fixture.session(cpu, "parity", 60, 4);
        assert_eq!(missing(&session, &without(&handoff, &|name| !cached(name))), absent, "{}", fixture.name);
        hybrids += 1;
    }
    assert!(hybrids >= 15, "only {hybrids} families carry more than rows of attention");
}

/// State of a layer left out because no list knew of it: here any one tensor of any layer, absent, is missing by name.
#[test]
fn any_tensor_left_out_is_missing() {
    let [cpu, _] = &backends()[..] else { panic!("two backends") };
    for fixture in families() {
        let handoff = decoded(&fixture, cpu, "parity", AT..=AT).pop().expect("one state");
        let session = fixture.session(cpu, "parity", 60, 4);
        let layers: BTreeSet<u64> = session.contract().carried.iter().map(|c| c.layer).collect();
        assert!(!layers.is_empty(), "{}", fixture.name);
        for tensor in handoff.state() {
            let less = without(&handoff, &|name| name == tensor.name);
            assert_eq!(missing(&session, &less), BTreeSet::from([tensor.name.clone()]), "{}", fixture.name);
        }
        let same = without(&handoff, &|_| false);
        assert!(session.resume(&same, &Expect::default()).is_ok(), "{}: whole, it fits", fixture.name);
    }
}

/// The position of a full prompt's state counted as the last token's index: the last token is fed once more, or the next
/// one takes its row. Here `n` tokens are position `n` and `n` rows; a state of `n − 1` rows is none of `n` tokens.
#[test]
fn n_tokens_are_position_n() {
    for backend in backends() {
        let fixture = common::open("qwen3_next");
        let tokens = &fixture.tokens;
        let mut states = decoded(&fixture, &backend, "parity", AT - 1..=AT);
        let (now, before) = (states.pop().expect("a state"), states.pop().expect("a state"));
        assert_eq!(
            (now.position(), now.tokens()),
            (AT as u64, &*Progress::of(&tokens[..AT]).digest.to_hex())
        );
        let cache = |h: &Handoff| h.tensor("k2").expect("layer 2 is of attention").rows();
        assert_eq!((cache(&now), cache(&before)), (AT as u64, AT as u64 - 1));

        let mut session = fixture.session(&backend, "parity", 60, 4);
        let errors = |handoff: &Handoff, tokens: &[u32]| {
            let expect = Expect { tokens: Some(tokens), ..Expect::default() };
            match session.resume(handoff, &expect) {
                Err(SessionError::Refused(refusal)) => refusal.errors,
                other => panic!("not refused, {:?}", other.err()),
            }
        };
        // Rows of n − 1 under the position of n: the sender cannot make it, and the receiver does not take it.
        let of_n = now.progress().expect("a digest");
        let refusal = session.contract().take(of_n, before.state().to_vec()).expect_err("too few rows");
        let rows = (AT as u64, AT as u64 - 1);
        let short = |e: &HandoffError| matches!(e, HandoffError::Length { wanted, found, .. } if (*wanted, *found) == rows);
        assert!(!refusal.errors.is_empty() && refusal.errors.iter().all(short), "{refusal}");
        // The position n − 1 with rows to match, and the digest of n tokens: refused, whichever tokens are expected.
        let claimed = Progress { position: AT as u64 - 1, ..of_n };
        let handoff = session.contract().take(claimed, before.state().to_vec()).expect("its rows fit");
        for expected in [&tokens[..AT], &tokens[..AT - 1]] {
            let errors = errors(&handoff, expected);
            assert!(matches!(errors[..], [HandoffError::Tokens { .. }]), "{errors:?}");
        }
        // The next token's row is row n; the last token once more is another text.
        let mut whole = session.sequence().expect("memory");
        let logits = session.extend(&mut whole, &tokens[..=AT], Outputs::Last).expect("it runs");
        let mut next = |token: u32| {
            let mut resumed = session.resume(&now, &Expect::default()).expect("it fits");
            session.extend(&mut resumed, &[token], Outputs::Last).expect("it runs")
        };
        assert_eq!(bits(&next(tokens[AT])), bits(&logits), "{}", backend.name());
        assert_ne!(bits(&next(tokens[AT - 1])), bits(&logits), "{}", backend.name());
    }
}

/// Layers whose caches are one tensor, put on two sides of a cut: each side goes on with half of the rows. Here nothing
/// is shared: what two layers carry has no name in common, and no layer's program names what another carries.
#[test]
fn no_two_layers_share_what_they_carry() {
    for fixture in families() {
        let spec = fixture.model.spec();
        let mut owners = BTreeMap::new();
        for layer in 0..spec.layers.len() {
            for cut in [Cut::PrefillLayer { layer, ctx: 64 }, Cut::DecodeLayer { layer, ctx: 64 }] {
                let program = spec.program(cut).unwrap_or_else(|e| panic!("{}: {e}", fixture.name));
                let graph = program.lift().unwrap_or_else(|e| panic!("{}: {e}", fixture.name));
                for (id, value) in graph.declared() {
                    let role = graph.roles().of(id).expect("what is declared has a role");
                    assert_ne!(role, Role::Frozen, "{}: `{}`", fixture.name, value.name);
                    if let Role::Carried(_) | Role::Scratch = role {
                        let owner = *owners.entry(value.name.clone()).or_insert(layer);
                        assert_eq!(owner, layer, "{}: `{}` is of two layers", fixture.name, value.name);
                    }
                }
            }
        }
        let listed: BTreeMap<String, usize> = fixture
            .contract("parity", 64)
            .carried
            .iter()
            .map(|c| (c.name.clone(), c.layer as usize))
            .collect();
        assert_eq!(listed, owners, "{}", fixture.name);
    }
}

/// A program that reads another layer's cache: by positions it does not lift, since it does not write them, and whole it
/// is compiled by no backend, since nothing gives the tensor its rows.
#[test]
fn another_layers_cache_cannot_be_read() {
    let own = "program decode layer=0 ctx=8
  x   : [n, 4]
  pos : index
  k0  : [8, 4]
  k0[pos .. pos+n] = x
  return attend(x, k0[.. pos+n], k0[.. pos+n], heads: 1, kv_heads: 1, scale: 0.5)
";
    let other = |read: &str| {
        format!(
            "program decode layer=1 ctx=8
  x   : [n, 4]
  pos : index
  k0  : [8, 4]
  return attend(x, k0[{read}], k0[{read}], heads: 1, kv_heads: 1, scale: 0.5)
"
        )
    };
    let refused = Program::parse(&other(".. pos+n")).and_then(|p| p.lift()).expect_err("it is not written");
    assert_eq!(refused.rule, Rule::ReadsUnwritten, "{refused}");
    let rings = "program decode layer=1 ctx=8
  x    : [n, 4]
  pos  : index
  conv : [3, 4]
  taps : [4, 4] @ \"taps\"
  return conv(join(conv[pos-3 .. pos], x), taps)
";
    let refused = Program::parse(rings).and_then(|p| p.lift()).expect_err("it is not written");
    assert_eq!(refused.rule, Rule::ReadsUnwritten, "{refused}");
    let whole = "program decode layer=1 ctx=8\n  x : [n, 4]\n  k0 : [4, 4]\n  return linear(x, k0[..])\n";
    for backend in backends() {
        assert!(programs::try_compile(&backend, &[own], &[]).is_ok());
        let error = programs::try_compile(&backend, &[own, whole], &[]).err().expect("nothing gives it rows");
        assert!(error.to_string().contains("reads `k0`, which nothing writes or gives"), "{error}");
    }
}

/// A model of 7 layers, put together from the layers of the fixture `qwen3_next`: memories, attention, a dense layer.
fn seven() -> (tempfile::TempDir, Fixture) {
    // Each layer is one of the fixture's that is of its kind: attention stands at every third, layer 1 is dense.
    const LIKE: [usize; 7] = [0, 1, 2, 3, 0, 2, 3];
    let source = common::open("qwen3_next");
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for view in source.model.checkpoint().tensors_by_name() {
        let layer = view.name().strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let copies: Vec<String> = match layer {
            None => vec![view.name().to_owned()],
            Some((layer, rest)) => {
                let of = (0..7).filter(|&l| LIKE[l].to_string() == layer);
                of.map(|l| format!("model.layers.{l}.{rest}")).collect()
            }
        };
        for name in copies {
            let range = [data.len(), data.len() + view.bytes().len()];
            data.extend_from_slice(view.bytes());
            let dtype = view.dtype().to_string().to_uppercase();
            let entry = serde_json::json!({ "dtype": dtype, "shape": view.shape(), "data_offsets": range });
            header.insert(name, entry);
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = source.model.checkpoint().config().expect("a configuration").clone();
    config["num_hidden_layers"] = 7.into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("it is written");
    let header = serde_json::Value::from(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(folder.path().join("model.safetensors"), file).expect("it is written");
    let model = Model::open(folder.path()).unwrap_or_else(|e| panic!("{e}"));
    (folder, Fixture { name: "seven".into(), model: model.into(), tokens: source.tokens })
}

/// 7 layers in 2 parts of `7 / 2` each, which is 6 layers: a model that answers, and lacks one. Here every cut's two parts
/// carry every tensor once, and give what the whole gives.
#[test]
fn seven_layers_in_two_parts_are_seven() {
    let (_folder, fixture) = seven();
    assert_eq!(fixture.model.spec().layers.len(), 7);
    cuts_lose_nothing(&fixture);
}

/// The same of every family, at every cut.
#[test]
fn no_cut_of_a_family_loses_a_layer() {
    families().for_each(|fixture| cuts_lose_nothing(&fixture));
}

/// Holds both parts of every cut of a model to the whole: what they carry, and what they give under `parity`.
fn cuts_lose_nothing(fixture: &Fixture) {
    let [cpu, _] = &backends()[..] else { panic!("two backends") };
    let layers = fixture.model.spec().layers.len();
    let carried = fixture.contract("parity", 64).carried;
    let tokens = &fixture.tokens[..AT];
    let whole =
        Part::open(fixture, cpu, true, 0..layers, true).expect("it compiles").run(Input::Tokens(tokens));
    let whole = whole.expect("it runs");
    let hashed = |k: usize| fixture.model.spec().layers[k..].iter().any(needs_tokens);
    for k in 0..=layers {
        let label = format!("{} cut before layer {k}", fixture.name);
        let mut first =
            Part::open(fixture, cpu, true, 0..k, false).unwrap_or_else(|e| panic!("{label}: {e}"));
        let mut second =
            Part::open(fixture, cpu, false, k..layers, true).unwrap_or_else(|e| panic!("{label}: {e}"));
        let names: Vec<&String> = first.carried.iter().chain(&second.carried).collect();
        assert_eq!(names, carried.iter().map(|c| &c.name).collect::<Vec<_>>(), "{label}");
        let own = carried.iter().filter(|c| (c.layer as usize) < k).count();
        assert_eq!(first.carried.len(), own, "{label}");
        assert_eq!(first.programs + second.programs, layers + 2, "{label}");
        let rows = first.run(Input::Tokens(tokens)).unwrap_or_else(|e| panic!("{label}: {e}"));
        // Rows alone do not say which experts a token has: where that is asked, they are refused without tokens.
        match second.run(Input::Rows(&rows)) {
            Ok(found) => {
                assert!(!hashed(k), "{label}: accepted without the tokens that it needs");
                assert_eq!(bits(&found), bits(&whole), "{label}");
            }
            Err(error) => {
                let why = "wanted tokens beside the input rows, found none";
                assert!(hashed(k) && error.to_string() == why, "{label}: {error}");
            }
        }
        let found =
            second.run(Input::RowsAndTokens(&rows, tokens)).unwrap_or_else(|e| panic!("{label}: {e}"));
        assert_eq!(bits(&found), bits(&whole), "{label}");
    }
}

/// Whether a layer looks up by token what it computes with.
fn needs_tokens(layer: &LayerSpec) -> bool {
    matches!(&layer.ffn, Some(Ffn::Experts(experts)) if experts.routing.by_token)
}

/// A part of a model on a backend.
struct Part {
    step: Box<dyn Step>,
    carried: Vec<String>,
    programs: usize,
}

impl Part {
    fn open(
        fixture: &Fixture,
        backend: &Arc<dyn Backend>,
        embed: bool,
        layers: Range<usize>,
        head: bool,
    ) -> Result<Part, Error> {
        let policy = ComputeCtx::parity(Device::of(backend.name()));
        let section = Section { embed, layers, head };
        let accepts = &backend.caps().accepts;
        let chain = chain(&fixture.model, &policy, accepts, (&section, Phase::Prefill), (64, AT))?;
        let carried = chain.carried().into_iter().map(|c| c.name).collect();
        let programs = chain.parts.len();
        Ok(Part { step: backend.compile(&chain, &fixture.model.weights())?, carried, programs })
    }

    fn run(&mut self, input: Input<'_>) -> Result<Vec<f32>, Error> {
        let mut state = self.step.new_state()?;
        let segment = Segment { state: state.as_mut(), position: 0, rows: AT, outputs: Outputs::All };
        let mut out = Vec::new();
        self.step.run(&mut [segment], input, &mut out)?;
        Ok(out)
    }
}
