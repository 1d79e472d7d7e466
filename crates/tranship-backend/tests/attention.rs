//! The attentions of the reference interpreter, each against one formula: a softmax over all positions with a mask, for
//! whole sequences; and steps over rings against it.

mod common;

use common::{Draw, Weights, bits, close, compile, once, parity, run};
use tranship_backend::Input;

/// Softmax-weighted means by a mask over all positions: what `score` gives for key `j`, or nothing where the query does
/// not see it; `sink` is a score without a value.
fn masked(
    rows: usize,
    score: impl Fn(usize) -> Option<f64>,
    sink: Option<f64>,
    value: impl Fn(usize) -> f64,
) -> f64 {
    let weights: Vec<f64> = (0..rows).map(|j| score(j).map_or(0.0, f64::exp)).collect();
    let total = weights.iter().sum::<f64>() + sink.map_or(0.0, f64::exp);
    (0..rows).map(|j| weights[j] * value(j)).sum::<f64>() / total
}

/// Attention of 4 heads over 2, of 3 elements, with values of 2: queries, keys and values are slices of the row.
const WHOLE: &str = "
program decode layer=0 ctx=12
  x   : [n, 22]
  pos : index
  k   : [12, 6]
  v   : [12, 4]
  s   : [4] @ \"s\"
  k[pos .. pos+n] = slice(x, from: 12, to: 18)
  v[pos .. pos+n] = slice(x, from: 18, to: 22)
  return attend(slice(x, from: 0, to: 12), k[.. pos+n], v[.. pos+n]SINKS, heads: 4, kv_heads: 2, scale: 0.75MORE)
";

/// The same over rings of the last 4 positions before the step.
const RING: &str = "
program decode layer=0 ctx=12
  x   : [n, 22]
  pos : index
  k   : [4, 6]
  v   : [4, 4]
  s   : [4] @ \"s\"
  kk = join(k[pos-4 .. pos], slice(x, from: 12, to: 18))
  vv = join(v[pos-4 .. pos], slice(x, from: 18, to: 22))
  k[pos+n-4 .. pos+n] = slice(x, from: 12, to: 18)
  v[pos+n-4 .. pos+n] = slice(x, from: 18, to: 22)
  return attend(slice(x, from: 0, to: 12), kk, vvSINKS, heads: 4, kv_heads: 2, scale: 0.75MORE)
";

const S: [f32; 4] = [0.5, -1.0, 2.0, 0.0];

fn text(form: &str, sinks: bool, more: &str) -> String {
    let form = if sinks { form.to_owned() } else { form.replace("  s   : [4] @ \"s\"\n", "") };
    form.replace("SINKS", if sinks { ", s" } else { "" }).replace("MORE", more)
}

fn wanted(x: &[f32], sinks: bool, window: usize, cap: Option<f64>) -> Vec<f64> {
    let (rows, at) = (x.len() / 22, |row: usize, c: usize| f64::from(x[row * 22 + c]));
    let mut y = Vec::new();
    for i in 0..rows {
        for (h, sink) in S.iter().enumerate() {
            let score = |j: usize| {
                let dot: f64 = (0..3).map(|d| at(i, h * 3 + d) * at(j, 12 + h / 2 * 3 + d)).sum();
                let score = cap.map_or(0.75 * dot, |cap| cap * (0.75 * dot / cap).tanh());
                (j <= i && j + window > i).then_some(score)
            };
            let sink = sinks.then_some(f64::from(*sink));
            y.extend((0..2).map(|d| masked(rows, score, sink, |j| at(j, 18 + h / 2 * 2 + d))));
        }
    }
    y
}

#[test]
fn windows_caps_sinks_and_values_of_another_size() {
    let x: Vec<f32> = Draw(15).values(9 * 22).iter().map(|v| v * 3.0).collect();
    let weights = Weights::of(&[("s", &[4], &S)]);
    for sinks in [false, true] {
        for (window, cap, more) in [
            (99, None, ""),
            (3, None, ", window: 3"),
            (1, None, ", window: 1"),
            (99, Some(1.5), ", softcap: 1.5"),
            (5, Some(0.5), ", window: 5, softcap: 0.5"),
        ] {
            let found = once(&text(WHOLE, sinks, more), &weights, 0, 9, &x);
            close(&found, &wanted(&x, sinks, window, cap));
        }
    }
}

