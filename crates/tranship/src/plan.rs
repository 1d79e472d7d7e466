//! What a model will take of memory, counted before a byte of it is loaded, and where that is put.
//!
//! [`demands`] lists weights, carried state, activations and scratch; [`pools`] reads a budget; and
//! [`residency::plan`](crate::residency::plan) sets the one against the other. A bare `config.json` is enough.
//!
//! # How exact it is
//!
//! Weights are counted by their sources, in the type that the device will hold (wider than the stored one where it must
//! be widened), and carried state by tensor from the contract: both to the byte. A weight that is rows of a tensor counts
//! those alone, so a tensor that several weights divide among them is counted once; and one that is put together from
//! tensors counts what it is put together to. Activations and scratch are estimates
//! of what any backend needs: the most bytes of computed rows that are live at once in any of the programs, for the
//! rows of one batch, then one row of logits and one row of attention scores for each sequence. A backend that
//! pads, packs or tiles takes more; one that fuses takes less.
//!
//! ```
//! use tranship::plan::{Load, demands, pools};
//! use tranship::prelude::*;
//!
//! # fn main() -> Result<(), tranship::Error> {
//! let folder = tranship::demo::unpack()?;
//! let model = Model::open(folder.path())?;
//! let policy = ComputeCtx::quantized(Device::cpu());
//! let demands = demands(&model, &policy, &Default::default(), &Load::new(128))?;
//! let plan = tranship::residency::plan(&demands, &pools(Some("host=16MiB"))?, Residency::Auto)?;
//! assert_eq!(plan.residency, Residency::Device);
//! # Ok(())
//! # }
//! ```

use crate::Error;
use tranship_ctx::{Accepts, ComputeCtx, Typed};
use tranship_dtype::DType;
use tranship_program::{Action, Dim, Graph, Op, ValueId};
use tranship_residency::{Demand, Kind, Pool};
use tranship_session::{Model, Phase, Section, chain};

/// What a model is asked to do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Rows that a sequence may have.
    pub ctx: u64,
    /// Sequences that are in progress together.
    pub sequences: u64,
    /// Rows that are computed in one batch.
    pub rows: u64,
}

impl Load {
    /// One sequence, in batches of up to 512 rows, as a session has by default.
    pub fn new(ctx: u64) -> Load {
        Load { ctx, sequences: 1, rows: ctx.min(512) }
    }
}

/// Everything that will take memory when a model runs: weights, carried state, activations and scratch.
///
/// # Errors
/// When the programs cannot be authored or typed, or a size cannot be counted.
pub fn demands(
    model: &Model,
    policy: &ComputeCtx,
    accepts: &Accepts,
    load: &Load,
) -> Result<Vec<Demand>, Error> {
    let mut demands = weights(model, accepts)?;
    let contract = tranship_handoff::Contract::of(model.spec(), load.ctx, policy, None)?;
    for carried in &contract.carried {
        let bytes = carried.bytes(carried.rows()).and_then(|b| b.checked_mul(load.sequences));
        let size = || Error::Size {
            name: carried.name.clone(),
            shape: carried.axes.iter().map(|a| a.size).collect(),
            dtype: carried.dtype,
        };
        demands.push(Demand::new(Kind::Carried, carried.name.clone(), bytes.ok_or_else(size)?));
    }
    let rows = usize::try_from(load.rows).unwrap_or(usize::MAX);
    let chain = chain(model, policy, accepts, (&Section::whole(model), Phase::Prefill), (load.ctx, rows))?;
    // The head comes last, and runs on the last row of each sequence alone.
    let (head, layers) = chain.parts.split_last().map_or((None, &[][..]), |(h, l)| (Some(h), l));
    let sizes = |n: u64| Sizes { n, ctx: load.ctx };
    let activations = layers.iter().map(|p| live_bytes(p, sizes(load.rows))).max().unwrap_or(0);
    demands.push(Demand::new(Kind::Activations, "rows of a batch", activations));
    let logits = head.map_or(0, |h| live_bytes(h, sizes(load.sequences)));
    demands.push(Demand::new(Kind::Activations, "logits", logits));
    let scores = layers.iter().map(|p| score_bytes(p, load.ctx)).max().unwrap_or(0);
    let scores = scores.saturating_mul(load.sequences);
    demands.push(Demand::new(Kind::Scratch, "attention scores", scores));
    Ok(demands)
}

