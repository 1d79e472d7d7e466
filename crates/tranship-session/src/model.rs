//! A model: a checkpoint and what it says the model is.

use crate::SessionError;
use crate::sources::{Assembled, weight};
use std::path::Path;
use std::sync::OnceLock;
use tranship_backend::{Weight, Weights};
use tranship_ctx::ComputeCtx;
use tranship_dtype::DType;
use tranship_handoff::{Contract, weights_digest};
use tranship_model::{ModelSpec, Source};
use tranship_weights::{Checkpoint, Format, View};

/// A checkpoint, mapped, with its specification.
pub struct Model {
    checkpoint: Checkpoint,
    spec: ModelSpec,
    digest: OnceLock<String>,
    assembled: Assembled,
}

impl Model {
    /// Opens a model file, a folder, or a bare `config.json`.
    ///
    /// # Errors
    /// What is wrong with the files, with the configuration, or with the tensors that it asks for.
    pub fn open(path: &Path) -> Result<Model, SessionError> {
        let checkpoint = Checkpoint::open(path)?;
        let spec = ModelSpec::of(&checkpoint)?;
        if checkpoint.format() != Format::ConfigOnly {
            spec.check(&checkpoint)?;
        }
        Ok(Model { checkpoint, spec, digest: OnceLock::new(), assembled: Assembled::default() })
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Whether there are weights to run, beyond a configuration.
    pub fn has_weights(&self) -> bool {
        self.checkpoint.format() != Format::ConfigOnly
    }

    /// The digest of all weights, computed when it is first asked for; none of a bare configuration.
    pub fn digest(&self) -> Option<String> {
        self.has_weights().then(|| self.digest.get_or_init(|| digest_of(&self.checkpoint)).clone())
    }

    /// The type that a weight's [`Source`] has; of a bare configuration, the one that it names for all, but where the
    /// source itself says it.
    pub fn stored(&self, name: &str) -> Option<DType> {
        let source = Source::parse(name).ok()?;
        if !self.has_weights() {
            return Some(source.dtype().unwrap_or(self.spec.default_dtype()));
        }
        source.find(&self.checkpoint).ok().map(|found| found.dtype())
    }

    /// The contract at a context length under a policy, with the weights' digest.
    ///
    /// # Errors
    /// When the programs cannot be authored or lifted.
    pub fn contract(&self, ctx: u64, policy: &ComputeCtx) -> Result<Contract, SessionError> {
        Ok(Contract::of(&self.spec, ctx, policy, self.digest())?)
    }

    /// The weights as a backend takes them, by their sources: mapped, in place, but for those that no pieces of the map
    /// make up. These are put together when they are first asked for, and shared while someone holds them.
    pub fn weights(&self) -> Bound<'_> {
        Bound(self)
    }
}

fn digest_of(checkpoint: &Checkpoint) -> String {
    let views: Vec<View> = checkpoint.tensors_by_name().collect();
    weights_digest(views.iter().map(|v| (v.name(), v.dtype(), v.shape(), v.bytes())))
}

/// A model's weights, by their sources.
pub struct Bound<'a>(&'a Model);

impl Weights for Bound<'_> {
    fn weight(&self, name: &str) -> Option<Weight> {
        weight(&self.0.checkpoint, &self.0.assembled, name)
    }
}
