//! Sequences that are suspended and resumed: the text goes on bit for bit as it would have, and what cannot go on says
//! so.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tranship_backend::{
    Backend, BackendError, Caps, Chain, Input, Outputs, Reference, Segment, State, Step, Weights,
};
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_handoff::{Conversion, Expect, Handoff, Progress};
use tranship_session::{Model, Next, Options, Rows, Session, SessionError, argmax};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

fn parity() -> ComputeCtx {
    ComputeCtx::parity(Device::of("reference"))
}

fn open_as(path: &Path, ctx: u64, policy: ComputeCtx) -> Session {
    let model = Arc::new(Model::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())));
    Session::open(model, Arc::new(Reference::new()), policy, Options::new(ctx)).expect("it compiles")
}

fn open(name: &str, ctx: u64) -> Session {
    open_as(&fixture(name), ctx, parity())
}

/// A whole tensor of a golden, as 32-bit integers.
fn golden(model: &str, name: &str) -> Vec<u32> {
    let bytes = std::fs::read(fixture(model).join("golden.safetensors")).expect("the golden is there");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("the golden reads");
    let data = file.tensor(name).expect("the golden has it").data().to_vec();
    data.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
}

/// A prompt of 48 tokens of any vocabulary here.
fn prompt() -> Vec<u32> {
    (0..48).map(|i| (i * 37 + 11) % 120).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn run(session: &mut Session, tokens: &[u32]) -> (tranship_session::Sequence, Vec<f32>) {
    let mut sequence = session.sequence().expect("memory");
    let logits = session.extend(&mut sequence, tokens, Outputs::All).expect("it runs");
    (sequence, logits)
}

/// Prefilled here in a context of 48, decoded there in another one, from nothing but bytes.
fn check_splits(name: &str, there_ctx: u64) {
    let tokens = prompt();
    let (mut here, mut there) = (open(name, 48), open(name, there_ctx));
    let (_, whole) = run(&mut here, &tokens);
    let vocab = whole.len() / tokens.len();
    for split in 1..tokens.len() {
        let (a, b) = tokens.split_at(split);
        let (sequence, first) = run(&mut here, a);
        assert_eq!(bits(&first), bits(&whole[..split * vocab]), "{name}: prefill of {split}");
        let bytes = here.suspend(&sequence, Some(b[0])).expect("it fits").to_bytes().expect("sealed");
        let handoff = Handoff::from_bytes(bytes).expect("it reads");
        assert_eq!(handoff.next_token(), Some(b[0]));
        let expect = Expect { tokens: Some(a), ..Expect::default() };
        let mut resumed = there.resume(&handoff, &expect).expect("it fits");
        assert_eq!(*resumed.progress(), Progress { next_token: Some(b[0]), ..Progress::of(a) });
        // In one batch, and at some splits token by token as well.
        let rest = there.extend(&mut resumed, b, Outputs::All).expect("it runs");
        assert_eq!(bits(&rest), bits(&whole[split * vocab..]), "{name}: {split} and the rest");
        if [1, 7, 24, 47].contains(&split) {
            let mut resumed = there.resume(&handoff, &expect).expect("it fits");
            for (i, token) in b.iter().enumerate() {
                let row = there.extend(&mut resumed, &[*token], Outputs::Last).expect("it runs");
                let at = (split + i) * vocab;
                assert_eq!(bits(&row), bits(&whole[at..at + vocab]), "{name}: {split}, then token {i}");
            }
            assert_eq!(*resumed.progress(), Progress::of(&tokens));
        }
    }
}

#[test]
fn every_split_is_the_whole() {
    check_splits("llama_base", 80);
    check_splits("llama_untied_bias", 49);
    check_splits("llama_rope_llama3", 64);
    check_splits("llama_rope_yarn", 48);
    check_splits("gguf_q4_0.gguf", 300);
}

#[test]
fn before_the_first_token() {
    let (mut here, there) = (open("llama_base", 48), open("llama_base", 80));
    let empty = here.suspend(&here.sequence().expect("memory"), None).expect("it fits");
    let handoff = Handoff::from_bytes(empty.to_bytes().expect("sealed")).expect("it reads");
    let mut resumed =
        here.resume(&handoff, &Expect { tokens: Some(&[]), ..Expect::default() }).expect("it fits");
    let logits = here.extend(&mut resumed, &prompt(), Outputs::All).expect("it runs");
    assert_eq!(bits(&logits), bits(&run(&mut here, &prompt()).1));
    assert_eq!(there.resume(&handoff, &Expect::default()).expect("it fits").position(), 0);
}

/// A sequence that has moved twice has the digest of all its tokens, and the very hand-off of one that never moved.
#[test]
fn suspended_again() {
    let tokens = prompt();
    let mut sessions = [open("llama_base", 48), open("llama_base", 64), open("llama_base", 48)];
    let mut handoff = sessions[0].suspend(&sessions[0].sequence().expect("memory"), None).expect("it fits");
    for (session, piece) in sessions.iter_mut().zip([&tokens[..10], &tokens[10..17], &tokens[17..40]]) {
        let mut sequence = session.resume(&handoff, &Expect::default()).expect("it fits");
        session.extend(&mut sequence, piece, Outputs::None).expect("it runs");
        handoff = session.suspend(&sequence, None).expect("it fits");
    }
    let (still, _) = run(&mut sessions[0], &tokens[..40]);
    let unmoved = sessions[0].suspend(&still, None).expect("it fits");
    assert_eq!(handoff.tokens(), Progress::of(&tokens[..40]).digest.to_hex().as_str());
    assert_eq!(handoff.to_bytes().expect("sealed"), unmoved.to_bytes().expect("sealed"));
}

/// The last row can be written, but nothing can follow it.
#[test]
fn a_full_context() {
    let tokens = prompt();
    let mut here = open("llama_base", 48);
    let (mut full, _) = run(&mut here, &tokens);
    let error = here.suspend(&full, None).expect_err("it is full").to_string();
    assert_eq!(error, "position 48 leaves no row for the next step in a context of 48");
    let error = here.extend(&mut full, &[1], Outputs::Last).expect_err("it is full").to_string();
    assert_eq!(error, "position 48 and 1 more rows are past the context of 48");
    let (almost, _) = run(&mut here, &tokens[..47]);
    let handoff = here.suspend(&almost, None).expect("a row is left");
    let refused = |ctx: u64| open("llama_base", ctx).resume(&handoff, &Expect::default()).err();
    let error = refused(47).expect("no row is left").to_string();
    assert_eq!(error, "position 47 leaves no row for the next step in a context of 47");
    assert!(refused(48).is_none());
}

#[test]
fn several_sequences_in_a_batch() {
    let tokens = prompt();
    let (left, right): (&[u32], Vec<u32>) = (&tokens, tokens.iter().rev().copied().collect());
    for name in ["llama_base", "llama_rope_yarn", "llama_mha"] {
        let mut session = open(name, 64);
        let alone = [run(&mut session, left), run(&mut session, &right)];
        let vocab = alone[0].1.len() / left.len();
        let (mut a, mut b) = (session.sequence().expect("memory"), session.sequence().expect("memory"));
        let mut found: [Vec<f32>; 2] = Default::default();
        // Rows of each: one prefills while the other decodes, both decode, one is left out.
        let steps = [(13, 1), (1, 20), (1, 1), (1, 1), (9, 0), (0, 7), (5, 11), (18, 7)];
        for (rows_a, rows_b) in steps {
            let (at_a, at_b) = (a.position(), b.position());
            let mut batch = Vec::new();
            if rows_a > 0 {
                let tokens = &left[at_a..at_a + rows_a];
                batch.push(Rows { sequence: &mut a, tokens, outputs: Outputs::All });
            }
            if rows_b > 0 {
                let tokens = &right[at_b..at_b + rows_b];
                batch.push(Rows { sequence: &mut b, tokens, outputs: Outputs::All });
            }
            let mut logits = Vec::new();
            session.step(&mut batch, &mut logits).expect("it runs");
            found[0].extend_from_slice(&logits[..rows_a * vocab]);
            found[1].extend_from_slice(&logits[rows_a * vocab..]);
        }
        assert_eq!((a.position(), b.position()), (48, 48));
        for ((moved, found), (still, wanted)) in [a, b].iter().zip(&found).zip(&alone) {
            assert_eq!(bits(found), bits(wanted), "{name}");
            let state = |s| session.suspend(s, None).expect("it fits").to_bytes().expect("sealed");
            assert_eq!(state(moved), state(still), "{name}");
        }
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    let tokens = prompt();
    let mut session = open("llama_base", 48);
    let mut other = open("llama_base", 64);
    let (mut a, _) = run(&mut session, &tokens[..20]);
    let (mut b, _) = run(&mut session, &tokens[..5]);
    let (mut foreign, _) = run(&mut other, &tokens[..5]);
    let before =
        |session: &Session, s: &_| session.suspend(s, None).expect("it fits").to_bytes().expect("sealed");
    let (kept_a, kept_b) = (before(&session, &a), before(&session, &b));
    let mut check = |of_a: &[u32], of_b: &[u32], wanted: &str| {
        let mut logits = vec![0.5];
        let mut batch = [
            Rows { sequence: &mut a, tokens: of_a, outputs: Outputs::All },
            Rows { sequence: &mut b, tokens: of_b, outputs: Outputs::All },
        ];
        let error = session.step(&mut batch, &mut logits).expect_err(wanted);
        assert_eq!((error.to_string().as_str(), logits), (wanted, vec![0.5]));
        assert_eq!(
            (before(&session, &a), before(&session, &b)),
            (kept_a.clone(), kept_b.clone()),
            "{wanted}"
        );
    };
    check(&[1], &[], "there are no tokens to run");
    check(&[], &[], "there are no tokens to run");
    check(&[1, 2], &[3, 160], "token 160 is outside the vocabulary of 160");
    check(&[u32::MAX], &[3], "token 4294967295 is outside the vocabulary of 160");
    check(&[1], &[0; 44], "position 5 and 44 more rows are past the context of 48");
    let error = session.step(&mut [], &mut Vec::new()).expect_err("no batch").to_string();
    assert_eq!(error, "there are no tokens to run");
    // A sequence of another session of the same model.
    let kept = before(&other, &foreign);
    assert!(session.extend(&mut foreign, &[1], Outputs::Last).is_err());
    assert_eq!(before(&other, &foreign), kept);
    other.extend(&mut foreign, &[1], Outputs::Last).expect("its own session goes on");
    session.extend(&mut a, &[1], Outputs::Last).expect("it goes on");
}

/// The reference, whose steps fail after they ran: at the step of a number, with an error.
struct Failing {
    inner: Reference,
    left: Arc<AtomicUsize>,
    error: BackendError,
}

struct FailingStep {
    inner: Box<dyn Step>,
    left: Arc<AtomicUsize>,
    error: BackendError,
}

impl Backend for Failing {
    fn name(&self) -> &str {
        "failing"
    }

    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn compile(&self, chain: &Chain, weights: &dyn Weights) -> Result<Box<dyn Step>, BackendError> {
        let inner = self.inner.compile(chain, weights)?;
        Ok(Box::new(FailingStep { inner, left: self.left.clone(), error: self.error.clone() }))
    }
}

impl Step for FailingStep {
    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        self.inner.new_state()
    }

    fn run(
        &mut self,
        batch: &mut [Segment<'_>],
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        self.inner.run(batch, input, out)?;
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(self.error.clone()),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_sequence_that_a_failure_left_incomplete_refuses() {
    let device = BackendError::Device { backend: "failing".into(), what: "it is gone".into() };
    let state = BackendError::State { tensor: "k0".into(), what: "no such rows".into() };
    for error in [device, state] {
        let model = Arc::new(Model::open(&fixture("llama_base")).expect("a model"));
        let left = Arc::new(AtomicUsize::new(2));
        let backend = Failing { inner: Reference::new(), left, error: error.clone() };
        let mut session =
            Session::open(model, Arc::new(backend), parity(), Options::new(48)).expect("it compiles");
        let (mut a, _) = run(&mut session, &[1, 2, 3]);
        let (mut b, _) = run(&mut session, &[4]);
        let mut logits = vec![0.5];
        let failed = session.step(
            &mut [
                Rows { sequence: &mut a, tokens: &[5], outputs: Outputs::All },
                Rows { sequence: &mut b, tokens: &[6], outputs: Outputs::All },
            ],
            &mut logits,
        );
        assert_eq!(failed.expect_err("it fails").to_string(), error.to_string());
        assert_eq!(logits, [0.5], "logits of a step that failed");
        let incomplete = "the sequence was left incomplete by a step that failed";
        for sequence in [&mut a, &mut b] {
            let error = session.extend(sequence, &[7], Outputs::Last).expect_err("incomplete");
            assert_eq!(error.to_string(), incomplete);
            assert_eq!(session.suspend(sequence, None).err().map(|e| e.to_string()), Some(incomplete.into()));
        }
        // A batch with one of them leaves the others as they are.
        let (mut fresh, _) = run(&mut session, &[1, 2]);
        let both = session.step(
            &mut [
                Rows { sequence: &mut fresh, tokens: &[5], outputs: Outputs::None },
                Rows { sequence: &mut a, tokens: &[5], outputs: Outputs::None },
            ],
            &mut logits,
        );
        assert!(matches!(both, Err(SessionError::Incomplete)));
        session.extend(&mut fresh, &[5], Outputs::Last).expect("it goes on");
        assert_eq!(*fresh.progress(), Progress::of(&[1, 2, 5]));
    }
}

/// A copy of a model's folder, changed.
fn changed(name: &str, edit: impl FnOnce(&Path)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture(name).join(file), folder.path().join(file)).expect("it can be copied");
    }
    edit(folder.path());
    folder
}

fn edit_config(folder: &Path, key: &str, value: Value) {
    let path = folder.join("config.json");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("it is there")).expect("it is JSON");
    config[key] = value;
    std::fs::write(path, config.to_string()).expect("it can be written");
}

/// The reasons for which a model refuses a hand-off of `llama_base`.
fn reasons(path: &Path, policy: ComputeCtx, expect: &Expect<'_>) -> Vec<String> {
    let mut here = open("llama_base", 48);
    let (sequence, _) = run(&mut here, &prompt()[..9]);
    let handoff = here.suspend(&sequence, Some(159)).expect("it fits");
    match open_as(path, 48, policy).resume(&handoff, expect) {
        Ok(_) => Vec::new(),
        Err(SessionError::Refused(refusal)) => refusal.errors.iter().map(ToString::to_string).collect(),
        Err(other) => panic!("{other}"),
    }
}

fn starts(found: &[String], wanted: &[&str]) {
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!(found.starts_with(wanted), "{found} is not {wanted}");
    }
}

