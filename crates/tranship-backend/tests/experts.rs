//! Routing and experts on the reference interpreter, against numbers worked out by hand and a formula written
//! otherwise.

mod common;

use common::{Draw, Weights, bits, close, compile, once, parity, run};
use tranship_backend::Input;
use tranship_dtype::DType;
use tranship_tensor::Tensor;

/// Weights of 6 experts whose logits are the row itself.
fn route(attributes: &str, bias: Option<&[f32]>, logits: &[f32]) -> Vec<f32> {
    let mut eye = [0f32; 36];
    (0..6).for_each(|i| eye[i * 7] = 1.0);
    let weights = Weights::of(&[("w", &[6, 6], &eye), ("b", &[6], bias.unwrap_or(&[0.0; 6]))]);
    let (declared, operand) = if bias.is_some() { ("  b : [6] @ \"b\"\n", ", b") } else { ("", "") };
    let text = format!(
        "program p\n  x : [n, 6]\n  w : [6, 6] @ \"w\"\n{declared}  return route(x, w{operand}, {attributes})\n"
    );
    once(&text, &weights, 0, logits.len() / 6, logits)
}

fn softmax(of: &[f64]) -> Vec<f64> {
    let total: f64 = of.iter().map(|l| l.exp()).sum();
    of.iter().map(|l| l.exp() / total).collect()
}

fn sigmoid(x: f64) -> f64 {
    0.5 + 0.5 * (x / 2.0).tanh()
}

#[test]
fn scores_in_every_form() {
    let logits = [1.0f32, -0.5, 2.0, 0.25, 2.0, -3.0];
    let exact = logits.map(f64::from);
    let p = softmax(&exact);
    close(&route("top_k: 2, score: softmax", None, &logits), &[0.0, 0.0, p[2], 0.0, p[4], 0.0]);
    // Softmax over the chosen alone is softmax over all, normalized.
    let few = softmax(&[1.0, 2.0, 2.0]);
    let found = route("top_k: 3, score: softmax, normalize: yes", None, &logits);
    close(&found, &[few[0], 0.0, few[1], 0.0, few[2], 0.0]);
    // Of equal ones the earlier.
    close(&route("top_k: 1, score: softmax", None, &logits), &[0.0, 0.0, p[2], 0.0, 0.0, 0.0]);
    let found = route("top_k: 2, score: sigmoid, scale: 2.5", None, &logits);
    let s = 2.5 * sigmoid(2.0);
    close(&found, &[0.0, 0.0, s, 0.0, s, 0.0]);
    let root = |l: f64| (1.0 + l.exp()).ln().sqrt();
    let total = root(1.0) + 2.0 * root(2.0) + 0.5;
    let found = route("top_k: 3, score: sqrt_softplus, normalize: yes, eps: 0.5, scale: 3", None, &logits);
    let (one, two) = (3.0 * root(1.0) / total, 3.0 * root(2.0) / total);
    close(&found, &[one, 0.0, two, 0.0, two, 0.0]);
}

#[test]
fn biases_of_logits_and_of_the_choice() {
    let (logits, bias) = ([1.0f32, -0.5, 2.0, 0.25, 1.5, -3.0], [0.0f32, 0.0, -9.0, 0.0, 0.0, 9.0]);
    let biased: Vec<f64> = logits.iter().zip(bias).map(|(l, b)| f64::from(l + b)).collect();
    let p = softmax(&biased);
    let found = route("top_k: 2, score: softmax, bias: logits", Some(&bias), &logits);
    close(&found, &[0.0, 0.0, 0.0, 0.0, p[4], p[5]]);
    // The bias chooses, and the weights are without it.
    let found = route("top_k: 2, score: sigmoid, bias: choice", Some(&bias), &logits);
    close(&found, &[0.0, 0.0, 0.0, 0.0, sigmoid(1.5), sigmoid(-3.0)]);
}

#[test]
fn groups_open_by_their_two_best_or_their_best() {
    let logits = [3.0f32, -5.0, -5.0, 1.0, 1.5, 2.0];
    let s = |i: usize| sigmoid(f64::from(logits[i]));
    // Groups (3, −5), (−5, 1), (1.5, 2): by the sum of two best the last, by the best the first.
    let found = route("top_k: 1, score: sigmoid, groups: 3, top_groups: 1", None, &logits);
    close(&found, &[0.0, 0.0, 0.0, 0.0, 0.0, s(5)]);
    let found = route("top_k: 2, score: sigmoid, groups: 3, top_groups: 1, group_score: max", None, &logits);
    close(&found, &[s(0), s(1), 0.0, 0.0, 0.0, 0.0]);
    let found = route("top_k: 3, score: sigmoid, groups: 3, top_groups: 2", None, &logits);
    close(&found, &[s(0), 0.0, 0.0, 0.0, s(4), s(5)]);
}

