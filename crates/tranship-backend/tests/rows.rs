//! Operations that take each row on its own, of the reference interpreter: element-wise functions, parts of rows, and
//! the norms, against numbers worked out by hand or a formula written otherwise.

mod common;

use common::{Draw, Weights, close, once};

const NONE: Weights = Weights(Vec::new());

/// One function of `x` `[n, 1]`.
fn of(function: &str, x: &[f32]) -> Vec<f32> {
    once(&format!("program p\n  x : [n, 1]\n  return {function}\n"), &NONE, 0, x.len(), x)
}

#[test]
fn functions_of_one_operand() {
    let x = [0.0, 1.0, -1.0, 0.3, -4.0, 30.0, -30.0];
    let by = |f: &dyn Fn(f64) -> f64| x.iter().map(|v| f(f64::from(*v))).collect::<Vec<f64>>();
    // By way of tanh: sigmoid(x) = (1 + tanh(x / 2)) / 2.
    close(&of("sigmoid(x)", &x), &by(&|x| 0.5 + 0.5 * (x / 2.0).tanh()));
    close(&of("softplus(x)", &x), &by(&|x| (1.0 + x.exp()).ln()));
    close(&of("softplus(x)", &[200.0]), &[200.0]);
    close(&of("relu2(x)", &x), &[0.0, 1.0, 0.0, 0.09, 0.0, 900.0, 0.0]);
    // By the exponential: tanh(y) = 1 − 2 / (e^(2y) + 1).
    let tanh = |y: f64| 1.0 - 2.0 / ((2.0 * y).exp() + 1.0);
    close(&of("softcap(x, cap: 5)", &x), &by(&|x| 5.0 * tanh(x / 5.0)));
    let c = (2.0 / std::f64::consts::PI).sqrt();
    close(&of("gelu_tanh(x)", &x), &by(&|x| 0.5 * x * (1.0 + tanh(c * (x + 0.044715 * x.powi(3))))));
    // Values of the normal distribution, from tables: x · Φ(x).
    let phi = [0.0, 0.841_344_746_068_542_9, 0.158_655_253_931_457_05];
    close(&of("gelu(x)", &x[..3]), &[0.0, phi[1], -phi[2]]);
    close(&of("gelu(x)", &[-4.0, 30.0]), &[-4.0 * 3.167_124_183_311_992e-5, 30.0]);
    assert_eq!(of("scale(x, by: -2.5)", &[2.0, -4.0]), [-5.0, 10.0]);
    assert_eq!(of("clamp(x, min: -1, max: 2)", &[3.0, -7.0, 0.5]), [2.0, -1.0, 0.5]);
    assert_eq!(of("clamp(x, max: 2)", &[3.0, -7.0]), [2.0, -7.0]);
    assert_eq!(of("clamp(x, min: 2)", &[3.0, -7.0]), [3.0, 2.0]);
}

#[test]
fn a_number_meets_its_part_of_a_row() {
    let text =
        |op: &str| format!("program p\n  x : [n, 4]\n  w : [2, 4] @ \"w\"\n  return x {op} linear(x, w)\n");
    // The parts' numbers are elements 0 and 3 of the row.
    let weights = Weights::of(&[("w", &[2, 4], &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])]);
    let x = [2.0, 3.0, 4.0, 5.0, -1.0, 1.0, 0.5, 10.0];
    assert_eq!(once(&text("*"), &weights, 0, 2, &x), [4.0, 6.0, 20.0, 25.0, 1.0, -1.0, 5.0, 100.0]);
    assert_eq!(once(&text("+"), &weights, 0, 2, &x), [4.0, 5.0, 9.0, 10.0, -2.0, 0.0, 10.5, 20.0]);
}

#[test]
fn columns_are_moved_as_they_are() {
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0];
    let run = |body: &str| once(&format!("program p\n  x : [n, 6]\n  return {body}\n"), &NONE, 0, 2, &x);
    assert_eq!(run("slice(x, from: 1, to: 3)"), [2.0, 3.0, 8.0, 9.0]);
    assert_eq!(run("slice(x, heads: 2, from: 1, to: 3)"), [2.0, 3.0, 5.0, 6.0, 8.0, 9.0, 11.0, 12.0]);
    assert_eq!(run("slice(x, heads: 3, to: 1)"), [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]);
    assert_eq!(run("tile(slice(x, to: 2), times: 2)"), [1.0, 2.0, 1.0, 2.0, 7.0, 8.0, 7.0, 8.0]);
}

#[test]
fn norms_of_parts_with_and_without_gains() {
    // Parts (3, 4) and (6, 8): mean squares 12.5 and 50, lengths 5 and 10.
    let x = [3.0, 4.0, 6.0, 8.0];
    let run = |body: &str, g: &[f32]| {
        let declared = if g.is_empty() { String::new() } else { format!("  g : [{}] @ \"g\"\n", g.len()) };
        let weights = Weights::of(&[("g", &[g.len().max(1)], if g.is_empty() { &[0.0] } else { g })]);
        once(&format!("program p\n  x : [n, 4]\n{declared}  return {body}\n"), &weights, 0, 1, &x)
    };
    let root = 12.5f64.sqrt();
    let unit = [3.0 / root, 4.0 / root, 3.0 / root, 4.0 / root];
    close(&run("rms_norm(x, eps: 0, heads: 2)", &[]), &unit);
    let scaled = |g: [f64; 4]| unit.iter().zip(g).map(|(u, g)| u * g).collect::<Vec<f64>>();
    // A gain of one part meets every part; one of the whole row, its own element.
    close(&run("rms_norm(x, g, eps: 0, heads: 2)", &[2.0, -1.0]), &scaled([2.0, -1.0, 2.0, -1.0]));
    close(&run("rms_norm(x, g, eps: 0, heads: 2)", &[2.0, -1.0, 0.5, 3.0]), &scaled([2.0, -1.0, 0.5, 3.0]));
    close(&run("rms_norm(x, g, eps: 0, heads: 2, offset: 1)", &[0.5, -1.0]), &scaled([1.5, 0.0, 1.5, 0.0]));
    close(&run("l2_norm(x, eps: 0, heads: 2)", &[]), &[0.6, 0.8, 0.6, 0.8]);
    // 9 + 16 + 36 + 64 = 125.
    let length = (125.0f64 + 0.5).sqrt();
    close(&run("l2_norm(x, eps: 0.5)", &[]), &x.map(|v| f64::from(v) / length));
}

