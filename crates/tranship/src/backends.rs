//! The backends by name: the one place that knows which there are.
//!
//! ```
//! use tranship::backends::{self, BackendOptions};
//!
//! # fn main() -> Result<(), tranship::Error> {
//! for name in backends::names() {
//!     let backend = backends::open(name, &BackendOptions::default())?;
//!     assert_eq!(backend.name(), name);
//! }
//! assert!(backends::open("abacus", &BackendOptions::default()).is_err());
//! # Ok(())
//! # }
//! ```

use crate::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tranship_backend::{Backend, Reference};
use tranship_cpu::CpuBackend;

/// How a backend is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendOptions {
    /// Threads of a backend that computes on the host's processor; by default as many as it has cores. The
    /// reference interpreter has one, whatever is asked for.
    pub threads: Option<NonZeroUsize>,
}

/// A backend: its name, the policy that it has unless another is asked for, and how it is opened.
struct Entry {
    name: &'static str,
    policy: &'static str,
    open: fn(&BackendOptions) -> Result<Arc<dyn Backend>, Error>,
}

/// The backends, the default first.
const ENTRIES: &[Entry] = &[
    Entry { name: "cpu", policy: "quantized", open: cpu },
    Entry { name: "reference", policy: "serving", open: reference },
];

fn cpu(options: &BackendOptions) -> Result<Arc<dyn Backend>, Error> {
    let device = |e: tranship_cpu::CpuError| Error::Device { backend: "cpu", what: e.to_string() };
    Ok(Arc::new(CpuBackend::new(options.threads.map(NonZeroUsize::get)).map_err(device)?))
}

fn reference(_: &BackendOptions) -> Result<Arc<dyn Backend>, Error> {
    Ok(Arc::new(Reference::new()))
}

/// The names of the backends, the default first.
pub fn names() -> impl Iterator<Item = &'static str> {
    ENTRIES.iter().map(|e| e.name)
}

/// The backend that computes where none is named.
pub fn default_name() -> &'static str {
    ENTRIES[0].name
}

/// The policy of a backend where none is named: `quantized` on the processor, `serving` elsewhere.
///
/// # Errors
/// [`Error::UnknownBackend`].
pub fn default_policy(name: &str) -> Result<&'static str, Error> {
    Ok(entry(name)?.policy)
}

/// Opens a backend.
///
/// # Errors
/// [`Error::UnknownBackend`], or what the device says.
pub fn open(name: &str, options: &BackendOptions) -> Result<Arc<dyn Backend>, Error> {
    (entry(name)?.open)(options)
}

fn entry(name: &str) -> Result<&'static Entry, Error> {
    ENTRIES.iter().find(|e| e.name == name).ok_or_else(|| Error::UnknownBackend {
        name: name.to_owned(),
        known: names().collect::<Vec<_>>().join(", "),
    })
}
