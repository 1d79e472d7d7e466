//! Shares by holder and by layer: what they are, that they join to what they were made of, and what is refused.

use crate::draft::{CTX as ROWS, Draft, Sealing, TOKENS, contract as llama, good, parity, shortened};
use crate::families::{CTX, specs};
use serde_json::{Value, json};
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_handoff::{Carried, Contract, Handoff, HandoffTensor, Layers, MOST_HOLDERS, Progress, Share};
use tranship_program::Run;

/// Bytes that all differ in kind, none of them NaN.
fn noise(dtype: DType, bytes: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let mut all: Vec<u8> = (0..bytes).map(|_| byte()).collect();
    match dtype {
        DType::F16 => all.iter_mut().skip(1).step_by(2).for_each(|b| *b &= 0xbb),
        DType::F32 => all.iter_mut().skip(2).step_by(4).for_each(|b| *b &= 0x7f),
        other => panic!("{other} is no type of a family"),
    }
    all
}

/// A hand-off of noise after `position` tokens.
fn at(contract: &Contract, position: u64) -> Handoff {
    let tokens: Vec<u32> = (0..position as u32).collect();
    let progress = Progress { next_token: Some(5), ..Progress::of(&tokens) };
    let one = |(i, c): (usize, &Carried)| {
        let bytes = noise(c.dtype, c.bytes(c.valid_rows(position)).expect("countable"), i as u64);
        HandoffTensor::new(&c.name, c.dtype, c.valid_shape(position), bytes)
    };
    contract.take(progress, contract.carried.iter().enumerate().map(one).collect()).expect("it fits")
}

fn file(handoff: &Handoff) -> Vec<u8> {
    handoff.to_bytes().expect("it is sealed")
}

/// The bytes of a holder's share, place by place along the axis, as the page of the format has it.
fn picked(carried: &Carried, tensor: &HandoffTensor, index: u64, of: u64) -> Vec<u8> {
    let Some(segments) = &carried.segments else { return tensor.bytes().to_vec() };
    let mut places = Vec::new();
    let mut start = 0;
    for Run { count, size } in &segments.runs {
        for unit in index * count / of..(index + 1) * count / of {
            places.extend(start + unit * size..start + (unit + 1) * size);
        }
        start += count * size;
    }
    let element = tensor.dtype.row_bytes(1).expect("one element") as u64;
    let before: u64 = tensor.shape[..segments.axis].iter().product();
    let axis = tensor.shape[segments.axis];
    let after: u64 = tensor.shape[segments.axis + 1..].iter().product::<u64>() * element;
    let mut bytes = Vec::new();
    for row in 0..before {
        for place in &places {
            let from = ((row * axis + place) * after) as usize;
            bytes.extend_from_slice(&tensor.bytes()[from..from + after as usize]);
        }
    }
    bytes
}

/// The contracts of the fixture families, with caches in F16.
fn contracts() -> Vec<(String, Contract)> {
    let policy = ComputeCtx::quantized(Device::cpu());
    let one = |(name, spec)| {
        let contract = Contract::of(&spec, CTX, &policy, None).expect("a contract");
        (name, contract)
    };
    specs().into_iter().map(one).collect()
}

/// The first tensor, and count, that so many holders cannot share.
fn unshared(contract: &Contract, of: u64) -> Option<String> {
    contract.carried.iter().find_map(|c| {
        let segments = c.segments.as_ref()?;
        let run = segments.runs.iter().find(|run| run.count % of != 0)?;
        let (name, count, axis) = (&c.name, run.count, &c.axes[segments.axis].name);
        Some(format!("`{name}` has {count} units of {axis}, which {of} holders cannot share"))
    })
}

