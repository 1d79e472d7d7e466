//! A prompt whose state can leave part by part, while later parts are still to run.

use crate::parts::Layout;
use crate::{Rows, Sequence, Session, SessionError, transfer};
use std::ops::{ControlFlow, Range};
use tranship_backend::{Outputs, State};
use tranship_handoff::{HandoffTensor, Progress};

/// The state of a part's layers after a prompt.
pub struct Finished<'a> {
    /// The layers.
    pub layers: Range<usize>,
    /// How far the sequence has come once the whole prompt has run.
    pub progress: Progress,
    /// The layers' carried tensors, numbered as [`Session::contract`] lists those of these layers.
    pub state: &'a dyn State,
    layout: &'a Layout,
    part: usize,
}

impl Finished<'_> {
    /// The valid rows of the layers' carried tensors, in the contract's order: what [`Session::suspend`] will give of
    /// them.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub fn tensors(&self) -> Result<Vec<HandoffTensor>, SessionError> {
        let carried = self.layout.carried(self.part).iter().enumerate();
        carried.map(|(i, c)| transfer::read(self.state, i, c, self.progress.position)).collect()
    }

    /// The bytes of the valid rows of one of these layers' carried tensors, by its number among them.
    pub(crate) fn rows(&self, tensor: usize) -> Result<Vec<u8>, SessionError> {
        let carried = &self.layout.carried(self.part)[tensor];
        Ok(transfer::view(self.state, tensor, carried, self.progress.position)?.into_owned())
    }
}

impl Session {
    /// As [`Session::extend`], and calls `finished` for each part, in the order of the layers, as soon as the last of the
    /// tokens have run through it: before any later part runs them. Its state changes no more in this step.
    ///
    /// A session that is split into many parts of one backend ([`Session::split`]) gives its state away layer by layer.
    ///
    /// # Errors
    /// As [`Session::step`], and what `finished` says: later parts have not run then, and the sequence is incomplete.
    pub fn prefill<E: From<SessionError>>(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        outputs: Outputs,
        mut finished: impl FnMut(Finished<'_>) -> Result<(), E>,
    ) -> Result<Vec<f32>, E> {
        let mut progress = sequence.progress;
        progress.push(tokens);
        let layers: Vec<Range<usize>> = self.parts().map(|part| part.layers.clone()).collect();
        let layout = self.layout().clone();
        let (mut logits, mut fault) = (Vec::new(), None);
        let mut watch = |part: usize, batch: &[Rows<'_>]| {
            let Some(state) = batch.first().and_then(|rows| rows.sequence.states.get(part)) else {
                return ControlFlow::Continue(());
            };
            let (layers, layout, state) = (layers[part].clone(), layout.as_ref(), state.as_ref());
            match finished(Finished { layers, progress, state, layout, part }) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    fault = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        let ran = self.run(&mut [Rows { sequence, tokens, outputs }], &mut logits, &mut watch);
        match fault {
            Some(error) => Err(error),
            None => Ok(ran.map(|()| logits)?),
        }
    }
}
