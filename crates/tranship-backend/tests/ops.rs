//! Each operation of the reference interpreter against numbers worked out by hand, or a formula written otherwise.

mod common;

use common::{Draw, Weights, bits, close, compile, once, parity, run};
use tranship_backend::{Input, RopeTable};
use tranship_dtype::DType;
use tranship_program::ops::{Rope, RopeStyle, Scaling};
use tranship_tensor::Tensor;

const NONE: Weights = Weights(Vec::new());

#[test]
fn linear_is_rows_times_the_transposed_matrix() {
    let text = "program p\n  x : [n, 3]\n  w : [2, 3] @ \"w\"\n  b : [2] @ \"b\"\n";
    let weights =
        Weights::of(&[("w", &[2, 3], &[1.0, 2.0, 3.0, -1.0, 0.5, 4.0]), ("b", &[2], &[10.0, -0.25])]);
    let x = [1.0, 0.0, 2.0, -3.0, 1.0, 0.5];
    let bare =
        once("program p\n  x : [n, 3]\n  w : [2, 3] @ \"w\"\n  return linear(x, w)\n", &weights, 0, 2, &x);
    assert_eq!(bare, [7.0, 7.0, 0.5, 5.5]);
    assert_eq!(
        once(&format!("{text}  return linear(x, w, b)\n"), &weights, 0, 2, &x),
        [17.0, 6.75, 10.5, 5.25]
    );
    // Rounded once, the bias included: 2^24 + 1 - 2^24 is 1 in the sum, and 0 had the product been rounded first.
    let weights = Weights::of(&[("w", &[2, 3], &[1.0; 6]), ("b", &[2], &[-16_777_216.0, 0.0])]);
    let y = once(&format!("{text}  return linear(x, w, b)\n"), &weights, 0, 1, &[16_777_216.0, 1.0, 0.0]);
    assert_eq!(y, [1.0, 16_777_216.0]);
}

#[test]
fn linear_reads_weights_as_they_are_stored() {
    let text = "program p\n  x : [n, 32]\n  w : [3, 32] @ \"w\"\n  return linear(x, w)\n";
    let x = Draw(5).values(64);
    for dtype in [DType::F16, DType::BF16, DType::F8E4M3, DType::Q8_0, DType::Q4_1, DType::F64] {
        let weights = Weights::random(9, &[("w", &[3, 32])]).stored(dtype);
        let w = weights.values("w");
        let mut wanted = vec![0f64; 6];
        for (k, weight) in w.iter().enumerate() {
            for row in 0..2 {
                wanted[row * 3 + k / 32] += f64::from(*weight) * f64::from(x[row * 32 + k % 32]);
            }
        }
        close(&once(text, &weights, 0, 2, &x), &wanted);
    }
}

