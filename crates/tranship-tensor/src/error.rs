//! What can be wrong with a shape, a tensor's bytes, or a conversion.

use crate::Shape;
use tranship_dtype::DType;

/// Why a tensor could not be made, viewed or converted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TensorError {
    /// The number of elements or bytes does not fit `usize`.
    #[error("shape {0} holds more elements than can be addressed")]
    TooLarge(Shape),
    /// The last axis is not a whole number of blocks.
    #[error("a row of {found} elements is not a whole number of {dtype} blocks of {block_len}")]
    Blocks {
        /// The element type.
        dtype: DType,
        /// Elements of one block.
        block_len: usize,
        /// Elements of the row.
        found: usize,
    },
    /// A buffer has another size than the shape says.
    #[error("{dtype} {shape} takes {wanted} bytes, found {found}")]
    Bytes {
        /// The element type.
        dtype: DType,
        /// The shape.
        shape: Shape,
        /// Bytes that type and shape take.
        wanted: usize,
        /// Bytes that were given.
        found: usize,
    },
    /// A shape has another number of elements than there are.
    #[error("shape {shape} has {wanted} elements, found {found}")]
    Elements {
        /// The shape.
        shape: Shape,
        /// Elements the shape has.
        wanted: usize,
        /// Elements there are.
        found: usize,
    },
    /// Encoded bytes and values of a conversion do not match in length.
    #[error("{elements} elements of {dtype} take {wanted} bytes, found {found}")]
    Row {
        /// The encoded type.
        dtype: DType,
        /// Elements on the F32 side.
        elements: usize,
        /// Bytes these elements take.
        wanted: usize,
        /// Bytes on the encoded side.
        found: usize,
    },
    /// A range of rows lies outside the first axis.
    #[error("rows {start}..{end} are not within the first axis of {shape}")]
    Rows {
        /// First row wanted.
        start: usize,
        /// One past the last row wanted.
        end: usize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// A typed view was asked of a tensor with other elements.
    #[error("elements are {found}, not {wanted}")]
    Element {
        /// The type asked for.
        wanted: DType,
        /// The type of the tensor.
        found: DType,
    },
    /// The type's values are not real numbers.
    #[error("{0} is not a type of real numbers")]
    NotReal(DType),
    /// There is no quantizer for the encoding.
    #[error("nothing here encodes to {0}; it can only be decoded")]
    NoEncoder(DType),
    /// No conversion joins the two kinds of type.
    #[error("no cast from {from} to {to}: indices and truth values are not real numbers")]
    NoCast {
        /// The type of the tensor.
        from: DType,
        /// The type asked for.
        to: DType,
    },
    /// An integer lies outside the target type.
    #[error("element {index} is {value}, which {to} cannot hold")]
    Range {
        /// The type asked for.
        to: DType,
        /// Position in row-major order.
        index: usize,
        /// The integer.
        value: i128,
    },
    /// NaN for a float type that has none.
    #[error("element {index} is NaN, which {to} cannot hold")]
    NoNan {
        /// The type asked for.
        to: DType,
        /// Position in row-major order.
        index: usize,
    },
}

impl TensorError {
    /// The same error, with an element's position counted from `base` further on.
    pub(crate) fn offset(self, base: usize) -> TensorError {
        match self {
            TensorError::Range { to, index, value } => TensorError::Range { to, index: index + base, value },
            TensorError::NoNan { to, index } => TensorError::NoNan { to, index: index + base },
            other => other,
        }
    }
}