#[test]
fn a_ring_holds_what_its_window_sees_however_the_rows_are_split() {
    let x: Vec<f32> = Draw(16).values(11 * 22).iter().map(|v| v * 3.0).collect();
    let weights = Weights::of(&[("s", &[4], &S)]);
    for sinks in [false, true] {
        for window in [1, 3, 5] {
            let more = format!(", window: {window}");
            let mut step = compile(&[&text(RING, sinks, &more)], &weights, &parity());
            let mut state = step.new_state().unwrap();
            let whole = run(step.as_mut(), state.as_mut(), 0, 11, Input::Rows(&x));
            close(&whole, &wanted(&x, sinks, window, None));
            let full = once(&text(WHOLE, sinks, &more), &weights, 0, 11, &x);
            assert_eq!(bits(&whole), bits(&full), "a cache of all rows gives the same");
            let end = state.read(0, 7..11).unwrap();
            let keys: Vec<u8> =
                (7..11).flat_map(|i| &x[i * 22 + 12..i * 22 + 18]).flat_map(|v| v.to_le_bytes()).collect();
            assert_eq!(end, keys, "the newest rows, in the order of their positions");
            for split in 1..11 {
                let mut state = step.new_state().unwrap();
                let mut found = run(step.as_mut(), state.as_mut(), 0, split, Input::Rows(&x[..split * 22]));
                // Two rows at a time, and one at the end where they do not come out even.
                let mut position = split;
                while position < 11 {
                    let rows = 2.min(11 - position);
                    let input = Input::Rows(&x[position * 22..(position + rows) * 22]);
                    found.extend(run(step.as_mut(), state.as_mut(), position, rows, input));
                    position += rows;
                }
                assert_eq!(bits(&found), bits(&whole), "window {window}, split at {split}");
                assert_eq!(state.read(0, 7..11).unwrap(), end);
            }
        }
    }
}

#[test]
fn latent_rows_are_expanded_to_keys_and_values() {
    // Two heads, keys of 2 from the latent row of 3 and 2 that all share, values of 1.
    let text = "
program decode layer=0 ctx=6
  x   : [n, 13]
  pos : index
  c   : [6, 3]
  r   : [6, 2]
  w   : [6, 3] @ \"w\"
  c[pos .. pos+n] = slice(x, from: 8, to: 11)
  r[pos .. pos+n] = slice(x, from: 11, to: 13)
  return latent_attend(slice(x, from: 0, to: 8), c[.. pos+n], r[.. pos+n], w, heads: 2, key_dim: 2, scale: 1.25)
";
    let weights = Weights::random(17, &[("w", &[6, 3])]);
    let w = weights.values("w");
    let x = Draw(18).values(6 * 13);
    let at = |row: usize, c: usize| f64::from(x[row * 13 + c]);
    let expanded = |j: usize, o: usize| (0..3).map(|l| f64::from(w[o * 3 + l]) * at(j, 8 + l)).sum::<f64>();
    let mut wanted = Vec::new();
    for i in 0..6 {
        for h in 0..2 {
            let score = |j: usize| {
                let own: f64 = (0..2).map(|d| at(i, h * 4 + d) * expanded(j, h * 3 + d)).sum();
                let shared: f64 = (0..2).map(|d| at(i, h * 4 + 2 + d) * at(j, 11 + d)).sum();
                (j <= i).then_some(1.25 * (own + shared))
            };
            wanted.push(masked(6, score, None, |j| expanded(j, h * 3 + 2)));
        }
    }
    let mut step = compile(&[text], &weights, &parity());
    let mut state = step.new_state().unwrap();
    let whole = run(step.as_mut(), state.as_mut(), 0, 6, Input::Rows(&x));
    close(&whole, &wanted);
    for split in 1..6 {
        let mut state = step.new_state().unwrap();
        let mut found = run(step.as_mut(), state.as_mut(), 0, split, Input::Rows(&x[..split * 13]));
        for i in split..6 {
            found.extend(run(step.as_mut(), state.as_mut(), i, 1, Input::Rows(&x[i * 13..(i + 1) * 13])));
        }
        assert_eq!(bits(&found), bits(&whole));
    }
}

#[test]
fn convolution_reaches_over_the_rows_before() {
    let text = "
program decode layer=0
  x   : [n, 2]
  pos : index
  h   : [2, 2]
  w   : [2, 3] @ \"w\"
  b   : [2] @ \"b\"
  hh = join(h[pos-2 .. pos], x)
  h[pos+n-2 .. pos+n] = x
  return conv(hh, w, b)
";
    let weights =
        Weights::of(&[("w", &[2, 3], &[1.0, 10.0, 100.0, -1.0, 2.0, 0.5]), ("b", &[2], &[0.25, 1000.0])]);
    let x = [1.0, 4.0, 2.0, 8.0, 3.0, -2.0, 5.0, 6.0];
    // Channel 0: the last three inputs with the weights of their distance; channel 1 likewise.
    let wanted = [100.25, 1002.0, 210.25, 1012.0, 321.25, 1011.0, 532.25, 991.0];
    let mut step = compile(&[text], &weights, &parity());
    for split in 1..4 {
        let mut state = step.new_state().unwrap();
        let mut found = run(step.as_mut(), state.as_mut(), 0, split, Input::Rows(&x[..split * 2]));
        found.extend(run(step.as_mut(), state.as_mut(), split, 4 - split, Input::Rows(&x[split * 2..])));
        assert_eq!(found, wanted, "split at {split}");
    }
    let mut state = step.new_state().unwrap();
    assert_eq!(run(step.as_mut(), state.as_mut(), 0, 4, Input::Rows(&x)), wanted);
}
