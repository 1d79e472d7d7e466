//! Weights as a backend gets them: type, shape, and bytes that stay where they are.

use std::collections::HashMap;
use std::sync::Arc;
use tranship_dtype::DType;
use tranship_tensor::Tensor;

/// Bytes that live as long as someone holds them: a part of a mapped file, or a tensor in memory.
pub trait Bytes: Send + Sync {
    /// The bytes; the same at every call.
    fn bytes(&self) -> &[u8];
}

/// A weight: row-major, `[out, in]` for a matrix.
#[derive(Clone)]
pub struct Weight {
    /// The stored type.
    pub dtype: DType,
    /// The sizes, outermost first.
    pub shape: Vec<usize>,
    /// The stored bytes.
    pub data: Arc<dyn Bytes>,
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
        let shape = tensor.shape().to_vec();
        self.map.insert(name.into(), Weight { dtype: tensor.dtype(), shape, data: Arc::new(tensor) });
    }
}

impl Weights for MapWeights {
    fn weight(&self, name: &str) -> Option<Weight> {
        self.map.get(name).cloned()
    }
}
