//! Bytes that are no hand-off, or no longer one: each is an error or a refusal, and never a panic.

use crate::draft::{CTX, Draft, contract, file, good, parity, shortened};
use proptest::prelude::*;
use serde_json::{Value, json};
use tranship_dtype::DType;
use tranship_handoff::{Contract, Handoff};

/// A form that cannot be read, and the sentence that says so.
fn check(case: &str, bytes: Vec<u8>, wanted: &str) {
    let error = Handoff::from_bytes(bytes).err().unwrap_or_else(|| panic!("{case} was read"));
    assert_eq!(shortened(&error.to_string()), wanted, "{case}");
}

fn ours() -> Contract {
    contract(CTX, &parity())
}

/// A draft whose manifest was changed, and which is sealed over the change.
fn edited(edit: impl FnOnce(&mut Draft)) -> Vec<u8> {
    let mut draft = Draft::of(&good(&ours()));
    edit(&mut draft);
    draft.bytes()
}

#[test]
fn no_safetensors() {
    let none = |what: &str| format!("this is no hand-off: not a safetensors file ({what})");
    check("empty", vec![], &none("0 bytes, and the length of a header takes 8"));
    check("short", vec![0; 7], &none("7 bytes, and the length of a header takes 8"));
    check("no header", vec![0; 8], &none("EOF while parsing a value at line 1 column 0"));
    let mut huge = file("{}", &[]);
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    check("a huge header", huge, &none("a header of 18446744073709551615 bytes, and 2 are there"));
    check("no JSON", file("hello", &[]), &none("expected value at line 1 column 1"));
    check("data that no tensor has", file("{}", &[0; 3]), &none("0 bytes of tensors, and 3 are there"));
    check("no metadata", file("{}", &[]), "this is no hand-off: its metadata has no `tranship`");
    let deep = "[".repeat(100_000);
    assert!(Handoff::from_bytes(file(&deep, &[])).is_err());
    let deep = format!("{{\"a\":{deep}");
    assert!(Handoff::from_bytes(file(&deep, &[])).is_err());
    let one = |shape: Value, end: u64| {
        let info = json!({ "dtype": "U8", "shape": shape, "data_offsets": [0, end] });
        file(&json!({ "k0": info }).to_string(), &[0; 8])
    };
    // Eight tensors, each as large as safetensors counts: their end is near the largest number.
    let most = (1u64 << 61) - 1;
    let info = |i: u64| json!({ "dtype": "U8", "shape": [most], "data_offsets": [i * most, (i + 1) * most] });
    let header: serde_json::Map<String, Value> = (0..8).map(|i| (format!("k{i}"), info(i))).collect();
    let past = none("18446744073709551608 bytes of tensors, and 8 are there");
    check("tensors past counting", file(&Value::Object(header).to_string(), &[0; 8]), &past);
    assert!(Handoff::from_bytes(one(json!([u64::MAX]), u64::MAX)).is_err(), "bits that overflow");
    assert!(Handoff::from_bytes(one(json!([u64::MAX, 2]), 8)).is_err(), "sizes that overflow");
    assert!(Handoff::from_bytes(one(json!([9]), 8)).is_err(), "a shape of more bytes than there are");
    assert!(Handoff::from_bytes(one(json!([8.0]), 8)).is_err(), "a size that is no integer");
}

