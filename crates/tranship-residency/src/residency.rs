//! The wish: where a model's weights should live, as a policy states it.

use crate::PlanError;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Where a model's weights live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// Copied into the memory of the device that computes.
    Device,
    /// Left in the file and mapped: pages come in as they are read, and may be dropped again.
    Mmap,
    /// [`Residency::Device`] when it fits, [`Residency::Mmap`] otherwise.
    #[default]
    Auto,
}

impl Residency {
    /// The name in lower case: `device`, `mmap`, `auto`.
    pub const fn name(self) -> &'static str {
        match self {
            Residency::Device => "device",
            Residency::Mmap => "mmap",
            Residency::Auto => "auto",
        }
    }

    /// What [`Residency::Auto`] comes to for weights of `model_bytes`: Device when they fit into
    /// `available_bytes` (an exact fit fits), else Mmap. The other two pass through.
    pub const fn resolve(self, model_bytes: u64, available_bytes: u64) -> Residency {
        match self {
            Residency::Auto if model_bytes <= available_bytes => Residency::Device,
            Residency::Auto => Residency::Mmap,
            stated => stated,
        }
    }
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Residency {
    type Err = PlanError;

    /// Reads [`Residency::name`], in either case.
    fn from_str(s: &str) -> Result<Residency, PlanError> {
        [Residency::Device, Residency::Mmap, Residency::Auto]
            .into_iter()
            .find(|r| r.name().eq_ignore_ascii_case(s))
            .ok_or_else(|| PlanError::Unknown(s.to_owned()))
    }
}
