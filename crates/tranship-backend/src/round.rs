//! Rounding within programs: what every backend must do when a value is given a narrower type.

use crate::BackendError;
use tranship_dtype::DType;
use tranship_tensor::{TensorError, decode, encode};

/// Rounds F32 values to `dtype`, in place: to nearest, ties to even; block encodings by their quantizer, so
/// that the length must be whole blocks.
///
/// A finite value past the range of a float type becomes its largest finite value, not infinity: one infinite
/// activation would make every later value NaN. Infinity stays where the type has one (F8E4M3 has none: ±448), and
/// NaN stays NaN.
///
/// # Errors
/// [`BackendError::Convert`] naming `value`: a type without a quantizer, or NaN for a type that has none.
pub fn round_to(dtype: DType, value: &str, values: &mut [f32]) -> Result<(), BackendError> {
    let convert = |source: TensorError| BackendError::Convert { value: value.to_owned(), dtype, source };
    let limit = match dtype {
        DType::F32 => return Ok(()),
        DType::F16 => 65_504.0,
        DType::BF16 => BF16_MAX,
        DType::F8E5M2 => 57_344.0,
        _ => f32::MAX,
    };
    for v in values.iter_mut().filter(|v| v.is_finite()) {
        *v = v.clamp(-limit, limit);
    }
    let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap_or(0)];
    encode(dtype, values, &mut bytes).map_err(convert)?;
    decode(dtype, &bytes, values).map_err(convert)
}

/// The largest finite BF16 value.
pub const BF16_MAX: f32 = f32::from_bits(0x7f7f_0000);