#[test]
fn every_family_in_shares() {
    let (mut cut, mut refused, mut whole) = (0, 0, 0);
    for (name, contract) in contracts() {
        for position in [0, 1, 7, 48] {
            let handoff = at(&contract, position);
            for of in 1..=12 {
                let case = format!("{name} at {position} for {of}");
                if let Some(reason) = unshared(&contract, of) {
                    let error = handoff.split(of).expect_err(&case).to_string();
                    assert_eq!(error, reason, "{case}");
                    assert_eq!(contract.share(0, of).expect_err(&case).to_string(), reason, "{case}");
                    refused += 1;
                    continue;
                }
                let mut parts = handoff.split(of).unwrap_or_else(|e| panic!("{case}: {e}"));
                assert_eq!(parts.len() as u64, of, "{case}");
                for (index, part) in (0..of).zip(&parts) {
                    let own = contract.share(index, of).expect("a share");
                    assert_eq!(part.contract(), &own, "{case}");
                    assert_eq!(own.share, (of > 1).then_some(Share { index, of }), "{case}");
                    assert_eq!(Contract::from_json(&own.to_json()).expect("it reads"), own, "{case}");
                    own.check(part).unwrap_or_else(|e| panic!("{case}: {e}"));
                    for c in &contract.carried {
                        let (all, share) = (handoff.tensor(&c.name), part.tensor(&c.name));
                        let (all, share) = (all.expect("it is there"), share.expect("it is there"));
                        assert_eq!(share.bytes(), picked(c, all, index, of), "{case}: {}", c.name);
                        cut += usize::from(share.bytes().len() < all.bytes().len());
                        whole += usize::from(of > 1 && c.segments.is_none());
                    }
                }
                // In another order, and through bytes.
                parts.rotate_left(of as usize / 2);
                let read = |part: &Handoff| Handoff::from_bytes(file(part)).expect("it reads");
                let parts: Vec<Handoff> = parts.iter().map(read).collect();
                let joined = Handoff::join(&parts).unwrap_or_else(|e| panic!("{case}: {e}"));
                assert_eq!(joined.contract(), &contract, "{case}");
                assert_eq!(file(&joined), file(&handoff), "{case}");
            }
        }
    }
    assert!(cut > 1000 && refused > 800 && whole > 1000, "{cut} cut, {refused} refused, {whole} whole");
}

/// A contract of small numbers that many holders divide: a ring of queries, keys and values, and a memory.
fn divisible() -> Contract {
    let json = json!({
        "version": 1, "ctx": 12, "hidden": 8, "streams": 1,
        "identity": { "weights": null, "programs": "p", "policy": "numbers" },
        "carried": [
            { "name": "r0", "layer": 0, "dtype": "f32", "extent": "ring",
              "axes": [{ "name": "position", "size": 3 }, { "name": "channel", "size": 108 }],
              "segments": { "axis": 1, "runs": [
                  { "count": 12, "size": 2 }, { "count": 12, "size": 2 }, { "count": 12, "size": 5 }] } },
            { "name": "s0", "layer": 0, "dtype": "f16", "extent": "recurrent",
              "axes": [{ "name": "head", "size": 24 }, { "name": "key", "size": 3 }, { "name": "value", "size": 2 }],
              "segments": { "axis": 0, "runs": [{ "count": 24, "size": 1 }] } },
            { "name": "c2", "layer": 2, "dtype": "f16", "extent": "compressed", "rate": 4,
              "axes": [{ "name": "span", "size": 3 }, { "name": "dim", "size": 5 }] },
            { "name": "k3", "layer": 3, "dtype": "f16", "extent": "append",
              "axes": [{ "name": "position", "size": 12 }, { "name": "one", "size": 1 }, { "name": "dim", "size": 36 }],
              "segments": { "axis": 2, "runs": [{ "count": 12, "size": 3 }] } },
        ],
    });
    Contract::from_json(&json.to_string()).expect("a contract")
}

/// For N and then for M is for M; a share of a share is the share of so many more.
#[test]
fn cut_again() {
    let handoff = at(&divisible(), 9);
    for of in [2, 3, 4, 6, 12] {
        let parts = handoff.split(of).expect("shares");
        for other in [1, 2, 3, 4, 6, 12] {
            let again = Handoff::join(&parts).expect("the whole").split(other).expect("shares");
            let wanted = handoff.split(other).expect("shares");
            assert!(again.iter().zip(&wanted).all(|(a, b)| file(a) == file(b)), "{of}, then {other}");
            if 12 % (of * other) == 0 {
                let within = parts.iter().flat_map(|part| part.split(other).expect("shares of a share"));
                let wanted = handoff.split(of * other).expect("shares");
                assert!(within.zip(&wanted).all(|(a, b)| file(&a) == file(b)), "{of} × {other}");
            }
        }
    }
    let error = handoff.split(2).expect("shares")[0].split(4).expect_err("it is refused").to_string();
    assert_eq!(error, "`r0` has 6 units of channel, which 4 holders cannot share");
}

