//! The laws of the join, over all pairs and triples of types, and the sizes against the published GGUF table.

use DType::*;
use std::collections::HashSet;
use tranship_dtype::{Class, DType, Encoding, NoJoin, join};

/// The join with an absorbing top for [`NoJoin`], over which the laws hold without exceptions.
fn joined(a: Option<DType>, b: Option<DType>) -> Option<DType> {
    join(a?, b?).ok()
}

#[test]
fn the_join_is_commutative_and_idempotent() {
    for a in ALL {
        assert_eq!(a.join(a), Ok(a));
        for b in ALL {
            assert_eq!(a.join(b).ok(), b.join(a).ok(), "{a} and {b}");
            if let Err(error) = a.join(b) {
                assert_eq!(error, NoJoin { left: a, right: b });
            }
        }
    }
}

#[test]
fn the_join_is_associative() {
    for a in ALL.map(Some) {
        for b in ALL.map(Some) {
            for c in ALL.map(Some) {
                assert_eq!(joined(joined(a, b), c), joined(a, joined(b, c)), "{a:?}, {b:?}, {c:?}");
            }
        }
    }
}

#[test]
fn the_join_is_the_least_upper_bound() {
    for a in ALL {
        for b in ALL {
            let bounds: Vec<DType> = ALL.into_iter().filter(|&c| a.fits_in(c) && b.fits_in(c)).collect();
            match a.join(b) {
                Ok(j) => {
                    assert!(bounds.contains(&j), "{a} ⊔ {b} = {j} does not hold both");
                    let smaller = bounds.iter().find(|c| !j.fits_in(**c));
                    assert_eq!(smaller, None, "{a} ⊔ {b} = {j} is not below every bound");
                }
                Err(_) => assert_eq!(bounds, [], "{a} and {b} have bounds but no join"),
            }
        }
    }
}

#[test]
fn fitting_is_a_partial_order() {
    for a in ALL {
        assert!(a.fits_in(a));
        for b in ALL {
            assert!(a == b || !(a.fits_in(b) && b.fits_in(a)), "{a} and {b} fit in each other");
            assert_eq!(a.fits_in(b), a.join(b) == Ok(b), "the order and the join of {a} and {b} differ");
            for c in ALL {
                assert!(!(a.fits_in(b) && b.fits_in(c)) || a.fits_in(c), "{a}, {b}, {c}");
            }
        }
    }
}

/// The range of an integer type.
fn range(d: DType) -> (i128, i128) {
    match d {
        Bool => (0, 1),
        U8 => (0, u8::MAX.into()),
        U16 => (0, u16::MAX.into()),
        U32 => (0, u32::MAX.into()),
        U64 => (0, u64::MAX.into()),
        I8 => (i8::MIN.into(), i8::MAX.into()),
        I16 => (i16::MIN.into(), i16::MAX.into()),
        I32 => (i32::MIN.into(), i32::MAX.into()),
        I64 => (i64::MIN.into(), i64::MAX.into()),
        _ => panic!("{d} is not an integer"),
    }
}

#[test]
fn nothing_narrows() {
    for a in ALL {
        for b in ALL {
            let Ok(j) = a.join(b) else { continue };
            let whole = |d: DType| matches!(d.class(), Class::Bool | Class::Int);
            assert_eq!(whole(a), whole(b), "{a} ⊔ {b} = {j} crosses from integers to reals");
            // Bits as fractions: a/b >= c/d when a·d >= c·b.
            let ((jn, jd), (an, ad)) = (j.bits(), a.bits());
            assert!(jn * ad >= an * jd, "{a} ⊔ {b} = {j} has fewer bits than {a}");
            if whole(a) {
                let ((low, high), (inner_low, inner_high)) = (range(j), range(a));
                assert!(low <= inner_low && inner_high <= high, "{a} ⊔ {b} = {j} does not hold {a}");
            }
        }
    }
}

