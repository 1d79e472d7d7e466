//! Hand-offs from elsewhere: what a Python script wrote out of the caches of `transformers`, with none of this code, decodes
//! here into the text of `transformers`, on every backend. And what was written as format version 1 stays readable.
//!
//! The files are made by `fixtures/scripts/handoff_from_python.py`; the goldens that they are held to come of passes of
//! `transformers` without a cache.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use tranship::handoff::{HandoffTensor, Progress};
use tranship::prelude::*;
use tranship::session::argmax;

/// The largest error of a logit, in standard deviations of the golden's.
const MOST: f32 = 2e-4;

/// A committed file, by what it says of itself and what it is under. None of this may change: a file that is made anew,
/// if only of a library's later version, is a file of its own.
struct Pinned {
    name: &'static str,
    /// The folder in `fixtures` that the model is in.
    folder: &'static str,
    position: u64,
    next_token: u32,
    tensors: usize,
    seal: &'static str,
}

const FILES: [Pinned; 4] = [
    Pinned {
        name: "deepseek_v3",
        folder: "families",
        position: 23,
        next_token: 24,
        tensors: 6,
        seal: "879c34806d6e3171e8bc0e6abb050ddb7666610ed334a9c29296cb3534144df7",
    },
    Pinned {
        name: "gemma3_text",
        folder: "families",
        position: 23,
        next_token: 96,
        tensors: 8,
        seal: "497abb088e4fff6d87309808666300247ac1b8459adca82f575cd054341e6d76",
    },
    Pinned {
        name: "llama_base",
        folder: "models",
        position: 24,
        next_token: 115,
        tensors: 4,
        seal: "93baf5e567df2c0429e65e799f47ac8aa7e6f4cf5c764218a1ea46ed1d671581",
    },
    Pinned {
        name: "qwen3_next",
        folder: "families",
        position: 23,
        next_token: 111,
        tensors: 14,
        seal: "2dd60452b31413a64155566bedd3ee95996d8d539bb6500beb61c371ff10f451",
    },
];

/// A file with its model and the golden of that.
struct Elsewhere {
    name: &'static str,
    handoff: Handoff,
    model: Arc<Model>,
    tokens: Vec<u32>,
    greedy: Vec<u32>,
    /// `[tokens, vocab]`.
    logits: Vec<f32>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn read(pinned: &Pinned) -> Handoff {
    let path = fixtures().join("handoff").join(format!("{}.safetensors", pinned.name));
    Handoff::read(&path).unwrap_or_else(|e| panic!("{}: {e}", pinned.name))
}

/// The words of a tensor of a golden.
fn words(golden: &Checkpoint, name: &str) -> Vec<[u8; 4]> {
    golden.get(name).expect("the golden has it").bytes().as_chunks::<4>().0.to_vec()
}

fn open(pinned: &Pinned) -> Elsewhere {
    let folder = fixtures().join(pinned.folder).join(pinned.name);
    let golden = Checkpoint::open(&folder.join("golden.safetensors")).expect("a golden");
    let ids = |name| words(&golden, name).into_iter().map(u32::from_le_bytes).collect();
    Elsewhere {
        name: pinned.name,
        handoff: read(pinned),
        model: Arc::new(Model::open(&folder).expect("a model")),
        tokens: ids("tokens"),
        greedy: ids("greedy"),
        logits: words(&golden, "logits").into_iter().map(f32::from_le_bytes).collect(),
    }
}

impl Elsewhere {
    fn position(&self) -> usize {
        usize::try_from(self.handoff.position()).expect("it is small")
    }

    /// The golden's logits after token `at`.
    fn row(&self, at: usize) -> &[f32] {
        let width = self.logits.len() / self.tokens.len();
        &self.logits[at * width..(at + 1) * width]
    }

    /// The largest error of logits after tokens from `at` on, in standard deviations.
    fn error(&self, at: usize, found: &[f32]) -> f32 {
        let count = self.logits.len() as f32;
        let mean = self.logits.iter().sum::<f32>() / count;
        let variance = self.logits.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / count;
        let wanted = &self.logits[at * self.row(0).len()..][..found.len()];
        let most = wanted.iter().zip(found).map(|(w, f)| (w - f).abs()).fold(0.0, f32::max);
        assert!(found.iter().all(|v| v.is_finite()), "{}", self.name);
        most / variance.sqrt()
    }

    fn session(&self, backend: &Arc<dyn Backend>, ctx: u64) -> Session {
        let policy = ComputeCtx::parity(Device::of(backend.name()));
        let options = Options { ctx, max_rows: 7 };
        Session::open(self.model.clone(), backend.clone(), policy, options).expect("a session")
    }

