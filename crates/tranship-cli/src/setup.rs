//! From flags to things: the model, a backend with its policy, a context length, tokens, a session.

use crate::args::{Compute, Covers, Input, Parts};
use crate::error::CliError;
use std::path::Path;
use std::sync::Arc;
use tranship::backends::{self, BackendOptions};
use tranship::ctx::{ComputeCtx, Device};
use tranship::model::ModelError;
use tranship::prelude::{Backend, Model, Options, Sampler, SamplerOptions, Session, Specials, Tokenizer};
use tranship::session::{Part, SessionError};
use tranship::{Error, text};

/// The context that a model gets where none is asked for and the tokens need no more.
const CTX: u64 = 2048;

/// Opens a model. Errors name its path.
pub fn model(path: &Path) -> Result<Arc<Model>, CliError> {
    match Model::open(path) {
        Ok(model) => Ok(Arc::new(model)),
        // Those of the files say themselves which file it is.
        Err(
            error @ (SessionError::Weights(_)
            | SessionError::Model(ModelError::Weights(_) | ModelError::NoConfig { .. })),
        ) => Err(error.into()),
        Err(error) => Err(CliError::of(path, error)),
    }
}

/// Opens a model that can run: one with weights.
pub fn runnable(path: &Path) -> Result<Arc<Model>, CliError> {
    let model = model(path)?;
    if model.has_weights() {
        return Ok(model);
    }
    Err(SessionError::NoWeights(model.checkpoint().path().display().to_string()).into())
}

/// A backend, or several with the layers of each, and the policy that they compute under.
pub struct Chip {
    /// The backend; of several, that of the first layers.
    pub backend: Arc<dyn Backend>,
    /// The parts of a model that is split; none of one that is not.
    pub parts: Vec<Part>,
    /// The policy.
    pub policy: ComputeCtx,
    /// The policy's name.
    pub policy_name: String,
}

impl Compute {
    /// The backend that is asked for, or the default.
    pub fn chip(&self) -> Result<Chip, CliError> {
        self.chip_named(self.backend_name())
    }

    /// A backend by name, with the policy that is asked for, or the backend's own.
    pub fn chip_named(&self, name: &str) -> Result<Chip, CliError> {
        let backend = backends::open(name, &BackendOptions { threads: self.threads })?;
        let policy_name = match &self.policy {
            Some(policy) => policy.clone(),
            None => backends::default_policy(name)?.to_owned(),
        };
        let policy = ComputeCtx::preset(&policy_name, Device::of(name))?;
        Ok(Chip { backend, parts: Vec::new(), policy, policy_name })
    }

    /// The backends of the layers, if parts are asked for, under the policy that is asked for or the first one's own;
    /// else as [`Compute::chip`].
    pub fn chip_of(&self, parts: &Parts) -> Result<Chip, CliError> {
        let Some(first) = parts.layers.first() else { return self.chip() };
        let mut chip = self.chip_named(&first.backend)?;
        for run in &parts.layers {
            // A backend that is named twice is opened once: its parts share its threads.
            let opened = chip.parts.iter().map(|part| &part.backend).chain([&chip.backend]);
            let backend = match opened.into_iter().find(|opened| opened.name() == run.backend) {
                Some(opened) => opened.clone(),
                None => backends::open(&run.backend, &BackendOptions { threads: self.threads })?,
            };
            chip.parts.push(Part { backend, layers: run.layers.clone() });
        }
        Ok(chip)
    }

    /// The name of the backend that is asked for, or of the default.
    pub fn backend_name(&self) -> &str {
        self.backend.as_deref().unwrap_or(backends::default_name())
    }

    /// The context: the one that is asked for; else 2048 or, where more, `rows`, but never past the positions that
    /// the model was made for.
    pub fn ctx_for(&self, model: &Model, rows: u64) -> u64 {
        self.ctx.unwrap_or_else(|| model.spec().max_positions.min(CTX.max(rows)))
    }
}

impl Chip {
    /// A session of a model on this backend, or in these parts.
    pub fn session(&self, model: &Arc<Model>, ctx: u64) -> Result<Session, CliError> {
        let (model, policy, options) = (model.clone(), self.policy.clone(), Options::new(ctx));
        if self.parts.is_empty() {
            return Ok(Session::open(model, self.backend.clone(), policy, options)?);
        }
        Ok(Session::split(model, self.parts.clone(), policy, options)?)
    }

    /// The backends, each once: by name or by description, as `of` says.
    pub fn backends<'c>(&'c self, of: impl Fn(&'c dyn Backend) -> &'c str) -> Vec<&'c str> {
        let mut told = vec![of(self.backend.as_ref())];
        for part in &self.parts {
            let own = of(part.backend.as_ref());
            if !told.contains(&own) {
                told.push(own);
            }
        }
        told
    }
}

/// The model's tokenizer, if it has one; `None` where there is none.
pub fn tokenizer(model: &Model) -> Result<Option<Tokenizer>, CliError> {
    match text::tokenizer(model) {
        Ok(tokenizer) => Ok(Some(tokenizer)),
        Err(Error::NoTokenizer { .. }) => Ok(None),
        Err(error) => Err(of(model, error)),
    }
}

/// An error about a model that does not name it.
pub fn of(model: &Model, source: Error) -> CliError {
    match source {
        named @ (Error::NoTokenizer { .. } | Error::NotText { .. } | Error::Weights(_)) => named.into(),
        source => CliError::of(model.checkpoint().path(), source),
    }
}

impl Input {
    /// The tokens, of which there is at least one.
    pub fn tokens(&self, model: &Model) -> Result<Vec<u32>, CliError> {
        let tokens = tokens(model, self.prompt.as_deref(), self.tokens.as_deref())?.unwrap_or_default();
        match &self.prompt {
            Some(prompt) if tokens.is_empty() => Err(CliError::EmptyPrompt { prompt: prompt.clone() }),
            _ => Ok(tokens),
        }
    }
}

impl Covers {
    /// The tokens, if any are given.
    pub fn tokens(&self, model: &Model) -> Result<Option<Vec<u32>>, CliError> {
        tokens(model, self.prompt.as_deref(), self.tokens.as_deref())
    }
}

fn tokens(model: &Model, prompt: Option<&str>, tokens: Option<&[u32]>) -> Result<Option<Vec<u32>>, CliError> {
    let Some(prompt) = prompt else { return Ok(tokens.map(<[u32]>::to_vec)) };
    let tokenizer = text::tokenizer(model).map_err(|e| of(model, e))?;
    Ok(Some(tokenizer.encode_text(prompt, Specials::Add)?))
}

/// The most probable token. NaN among the logits is an error, as it is where tokens are drawn.
pub fn most_probable(logits: &[f32]) -> Result<u32, CliError> {
    Ok(Sampler::new(SamplerOptions { temperature: 0.0, ..Default::default() })?.sample(logits, &[])?)
}

/// Holds a prompt to a context.
pub fn fits(tokens: usize, ctx: u64) -> Result<(), CliError> {
    if tokens as u64 > ctx { Err(CliError::Prompt { tokens, ctx }) } else { Ok(()) }
}

/// Holds the tokens before a hand-off to a context, which must have a row for the step that follows.
pub fn leaves_a_row(tokens: usize, ctx: u64) -> Result<(), CliError> {
    fits(tokens, ctx)?;
    if tokens as u64 == ctx { Err(CliError::NoRow { tokens, ctx }) } else { Ok(()) }
}
