//! The combinators on tensors: what is cast, to what, and that nothing is when it is there already.

use half::f16;
use std::borrow::Cow;
use std::cell::Cell;
use tranship_ctx::{ComputeCtx, CtxError, Device, cast_if, promote, promoted};
use tranship_dtype::{Class, DType};
use tranship_tensor::{Tensor, TensorError};

fn parity() -> ComputeCtx {
    ComputeCtx::parity(Device::cpu())
}

/// A tensor of every type, 256 elements of value zero.
fn zeros(dtype: DType) -> Tensor {
    Tensor::zeros(dtype, &[256]).expect("a whole number of blocks")
}

#[test]
fn promote_is_the_join_and_never_just_the_left_operand() {
    for a in DType::ALL {
        for b in DType::ALL {
            assert_eq!(promote(a, b).ok(), promote(b, a).ok(), "{a} {b}");
            let Ok(join) = promote(a, b) else { continue };
            assert!(a.fits_in(join) && b.fits_in(join), "{a} ⊔ {b} = {join}");
            if a != b && !b.fits_in(a) {
                assert_ne!(join, a, "{a} ⊔ {b} is the left operand, which does not hold the right");
            }
        }
    }
    for (a, b, wanted) in [
        (DType::U8, DType::I64, Some(DType::I64)),
        (DType::U8, DType::I8, Some(DType::I16)),
        (DType::U32, DType::I32, Some(DType::I64)),
        (DType::U64, DType::I8, None),
        (DType::Bool, DType::U32, Some(DType::U32)),
        (DType::I32, DType::F32, None),
        (DType::Q4_0, DType::Q8_0, Some(DType::F32)),
        (DType::Q4_0, DType::F16, Some(DType::F32)),
        (DType::F16, DType::BF16, Some(DType::F32)),
    ] {
        assert_eq!(promote(a, b).ok(), wanted, "{a} ⊔ {b}");
    }
}

#[test]
fn promoted_casts_only_the_operand_below_the_join() {
    let mask = Tensor::from_slice(&[3], &[0.0, -1.0, -65504.0].map(f16::from_f32)).unwrap();
    let scores = Tensor::from_f32(&[3], &[1e-8, 2.0, 3.0]).unwrap();
    for swap in [false, true] {
        let (a, b) = if swap { (&scores, &mask) } else { (&mask, &scores) };
        let (a, b) = promoted(a, b).unwrap();
        let (mask, kept) = if swap { (b, a) } else { (a, b) };
        assert!(matches!(&kept, Cow::Borrowed(t) if std::ptr::eq(*t, &scores)));
        assert!(matches!(mask, Cow::Owned(_)));
        assert_eq!(mask.dtype(), DType::F32);
        assert_eq!(mask.to_f32().unwrap(), [0.0, -1.0, -65504.0]);
    }
    let bias = Tensor::from_f32(&[1], &[1.0 / 3.0]).unwrap();
    let product = Tensor::encoded(DType::BF16, &[1], &[2.0]).unwrap();
    let (product, bias) = promoted(&product, &bias).unwrap();
    assert!(matches!(bias, Cow::Borrowed(_)), "an F32 bias is not rounded to the matmul's BF16");
    assert_eq!(product.dtype(), DType::F32);
    // Neither is the join of F16 and BF16, and one alone is not cast when both are of one type.
    let (a, b) = (zeros(DType::F16), zeros(DType::BF16));
    let (a, b) = promoted(&a, &b).unwrap();
    assert!(matches!((&a, &b), (Cow::Owned(_), Cow::Owned(_))) && a.dtype() == DType::F32);
    let ids = Tensor::from_slice(&[2], &[3u8, 255]).unwrap();
    let wide = Tensor::from_slice(&[2], &[-1i32, 70_000]).unwrap();
    let (ids, wide) = promoted(&ids, &wide).unwrap();
    assert_eq!(ids.as_slice::<i32>().unwrap(), [3, 255]);
    assert!(matches!(wide, Cow::Borrowed(_)));
    let error = promoted(&zeros(DType::I64), &zeros(DType::F32)).unwrap_err();
    assert_eq!(error.to_string(), "no element type holds every value of both i64 and f32");
}

#[test]
fn cast_if_borrows_what_is_there() {
    for dtype in DType::ALL {
        let t = zeros(dtype);
        assert!(matches!(cast_if(&t, dtype), Ok(Cow::Borrowed(same)) if std::ptr::eq(same, &t)), "{dtype}");
    }
    assert!(matches!(cast_if(&zeros(DType::F16), DType::F32), Ok(Cow::Owned(t)) if t.dtype() == DType::F32));
    let error = cast_if(&zeros(DType::U32), DType::F32).unwrap_err();
    assert_eq!(error, TensorError::NoCast { from: DType::U32, to: DType::F32 });
}

