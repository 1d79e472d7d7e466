//! The whole-model rule: all weights into the pool that computes, or all of them left in the file.

use crate::{Change, Demand, Kind, Ledger, PlanError, Pool, Residency};
use serde::Serialize;
use std::collections::HashSet;

/// Where one weight lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Home {
    /// In the pool of this name.
    Pool(String),
    /// In the file, mapped. It takes memory only as page cache, which the system can take back at any time, and
    /// which no ledger counts.
    Mapped,
}

/// The home of one weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// The weight's name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Where it lives.
    pub home: Home,
}

/// A placement of everything that was demanded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What the wish came to: Device or Mmap, never Auto.
    pub residency: Residency,
    /// The home of each weight, in the order of the demands.
    pub placements: Vec<Placement>,
    /// Bytes of the weights that stay in the file.
    pub mapped_bytes: u64,
    /// What each pool holds, in the order of the pools.
    pub ledgers: Vec<Ledger>,
}

/// Places `demands` on `pools`. The first pool is that of the device that computes, and takes every demand that is
/// not mapped; the others hold their reserves.
///
/// [`Residency::Auto`] becomes Device when all demands together fit into the first pool (an exact fit fits), and
/// Mmap otherwise.
///
/// # Errors
/// [`PlanError::DoesNotFit`] if a pool is too small, with the smallest change that would help;
/// [`PlanError::NoPool`], [`PlanError::Duplicate`], [`PlanError::Overflow`].
pub fn plan(demands: &[Demand], pools: &[Pool], residency: Residency) -> Result<Plan, PlanError> {
    let compute = pools.first().ok_or(PlanError::NoPool)?;
    distinct("pools", pools.iter().map(|p| &p.name))?;
    let is_weight = |d: &&Demand| d.what == Kind::Weights;
    distinct("weights", demands.iter().filter(is_weight).map(|d| &d.name))?;

    // All weights and the rest, each on its own: in Mmap the two never share a pool.
    let unbounded = Pool::new(&compute.name, u64::MAX);
    let weights = Ledger::of(&unbounded, demands.iter().filter(is_weight))?.total_bytes();
    let rest = Ledger::of(compute, demands.iter().filter(|d| !is_weight(d)))?;
    // A rest that does not fit leaves no room, but no weights at all would take none.
    let resolved = residency.resolve(weights, rest.headroom_bytes());

    let mut ledger = rest;
    if resolved == Residency::Device {
        demands.iter().filter(is_weight).try_for_each(|demand| ledger.add(demand))?;
    }
    let others = pools[1..].iter().map(Ledger::new);
    let ledgers: Vec<Ledger> = std::iter::once(ledger).chain(others).collect();
    ledgers.iter().try_for_each(check)?;

    let home = match resolved {
        Residency::Device => Home::Pool(compute.name.clone()),
        _ => Home::Mapped,
    };
    let place = |d: &Demand| Placement { name: d.name.clone(), bytes: d.bytes, home: home.clone() };
    Ok(Plan {
        residency: resolved,
        placements: demands.iter().filter(is_weight).map(place).collect(),
        mapped_bytes: if home == Home::Mapped { weights } else { 0 },
        ledgers,
    })
}

/// Refuses a ledger that its pool does not hold.
fn check(ledger: &Ledger) -> Result<(), PlanError> {
    let bytes = ledger.short_bytes();
    if bytes == 0 {
        return Ok(());
    }
    let change = if ledger.bytes_of(Kind::Weights) >= bytes {
        Change::MapWeights
    } else if ledger.bytes_of(Kind::Carried) >= bytes {
        Change::ShrinkCarried { bytes }
    } else {
        Change::GrowPool { bytes }
    };
    Err(PlanError::DoesNotFit {
        pool: ledger.pool().to_owned(),
        wanted_bytes: ledger.total_bytes(),
        capacity_bytes: ledger.capacity_bytes(),
        short_bytes: bytes,
        change,
    })
}

/// Refuses a name that comes twice.
fn distinct<'a>(what: &'static str, names: impl Iterator<Item = &'a String>) -> Result<(), PlanError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(PlanError::Duplicate { what, name: name.clone() });
        }
    }
    Ok(())
}
