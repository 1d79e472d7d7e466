//! Where model weights live: demands and budgets in, a placement out. Pure arithmetic; nothing here opens a file,
//! asks a device or allocates what it plans.
//!
//! Everything that will take memory is a [`Demand`]; every memory is a [`Pool`]; a [`Ledger`] sets the one against
//! the other to the byte, and [`plan`] gives each weight a home. For now a model's weights stay together: all on the
//! device if everything fits, otherwise all mapped from their file.
//!
//! ```
//! use tranship_residency::{Demand, Home, Kind, Pool, Residency, plan};
//!
//! # fn main() -> Result<(), tranship_residency::PlanError> {
//! let demands = [
//!     Demand::new(Kind::Weights, "blk.0.attn_q.weight", 700),
//!     Demand::new(Kind::Carried, "k0", 200),
//!     Demand::new(Kind::Scratch, "logits", 50),
//! ];
//! let fits = plan(&demands, &[Pool::new("cpu", 950)], Residency::Auto)?;
//! assert_eq!(fits.residency, Residency::Device);
//! assert_eq!(fits.ledgers[0].headroom_bytes(), 0);
//!
//! let mapped = plan(&demands, &[Pool::new("cpu", 949)], Residency::Auto)?;
//! assert_eq!(mapped.placements[0].home, Home::Mapped);
//! assert_eq!(mapped.ledgers[0].headroom_bytes(), 699);
//!
//! let refused = plan(&demands, &[Pool::new("cpu", 949)], Residency::Device).unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     "pool `cpu` holds 949 bytes and 950 are demanded, 1 too many; mapping the weights (residency mmap) would fit"
//! );
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod error;
mod ledger;
mod plan;
mod residency;

pub use error::{Change, PlanError};
pub use ledger::{Demand, Kind, Ledger, Pool};
pub use plan::{Home, Placement, Plan, plan};
pub use residency::Residency;
