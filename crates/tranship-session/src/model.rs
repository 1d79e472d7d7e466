//! A model: a checkpoint and what it says the model is.

use crate::SessionError;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tranship_backend::{Bytes, Weight, Weights};
use tranship_ctx::ComputeCtx;
use tranship_dtype::DType;
use tranship_handoff::{Contract, weights_digest};
use tranship_model::ModelSpec;
use tranship_weights::{Checkpoint, Format, View};

/// A checkpoint, mapped, with its specification.
pub struct Model {
    checkpoint: Checkpoint,
    spec: ModelSpec,
    digest: OnceLock<String>,
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
        Ok(Model { checkpoint, spec, digest: OnceLock::new() })
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

    /// The type that a weight is stored in; of a bare configuration, the one that it names for all.
    pub fn stored(&self, name: &str) -> Option<DType> {
        match self.checkpoint.get(name) {
            Some(view) => Some(view.dtype()),
            None if !self.has_weights() => Some(self.spec.default_dtype()),
            None => None,
        }
    }

    /// The contract at a context length under a policy, with the weights' digest.
    ///
    /// # Errors
    /// When the programs cannot be authored or lifted.
    pub fn contract(&self, ctx: u64, policy: &ComputeCtx) -> Result<Contract, SessionError> {
        Ok(Contract::of(&self.spec, ctx, policy, self.digest())?)
    }

    /// The weights as a backend takes them: mapped, in place.
    pub fn weights(&self) -> Bound<'_> {
        Bound(&self.checkpoint)
    }
}

fn digest_of(checkpoint: &Checkpoint) -> String {
    let views: Vec<View> = checkpoint.tensors_by_name().collect();
    weights_digest(views.iter().map(|v| (v.name(), v.dtype(), v.shape(), v.bytes())))
}

/// A checkpoint's tensors as weights.
pub struct Bound<'a>(&'a Checkpoint);

struct Mapped(View);

impl Bytes for Mapped {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl Weights for Bound<'_> {
    fn weight(&self, name: &str) -> Option<Weight> {
        let view = self.0.get(name)?;
        Some(Weight::whole(view.dtype(), view.shape().to_vec(), Arc::new(Mapped(view))))
    }
}