/// Joins that people rely on, each pair in one order.
#[test]
fn known_joins() {
    let cases = [
        (F16, BF16, Some(F32)),
        (F16, F32, Some(F32)),
        (BF16, F64, Some(F64)),
        (F8E4M3, F8E5M2, Some(F16)),
        (F8E4M3, BF16, Some(BF16)),
        (F8E5M2, BF16, Some(F32)),
        (F8E8M0, F16, Some(F32)),
        (F8E8M0, F8E4M3, Some(BF16)),
        (F6E2M3, F6E3M2, Some(F8E4M3)),
        (F4E2M1, F6E2M3, Some(F6E2M3)),
        (U8, I8, Some(I16)),
        (U32, I8, Some(I64)),
        (Bool, U8, Some(U8)),
        (U64, I64, None),
        (U32, F64, None),
        (Bool, F32, None),
        (DType::Q4_K, F16, Some(F32)),
        (DType::Q4_K, DType::Q4_K, Some(DType::Q4_K)),
        (DType::Q4_K, DType::Q8_0, Some(F32)),
        (DType::MXFP4, F64, Some(F64)),
        (DType::MXFP4, I32, None),
    ];
    for (a, b, wanted) in cases {
        assert_eq!(a.join(b).ok(), wanted, "{a} ⊔ {b}");
        assert_eq!(b.join(a).ok(), wanted, "{b} ⊔ {a}");
    }
    let error = U64.join(I8).unwrap_err();
    assert_eq!(error.to_string(), "no element type holds every value of both u64 and i8");
}

/// Elements and bytes of a block, as the GGUF format publishes them (`GGML_QUANT_SIZES` of its Python package, where
/// `q8_1` still has its earlier layout of 40 bytes; 36 is what its C struct, two F16 and 32 bytes, takes).
#[test]
fn sizes_are_those_of_gguf() {
    let published = [
        (F32, 1, 4),
        (F16, 1, 2),
        (BF16, 1, 2),
        (F64, 1, 8),
        (I8, 1, 1),
        (I16, 1, 2),
        (I32, 1, 4),
        (I64, 1, 8),
        (DType::Q4_0, 32, 2 + 16),
        (DType::Q4_1, 32, 2 + 2 + 16),
        (DType::Q5_0, 32, 2 + 4 + 16),
        (DType::Q5_1, 32, 2 + 2 + 4 + 16),
        (DType::Q8_0, 32, 2 + 32),
        (DType::Q8_1, 32, 2 + 2 + 32),
        (DType::Q2_K, 256, 2 + 2 + 16 + 64),
        (DType::Q3_K, 256, 2 + 64 + 32 + 12),
        (DType::Q4_K, 256, 2 + 2 + 128 + 12),
        (DType::Q5_K, 256, 2 + 2 + 128 + 32 + 12),
        (DType::Q6_K, 256, 2 + 128 + 64 + 16),
        (DType::Q8_K, 256, 4 + 256 + 32),
        (DType::IQ4_NL, 32, 2 + 16),
        (DType::IQ4_XS, 256, 2 + 2 + 128 + 4),
        (DType::MXFP4, 32, 1 + 16),
    ];
    for (dtype, elements, bytes) in published {
        assert_eq!((dtype.block_len(), dtype.block_bytes()), (elements, bytes), "{dtype}");
    }
    let listed: HashSet<DType> = published.iter().map(|p| p.0).collect();
    assert!(Encoding::ALL.into_iter().all(|e| listed.contains(&e.into())), "an encoding is not in the table");
}

#[test]
fn sizes_are_exact_and_never_zero() {
    for dtype in ALL {
        let (bits, elements) = dtype.bits();
        assert!(bits > 0 && elements > 0 && dtype.block_len() > 0, "{dtype}");
        assert_eq!(bits * dtype.block_len(), elements * dtype.block_bits(), "{dtype}");
        assert_eq!(dtype.row_bytes(0), Some(0));
        assert_eq!(dtype.row_bytes(7 * dtype.block_len()), Some(7 * dtype.block_bytes()), "{dtype}");
        if dtype.block_len() > 1 {
            assert_eq!(dtype.row_bytes(dtype.block_len() + 1), None, "{dtype}");
        }
    }
    assert_eq!(F4E2M1.bits(), (4, 1));
    assert_eq!(F6E3M2.bits(), (6, 1));
    assert_eq!(DType::Q6_K.bits(), (105, 16));
    assert_eq!(F64.row_bytes(usize::MAX), None, "sizes that overflow are refused");
}

#[test]
fn names_and_indices_round_trip() {
    let mut seen = HashSet::new();
    for (i, dtype) in ALL.into_iter().enumerate() {
        assert_eq!(dtype.index(), i, "{dtype}");
        assert!(seen.insert(dtype.name()), "{dtype} is named twice");
        assert_eq!(dtype.to_string(), dtype.name());
        assert_eq!(dtype.name().parse(), Ok(dtype));
        assert_eq!(dtype.name().to_uppercase().parse(), Ok(dtype));
    }
    let error = "q4_7".parse::<DType>().unwrap_err();
    assert_eq!(error.to_string(), "`q4_7` is not an element type");
}

const ALL: [DType; 34] = DType::ALL;