#[test]
fn real_models_that_differ() {
    let any = Expect::default();
    assert_eq!(reasons(&fixture("llama_base"), parity(), &any), [""; 0]);
    let one_bit = changed("llama_base", |folder| {
        let path = folder.join("model.safetensors");
        let mut bytes = std::fs::read(&path).expect("it is there");
        *bytes.last_mut().expect("it has bytes") ^= 1;
        std::fs::write(path, bytes).expect("it can be written");
    });
    starts(&reasons(one_bit.path(), parity(), &any), &["weights differ"]);
    let theta = changed("llama_base", |folder| edit_config(folder, "rope_theta", json!(20000.0)));
    starts(&reasons(theta.path(), parity(), &any), &["programs differ"]);
    let sharded = reasons(&fixture("llama_sharded"), parity(), &any);
    starts(&sharded, &["weights differ"]);
    let half = parity().with_kv(DType::F16);
    let all = ["policies differ", "`k0` is f32", "`v0` is f32", "`k1` is f32", "`v1` is f32"];
    starts(&reasons(&fixture("llama_base"), half.clone(), &any), &all);
    let declared = Expect { conversion: Conversion::Declared, ..any };
    assert_eq!(reasons(&fixture("llama_base"), half, &declared), [""; 0]);
    let tokens = Expect { tokens: Some(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), ..any };
    starts(&reasons(&fixture("llama_base"), parity(), &tokens), &["tokens differ"]);
    // Everything that another model of other sizes has against it.
    let other = reasons(&fixture("llama_mha"), parity(), &any);
    starts(
        &other,
        &[
            "hidden rows are 48",
            "weights differ",
            "programs differ",
            "`k0` has axes [position 48, kv_head 3",
            "`k0` has axes [9, 3, 16]",
            "`v0` has axes [position 48, kv_head 3",
            "`v0` has axes [9, 3, 16]",
            "`k1` has axes [position 48, kv_head 3",
            "`k1` has axes [9, 3, 16]",
            "`v1` has axes [position 48, kv_head 3",
            "`v1` has axes [9, 3, 16]",
            "`k2` of layer 2 is missing",
            "`v2` of layer 2 is missing",
        ],
    );
}

