//! Weights out of a checkpoint: what a program's source names, mapped where it lies, or put together once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tranship_backend::{Bytes, Weight};
use tranship_model::{Found, Piece, Source};
use tranship_tensor::Tensor;
use tranship_weights::Checkpoint;

/// What has been put together and is still held, by its source: two steps of one model share it.
#[derive(Default)]
pub(crate) struct Assembled(Mutex<HashMap<String, Weak<Tensor>>>);

/// A part of a map.
struct Mapped(Piece);

impl Bytes for Mapped {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// The weight of a source; `None` where there is none, which `ModelSpec::check` gives the reason of.
pub(crate) fn weight(checkpoint: &Checkpoint, assembled: &Assembled, name: &str) -> Option<Weight> {
    let found = Source::parse(name).ok()?.find(checkpoint).ok()?;
    let (dtype, shape) = (found.dtype(), found.shape());
    let pieces: Vec<Arc<dyn Bytes>> = match found.pieces() {
        Some(pieces) => pieces.into_iter().map(|piece| Arc::new(Mapped(piece)) as Arc<dyn Bytes>).collect(),
        None => vec![assembled.get(name, &found)?],
    };
    Some(Weight { dtype, shape, pieces })
}

impl Assembled {
    fn get(&self, name: &str, found: &Found) -> Option<Arc<Tensor>> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = held.get(name).and_then(Weak::upgrade) {
            return Some(tensor);
        }
        let mut tensor = Tensor::zeros(found.dtype(), &found.shape()).ok()?;
        found.assemble(tensor.bytes_mut());
        let tensor = Arc::new(tensor);
        held.insert(name.to_owned(), Arc::downgrade(&tensor));
        Some(tensor)
    }
}