#[test]
fn a_table_names_the_experts_of_a_token() {
    let text = "
program p
  tokens : index [n]
  t      : [4, 3] @ \"t\"
  w      : [3, 3] @ \"w\"
  table  : [5, 2] @ \"table\"
  return route_by_table(gather(t, tokens), w, table, tokens, top_k: 2, score: sigmoid, normalize: yes, scale: 2)
";
    let mut weights = Weights::random(4, &[("t", &[4, 3]), ("w", &[3, 3])]);
    for dtype in [DType::I64, DType::I32, DType::F32] {
        let listed = [2i32, 0, 1, 2, 2, 2, 1, 0, 2, 2];
        let bytes: Vec<u8> = match dtype {
            DType::I64 => listed.iter().flat_map(|e| i64::from(*e).to_le_bytes()).collect(),
            DType::I32 => listed.iter().flat_map(|e| e.to_le_bytes()).collect(),
            _ => listed.iter().flat_map(|e| (*e as f32).to_le_bytes()).collect(),
        };
        weights.0.retain(|(name, _)| *name != "table");
        weights.0.push(("table", Tensor::new(dtype, &[5, 2], &bytes).unwrap()));
        let mut step = compile(&[text], &weights, &parity());
        let mut state = step.new_state().unwrap();
        let tokens = [3u32, 1, 0];
        let found = run(step.as_mut(), state.as_mut(), 0, 3, Input::Tokens(&tokens));
        let (t, w) = (weights.values("t"), weights.values("w"));
        let mut wanted = Vec::new();
        for token in tokens.map(|t| t as usize) {
            let p = |e: usize| {
                let logit = (0..3).map(|k| f64::from(t[token * 3 + k]) * f64::from(w[e * 3 + k]));
                sigmoid(logit.sum())
            };
            let mut row = [0.0; 3];
            let (a, b) = (listed[token * 2] as usize, listed[token * 2 + 1] as usize);
            (row[a], row[b]) = (2.0 * p(a) / (p(a) + p(b)), 2.0 * p(b) / (p(a) + p(b)));
            wanted.extend(row);
        }
        close(&found, &wanted);
        // The same in two programs: the second gets the chain's tokens beside its rows.
        let (embed, routed) = (
            "program embed\n  tokens : index [n]\n  t : [4, 3] @ \"t\"\n  return gather(t, tokens)\n",
            text.replace("  t      : [4, 3] @ \"t\"", "  x      : [n, 3]").replace("gather(t, tokens)", "x"),
        );
        let mut step = compile(&[embed, &routed], &weights, &parity());
        for splits in [&[3][..], &[1, 2], &[2, 1]] {
            let mut state = step.new_state().unwrap();
            let (mut parts, mut first) = (Vec::new(), 0);
            for rows in splits {
                let input = Input::Tokens(&tokens[first..first + rows]);
                parts.extend(run(step.as_mut(), state.as_mut(), first, *rows, input));
                first += rows;
            }
            assert_eq!(bits(&parts), bits(&found));
        }
        // And in two chains: the second gets the tokens beside its rows.
        let (mut first, mut second) =
            (compile(&[embed], &weights, &parity()), compile(&[&routed], &weights, &parity()));
        let (mut here, mut there) = (first.new_state().unwrap(), second.new_state().unwrap());
        let rows = run(first.as_mut(), here.as_mut(), 0, 3, Input::Tokens(&tokens));
        let input = Input::RowsAndTokens(&rows, &tokens);
        assert_eq!(bits(&run(second.as_mut(), there.as_mut(), 0, 3, input)), bits(&found));
        // Listed twice, an expert has the whole weight.
        let mut state = step.new_state().unwrap();
        assert_eq!(run(step.as_mut(), state.as_mut(), 0, 1, Input::Tokens(&[2])), [0.0, 0.0, 2.0]);
    }
}

const EXPERTS: &str = "
program p
  x    : [n, 5]
  w    : [3, 5] @ \"w\"
  gate : [3, 4, 5] @ \"gate\"
  up   : [3, 4, 5] @ \"up\"
  down : [3, 2, 4] @ \"down\"
";
const BIASES: &str = "  gb : [3, 4] @ \"gb\"\n  ub : [3, 4] @ \"ub\"\n  db : [3, 2] @ \"db\"\n";

