//! Rows of many positions made one, on the reference interpreter: what they hold, which of them are chosen, and attention
//! over them; whole against split anywhere.

mod common;

use common::{Draw, Weights, bits, close, compile, parity, run};
use tranship_backend::Input;

/// A row `[x]` of 8: keys of 4, gates of 4.
const PLAIN: &str = "
program decode layer=0 ctx=14
  x    : [n, 8]
  pos  : index
  f    : [2, 4]
  g    : [2, 4]
  bias : [3, 4] @ \"bias\"
  kv = slice(x, from: 0, to: 4)
  gate = slice(x, from: 4, to: 8)
  ff = join(f[pos-2 .. pos], kv)
  gg = join(g[pos-2 .. pos], gate)
  f[pos+n-2 .. pos+n] = kv
  g[pos+n-2 .. pos+n] = gate
  return compress(ff, gg, bias, rate: 3)
";

fn overlapping() -> String {
    PLAIN.replace("[2, 4]", "[5, 4]").replace("-2 ..", "-5 ..").replace("rate: 3", "rate: 3, overlap: yes")
}

/// The compressed rows of `x` `[rows, 8]`, those that there are.
fn compressed(x: &[f32], bias: &[f32], overlap: bool) -> Vec<Vec<f64>> {
    let at = |row: usize, c: usize| f64::from(x[row * 8 + c]);
    let row = |span: usize| {
        let width = if overlap { 2 } else { 4 };
        let one = |c: usize| {
            // (position, column): of the span before the first half's, of its own the second half's.
            let mut of: Vec<(usize, usize)> = Vec::new();
            if overlap && span > 0 {
                of.extend((0..3).map(|t| (span * 3 - 3 + t, c)));
            }
            of.extend((0..3).map(|t| (span * 3 + t, if overlap { 2 + c } else { c })));
            let weight = |&(p, c): &(usize, usize)| (at(p, 4 + c) + f64::from(bias[p % 3 * 4 + c])).exp();
            let total: f64 = of.iter().map(weight).sum();
            of.iter().map(|e| weight(e) * at(e.0, e.1)).sum::<f64>() / total
        };
        (0..width).map(one).collect()
    };
    (0..x.len() / 8 / 3).map(row).collect()
}

#[test]
fn a_row_is_the_weighted_mean_of_its_span() {
    let weights = Weights::random(41, &[("bias", &[3, 4])]);
    let bias = weights.values("bias");
    let x = Draw(42).values(14 * 8);
    for (text, overlap, width) in [(PLAIN.to_owned(), false, 4), (overlapping(), true, 2)] {
        let rows = compressed(&x, &bias, overlap);
        let nothing = vec![0.0; width];
        let at = |i: usize| if (i + 1).is_multiple_of(3) { &rows[i / 3] } else { &nothing };
        let wanted: Vec<f64> = (0..14).flat_map(|i| at(i).clone()).collect();
        let mut step = compile(&[&text], &weights, &parity());
        let mut state = step.new_state().unwrap();
        let whole = run(step.as_mut(), state.as_mut(), 0, 14, Input::Rows(&x));
        close(&whole, &wanted);
        for split in 1..14 {
            let mut state = step.new_state().unwrap();
            let mut found = run(step.as_mut(), state.as_mut(), 0, split, Input::Rows(&x[..split * 8]));
            let rest = Input::Rows(&x[split * 8..]);
            found.extend(run(step.as_mut(), state.as_mut(), split, 14 - split, rest));
            assert_eq!(bits(&found), bits(&whole), "split at {split}");
        }
    }
}

/// Window of 3 and compressed rows of 2 heads of 4, of which at most two are chosen by queries that are the keys' gates.
const ATTEND: &str = "
program decode layer=0 ctx=14
  x     : [n, 8]
  pos   : index
  f     : [2, 4]
  g     : [2, 4]
  c     : [4, 4]
  w     : [2, 4]
  sinks : [2] @ \"sinks\"
  bias  : [3, 4] @ \"bias\"
  heads : [2, 8] @ \"heads\"
  kv = slice(x, from: 0, to: 4)
  gate = slice(x, from: 4, to: 8)
  ff = join(f[pos-2 .. pos], kv)
  gg = join(g[pos-2 .. pos], gate)
  ww = join(w[pos-2 .. pos], kv)
  f[pos+n-2 .. pos+n] = kv
  g[pos+n-2 .. pos+n] = gate
  w[pos+n-2 .. pos+n] = kv
  c[pos/3 .. (pos+n)/3] = compress(ff, gg, bias, rate: 3)
