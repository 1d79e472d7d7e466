//! The join of two float types holds every value of both, exactly: all code points of the types up to 16 bits, and
//! the edges of F32 and F64.

use std::collections::HashSet;
use tranship_dtype::{Class, DType, join};
use tranship_tensor::Tensor;

/// A tensor with every code of a type of at most 16 bits, or with the edges of a wider one.
fn every_value(dtype: DType) -> Tensor {
    let (bits, _) = dtype.bits();
    match (dtype, bits) {
        (DType::F32, _) => Tensor::from_f32(&[12], &EDGES),
        (DType::F64, _) => {
            let mut wide: Vec<f64> = EDGES.into_iter().map(f64::from).collect();
            wide.extend([f64::MAX, f64::MIN_POSITIVE, f64::from_bits(1), 0.1]);
            Tensor::from_slice(&[16], &wide)
        }
        (_, 16) => {
            let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            Tensor::new(dtype, &[1 << 16], &bytes)
        }
        (_, 8) => Tensor::new(dtype, &[256], &(0..=255).collect::<Vec<u8>>()),
        (_, 4) => {
            Tensor::new(dtype, &[16], &(0..8).map(|i| (2 * i) | ((2 * i + 1) << 4)).collect::<Vec<u8>>())
        }
        _ => {
            let word = |i: u32| (0..4).fold(0, |word, k| word | (4 * i + k) << (6 * k));
            let bytes: Vec<u8> = (0..16).flat_map(|i| word(i).to_le_bytes().into_iter().take(3)).collect();
            Tensor::new(dtype, &[64], &bytes)
        }
    }
    .unwrap()
}

const EDGES: [f32; 12] = [
    0.0,
    -0.0,
    1.0,
    -0.1,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-40,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

/// The values as F64 bits, NaN made canonical.
fn exact(tensor: &Tensor) -> Vec<u64> {
    let wide = tensor.cast(DType::F64).unwrap();
    let values = wide.as_slice::<f64>().unwrap();
    values.iter().map(|x| if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() }).collect()
}

#[test]
fn the_join_of_floats_is_exact() {
    let floats: Vec<DType> = DType::ALL.into_iter().filter(|d| d.class() == Class::Float).collect();
    assert_eq!(floats.len(), 10);
    for &a in &floats {
        let values = every_value(a);
        let wanted = exact(&values);
        let distinct: HashSet<_> = wanted.iter().collect();
        assert!(distinct.len() * 4 > wanted.len() * 3, "{a}: too few codes are distinct to show anything");
        for &b in &floats {
            let joined = join(a, b).unwrap();
            let held = values.cast(joined).unwrap();
            assert_eq!(exact(&held), wanted, "{a} in {a} ⊔ {b} = {joined}");
            // And back again: nothing was lost on the way.
            assert_eq!(exact(&held.cast(a).unwrap()), wanted, "{a} back from {joined}");
        }
    }
}

/// With one exception: BF16 holds every F8E5M2, but is not counted as above it, because then F8E4M3 ⊔ F8E5M2 would
/// have two least bounds, F16 and BF16.
#[test]
fn the_join_of_floats_is_the_smallest_that_would_do() {
    let floats: Vec<DType> = DType::ALL.into_iter().filter(|d| d.class() == Class::Float).collect();
    let holds = |c: DType, a: DType| {
        let values = every_value(a);
        values.cast(c).is_ok_and(|held| exact(&held) == exact(&values))
    };
    assert!(holds(DType::BF16, DType::F8E5M2));
    let held: HashSet<(DType, DType)> = floats
        .iter()
        .flat_map(|&a| floats.iter().map(move |&c| (a, c)))
        .filter(|&(a, c)| (a, c) != (DType::F8E5M2, DType::BF16) && holds(c, a))
        .collect();
    for &a in &floats {
        for &b in &floats {
            let joined = join(a, b).unwrap();
            for &c in &floats {
                assert_eq!(
                    held.contains(&(a, c)) && held.contains(&(b, c)),
                    joined.fits_in(c),
                    "{a} ⊔ {b} = {joined}, and {c}"
                );
            }
        }
    }
}