#[test]
fn no_manifest() {
    let form = |what: &str| format!("this is no hand-off: {what}");
    let manifest = |edit: fn(&mut Value)| edited(|d| edit(&mut d.manifest));
    check(
        "null",
        manifest(|m| *m = Value::Null),
        &form("its manifest's `format` is not \"tranship-handoff\""),
    );
    check(
        "a list",
        manifest(|m| *m = json!([])),
        &form("its manifest's `format` is not \"tranship-handoff\""),
    );
    check(
        "another format",
        manifest(|m| m["format"] = json!("other")),
        &form("its manifest's `format` is not \"tranship-handoff\""),
    );
    let version = "the hand-off has format version 2; version 1 is read here";
    check("version 2", manifest(|m| m["version"] = json!(2)), version);
    check(
        "version 2 alone",
        manifest(|m| *m = json!({ "format": "tranship-handoff", "version": 2 })),
        version,
    );
    check("a contract of version 2", manifest(|m| m["contract"]["version"] = json!(2)), version);
    check("no version", manifest(|m| m["version"] = json!("1")), &form("its manifest has no `version`"));
    let missing =
        |m: &mut Value, key: &str| m.as_object_mut().expect("a map").remove(key).expect("it was there");
    for key in ["position", "tokens", "contract"] {
        let bytes = edited(|d| drop(missing(&mut d.manifest, key)));
        check(key, bytes, &form(&format!("its manifest: missing field `{key}`")));
    }
    for key in ["ctx", "hidden", "streams", "carried", "identity"] {
        let bytes = edited(|d| drop(missing(&mut d.manifest["contract"], key)));
        check(key, bytes, &form(&format!("its manifest: missing field `{key}`")));
    }
    for key in ["name", "layer", "axes", "dtype", "extent"] {
        let bytes = edited(|d| drop(missing(d.carried("k1"), key)));
        check(key, bytes, &form(&format!("its manifest: missing field `{key}`")));
    }
    for (key, value) in [
        ("position", json!(-1)),
        ("position", json!(5.0)),
        ("position", json!("5")),
        ("next_token", json!(1u64 << 32)),
        ("next_token", json!(-1)),
        ("tokens", json!(5)),
        ("contract", json!([])),
    ] {
        let bytes = edited(|d| d.manifest[key] = value.clone());
        assert!(Handoff::from_bytes(bytes).is_err(), "{key}: {value}");
    }
    let deep = json!({ "__metadata__": { "tranship": "{\"a\":".repeat(50_000), "seal": "" } });
    let error = Handoff::from_bytes(file(&deep.to_string(), &[])).expect_err("deep");
    assert!(error.to_string().contains("its manifest: recursion limit exceeded"), "{error}");
}

#[test]
fn no_contract() {
    let form = |what: &str| format!("this is no hand-off: {what}");
    let carried = |edit: fn(&mut Value)| edited(|d| edit(d.carried("k1")));
    check("a name twice", carried(|c| c["name"] = json!("k0")), &form("the manifest lists `k0` twice"));
    let axes = |dtype: &str| {
        form(&format!(
            "the manifest's axes of `k1` have no size: empty, too large, or no whole blocks of {dtype}"
        ))
    };
    check("no axes", carried(|c| c["axes"] = json!([])), &axes("f32"));
    check("an empty axis", carried(|c| c["axes"][1]["size"] = json!(0)), &axes("f32"));
    check("an axis past counting", carried(|c| c["axes"][1]["size"] = json!(u64::MAX)), &axes("f32"));
    check("rows past counting", carried(|c| c["axes"][0]["size"] = json!(1u64 << 60)), &axes("f32"));
    check(
        "a row of broken blocks",
        carried(|c| {
            c["dtype"] = json!("q8_0");
            c["axes"][2]["size"] = json!(15);
        }),
        &axes("q8_0"),
    );
    let ctx = edited(|d| d.manifest["contract"]["ctx"] = json!(0));
    check("no context", ctx, &form("the manifest's contract has a `ctx` of 0"));
    let rows = form("the manifest gives `k1` 11 rows in a `ctx` of 12");
    check("rows of another context", carried(|c| c["axes"][0]["size"] = json!(11)), &rows);
    let extent = form(
        "its manifest: `rings` is no extent: wanted one of append, recurrent, ring, compressed, frontier",
    );
    check("an extent", carried(|c| c["extent"] = json!("rings")), &extent);
    let rate = form("its manifest: `k1` is compressed without a `rate`");
    check("no rate", carried(|c| c["extent"] = json!("compressed")), &rate);
    let dtype = form("its manifest: `f31` is not an element type");
    check("a type", carried(|c| c["dtype"] = json!("f31")), &dtype);
    let policy = parity().with_kv(DType::F8E4M3);
    let mut scales = Draft::of(&good(&contract(CTX, &policy)));
    scales.part("v0").dtype = DType::F8E8M0;
    check("a type of scales", scales.bytes(), &form("`v0` is F8_E8M0, which no carried tensor is"));
}