CHOICE
  return compressed_attend(x, ww, c[.. (pos+n)/3], sinksCHOSEN, heads: 2, scale: 0.5, window: 3, rate: 3)
";
const CHOICE: &str =
    "  p = choose(x, c[.. (pos+n)/3], linear(x, heads), heads: 2, top_k: 2, rate: 3, scale: 0.75)";

#[test]
fn a_window_and_compressed_rows_are_read_under_one_softmax() {
    let weights = Weights::random(43, &[("bias", &[3, 4]), ("heads", &[2, 8]), ("sinks", &[2])]);
    let x: Vec<f32> = Draw(44).values(14 * 8).iter().map(|v| v * 2.0).collect();
    let rows = compressed(&x, &weights.values("bias"), false);
    // What the cache holds is rounded to F32.
    let rows: Vec<Vec<f64>> = rows.iter().map(|r| r.iter().map(|v| f64::from(*v as f32)).collect()).collect();
    let at = |row: usize, c: usize| f64::from(x[row * 8 + c]);
    let dot = |i: usize, h: usize, row: &dyn Fn(usize) -> f64| -> f64 {
        (0..4).map(|d| at(i, h * 4 + d) * row(d)).sum()
    };
    let (heads, sinks) = (weights.values("heads"), weights.values("sinks"));
    let mut reduced = 0;
    for choice in [false, true] {
        let mut wanted = Vec::new();
        for i in 0..14 {
            let mut open: Vec<usize> = (0..(i + 1) / 3).collect();
            if choice {
                let score = |j: &usize| -> f64 {
                    let of = |h: usize| (0..8).map(|k| f64::from(heads[h * 8 + k]) * at(i, k)).sum::<f64>();
                    (0..2).map(|h| of(h) * 0.75 * dot(i, h, &|d| rows[*j][d]).max(0.0)).sum()
                };
                open.sort_by(|a, b| score(b).total_cmp(&score(a)));
                reduced += open.len().saturating_sub(2);
                open.truncate(2);
            }
            for (h, sink) in sinks.iter().enumerate() {
                let mut keys: Vec<Vec<f64>> = open.iter().map(|j| rows[*j].clone()).collect();
                keys.extend((i.saturating_sub(2)..=i).map(|j| (0..4).map(|d| at(j, d)).collect()));
                let weight = |key: &Vec<f64>| (0.5 * dot(i, h, &|d| key[d])).exp();
                let total = keys.iter().map(weight).sum::<f64>() + f64::from(*sink).exp();
                wanted.extend((0..4).map(|d| keys.iter().map(|k| weight(k) * k[d]).sum::<f64>() / total));
            }
        }
        let (line, operand) = if choice { (CHOICE, ", p") } else { ("", "") };
        let mut text = ATTEND.replace("CHOICE\n", &format!("{line}\n")).replace("CHOSEN", operand);
        if !choice {
            text = text.replace("  heads : [2, 8] @ \"heads\"\n", "");
        }
        let mut step = compile(&[&text], &weights, &parity());
        let mut state = step.new_state().unwrap();
        let whole = run(step.as_mut(), state.as_mut(), 0, 14, Input::Rows(&x));
        close(&whole, &wanted);
        for split in 1..14 {
            let mut state = step.new_state().unwrap();
            let mut found = run(step.as_mut(), state.as_mut(), 0, split, Input::Rows(&x[..split * 8]));
            for i in split..14 {
                let input = Input::Rows(&x[i * 8..(i + 1) * 8]);
                found.extend(run(step.as_mut(), state.as_mut(), i, 1, input));
            }
            assert_eq!(bits(&found), bits(&whole), "split at {split}");
        }
    }
    assert!(reduced > 0, "the choice leaves some out");
}