/// `experts` with these operands and attributes, and what a formula over dense experts gives with `act`.
fn check(operands: &str, biased: bool, attributes: &str, limit: f64, act: impl Fn(f64, f64) -> f64) {
    let shapes: [(&'static str, &[usize]); 7] = [
        ("w", &[3, 5]),
        ("gate", &[3, 4, 5]),
        ("up", &[3, 4, 5]),
        ("down", &[3, 2, 4]),
        ("gb", &[3, 4]),
        ("ub", &[3, 4]),
        ("db", &[3, 2]),
    ];
    let weights = Weights::random(21, &shapes);
    let mut text = format!("{EXPERTS}{}", if biased { BIASES } else { "" });
    if !operands.contains("gate") {
        text = text.replace("  gate : [3, 4, 5] @ \"gate\"\n", "");
    }
    text += "  r = route(x, w, top_k: 2, score: softmax)\n";
    text += &format!("  return experts(x, r, {operands}, top_k: 2, {attributes})\n");
    let x: Vec<f32> = Draw(2).values(15).iter().map(|v| v * 3.0).collect();
    let found = once(&text, &weights, 0, 3, &x);
    let value = |name: &str, i: usize| f64::from(weights.values(name)[i]);
    let bias = |name: &str, i: usize| if biased { value(name, i) } else { 0.0 };
    let mut wanted = Vec::new();
    for row in x.chunks(5) {
        let dot = |name: &str, o: usize| -> f64 {
            (0..5).map(|k| value(name, o * 5 + k) * f64::from(row[k])).sum()
        };
        let mut r = softmax(&[dot("w", 0), dot("w", 1), dot("w", 2)]);
        let least = (0..3).min_by(|a, b| r[*a].total_cmp(&r[*b])).unwrap();
        r[least] = 0.0;
        for o in 0..2 {
            let expert = |e: usize| {
                let unit = |i: usize| {
                    let g = (dot("gate", e * 4 + i) + bias("gb", e * 4 + i)).min(limit);
                    let u = (dot("up", e * 4 + i) + bias("ub", e * 4 + i)).max(-limit).min(limit);
                    act(g, u) * value("down", (e * 2 + o) * 4 + i)
                };
                // The weight is rounded to F32 on its way.
                f64::from(r[e] as f32) * ((0..4).map(unit).sum::<f64>() + bias("db", e * 2 + o))
            };
            wanted.push((0..3).map(expert).sum());
        }
    }
    close(&found, &wanted);
}

#[test]
fn experts_are_weighted_and_added() {
    let tanh = |x: f64| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh());
    const ALL: f64 = f64::INFINITY;
    check("gate, up, down", false, "act: silu", ALL, |g, u| g * sigmoid(g) * u);
    check("gate, up, down", false, "act: gelu_tanh", ALL, |g, u| tanh(g) * u);
    check("gate, up, down", false, "act: silu, limit: 0.5", 0.5, |g, u| g * sigmoid(g) * u);
    check("gate, up, down, gb, ub, db", true, "act: silu", ALL, |g, u| g * sigmoid(g) * u);
    let swish = |g: f64, u: f64| g * sigmoid(1.702 * g) * (u + 1.0);
    check("gate, up, down, gb, ub, db", true, "act: swish, alpha: 1.702, limit: 1.5", 1.5, swish);
    check("up, down", false, "act: relu2", ALL, |_, u| u.max(0.0) * u.max(0.0));
}

/// With blocks, what meets `up` and what meets `down` are whole numbers times a scale.
#[test]
fn blocks_meet_both_projections() {
    let text = "
program p
  x    : [n, 32]
  w    : [1, 32] @ \"w\"
  up   : [1, 32, 32] @ \"up\"
  down : [1, 2, 32] @ \"down\"
  r = route(x, w, top_k: 1, score: softmax)
  return experts(x, r, up, down, top_k: 1, act: relu2)
";
    let mut weights = Weights::random(3, &[("w", &[1, 32]), ("up", &[1, 32, 32]), ("down", &[1, 2, 32])]);
    for (name, tensor) in &mut weights.0 {
        if *name != "w" {
            *tensor = tensor.cast(DType::Q8_0).unwrap();
        }
    }
    let x = Draw(12).values(64);
    let ctx = parity().with_activations(tranship_ctx::Activations::Blocks);
    let mut step = compile(&[text], &weights, &ctx);
    let mut state = step.new_state().unwrap();
    let found = run(step.as_mut(), state.as_mut(), 0, 2, Input::Rows(&x));
    let blocks = |row: &[f64]| -> Vec<f64> {
        let top = row.iter().fold(0f32, |m, v| m.max((*v as f32).abs()));
        let d = half::f16::from_f32(top / 127.0).to_f64();
        row.iter().map(|v| f64::from((*v as f32 * (127.0 / top)).round()) * d).collect()
    };
    let (up, down) = (weights.values("up"), weights.values("down"));
    let mut wanted = Vec::new();
    for row in x.chunks(32) {
        let row = blocks(&row.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
        let dot = |w: &[f32], v: &[f64]| w.iter().zip(v).map(|(w, v)| f64::from(*w) * v).sum::<f64>();
        let hidden: Vec<f64> = up.chunks(32).map(|w| dot(w, &row).max(0.0).powi(2)).collect();
        wanted.extend(down.chunks(32).map(|w| dot(w, &blocks(&hidden))));
    }
    close(&found, &wanted);
    assert_ne!(bits(&once(text, &weights, 0, 2, &x)), bits(&found), "the blocks are there");
}
