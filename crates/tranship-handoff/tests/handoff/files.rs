//! The file form: what is written is read back as it was, and is as small as its rows.

use crate::draft::{CTX, Draft, TOKENS, config, contract, good, parity};
use serde_json::{Value, json};
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_handoff::{Contract, Handoff, HandoffError, HandoffTensor, Progress};
use tranship_model::ModelSpec;

fn same(a: &Handoff, b: &Handoff) {
    assert_eq!(a.contract(), b.contract());
    assert_eq!(a.progress().expect("a digest"), b.progress().expect("a digest"));
    assert_eq!(a.seal(), b.seal());
    assert!(a.seal().is_some());
    let all = |h: &Handoff| -> Vec<(String, DType, Vec<u64>, Vec<u8>)> {
        h.state().iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone(), t.bytes().to_vec())).collect()
    };
    assert_eq!(all(a), all(b));
}

/// To bytes and back, and again to the same bytes; through a file as well.
fn check(case: &str, handoff: &Handoff) {
    let bytes = handoff.to_bytes().expect("it is sealed");
    assert_eq!(bytes, handoff.to_bytes().expect("it is sealed"), "{case}");
    let read = Handoff::from_bytes(bytes.clone()).unwrap_or_else(|e| panic!("{case}: {e}"));
    same(handoff, &read);
    assert_eq!(read.to_bytes().expect("it is sealed"), bytes, "{case}");
    assert_eq!(handoff.bytes(), handoff.contract().bytes(handoff.position()).expect("countable"), "{case}");

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state.safetensors");
    std::fs::write(&path, "what was there before").expect("it can be written");
    handoff.write(&path).expect("it can be written");
    assert_eq!(std::fs::read(&path).expect("it is there"), bytes, "{case}");
    same(handoff, &Handoff::read(&path).expect("it reads"));
    assert_eq!(
        std::fs::read_dir(&folder).expect("a folder").count(),
        1,
        "{case}: something is left beside it"
    );
}

#[test]
fn round_trips() {
    for kv in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::F8E4M3, DType::F8E5M2] {
        check(kv.name(), &good(&contract(CTX, &parity().with_kv(kv))));
    }
    let ours = contract(CTX, &parity());
    let nothing =
        |c: &tranship_handoff::Carried| HandoffTensor::new(&c.name, c.dtype, c.valid_shape(0), vec![]);
    let empty = ours.take(Progress::start(), ours.carried.iter().map(nothing).collect()).expect("it fits");
    check("before the first token", &empty);
}

/// Who wrote a hand-off chose the order of its keys and its spaces; what was read is written with them, since they
/// are what its seal was made over.
#[test]
fn a_manifest_of_another_hand_stays_sealed() {
    let ours = contract(CTX, &parity());
    let mut draft = Draft::of(&good(&ours));
    let mut keys: Vec<(String, Value)> =
        draft.manifest.as_object().expect("a map").iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    keys.reverse();
    draft.manifest = Value::Object(keys.into_iter().collect());
    draft.manifest["note"] = json!("made elsewhere");
    let read = Handoff::from_bytes(draft.bytes()).expect("it reads");
    let again = Handoff::from_bytes(read.to_bytes().expect("it is sealed")).expect("it reads");
    same(&read, &again);
    ours.check(&again).expect("it fits");
}

/// The layout and the seal are as the format's page says: the draft computes both by itself.
#[test]
fn written_as_documented() {
    let handoff = good(&contract(CTX, &parity()));
    let draft = Draft::of(&handoff);
    assert_eq!(handoff.seal(), Some(draft.seal().as_str()));
    let names: Vec<&str> = draft.parts.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["k0", "v0", "k1", "v1"]);
    let bytes = handoff.to_bytes().expect("it is sealed");
    let len = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    assert_eq!(len % 8, 0);
    assert_eq!(bytes[8], b'{');
}

/// The chain of tokens, from its definition.
#[test]
fn digests_of_tokens() {
    let mut digest = *blake3::hash(b"tranship tokens 1\n").as_bytes();
    assert_eq!(Progress::start().digest.as_bytes(), &digest);
    for token in TOKENS {
        let mut link = digest.to_vec();
        link.extend_from_slice(&token.to_le_bytes());
        digest = *blake3::hash(&link).as_bytes();
    }
    let whole = Progress::of(&TOKENS);
    assert_eq!((whole.position, whole.digest.as_bytes()), (5, &digest));
    for split in 0..=TOKENS.len() {
        let mut parts = Progress { next_token: Some(9), ..Progress::of(&TOKENS[..split]) };
        parts.push(&TOKENS[split..]);
        assert_eq!(parts, whole, "split at {split}");
    }
}

#[test]
fn size_is_the_rows_and_little_more() {
    let spec = ModelSpec::from_config(&config("configs/smollm2-135m.json")).expect("a model");
    for policy in ["parity", "quantized"] {
        let policy = ComputeCtx::preset(policy, Device::cpu()).expect("a policy");
        let ours = Contract::of(&spec, 2048, &policy, Some("c".repeat(64))).expect("a contract");
        let tokens: Vec<u32> = (0..64).collect();
        let zeros = |c: &tranship_handoff::Carried| {
            let bytes = c.bytes(64).expect("countable") as usize;
            HandoffTensor::new(&c.name, c.dtype, c.valid_shape(64), vec![0; bytes])
        };
        let handoff =
            ours.take(Progress::of(&tokens), ours.carried.iter().map(zeros).collect()).expect("it fits");
        let rows = 30 * 2 * 64 * 192 * if policy.kv == DType::F32 { 4 } else { 2 };
        let size = handoff.to_bytes().expect("it is sealed").len() as u64;
        println!("{}: {size} bytes, {} of them header", policy.numerics(), size - rows);
        assert_eq!(handoff.bytes(), rows);
        assert!(size - rows < 32 * 1024, "{} bytes beside the rows", size - rows);
    }
}

#[test]
fn what_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let handoff = good(&contract(CTX, &parity()));
    let error = handoff.write(&folder.path().join("none/state")).expect_err("there is no such folder");
    assert!(matches!(&error, HandoffError::Io { path, .. } if path.ends_with("none/state")), "{error}");
    // A folder is there: the part that was written beside it is taken away.
    let place = folder.path().join("taken");
    std::fs::create_dir(&place).expect("a folder");
    std::fs::write(place.join("file"), "").expect("a file");
    assert!(matches!(handoff.write(&place), Err(HandoffError::Io { .. })));
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 1);
    assert!(matches!(Handoff::read(&folder.path().join("absent")), Err(HandoffError::Io { .. })));

    let mut draft = Draft::of(&handoff);
    draft.sealing = crate::draft::Sealing::Absent;
    let unsealed = Handoff::from_bytes(draft.bytes()).expect("it reads");
    assert_eq!(unsealed.to_bytes().expect_err("no seal").to_string(), "the hand-off is not sealed");
    assert_eq!(unsealed.seal(), None);
}
