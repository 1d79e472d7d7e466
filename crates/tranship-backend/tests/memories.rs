//! Memories that operations advance, on the reference interpreter: by formulas written with whole matrices, split
//! anywhere, and in a narrow type.

mod common;

use common::{Draw, Weights, bits, close, compile, once, parity, run};
use tranship_backend::Input;
use tranship_dtype::DType;

/// A gated delta rule of two heads that share one key head, its operands slices of the row: `q` and `k` 3 wide, `v` two
/// times 2, `g` of `gates` and `beta` of 2.
fn delta(gates: usize) -> (String, usize) {
    let width = 3 + 3 + 4 + gates + 2;
    let text = format!(
        "
program decode layer=0
  x : [n, {width}]
  s : [head 2, key 3, value 2]
  q = slice(x, from: 0, to: 3)
  k = slice(x, from: 3, to: 6)
  v = slice(x, from: 6, to: 10)
  g = slice(x, from: 10, to: {})
  b = slice(x, from: {}, to: {width})
  y, s[..] = gated_delta(s[..], q, k, v, g, b, heads: 2, key_heads: 1, scale: 0.5)
  return y
",
        10 + gates,
        10 + gates
    );
    (text, width)
}

const LINEAR: &str = "
program decode layer=0
  x : [n, 14]
  s : [head 2, key 2, value 3]
  q = slice(x, from: 0, to: 4)
  k = slice(x, from: 4, to: 8)
  v = slice(x, from: 8, to: 14)
  y, s[..] = decayed_linear(s[..], q, k, v, heads: 2, rate: 3)
  return y
";

const SPACE: &str = "
program decode layer=0
  x : [n, 16]
  s : [head 4, dim 2, state 2]
  a : [4] @ \"a\"
  d : [4] @ \"d\"
  u = slice(x, from: 0, to: 8)
  b = slice(x, from: 8, to: 12)
  c = slice(x, from: 4, to: 8)
  t = slice(x, from: 12, to: 16)
  y, s[..] = state_space(s[..], u, b, c, softplus(t), a, d, heads: 4, groups: 2)
  return y
";

fn space_weights() -> Weights {
    Weights::of(&[("a", &[4], &[0.5, -1.0, 0.0, 0.25]), ("d", &[4], &[1.0, -0.5, 0.0, 2.0])])
}

#[test]
fn the_delta_rule_by_hand() {
    // One head of one key and one value: s ← e^g s; s ← s + k·beta·(v − s k); y = q s.
    let text = "
program decode layer=0
  x : [n, 5]
  s : [1, 1, 1]
  q = slice(x, from: 0, to: 1)
  k = slice(x, from: 1, to: 2)
  v = slice(x, from: 2, to: 3)
  g = slice(x, from: 3, to: 4)
  b = slice(x, from: 4, to: 5)
  y, s[..] = gated_delta(s[..], q, k, v, g, b, heads: 1, key_heads: 1, scale: 1)
  return y
";
    // The memory: 0.5 · 2 · 4 = 4; then, halved to 2, + 1 · (10 − 2) · 1 = 10.
    let half = 0.5f64.ln() as f32;
    let y = once(text, &Weights(Vec::new()), 0, 2, &[3.0, 2.0, 4.0, 0.0, 0.5, -1.0, 1.0, 10.0, half, 1.0]);
    close(&y, &[12.0, -10.0]);
}

#[test]
fn the_delta_rule_is_a_product_of_matrices() {
    for gates in [2, 6] {
        let (text, width) = delta(gates);
        let x = Draw(gates as u64).values(5 * width);
        let found = once(&text, &Weights(Vec::new()), 0, 5, &x);
        let mut wanted = Vec::new();
        let mut memory = [[[0f64; 2]; 3]; 2];
        for row in x.chunks(width) {
            let row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
            let (q, k, v) = (&row[..3], &row[3..6], &row[6..10]);
            let beta = &row[10 + gates..];
            for (h, s) in memory.iter_mut().enumerate() {
                let g = |d: usize| row[10 + if gates == 2 { h } else { h * 3 + d }];
                // s ← (I − beta k kᵀ) diag(e^g) s + beta k vᵀ.
                let old = *s;
                for d in 0..3 {
                    for j in 0..2 {
                        let eye = |t: usize| f64::from(u8::from(t == d)) - beta[h] * k[d] * k[t];
                        let kept: f64 = (0..3).map(|t| eye(t) * g(t).exp() * old[t][j]).sum();
                        s[d][j] = kept + beta[h] * k[d] * v[h * 2 + j];
                    }
                }
                wanted.extend((0..2).map(|j| 0.5 * (0..3).map(|d| q[d] * s[d][j]).sum::<f64>()));
            }
        }
        close(&found, &wanted);
    }
}