/// What `f` sees under `precise`, whether it sees the tensor's own bytes, and what comes back.
fn precise(accum: DType, t: &Tensor) -> (DType, bool, DType) {
    let seen = Cell::new((DType::Bool, false));
    let result = parity().with_accum(accum).precise(t, |lifted| {
        seen.set((lifted.dtype(), lifted.bytes().as_ptr() == t.bytes().as_ptr()));
        Ok(lifted.clone())
    });
    let (dtype, same) = seen.get();
    (dtype, same, result.unwrap().dtype())
}

#[test]
fn precise_lifts_to_the_join_with_the_accumulator() {
    use DType::*;
    for (accum, own, seen, same, back) in [
        (F32, F16, F32, false, F16),
        (F32, BF16, F32, false, BF16),
        (F32, F8E4M3, F32, false, F8E4M3),
        (F32, F32, F32, true, F32),
        // Never narrowed: F64 is above an F32 accumulator.
        (F32, F64, F64, true, F64),
        (F64, F32, F64, false, F32),
        (F64, F64, F64, true, F64),
        // The join, not the accumulator: no BF16 is an F16.
        (F16, BF16, F32, false, BF16),
        (F16, F32, F32, true, F32),
        // Blocks are a form of storage: what was computed is not encoded again.
        (F32, DType::Q4_0, F32, false, F32),
        (F64, DType::Q8_0, F64, false, F64),
    ] {
        assert_eq!(precise(accum, &zeros(own)), (seen, same, back), "{own} under {accum}");
    }
}

#[test]
fn precise_never_touches_indices() {
    for dtype in DType::ALL.into_iter().filter(|d| matches!(d.class(), Class::Int | Class::Bool)) {
        assert_eq!(precise(DType::F32, &zeros(dtype)), (dtype, true, dtype), "{dtype}");
    }
    let ids = Tensor::from_slice(&[2], &[u32::MAX, 16_777_217]).unwrap();
    let kept = parity().precise(&ids, |t| Ok(t.clone())).unwrap();
    assert_eq!(kept.as_slice::<u32>().unwrap(), [u32::MAX, 16_777_217]);
    assert!(matches!(parity().to_compute(&ids), Ok(Cow::Borrowed(_))));
    assert!(matches!(parity().to_kv(&ids), Ok(Cow::Borrowed(_))));
}

#[test]
fn precise_gives_back_what_f_made_without_a_copy() {
    let t = Tensor::from_f32(&[2], &[1.0, 2.0]).unwrap();
    let made = Cell::new(std::ptr::null());
    let result = parity().precise(&t, |t| {
        let sum = Tensor::from_f32(&[1], &[t.to_f32()?.iter().sum()])?;
        made.set(sum.bytes().as_ptr());
        Ok(sum)
    });
    let result = result.unwrap();
    assert_eq!(result.bytes().as_ptr(), made.get());
    assert_eq!(result.to_f32().unwrap(), [3.0]);
    let failed = parity().precise(&t, |t| t.cast(DType::U8)).unwrap_err();
    assert_eq!(failed, CtxError::Tensor(TensorError::NoCast { from: DType::F32, to: DType::U8 }));
}

#[test]
fn precise_computes_where_the_own_type_would_lose() {
    // 2048 + 1 + 1 in F16 stays 2048 when each sum is rounded, since its step there is 2.
    let t = Tensor::from_slice(&[3], &[2048.0, 1.0, 1.0].map(f16::from_f32)).unwrap();
    let sum = parity().precise(&t, |t| Tensor::from_f32(&[1], &[t.as_slice::<f32>()?.iter().sum()]));
    let sum = sum.unwrap();
    assert_eq!((sum.dtype(), sum.to_f32().unwrap()), (DType::F16, vec![2050.0]));
}