/// A cache converts to each float type: values are kept where the type has them, and saturate where it does not.
#[test]
fn declared_conversions() {
    let mut here = open("llama_base", 48);
    let (sequence, _) = run(&mut here, &prompt()[..4]);
    let good = here.suspend(&sequence, None).expect("it fits");
    let mut tensors = good.state().to_vec();
    let values: Vec<f32> = (0..4 * 48)
        .map(|i| match i % 6 {
            0 => 436.0,
            1 => 70000.0,
            2 => -1e30,
            3 => f32::INFINITY,
            4 => 0.1,
            _ => -3.5,
        })
        .collect();
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensors[1] = tranship_handoff::HandoffTensor::new("v0", DType::F32, tensors[1].shape.clone(), bytes);
    let handoff = here.contract().take(Progress::of(&prompt()[..4]), tensors).expect("it fits");
    let declared = Expect { conversion: Conversion::Declared, ..Expect::default() };
    let table: [(DType, [f32; 6]); 5] = [
        (DType::F32, [436.0, 70000.0, -1e30, f32::INFINITY, 0.1, -3.5]),
        (DType::F16, [436.0, 65504.0, -65504.0, f32::INFINITY, 0.099_975_586, -3.5]),
        (DType::BF16, [436.0, 70144.0, -1.000_255_55e30, f32::INFINITY, 0.100_097_656, -3.5]),
        // It has no infinity.
        (DType::F8E4M3, [448.0, 448.0, -448.0, 448.0, 0.101_562_5, -3.5]),
        (DType::F8E5M2, [448.0, 57344.0, -57344.0, f32::INFINITY, 0.093_75, -3.5]),
    ];
    for (dtype, wanted) in table {
        let there = open_as(&fixture("llama_base"), 64, parity().with_kv(dtype));
        let resumed = there.resume(&handoff, &declared).expect("it is declared");
        let held = there.suspend(&resumed, None).expect("it fits");
        let tensor = held.tensor("v0").expect("it is there");
        assert_eq!(tensor.dtype, dtype);
        let mut found = vec![0.0; values.len()];
        tranship_tensor::decode(dtype, tensor.bytes(), &mut found).expect("whole");
        assert_eq!(found, wanted.repeat(values.len() / 6), "{dtype}");
        // Back to F32: what was kept stays as it is.
        let back = here.resume(&held, &declared).expect("it is declared");
        let back = here.suspend(&back, None).expect("it fits");
        let bytes: Vec<u8> = found.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(back.tensor("v0").expect("it is there").bytes(), bytes, "{dtype}");
    }
}

