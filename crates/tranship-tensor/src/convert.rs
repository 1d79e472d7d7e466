//! [`decode`] and [`encode`]: rows of any real type to F32 and back, dispatched once for the whole slice.

use crate::{TensorError, blocks, scalar};
use tranship_dtype::DType;

/// Decodes `bytes` of a real type (a float or a block encoding) into `out`, as F32.
///
/// Exact, except that F64 is rounded to nearest even.
///
/// # Errors
/// [`TensorError::NotReal`] for integers and truth values; [`TensorError::Blocks`] if `out` is not a whole number
/// of blocks and [`TensorError::Row`] if `bytes` has another length than those elements take.
pub fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), TensorError> {
    check(dtype, bytes.len(), out.len())?;
    match dtype {
        DType::F16 => scalar::decode_f16(bytes, out),
        DType::BF16 => scalar::decode_bf16(bytes, out),
        DType::F32 => scalar::decode_f32(bytes, out),
        DType::F64 => scalar::decode_f64(bytes, out),
        DType::Block(encoding) => blocks::decode(encoding, bytes, out),
        small => {
            if !scalar::decode_small(small, bytes, out) {
                return Err(TensorError::NotReal(dtype));
            }
        }
    }
    Ok(())
}

/// Encodes F32 `values` as `dtype`, a float or a block encoding that has a quantizer, into `out`.
///
/// What happens to values that `dtype` cannot hold is in the table of the [crate docs](crate).
///
/// # Errors
/// As [`decode`], and [`TensorError::NoEncoder`] for the block encodings that can only be decoded;
/// [`TensorError::NoNan`] for NaN where `dtype` has none. After an error `out` holds unspecified bytes.
pub fn encode(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), TensorError> {
    check(dtype, out.len(), values.len())?;
    match dtype {
        DType::F16 => scalar::encode_f16(values, out),
        DType::BF16 => scalar::encode_bf16(values, out),
        DType::F32 => scalar::encode_f32(values, out),
        DType::F64 => scalar::encode_f64(values, out),
        DType::Block(encoding) => {
            if !blocks::encode(encoding, values, out) {
                return Err(TensorError::NoEncoder(dtype));
            }
        }
        small => return scalar::encode_small(small, values, out).unwrap_or(Err(TensorError::NotReal(dtype))),
    }
    Ok(())
}

/// Whether [`encode`] can write `dtype`: every float, and the block encodings that have a quantizer.
pub fn can_encode(dtype: DType) -> bool {
    match dtype {
        DType::Block(encoding) => blocks::can_encode(encoding),
        other => other.is_real(),
    }
}

/// Refuses what is not real, and lengths that do not match.
fn check(dtype: DType, bytes: usize, elements: usize) -> Result<(), TensorError> {
    if !dtype.is_real() {
        return Err(TensorError::NotReal(dtype));
    }
    let block_len = dtype.block_len();
    if !elements.is_multiple_of(block_len) {
        return Err(TensorError::Blocks { dtype, block_len, found: elements });
    }
    // Saturation only makes the comparison fail: no slice is that long.
    let wanted = (elements / block_len).saturating_mul(dtype.block_bytes());
    if bytes != wanted {
        return Err(TensorError::Row { dtype, elements, wanted, found: bytes });
    }
    Ok(())
}