#[test]
fn linear_in_groups_is_a_linear_of_each() {
    let text = "program p\n  x : [n, 4]\n  w : [4, 2] @ \"w\"\n  b : [4] @ \"b\"\n  return linear(x, w, b, groups: 2)\n";
    let weights = Weights::of(&[
        ("w", &[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        ("b", &[4], &[0.0, 0.0, 100.0, 0.0]),
    ]);
    let y = once(text, &weights, 0, 2, &[1.0, 10.0, -1.0, 1.0, 0.0, 1.0, 2.0, 0.0]);
    // Outputs 0 and 1 are over inputs 0 and 1, the others over 2 and 3.
    assert_eq!(y, [21.0, 43.0, 101.0, 1.0, 2.0, 4.0, 110.0, 14.0]);
}

#[test]
fn linear_over_blocks_rounds_the_activations_to_blocks() {
    let text = "program p\n  x : [n, 64]\n  w : [3, 64] @ \"w\"\n  return linear(x, w)\n";
    let weights = Weights::random(2, &[("w", &[3, 64])]).stored(DType::Q4_0);
    let x = Draw(6).values(128);
    let mut step = compile(&[text], &weights, &parity().with_activations(tranship_ctx::Activations::Blocks));
    let mut state = step.new_state().unwrap();
    let found = run(step.as_mut(), state.as_mut(), 0, 2, Input::Rows(&x));
    // The definition of the blocks: 32 values, d = max|x| / 127 as F16, each value d times a whole number.
    let blocks = x.chunks(32).flat_map(|block| {
        let top = block.iter().fold(0f32, |m, v| m.max(v.abs()));
        let d = half::f16::from_f32(top / 127.0).to_f64();
        block.iter().map(move |v| f64::from((v * (127.0 / top)).round()) * d)
    });
    let rounded: Vec<f64> = blocks.collect();
    let w = weights.values("w");
    let dot = |row: usize, o: usize| (0..64).map(|k| rounded[row * 64 + k] * f64::from(w[o * 64 + k])).sum();
    let wanted: Vec<f64> = (0..6).map(|i| dot(i / 3, i % 3)).collect();
    close(&found, &wanted);
    let plain = once(text, &weights, 0, 2, &x);
    assert_ne!(bits(&plain), bits(&found), "the blocks are there");
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    let text = "program p\n  x : [n, 4]\n  g : [4] @ \"g\"\n  return rms_norm(x, g, eps: EPS)\n";
    let weights = Weights::of(&[("g", &[4], &[1.0, 2.0, -1.0, 0.5])]);
    // mean(1 + 1 + 49 + 49) = 25, so the row is divided by 5.
    let y = once(&text.replace("EPS", "0"), &weights, 0, 1, &[1.0, -1.0, 7.0, 7.0]);
    close(&y, &[0.2, -0.4, -1.4, 0.7]);
    // eps 0.75 on a mean square of 0.25: divided by 1.
    let y = once(&text.replace("EPS", "0.75"), &weights, 0, 2, &[0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(y, [0.5, 1.0, -0.5, 0.25, 0.0, 0.0, -0.0, 0.0]);
}

#[test]
fn elementwise_operations() {
    let text = |body: &str| format!("program p\n  x : [n, 2]\n  b : [2] @ \"b\"\n  return {body}\n");
    let weights = Weights::of(&[("b", &[2], &[10.0, -2.0])]);
    let x = [1.0, 2.0, -3.0, 0.5];
    assert_eq!(once(&text("x + b"), &weights, 0, 2, &x), [11.0, 0.0, 7.0, -1.5]);
    assert_eq!(once(&text("x * b"), &weights, 0, 2, &x), [10.0, -4.0, -30.0, -1.0]);
    assert_eq!(once("program p\n  x : [n, 2]\n  return x * x + x\n", &NONE, 0, 2, &x), [2.0, 6.0, 6.0, 0.75]);
    let silu = once(
        "program p\n  x : [n, 2]\n  return silu(x)\n",
        &NONE,
        0,
        3,
        &[0.0, 1.0, -1.0, 100.0, -100.0, 3.5],
    );
    // x · sigmoid(x) by way of tanh: sigmoid(x) = (1 + tanh(x / 2)) / 2.
    let wanted: Vec<f64> =
        [0.0, 1.0, -1.0, 100.0, -100.0, 3.5f64].iter().map(|x| x * (0.5 + 0.5 * (x / 2.0).tanh())).collect();
    close(&silu, &wanted);
    close(&silu[1..2], &[0.731_058_578_630_004_9]);
}

#[test]
fn gather_takes_rows_of_a_table_of_any_type() {
    let text = "program embed\n  tokens : index [n]\n  t : [3, 32] @ \"t\"\n  return gather(t, tokens)\n";
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        let weights = Weights::random(7, &[("t", &[3, 32])]).stored(dtype);
        let mut step = compile(&[text], &weights, &parity());
        let mut state = step.new_state().unwrap();
        let found = run(step.as_mut(), state.as_mut(), 0, 4, Input::Tokens(&[2, 0, 2, 1]));
        let t = weights.values("t");
        assert_eq!(found, [&t[64..], &t[..32], &t[64..], &t[32..64]].concat(), "{dtype}");
    }
}

/// `rope` over one row at `position` against complex multiplication.
fn check_rope(attributes: &str, op: &Rope, divisors: Option<&[f32]>, heads: usize, dim: usize) {
    let operand = if divisors.is_some() { "pos, d" } else { "pos" };
    let d = divisors.unwrap_or(&[1.0]);
    let declared = if divisors.is_some() { format!("  d : [{}] @ \"d\"\n", d.len()) } else { String::new() };
    let width = heads * dim;
    let text = format!(
        "program p\n  x : [n, {width}]\n  pos : index\n{declared}  return rope(x, {operand}, heads: {heads}, {attributes})\n"
    );
    let weights = Weights(vec![("d", Tensor::from_f32(&[d.len()], d).unwrap())]);
    let x = Draw(3).values(width * 2);
    let pairs = op.dims as usize / 2;
    let frequencies: Vec<f64> = independent_frequencies(op)
        .iter()
        .enumerate()
        .map(|(j, f)| if divisors.is_some() { f / f64::from(d[j]) } else { *f })
        .collect();
    for position in [0usize, 1, 77, 4095] {
        let found = once(&text, &weights, position, 2, &x);
        let mut wanted: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        for row in 0..2 {
            for head in 0..heads {
                for (j, frequency) in frequencies.iter().enumerate() {
                    let (a, b) = match op.style {
                        RopeStyle::Half => (j, j + pairs),
                        RopeStyle::Interleaved => (2 * j, 2 * j + 1),
                    };
                    let start = row * width + head * dim + op.skip as usize;
                    let (a, b) = (start + a, start + b);
                    // (a + ib) · m·e^(iθ), by polar form.
                    let radius = wanted[a].hypot(wanted[b]) * op.magnitude();
                    let at = (position + row).saturating_sub(op.back as usize) as f64;
                    let turn = if op.inverse { -at * frequency } else { at * frequency };
                    let angle = wanted[b].atan2(wanted[a]) + turn;
                    (wanted[a], wanted[b]) = (radius * angle.cos(), radius * angle.sin());
                }
            }
        }
        for (f, w) in found.iter().zip(&wanted) {
            assert!((f64::from(*f) - w).abs() < 1e-6, "{attributes} at {position}: wanted {w}, found {f}");
        }
    }
}

/// Frequencies by the papers' own terms: wavelengths for llama3, rotations over the trained context for YaRN.
fn independent_frequencies(op: &Rope) -> Vec<f64> {
    let half = op.dims as usize / 2;
    let turn = std::f64::consts::PI * 2.0;
    let frequency = |j: usize| 1.0 / op.theta.powf(j as f64 / half as f64);
    let one = |j: usize| -> f64 {
        let plain = frequency(j);
        match op.scaling {
            Scaling::None => plain,
            Scaling::Linear { factor } => plain / factor,
            Scaling::Llama3 { factor, low, high, original } => {
                // Cycles over the original context: `low` and fewer are stretched, `high` and more are not.
                let cycles = original * plain / turn;
                let kept = ((cycles - low) / (high - low)).clamp(0.0, 1.0);
                plain * (kept + (1.0 - kept) / factor)
            }
            Scaling::Listed { ref divisors, .. } => plain / divisors[j],
            Scaling::Yarn { factor, original, beta_fast, beta_slow, whole, .. } => {
                // The pair whose rotations over the original context are `beta`, as a real number: solve
                // original / (2π theta^(j / half)) = beta for j.
                let pair = |beta: f64| half as f64 * (original / (turn * beta)).log(op.theta);
                let (first, last) = (pair(beta_fast), pair(beta_slow));
                let (first, last) = if whole { (first.floor(), last.ceil()) } else { (first, last) };
                let first = first.max(0.0);
                let last = last.min(op.dims as f64 - 1.0);
                let stretched = ((j as f64 - first) / (last - first)).clamp(0.0, 1.0);
                plain * (1.0 - stretched) + plain / factor * stretched
            }
        }
    };
    (0..half).map(one).collect()
}

fn plain_rope(heads: u64, dims: u64, theta: f64, style: RopeStyle, scaling: Scaling) -> Rope {
    Rope { heads, dims, theta, style, scaling, skip: 0, back: 0, inverse: false }
}

#[test]
fn rope_skips_stands_back_and_turns_back() {
    let op = plain_rope(2, 4, 1e3, RopeStyle::Half, Scaling::None);
    let attributes = "dims: 4, theta: 1e3, style: half";
    check_rope(&format!("{attributes}, skip: 6"), &Rope { skip: 6, ..op.clone() }, None, 2, 10);
    // Positions below 0 count as 0: row 0 and 1 of the step at 0 stand there both.
    check_rope(&format!("{attributes}, back: 3"), &Rope { back: 3, ..op.clone() }, None, 2, 4);
    check_rope(&format!("{attributes}, turn: back"), &Rope { inverse: true, ..op.clone() }, None, 2, 4);
    let (scaling, style) =
        (Scaling::Listed { divisors: vec![2.0, 0.25], magnitude: 1.5 }, RopeStyle::Interleaved);
    check_rope(
        "dims: 4, theta: 1e3, style: interleaved, scaling: listed, divisors: [2, 0.25], magnitude: 1.5, skip: 1, back: 70, turn: back",
        &Rope { skip: 1, back: 70, inverse: true, style, scaling, ..op },
        None,
        2,
        5,
    );
}

#[test]
fn rope_turns_pairs_by_the_position() {
    let rope = |dims, theta, style, scaling| plain_rope(2, dims, theta, style, scaling);
    for (style, name) in [(RopeStyle::Half, "half"), (RopeStyle::Interleaved, "interleaved")] {
        let op = rope(8, 1e4, style, Scaling::None);
        check_rope(&format!("dims: 8, theta: 1e4, style: {name}"), &op, None, 2, 8);
        // Fewer rotated elements than the head has: the rest stays.
        let op = rope(4, 500.0, style, Scaling::None);
        check_rope(&format!("dims: 4, theta: 500, style: {name}"), &op, None, 2, 10);
        let op = rope(8, 1e4, style, Scaling::None);
        check_rope(&format!("dims: 8, theta: 1e4, style: {name}"), &op, Some(&[1.0, 2.0, 8.0, 0.5]), 2, 8);
    }
    let op = rope(8, 1e4, RopeStyle::Half, Scaling::Linear { factor: 4.0 });
    check_rope("dims: 8, theta: 1e4, style: half, scaling: linear, factor: 4", &op, None, 2, 8);
    let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
    check_rope(
        "dims: 16, theta: 1e3, style: half, scaling: llama3, factor: 8, low: 1, high: 4, original: 64",
        &rope(16, 1e3, RopeStyle::Half, scaling),
        None,
        2,
        16,
    );
    let scaling = Scaling::Yarn {
        factor: 4.0,
        original: 64.0,
        beta_fast: 4.0,
        beta_slow: 1.0,
        magnitude: 1.1386,
        whole: true,
    };
    check_rope(
        "dims: 32, theta: 1e4, style: half, scaling: yarn, factor: 4, original: 64, beta_fast: 4, beta_slow: 1, magnitude: 1.1386",
        &rope(32, 1e4, RopeStyle::Half, scaling),
        None,
        2,
        32,
    );
}

#[test]
fn a_quarter_turn_by_hand() {
    // One pair, theta arbitrary: f_0 = 1, so position 1 turns (1, 0) by one radian.
    let text = "program p\n  x : [n, 2]\n  pos : index\n  return rope(x, pos, heads: 1, dims: 2, theta: 10, style: half)\n";
    close(&once(text, &NONE, 1, 1, &[1.0, 0.0]), &[0.540_302_305_868_139_8, 0.841_470_984_807_896_5]);
    close(&once(text, &NONE, 0, 1, &[3.0, -4.0]), &[3.0, -4.0]);
}

#[test]
fn every_branch_of_the_scalings_is_taken() {
    // Llama 3.1's own numbers: high frequencies stay, low ones go by the factor, some lie between.
    let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
    let op = plain_rope(1, 128, 5e5, RopeStyle::Half, scaling);
    let plain = Rope { scaling: Scaling::None, ..op.clone() }.frequencies();
    let ratio: Vec<f64> = op.frequencies().iter().zip(&plain).map(|(s, p)| p / s).collect();
    assert_eq!((ratio[0], ratio[63]), (1.0, 8.0));
    assert!(ratio.iter().any(|r| *r > 1.1 && *r < 7.9) && ratio.is_sorted());
    let scaling = Scaling::Yarn {
        factor: 4.0,
        original: 4096.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        magnitude: 1.25,
        whole: true,
    };
    let op = Rope { scaling, theta: 1e4, ..op };
    let plain = Rope { scaling: Scaling::None, ..op.clone() }.frequencies();
    let ratio: Vec<f64> = op.frequencies().iter().zip(&plain).map(|(s, p)| p / s).collect();
    assert_eq!(ratio[0], 1.0);
    assert!((ratio[63] - 4.0).abs() < 1e-12);
    assert!(ratio.iter().any(|r| *r > 1.1 && *r < 3.9) && ratio.is_sorted());
    let table = RopeTable::new(&op, None);
    let (mut cos, mut sin) = (vec![0.0; table.pairs()], vec![0.0; table.pairs()]);
    table.fill(0, &mut cos, &mut sin);
    assert_eq!(table.pairs(), 64);
    assert!(cos.iter().all(|c| *c == 1.25) && sin.iter().all(|s| *s == 0.0), "the magnitude is on both");
}

const ATTEND: &str = "
program decode ctx=CTX
  x   : [n, WIDTH]
  pos : index
  k   : [CTX, KV]
  v   : [CTX, KV]
  wk  : [KV, WIDTH] @ \"wk\"
  wv  : [KV, WIDTH] @ \"wv\"
  k[pos .. pos+n] = linear(x, wk)
  v[pos .. pos+n] = linear(x, wv)
  return attend(x, k[.. pos+n], v[.. pos+n], heads: HEADS, kv_heads: GROUPS, scale: SCALE)
";

fn attend(ctx: usize, heads: usize, groups: usize, dim: usize, scale: f64) -> String {
    let sizes = [
        ("CTX", ctx.to_string()),
        ("WIDTH", (heads * dim).to_string()),
        ("KV", (groups * dim).to_string()),
        ("HEADS", heads.to_string()),
        ("GROUPS", groups.to_string()),
        ("SCALE", scale.to_string()),
    ];
    sizes.iter().fold(ATTEND.to_owned(), |text, (key, value)| text.replace(key, value))
}

#[test]
fn attention_by_hand() {
    // One head of size 1, keys and values the inputs themselves. Row 0 sees itself; row 1 weighs keys 1 and 0
    // by e^(2·1·1) and e^0, with 0.5 as scale: e^1 to e^0.
    let weights = Weights::of(&[("wk", &[1, 1], &[1.0]), ("wv", &[1, 1], &[10.0])]);
    let y = once(&attend(4, 1, 1, 1, 0.5), &weights, 0, 2, &[0.0, 2.0]);
    let (a, b) = (1.0, (0.5f64 * 2.0 * 2.0).exp());
    close(&y, &[0.0, (0.0 * a + 20.0 * b) / (a + b)]);
}

#[test]
fn attention_is_causal_and_grouped() {
    let (ctx, heads, groups, dim, scale) = (12, 6, 3, 4, 0.7);
    let width = heads * dim;
    let weights = Weights::random(11, &[("wk", &[groups * dim, width]), ("wv", &[groups * dim, width])]);
    let x = Draw(4).values(7 * width);
    let found = once(&attend(ctx, heads, groups, dim, scale), &weights, 0, 7, &x);
    let project = |w: &[f32], row: usize, o: usize| -> f64 {
        // The cache holds F32.
        let dot: f64 = (0..width).map(|k| f64::from(x[row * width + k]) * f64::from(w[o * width + k])).sum();
        f64::from(dot as f32)
    };
    let (wk, wv) = (weights.values("wk"), weights.values("wv"));
    let mut wanted = Vec::new();
    for row in 0..7 {
        for h in 0..heads {
            let group = h * groups / heads;
            // The softmax without the usual shift: scores here are small.
            let score = |j: usize| -> f64 {
                let dot = |d| f64::from(x[row * width + h * dim + d]) * project(&wk, j, group * dim + d);
                (scale * (0..dim).map(dot).sum::<f64>()).exp()
            };
            let weights: Vec<f64> = (0..=row).map(score).collect();
            for d in 0..dim {
                let sum: f64 = (0..=row).map(|j| weights[j] * project(&wv, j, group * dim + d)).sum();
                wanted.push(sum / weights.iter().sum::<f64>());
            }
        }
    }
    close(&found, &wanted);
}

#[test]
fn large_scores_do_not_overflow() {
    let weights = Weights::of(&[("wk", &[1, 1], &[1.0]), ("wv", &[1, 1], &[1.0])]);
    let y = once(&attend(4, 1, 1, 1, 1.0), &weights, 0, 3, &[1e3, 2e3, -3e3]);
    assert_eq!(y, [1e3, 2e3, -3e3], "each key wins for the query of its sign");
}