#[test]
fn generation_stops_where_the_context_does() {
    let mut session = open("llama_base", 10);
    let (mut sequence, logits) = run(&mut session, &[5, 6, 7]);
    let mut text = Vec::new();
    let choose = |logits: &[f32]| -> Result<Next, SessionError> {
        assert_eq!(logits.len(), 160);
        text.push(argmax(logits));
        Ok(Next::Token(argmax(logits)))
    };
    let first = argmax(&logits[2 * 160..]);
    assert_eq!(session.generate(&mut sequence, first, choose).expect("it runs"), 7);
    assert_eq!((sequence.position(), text.len()), (10, 7));
    let none = |_: &[f32]| -> Result<Next, SessionError> { panic!("nothing is left to run") };
    assert_eq!(session.generate(&mut sequence, 1, none).expect("it is full"), 0);

    let (mut sequence, _) = run(&mut session, &[5, 6, 7]);
    let mut left = 2;
    let stop = |_: &[f32]| -> Result<Next, SessionError> {
        left -= 1;
        Ok(if left == 0 { Next::Stop } else { Next::Token(9) })
    };
    assert_eq!(session.generate(&mut sequence, 8, stop).expect("it runs"), 2);
    assert_eq!(*sequence.progress(), Progress::of(&[5, 6, 7, 8, 9]));
    assert_eq!((argmax(&[f32::NAN, 1.0, 3.0, 3.0]), argmax(&[]), argmax(&[f32::NAN])), (2, 0, 0));
}

