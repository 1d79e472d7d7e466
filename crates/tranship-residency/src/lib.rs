//! Where model weights live: demands and budgets in, a placement out; pure, no I/O.

/// Where weights live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// Copied to the device.
    Device,
    /// Read in place from the mapped file.
    Mmap,
    /// Device where that fits, mapped otherwise.
    #[default]
    Auto,
}
