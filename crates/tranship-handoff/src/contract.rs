//! The contract: what a decode step carries, derived from the model's programs, and who it is good for.

use crate::layers::Lifted;
use crate::listed::Listed;
use crate::shares::{Layers, Share};
use crate::unique::unique;
use crate::{Handoff, HandoffError, HandoffTensor, Progress, Refusal};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use tranship_ctx::ComputeCtx;
use tranship_dtype::DType;
use tranship_model::ModelSpec;
use tranship_program::{Extent, Run, Segments};

/// The version of the manifest and of the hand-off file.
pub const VERSION: u64 = 1;

/// What two ends of a hand-off agree on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contract {
    /// The version of this form: [`VERSION`].
    pub version: u64,
    /// Rows that a sequence may have.
    pub ctx: u64,
    /// The width of the rows that pass a layer cut.
    pub hidden: u64,
    /// Streams of such rows.
    pub streams: u64,
    /// Carried tensors: layers in order, and in each the order in which its decode program touches them.
    pub carried: Vec<Carried>,
    /// What the state is good for.
    pub identity: Identity,
    /// Whose share of each tensor it is; the whole where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// Which of the layers it is of; all where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Layers>,
}

/// A carried tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Listed", into = "Listed")]
pub struct Carried {
    /// The tensor's name, as its program and the hand-off file have it.
    pub name: String,
    /// The layer that carries it.
    pub layer: u64,
    /// The axes of the whole tensor, outermost first.
    pub axes: Vec<Axis>,
    /// The element type.
    pub dtype: DType,
    /// Which rows are valid.
    pub extent: Extent,
    /// Where it may be cut for several holders. Without, each of them has it whole.
    pub segments: Option<Segments>,
}

/// An axis: what it counts, and how many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// What it counts.
    pub name: String,
    /// How many.
    pub size: u64,
}

/// What a state is good for: it continues only under the weights and programs that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The digest of the weights; none of a bare configuration.
    pub weights: Option<String>,
    /// The digest of the programs, which the context does not enter.
    pub programs: String,
    /// The numbers of the policy: [`ComputeCtx::numerics`].
    pub policy: String,
}

/// What a receiver accepts, and what it expects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expect<'a> {
    /// Whether another policy and other cache types are accepted, and converted.
    pub conversion: Conversion,
    /// The tokens that the hand-off must cover.
    pub tokens: Option<&'a [u32]>,
    /// The size of the vocabulary.
    pub vocab: Option<u64>,
}

/// Whether the receiver has declared that it converts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conversion {
    /// A hand-off of another policy or cache type is refused.
    #[default]
    None,
    /// Such a hand-off is taken, and its float values are converted to this end's types.
    Declared,
}

impl Carried {
    /// Rows: the size of the first axis.
    pub fn rows(&self) -> u64 {
        self.axes.first().map_or(1, |a| a.size)
    }

    /// Elements of a row: the product of the other axes.
    pub fn cols(&self) -> u64 {
        self.axes.iter().skip(1).fold(1, |n, a| n.saturating_mul(a.size))
    }

    /// Rows that are valid after `position` tokens.
    pub fn valid_rows(&self, position: u64) -> u64 {
        self.extent.valid_rows(position, self.rows())
    }

    /// The same rows by their logical numbers: of a ring or a frontier the positions that they stand at, of all others
    /// from 0. A hand-off holds them in this order.
    pub fn valid(&self, position: u64) -> Range<u64> {
        self.extent.valid(position, self.rows())
    }

    /// Bytes of `rows` rows; `None` if the size overflows or a row is no whole number of blocks.
    pub fn bytes(&self, rows: u64) -> Option<u64> {
        let row = self.dtype.row_bytes(usize::try_from(self.cols()).ok()?)?;
        (row as u64).checked_mul(rows)
    }

    /// The units that it may be cut between, for a person: each run as its count and what the axis counts, with the places
    /// that a unit takes where these are several. `whole` where there are none.
    pub fn units(&self) -> String {
        let Some((segments, axis)) = self.segments.as_ref().and_then(|s| Some((s, self.axes.get(s.axis)?)))
        else {
            return "whole".into();
        };
        let run = |&Run { count, size }: &Run| match size {
            1 => format!("{count} {}", axis.name),
            _ => format!("{count} {} × {size}", axis.name),
        };
        segments.runs.iter().map(run).collect::<Vec<_>>().join(" + ")
    }

    /// The shape of its valid rows after `position` tokens.
    pub fn valid_shape(&self, position: u64) -> Vec<u64> {
        let rest = self.axes.iter().skip(1).map(|a| a.size);
        std::iter::once(self.valid_rows(position)).chain(rest).collect()
    }
}

/// The contract of a model at a context length, in F32 throughout: the reference's.
///
/// # Errors
/// As [`Contract::of`].
pub fn contract(spec: &ModelSpec, ctx: u64) -> Result<Contract, HandoffError> {
    Contract::of(spec, ctx, &ComputeCtx::parity(tranship_ctx::Device::of("reference")), None)
}

