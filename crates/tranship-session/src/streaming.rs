//! Sequences that leave and come tensor by tensor: to and from files, pipes and sockets.
//!
//! [`Session::suspend`] and [`Session::resume`] hold a whole hand-off in memory beside the state. The ways here hold a
//! tensor or a layer of it, and the other end can be installing the first layers while the last ones are computed.

use crate::{Sequence, Session, SessionError, transfer};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use tranship_backend::Outputs;
use tranship_handoff::{Carried, Contract, Expect, Opening, Progress};
use tranship_handoff::{Refusal, StreamWriter, write_file};

/// What leaves a session as a stream: a layer with the rows of its tensors, then the token that follows them all.
enum Leaving {
    Layer(u64, Vec<Vec<u8>>),
    Close(Option<u32>),
}

impl Session {
    /// Writes a sequence's state to a hand-off file, one tensor after the other. Returns its seal.
    ///
    /// # Errors
    /// As [`Session::suspend`], and what the system says of the file; none is left then.
    pub fn write(
        &self,
        sequence: &Sequence,
        next_token: Option<u32>,
        path: &Path,
    ) -> Result<String, SessionError> {
        let progress = self.held(sequence)?;
        let places: Vec<(usize, usize, &Carried)> = sequence.layout.tensors().collect();
        write_file(path, &self.contract(), Progress { next_token, ..progress }, |at, _| {
            let (part, tensor, carried) = places[at];
            transfer::view(sequence.states[part].as_ref(), tensor, carried, progress.position)
        })
    }

    /// Sends a sequence's state as a stream, one layer after the other. Returns the output and the seal.
    ///
    /// # Errors
    /// As [`Session::suspend`], and what the output says.
    pub fn send<W: Write>(
        &self,
        sequence: &Sequence,
        next_token: Option<u32>,
        out: W,
    ) -> Result<(W, String), SessionError> {
        let progress = self.held(sequence)?;
        let mut stream = StreamWriter::open(out, self.contract(), progress)?;
        let places: Vec<(usize, usize, &Carried)> = sequence.layout.tensors().collect();
        for layer in places.chunk_by(|(.., a), (.., b)| a.layer == b.layer) {
            let rows = layer.iter().map(|(part, tensor, carried)| {
                transfer::view(sequence.states[*part].as_ref(), *tensor, carried, progress.position)
            });
            stream.layer(layer[0].2.layer, &rows.collect::<Result<Vec<_>, _>>()?)?;
        }
        Ok(stream.close(next_token)?)
    }

    /// Runs a prompt and sends the state as a stream meanwhile: each part's layers leave as soon as the last of the tokens
    /// have run through them, while later parts run. `choose` names the token that follows, from the logits that
    /// `outputs` asks for. Returns these and the output.
    ///
    /// A session that is split into many parts ([`Session::split`]) sends early; one of a single part sends at its end. At
    /// most two layers wait for an output that is slower than the session.
    ///
    /// # Errors
    /// As [`Session::prefill`], what `choose` says, and what the output says: the stream is not closed then, and nothing
    /// decodes from it.
    pub fn prefill_into<W: Write + Send, E: From<SessionError> + Send>(
        &mut self,
        (sequence, tokens): (&mut Sequence, &[u32]),
        outputs: Outputs,
        out: W,
        choose: impl FnOnce(&[f32]) -> Result<Option<u32>, E>,
    ) -> Result<(Vec<f32>, W), E> {
        let mut progress = self.held(sequence)?;
        progress.push(tokens);
        let contract = self.contract();
        thread::scope(|scope| {
            let (leave, leaving) = sync_channel(1);
            let own = contract.clone();
            let sending = scope.spawn(move || sending(out, own, progress, &leaving));
            let ran = self.leave(&contract, (sequence, tokens), outputs, choose, &leave);
            drop(leave);
            let sent = sending.join().map_err(|_| SessionError::Incomplete)?;
            // What the output says is why the session stopped, where it did.
            match (ran, sent) {
                (Ok(logits), Ok(Some(out))) => Ok((logits, out)),
                (Err(error), Ok(_)) => Err(error),
                (_, Err(refusal)) => Err(SessionError::from(refusal).into()),
                (Ok(_), Ok(None)) => Err(SessionError::Incomplete.into()),
            }
        })
    }

    /// Runs a prompt and gives each finished layer to who sends it.
    fn leave<E: From<SessionError>>(
        &mut self,
        contract: &Contract,
        (sequence, tokens): (&mut Sequence, &[u32]),
        outputs: Outputs,
        choose: impl FnOnce(&[f32]) -> Result<Option<u32>, E>,
        leave: &SyncSender<Leaving>,
    ) -> Result<Vec<f32>, E> {
        // Who sends has ended: it says why.
        let stopped = |_| SessionError::Incomplete;
        let logits = self.prefill(sequence, tokens, outputs, |finished| -> Result<(), E> {
            let mut next = 0;
            for layer in finished.layers.clone() {
                let count = contract.of_layer(layer as u64).count();
                let rows = (next..next + count).map(|tensor| finished.rows(tensor));
                let rows = rows.collect::<Result<Vec<_>, _>>()?;
                leave.send(Leaving::Layer(layer as u64, rows)).map_err(stopped)?;
                next += count;
            }
            Ok(())
        })?;
        let next_token = choose(&logits)?;
        leave.send(Leaving::Close(next_token)).map_err(stopped)?;
        Ok(logits)
    }

    /// A sequence that goes on from a hand-off of either form, of which the opening has been read: tensor by tensor, each
    /// installed as it comes. What follows the close of a stream is left in the input. Returns the sequence and the input.
    ///
    /// # Errors
    /// As [`Session::resume`], as soon as what has come shows that it does not fit, and where the input
    /// ends early.
    pub fn receive<R: Read>(
        &self,
        opening: Opening<R>,
        expect: &Expect<'_>,
    ) -> Result<(Sequence, R), SessionError> {
        let contract = self.contract();
        let vocab = Some(self.model().spec().vocab);
        let position = opening.position();
        let mut incoming = opening.under(&contract, Expect { vocab, ..*expect })?;
        let mut sequence = self.sequence()?;
        let layout = sequence.layout.clone();
        let places: Vec<(usize, usize, &Carried)> = layout.tensors().collect();
        while let Some((at, tensor)) = incoming.next_tensor()? {
            let (part, i, carried) = places[at];
            transfer::write(sequence.states[part].as_mut(), (i, carried), &tensor, position, self.policy())?;
            incoming.recycle(tensor);
        }
        let (input, progress) = incoming.finish()?;
        sequence.progress = progress;
        Ok((sequence, input))
    }
}

/// Writes a stream of what leaves, as it comes; `None` when it ends without a close.
fn sending<W: Write>(
    out: W,
    contract: Contract,
    progress: Progress,
    leaving: &Receiver<Leaving>,
) -> Result<Option<W>, Refusal> {
    let mut stream = StreamWriter::open(out, contract, progress)?;
    for leaving in leaving {
        match leaving {
            Leaving::Layer(layer, rows) => stream.layer(layer, &rows)?,
            Leaving::Close(next_token) => return Ok(Some(stream.close(next_token)?.0)),
        }
    }
    Ok(None)
}
