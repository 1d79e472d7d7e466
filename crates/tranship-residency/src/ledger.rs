//! What is wanted and what there is: demands, pools, and the ledger that sets one against the other.

use crate::PlanError;
use serde::{Serialize, Serializer, ser::SerializeStruct};
use std::fmt;

/// What memory is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Model weights; the only kind that has a choice of home.
    Weights,
    /// What a decode step carries to the next: key/value caches, recurrent state.
    Carried,
    /// Values that live from one op to another.
    Activations,
    /// Working memory of single ops.
    Scratch,
    /// Buffers through which bytes are brought in.
    Staging,
    /// Held back, for others or for what is not counted.
    Reserve,
}

impl Kind {
    /// All kinds, in the order that ledgers list them.
    pub const ALL: [Kind; 6] =
        [Kind::Weights, Kind::Carried, Kind::Activations, Kind::Scratch, Kind::Staging, Kind::Reserve];

    /// The name in lower case: `weights`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Weights => "weights",
            Kind::Carried => "carried",
            Kind::Activations => "activations",
            Kind::Scratch => "scratch",
            Kind::Staging => "staging",
            Kind::Reserve => "reserve",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Memory that something wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Demand {
    /// What for.
    pub what: Kind,
    /// Whose: the tensor's name.
    pub name: String,
    /// How much.
    pub bytes: u64,
}

impl Demand {
    /// A demand for `bytes`.
    pub fn new(what: Kind, name: impl Into<String>, bytes: u64) -> Demand {
        Demand { what, name: name.into(), bytes }
    }
}

/// Memory that there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// The name that budgets and placements use: `cpu`, `cuda:0`.
    pub name: String,
    /// All bytes of the pool that may be planned with.
    pub capacity_bytes: u64,
    /// Bytes of these to leave alone; every ledger begins with them.
    pub reserve_bytes: u64,
}

impl Pool {
    /// A pool without a reserve.
    pub fn new(name: impl Into<String>, capacity_bytes: u64) -> Pool {
        Pool { name: name.into(), capacity_bytes, reserve_bytes: 0 }
    }

    /// The same pool with a reserve.
    pub fn with_reserve(self, reserve_bytes: u64) -> Pool {
        Pool { reserve_bytes, ..self }
    }
}

/// What one pool is asked to hold, by kind.
///
/// As JSON: `{"pool", "capacity_bytes", "weights_bytes", "carried_bytes", …, "reserve_bytes", "total_bytes",
/// "headroom_bytes"}`, the last being 0 where the pool is too small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    pool: String,
    capacity_bytes: u64,
    bytes: [u64; 6],
    total_bytes: u64,
}

impl Ledger {
    /// The ledger of a pool that holds its reserve and nothing else.
    pub fn new(pool: &Pool) -> Ledger {
        let mut bytes = [0; 6];
        bytes[Kind::Reserve as usize] = pool.reserve_bytes;
        Ledger {
            pool: pool.name.clone(),
            capacity_bytes: pool.capacity_bytes,
            bytes,
            total_bytes: pool.reserve_bytes,
        }
    }

    /// The ledger of a pool with its reserve and these demands.
    ///
    /// # Errors
    /// [`PlanError::Overflow`].
    pub fn of<'a>(pool: &Pool, demands: impl IntoIterator<Item = &'a Demand>) -> Result<Ledger, PlanError> {
        let mut ledger = Ledger::new(pool);
        demands.into_iter().try_for_each(|demand| ledger.add(demand))?;
        Ok(ledger)
    }

    /// Enters a demand.
    ///
    /// # Errors
    /// [`PlanError::Overflow`], which leaves the ledger as it was.
    pub fn add(&mut self, demand: &Demand) -> Result<(), PlanError> {
        let total = self.total_bytes.checked_add(demand.bytes).ok_or_else(|| PlanError::Overflow {
            pool: self.pool.clone(),
            kind: demand.what,
            name: demand.name.clone(),
        })?;
        self.total_bytes = total;
        // No part is larger than the total.
        self.bytes[demand.what as usize] += demand.bytes;
        Ok(())
    }

    /// The pool's name.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Bytes of the pool.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes demanded for one kind.
    pub fn bytes_of(&self, kind: Kind) -> u64 {
        self.bytes[kind as usize]
    }

    /// Bytes demanded in all.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes that stay free; 0 if the pool is full or too small.
    pub fn headroom_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.total_bytes)
    }

    /// Bytes by which the pool is too small; 0 if everything fits.
    pub fn short_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.capacity_bytes)
    }
}

impl Serialize for Ledger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const KEYS: [&str; 6] = [
            "weights_bytes",
            "carried_bytes",
            "activations_bytes",
            "scratch_bytes",
            "staging_bytes",
            "reserve_bytes",
        ];
        let mut fields = serializer.serialize_struct("Ledger", 10)?;
        fields.serialize_field("pool", &self.pool)?;
        fields.serialize_field("capacity_bytes", &self.capacity_bytes)?;
        for (key, bytes) in KEYS.into_iter().zip(&self.bytes) {
            fields.serialize_field(key, bytes)?;
        }
        fields.serialize_field("total_bytes", &self.total_bytes)?;
        fields.serialize_field("headroom_bytes", &self.headroom_bytes())?;
        fields.end()
    }
}
