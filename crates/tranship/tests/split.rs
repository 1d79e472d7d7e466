//! A model in parts is the model: every family, cut before every layer, on every backend and over two of them.
//!
//! On one backend the rows that cross are those that would have stayed, in steps of the same rows: every bit of the logits
//! is that of the session of one part, and every byte of the hand-off, under every policy. Over two backends the text is
//! the same, and the logits are within what `cargo xtask parity` allows `parity` itself.

mod common;

use common::{Fixture, backends, bits};
use std::sync::{Arc, Mutex};
use tranship::ctx::PRESETS;
use tranship::prelude::*;
use tranship::session::{Part, argmax};

/// The largest error of a logit between two backends under `parity`, in standard deviations of the logits.
const MOST: f64 = 2e-4;

/// Tokens that are prefilled at once; the rest of the prompt is decoded one by one.
const AT: usize = 29;

/// Rows that a step has at most: the prefill goes in pieces.
const ROWS: usize = 12;

fn split(fixture: &Fixture, [first, second]: [&Arc<dyn Backend>; 2], policy: &str, cut: usize) -> Session {
    let layers = fixture.model.spec().layers.len();
    let part = |backend: &Arc<dyn Backend>, layers| Part { backend: backend.clone(), layers };
    let parts = vec![part(first, 0..cut), part(second, cut..layers)];
    let policy = ComputeCtx::preset(policy, Device::of(first.name())).expect("a preset");
    let options = Options { ctx: 64, max_rows: ROWS };
    Session::split(fixture.model.clone(), parts, policy, options)
        .unwrap_or_else(|e| panic!("{} cut before layer {cut}: {e}", fixture.name))
}

/// The logits of all of the prompt, and the hand-off at the end of it as bytes.
fn run(session: &mut Session, fixture: &Fixture) -> (Vec<f32>, Vec<u8>) {
    let (before, after) = fixture.tokens.split_at(AT);
    let mut sequence = session.sequence().expect("memory");
    let mut logits = session.extend(&mut sequence, before, Outputs::All).expect("it runs");
    for token in after {
        logits.extend(session.extend(&mut sequence, &[*token], Outputs::Last).expect("it runs"));
    }
    let state = session.suspend(&sequence, None).expect("it fits");
    (logits, state.to_bytes().expect("sealed"))
}

/// Every cut of a family on one backend, under every policy.
fn alone(fixture: &Fixture, backend: &Arc<dyn Backend>) {
    for policy in PRESETS {
        let (wanted, state) = run(&mut fixture.session(backend, policy, 64, ROWS), fixture);
        for cut in 1..fixture.model.spec().layers.len() {
            let label = format!("{} on {} under {policy}, cut at {cut}", fixture.name, backend.name());
            let (found, left) = run(&mut split(fixture, [backend, backend], policy, cut), fixture);
            assert!(bits(&found) == bits(&wanted), "{label}: other logits");
            assert!(left == state, "{label}: another hand-off");
        }
    }
}

/// Every cut of a family over two backends, under `parity`.
fn between(fixture: &Fixture, [here, there]: [&Arc<dyn Backend>; 2]) {
    let (wanted, _) = run(&mut fixture.session(here, "parity", 64, ROWS), fixture);
    let width = wanted.len() / fixture.tokens.len();
    let mean = wanted.iter().map(|v| f64::from(*v)).sum::<f64>() / wanted.len() as f64;
    let square = wanted.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>();
    let deviation = (square / wanted.len() as f64).sqrt();
    for cut in 1..fixture.model.spec().layers.len() {
        let label = format!("{} on {} and {}, cut at {cut}", fixture.name, here.name(), there.name());
        let mut session = split(fixture, [here, there], "parity", cut);
        let (found, _) = run(&mut session, fixture);
        let pairs = wanted.iter().zip(&found);
        let error = pairs.map(|(w, f)| f64::from((w - f).abs())).fold(0.0, f64::max) / deviation;
        assert!(found.len() == wanted.len() && error <= MOST, "{label}: {error:e}");
        let greedy = |logits: &[f32]| -> Vec<u32> { logits.chunks(width).map(argmax).collect() };
        assert_eq!(greedy(&found), greedy(&wanted), "{label}");
        let text = |session: &mut Session| -> Vec<u32> {
            let mut sequence = session.sequence().expect("memory");
            let mut logits = session.extend(&mut sequence, &fixture.tokens, Outputs::Last).expect("it runs");
            let mut next = || {
                let token = argmax(&logits);
                logits = session.extend(&mut sequence, &[token], Outputs::Last).expect("it runs");
                token
            };
            (0..8).map(|_| next()).collect()
        };
        let whole = text(&mut fixture.session(here, "parity", 64, ROWS));
        assert_eq!(text(&mut session), whole, "{label}: another text");
    }
}

/// Holds every family, on as many threads as there are.
fn every(hold: impl Fn(&Fixture) + Sync) {
    let (names, faults) = (Mutex::new(common::names()), Mutex::new(Vec::new()));
    let work = || loop {
        let name = names.lock().expect("no one panics here").pop();
        let Some(name) = name else { return };
        // One family's fault does not hide another's.
        let held = std::panic::AssertUnwindSafe(|| hold(&common::open(&name)));
        if std::panic::catch_unwind(held).is_err() {
            faults.lock().expect("no one panics here").push(name);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let faults = faults.into_inner().expect("no one panics here");
    assert!(faults.is_empty(), "{}", faults.join(", "));
}

#[test]
fn a_cut_on_one_backend_changes_no_bit() {
    every(|fixture| backends().iter().for_each(|backend| alone(fixture, backend)));
}

#[test]
fn two_backends_give_one_text() {
    every(|fixture| {
        let backends = backends();
        let [cpu, reference] = &backends[..] else { panic!("two backends") };
        between(fixture, [cpu, reference]);
        between(fixture, [reference, cpu]);
    });
}
