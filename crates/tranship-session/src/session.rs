//! A session: one model on one backend under one policy, compiled once.

use crate::chains::{Phase, Section, chain};
use crate::{Model, Rows, Sequence, SessionError, transfer};
use std::borrow::Cow;
use std::sync::Arc;
use tranship_backend::{Backend, BackendError, Chain, Input, Outputs, Segment, Step};
use tranship_ctx::ComputeCtx;
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

/// A model on a backend, ready to step.
pub struct Session {
    model: Arc<Model>,
    backend: Arc<dyn Backend>,
    policy: ComputeCtx,
    contract: Contract,
    prefill: Box<dyn Step>,
    /// The step for single rows, where its programs differ from the prefill's.
    decode: Option<Box<dyn Step>>,
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
        if !model.has_weights() {
            return Err(SessionError::NoWeights(model.checkpoint().path().display().to_string()));
        }
        if options.ctx == 0 || options.ctx > MAX_CTX {
            return Err(SessionError::Context { ctx: options.ctx, most: MAX_CTX });
        }
        let rows = options.max_rows.min(options.ctx as usize).max(1);
        let section = Section::whole(&model);
        let accepts = &backend.caps().accepts;
        let build = |phase| chain(&model, &policy, accepts, (&section, phase), (options.ctx, rows));
        let (prefill, decode) = (build(Phase::Prefill)?, build(Phase::Decode)?);
        let step = backend.compile(&prefill, &model.weights())?;
        let alike = canonical(&prefill) == canonical(&decode);
        let single = if alike {
            None
        } else {
            Some(backend.compile(&Chain { max_rows: 1, ..decode }, &model.weights())?)
        };
        // The digest of the weights is left out until a hand-off asks for it: it reads every byte.
        let contract = Contract::of(model.spec(), options.ctx, &policy, None)?;
        Ok(Session { model, backend, policy, contract, prefill: step, decode: single })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The policy.
    pub fn policy(&self) -> &ComputeCtx {
        &self.policy
    }

    /// The contract, with the digest of the weights.
    pub fn contract(&self) -> Contract {
        let mut contract = self.contract.clone();
        contract.identity.weights = self.model.digest();
        contract
    }

    /// Rows that a sequence may have.
    pub fn ctx(&self) -> usize {
        self.contract.ctx as usize
    }

    /// A new sequence, before its first token.
    ///
    /// # Errors
    /// When memory for its state is not to be had.
    pub fn sequence(&self) -> Result<Sequence, SessionError> {
        Ok(Sequence { state: self.prefill.new_state()?, progress: Progress::start(), incomplete: false })
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
        if batch.is_empty() || batch.iter().any(|r| r.tokens.is_empty()) {
            return Err(SessionError::NoTokens);
        }
        if batch.iter().any(|r| r.sequence.incomplete) {
            return Err(SessionError::Incomplete);
        }
        let tokens: Cow<'_, [u32]> = match &*batch {
            [one] => Cow::Borrowed(one.tokens),
            many => Cow::Owned(many.iter().flat_map(|r| r.tokens.iter().copied()).collect()),
        };
        let single = batch.iter().all(|r| r.tokens.len() == 1);
        let mut segments = Vec::with_capacity(batch.len());
        for rows in batch.iter_mut() {
            let (position, count) = (rows.sequence.position(), rows.tokens.len());
            let state = rows.sequence.state.as_mut();
            segments.push(Segment { state, position, rows: count, outputs: rows.outputs });
        }
        let step = if single { self.decode.as_mut().unwrap_or(&mut self.prefill) } else { &mut self.prefill };
        let before = logits.len();
        let ran = step.run(&mut segments, Input::Tokens(&tokens), logits);
        drop(segments);
        // These say that the batch was refused before anything ran; after any other the states are not known.
        let refused = |e: &BackendError| {
            matches!(e, BackendError::Batch(_) | BackendError::Context { .. } | BackendError::Token { .. })
        };
        let failed = ran.as_ref().is_err_and(|e| !refused(e));
        if ran.is_err() {
            logits.truncate(before);
        }
        for rows in batch.iter_mut() {
            rows.sequence.incomplete = failed;
            if ran.is_ok() {
                rows.sequence.progress.push(rows.tokens);
            }
        }
        Ok(ran?)
    }

    /// The sequence's state as a hand-off: the valid rows of every carried tensor. `next_token` is the token that
    /// follows, where it is known.
    ///
    /// # Errors
    /// A sequence that a failed step left incomplete; rows that do not fit the contract, as NaN does not.
    pub fn suspend(&self, sequence: &Sequence, next_token: Option<u32>) -> Result<Handoff, SessionError> {
        if sequence.incomplete {
            return Err(SessionError::Incomplete);
        }
        let contract = self.contract();
        let tensors = transfer::read(sequence.state.as_ref(), &contract, sequence.progress.position)?;
        Ok(contract.take(Progress { next_token, ..sequence.progress }, tensors)?)
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
        transfer::write(sequence.state.as_mut(), &contract, handoff, &self.policy)?;
        sequence.progress = handoff.progress()?;
        Ok(sequence)
    }
}

/// What a chain computes, without names.
fn canonical(chain: &Chain) -> Vec<String> {
    chain.parts.iter().map(|p| p.canonical()).collect()
}
