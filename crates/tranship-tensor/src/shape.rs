//! Shapes: the sizes of a tensor's axes, outermost first, with an element count that cannot overflow.

use crate::TensorError;
use std::{fmt, ops::Deref};
use tranship_dtype::DType;

/// The sizes of a tensor's axes, row-major: the last axis is contiguous. No axes at all is a single element.
///
/// The product of the sizes is checked when the shape is made, so [`Shape::elements`] cannot fail.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    sizes: Box<[usize]>,
    elements: usize,
}

impl Shape {
    /// A shape with these axis sizes.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`] if the product of the sizes overflows, even when another axis is 0.
    pub fn new(sizes: &[usize]) -> Result<Shape, TensorError> {
        // Zero sizes count as 1 in the check, so that reordering or slicing axes can never overflow either.
        let bound = sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(s.max(1)));
        match bound {
            Some(n) => {
                let elements = if sizes.contains(&0) { 0 } else { n };
                Ok(Shape { sizes: sizes.into(), elements })
            }
            None => Err(TensorError::TooLarge(Shape { sizes: sizes.into(), elements: usize::MAX })),
        }
    }

    /// Number of elements: the product of the sizes.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Size of the last axis; 1 where there are no axes.
    pub fn last(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }

    /// Bytes of a tensor of `dtype` with this shape.
    ///
    /// # Errors
    /// [`TensorError::Blocks`] if the last axis is not a whole number of blocks, [`TensorError::TooLarge`] if the
    /// size overflows.
    pub fn bytes(&self, dtype: DType) -> Result<usize, TensorError> {
        let (last, block_len) = (self.last(), dtype.block_len());
        if !last.is_multiple_of(block_len) {
            return Err(TensorError::Blocks { dtype, block_len, found: last });
        }
        (self.elements / block_len)
            .checked_mul(dtype.block_bytes())
            .filter(|&n| n <= isize::MAX as usize)
            .ok_or_else(|| TensorError::TooLarge(self.clone()))
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.sizes
    }
}

impl fmt::Display for Shape {
    /// `[2, 3]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_checked() {
        assert_eq!(Shape::new(&[]).unwrap().elements(), 1);
        assert_eq!(Shape::new(&[2, 3, 4]).unwrap().elements(), 24);
        assert_eq!(Shape::new(&[2, 0, 4]).unwrap().elements(), 0);
        for sizes in [&[usize::MAX, 2][..], &[usize::MAX, 2, 0], &[0, usize::MAX, 2], &[1 << 32, 1 << 32]] {
            let error = Shape::new(sizes).unwrap_err();
            assert!(matches!(error, TensorError::TooLarge(_)), "{sizes:?}: {error}");
        }
    }

    #[test]
    fn bytes_are_exact() {
        let bytes = |sizes: &[usize], dtype| Shape::new(sizes).unwrap().bytes(dtype);
        assert_eq!(bytes(&[3, 64], DType::Q4_0), Ok(3 * 36));
        assert_eq!(bytes(&[3, 6], DType::F4E2M1), Ok(9));
        assert_eq!(bytes(&[0, 6], DType::F64), Ok(0));
        assert_eq!(
            bytes(&[2, 33], DType::Q8_0),
            Err(TensorError::Blocks { dtype: DType::Q8_0, block_len: 32, found: 33 })
        );
        assert!(matches!(bytes(&[usize::MAX], DType::F32), Err(TensorError::TooLarge(_))));
        assert!(matches!(bytes(&[usize::MAX / 2 + 1], DType::U8), Err(TensorError::TooLarge(_))));
    }
}
