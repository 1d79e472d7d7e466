//! Sessions in parts: what a model gives and carries does not depend on where it is cut, and what cannot be cut, run or
//! taken says so.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tranship_backend::{
    Backend, BackendError, Caps, Chain, Input, Outputs, Reference, Segment, State, Step, Weights,
};
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_handoff::{Conversion, Expect, Handoff, HandoffTensor, Progress};
use tranship_session::{Model, Options, Part, Rows, Sequence, Session, SessionError};

fn model(name: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
    Arc::new(Model::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

fn policy(name: &str) -> ComputeCtx {
    ComputeCtx::preset(name, Device::of("reference")).expect("a preset")
}

/// Parts that start at layer 0 and at each of `cuts`, all on one backend.
fn parts(model: &Model, backend: &Arc<dyn Backend>, cuts: &[usize]) -> Vec<Part> {
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([model.spec().layers.len()]);
    starts.zip(ends).map(|(start, end)| Part { backend: backend.clone(), layers: start..end }).collect()
}

fn reference() -> Arc<dyn Backend> {
    Arc::new(Reference::new())
}

fn whole(model: &Arc<Model>, ctx: u64) -> Session {
    Session::open(model.clone(), reference(), policy("parity"), Options::new(ctx)).expect("it compiles")
}

fn split(model: &Arc<Model>, cuts: &[usize], ctx: u64, max_rows: usize) -> Session {
    let parts = parts(model, &reference(), cuts);
    Session::split(model.clone(), parts, policy("parity"), Options { ctx, max_rows }).expect("it compiles")
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// A prompt of 24 tokens of any vocabulary here: the smallest is of 90 or more.
fn prompt() -> Vec<u32> {
    (0..24).map(|i| (i * 37 + 11) % 90).collect()
}

fn bytes(session: &Session, sequence: &Sequence) -> Vec<u8> {
    session.suspend(sequence, Some(3)).expect("it fits").to_bytes().expect("sealed")
}

/// Models with caches; rings, latent and compressed rows; memories; several streams and experts by token.
const MODELS: [&str; 5] = [
    "models/llama_mha",
    "families/gemma3_text",
    "families/deepseek_v4",
    "families/qwen3_next",
    "families/nemotron_h",
];

/// Whatever the cut, in pieces of whatever length: a sequence leaves as the very bytes that one of a whole session is.
#[test]
fn a_hand_off_knows_no_cut() {
    let tokens = prompt();
    let at = 17;
    for name in MODELS {
        let model = model(name);
        let layers = model.spec().layers.len();
        let mut one = whole(&model, 32);
        let mut sequence = one.sequence().expect("memory");
        let mut wanted = one.extend(&mut sequence, &tokens[..at], Outputs::All).expect("it runs");
        let state = bytes(&one, &sequence);
        let handoff = Handoff::from_bytes(state.clone()).expect("it reads");
        let memory = sequence.memory_bytes();
        for token in &tokens[at..] {
            wanted.extend(one.extend(&mut sequence, &[*token], Outputs::Last).expect("it runs"));
        }
        let vocab = wanted.len() / tokens.len();
        let end = bytes(&one, &sequence);
        let every: Vec<usize> = (1..layers).collect();
        let cuts: Vec<Vec<usize>> = every.iter().map(|&cut| vec![cut]).chain([every.clone()]).collect();
        for cuts in cuts {
            let label = format!("{name} cut at {cuts:?}");
            let mut session = split(&model, &cuts, 32, 5);
            let mut sequence = session.sequence().expect("memory");
            assert_eq!(sequence.memory_bytes(), memory, "{label}");
            let found = session.extend(&mut sequence, &tokens[..at], Outputs::All).expect("it runs");
            assert_eq!(bits(&found), bits(&wanted[..at * vocab]), "{label}");
            assert!(bytes(&session, &sequence) == state, "{label}: another hand-off");
            // From the whole session here, from here to another cut, and from there back to the whole one.
            let mut resumed = session.resume(&handoff, &Expect::default()).expect("it fits");
            session.extend(&mut resumed, &tokens[at..at + 2], Outputs::None).expect("it runs");
            let handed = Handoff::from_bytes(bytes(&session, &resumed)).expect("it reads");
            let mut other = split(&model, &[layers - 1], 32, 1);
            let mut resumed = other.resume(&handed, &Expect::default()).expect("it fits");
            let last = other.extend(&mut resumed, &tokens[at + 2..], Outputs::Last).expect("it runs");
            assert_eq!(bits(&last), bits(&wanted[(tokens.len() - 1) * vocab..]), "{label}");
            assert!(bytes(&other, &resumed) == end, "{label}: another hand-off in the end");
            let back = Handoff::from_bytes(bytes(&other, &resumed)).expect("it reads");
            let mut resumed = one.resume(&back, &Expect::default()).expect("it fits");
            let next = one.extend(&mut resumed, &[1], Outputs::Last).expect("it runs");
            let mut unmoved = one
                .resume(&Handoff::from_bytes(end.clone()).expect("it reads"), &Expect::default())
                .expect("it fits");
            assert_eq!(bits(&next), bits(&one.extend(&mut unmoved, &[1], Outputs::Last).expect("it runs")));
        }
    }
}

/// Rows of another cache type are converted into each part's state.
#[test]
fn declared_conversions_reach_every_part() {
    let model = model("models/llama_mha");
    let mut here = whole(&model, 32);
    let mut sequence = here.sequence().expect("memory");
    here.extend(&mut sequence, &prompt(), Outputs::None).expect("it runs");
    let handoff = here.suspend(&sequence, None).expect("it fits");
    let narrow = policy("parity").with_kv(DType::F16);
    let expect = Expect { conversion: Conversion::Declared, ..Expect::default() };
    let open = |parts: Vec<Part>| Session::split(model.clone(), parts, narrow.clone(), Options::new(32));
    let state = |session: Session| {
        let resumed = session.resume(&handoff, &expect).expect("it is declared");
        bytes(&session, &resumed)
    };
    let one = state(open(parts(&model, &reference(), &[])).expect("it compiles"));
    let two = state(open(parts(&model, &reference(), &[1])).expect("it compiles"));
    assert!(one == two);
    let tensor = |bytes: &[u8]| Handoff::from_bytes(bytes.to_vec()).expect("it reads").state()[5].dtype;
    assert_eq!((tensor(&one), tensor(&two)), (DType::F16, DType::F16));
}

/// Sequences of other lengths in one batch, cut into pieces that end within them: each has its own rows, and those that
/// are wanted of it.
#[test]
fn batches_cross_in_pieces() {
    let tokens = prompt();
    for name in MODELS {
        let model = model(name);
        let mut one = whole(&model, 32);
        let mut two = split(&model, &[1], 32, 4);
        let mut wanted = Vec::new();
        let lengths = [(6, Outputs::Last), (1, Outputs::All), (9, Outputs::None), (5, Outputs::All)];
        let mut sequences: Vec<Sequence> = lengths.iter().map(|_| two.sequence().expect("memory")).collect();
        let own = |i: usize, rows: usize| &tokens[i..i + rows];
        for (i, &(rows, outputs)) in lengths.iter().enumerate() {
            let mut sequence = one.sequence().expect("memory");
            wanted.extend(one.extend(&mut sequence, own(i, rows), outputs).expect("it runs"));
        }
        let rows = sequences.iter_mut().zip(lengths).enumerate();
        let mut batch: Vec<Rows> = rows
            .map(|(i, (sequence, (rows, outputs)))| Rows { sequence, tokens: own(i, rows), outputs })
            .collect();
        let mut logits = vec![0.5];
        two.step(&mut batch, &mut logits).expect("it runs");
        assert_eq!(bits(&logits[1..]), bits(&wanted), "{name}");
        for (i, (sequence, (rows, _))) in sequences.iter().zip(lengths).enumerate() {
            assert_eq!(*sequence.progress(), Progress::of(own(i, rows)), "{name}");
        }
    }
}

/// The state of each part is seen once, in order, when its layers are done and before later ones have run; and is what
/// the hand-off then holds of them.
#[test]
fn state_leaves_layer_by_layer() {
    let tokens = prompt();
    for name in MODELS {
        let model = model(name);
        let layers = model.spec().layers.len();
        let every: Vec<usize> = (1..layers).collect();
        for (cuts, max_rows) in [(&every[..], 7), (&every[..], 64), (&[1][..], 8), (&[], 7)] {
            let mut session = split(&model, cuts, 32, max_rows);
            let mut sequence = session.sequence().expect("memory");
            session.extend(&mut sequence, &tokens[..3], Outputs::None).expect("it runs");
            let (mut seen, mut left) = (Vec::new(), Vec::<HandoffTensor>::new());
            let logits = session
                .prefill(&mut sequence, &tokens[3..], Outputs::Last, |part| -> Result<(), SessionError> {
                    assert_eq!(part.progress, Progress::of(&tokens));
                    let tensors = part.tensors()?;
                    if let Some(first) = tensors.first() {
                        assert!(part.state.read(0, 0..1)?.len() <= first.bytes().len());
                    }
                    left.extend(tensors);
                    seen.push(part.layers);
                    Ok(())
                })
                .expect("it runs");
            let ends = cuts.iter().copied().chain([layers]);
            let wanted: Vec<Range<usize>> =
                [0].into_iter().chain(cuts.iter().copied()).zip(ends).map(|(a, b)| a..b).collect();
            assert_eq!(seen, wanted, "{name}");
            let handoff = session.suspend(&sequence, None).expect("it fits");
            assert_eq!(left.len(), handoff.state().len(), "{name}");
            for (left, held) in left.iter().zip(handoff.state()) {
                let form = |t: &HandoffTensor| (t.name.clone(), t.dtype, t.shape.clone());
                assert_eq!(form(left), form(held), "{name}");
                assert!(left.bytes() == held.bytes(), "{name}: {} left otherwise", left.name);
            }
            let mut one = whole(&model, 32);
            let mut still = one.sequence().expect("memory");
            assert_eq!(
                bits(&logits),
                bits(&one.extend(&mut still, &tokens, Outputs::Last).expect("it runs"))
            );
        }
    }
}

/// What a step of a [`Watched`] backend was given.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    part: usize,
    rows: Option<Vec<f32>>,
    tokens: Option<Vec<u32>>,
    wanted: Vec<Outputs>,
}

/// The reference, which notes what its steps are given, and whose step of a number fails after it ran. Chains are
/// numbered as they are compiled: of a session whose layers have one program, as its parts.
struct Watched {
    inner: Reference,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    compiled: Mutex<usize>,
    seen: Mutex<Vec<Seen>>,
    fails: Mutex<Option<(usize, BackendError)>>,
}

struct WatchedStep {
    inner: Box<dyn Step>,
    part: usize,
    log: Arc<Log>,
}

impl Log {
    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().expect("a log"))
    }
}

