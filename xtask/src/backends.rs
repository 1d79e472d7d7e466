//! The backends that are compared: every one that this machine has, by name. That there are such is the façade's
//! knowledge.

use crate::XtaskError;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tranship::backends::{self, BackendOptions};
use tranship_backend::Backend;

/// The backend that the others are compared with.
pub const REFERENCE: &str = "reference";

/// The names of the backends, the reference first.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = backends::names().collect();
    names.sort_by_key(|name| *name != REFERENCE);
    names
}

/// A backend by name, on a number of threads where it has threads; by default on as many as the machine has.
///
/// # Errors
/// [`XtaskError::Facade`] for an unknown name, and for what the backend says when it cannot be opened.
pub fn open(name: &str, threads: Option<NonZeroUsize>) -> Result<Arc<dyn Backend>, XtaskError> {
    Ok(backends::open(name, &BackendOptions { threads })?)
}
