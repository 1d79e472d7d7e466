//! Shapes, host tensors and conversions between element types, block encodings included.
//!
//! [`decode`] and [`encode`] convert rows between F32 and any real type; a [`Tensor`] is bytes with a type and a
//! [`Shape`], and [`Tensor::cast`] converts it whole. Values are converted, bits are never reinterpreted.
//!
//! ```
//! use tranship_dtype::DType;
//! use tranship_tensor::{Tensor, decode};
//!
//! # fn main() -> Result<(), tranship_tensor::TensorError> {
//! let t = Tensor::from_f32(&[2, 2], &[0.5, -3.0, 436.0, 70000.0])?;
//! assert_eq!(t.cast(DType::BF16)?.to_f32()?, [0.5, -3.0, 436.0, 70144.0]); // 8 significant bits
//! assert_eq!(t.cast(DType::F16)?.to_f32()?, [0.5, -3.0, 436.0, f32::INFINITY]);
//! assert_eq!(t.cast(DType::F8E4M3)?.to_f32()?, [0.5, -3.0, 448.0, 448.0]); // 4 significant bits, no infinity
//!
//! let mut block = [0u8; 34]; // q8_0: an F16 scale, then 32 signed bytes
//! block[..2].copy_from_slice(&0x3800u16.to_le_bytes()); // one half
//! block[2] = 3;
//! let mut values = [0.0; 32];
//! decode(DType::Q8_0, &block, &mut values)?;
//! assert_eq!(values[..2], [1.5, 0.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # What a type cannot hold
//!
//! Every conversion to a float rounds to nearest, ties to even, once. Subnormals are kept, in and out. Past the
//! ends:
//!
//! | to | above the largest finite value (half a step and more) | ±infinity | NaN | below half the smallest value |
//! |---|---|---|---|---|
//! | F64 | – | ±infinity | NaN | – |
//! | F32, BF16, F16, F8E5M2 | ±infinity | ±infinity | NaN | ±0 |
//! | F8E4M3 | saturates, ±448 | ±448 | NaN | ±0 |
//! | F6E2M3 | saturates, ±7.5 | ±7.5 | error | ±0 |
//! | F6E3M2 | saturates, ±28 | ±28 | error | ±0 |
//! | F4E2M1 | saturates, ±6 | ±6 | error | ±0 |
//! | F8E8M0 (powers of two, no sign, no zero; ties go up) | saturates, 2^127 | 2^127, NaN if negative | NaN | 2^-127, zero too; other negative values are NaN |
//! | a block encoding | the scale becomes infinite, the block infinite or NaN | the whole block NaN | the whole block NaN | ±0 |
//! | an integer or `bool` | error | – | – | – |
//!
//! So NaN never becomes a number, infinity only where the type has none, and no conversion panics. The error names the
//! element ([`TensorError::NoNan`], [`TensorError::Range`]).
//!
//! The quantizers are those that GGML calls its references: `q4_0` and `q5_0` map the element of the largest
//! magnitude to the lowest quant, `q4_1` and `q5_1` the smallest and largest element to the ends of the range, `q8_*`
//! the largest magnitude to ±127; quants go to the nearest integer, and use the scale before it is rounded to F16.
//! The other block encodings can be decoded only.
//!
//! The 4- and 6-bit floats are packed little-endian, without gaps: two in a byte, four in three bytes, the first
//! element in the lowest bits.

#[cfg(target_endian = "big")]
compile_error!(
    "tensors share their little-endian bytes with the host's numbers: big-endian hosts are not supported"
);

mod blocks;
mod buffer;
mod cast;
mod convert;
mod error;
mod scalar;
mod shape;
mod small_float;
mod tensor;

pub use convert::{can_encode, decode, encode};
pub use error::TensorError;
pub use shape::Shape;
pub use tensor::{Element, Tensor};