/// A demand for each weight that the programs name.
fn weights(model: &Model, accepts: &Accepts) -> Result<Vec<Demand>, Error> {
    let demand = |(name, shape): (String, Vec<u64>)| {
        let stored = model.stored(&name).unwrap_or(model.spec().default_dtype());
        let dtype = accepts.weights.widened(stored).unwrap_or(stored);
        match tensor_bytes(dtype, &shape) {
            Some(bytes) => Ok(Demand::new(Kind::Weights, name, bytes)),
            None => Err(Error::Size { name, shape, dtype }),
        }
    };
    model.spec().required()?.into_iter().map(demand).collect()
}

/// Bytes of a tensor of this type and shape; `None` where a row is no whole number of blocks or the size overflows.
pub fn tensor_bytes(dtype: DType, shape: &[u64]) -> Option<u64> {
    let (cols, rows) = shape.split_last().map_or((1, &[][..]), |(c, r)| (*c, r));
    let row = dtype.row_bytes(usize::try_from(cols).ok()?)? as u64;
    rows.iter().try_fold(row, |bytes, axis| bytes.checked_mul(*axis))
}

/// Rows of one batch and positions of one sequence.
#[derive(Clone, Copy)]
struct Sizes {
    n: u64,
    ctx: u64,
}

impl Sizes {
    /// The most rows that an axis of this size has.
    fn rows(self, dim: Dim) -> u64 {
        match dim {
            Dim::Fixed(rows) => rows,
            Dim::N => self.n,
            Dim::PosN => self.ctx,
            Dim::After(before) => before.saturating_add(self.n),
            Dim::Per(rate) => self.ctx / rate.max(1),
        }
    }
}

/// The most bytes of computed rows that are live at once, in batches and sequences of these sizes.
fn live_bytes(typed: &Typed, sizes: Sizes) -> u64 {
    let graph = typed.graph();
    let mut last_use = vec![0usize; graph.values.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        node.action.inputs().iter().for_each(|id| last_use[id.0] = at);
    }
    last_use[graph.result.0] = graph.nodes.len();
    let rows = |id: ValueId| sizes.rows(graph.value(id).shape.rows());
    let bytes = |id: ValueId| row_bytes(graph, typed.dtype(id), id).saturating_mul(rows(id));
    let is_rows = |id: ValueId| graph.value(id).shape.rows() == Dim::N;
    let inputs: Vec<ValueId> = graph.declared().map(|(id, _)| id).filter(|id| is_rows(*id)).collect();
    let mut live: Vec<ValueId> = inputs;
    let mut most = 0u64;
    for (at, node) in graph.nodes.iter().enumerate() {
        // A read is a view of what the state holds.
        if let Action::Apply { out, .. } | Action::Update { out, .. } = &node.action {
            live.push(*out);
        }
        most = most.max(live.iter().fold(0, |sum, id| bytes(*id).saturating_add(sum)));
        live.retain(|id| last_use[id.0] > at);
    }
    most
}

/// Bytes of one row; a row that is no whole number of blocks is counted in its unpadded bits.
fn row_bytes(graph: &Graph, dtype: DType, id: ValueId) -> u64 {
    let cols = graph.value(id).shape.cols();
    let blocks = cols.div_ceil(dtype.block_len() as u64);
    blocks.saturating_mul(dtype.block_bytes() as u64)
}

