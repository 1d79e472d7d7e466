//! The quantizers: against goldens of the `gguf` Python package where it has one, by their definition elsewhere, and
//! on values that no block can hold.

use safetensors::SafeTensors;
use tranship_dtype::DType;
use tranship_tensor::{Tensor, TensorError, can_encode, decode, encode};

/// Written by `data/quantize.py`.
static GOLDENS: &[u8] = include_bytes!("data/quantize.safetensors");

fn inputs() -> Vec<f32> {
    let tensors = SafeTensors::deserialize(GOLDENS).unwrap();
    let view = tensors.tensor("input").unwrap();
    view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn encoded(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xAA; dtype.row_bytes(values.len()).unwrap()];
    encode(dtype, values, &mut bytes).unwrap();
    bytes
}

fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    decode(dtype, bytes, &mut values).unwrap();
    values
}

const QUANTIZERS: [DType; 7] =
    [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::Q8_1, DType::Q8_K];

#[test]
fn blocks_are_those_of_the_gguf_package() {
    let tensors = SafeTensors::deserialize(GOLDENS).unwrap();
    let inputs = inputs();
    for dtype in &QUANTIZERS[..5] {
        let golden = tensors.tensor(dtype.name()).unwrap();
        let size = dtype.block_bytes();
        let ours = encoded(*dtype, &inputs);
        assert_eq!(ours.len(), golden.data().len());
        for (i, (ours, golden)) in ours.chunks(size).zip(golden.data().chunks(size)).enumerate() {
            assert_eq!(ours, golden, "{dtype} block {i}: {:?}", &inputs[i * 32..i * 32 + 32]);
        }
    }
}

#[test]
fn sums_are_those_of_the_quants() {
    let inputs = inputs();
    let q8_0 = encoded(DType::Q8_0, &inputs);
    for (i, (one, zero)) in encoded(DType::Q8_1, &inputs).chunks(36).zip(q8_0.chunks(34)).enumerate() {
        assert_eq!((&one[..2], &one[4..]), (&zero[..2], &zero[2..]), "q8_1 is q8_0 with a sum");
        let top = inputs[i * 32..i * 32 + 32].iter().fold(0.0f32, |top, x| top.max(x.abs()));
        let sum: i32 = one[4..].iter().map(|&q| i32::from(q as i8)).sum();
        let s = half::f16::from_le_bytes([one[2], one[3]]);
        assert_eq!(s, half::f16::from_f32(sum as f32 * (top / 127.0)), "block {i}");
    }
    for block in encoded(DType::Q8_K, &inputs[..1024]).chunks(292) {
        for (quants, sum) in block[4..260].chunks(16).zip(block[260..].as_chunks().0) {
            let wanted: i16 = quants.iter().map(|&q| i16::from(q as i8)).sum();
            assert_eq!(i16::from_le_bytes(*sum), wanted);
        }
    }
}

#[test]
fn values_are_within_a_step() {
    let values: Vec<f32> = inputs()[..512].to_vec();
    for dtype in QUANTIZERS {
        let back = decoded(dtype, &encoded(dtype, &values));
        for (xs, ys) in values.chunks(dtype.block_len()).zip(back.chunks(dtype.block_len())) {
            let top = xs.iter().fold(0.0f32, |top, x| top.max(x.abs()));
            // Half a step, and the rounding of scale and minimum to F16 (11 bits); the element opposite to the peak
            // of q4_0 and q5_0 may miss by a whole step, as there is one quant less on its side.
            let step = match dtype {
                DType::Q4_0 => 2.0 * top / 16.0,
                DType::Q5_0 => 2.0 * top / 32.0,
                DType::Q4_1 => top / 15.0,
                DType::Q5_1 => top / 31.0,
                _ => 0.5 * top / 127.0,
            };
            for (x, y) in xs.iter().zip(ys) {
                assert!(
                    (x - y).abs() <= step + top * 1.5e-3,
                    "{dtype}: {x} became {y}, the largest is {top}"
                );
            }
        }
    }
}

#[test]
fn what_is_not_finite_takes_its_block_with_it() {
    for dtype in QUANTIZERS {
        let n = dtype.block_len();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 2 * n];
            values[n + 5] = bad;
            let back = decoded(dtype, &encoded(dtype, &values));
            assert!(back[..n].iter().all(|x| (x - 1.0).abs() < 0.01), "{dtype}: {bad} in another block");
            assert!(back[n..].iter().all(|x| x.is_nan()), "{dtype}: {bad} decodes to {:?}", &back[n..]);
        }
    }
}

#[test]
fn the_ends_of_f32_never_panic() {
    for dtype in QUANTIZERS {
        let n = dtype.block_len();
        for top in [f32::MAX, 1e38, 1e-30, f32::MIN_POSITIVE, 1e-40, f32::from_bits(1), 0.0] {
            let values: Vec<f32> = (0..n).map(|i| if i % 3 == 0 { -top } else { top }).collect();
            let back = decoded(dtype, &encoded(dtype, &values));
            if top > 1e30 && dtype != DType::Q8_K {
                assert!(back.iter().all(|x| !x.is_finite()), "{dtype}: {top:e} became {:?}", &back[..4]);
            } else if top < 1e-20 && dtype != DType::Q8_K {
                assert!(back.iter().all(|x| *x == 0.0), "{dtype}: {top:e} became {:?}", &back[..4]);
            } else if top == f32::MAX {
                // The scale of q8_k is F32; rounded up, 127 of it are beyond the largest number.
                assert!(
                    back.iter().all(|x| x.abs() > 0.99 * top),
                    "{dtype}: {top:e} became {:?}",
                    &back[..4]
                );
            } else if top > 1e-37 {
                for (x, y) in values.iter().zip(&back) {
                    assert!((x - y).abs() <= x.abs() * 0.01, "{dtype}: {x:e} became {y:e}");
                }
            } else {
                assert!(back.iter().all(|x| x.abs() <= top), "{dtype}: {top:e} became {:?}", &back[..4]);
            }
        }
    }
}

#[test]
fn lengths_and_types_are_checked() {
    let mut bytes = [0u8; 34];
    let mut values = [0f32; 32];
    let error = decode(DType::Q8_0, &bytes[..33], &mut values).unwrap_err();
    assert_eq!(error.to_string(), "32 elements of q8_0 take 34 bytes, found 33");
    let error = encode(DType::Q8_0, &values[..31], &mut bytes).unwrap_err();
    assert_eq!(error.to_string(), "a row of 31 elements is not a whole number of q8_0 blocks of 32");
    assert_eq!(decode(DType::I32, &bytes[..4], &mut values[..1]), Err(TensorError::NotReal(DType::I32)));
    for dtype in DType::ALL {
        let tensor = Tensor::from_f32(&[1, 256], &[0.5; 256]).unwrap().cast(dtype);
        assert_eq!(can_encode(dtype), tensor.is_ok(), "{dtype}");
        let wanted = dtype.is_real() && (!matches!(dtype, DType::Block(_)) || QUANTIZERS.contains(&dtype));
        assert_eq!(can_encode(dtype), wanted, "{dtype}");
    }
}
