//! Every extent: what is valid at a position, in which order a hand-off holds it, and how each is refused.

use crate::draft::{Draft, Part, WEIGHTS, shortened};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::VecDeque;
use tranship_dtype::DType;
use tranship_handoff::{
    Axis, Carried, Contract, Expect, Handoff, HandoffTensor, Identity, Progress, VERSION,
};
use tranship_program::Extent;

/// A sliding window of the contract below.
const WINDOW: u64 = 6;

fn carried(name: &str, layer: u64, axes: &[(&str, u64)], extent: Extent) -> Carried {
    let axes = axes.iter().map(|(name, size)| Axis { name: (*name).into(), size: *size }).collect();
    Carried { name: name.into(), layer, axes, dtype: DType::F32, extent, segments: None }
}

/// A model with a layer of each kind: attention, a memory behind a convolution, a sliding window with compressed rows
/// that overlap, and compressed rows that do not.
fn contract(ctx: u64) -> Contract {
    let spans = |rate: u64| ("span", (ctx / rate).max(1));
    let overlap = Extent::Frontier { rate: 4, keep: 4 };
    let tensors = vec![
        carried("k0", 0, &[("position", ctx), ("kv_head", 2), ("head_dim", 3)], Extent::Append),
        carried("conv1", 1, &[("position", 3), ("channel", 5)], Extent::Ring),
        carried("s1", 1, &[("head", 2), ("key", 3), ("value", 4)], Extent::Recurrent),
        carried("c2", 2, &[spans(4), ("head_dim", 4)], Extent::Compressed { rate: 4 }),
        carried("row2", 2, &[("position", 7), ("width", 8)], overlap),
        carried("gate2", 2, &[("position", 7), ("width", 8)], overlap),
        carried("kv2", 2, &[("position", WINDOW.min(ctx)), ("head_dim", 4)], Extent::Ring),
        carried("c3", 3, &[spans(3), ("head_dim", 2)], Extent::Compressed { rate: 3 }),
        carried("row3", 3, &[("position", 2), ("width", 2)], Extent::Frontier { rate: 3, keep: 0 }),
    ];
    let (programs, policy) = ("p".into(), "numbers".into());
    let identity = Identity { weights: Some(WEIGHTS.into()), programs, policy };
    let (share, layers) = (None, None);
    Contract { version: VERSION, ctx, hidden: 16, streams: 1, carried: tensors, identity, share, layers }
}

/// The element of a tensor at a logical row: all differ.
fn value(tensor: usize, row: u64, col: u64) -> f32 {
    (tensor as u64 * 4096 + row * 32 + col) as f32
}

fn progress(position: u64) -> Progress {
    Progress::of(&(0..position as u32).collect::<Vec<_>>())
}

/// The tensors of a sequence after `position` tokens, each row saying by its values which one it is.
fn tensors(contract: &Contract, position: u64) -> Vec<HandoffTensor> {
    let one = |(at, c): (usize, &Carried)| {
        let rows = c.valid(position).flat_map(|row| (0..c.cols()).map(move |col| value(at, row, col)));
        let bytes = rows.flat_map(f32::to_le_bytes).collect();
        HandoffTensor::new(&c.name, c.dtype, c.valid_shape(position), bytes)
    };
    contract.carried.iter().enumerate().map(one).collect()
}

fn at(contract: &Contract, position: u64) -> Handoff {
    contract
        .take(progress(position), tensors(contract, position))
        .unwrap_or_else(|e| panic!("{position}: {e}"))
}

/// Holds a hand-off from a context of 20 after `position` tokens, changed, to a receiver's contract: the reasons are
/// these and no others.
fn check(case: &str, (position, ours): (u64, &Contract), edit: impl FnOnce(&mut Draft), reasons: &[&str]) {
    let mut draft = Draft::of(&at(&contract(20), position));
    edit(&mut draft);
    let handoff = Handoff::from_bytes(draft.bytes()).unwrap_or_else(|e| panic!("{case}: {e}"));
    let refusal = ours.check_for(&handoff, &Expect::default()).err();
    let found: Vec<String> =
        refusal.iter().flat_map(|r| &r.errors).map(|e| shortened(&e.to_string())).collect();
    assert_eq!(found, reasons, "{case}");
}