/// Bytes of one row of attention scores: a score of each head for each row of the caches that it may see.
fn score_bytes(typed: &Typed, ctx: u64) -> u64 {
    let graph = typed.graph();
    // Of a ring's joined rows, a query sees those up to its own.
    let seen = |id: ValueId| Sizes { n: 1, ctx }.rows(graph.value(id).shape.rows());
    let of_node = |(i, node): (usize, &tranship_program::Node)| {
        let Action::Apply { op, args, .. } = &node.action else { return None };
        let scores = match op {
            Op::Attend(attend) => attend.heads.saturating_mul(seen(args[1])),
            Op::LatentAttend(attend) => attend.heads.saturating_mul(ctx),
            Op::CompressedAttend(attend) => {
                attend.heads.saturating_mul(seen(args[1]).saturating_add(seen(args[2])))
            }
            Op::Choose(_) => seen(args[1]),
            _ => return None,
        };
        let accum = typed.accum(i).unwrap_or(DType::F32).block_bytes() as u64;
        Some(scores.saturating_mul(accum))
    };
    graph.nodes.iter().enumerate().filter_map(of_node).max().unwrap_or(0)
}

/// The pools of a budget, `host=8GiB,gpu=512MB`, the one that computes first; without one, the memory of this
/// machine as `host`, a sixteenth of it reserved.
///
/// # Errors
/// [`Error::Budget`], [`Error::NoMemory`].
pub fn pools(budget: Option<&str>) -> Result<Vec<Pool>, Error> {
    let Some(text) = budget else {
        let total = host_bytes().ok_or(Error::NoMemory)?;
        return Ok(vec![Pool::new("host", total).with_reserve(total / 16)]);
    };
    let fault = |why: String| Error::Budget { text: text.to_owned(), why };
    let pool = |part: &str| {
        let (name, size) = part.split_once('=').ok_or_else(|| fault(format!("`{part}` has no `=`")))?;
        if name.trim().is_empty() {
            return Err(fault(format!("`{part}` names no pool")));
        }
        let bytes = size_bytes(size).ok_or_else(|| fault(format!("`{size}` is no size")))?;
        Ok(Pool::new(name.trim(), bytes))
    };
    text.split(',').map(pool).collect()
}

/// Reads a size: `1.5G`, `512MB` and `8GiB`, in either case. `KB` and its like are powers of 1000, `KiB` and the bare
/// letters powers of 1024, as memory is sold; no unit is bytes. Fractions of a byte are cut off.
pub fn size_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let (letter, rest) = unit.split_at(unit.len().min(1));
    let (base, power) = match (letter, rest) {
        ("" | "b", "") => (1.0f64, 0),
        ("k" | "m" | "g" | "t", "" | "ib") => (1024.0, 1 + "kmgt".find(letter)? as i32),
        ("k" | "m" | "g" | "t", "b") => (1000.0, 1 + "kmgt".find(letter)? as i32),
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    let bytes = number * base.powi(power);
    (bytes.is_finite() && bytes < u64::MAX as f64).then_some(bytes as u64)
}

/// All memory of this machine, where the system says it.
pub fn host_bytes() -> Option<u64> {
    proc_kib("/proc/meminfo", "MemTotal:")
}

/// The most memory that this process has had resident so far, where the system says it.
pub fn peak_rss_bytes() -> Option<u64> {
    proc_kib("/proc/self/status", "VmHWM:")
}

/// The bytes of a line `key  number kB`.
fn proc_kib(file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        let cases = [
            ("0", Some(0)),
            ("17", Some(17)),
            ("17B", Some(17)),
            ("1k", Some(1024)),
            ("1KB", Some(1000)),
            ("1KiB", Some(1024)),
            ("512MB", Some(512_000_000)),
            ("1.5G", Some(3 << 29)),
            ("8 GiB", Some(8 << 30)),
            ("2T", Some(2 << 40)),
            ("", None),
            ("G", None),
            ("1Q", None),
            ("1ib", None),
            ("1GBs", None),
            ("-1", None),
            ("1.2.3", None),
            ("99999999T", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(size_bytes(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn budgets_are_read_or_refused_by_name() {
        let pools = pools(Some("cpu=1KiB, gpu=2KiB")).expect("a budget");
        assert_eq!(pools, [Pool::new("cpu", 1024), Pool::new("gpu", 2048)]);
        for (text, why) in
            [("cpu", "no `=`"), ("=1G", "names no pool"), ("cpu=lots", "`lots`"), ("", "no `=`")]
        {
            let error = super::pools(Some(text)).expect_err(text).to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