#[test]
fn log_decay_is_minus_a_rate_times_softplus() {
    let text = |form: &str| {
        format!(
            "program p\n  x : [n, 4]\n  a : [2] @ \"a\"\n  b : [4] @ \"b\"\n  return log_decay(x, a, b{form})\n"
        )
    };
    let (a, b) = ([0.5f32, -1.0], [0.25f32, -0.5, 1.0, 0.0]);
    let weights = Weights::of(&[("a", &[2], &a), ("b", &[4], &b)]);
    let x = Draw(8).values(8);
    let soft = |i: usize| (1.0 + (f64::from(x[i]) + f64::from(b[i % 4])).exp()).ln();
    let wanted = |rate: [f64; 2]| (0..8).map(|i| -rate[i % 4 / 2] * soft(i)).collect::<Vec<f64>>();
    close(&once(&text(""), &weights, 0, 2, &x), &wanted([0.5f64.exp(), (-1.0f64).exp()]));
    close(&once(&text(", form: negative"), &weights, 0, 2, &x), &wanted([-0.5, 1.0]));
}

#[test]
fn streams_are_gated_collapsed_and_expanded() {
    // Two streams, all gates from a projection that is the row itself.
    let text = |body: &str| {
        format!(
            "program p\n  x : [n, 8]\n  base : [8] @ \"base\"\n  scale : [3] @ \"scale\"\n  g = stream_gates(x, base, scale, streams: 2, iterations: ROUNDS, eps: 0.125)\n  return {body}\n"
        )
    };
    let (base, scale) = ([0.5f32, -0.5, 0.25, 0.0, 1.0, 0.0, 0.0, -1.0], [2.0f32, 0.5, -1.0]);
    let weights = Weights::of(&[("base", &[8], &base), ("scale", &[3], &scale)]);
    let x = [1.0f32, -2.0, 0.5, 0.25, 0.75, -1.0, 0.0, 2.0];
    let at = |i: usize, part: usize| f64::from(scale[part]) * f64::from(x[i]) + f64::from(base[i]);
    let sigmoid = |v: f64| 0.5 + 0.5 * (v / 2.0).tanh();
    let pre = [0, 1].map(|i| sigmoid(at(i, 0)) + 0.125);
    let post = [2, 3].map(|i| 2.0 * sigmoid(at(i, 1)));
    // A softmax of two is a sigmoid of their difference.
    let first = |a: usize| sigmoid(at(a, 2) - at(a + 1, 2));
    let mut mix = [first(4) + 0.125, 1.125 - first(4), first(6) + 0.125, 1.125 - first(6)];
    let columns = |m: [f64; 4]| {
        let sums = [m[0] + m[2] + 0.125, m[1] + m[3] + 0.125];
        [m[0] / sums[0], m[1] / sums[1], m[2] / sums[0], m[3] / sums[1]]
    };
    let rows = |m: [f64; 4]| {
        let sums = [m[0] + m[1] + 0.125, m[2] + m[3] + 0.125];
        [m[0] / sums[0], m[1] / sums[0], m[2] / sums[1], m[3] / sums[1]]
    };
    mix = columns(mix);
    let gates = |mix: [f64; 4]| [&pre[..], &post, &mix].concat();
    close(&once(&text("g").replace("ROUNDS", "1"), &weights, 0, 1, &x), &gates(mix));
    mix = columns(rows(columns(rows(mix))));
    close(&once(&text("g").replace("ROUNDS", "3"), &weights, 0, 1, &x), &gates(mix));

    // The head has a gate for each stream alone.
    let head = "program p\n  x : [n, 2]\n  base : [2] @ \"base\"\n  scale : [1] @ \"scale\"\n  return stream_gates(x, base, scale, streams: 2, eps: 0.125)\n";
    let few = Weights::of(&[("base", &[2], &base[..2]), ("scale", &[1], &scale[..1])]);
    close(&once(head, &few, 0, 1, &x[..2]), &pre);

    // Rows of two streams of four: y = pre · x, z[s] = post[s] · y + Σ_t mix[t][s] · x[t].
    let found = once(&text("stream_collapse(x, g, streams: 2)").replace("ROUNDS", "3"), &weights, 0, 1, &x);
    let y: Vec<f64> = (0..4).map(|d| pre[0] * f64::from(x[d]) + pre[1] * f64::from(x[4 + d])).collect();
    close(&found, &y);
    let body = "stream_expand(x, stream_collapse(x, g, streams: 2), g, streams: 2)";
    let found = once(&text(body).replace("ROUNDS", "3"), &weights, 0, 1, &x);
    let z = |s: usize, d: usize| post[s] * y[d] + mix[s] * f64::from(x[d]) + mix[2 + s] * f64::from(x[4 + d]);
    let wanted: Vec<f64> = (0..8).map(|i| z(i / 4, i % 4)).collect();
    close(&found, &wanted);
}
