//! The backends that are compared: every one that this machine has, by name.

use crate::XtaskError;
use std::sync::Arc;
use tranship_backend::{Backend, Reference};

/// The names of the backends, the reference first.
pub fn names() -> Vec<&'static str> {
    vec!["reference"]
}

/// A backend by name, on a number of threads where it has threads; by default on as many as the machine has.
///
/// # Errors
/// [`XtaskError::Unknown`]; what the backend says when it cannot be opened.
pub fn open(name: &str, _threads: Option<usize>) -> Result<Arc<dyn Backend>, XtaskError> {
    match name {
        "reference" => Ok(Arc::new(Reference::new())),
        _ => Err(XtaskError::unknown("backend", name, names())),
    }
}
