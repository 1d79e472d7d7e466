//! Shapes, host tensors and conversions between element types, block encodings included.
