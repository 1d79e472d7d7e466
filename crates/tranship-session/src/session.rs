//! A session: one model under one policy, compiled once, on one backend or in parts on several.

use crate::batches::{Fault, Stages, Watch};
use crate::parts::{Layout, Part, Stage, cuts, tile};
use crate::{Model, Rows, Sequence, SessionError, transfer};
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use tranship_backend::{Backend, BackendError, Outputs};
use tranship_ctx::{ComputeCtx, Device};
use tranship_handoff::{Contract, Expect, Handoff, Progress};
use tranship_model::MAX_CTX;

/// How a session is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Rows that a sequence may have.
    pub ctx: u64,
    /// Rows that are computed at once; longer prompts are split.
    pub max_rows: usize,
}

impl Options {
    /// A context length, and batches of up to 512 rows.
    pub fn new(ctx: u64) -> Options {
        Options { ctx, max_rows: 512 }
    }
}

/// A model on one backend or several, ready to step.
pub struct Session {
    model: Arc<Model>,
    policy: ComputeCtx,
    layout: Arc<Layout>,
    stages: Stages,
}

impl Session {
    /// Compiles a model's programs on a backend.
    ///
    /// # Errors
    /// No weights, an impossible context, a type or an operation that the backend lacks.
    pub fn open(
        model: Arc<Model>,
        backend: Arc<dyn Backend>,
        policy: ComputeCtx,
        options: Options,
    ) -> Result<Session, SessionError> {
        let part = Part { backend, layers: 0..model.spec().layers.len() };
        Session::of(model, vec![(part, policy.clone())], policy, options)
    }

    /// Compiles a model's programs in parts, each a run of layers on a backend: the embedding goes with the first, the
    /// head with the last. All compute under one policy, and what is carried is that of one contract, so that sequences
    /// leave and come as those of a session of one part do.
    ///
    /// Rows cross from part to part as F32, `hidden × streams` values for each token ([`Session::crossing_bytes`]), and at
    /// most [`Options::max_rows`] of them at once.
    ///
    /// # Errors
    /// As [`Session::open`]; [`SessionError::Layers`] when the parts are not all layers, each once and in order.
    pub fn split(
        model: Arc<Model>,
        parts: Vec<Part>,
        policy: ComputeCtx,
        options: Options,
    ) -> Result<Session, SessionError> {
        let layers: Vec<Range<usize>> = parts.iter().map(|part| part.layers.clone()).collect();
        tile(model.spec().layers.len(), &layers)?;
        let on_its_own = |part: Part| {
            let policy = policy.clone().with_device(Device::of(part.backend.name()));
            (part, policy)
        };
        Session::of(model, parts.into_iter().map(on_its_own).collect(), policy, options)
    }

    /// Compiles parts, each with the policy on its device.
    fn of(
        model: Arc<Model>,
        parts: Vec<(Part, ComputeCtx)>,
        policy: ComputeCtx,
        options: Options,
    ) -> Result<Session, SessionError> {
        if !model.has_weights() {
            return Err(SessionError::NoWeights(model.checkpoint().path().display().to_string()));
        }
        if options.ctx == 0 || options.ctx > MAX_CTX {
            return Err(SessionError::Context { ctx: options.ctx, most: MAX_CTX });
        }
        let max_rows = options.max_rows.min(options.ctx as usize).max(1);
        // The digest of the weights is left out until a hand-off asks for it: it reads every byte.
        let contract = Contract::of(model.spec(), options.ctx, &policy, None)?;
        let compile = |(part, policy)| Stage::compile(&model, part, &policy, &contract, max_rows);
        let stages: Vec<Stage> = parts.into_iter().map(compile).collect::<Result<_, _>>()?;
        let parts: Vec<Part> = stages.iter().map(|stage| stage.part.clone()).collect();
        let layout = Arc::new(Layout { model: model.clone(), cuts: cuts(&contract, &parts), contract });
        Ok(Session { model, policy, layout, stages: Stages::new(stages, max_rows) })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The parts: their layers and backends, in order.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.stages.iter().map(|stage| &stage.part)
    }

