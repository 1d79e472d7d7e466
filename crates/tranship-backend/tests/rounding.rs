//! Rounding within programs, and how programs come to it: to nearest, ties to even, finite values finite.

mod common;

use common::{Weights, compile, parity, run};
use tranship_backend::{BF16_MAX, BackendError, Input, round_to};
use tranship_dtype::DType;
use tranship_tensor::TensorError;

/// Holds that each value becomes its counterpart, and its negative that one's.
fn check(dtype: DType, cases: &[(f32, f32)]) {
    for sign in [1.0, -1.0] {
        let mut found: Vec<f32> = cases.iter().map(|(value, _)| sign * value).collect();
        round_to(dtype, "v", &mut found).unwrap();
        for ((value, wanted), found) in cases.iter().zip(found) {
            let same = found == sign * wanted || (found.is_nan() && wanted.is_nan());
            assert!(same, "{} to {dtype}: wanted {}, found {found}", sign * value, sign * wanted);
        }
    }
}

#[test]
fn finite_values_stay_finite() {
    const INF: f32 = f32::INFINITY;
    const NAN: f32 = f32::NAN;
    assert_eq!(BF16_MAX, 3.389_531_4e38);
    check(DType::F32, &[(f32::MAX, f32::MAX), (INF, INF), (NAN, NAN), (1e-45, 1e-45)]);
    check(DType::F64, &[(f32::MAX, f32::MAX), (INF, INF), (NAN, NAN), (1e-45, 1e-45)]);
    check(
        DType::F16,
        &[
            (65_504.0, 65_504.0),
            (65_519.0, 65_504.0),
            (65_520.0, 65_504.0),
            (70_000.0, 65_504.0),
            (f32::MAX, 65_504.0),
            (INF, INF),
            (NAN, NAN),
        ],
    );
    check(
        DType::BF16,
        &[(BF16_MAX, BF16_MAX), (f32::MAX, BF16_MAX), (70_000.0, 70_144.0), (INF, INF), (NAN, NAN)],
    );
    check(
        DType::F8E5M2,
        &[
            (57_344.0, 57_344.0),
            (61_439.0, 57_344.0),
            (61_440.0, 57_344.0),
            (1e30, 57_344.0),
            (INF, INF),
            (NAN, NAN),
        ],
    );
    // F8E4M3 has no infinity to keep.
    check(
        DType::F8E4M3,
        &[(448.0, 448.0), (464.0, 448.0), (480.0, 448.0), (f32::MAX, 448.0), (INF, 448.0), (NAN, NAN)],
    );
}

#[test]
fn ties_go_to_even() {
    check(
        DType::F16,
        &[
            (2049.0, 2048.0),
            (2051.0, 2052.0),
            (1.0 + 2f32.powi(-11), 1.0),
            (2f32.powi(-25), 0.0),
            (3e-8, 2f32.powi(-24)),
        ],
    );
    check(DType::BF16, &[(257.0, 256.0), (259.0, 260.0), (257.1, 258.0)]);
    check(DType::F8E4M3, &[(17.0, 16.0), (19.0, 20.0), (436.0, 448.0), (2f32.powi(-10), 0.0)]);
    check(DType::F8E5M2, &[(9.0, 8.0), (11.0, 12.0), (436.0, 448.0), (2f32.powi(-17), 0.0)]);
}

#[test]
fn blocks_are_rounded_by_their_quantizer() {
    let mut values: Vec<f32> = (0..32).map(|i| i as f32 * 4.0).collect();
    round_to(DType::Q8_1, "v", &mut values).unwrap();
    // d = 124 / 127 as F16; each value its nearest multiple.
    let d = half::f16::from_f32(124.0 / 127.0).to_f32();
    for (i, value) in values.iter().enumerate() {
        assert_eq!(*value, (i as f32 * 4.0 * 127.0 / 124.0).round() * d);
    }
    let error = round_to(DType::Q8_1, "h", &mut [0.0; 33]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "h to q8_1: a row of 33 elements is not a whole number of q8_1 blocks of 32"
    );
    let error = round_to(DType::Q6_K, "h", &mut [0.0; 256]).unwrap_err();
    let source = TensorError::NoEncoder(DType::Q6_K);
    assert_eq!(error, BackendError::Convert { value: "h".into(), dtype: DType::Q6_K, source });
    let error = round_to(DType::F4E2M1, "h", &mut [1.0, f32::NAN]).unwrap_err();
    assert_eq!(error.to_string(), "h to f4e2m1: element 1 is NaN, which f4e2m1 cannot hold");
}

#[test]
fn programs_saturate_where_they_round() {
    // 300 · 300 is past F16's range: the product and the cache row hold its largest value.
    let product = "program p\n  x : [n, 2]\n  return x * x\n";
    let cache = "
program decode ctx=4
  x   : [n, 2]
  pos : index
  k   : [4, 2]
  w   : [2, 2] @ \"w\"
  k[pos .. pos+n] = linear(x, w)
  return attend(x, k[.. pos+n], k[.. pos+n], heads: 1, kv_heads: 1, scale: 1)
";
    let weights = Weights::of(&[("w", &[2, 2], &[300.0, 0.0, 0.0, 1.0])]);
    for (text, ctx, wanted) in [
        (product, parity().with_compute(DType::F16), [65_504.0, 1.0]),
        (product, parity().with_compute(DType::F8E4M3), [448.0, 1.0]),
        (product, parity(), [90_000.0, 1.0]),
        (cache, parity().with_kv(DType::F16), [65_504.0, 1.0]),
        (cache, parity().with_kv(DType::F8E5M2), [57_344.0, 1.0]),
        (cache, parity(), [90_000.0, 1.0]),
    ] {
        let mut step = compile(&[text], &weights, &ctx);
        let mut state = step.new_state().unwrap();
        let found = run(step.as_mut(), state.as_mut(), 0, 1, Input::Rows(&[300.0, 1.0]));
        assert_eq!(found, wanted, "{}\n{text}", ctx.numerics());
    }
}