#[test]
fn decayed_linear_attention_is_a_weighted_sum_over_the_past() {
    let x = Draw(7).values(6 * 14);
    let found = once(LINEAR, &Weights(Vec::new()), 0, 6, &x);
    let at = |row: usize, c: usize| f64::from(x[row * 14 + c]);
    let mut wanted = Vec::new();
    for i in 0..6 {
        for (h, slope) in [2f64.powi(-4), 2f64.powi(-8)].into_iter().enumerate() {
            for j in 0..3 {
                // y_i = Σ_t decay^(i − t) (q_i · k_t) v_t.
                let term = |t: usize| {
                    let dot: f64 = (0..2).map(|d| at(i, h * 2 + d) * at(t, 4 + h * 2 + d)).sum();
                    (-3.0 * slope * (i - t) as f64).exp() * dot * at(t, 8 + h * 3 + j)
                };
                wanted.push((0..=i).map(term).sum());
            }
        }
    }
    close(&found, &wanted);
}

#[test]
fn a_state_space_is_a_weighted_sum_over_the_past() {
    let x = Draw(9).values(5 * 16);
    let at = |row: usize, c: usize| f64::from(x[row * 16 + c]);
    // softplus is rounded to F32 on its way.
    let dt = |row: usize, h: usize| f64::from(((1.0 + at(row, 12 + h).exp()).ln()) as f32);
    let weights = space_weights();
    let (a, d) = (weights.values("a"), weights.values("d"));
    let wanted = |rate: &dyn Fn(f64) -> f64| {
        let mut wanted = Vec::new();
        for i in 0..5 {
            for h in 0..4 {
                for p in 0..2 {
                    let term = |t: usize| {
                        let elapsed: f64 = (t + 1..=i).map(|u| dt(u, h)).sum();
                        let dot: f64 =
                            (0..2).map(|s| at(t, 8 + h / 2 * 2 + s) * at(i, 4 + h / 2 * 2 + s)).sum();
                        (-rate(f64::from(a[h])) * elapsed).exp() * dt(t, h) * dot * at(t, h * 2 + p)
                    };
                    wanted.push((0..=i).map(term).sum::<f64>() + f64::from(d[h]) * at(i, h * 2 + p));
                }
            }
        }
        wanted
    };
    close(&once(SPACE, &weights, 0, 5, &x), &wanted(&f64::exp));
    let negative = SPACE.replace("groups: 2)", "groups: 2, form: negative)");
    close(&once(&negative, &weights, 0, 5, &x), &wanted(&|a| -a));
}

#[test]
fn memories_advance_in_their_own_type_and_split_anywhere() {
    let (scalar, wide) = (delta(2), delta(6));
    let programs = [(scalar.0.as_str(), scalar.1), (&wide.0, wide.1), (LINEAR, 14), (SPACE, 16)];
    for (text, width) in programs {
        let x = Draw(31).values(7 * width);
        let mut whole_f32 = Vec::new();
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let mut step = compile(&[text], &space_weights(), &parity().with_state(dtype));
            let mut state = step.new_state().unwrap();
            let whole = run(step.as_mut(), state.as_mut(), 0, 7, Input::Rows(&x));
            let rows = state.memory_bytes() / dtype.row_bytes(1).unwrap();
            assert!(rows >= 12, "the memory is there, in {dtype}");
            let end = state.read(0, 0..if text == SPACE { 4 } else { 2 }).unwrap();
            assert!(end.iter().any(|b| *b != 0), "and advances");
            for split in 1..7 {
                let mut state = step.new_state().unwrap();
                let mut found =
                    run(step.as_mut(), state.as_mut(), 0, split, Input::Rows(&x[..split * width]));
                for i in split..7 {
                    let row = Input::Rows(&x[i * width..(i + 1) * width]);
                    found.extend(run(step.as_mut(), state.as_mut(), i, 1, row));
                }
                assert_eq!(bits(&found), bits(&whole), "{dtype}, split at {split}");
                assert_eq!(state.read(0, 0..if text == SPACE { 4 } else { 2 }).unwrap(), end);
            }
            if dtype == DType::F32 {
                whole_f32 = whole;
            } else {
                assert_ne!(bits(&whole), bits(&whole_f32), "{dtype} is no F32");
            }
        }
    }
}