/// Of two values under one key readers differ in which they take.
#[test]
fn no_key_is_there_twice() {
    let bytes = good(&ours()).to_bytes().expect("it is sealed");
    let len = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + len]).expect("text").trim_end().to_owned();
    let twice = |case: &str, from: &str, to: &str| {
        assert_eq!(header.matches(from).count(), 1, "{case}");
        let error = Handoff::from_bytes(file(&header.replace(from, to), &bytes[8 + len..])).expect_err(case);
        error.to_string()
    };
    let says = |found: String, key: &str| {
        assert!(found.contains(&format!("the key `{key}` is there twice")), "{key}: {found}");
    };
    let first = r#""k0":{"dtype":"F32","shape":[5,3,16],"data_offsets":[0,960]}"#;
    says(twice("a tensor", first, &format!("{first},{first}")), "k0");
    let escaped = first.replace("k0", r"k\u0030");
    says(twice("a tensor, escaped", first, &format!("{first},{escaped}")), "k0");
    let open = r#""__metadata__":{"#;
    says(twice("the seal", open, &format!(r#"{open}"seal":"","#)), "seal");
    let position = r#"\"position\":5"#;
    says(twice("in the manifest", position, &format!(r#"{position},\"position\":5"#)), "position");
    let note = format!(r#"{position},\"note\":[{{\"a\":1,\"a\":1}}]"#);
    says(twice("deep in the manifest", position, &note), "a");
    let contract = r#"{"version":1,"ctx":1,"ctx":1}"#;
    says(Contract::from_json(contract).expect_err("twice").to_string(), "ctx");
}

/// Cut anywhere, it is no hand-off.
#[test]
fn truncated() {
    let bytes = good(&ours()).to_bytes().expect("it is sealed");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let within = [0, 1, 2, 3, 4, 959, 960, 961, 1920, bytes.len() - header - 1];
    for len in (0..=header).chain(within.map(|at| header + at)) {
        assert!(Handoff::from_bytes(bytes[..len].to_vec()).is_err(), "{len} of {} bytes", bytes.len());
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(Handoff::from_bytes(longer).is_err(), "a byte too many");
}

/// A hand-off with other bytes is refused, unless it says the same: the change was to the header's free spaces, or to
/// an escape of its JSON. Gives whether it was taken.
fn refused_or_equal(ours: &Contract, good: &Handoff, bytes: Vec<u8>, what: &str) -> bool {
    let Ok(read) = Handoff::from_bytes(bytes) else { return false };
    if ours.check(&read).is_err() {
        return false;
    }
    assert_eq!((read.seal(), read.progress().ok()), (good.seal(), good.progress().ok()), "{what}");
    for tensor in good.state() {
        let found = read.tensor(&tensor.name).expect("checked");
        assert_eq!((found.dtype, &found.shape), (tensor.dtype, &tensor.shape), "{what}");
        assert_eq!(found.bytes(), tensor.bytes(), "{what}");
    }
    true
}

/// Every byte of length, header, manifest, seal and tensors is changed: by a bit each, and into what JSON cares for.
#[test]
fn every_byte_counts() {
    let (ours, good) = (ours(), good(&ours()));
    let bytes = good.to_bytes().expect("it is sealed");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let mut taken = 0;
    for at in 0..bytes.len() {
        let others = if at < header { &b"\0 \"0:9[]{}\\,\xffk"[..] } else { &[] };
        let bits: &[u8] = if at < header { &[1, 2, 4, 8, 16, 32, 64, 128] } else { &[1, 128] };
        let flipped = bits.iter().map(|bit| bytes[at] ^ bit);
        for byte in flipped.chain(others.iter().copied()).filter(|&b| b != bytes[at]) {
            let mut changed = bytes.clone();
            changed[at] = byte;
            taken += usize::from(refused_or_equal(&ours, &good, changed, &format!("byte {at} is {byte}")));
        }
    }
    assert_eq!(taken, 0, "some were taken");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn several_changes_are_refused(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let (ours, good) = (ours(), good(&ours()));
        let mut bytes = good.to_bytes().expect("it is sealed");
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        refused_or_equal(&ours, &good, bytes, &format!("{changes:?}"));
    }

    #[test]
    fn spliced_headers_are_refused(from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(), len in 1usize..40) {
        let (ours, good) = (ours(), good(&ours()));
        let mut bytes = good.to_bytes().expect("it is sealed");
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let from = from.index(header - len);
        let piece = bytes[from..from + len].to_vec();
        let to = 8 + to.index(header - len - 8);
        bytes[to..to + len].copy_from_slice(&piece);
        refused_or_equal(&ours, &good, bytes, &format!("{from} to {to}, {len} bytes"));
    }

    #[test]
    fn any_bytes_are_an_error(header in prop::collection::vec(any::<u8>(), 0..64), data in prop::collection::vec(any::<u8>(), 0..16)) {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.iter().chain(&data));
        prop_assert!(Handoff::from_bytes(bytes).is_err());
        prop_assert!(Handoff::from_bytes(data).is_err());
    }

    #[test]
    fn any_manifest_is_read_or_an_error(line in "[\\[{\"a-z0-9_:,}\\]]{0,80}") {
        let header = json!({ "__metadata__": { "tranship": line, "seal": "" } });
        prop_assert!(Handoff::from_bytes(file(&header.to_string(), &[])).is_err());
    }
}