#[test]
fn every_family_in_layers() {
    for (name, contract) in contracts() {
        let handoff = at(&contract, 11);
        let last = contract.carried.iter().map(|c| c.layer + 1).max().expect("a layer");
        // The last run has a layer more, as one that carries nothing would be.
        for cut in 1..=last {
            let mut parts = vec![
                handoff.layers(cut..last + 1).unwrap_or_else(|e| panic!("{name} at {cut}: {e}")),
                handoff.layers(0..cut).unwrap_or_else(|e| panic!("{name} at {cut}: {e}")),
            ];
            for part in &parts {
                let layers = part.contract().layers.expect("it is said");
                assert_eq!(layers.of, last, "{name}");
                let own = contract.layers(layers.from..layers.to).expect("layers");
                assert_eq!(part.contract(), &own, "{name}");
                assert_eq!(Contract::from_json(&own.to_json()).expect("it reads"), own, "{name}");
                own.check(part).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
            let joined = Handoff::join(&parts).unwrap_or_else(|e| panic!("{name} at {cut}: {e}"));
            assert_eq!(file(&joined), file(&handoff), "{name} at {cut}");
            // Each run for as many holders as it can be cut for, whatever the other one is.
            let holders = |part: &Handoff| (1..=6).rev().find(|&of| part.split(of).is_ok()).expect("one");
            let shares: Vec<Handoff> =
                parts.drain(..).flat_map(|part| part.split(holders(&part)).expect("shares")).collect();
            let joined = Handoff::join(&shares).unwrap_or_else(|e| panic!("{name} at {cut}: {e}"));
            assert_eq!(file(&joined), file(&handoff), "{name} at {cut}, in shares");
        }
    }
}

/// A holder's share of a run of layers, whichever is cut first; and the run joined by itself.
#[test]
fn by_holder_and_by_layer() {
    let handoff = at(&divisible(), 9);
    let first = |h: &Handoff| h.layers(0..3).expect("layers");
    let share = |h: &Handoff| h.split(4).expect("shares").swap_remove(1);
    assert_eq!(file(&share(&first(&handoff))), file(&first(&share(&handoff))));
    let run = first(&handoff);
    assert_eq!(run.contract().layers, Some(Layers { from: 0, to: 3, of: 4 }));
    let shares = run.split(4).expect("shares");
    assert_eq!(file(&Handoff::join_shares(&shares).expect("the run")), file(&run));
    let narrower = run.layers(2..3).expect("a layer");
    assert_eq!(file(&narrower), file(&handoff.layers(2..3).expect("a layer")));
    let error = Handoff::join(&shares).expect_err("layers are missing").to_string();
    assert_eq!(error, "no part has layer 3");
    let error = |h: &Handoff, layers| h.layers(layers).expect_err("no layers").to_string();
    assert_eq!(error(&run, 2..4), "layers 2..4 are not among the contract's layers 0..3");
    assert_eq!(error(&narrower, 1..3), "layers 1..3 are not among the contract's layers 2..3");
    assert_eq!(error(&handoff, 2..2), "layers 2..2 are not among the contract's layers 0..4");
    // Layers of no state are a run as well.
    let none = handoff.layers(1..2).expect("a layer");
    assert!(none.state().is_empty() && none.seal().is_some());
    let parts =
        [none, narrower, handoff.layers(0..1).expect("a layer"), handoff.layers(3..4).expect("a layer")];
    assert_eq!(file(&Handoff::join(&parts).expect("all layers")), file(&handoff));
}

/// Holds what parts are refused for, when one of them is changed.
fn refused(parts: &[Handoff], reasons: &[&str]) {
    let refusal = Handoff::join(parts).expect_err("they are refused");
    let found: Vec<String> = refusal.errors.iter().map(|e| shortened(&e.to_string())).collect();
    assert_eq!(found, reasons);
}

fn edited(part: &Handoff, edit: impl FnOnce(&mut Draft)) -> Handoff {
    let mut draft = Draft::of(part);
    edit(&mut draft);
    Handoff::from_bytes(draft.bytes()).expect("it reads")
}

#[test]
fn parts_that_do_not_join() {
    let handoff = good(&llama(ROWS, &parity()));
    let [a, b, c] = handoff.split(3).expect("three heads").try_into().expect("three");
    let [a, b, c] = [&a, &b, &c];
    let join = |parts: &[&Handoff], reasons: &[&str]| {
        refused(&parts.iter().map(|&part| part.clone()).collect::<Vec<_>>(), reasons);
    };
    assert_eq!(file(&Handoff::join(&[c.clone(), a.clone(), b.clone()]).expect("all")), file(&handoff));
    join(&[], &["no part has anything"]);
    join(&[a, b], &["no part has share 2 of 3"]);
    join(&[c], &["no part has shares 0..2 of 3"]);
    join(
        &[a, c, a, c],
        &["two parts have share 0 of 3", "no part has share 1 of 3", "two parts have share 2 of 3"],
    );
    join(&[&handoff, &handoff], &["part 1: two parts have the whole"]);
    join(&[&handoff, a], &["part 1 (share 0 of 3): two parts have share 0 of 3"]);
    let with = |edit: &dyn Fn(&mut Draft), reasons: &[&str]| join(&[a, &edited(b, edit), c], reasons);
    with(&|d| d.sealing = Sealing::Absent, &["part 1 (share 1 of 3): the hand-off is not sealed"]);
    let broken = "part 1 (share 1 of 3): the seal is broken: it is #, and the content has #";
    with(&|d| d.sealing = Sealing::Is("0".repeat(64)), &[broken]);
    let differs = |what: &str, wanted: &str, found: &str| {
        format!("part 1 (share 1 of 3): {what} differs between parts: {wanted} in the first, {found} here")
    };
    let manifest = |key: &str, value: Value, what: &str, wanted: &str, found: &str| {
        let edit = |d: &mut Draft| d.manifest[key] = value.clone();
        with(&edit, &[&differs(what, wanted, found)]);
    };
    let other = Progress::of(&TOKENS[..4]).digest.to_hex().to_string();
    manifest("tokens", json!(other), "digest of tokens", "#", "#");
    manifest("next_token", Value::Null, "next token", "3", "none");
    let identity = |key: &str, value: &str, what: &str, wanted: &str| {
        let edit = |d: &mut Draft| d.manifest["contract"]["identity"][key] = json!(value);
        with(&edit, &[&differs(what, wanted, value)]);
    };
    identity("weights", "others", "digest of weights", "#");
    identity("programs", "others", "digest of programs", "#");
    identity("policy", "others", "policy", "compute=f32 kv=f32 accum=f32 state=f32 activations=float");
    let fewer = |d: &mut Draft| {
        d.manifest["position"] = json!(4);
        d.cut(4);
    };
    with(&fewer, &[&differs("position", "5", "4")]);
    let longer = |d: &mut Draft| {
        d.manifest["contract"]["ctx"] = json!(20);
        d.manifest["contract"]["carried"].as_array_mut().expect("a list").iter_mut().for_each(|c| {
            c["axes"][0]["size"] = json!(20);
        });
    };
    with(&longer, &[&differs("ctx", "12", "20")]);
    with(&|d| d.manifest["contract"]["hidden"] = json!(9), &[&differs("width of rows", "48", "9")]);
    with(&|d| d.manifest["contract"]["streams"] = json!(2), &[&differs("number of streams", "1", "2")]);
    let short = |d: &mut Draft| {
        d.part("k1").shape[0] = 4;
        d.part("k1").bytes.truncate(256);
    };
    with(&short, &["part 1 (share 1 of 3): `k1` has 4 rows; 5 are valid after 5 tokens"]);
    let listed = |d: &mut Draft| d.carried("v0")["axes"][2]["name"] = json!("dim");
    let axes = |dim: &str| {
        format!("[position 12, kv_head 1, {dim} 16] f32 (append, layer 0), 1 kv_head along axis 1")
    };
    with(&listed, &[&differs("`v0`", &axes("head_dim"), &axes("dim"))]);
    let uncut = |d: &mut Draft| drop(d.carried("v0").as_object_mut().expect("a map").remove("segments"));
    let whole = axes("head_dim").replace("1 kv_head along axis 1", "whole");
    with(&uncut, &[&differs("`v0`", &axes("head_dim"), &whole)]);
    let without = |d: &mut Draft| {
        d.parts.retain(|p| p.name != "k0");
        d.manifest["contract"]["carried"].as_array_mut().expect("a list").remove(0);
    };
    with(&without, &["part 1 (share 1 of 3): `k0` of layer 0 is missing"]);
    let six = |d: &mut Draft| d.manifest["contract"]["share"]["of"] = json!(6);
    join(
        &[a, &edited(b, six), c],
        &[
            "part 1 (share 1 of 6): number of holders differs between parts: 3 in the first, 6 here",
            "no part has share 1 of 3",
        ],
    );
    // A number of holders that nobody has parts of.
    let many = |d: &mut Draft| d.manifest["contract"]["share"]["of"] = json!(MOST_HOLDERS);
    join(&[&edited(a, many)], &["no part has shares 1..65536 of 65536"]);
}

/// What every holder has whole is the same at all of them, or it is refused by name.
#[test]
fn copies_that_differ() {
    let (_, contract) = contracts().into_iter().find(|(name, _)| name == "deepseek_v3").expect("a family");
    let handoff = at(&contract, 7);
    let parts = handoff.split(3).expect("copies");
    assert!(parts.iter().all(|part| part.bytes() == handoff.bytes()), "all of it is whole");
    assert_eq!(file(&Handoff::join(&parts).expect("the whole")), file(&handoff));
    let changed = edited(&parts[2], |d| d.part("r1").bytes[0] ^= 1);
    let reason = "part 1 (share 2 of 3): `r1`, which every holder has whole, differs between parts: # in the first, # here";
    refused(&[parts[0].clone(), changed, parts[1].clone()], &[reason]);
    assert_eq!(
        handoff.split(0).expect_err("none").to_string(),
        format!("there is no share 0 of 0: {HOLDERS}")
    );
    let reason = format!("there is no share 0 of 65537: {HOLDERS}");
    assert_eq!(handoff.split(MOST_HOLDERS + 1).expect_err("too many").to_string(), reason);
    let reason = format!("there is no share 2 of {}: {HOLDERS}", u64::MAX);
    assert_eq!(parts[1].contract().share(2, u64::MAX).expect_err("too many").to_string(), reason);
    assert_eq!(
        contract.share(3, 3).expect_err("none").to_string(),
        format!("there is no share 3 of 3: {HOLDERS}")
    );
}

const HOLDERS: &str = "holders are counted from 0, and are at most 65536";

#[test]
fn layers_that_do_not_join() {
    let (_, contract) = contracts().into_iter().find(|(name, _)| name == "qwen3_next").expect("a family");
    let handoff = at(&contract, 7);
    let part = |from, to| handoff.layers(from..to).expect("layers");
    refused(&[part(0, 1), part(2, 4)], &["no part has layer 1"]);
    refused(&[part(3, 4)], &["no part has layers 0..3"]);
    refused(&[part(0, 2)], &["no part has layers 2..4"]);
    refused(&[part(0, 3), part(1, 4)], &["two parts have layers 1..3"]);
    refused(&[part(0, 4), part(1, 2)], &["two parts have layer 1"]);
    refused(
        &[part(0, 2), part(0, 2), part(2, 4)],
        &["part 1 (layers 0..2): two parts have the whole of layers 0..2"],
    );
    let number = "part 1 (layers 0..2): number of layers differs between parts: all in the first, 4 here";
    refused(&[handoff.clone(), part(0, 2)], &[number]);
    let mut shares = part(0, 2).split(2).expect("shares");
    shares.extend(part(2, 4).split(2).expect("shares"));
    shares.remove(2);
    refused(&shares, &["no part has share 0 of 2 of layers 2..4"]);
    let error = Handoff::join_shares(&shares).expect_err("two runs").to_string();
    let reason = "part 2 (share 1 of 2, layers 2..4): run of layers differs between parts: layers 0..2 in the first, layers 2..4 here";
    assert_eq!(error, reason);
    let unsealed = edited(&handoff, |d| d.sealing = Sealing::Absent);
    assert_eq!(unsealed.layers(0..1).expect_err("unsealed").to_string(), "the hand-off is not sealed");
    assert_eq!(unsealed.split(2).expect_err("unsealed").to_string(), "the hand-off is not sealed");
}

/// Whose share it is, a receiver compares, also where the shares of all are alike in form.
#[test]
fn another_share() {
    let contract = llama(ROWS, &parity());
    let parts = good(&contract).split(3).expect("three heads");
    let own = contract.share(1, 3).expect("a share");
    own.check(&parts[1]).expect("it fits");
    let found = |ours: &Contract, part: &Handoff| ours.check(part).expect_err("another").errors;
    let errors = found(&own, &parts[0]);
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].to_string(), "the hand-off is share 0 of 3 of the state, wanted share 1 of 3");
    let errors = found(&contract, &parts[0]);
    assert_eq!(errors[0].to_string(), "the hand-off is share 0 of 3 of the state, wanted the whole");
    assert!(
        errors[1].to_string().starts_with("`k0` has axes [position 12, kv_head 1, head_dim 16]"),
        "{}",
        errors[1]
    );
    let errors = found(&own, &good(&contract));
    assert_eq!(errors[0].to_string(), "the hand-off is the whole of the state, wanted share 1 of 3");
    // A run of layers lacks those that are not in it.
    let layer = good(&contract).layers(0..1).expect("a layer");
    let errors: Vec<String> = found(&contract, &layer).iter().map(ToString::to_string).collect();
    let other = "the hand-off is layers 0..1 of the state, wanted the whole";
    assert_eq!(errors, [other, "`k1` of layer 1 is missing", "`v1` of layer 1 is missing"]);
}

