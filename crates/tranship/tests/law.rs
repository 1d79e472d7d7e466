//! The law of the house: a text that was prefilled in one place and is decoded in another is the text that one place
//! alone would give. For every family, policy and backend.
//!
//! What is run, of each fixture's prompt of 48 tokens, at every split `a` from 1 to 47:
//!
//! * the first `a` tokens are prefilled as one batch in a session that is sized for the prompt;
//! * the state leaves as the bytes of a hand-off, and these alone reach a session of another context and of batches of
//!   5 rows, which has not seen the prompt;
//! * there the tokens that follow are decoded one by one: on the processor all of them; on the reference interpreter,
//!   which is slow, all of them after every 12th split and after the last ones, and 8 after each other;
//! * every row of logits is held to that of the whole prompt as one batch, and the state at which decoding ends to the
//!   state that prefilling as many tokens leaves.
//!
//! So at the splits of the reference that stop after 8 tokens the rest is covered by the state being the same one, bit by
//! bit, that another split goes on from.
//!
//! Then two sequences of other tokens and lengths are interleaved in one session's batches, in every combination of
//! prefill and decode and in both orders, and each is held to itself alone.
//!
//! Under `parity` nothing may differ in any bit. Under the other policies a backend may sum in an order that depends on
//! the rows of a step, and of what it rounds then a little falls to the other side: a row's largest error may be
//! [`most`] standard deviations of the logits. A router may choose another expert where two are near to each other, and
//! such a row may be anywhere: one row in [`ASTRAY`] is let off. On a processor with AVX-512 no row differs at all. The
//! interpreter has one path for any number of rows, and is held to its bits under every policy.

mod common;

use common::{Fixture, bits};
use std::sync::{Arc, Mutex};
use tranship::ctx::PRESETS;
use tranship::prelude::*;
use tranship::session::SessionError;

/// Rows of which one may be off by more than its bound, where not every bit is held.
const ASTRAY: usize = 50;

/// Tokens that the reference decodes after most splits.
const FEW: usize = 8;

/// The largest error of a row, in standard deviations: a quarter of what `cargo xtask parity` allows the policy itself.
fn most(policy: &str) -> f64 {
    match policy {
        "serving" => 0.08,
        "quantized" => 0.16,
        _ => 0.0,
    }
}

/// A family on a backend under a policy.
struct Run<'a> {
    fixture: &'a Fixture,
    backend: &'a Arc<dyn Backend>,
    policy: &'a str,
    /// Whether every bit is held.
    exact: bool,
    /// The logits of the whole prompt, `[tokens, vocab]`.
    whole: Vec<f32>,
    /// Rows that were compared, and those that were off.
    seen: (usize, usize),
}

