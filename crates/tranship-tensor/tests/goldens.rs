//! Conversions against goldens from other implementations: block decoding from the `gguf` Python package, scalar
//! tables and rounding from `ml_dtypes`. NaN is equal to NaN; everything else is compared bit for bit.

use safetensors::{SafeTensors, tensor::TensorView};
use std::{fs, path::Path};
use tranship_dtype::{DType, Encoding};
use tranship_tensor::{decode, encode};

fn read(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/dtype").join(name);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn f32s(view: &TensorView) -> Vec<f32> {
    view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn codes(view: &TensorView) -> Vec<u32> {
    let width = view.data().len() / view.shape()[0];
    let code = |b: &[u8]| b.iter().rev().fold(0, |code, &b| code << 8 | u32::from(b));
    view.data().chunks_exact(width).map(code).collect()
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// Bytes that hold these codes of a float of at most 16 bits, one after the other.
fn packed(dtype: DType, codes: &[u32]) -> Vec<u8> {
    let (bits, one) = dtype.bits();
    assert_eq!(one, 1);
    let mut bytes = vec![0; (codes.len() * bits).div_ceil(8)];
    for (i, code) in codes.iter().enumerate() {
        for bit in 0..bits {
            let at = i * bits + bit;
            bytes[at / 8] |= ((code >> bit & 1) as u8) << (at % 8);
        }
    }
    bytes
}

#[test]
fn blocks_decode_as_the_gguf_package_does() {
    for encoding in Encoding::ALL {
        let file = read(&format!("{encoding}.safetensors"));
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let (blocks, values) = (tensors.tensor("blocks").unwrap(), tensors.tensor("values").unwrap());
        let values = f32s(&values);
        assert_eq!(values.len(), blocks.shape()[0] * encoding.block_len(), "{encoding}");
        let (mut finite, mut extreme) = (0, 0);
        let mut out = vec![0.0; values.len()];
        decode(encoding.into(), blocks.data(), &mut out).unwrap();
        for (i, (&ours, &golden)) in out.iter().zip(&values).enumerate() {
            let (block, element) = (i / encoding.block_len(), i % encoding.block_len());
            assert!(
                same(ours, golden),
                "{encoding}: block {block}, element {element}: wanted {golden:e}, found {ours:e}"
            );
            if golden.is_normal() { finite += 1 } else { extreme += 1 }
        }
        assert!(finite > 300 && extreme > 60, "{encoding}: the goldens are one-sided: {finite}, {extreme}");
    }
}

const SMALL: [(DType, &str); 6] = [
    (DType::F8E4M3, "f8_e4m3"),
    (DType::F8E5M2, "f8_e5m2"),
    (DType::F8E8M0, "f8_e8m0"),
    (DType::F6E2M3, "f6_e2m3"),
    (DType::F6E3M2, "f6_e3m2"),
    (DType::F4E2M1, "f4_e2m1"),
];

#[test]
fn small_floats_decode_as_ml_dtypes_does() {
    let file = read("scalars.safetensors");
    let tensors = SafeTensors::deserialize(&file).unwrap();
    for (dtype, name) in SMALL {
        let values = f32s(&tensors.tensor(&format!("{name}.values")).unwrap());
        assert_eq!(values.len(), 1 << dtype.bits().0, "{dtype}");
        let all: Vec<u32> = (0..values.len() as u32).collect();
        let mut out = vec![0.0; values.len()];
        decode(dtype, &packed(dtype, &all), &mut out).unwrap();
        for (code, (&ours, &golden)) in out.iter().zip(&values).enumerate() {
            assert!(same(ours, golden), "{dtype} code {code:#x}: wanted {golden:e}, found {ours:e}");
        }
    }
}

/// What we say where `ml_dtypes` overflows to NaN, or turns what has no code into NaN or zero: the documented table.
fn documented(dtype: DType, x: f32) -> Option<f32> {
    let max = match dtype {
        DType::F8E4M3 => 448.0,
        DType::F6E2M3 => 7.5,
        DType::F6E3M2 => 28.0,
        DType::F4E2M1 => 6.0,
        DType::F8E8M0 if x == 0.0 => return Some(2f32.powi(-127)),
        DType::F8E8M0 if x < 0.0 || x.is_nan() => return Some(f32::NAN),
        // Between its two smallest values `ml_dtypes` does not give the nearer one.
        DType::F8E8M0 if x < 1.5 * 2f32.powi(-127) => return Some(2f32.powi(-127)),
        DType::F8E8M0 => return (x > 2f32.powi(127)).then_some(2f32.powi(127)),
        _ => return None,
    };
    (x.abs() > max).then_some(max.copysign(x))
}

#[test]
fn floats_round_as_ml_dtypes_does() {
    let file = read("scalars.safetensors");
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let inputs = f32s(&tensors.tensor("convert.input").unwrap());
    assert!(inputs.len() > 2000);
    for (dtype, name) in SMALL.into_iter().chain([(DType::F16, "f16"), (DType::BF16, "bf16")]) {
        let golden = codes(&tensors.tensor(&format!("convert.{name}")).unwrap());
        let mut checked = 0;
        for (&x, &code) in inputs.iter().zip(&golden) {
            let group = dtype.block_len();
            let mut bytes = vec![0; dtype.block_bytes()];
            let result = encode(dtype, &vec![x; group], &mut bytes);
            if x.is_nan() && matches!(dtype, DType::F6E2M3 | DType::F6E3M2 | DType::F4E2M1) {
                assert!(result.is_err(), "{dtype}");
                continue;
            }
            result.unwrap();
            let mut ours = vec![0.0; group];
            decode(dtype, &bytes, &mut ours).unwrap();
            let wanted = documented(dtype, x).unwrap_or_else(|| {
                checked += 1;
                let mut values = vec![0.0; group];
                decode(dtype, &packed(dtype, &vec![code; group]), &mut values).unwrap();
                values[0]
            });
            for ours in ours {
                assert!(same(ours, wanted), "{x:e} to {dtype}: wanted {wanted:e}, found {ours:e}");
            }
        }
        assert!(checked > 500, "{dtype}: only {checked} inputs compared with the goldens");
    }
}