    /// A sequence that goes on from a hand-off, which must cover the golden's first tokens.
    fn resume(&self, session: &Session, handoff: &Handoff) -> Sequence {
        let expect = Expect { tokens: Some(&self.tokens[..self.position()]), ..Expect::default() };
        session.resume(handoff, &expect).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}

/// Of each file, in a context of the sender's size and in another, on each backend: the golden's tokens from the
/// hand-off's position on give the golden's logits, and the greedy text is the golden's.
#[test]
fn decodes_into_the_text_of_the_other_engine() {
    for found in FILES.iter().map(open) {
        let at = found.position();
        assert!(at <= 24, "the golden's text begins after 24 tokens");
        assert_eq!(found.handoff.next_token(), Some(argmax(found.row(at - 1))), "{}", found.name);
        for (backend, ctx) in common::backends().iter().flat_map(|b| [(b, 48), (b, 101)]) {
            let name = format!("{} on {}, context {ctx}", found.name, backend.name());
            let mut session = found.session(backend, ctx);
            let mut sequence = found.resume(&session, &found.handoff);
            let tokens = &found.tokens[at..];
            for (row, token) in (at..).zip(tokens) {
                let logits = session.extend(&mut sequence, &[*token], Outputs::Last).expect("it runs");
                let error = found.error(row, &logits);
                assert!(error <= MOST, "{name}: the logits after token {row} are off by {error:.1e}");
            }
            let mut sequence = found.resume(&session, &found.handoff);
            let mut text = match &found.tokens[at..24] {
                [] => vec![found.handoff.next_token().expect("it says")],
                rest => vec![argmax(&session.extend(&mut sequence, rest, Outputs::Last).expect("it runs"))],
            };
            while text.len() < found.greedy.len() {
                let last = [text[text.len() - 1]];
                text.push(argmax(&session.extend(&mut sequence, &last, Outputs::Last).expect("it runs")));
            }
            assert_eq!(text, found.greedy, "{name}");
        }
    }
}

/// Each tensor of each file counts: with its first and its last valid row exchanged, the file is refused as it is, and
/// sealed anew it gives other logits. (The oldest row of a ring is of no matter to the next step, but to the one before:
/// in the place of the newest it shows.)
#[test]
fn every_tensor_is_read() {
    let backend = &common::backends()[0];
    for found in FILES.iter().map(open) {
        let at = found.position();
        let mut session = found.session(backend, 48);
        for (index, tensor) in found.handoff.state().iter().enumerate() {
            let name = format!("{}, {}", found.name, tensor.name);
            let row = tensor.bytes().len() / usize::try_from(tensor.rows()).expect("it is small");
            let mut bytes = tensor.bytes().to_vec();
            let last = bytes.len() - row;
            let (before, end) = bytes.split_at_mut(last);
            before[..row].swap_with_slice(end);
            let mut state = found.handoff.state().to_vec();
            state[index] = HandoffTensor::new(tensor.name.clone(), tensor.dtype, tensor.shape.clone(), bytes);
            let progress: Progress = found.handoff.progress().expect("a digest");
            let other = found.handoff.contract().clone().take(progress, state).expect("it fits");
            assert_ne!(other.seal(), found.handoff.seal(), "{name}");
            let mut sequence = found.resume(&session, &other);
            let logits = session.extend(&mut sequence, &[found.tokens[at]], Outputs::Last).expect("it runs");
            let error = found.error(at, &logits);
            assert!(error > 10.0 * MOST, "{name}: exchanged rows move the logits by {error:.1e} only");
        }
    }
}

/// Format version 1 stays readable: the files are those that were committed, whole, under the contracts that the models
/// have now, and they come out of a file and of a stream of bytes alike.
#[test]
fn version_1_stays_readable() {
    let mut names: Vec<String> = std::fs::read_dir(fixtures().join("handoff"))
        .expect("the files are there")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(
        names,
        FILES.each_ref().map(|f| format!("{}.safetensors", f.name)),
        "each file is pinned here"
    );
    for pinned in &FILES {
        let handoff = read(pinned);
        let said = (handoff.position(), handoff.next_token(), handoff.state().len(), handoff.seal());
        let wanted = (pinned.position, Some(pinned.next_token), pinned.tensors, Some(pinned.seal));
        assert_eq!(said, wanted, "{} is not the file that was committed", pinned.name);
        let found = open(pinned);
        let policy = ComputeCtx::parity(Device::of("reference"));
        let contract = found.model.contract(48, &policy).expect("a contract");
        let expect = Expect {
            tokens: Some(&found.tokens[..found.position()]),
            vocab: Some(found.model.spec().vocab),
            ..Expect::default()
        };
        contract.check_for(&handoff, &expect).unwrap_or_else(|e| panic!("{}: {e}", pinned.name));
        let again = Handoff::from_bytes(handoff.to_bytes().expect("sealed")).expect("it reads");
        assert_eq!(again.seal(), Some(pinned.seal), "{}", pinned.name);
    }
}
