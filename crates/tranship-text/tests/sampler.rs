//! Distributions against `transformers`' logits processors, draws against themselves, refusals by name.

mod common;

use common::{data, ids};
use tranship_text::{Sampler, SamplerOptions, TextError};

fn warm(seed: u64) -> SamplerOptions {
    SamplerOptions { temperature: 1.0, seed, ..SamplerOptions::default() }
}

#[test]
fn distributions_are_those_of_transformers() {
    let file = data("sampler.json");
    let cases = file["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 24);
    for case in cases {
        let o = &case["options"];
        let real = |key: &str, default: f32| o[key].as_f64().map_or(default, |v| v as f32);
        let options = SamplerOptions {
            temperature: real("temperature", 0.0),
            top_k: o["top_k"].as_u64().unwrap_or(0) as usize,
            top_p: real("top_p", 1.0),
            min_p: real("min_p", 0.0),
            repetition_penalty: real("repetition_penalty", 1.0),
            seed: 0,
        };
        let row = case["logits"].as_array().expect("logits");
        let logits: Vec<f32> =
            row.iter().map(|l| l.as_f64().map_or(f32::NEG_INFINITY, |l| l as f32)).collect();
        let history = if o["history"].is_array() { ids(&o["history"]) } else { vec![] };
        let mut found = vec![0.0; logits.len()];
        let mut sampler = Sampler::new(options).expect("good options");
        for c in sampler.distribution(&logits, &history).expect("good logits") {
            found[c.token as usize] = c.probability;
        }
        for (token, wanted) in case["probabilities"].as_array().expect("probabilities").iter().enumerate() {
            let wanted = wanted.as_f64().expect("a probability");
            // F32 options against Python's F64 ones.
            let bound = 1e-6 * wanted + 1e-11;
            assert!(
                (found[token] - wanted).abs() <= bound,
                "{o} token {token}: wanted {wanted}, found {}",
                found[token]
            );
        }
    }
}

#[test]
fn temperature_zero_takes_the_lowest_id_of_the_highest() {
    let mut sampler = Sampler::new(SamplerOptions::default()).expect("good options");
    assert_eq!(sampler.sample(&[0.5, 2.0, -1.0, 2.0], &[]).expect("finite"), 1);
    assert_eq!(sampler.sample(&[f32::NEG_INFINITY, -3.0], &[]).expect("one is finite"), 1);
    assert_eq!(sampler.sample(&[-0.0, 0.0], &[]).expect("finite"), 0);
    assert_eq!(sampler.draws(), 0);
    let penalty = SamplerOptions { repetition_penalty: 2.0, ..SamplerOptions::default() };
    let mut sampler = Sampler::new(penalty).expect("good options");
    assert_eq!(sampler.sample(&[0.5, 2.0, 1.5], &[1, 1]).expect("finite"), 2);
}

#[test]
fn draws_follow_the_distribution_and_the_seed() {
    let logits = [0.0f32, 1.0, 2.0, f32::NEG_INFINITY];
    let mut sampler = Sampler::new(warm(11)).expect("good options");
    let probabilities: Vec<f64> =
        sampler.distribution(&logits, &[]).expect("finite").iter().map(|c| c.probability).collect();
    let drawn: Vec<u32> = (0..30_000).map(|_| sampler.sample(&logits, &[]).expect("finite")).collect();
    for (token, p) in probabilities.iter().enumerate() {
        let share = drawn.iter().filter(|t| **t == token as u32).count() as f64 / 30_000.0;
        // Four standard deviations.
        assert!((share - p).abs() < 4.0 * (p * (1.0 - p) / 30_000.0).sqrt(), "token {token}: {share} of {p}");
    }
    assert!(!drawn.contains(&3), "a token at -inf was drawn");
    let again = |seed| {
        let mut sampler = Sampler::new(warm(seed)).expect("good options");
        (0..40).map(|_| sampler.sample(&logits, &[]).expect("finite")).collect::<Vec<_>>()
    };
    assert_eq!(again(11), drawn[..40]);
    assert_ne!(again(12), drawn[..40]);
    // The sequence is part of the interface: a generation resumed by another build must go on the same.
    assert_eq!(&drawn[..16], DRAWN_WITH_SEED_11);
    let mut resumed = Sampler::resume(warm(11), 25).expect("good options");
    let rest: Vec<u32> = (25..40).map(|_| resumed.sample(&logits, &[]).expect("finite")).collect();
    assert_eq!(rest, drawn[25..40]);
    assert_eq!(resumed.draws(), 40);
}

const DRAWN_WITH_SEED_11: &[u32] = &[2, 1, 1, 2, 2, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 0];

#[test]
fn what_cannot_be_sampled_is_refused_by_name() {
    let check = |options: SamplerOptions, logits: &[f32], history: &[u32], wanted: &str| {
        let found = Sampler::new(options).and_then(|mut s| s.sample(logits, history));
        assert_eq!(found.expect_err(wanted).to_string(), wanted);
    };
    let cold = SamplerOptions::default();
    for options in [cold, warm(0)] {
        check(options, &[0.0, f32::NAN], &[], "logit of token 1: wanted a finite value or -inf, found NaN");
        check(options, &[f32::INFINITY], &[], "logit of token 0: wanted a finite value or -inf, found inf");
        check(options, &[], &[], "logits: wanted at least one above -inf, found none among 0");
        check(
            options,
            &[f32::NEG_INFINITY; 3],
            &[],
            "logits: wanted at least one above -inf, found none among 3",
        );
        check(options, &[0.0], &[1], "token id 1: wanted an id of the vocabulary (size 1)");
    }
    let option = |options, wanted: &str| check(options, &[0.0], &[], wanted);
    option(
        SamplerOptions { temperature: -1.0, ..cold },
        "sampler option temperature: wanted 0 or more, found -1",
    );
    option(SamplerOptions { top_p: 0.0, ..cold }, "sampler option top_p: wanted above 0, at most 1, found 0");
    option(SamplerOptions { min_p: 1.5, ..cold }, "sampler option min_p: wanted from 0 to 1, found 1.5");
    option(
        SamplerOptions { repetition_penalty: f32::NAN, ..cold },
        "sampler option repetition_penalty: wanted above 0, found NaN",
    );
    assert!(matches!(
        Sampler::new(SamplerOptions { temperature: f32::INFINITY, ..cold }),
        Err(TextError::SamplerOption { name: "temperature", .. })
    ));
}
