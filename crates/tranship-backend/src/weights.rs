//! Weights as a backend gets them: type, shape, and bytes that stay where they are.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use tranship_dtype::DType;
use tranship_tensor::{Tensor, TensorError, decode};

/// Bytes that live as long as someone holds them: a part of a mapped file, or a tensor in memory.
pub trait Bytes: Send + Sync {
    /// The bytes; the same at every call.
    fn bytes(&self) -> &[u8];
}

/// A weight: row-major, `[out, in]` for a matrix, `[experts, out, in]` for a bank of them.
#[derive(Clone)]
pub struct Weight {
    /// The stored type.
    pub dtype: DType,
    /// The sizes, outermost first.
    pub shape: Vec<usize>,
    /// The stored bytes: equal parts of the first axis, in order. Usually one; a bank whose matrices do not lie side
    /// by side has one for each.
    pub pieces: Vec<Arc<dyn Bytes>>,
}

impl Weight {
    /// A weight whose bytes lie in one place.
    pub fn whole(dtype: DType, shape: Vec<usize>, data: Arc<dyn Bytes>) -> Weight {
        Weight { dtype, shape, pieces: vec![data] }
    }

    /// The bytes, where they lie in one place.
    pub fn one(&self) -> Option<&Arc<dyn Bytes>> {
        if let [one] = self.pieces.as_slice() { Some(one) } else { None }
    }

    /// How much of the first axis each piece holds; `None` where the axis has no such equal parts.
    pub fn piece_rows(&self) -> Option<usize> {
        let (rows, pieces) = (self.shape.first().copied().unwrap_or(1), self.pieces.len());
        (pieces > 0 && rows.is_multiple_of(pieces)).then(|| rows / pieces)
    }

    /// The size of all pieces together, in bytes; at most [`usize::MAX`].
    pub fn bytes_len(&self) -> usize {
        self.pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.bytes().len()))
    }

    /// All bytes in order: borrowed where they lie in one place, and a copy otherwise.
    pub fn joined(&self) -> Cow<'_, [u8]> {
        match self.one() {
            Some(one) => Cow::Borrowed(one.bytes()),
            None => Cow::Owned(self.pieces.iter().flat_map(|piece| piece.bytes()).copied().collect()),
        }
    }

    /// All elements as F32, in order.
    ///
    /// # Errors
    /// Elements that are no real numbers, or bytes that are not those of the shape.
    pub fn values(&self) -> Result<Vec<f32>, TensorError> {
        let mut values = vec![0.0; self.shape.iter().product()];
        if self.pieces.is_empty() {
            return Ok(values);
        }
        let part = values.len() / self.pieces.len();
        for (piece, out) in self.pieces.iter().zip(values.chunks_mut(part.max(1))) {
            decode(self.dtype, piece.bytes(), out)?;
        }
        Ok(values)
    }
}

/// Where a backend finds weights, by the names that programs give.
pub trait Weights {
    /// A weight, if there is one of that name.
    fn weight(&self, name: &str) -> Option<Weight>;
}

impl Bytes for Tensor {
    fn bytes(&self) -> &[u8] {
        Tensor::bytes(self)
    }
}

/// Weights held in memory.
#[derive(Default)]
pub struct MapWeights {
    map: HashMap<String, Weight>,
}

impl MapWeights {
    /// Adds a weight, in the place of one of the same name.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) {
        let weight = Weight::whole(tensor.dtype(), tensor.shape().to_vec(), Arc::new(tensor));
        self.insert_weight(name, weight);
    }

    /// Adds a weight of any number of pieces, in the place of one of the same name.
    pub fn insert_weight(&mut self, name: impl Into<String>, weight: Weight) {
        self.map.insert(name.into(), weight);
    }
}

impl Weights for MapWeights {
    fn weight(&self, name: &str) -> Option<Weight> {
        self.map.get(name).cloned()
    }
}