/// What was written before there were segments is taken as before, and can be cut once it is under a contract that has
/// them.
#[test]
fn without_segments() {
    let contract = llama(ROWS, &parity());
    let old = edited(&good(&contract), |d| {
        for carried in d.manifest["contract"]["carried"].as_array_mut().expect("a list") {
            carried.as_object_mut().expect("a map").remove("segments").expect("there are some");
        }
    });
    assert!(old.contract().carried.iter().all(|c| c.segments.is_none()));
    contract.check(&old).expect("it fits");
    assert_eq!(old.split(2).expect("copies")[1].bytes(), old.bytes());
    let ours = contract.take(old.progress().expect("a digest"), old.state().to_vec()).expect("it fits");
    assert_eq!(file(&ours), file(&good(&contract)));
    let wanted = good(&contract).split(3).expect("three heads");
    assert!(ours.split(3).expect("three heads").iter().zip(&wanted).all(|(a, b)| file(a) == file(b)));
}

#[test]
fn json_that_cuts_nothing() {
    let good: Value = serde_json::from_str(&divisible().to_json()).expect("JSON");
    let check = |edit: &dyn Fn(&mut Value), wanted: &str| {
        let mut value = good.clone();
        edit(&mut value);
        let error = Contract::from_json(&value.to_string()).expect_err(wanted).to_string();
        assert_eq!(error, format!("this is no hand-off: {wanted}"));
    };
    let cut = |at: usize, axis: u64, runs: Value| {
        move |v: &mut Value| v["carried"][at]["segments"] = json!({ "axis": axis, "runs": runs })
    };
    let run = |count: u64, size: u64| json!({ "count": count, "size": size });
    let sum =
        |found: &str| format!("the manifest's segments of `r0` are {found} of 108 in `channel`, or empty");
    check(&cut(0, 1, json!([run(12, 8)])), &sum("96"));
    check(&cut(0, 1, json!([])), &sum("0"));
    check(&cut(0, 1, json!([run(108, 1), run(0, 4)])), &sum("108"));
    check(&cut(0, 1, json!([run(108, 1), run(4, 0)])), &sum("108"));
    check(&cut(0, 1, json!([run(u64::MAX, 2)])), &sum("more than can be counted"));
    check(&cut(0, 1, json!([run(u64::MAX, 1), run(1, 1)])), &sum("more than can be counted"));
    check(&cut(0, 2, json!([run(108, 1)])), "the manifest cuts `r0` along axis 2, and it has 2");
    check(&cut(0, 0, json!([run(3, 1)])), "the manifest cuts `r0` along its rows, which follow the position");
    check(
        &cut(0, u64::MAX, json!([run(108, 1)])),
        &format!("the manifest cuts `r0` along axis {}, and it has 2", u64::MAX),
    );
    check(&|v| v["carried"][0]["segments"] = json!({ "axis": 1 }), "missing field `runs`");
    check(
        &|v| v["carried"][0]["segments"]["runs"][0]["count"] = json!(-1),
        "invalid value: integer `-1`, expected u64",
    );
    let share = |index: u64, of: u64| move |v: &mut Value| v["share"] = json!({ "index": index, "of": of });
    for (index, of) in [(2, 2), (0, 0), (0, 1), (7, MOST_HOLDERS + 1), (u64::MAX, u64::MAX)] {
        let wanted = format!("the manifest's contract is share {index} of {of}, which there is not");
        check(&share(index, of), &wanted);
    }
    let layers = |from: u64, to: u64, of: u64| {
        move |v: &mut Value| v["layers"] = json!({ "from": from, "to": to, "of": of })
    };
    check(&layers(3, 3, 4), "the manifest's contract is of layers 3..3, which are none");
    check(&layers(0, 3, 4), "the manifest gives `k3` layer 3, and is of layers 0..3 of 4");
    check(&layers(1, 4, 4), "the manifest gives `r0` layer 0, and is of layers 1..4 of 4");
    check(&layers(0, 4, 3), "the manifest gives `k3` layer 3, and is of layers 0..4 of 3");
    let mut null = good.clone();
    for key in ["share", "layers"] {
        null[key] = Value::Null;
    }
    null["carried"][2]["segments"] = Value::Null;
    assert_eq!(Contract::from_json(&null.to_string()).expect("null is nothing"), divisible());
}

