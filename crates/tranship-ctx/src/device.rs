//! A device by name: the backend, and which of its devices. Policies carry it; only backends know what it is.

use crate::CtxError;
use std::{fmt, str::FromStr};

/// A device: a backend's name and an index among its devices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// The backend's name: `cpu`, `reference`, `wgpu`, `cuda`.
    pub backend: String,
    /// Which of the backend's devices, from 0.
    pub index: u32,
}

impl Device {
    /// The first device of a backend.
    pub fn of(backend: impl Into<String>) -> Device {
        Device { backend: backend.into(), index: 0 }
    }

    /// The processor that the program runs on.
    pub fn cpu() -> Device {
        Device::of("cpu")
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => f.write_str(&self.backend),
            index => write!(f, "{}:{index}", self.backend),
        }
    }
}

impl FromStr for Device {
    type Err = CtxError;

    /// Reads `wgpu` or `wgpu:1`.
    fn from_str(text: &str) -> Result<Device, CtxError> {
        let unknown = || CtxError::UnknownDevice(text.to_owned());
        let (backend, index) = match text.split_once(':') {
            Some((backend, index)) => (backend, index.parse().map_err(|_| unknown())?),
            None => (text, 0),
        };
        let named = !backend.is_empty() && backend.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if named { Ok(Device { backend: backend.to_owned(), index }) } else { Err(unknown()) }
    }
}
