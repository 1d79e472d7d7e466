//! Frequencies of rotary embeddings, against values computed in Python from the formulas as the papers' and the
//! models' released code has them.

use tranship_program::ops::Op;
use tranship_program::{Action, Program};

/// Holds the frequencies of a rope with these attributes to eight known ones, within rounding.
fn check(attrs: &str, wanted: [f64; 8]) {
    let call = format!("rope(x, pos, heads: 1, dims: 16, {attrs})");
    let text = format!("program p\n  x : [n, 16]   pos : index\n  return {call}\n");
    let graph = Program::parse(&text).and_then(|p| p.lift()).unwrap_or_else(|e| panic!("{attrs}: {e}"));
    let Action::Apply { op: Op::Rope(rope), .. } = &graph.nodes[0].action else { panic!("{graph}") };
    let found = rope.frequencies();
    let near = |(found, wanted): (&f64, &f64)| (found / wanted - 1.0).abs() < 1e-12;
    assert!(found.len() == 8 && found.iter().zip(&wanted).all(near), "{attrs}: {found:?}, wanted {wanted:?}");
}

#[test]
fn frequencies_of_each_scaling() {
    let tenths = [0, 1, 2, 3, 4, 5, 6, 7].map(|j| 10f64.powf(-f64::from(j) / 2.0));
    check("theta: 1e4", tenths);
    check("theta: 1e4, scaling: linear, factor: 4", tenths.map(|f| f / 4.0));
    check(
        "theta: 5e5, scaling: llama3, factor: 8, low: 1, high: 4, original: 8192",
        [
            1.0,
            0.19392274474868576,
            0.03760603093086393,
            0.0072926647372171085,
            0.0005248461609929547,
            3.428102195952591e-05,
            6.647869871181236e-06,
            1.2891731721515574e-06,
        ],
    );
    check(
        "theta: 1e4, scaling: yarn, factor: 4, original: 2048, magnitude: 1",
        [
            1.0,
            0.31622776601683794,
            0.1,
            0.02569350598886808,
            0.00625,
            0.0013834964763236657,
            0.00025,
            7.905694150420948e-05,
        ],
    );
    check(
        "theta: 1e4, scaling: yarn, factor: 4, original: 2048, magnitude: 1, ramp: exact",
        [
            1.0,
            0.31622776601683794,
            0.1,
            0.023870192321736323,
            0.005056971521129435,
            0.000811290381701431,
            0.00025,
            7.905694150420948e-05,
        ],
    );
    check(
        "theta: 1e4, scaling: listed, divisors: [1, 2, 3, 4, 5, 6, 7, 8.5], magnitude: 1",
        [
            1.0,
            0.15811388300841897,
            0.03333333333333333,
            0.007905694150420948,
            0.002,
            0.0005270462766947299,
            0.00014285714285714287,
            3.720326659021623e-05,
        ],
    );
}