/// Layers out of their order would not be joined in it.
#[test]
fn layers_out_of_order() {
    let mut contract = divisible();
    contract.carried.swap(0, 3);
    let error = contract.layers(0..2).expect_err("no order").to_string();
    assert_eq!(error, "this is no hand-off: its contract's layers are not in order");
}

/// Shares whose axes are too large together: of no row, so that they can be had.
#[test]
fn too_large_together() {
    let check = |of: u64, wanted: &str| {
        let mut contract = divisible().layers(3..4).expect("a layer");
        (contract.ctx, contract.layers) = (1, None);
        let carried = &mut contract.carried[0];
        (carried.axes[0].size, carried.axes[2].size) = (1, 1 << 58);
        carried.segments.as_mut().expect("it is cut").runs = vec![Run { count: 1 << 58, size: 1 }];
        let share = |index: u64| {
            let contract = Contract { share: Some(Share { index, of }), ..contract.clone() };
            let shape = contract.carried[0].valid_shape(0);
            let tensor = HandoffTensor::new("k3", DType::F16, shape, Vec::new());
            contract.take(Progress::start(), vec![tensor]).expect("no rows")
        };
        refused(&(0..of).map(share).collect::<Vec<_>>(), &[wanted]);
    };
    check(64, "this is no hand-off: `k3` of 64 holders is larger than can be counted");
    let sizes = "empty, too large, or no whole blocks of f16";
    check(32, &format!("this is no hand-off: the manifest's axes of `k3` have no size: {sizes}"));
}