    /// The backend; of several parts, the first one's.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.stages.first().part.backend
    }

    /// Bytes of rows that cross between parts for each token, at all cuts together: 0 in one part.
    pub fn crossing_bytes(&self) -> usize {
        self.stages.iter().filter_map(|stage| stage.limits.width_in).sum::<usize>() * size_of::<f32>()
    }

    /// The policy.
    pub fn policy(&self) -> &ComputeCtx {
        &self.policy
    }

    /// The contract, with the digest of the weights.
    pub fn contract(&self) -> Contract {
        let mut contract = self.layout.contract.clone();
        contract.identity.weights = self.model.digest();
        contract
    }

    /// What its sequences are made for.
    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Rows that a sequence may have.
    pub fn ctx(&self) -> usize {
        self.layout.contract.ctx as usize
    }

    /// A new sequence, before its first token.
    ///
    /// # Errors
    /// When memory for its state is not to be had.
    pub fn sequence(&self) -> Result<Sequence, SessionError> {
        let states = self.stages.iter().map(|stage| stage.prefill.new_state()).collect::<Result<_, _>>()?;
        let layout = self.layout.clone();
        Ok(Sequence { states, layout, progress: Progress::start(), incomplete: false })
    }

    /// Runs the next tokens of one sequence, and gives the wanted logits: rows of the vocabulary's width.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn extend(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        outputs: Outputs,
    ) -> Result<Vec<f32>, SessionError> {
        let mut logits = Vec::new();
        self.step(&mut [Rows { sequence, tokens, outputs }], &mut logits)?;
        Ok(logits)
    }

    /// Runs the next tokens of several sequences as one batch, and appends the wanted logits in their order.
    ///
    /// # Errors
    /// No tokens, tokens outside the vocabulary or past the context: no sequence has changed then. A failure of
    /// the device: the batch's sequences are incomplete, and refuse to go on.
    pub fn step(&mut self, batch: &mut [Rows<'_>], logits: &mut Vec<f32>) -> Result<(), SessionError> {
        self.run(batch, logits, &mut |_, _| ControlFlow::Continue(()))
    }

    /// Runs a batch, and tells `watch` of each part that its last rows have run through.
    pub(crate) fn run(
        &mut self,
        batch: &mut [Rows<'_>],
        logits: &mut Vec<f32>,
        watch: Watch<'_>,
    ) -> Result<(), SessionError> {
        if batch.is_empty() || batch.iter().any(|r| r.tokens.is_empty()) {
            return Err(SessionError::NoTokens);
        }
        if batch.iter().any(|r| r.sequence.incomplete) {
            return Err(SessionError::Incomplete);
        }
        if !batch.iter().all(|r| self.layout.serves(&r.sequence.layout)) {
            let what = "a segment's state was made for other programs".into();
            return Err(BackendError::Batch(what).into());
        }
        // A chain has the limits of its tensors: compressed rows and memories leave room for more.
        let ctx = self.ctx();
        let past = |r: &&Rows<'_>| r.sequence.position().saturating_add(r.tokens.len()) > ctx;
        if let Some(r) = batch.iter().find(past) {
            let (position, rows) = (r.sequence.position(), r.tokens.len());
            return Err(BackendError::Context { position, rows, ctx }.into());
        }
        let tokens: Cow<'_, [u32]> = match &*batch {
            [one] => Cow::Borrowed(one.tokens),
            many => Cow::Owned(many.iter().flat_map(|r| r.tokens.iter().copied()).collect()),
        };
        let before = logits.len();
        let ran = self.stages.run((&mut *batch, &tokens), logits, watch);
        let failed = matches!(ran, Err(Fault::Failed(_) | Fault::Stopped));
        if ran.is_err() {
            logits.truncate(before);
        }
        for rows in batch.iter_mut() {
            rows.sequence.incomplete = failed;
            if ran.is_ok() {
                rows.sequence.progress.push(rows.tokens);
            }
        }
        ran.map_err(|fault| match fault {
            Fault::Refused(error) | Fault::Failed(error) => error.into(),
            Fault::Stopped => SessionError::Incomplete,
        })
    }

    /// The sequence's state as a hand-off: the valid rows of every carried tensor. `next_token` is the token that
    /// follows, where it is known.
    ///
    /// # Errors
    /// A sequence of another model or contract, or one that a failed step left incomplete; rows that do not fit the contract, as NaN does not.
    pub fn suspend(&self, sequence: &Sequence, next_token: Option<u32>) -> Result<Handoff, SessionError> {
        self.held(sequence)?;
        let tensors = transfer::read_all(&sequence.states, &sequence.layout, sequence.progress.position)?;
        Ok(self.contract().take(Progress { next_token, ..sequence.progress }, tensors)?)
    }

    /// Holds a sequence to be one of this session's model and contract, and whole.
    pub(crate) fn held(&self, sequence: &Sequence) -> Result<Progress, SessionError> {
        if !self.layout.is_of(&sequence.layout) {
            return Err(SessionError::Foreign);
        }
        if sequence.incomplete { Err(SessionError::Incomplete) } else { Ok(sequence.progress) }
    }

    /// A sequence that goes on from a hand-off, after everything about it has been checked.
    ///
    /// # Errors
    /// [`SessionError::Refused`] with every reason for which it does not fit.
    pub fn resume(&self, handoff: &Handoff, expect: &Expect<'_>) -> Result<Sequence, SessionError> {
        let contract = self.contract();
        let vocab = Some(self.model.spec().vocab);
        contract.check_for(handoff, &Expect { vocab, ..*expect })?;
        let mut sequence = self.sequence()?;
        transfer::write_all(&mut sequence.states, &self.layout, handoff, &self.policy)?;
        sequence.progress = handoff.progress()?;
        Ok(sequence)
    }
}