impl Run<'_> {
    fn here(&self) -> Session {
        let rows = self.fixture.tokens.len();
        self.fixture.session(self.backend, self.policy, rows + 1, rows)
    }

    fn there(&self) -> Session {
        self.fixture.session(self.backend, self.policy, self.fixture.tokens.len() + 15, 5)
    }

    /// Holds rows of logits to those of the whole prompt from row `at` on.
    fn hold(&mut self, label: &str, found: &[f32], at: usize) {
        let width = self.whole.len() / self.fixture.tokens.len();
        let wanted = self.whole[at * width..at * width + found.len()].to_vec();
        self.same(label, &wanted, found, width);
    }

    fn same(&mut self, label: &str, wanted: &[f32], found: &[f32], width: usize) {
        assert_eq!(wanted.len(), found.len(), "{}, {label}", self.fixture.name);
        let unit = deviation(&self.whole);
        for (row, (wanted, found)) in wanted.chunks(width).zip(found.chunks(width)).enumerate() {
            self.seen.0 += 1;
            if self.exact {
                assert!(bits(wanted) == bits(found), "{}, {label}: row {row} is another", self.fixture.name);
            }
            let pairs = wanted.iter().zip(found);
            let error = pairs.map(|(w, f)| f64::from((w - f).abs())).fold(0.0, f64::max) / unit;
            assert!(error.is_finite(), "{}, {label}: row {row}", self.fixture.name);
            self.seen.1 += usize::from(error > most(self.policy));
        }
    }

    /// Every split of the prompt.
    fn splits(&mut self) {
        let tokens = self.fixture.tokens.clone();
        let (mut here, mut there) = (self.here(), self.there());
        let mut states = Vec::new();
        for at in 1..=tokens.len() {
            let mut sequence = here.sequence().expect("memory");
            let logits = here.extend(&mut sequence, &tokens[..at], Outputs::All).expect("it runs");
            self.hold(&format!("prefill of {at}"), &logits, 0);
            states.push(here.suspend(&sequence, tokens.get(at).copied()).expect("it fits"));
        }
        for at in 1..tokens.len() {
            let bytes = states[at - 1].to_bytes().expect("sealed");
            let handoff = Handoff::from_bytes(bytes).expect("it reads");
            let expect = Expect { tokens: Some(&tokens[..at]), ..Expect::default() };
            let mut sequence = there
                .resume(&handoff, &expect)
                .unwrap_or_else(|e| panic!("{}, split at {at}: {e}", self.fixture.name));
            let all = self.backend.name() != "reference" || at % 12 == 1;
            let end = if all { tokens.len() } else { tokens.len().min(at + FEW) };
            for i in at..end {
                let logits = there.extend(&mut sequence, &tokens[i..=i], Outputs::Last).expect("it runs");
                self.hold(&format!("split at {at}, token {i}"), &logits, i);
            }
            let left = there.suspend(&sequence, None).expect("it fits");
            assert_eq!((left.position(), left.tokens()), (end as u64, states[end - 1].tokens()));
            for (found, wanted) in left.state().iter().zip(states[end - 1].state()) {
                assert_eq!((&found.name, &found.shape), (&wanted.name, &wanted.shape));
                let same = !self.exact || found.bytes() == wanted.bytes();
                assert!(same, "{}, split at {at}: `{}` at {end}", self.fixture.name, found.name);
            }
        }
    }

    /// Two sequences in one session's batches, and each alone.
    fn interleaved(&mut self) {
        // How many tokens of each a batch has, and whether the second stands first.
        const BATCHES: [(usize, usize, bool); 12] = [
            (9, 4, false), // both prefill
            (1, 6, false), // one decodes while the other prefills
            (7, 1, true),
            (1, 1, false), // both decode
            (1, 1, true),
            (0, 3, false), // one waits
            (11, 1, false),
            (1, 9, true),
            (1, 1, true),
            (3, 2, true),
            (1, 0, false),
            (8, 1, false),
        ];
        let first = self.fixture.tokens.clone();
        let second: Vec<u32> = first.iter().rev().skip(3).map(|t| (t * 5 + 1) % self.vocab()).collect();
        let (mut alone, mut session) = (self.here(), self.there());
        let mut wanted = [Vec::new(), Vec::new()];
        for (tokens, wanted) in [&first, &second].into_iter().zip(&mut wanted) {
            let count = BATCHES.iter().map(|b| if std::ptr::eq(tokens, &first) { b.0 } else { b.1 }).sum();
            let mut sequence = alone.sequence().expect("memory");
            *wanted = alone.extend(&mut sequence, &tokens[..count], Outputs::All).expect("it runs");
        }
        let width = self.vocab() as usize;
        let mut one = session.sequence().expect("memory");
        let mut other = session.sequence().expect("memory");
        for (a, b, swapped) in BATCHES {
            let (at, beside) = (one.position(), other.position());
            let outputs = Outputs::All;
            let mut batch = Vec::new();
            if a > 0 {
                batch.push(Rows { sequence: &mut one, tokens: &first[at..at + a], outputs });
            }
            if b > 0 {
                batch.push(Rows { sequence: &mut other, tokens: &second[beside..beside + b], outputs });
            }
            if swapped {
                batch.reverse();
            }
            let mut found = Vec::new();
            session.step(&mut batch, &mut found).expect("it runs");
            let (left, right) = found.split_at(width * if swapped { b } else { a });
            let (ours, theirs) = if swapped { (right, left) } else { (left, right) };
            let label = format!("{a} of one at {at} beside {b} of another at {beside}");
            self.same(&label, &wanted[0][at * width..(at + a) * width], ours, width);
            self.same(&label, &wanted[1][beside * width..(beside + b) * width], theirs, width);
        }
        assert_eq!((one.position(), other.position()), (44, 30), "sequences of other lengths");
    }

    fn vocab(&self) -> u32 {
        self.fixture.model.spec().vocab as u32
    }
}