/// A hand-off that Python wrote from `transformers`' own cache, following the format's page alone, decodes here into
/// `transformers`' own text. The committed file is of format version 1, and stays readable.
#[test]
fn written_by_python() {
    let path = fixture("../handoff/llama_base.safetensors");
    let handoff = Handoff::read(&path).expect("it reads");
    assert!(handoff.seal().is_some(), "the seal is broken");
    let again = Handoff::from_bytes(handoff.to_bytes().expect("sealed")).expect("it reads");
    let tokens = golden("llama_base", "tokens");
    let wanted = golden("llama_base", "greedy");
    for (handoff, ctx) in [(&handoff, 48), (&again, 100)] {
        let mut session = open("llama_base", ctx);
        let expect = Expect { tokens: Some(&tokens[..24]), ..Expect::default() };
        let mut sequence = session.resume(handoff, &expect).expect("it fits");
        let mut text = vec![handoff.next_token().expect("it says")];
        while text.len() < wanted.len() {
            let last = [text[text.len() - 1]];
            text.push(argmax(&session.extend(&mut sequence, &last, Outputs::Last).expect("it runs")));
        }
        assert_eq!(text, wanted, "in a context of {ctx}");
    }
}

/// A session holds sequences to its context, whatever room their tensors have: a memory has no rows to run out of.
#[test]
fn a_context_ends_every_sequence() {
    for name in
        ["families/deepseek_v4", "families/qwen3_next", "families/granitemoehybrid", "models/llama_mha"]
    {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
        let model = Arc::new(Model::open(&path).expect("a model"));
        let policy = ComputeCtx::parity(Device::of("reference"));
        let mut session =
            Session::open(model, Arc::new(Reference::new()), policy, Options::new(9)).expect("it compiles");
        let mut sequence = session.sequence().expect("memory");
        session.extend(&mut sequence, &[1; 8], Outputs::None).expect("there is room");
        let error = session.extend(&mut sequence, &[1, 2], Outputs::Last).expect_err("no room").to_string();
        assert!(error.contains('9') && error.contains('8'), "{name}: {error}");
        session.extend(&mut sequence, &[1], Outputs::Last).expect("nothing had changed");
        session.extend(&mut sequence, &[1], Outputs::Last).expect_err("it is full");
    }
}
