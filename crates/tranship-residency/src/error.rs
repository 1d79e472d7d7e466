//! Why there is no plan, and what would change that.

use crate::Kind;
use std::fmt;

/// Why demands could not be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A name that is no residency.
    #[error("`{0}` is not a residency (device, mmap or auto)")]
    Unknown(String),
    /// There is no pool to place anything in.
    #[error("there is no memory pool to plan for")]
    NoPool,
    /// Two pools, or two weights, have the same name, so that a placement would be ambiguous.
    #[error("two {what} are named `{name}`")]
    Duplicate {
        /// What kind of thing: `pools` or `weights`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The demands add up to more bytes than can be counted.
    #[error("the {kind} demands, up to `{name}`, add up to more than 2^64 bytes on pool `{pool}`")]
    Overflow {
        /// The pool.
        pool: String,
        /// The kind of the demand that could not be added.
        kind: Kind,
        /// The name of the demand that could not be added.
        name: String,
    },
    /// A pool is smaller than what is demanded of it.
    #[error(
        "pool `{pool}` holds {capacity_bytes} bytes and {wanted_bytes} are demanded, {short_bytes} too many; {change}"
    )]
    DoesNotFit {
        /// The pool.
        pool: String,
        /// Bytes demanded of it, its reserve included.
        wanted_bytes: u64,
        /// Bytes it has.
        capacity_bytes: u64,
        /// The difference.
        short_bytes: u64,
        /// The smallest single change after which the same demands fit.
        change: Change,
    },
}

/// A single change after which demands fit that did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Ask for [`Residency::Mmap`](crate::Residency::Mmap): everything but the weights fits.
    MapWeights,
    /// Carry fewer bytes, which means a shorter context or a narrower type for it.
    ShrinkCarried {
        /// By how much.
        bytes: u64,
    },
    /// Give the pool more memory.
    GrowPool {
        /// By how much.
        bytes: u64,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::MapWeights => f.write_str("mapping the weights (residency mmap) would fit"),
            Change::ShrinkCarried { bytes } => {
                write!(f, "a context or cache type that carries {bytes} bytes less would fit")
            }
            Change::GrowPool { bytes } => write!(f, "a pool with {bytes} bytes more would fit"),
        }
    }
}
