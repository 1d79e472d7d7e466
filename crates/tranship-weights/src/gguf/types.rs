//! GGUF's tensor type numbers.

use tranship_dtype::DType;

/// The element type of a GGUF type number.
///
/// # Errors
/// The name of a type that exists but is not supported, or `None` for a number that is none.
pub(super) fn dtype_of(id: u32) -> Result<DType, Option<&'static str>> {
    Ok(match id {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        9 => DType::Q8_1,
        10 => DType::Q2_K,
        11 => DType::Q3_K,
        12 => DType::Q4_K,
        13 => DType::Q5_K,
        14 => DType::Q6_K,
        15 => DType::Q8_K,
        20 => DType::IQ4_NL,
        23 => DType::IQ4_XS,
        24 => DType::I8,
        25 => DType::I16,
        26 => DType::I32,
        27 => DType::I64,
        28 => DType::F64,
        30 => DType::BF16,
        39 => DType::MXFP4,
        _ => return Err(unsupported_name(id)),
    })
}

fn unsupported_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2, removed from the format",
        5 => "Q4_3, removed from the format",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        29 => "IQ1_M",
        31 => "Q4_0_4_4, removed from the format",
        32 => "Q4_0_4_8, removed from the format",
        33 => "Q4_0_8_8, removed from the format",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4, removed from the format",
        37 => "IQ4_NL_4_8, removed from the format",
        38 => "IQ4_NL_8_8, removed from the format",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}