/// The standard deviation of all values.
fn deviation(values: &[f32]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
    (values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / count).sqrt()
}

fn hold(name: &str, backend: &Arc<dyn Backend>, policy: &str) {
    let fixture = common::open(name);
    let exact = policy == "parity" || backend.name() == "reference";
    let mut run = Run { fixture: &fixture, backend, policy, exact, whole: Vec::new(), seen: (0, 0) };
    assert_eq!(fixture.tokens.len(), 48, "{name}");
    let mut session = run.here();
    let mut sequence = session.sequence().expect("memory");
    run.whole = session.extend(&mut sequence, &fixture.tokens, Outputs::All).expect("it runs");
    assert!(deviation(&run.whole) > 0.5, "{name}: logits that say nothing");
    run.splits();
    run.interleaved();
    let (seen, off) = run.seen;
    assert!(off * ASTRAY <= seen, "{name} on {}: {off} rows of {seen} are off", backend.name());
}

/// Holds every family on every backend under a policy, on as many threads as there are.
fn law(policy: &str) {
    let names = common::names();
    let backends = common::backends();
    let jobs: Vec<_> = backends.iter().flat_map(|b| names.iter().map(move |name| (name, b))).collect();
    let (jobs, faults) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let work = || loop {
        let job = jobs.lock().expect("no one panics here").pop();
        let Some((name, backend)) = job else { return };
        // One family's fault does not hide another's.
        let held = std::panic::AssertUnwindSafe(|| hold(name, backend, policy));
        if std::panic::catch_unwind(held).is_err() {
            faults.lock().expect("no one panics here").push(format!("{name} on {}", backend.name()));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let faults = faults.into_inner().expect("no one panics here");
    assert!(faults.is_empty(), "under {policy}: {}", faults.join(", "));
}

#[test]
fn parity_bit_for_bit() {
    law("parity");
}

#[test]
fn serving() {
    law("serving");
}

#[test]
fn quantized() {
    law("quantized");
}

/// A preset or a backend that is added is held to the law as well.
#[test]
fn nothing_is_left_out() {
    assert_eq!(PRESETS, ["parity", "serving", "quantized"]);
    assert_eq!(tranship::backends::names().collect::<Vec<_>>(), ["cpu", "reference"]);
}

/// Where rotations depend on the context (LongRoPE), two contexts on both sides of the bound compute other things, and a
/// hand-off from one to the other is refused, not continued.
#[test]
fn contexts_that_compute_otherwise() {
    let fixture = common::open("phi3_longrope_short");
    for backend in common::backends() {
        let [short, long] = [64, 65].map(|ctx| fixture.session(&backend, "parity", ctx, 48));
        let state = common::decoded(&fixture, &backend, "parity", 24..=24).pop().expect("one state");
        assert!(short.resume(&state, &Expect::default()).is_ok());
        let Err(SessionError::Refused(refusal)) = long.resume(&state, &Expect::default()) else {
            panic!("not refused");
        };
        assert!(refusal.to_string().starts_with("programs differ"), "{refusal}");
    }
}