/// Gives a tensor of a draft so many rows, of zeros.
fn rows(part: &mut Part, rows: u64) {
    part.shape[0] = rows;
    part.bytes = vec![0; part.shape.iter().product::<u64>() as usize * 4];
}

/// Rows that a sequence keeps, counted by keeping them: token by token, as the extent says it in words.
fn kept(extent: Extent, rows: u64, position: u64) -> Vec<u64> {
    let mut kept = VecDeque::new();
    for token in 0..position {
        match extent {
            Extent::Append => kept.push_back(token),
            Extent::Ring => {
                kept.push_back(token);
                if kept.len() as u64 > rows {
                    kept.pop_front();
                }
            }
            Extent::Compressed { rate } if (token + 1) % rate == 0 => kept.push_back(kept.len() as u64),
            Extent::Frontier { rate, keep } => {
                kept.push_back(token);
                // A span is whole: what the next one overlaps is all that is still needed.
                if (token + 1) % rate == 0 {
                    while kept.len() as u64 > keep {
                        kept.pop_front();
                    }
                }
            }
            _ => {}
        }
    }
    if extent == Extent::Recurrent { (0..rows).collect() } else { kept.into() }
}

fn any_extent() -> impl Strategy<Value = (Extent, u64)> {
    let frontier = |(rate, overlap): (u64, bool)| {
        let keep = if overlap { rate } else { 0 };
        (Extent::Frontier { rate, keep }, (rate - 1 + keep).max(1))
    };
    prop_oneof![
        Just((Extent::Append, 256)),
        (1u64..9).prop_map(|rows| (Extent::Recurrent, rows)),
        (1u64..300).prop_map(|rows| (Extent::Ring, rows)),
        (1u64..40).prop_map(|rate| (Extent::Compressed { rate }, 256 / rate)),
        (1u64..40, any::<bool>()).prop_map(frontier),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_is_what_a_sequence_keeps((extent, rows) in any_extent(), position in 0u64..=256) {
        let carried = carried("t", 0, &[("rows", rows), ("cols", 3)], extent);
        let valid: Vec<u64> = carried.valid(position).collect();
        prop_assert_eq!(&valid, &kept(extent, rows, position));
        prop_assert_eq!(carried.valid_rows(position), valid.len() as u64);
        prop_assert_eq!(carried.valid_shape(position), vec![valid.len() as u64, 3]);
    }

    /// From any context at any position into any other that has room for it, through bytes; and there no further.
    #[test]
    fn contexts_apart(here in 1u64..40, there in 1u64..40, position in 0u64..39) {
        prop_assume!(position < here);
        let handoff = Handoff::from_bytes(at(&contract(here), position).to_bytes().expect("sealed")).expect("it reads");
        let found = contract(there).check(&handoff).map_err(|e| e.to_string());
        let full = format!("position {position} leaves no row for the next step in a context of {there}");
        prop_assert_eq!(found, if position < there { Ok(()) } else { Err(full) });
    }

    /// A row too many or too few of any tensor is refused by that tensor's name, and nothing else is.
    #[test]
    fn a_row_too_many_or_too_few(position in 0u64..20, tensor in 0usize..9, more in any::<bool>()) {
        let ours = contract(20);
        let mut draft = Draft::of(&at(&ours, position));
        let name = ours.carried[tensor].name.clone();
        let wanted = ours.carried[tensor].valid_rows(position);
        prop_assume!(more || wanted > 0);
        let found = if more { wanted + 1 } else { wanted - 1 };
        rows(draft.part(&name), found);
        let handoff = Handoff::from_bytes(draft.bytes()).expect("it reads");
        let error = ours.check(&handoff).expect_err("it is refused").to_string();
        let reason = format!("`{name}` has {found} rows; {wanted} are valid after {position} tokens");
        prop_assert_eq!(error, reason);
    }
}

/// To bytes and back at every position: as many bytes as are valid, and of rings the oldest first, whatever slot it
/// was in.
#[test]
fn through_bytes_at_every_position() {
    let ours = contract(20);
    for position in 0..20 {
        let handoff = at(&ours, position);
        let bytes = handoff.to_bytes().expect("sealed");
        let read = Handoff::from_bytes(bytes.clone()).expect("it reads");
        assert_eq!(read.to_bytes().expect("sealed"), bytes, "{position}");
        assert_eq!(read.contract(), &ours, "{position}");
        assert_eq!(Some(read.bytes()), ours.bytes(position), "{position}");
        ours.check(&read).expect("it fits");
        let ring = read.tensor("kv2").expect("it is there");
        let first: Vec<f32> =
            ring.bytes().chunks_exact(16).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let oldest = position.saturating_sub(WINDOW);
        assert_eq!(first, (oldest..position).map(|p| value(6, p, 0)).collect::<Vec<_>>(), "{position}");
    }
}

#[test]
fn bytes_of_a_sequence() {
    let ours = contract(20);
    // Rows after 11 tokens, times elements of a row.
    let valid = [11 * 6, 3 * 5, 2 * 12, 2 * 4, 7 * 8, 7 * 8, 6 * 4, 3 * 2, 2 * 2];
    assert_eq!(ours.bytes(11), Some(4 * valid.iter().sum::<u64>()));
    assert_eq!(ours.bytes(0), Some(4 * 2 * 12), "a memory is there from the start");
    let all = [20 * 6, 3 * 5, 2 * 12, 5 * 4, 7 * 8, 7 * 8, 6 * 4, 6 * 2, 2 * 2];
    assert_eq!(ours.memory_bytes(), Some(4 * all.iter().sum::<u64>()));
}

/// What other systems got wrong: attention restored and the memory beside it not, one tensor of a pair, a layer.
#[test]
fn what_is_missing() {
    let ours = contract(20);
    let without = |names: &[&str], reasons: &[&str]| {
        check(
            &names.join(" "),
            (9, &ours),
            |d| d.parts.retain(|p| !names.contains(&p.name.as_str())),
            reasons,
        );
    };
    without(&["s1"], &["`s1` of layer 1 is missing"]);
    without(&["conv1"], &["`conv1` of layer 1 is missing"]);
    without(&["kv2"], &["`kv2` of layer 2 is missing"]);
    without(&["c2", "gate2"], &["`c2` of layer 2 is missing", "`gate2` of layer 2 is missing"]);
    without(&["c3", "row3"], &["`c3` of layer 3 is missing", "`row3` of layer 3 is missing"]);
    // Left out of the manifest as well: what a receiver carries is its own matter.
    let unlisted = |d: &mut Draft| {
        d.parts.retain(|p| p.name != "s1");
        d.manifest["contract"]["carried"].as_array_mut().expect("a list").retain(|c| c["name"] != "s1");
    };
    check("unlisted", (9, &ours), unlisted, &["`s1` of layer 1 is missing"]);
}

#[test]
fn rows_that_are_not_valid() {
    let ours = contract(20);
    let length = |name: &str, found: u64, wanted: u64| {
        format!("`{name}` has {found} rows; {wanted} are valid after 9 tokens")
    };
    // The state of eight tokens under a manifest of nine: whatever a token changes says so. Rings that are full do not,
    // and neither do memories; the digest of the tokens does.
    let stale = |d: &mut Draft| {
        let before = Draft::of(&at(&contract(20), 8));
        (d.parts, d.sealing) = (before.parts, before.sealing);
    };
    let reasons = [
        length("k0", 8, 9),
        length("row2", 4, 5),
        length("gate2", 4, 5),
        length("c3", 2, 3),
        length("row3", 2, 0),
    ];
    check("stale", (9, &ours), stale, &reasons.each_ref().map(String::as_str));
    check("all slots of a frontier", (9, &ours), |d| rows(d.part("row2"), 7), &[&length("row2", 7, 5)]);
    check("all rows there are", (9, &ours), |d| rows(d.part("c2"), 5), &[&length("c2", 5, 2)]);
    check("half a memory", (9, &ours), |d| rows(d.part("s1"), 1), &[&length("s1", 1, 2)]);
    check("a ring of the context", (9, &ours), |d| rows(d.part("kv2"), 9), &[&length("kv2", 9, 6)]);
}

/// Sets the rows that a manifest gives a tensor.
fn listed_rows(draft: &mut Draft, name: &str, rows: u64) {
    draft.carried(name)["axes"][0]["size"] = json!(rows);
}

#[test]
fn extents_that_differ() {
    let ours = contract(20);
    let wanted =
        |name: &str, found: &str, wanted: &str| format!("`{name}` has axes {found}, wanted {wanted}");
    let span = |extent: &str| format!("[span 5, head_dim 4] ({extent}, layer 2)");
    let width = |extent: &str| format!("[position 7, width 8] ({extent}, layer 2)");
    let mut other = ours.clone();
    other.carried[3].extent = Extent::Compressed { rate: 5 };
    other.carried[3].axes[0].size = 4;
    let reasons = [
        wanted("c2", &span("compressed 1:4"), "[span 4, head_dim 4] (compressed 1:5, layer 2)"),
        "`c2` has 2 rows; 1 are valid after 9 tokens".into(),
    ];
    check("another rate", (9, &other), |_| {}, &reasons.each_ref().map(String::as_str));
    let no_overlap = |d: &mut Draft| d.carried("row2")["keep"] = json!(0);
    let found = wanted("row2", &width("frontier of 4, 0 kept"), &width("frontier of 4, 4 kept"));
    check("another overlap", (9, &ours), no_overlap, &[&found]);
    let append = |d: &mut Draft| {
        d.carried("kv2")["extent"] = json!("append");
        listed_rows(d, "kv2", 20);
    };
    let found = wanted(
        "kv2",
        "[position 20, head_dim 4] (append, layer 2)",
        "[position 6, head_dim 4] (ring, layer 2)",
    );
    check("a ring that is none", (5, &ours), append, &[&found]);
    let found = wanted(
        "s1",
        "[head 3, key 3, value 4] (recurrent, layer 1)",
        "[head 2, key 3, value 4] (recurrent, layer 1)",
    );
    let more = |d: &mut Draft| {
        listed_rows(d, "s1", 3);
        rows(d.part("s1"), 3);
    };
    check("another memory", (5, &ours), more, &[&found]);
    let found = wanted(
        "row2",
        "[position 8, width 8] (frontier of 4, 4 kept, layer 2)",
        &width("frontier of 4, 4 kept"),
    );
    check("another frontier", (5, &ours), |d| listed_rows(d, "row2", 8), &[&found]);
    let channels = |d: &mut Draft| d.carried("conv1")["axes"].as_array_mut().expect("a list").swap(0, 1);
    let found =
        wanted("conv1", "[channel 5, position 3] (ring, layer 1)", "[position 3, channel 5] (ring, layer 1)");
    check("channels first", (2, &ours), channels, &[&found]);
    let turned = |d: &mut Draft| d.carried("s1")["axes"].as_array_mut().expect("a list").swap(1, 2);
    let found = wanted(
        "s1",
        "[head 2, value 4, key 3] (recurrent, layer 1)",
        "[head 2, key 3, value 4] (recurrent, layer 1)",
    );
    check("a memory turned over", (9, &ours), turned, &[&found]);
}

/// A ring that a context has cut holds all of its window while the sequence is no longer than both ends' rows.
#[test]
fn rings_of_different_rows() {
    let ours = contract(20);
    let shorter = |d: &mut Draft| listed_rows(d, "kv2", 4);
    check("4 of 4", (4, &ours), shorter, &[]);
    let cut = |d: &mut Draft| {
        listed_rows(d, "kv2", 4);
        rows(d.part("kv2"), 4);
    };
    let reason = "`kv2` has axes [position 4, head_dim 4] (ring, layer 2), wanted [position 6, head_dim 4] (ring, layer 2)";
    check("4 of 5", (5, &ours), cut, &[reason]);
    let reasons = [reason, "`kv2` has 5 rows; 4 are valid after 5 tokens"];
    check("5 of 4, as its manifest does not say", (5, &ours), shorter, &reasons);
    let longer = |d: &mut Draft| {
        listed_rows(d, "kv2", 9);
        rows(d.part("kv2"), 8);
    };
    let reason = "`kv2` has axes [position 9, head_dim 4] (ring, layer 2), wanted [position 6, head_dim 4] (ring, layer 2)";
    check("8 of 6", (8, &ours), longer, &[reason]);
}

/// The manifest's form of each extent, to the letter: what is read elsewhere.
#[test]
fn as_json() {
    let ours = contract(20);
    let listed: Value = serde_json::from_str(&ours.to_json()).expect("JSON");
    let text = |name: &str| {
        let all = listed["carried"].as_array().expect("a list");
        all.iter().find(|c| c["name"] == name).expect("it is listed").to_string()
    };
    let wanted = |name: &str, layer: u64, axes: &str, tail: &str| {
        format!(
            "{{\"name\":\"{name}\",\"layer\":{layer},\"axes\":[{axes}],\"dtype\":\"f32\",\"extent\":{tail}}}"
        )
    };
    let axis = |name: &str, size: u64| format!("{{\"name\":\"{name}\",\"size\":{size}}}");
    let two = |a: String, b: String| format!("{a},{b}");
    assert_eq!(text("conv1"), wanted("conv1", 1, &two(axis("position", 3), axis("channel", 5)), "\"ring\""));
    let spans = two(axis("span", 5), axis("head_dim", 4));
    assert_eq!(text("c2"), wanted("c2", 2, &spans, "\"compressed\",\"rate\":4"));
    let span = two(axis("position", 7), axis("width", 8));
    assert_eq!(text("row2"), wanted("row2", 2, &span, "\"frontier\",\"rate\":4,\"keep\":4"));
    assert!(
        text("k0").ends_with("\"extent\":\"append\"}") && text("s1").ends_with("\"extent\":\"recurrent\"}")
    );
}

/// Manifests whose numbers do not go together are no manifests.
#[test]
fn json_that_is_no_contract() {
    let good: Value = serde_json::from_str(&contract(20).to_json()).expect("JSON");
    let check = |at: usize, edit: &dyn Fn(&mut Value), wanted: &str| {
        let mut value = good.clone();
        edit(&mut value["carried"][at]);
        let error = Contract::from_json(&value.to_string()).expect_err(wanted).to_string();
        assert_eq!(error, format!("this is no hand-off: {wanted}"));
    };
    let remove =
        |key: &'static str| move |c: &mut Value| drop(c.as_object_mut().expect("a map").shift_remove(key));
    check(3, &remove("rate"), "`c2` is compressed without a `rate`");
    check(4, &remove("rate"), "`row2` is frontier without a `rate`");
    check(4, &remove("keep"), "`row2` is frontier without a `keep`");
    check(0, &|c| c["rate"] = json!(4), "`k0` is append, which has no `rate`");
    check(6, &|c| c["keep"] = json!(4), "`kv2` is ring, which has no `keep`");
    check(3, &|c| c["keep"] = json!(4), "`c2` is compressed, which has no `keep`");
    check(3, &|c| c["rate"] = json!(0), "the manifest gives `c2` a `rate` of 0");
    check(4, &|c| c["rate"] = json!(0), "the manifest gives `row2` a `rate` of 0");
    check(
        3,
        &|c| c["axes"][0]["size"] = json!(6),
        "the manifest gives `c2` 6 rows in a `ctx` of 20, where one for every 4 positions makes 5",
    );
    let reaches = |keep: u64, reach: u64| {
        format!(
            "the manifest gives `row2` 7 rows in a `ctx` of 20, where a span of 4 and {keep} kept reaches {reach}"
        )
    };
    check(4, &|c| c["keep"] = json!(8), &reaches(8, 11));
    check(4, &|c| c["keep"] = json!(u64::MAX), &reaches(u64::MAX, u64::MAX));
    let unknown = "`rings` is no extent: wanted one of append, recurrent, ring, compressed, frontier";
    check(1, &|c| c["extent"] = json!("rings"), unknown);
    let mut null = good.clone();
    null["carried"][0]["rate"] = Value::Null;
    assert_eq!(Contract::from_json(&null.to_string()).expect("null is nothing"), contract(20));
}