impl Contract {
    /// Derives the contract of a model at a context length under a policy. `weights` is the digest of its weights,
    /// where it has any.
    ///
    /// # Errors
    /// [`HandoffError::Model`] or [`HandoffError::Program`] when the programs cannot be authored or lifted, or when
    /// a layer's prefill and decode programs carry different tensors; [`HandoffError::Homeless`] when a program takes
    /// something over from the step before it that is no layer's, or reads what nothing gives it.
    pub fn of(
        spec: &ModelSpec,
        ctx: u64,
        policy: &ComputeCtx,
        weights: Option<String>,
    ) -> Result<Contract, HandoffError> {
        let lifted = Lifted::of(spec, ctx)?;
        let carried = lifted.carried(policy);
        let programs = lifted.digest(spec)?;
        let (hidden, streams) = (spec.hidden, spec.streams);
        let identity = Identity { weights, programs, policy: policy.numerics() };
        let contract =
            Contract { version: VERSION, ctx, hidden, streams, carried, identity, share: None, layers: None };
        contract.valid()?;
        Ok(contract)
    }

    /// The carried tensors of one layer.
    pub fn of_layer(&self, layer: u64) -> impl Iterator<Item = &Carried> {
        self.carried.iter().filter(move |c| c.layer == layer)
    }

    /// Bytes of all rows: what a sequence takes of memory, wherever it stands.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.carried.iter().try_fold(0u64, |sum, c| sum.checked_add(c.bytes(c.rows())?))
    }

    /// Bytes of one sequence's valid rows after `position` tokens: what a hand-off takes.
    pub fn bytes(&self, position: u64) -> Option<u64> {
        self.carried.iter().try_fold(0u64, |sum, c| sum.checked_add(c.bytes(c.valid_rows(position))?))
    }

    /// The manifest as JSON, for a person and for scripts.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// [`HandoffError::Format`] or [`HandoffError::Version`].
    pub fn from_json(json: &str) -> Result<Contract, HandoffError> {
        let format = |e: serde_json::Error| HandoffError::Format(e.to_string());
        let value: serde_json::Value = serde_json::from_str(json).map_err(format)?;
        unique(json.as_bytes()).map_err(format)?;
        // Of another version, nothing but the version is known.
        if let Some(found) = value.get("version").and_then(serde_json::Value::as_u64)
            && found != VERSION
        {
            return Err(HandoffError::Version { wanted: VERSION, found });
        }
        let contract: Contract = serde_json::from_value(value).map_err(format)?;
        contract.valid()?;
        Ok(contract)
    }

    /// Holds a contract that came from outside to what this crate makes.
    pub(crate) fn valid(&self) -> Result<(), HandoffError> {
        if self.version != VERSION {
            return Err(HandoffError::Version { wanted: VERSION, found: self.version });
        }
        if self.ctx == 0 {
            return Err(HandoffError::Format("the manifest's contract has a `ctx` of 0".into()));
        }
        let mut names = std::collections::HashSet::new();
        for carried in &self.carried {
            let name = &carried.name;
            if !names.insert(name) {
                return Err(HandoffError::Format(format!("the manifest lists `{name}` twice")));
            }
            let sized = !carried.axes.is_empty() && carried.axes.iter().all(|a| a.size > 0);
            if !sized || carried.cols() == u64::MAX || carried.bytes(carried.rows()).is_none() {
                return Err(HandoffError::Format(format!(
                    "the manifest's axes of `{name}` have no size: empty, too large, or no whole blocks of {}",
                    carried.dtype
                )));
            }
            self.extent_holds(carried)?;
        }
        crate::shares::hold(self).map_err(HandoffError::Format)
    }

    /// Holds a tensor's rows to its extent: as many as `ctx` positions fill, or as many as a span reaches.
    fn extent_holds(&self, carried: &Carried) -> Result<(), HandoffError> {
        let (name, rows, ctx) = (&carried.name, carried.rows(), self.ctx);
        let wanted = match carried.extent {
            Extent::Append => (rows != ctx).then(String::new),
            Extent::Compressed { rate: 0 } | Extent::Frontier { rate: 0, .. } => {
                return Err(HandoffError::Format(format!("the manifest gives `{name}` a `rate` of 0")));
            }
            Extent::Compressed { rate } => {
                let wanted = (ctx / rate).max(1);
                (rows != wanted).then(|| format!(", where one for every {rate} positions makes {wanted}"))
            }
            Extent::Frontier { rate, keep } => {
                let reach = keep.saturating_add(rate - 1);
                (rows < reach).then(|| format!(", where a span of {rate} and {keep} kept reaches {reach}"))
            }
            _ => None,
        };
        wanted.map_or(Ok(()), |why| {
            let what = format!("the manifest gives `{name}` {rows} rows in a `ctx` of {ctx}{why}");
            Err(HandoffError::Format(what))
        })
    }

    /// Makes a hand-off of the rows that are valid after `progress`, and holds it to this contract.
    ///
    /// # Errors
    /// Every reason for which the tensors do not fit.
    pub fn take(&self, progress: Progress, tensors: Vec<HandoffTensor>) -> Result<Handoff, Refusal> {
        let handoff = Handoff::new(self.clone(), progress, tensors);
        self.check(&handoff)?;
        Ok(handoff)
    }

    /// Holds a hand-off to this contract.
    ///
    /// # Errors
    /// Every reason for which it does not fit, at once.
    pub fn check(&self, handoff: &Handoff) -> Result<(), Refusal> {
        self.check_for(handoff, &Expect::default())
    }

    /// Holds a hand-off to this contract and to what the receiver expects.
    ///
    /// # Errors
    /// Every reason for which it does not fit, at once.
    pub fn check_for(&self, handoff: &Handoff, expect: &Expect<'_>) -> Result<(), Refusal> {
        let errors = crate::check::all(self, handoff, expect);
        if errors.is_empty() { Ok(()) } else { Err(Refusal { errors }) }
    }
}
