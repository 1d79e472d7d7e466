//! Host tensors: an element type, a shape, and owned bytes in row-major order.

use crate::{Shape, TensorError, buffer::Buffer, cast, decode, encode};
use half::{bf16, f16};
use std::{fmt, ops::Range};
use tranship_dtype::DType;

/// A tensor in host memory, row-major, its bytes little-endian and aligned to 64.
///
/// The size always matches: `shape.bytes(dtype)` bytes, the last axis a whole number of blocks.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    data: Buffer,
}

/// A Rust type whose slices are the bytes of a tensor of one element type.
pub trait Element: bytemuck::Pod + sealed::Sealed {
    /// The element type.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements!(u8 => U8, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64);
elements!(f16 => F16, bf16 => BF16, f32 => F32, f64 => F64);

impl Tensor {
    /// A tensor with a copy of these bytes.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`], [`TensorError::Blocks`], or [`TensorError::Bytes`] if there are more or fewer
    /// bytes than type and shape take.
    pub fn new(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor, TensorError> {
        let shape = Shape::new(shape)?;
        let wanted = shape.bytes(dtype)?;
        if bytes.len() != wanted {
            return Err(TensorError::Bytes { dtype, shape, wanted, found: bytes.len() });
        }
        Ok(Tensor { dtype, shape, data: Buffer::copy_of(bytes) })
    }

    /// A tensor whose bytes are all zero; in every type but F8E8M0 these are zero values.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`] or [`TensorError::Blocks`].
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, TensorError> {
        let shape = Shape::new(shape)?;
        let bytes = shape.bytes(dtype)?;
        Ok(Tensor { dtype, shape, data: Buffer::zeroed(bytes) })
    }

    /// A tensor of these elements, in row-major order; the element type is that of the slice.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`], or [`TensorError::Elements`] if the shape has another number of elements.
    pub fn from_slice<T: Element>(shape: &[usize], elements: &[T]) -> Result<Tensor, TensorError> {
        let shape = Shape::new(shape)?;
        if shape.elements() != elements.len() {
            let wanted = shape.elements();
            return Err(TensorError::Elements { shape, wanted, found: elements.len() });
        }
        Ok(Tensor { dtype: T::DTYPE, shape, data: Buffer::copy_of(bytemuck::cast_slice(elements)) })
    }

    /// An F32 tensor of these values; [`Tensor::from_slice`] by its most frequent name.
    ///
    /// # Errors
    /// As [`Tensor::from_slice`].
    pub fn from_f32(shape: &[usize], values: &[f32]) -> Result<Tensor, TensorError> {
        Tensor::from_slice(shape, values)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The bytes, row-major and little-endian, starting on a 64-byte boundary.
    pub fn bytes(&self) -> &[u8] {
        self.data.bytes()
    }

    /// The bytes, to be written in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.data.bytes_mut()
    }

    /// The elements, without conversion.
    ///
    /// # Errors
    /// [`TensorError::Element`] if the tensor has another element type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.expect::<T>()?;
        Ok(bytemuck::cast_slice(self.data.bytes()))
    }

    /// The elements, to be written in place.
    ///
    /// # Errors
    /// [`TensorError::Element`] if the tensor has another element type.
    pub fn as_slice_mut<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        self.expect::<T>()?;
        Ok(bytemuck::cast_slice_mut(self.data.bytes_mut()))
    }