/// The values of `sources` after `to_kv`, as F64, from every source type that holds them.
fn check_kv(kv: DType, cases: &[(f64, f64)]) {
    let ctx = parity().with_kv(kv);
    let wide: Vec<f64> = cases.iter().map(|(source, _)| *source).collect();
    let t = Tensor::from_slice(&[wide.len()], &wide).unwrap();
    let found = ctx.to_kv(&t).unwrap();
    assert_eq!((found.dtype(), found.shape()), (kv, t.shape()));
    let found = found.cast(DType::F64).unwrap();
    for ((source, wanted), found) in cases.iter().zip(found.as_slice::<f64>().unwrap()) {
        let same = found == wanted || (found.is_nan() && wanted.is_nan());
        assert!(same, "{source} to {kv}: wanted {wanted}, found {found}");
        let narrow = *source as f32;
        if f64::from(narrow) == *source || source.is_nan() {
            let t = Tensor::from_f32(&[1], &[narrow]).unwrap();
            let found = ctx.to_kv(&t).unwrap().to_f32().unwrap()[0];
            let same = found == *wanted as f32 || (found.is_nan() && wanted.is_nan());
            assert!(same, "{source} from f32 to {kv}: wanted {wanted}, found {found}");
        }
    }
}

#[test]
fn to_kv_converts_values_and_keeps_them_finite() {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    let bf16_max = f64::from(f32::from_bits(0x7f7f_0000));
    let f32_max = f64::from(f32::MAX);
    // Per type: 436, 70000, 1e39, infinity; the negatives are held to the mirror image.
    for (kv, small, large, huge, inf) in [
        (DType::F8E4M3, 448.0, 448.0, 448.0, 448.0),
        (DType::F8E5M2, 448.0, 57_344.0, 57_344.0, INF),
        (DType::F16, 436.0, 65_504.0, 65_504.0, INF),
        (DType::BF16, 436.0, 70_144.0, bf16_max, INF),
        (DType::F32, 436.0, 70_000.0, f32_max, INF),
        (DType::F64, 436.0, 70_000.0, 1e39, INF),
    ] {
        let cases = [(436.0, small), (70_000.0, large), (1e39, huge), (INF, inf)];
        let mirrored = cases.map(|(source, wanted)| (-source, -wanted));
        check_kv(kv, &[&cases[..], &mirrored, &[(NAN, NAN), (0.0, 0.0), (0.5, 0.5), (-2.0, -2.0)]].concat());
    }
    // What rounds to infinity, and is no infinity.
    check_kv(DType::BF16, &[(f32_max, bf16_max), (-f32_max, -bf16_max)]);
    check_kv(DType::F16, &[(65_519.0, 65_504.0), (65_520.0, 65_504.0)]);
}

#[test]
fn to_kv_and_to_compute_take_blocks_by_their_values() {
    let values: Vec<f32> = (0..32).map(|i| i as f32 - 16.0).collect();
    let t = Tensor::encoded(DType::Q8_0, &[32], &values).unwrap();
    let decoded = t.to_f32().unwrap();
    let kv = parity().with_kv(DType::F16).to_kv(&t).unwrap().into_owned();
    let rounded: Vec<f32> = decoded.iter().map(|v| f16::from_f32(*v).to_f32()).collect();
    assert_eq!((kv.dtype(), kv.to_f32().unwrap()), (DType::F16, rounded));
    let compute = parity().to_compute(&t).unwrap().into_owned();
    assert_eq!((compute.dtype(), compute.to_f32().unwrap()), (DType::F32, decoded));
}

#[test]
fn what_is_there_is_borrowed() {
    let ctx = ComputeCtx::new(DType::BF16, Device::cpu()).with_kv(DType::F16);
    let (compute, kv) = (zeros(DType::BF16), zeros(DType::F16));
    assert!(matches!(ctx.to_compute(&compute), Ok(Cow::Borrowed(t)) if std::ptr::eq(t, &compute)));
    assert!(matches!(ctx.to_kv(&kv), Ok(Cow::Borrowed(t)) if std::ptr::eq(t, &kv)));
    assert_eq!(ctx.to_compute(&kv).unwrap().dtype(), DType::BF16);
    assert_eq!(ctx.promote(DType::F16), Ok(DType::F32));
    assert!(ctx.promote(DType::U32).is_err());
}

#[test]
fn sub_byte_tensors_have_exact_sizes() {
    for dtype in DType::ALL {
        assert!(dtype.block_bytes() > 0 && dtype.bits().0 > 0, "{dtype}");
        assert_eq!(zeros(dtype).bytes().len(), 256 / dtype.block_len() * dtype.block_bytes(), "{dtype}");
    }
    for (dtype, bytes) in [(DType::F4E2M1, 128), (DType::F6E3M2, 192), (DType::Q4_0, 144), (DType::Q2_K, 84)]
    {
        assert_eq!(zeros(dtype).bytes().len(), bytes, "{dtype}");
    }
}