impl Backend for Watched {
    fn name(&self) -> &str {
        "watched"
    }

    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn compile(&self, chain: &Chain, weights: &dyn Weights) -> Result<Box<dyn Step>, BackendError> {
        let mut compiled = self.log.compiled.lock().expect("a log");
        *compiled += 1;
        let (inner, log) = (self.inner.compile(chain, weights)?, self.log.clone());
        Ok(Box::new(WatchedStep { inner, part: *compiled - 1, log }))
    }
}

impl Step for WatchedStep {
    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        self.inner.new_state()
    }

    fn run(
        &mut self,
        batch: &mut [Segment<'_>],
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (rows, tokens) = (input.rows().map(<[f32]>::to_vec), input.tokens().map(<[u32]>::to_vec));
        let wanted = batch.iter().map(|segment| segment.outputs).collect();
        self.log.seen.lock().expect("a log").push(Seen { part: self.part, rows, tokens, wanted });
        self.inner.run(batch, input, out)?;
        match &*self.log.fails.lock().expect("a log") {
            Some((part, error)) if *part == self.part => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

fn watched(name: &str, cuts: &[usize], policy: ComputeCtx, max_rows: usize) -> (Session, Arc<Log>) {
    let (model, log) = (model(name), Arc::new(Log::default()));
    let backend: Arc<dyn Backend> = Arc::new(Watched { inner: Reference::new(), log: log.clone() });
    let parts = parts(&model, &backend, cuts);
    let options = Options { ctx: 32, max_rows };
    (Session::split(model, parts, policy, options).expect("it compiles"), log)
}

/// Hidden × streams values for each row cross, at most as many rows at once as a step has, and under a policy that
/// computes in BF16 values of it. Of the last part no more is wanted than was asked for.
#[test]
fn rows_cross_exactly_and_in_bounds() {
    let tokens = prompt();
    for (name, policy_name) in [("models/llama_mha", "serving"), ("families/deepseek_v4", "parity")] {
        let (mut session, log) = watched(name, &[1, 2], policy(policy_name), 10);
        let spec = session.model().spec();
        let width = (spec.hidden * spec.streams) as usize;
        assert_eq!(session.crossing_bytes(), 2 * width * 4, "{name}");
        assert_eq!(session.parts().map(|p| p.layers.start).collect::<Vec<_>>(), [0, 1, 2], "{name}");
        let mut sequence = session.sequence().expect("memory");
        session.extend(&mut sequence, &tokens, Outputs::Last).expect("it runs");
        let seen = log.take();
        let order: Vec<usize> = seen.iter().map(|s| s.part).collect();
        assert!(order.chunks(3).all(|c| c[0] < c[1] && c[1] < c[2]), "{name}: {order:?}");
        assert_eq!(seen.len(), 9, "{name}");
        for (i, seen) in seen.iter().enumerate() {
            let own = &tokens[(i / 3 * 10)..(i / 3 * 10 + 10).min(tokens.len())];
            assert_eq!(seen.tokens.as_deref(), Some(own), "{name}");
            let wanted = match (i % 3, i / 3) {
                (0 | 1, _) => Outputs::All,
                (_, 2) => Outputs::Last,
                _ => Outputs::None,
            };
            assert_eq!(seen.wanted, [wanted], "{name}");
            match (&seen.rows, i % 3) {
                (None, 0) => {}
                (Some(rows), 1 | 2) => {
                    assert_eq!(rows.len(), own.len() * width, "{name}");
                    let narrow = |v: &f32| v.to_bits() & 0xffff == 0;
                    assert_eq!(rows.iter().all(narrow), policy_name == "serving", "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
    let alone = whole(&model("models/llama_mha"), 32);
    assert_eq!((alone.crossing_bytes(), alone.parts().count()), (0, 1));
}

fn refused(found: Result<Session, SessionError>) -> String {
    found.err().map_or("accepted".into(), |e| e.to_string())
}

#[test]
fn parts_that_are_not_the_model_are_refused_by_name() {
    let model = model("models/llama_mha");
    assert_eq!(model.spec().layers.len(), 3);
    for (layers, wanted) in [
        (&[0..1, 1..2][..], "a layer split of 3 layers in 2 parts: layer 2 is in none"),
        (&[0..1, 0..3], "a layer split of 3 layers in 2 parts: layer 0 is in more than one"),
        (&[0..1, 1..4], "a layer split of 3 layers in 2 parts: layer 3 is not there"),
        (&[0..3, 3..3], "a layer split of 3 layers in 2 parts: part 1 has none"),
        (&[2..3, 0..2], "a layer split of 3 layers in 2 parts: layers 0-1 after layer 2, wanted in order"),
        (&[], "a layer split of 3 layers in 0 parts: there is no part"),
    ] {
        let parts: Vec<Part> =
            layers.iter().map(|l| Part { backend: reference(), layers: l.clone() }).collect();
        let found = Session::split(model.clone(), parts, policy("parity"), Options::new(32));
        assert_eq!(refused(found), wanted);
    }
    let context =
        Session::split(model.clone(), parts(&model, &reference(), &[1]), policy("parity"), Options::new(0));
    assert!(refused(context).starts_with("a context of 0"));
}

/// What any part would refuse is refused before the first one runs, and leaves every sequence as it was.
#[test]
fn what_is_refused_changes_nothing_in_any_part() {
    let tokens = prompt();
    for name in ["models/llama_mha", "families/deepseek_v4", "families/qwen3_next"] {
        let (mut session, log) = watched(name, &[1], policy("parity"), 8);
        let vocab = session.model().spec().vocab as u32;
        let mut sequence = session.sequence().expect("memory");
        session.extend(&mut sequence, &tokens[..20], Outputs::None).expect("it runs");
        let kept = bytes(&session, &sequence);
        log.take();
        // A session of one part says the same.
        let mut one = whole(session.model(), 32);
        let mut still = one.resume(&Handoff::from_bytes(kept.clone()).expect("it reads"), &Expect::default());
        let still = still.as_mut().expect("it fits");
        for (given, wanted) in [
            (vec![1; 16], "position 20 and 16 more rows are past the context of 3".to_owned()),
            (
                [vec![1; 9], vec![vocab]].concat(),
                format!("token {vocab} is outside the vocabulary of {vocab}"),
            ),
            (vec![], "there are no tokens to run".to_owned()),
        ] {
            let error = session.extend(&mut sequence, &given, Outputs::Last).expect_err("it is refused");
            assert!(error.to_string().starts_with(&wanted), "{name}: {error}");
            let alike = one.extend(still, &given, Outputs::Last).expect_err("it is refused");
            assert_eq!(error.to_string(), alike.to_string(), "{name}");
            assert!(bytes(&session, &sequence) == kept, "{name}");
        }
        // Sequences of other cuts and of other contexts.
        let model = session.model().clone();
        for mut other in [whole(&model, 32), split(&model, &[2], 32, 8), split(&model, &[1], 31, 8)] {
            let mut foreign = other.sequence().expect("memory");
            let both = session.step(
                &mut [
                    Rows { sequence: &mut sequence, tokens: &[1], outputs: Outputs::None },
                    Rows { sequence: &mut foreign, tokens: &[1], outputs: Outputs::None },
                ],
                &mut Vec::new(),
            );
            let why = "a segment's state was made for other programs";
            assert_eq!(both.expect_err("it is foreign").to_string(), why, "{name}");
            assert!(bytes(&session, &sequence) == kept, "{name}");
            other.extend(&mut foreign, &[1], Outputs::None).expect("its own session goes on");
        }
        assert_eq!(log.take(), [], "{name}: something ran");
        session.extend(&mut sequence, &[1], Outputs::Last).expect("it goes on");
    }
}

/// Whatever a later part says, and the first one after it ran, the sequence is of no position: part of it has moved on.
#[test]
fn a_failure_in_any_part_leaves_sequences_incomplete() {
    let device = BackendError::Device { backend: "watched".into(), what: "it is gone".into() };
    let batch = BackendError::Batch("no".into());
    let incomplete = "the sequence was left incomplete by a step that failed";
    for (part, error, spoilt) in [
        (0, device.clone(), true),
        (1, device.clone(), true),
        (2, device, true),
        (0, batch.clone(), false),
        (1, batch.clone(), true),
        (2, batch, true),
    ] {
        let (mut session, log) = watched("models/llama_mha", &[1, 2], policy("parity"), 8);
        let mut sequence = session.sequence().expect("memory");
        session.extend(&mut sequence, &[1, 2], Outputs::None).expect("it runs");
        *log.fails.lock().expect("a log") = Some((part, error.clone()));
        let found = session.extend(&mut sequence, &[3], Outputs::Last).expect_err("it fails");
        assert_eq!(found.to_string(), error.to_string());
        *log.fails.lock().expect("a log") = None;
        assert_eq!(sequence.position(), 2);
        let next = session.extend(&mut sequence, &[3], Outputs::Last).err().map(|e| e.to_string());
        assert_eq!(next, spoilt.then(|| incomplete.to_owned()), "part {part}, {error}");
        if spoilt {
            assert_eq!(session.suspend(&sequence, None).err().map(|e| e.to_string()), next);
        }
    }
    // A refusal by the first part of a later piece comes after an earlier piece ran.
    let (mut session, log) = watched("models/llama_mha", &[1], policy("parity"), 8);
    let mut sequence = session.sequence().expect("memory");
    *log.fails.lock().expect("a log") = Some((1, BackendError::Batch("no".into())));
    session.extend(&mut sequence, &prompt(), Outputs::Last).expect_err("it fails");
    assert!(matches!(session.suspend(&sequence, None), Err(SessionError::Incomplete)));
}

/// An error of one's own.
#[derive(Debug, PartialEq)]
enum Own {
    Full,
    Session(String),
}

impl From<SessionError> for Own {
    fn from(error: SessionError) -> Own {
        Own::Session(error.to_string())
    }
}

/// Who watches may stop the step: no later part runs, and the sequence is incomplete.
#[test]
fn a_watcher_that_fails_stops_the_step() {
    let (mut session, log) = watched("models/llama_mha", &[1, 2], policy("parity"), 8);
    let mut sequence = session.sequence().expect("memory");
    let mut count = 0;
    let stopped = session.prefill(&mut sequence, &prompt()[..8], Outputs::Last, |_| {
        count += 1;
        if count == 2 { Err(Own::Full) } else { Ok(()) }
    });
    assert_eq!((stopped, count, log.take().len()), (Err(Own::Full), 2, 2));
    let again = session.prefill(&mut sequence, &[1], Outputs::Last, |_| Ok(()));
    let why = "the sequence was left incomplete by a step that failed";
    assert_eq!(again, Err(Own::Session(why.into())));
}