    fn expect<T: Element>(&self) -> Result<(), TensorError> {
        if self.dtype == T::DTYPE {
            Ok(())
        } else {
            Err(TensorError::Element { wanted: T::DTYPE, found: self.dtype })
        }
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// [`TensorError::Elements`] if the number of elements differs, [`TensorError::Blocks`] if the new last axis is
    /// not a whole number of blocks, [`TensorError::TooLarge`].
    pub fn reshape(self, shape: &[usize]) -> Result<Tensor, TensorError> {
        let shape = Shape::new(shape)?;
        if shape.elements() != self.shape.elements() {
            let (wanted, found) = (shape.elements(), self.shape.elements());
            return Err(TensorError::Elements { shape, wanted, found });
        }
        shape.bytes(self.dtype)?;
        Ok(Tensor { shape, ..self })
    }

    /// The bytes of some rows: a range of the first axis, all of the others.
    ///
    /// # Errors
    /// [`TensorError::Rows`] if the range is not within the first axis, or there is none;
    /// [`TensorError::Blocks`] if the only axis is one of blocks, which a row would cut.
    pub fn rows_bytes(&self, range: Range<usize>) -> Result<&[u8], TensorError> {
        let count = self.shape.first().copied().unwrap_or(0);
        if range.start > range.end || range.end > count || self.shape.rank() == 0 {
            return Err(TensorError::Rows { start: range.start, end: range.end, shape: self.shape.clone() });
        }
        let block_len = self.dtype.block_len();
        if self.shape.rank() == 1 && block_len > 1 {
            return Err(TensorError::Blocks { dtype: self.dtype, block_len, found: 1 });
        }
        let row = self.bytes().len().checked_div(count).unwrap_or(0);
        Ok(&self.bytes()[range.start * row..range.end * row])
    }

    /// A copy of some rows: a range of the first axis, all of the others.
    ///
    /// # Errors
    /// As [`Tensor::rows_bytes`].
    pub fn rows(&self, range: Range<usize>) -> Result<Tensor, TensorError> {
        let bytes = self.rows_bytes(range.clone())?;
        let mut shape = self.shape.to_vec();
        shape[0] = range.len();
        Tensor::new(self.dtype, &shape, bytes)
    }

    /// The values in F32, row-major. Exact, except that F64 is rounded to nearest even.
    ///
    /// # Errors
    /// [`TensorError::NotReal`] for integers and truth values.
    pub fn to_f32(&self) -> Result<Vec<f32>, TensorError> {
        if let Ok(values) = self.as_slice::<f32>() {
            return Ok(values.to_vec());
        }
        let mut values = vec![0.0; self.shape.elements()];
        decode(self.dtype, self.bytes(), &mut values)?;
        Ok(values)
    }

    /// A tensor of `dtype` that encodes these F32 values.
    ///
    /// # Errors
    /// Those of [`encode`], [`TensorError::TooLarge`], and [`TensorError::Elements`].
    pub fn encoded(dtype: DType, shape: &[usize], values: &[f32]) -> Result<Tensor, TensorError> {
        let mut tensor = Tensor::zeros(dtype, shape)?;
        if tensor.shape.elements() != values.len() {
            let wanted = tensor.shape.elements();
            return Err(TensorError::Elements { shape: tensor.shape, wanted, found: values.len() });
        }
        encode(dtype, values, tensor.bytes_mut())?;
        Ok(tensor)
    }

    /// The same values in another element type: converted, never reinterpreted.
    ///
    /// Real types (floats and block encodings) convert among each other, to a float with one rounding at most,
    /// as the table of the [crate docs](crate) says; integers and truth values convert among each other if every
    /// element fits.
    ///
    /// # Errors
    /// [`TensorError::NoCast`] between a real type and an integer or truth value; [`TensorError::Range`] for an
    /// integer that does not fit; [`TensorError::NoNan`]; [`TensorError::NoEncoder`]; [`TensorError::Blocks`] if the
    /// last axis is not a whole number of blocks of `dtype`.
    pub fn cast(&self, dtype: DType) -> Result<Tensor, TensorError> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        let mut to = Tensor::zeros(dtype, &self.shape)?;
        cast::cast(self.dtype, self.bytes(), dtype, to.data.bytes_mut())?;
        Ok(to)
    }
}

impl PartialEq for Tensor {
    /// Same type, shape and bytes: NaN equals itself, and 0 differs from -0.
    fn eq(&self, other: &Tensor) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes() == other.bytes()
    }
}

impl Eq for Tensor {}

impl fmt::Debug for Tensor {
    /// Type and shape, without the elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {})", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_checked_and_aligned() {
        let t = Tensor::new(DType::Q4_0, &[2, 32], &[7; 36]).unwrap();
        assert_eq!(t.bytes().as_ptr() as usize % 64, 0);
        assert_eq!(t.bytes(), [7; 36]);
        let error = Tensor::new(DType::Q4_0, &[2, 32], &[7; 35]).unwrap_err();
        assert_eq!(error.to_string(), "q4_0 [2, 32] takes 36 bytes, found 35");
        let error = Tensor::from_f32(&[2, 2], &[1.0; 3]).unwrap_err();
        assert_eq!(error.to_string(), "shape [2, 2] has 4 elements, found 3");
        assert!(Tensor::new(DType::F32, &[usize::MAX, 2], &[]).is_err());
    }

    #[test]
    fn rows_are_ranges_of_the_first_axis() {
        let t = Tensor::from_slice(&[3, 2], &[1i32, 2, 3, 4, 5, 6]).unwrap();
        let middle = t.rows(1..3).unwrap();
        assert_eq!(
            (&middle.shape()[..], middle.as_slice::<i32>().unwrap()),
            (&[2, 2][..], &[3, 4, 5, 6][..])
        );
        assert_eq!(t.rows(3..3).unwrap().shape().elements(), 0);
        let error = t.rows(1..4).unwrap_err();
        assert_eq!(error.to_string(), "rows 1..4 are not within the first axis of [3, 2]");
        #[allow(clippy::reversed_empty_ranges)]
        let backwards = t.rows(2..1);
        assert!(backwards.is_err());
        assert!(Tensor::zeros(DType::F32, &[]).unwrap().rows(0..0).is_err());
        assert!(Tensor::zeros(DType::F32, &[0, 4]).unwrap().rows(0..0).is_ok());
        let blocks = Tensor::zeros(DType::Q8_0, &[32]).unwrap();
        assert!(matches!(blocks.rows(0..1), Err(TensorError::Blocks { .. })));
    }

    #[test]
    fn typed_views_and_shapes_are_checked() {
        let mut t = Tensor::zeros(DType::F16, &[4]).unwrap();
        t.as_slice_mut::<f16>().unwrap()[3] = f16::ONE;
        assert_eq!(t.to_f32().unwrap(), [0.0, 0.0, 0.0, 1.0]);
        assert_eq!(t.as_slice::<u16>().unwrap_err().to_string(), "elements are f16, not u16");
        assert_eq!(t.clone().reshape(&[2, 2]).unwrap().rows(1..2).unwrap().to_f32().unwrap(), [0.0, 1.0]);
        assert!(t.reshape(&[3]).is_err());
        let blocks = Tensor::zeros(DType::Q8_0, &[32]).unwrap();
        assert!(matches!(blocks.reshape(&[2, 16]), Err(TensorError::Blocks { .. })));
        assert!(matches!(
            Tensor::from_slice(&[1], &[1u8]).unwrap().to_f32(),
            Err(TensorError::NotReal(DType::U8))
        ));
    }
}
