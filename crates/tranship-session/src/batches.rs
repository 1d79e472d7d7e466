//! A batch on its way through the parts of a session: in pieces of so many rows, each through all parts.

use crate::Rows;
use crate::parts::Stage;
use std::ops::{ControlFlow, Range};
use tranship_backend::{BackendError, Input, Limits, Outputs, Segment, check_batch};

/// The compiled parts of a session, of which there is one at least, and what lies between them.
pub(crate) struct Stages {
    stages: Vec<Stage>,
    /// What all parts together hold batches to, as one chain would.
    limits: Limits,
    /// Rows that cross from part to part at once.
    max_rows: usize,
    crossing: Crossing,
}

/// Rows between parts; kept for their memory.
#[derive(Default)]
struct Crossing {
    from: Vec<f32>,
    to: Vec<f32>,
}

impl Stages {
    /// Parts in order, between which at most `max_rows` rows cross at once.
    pub fn new(stages: Vec<Stage>, max_rows: usize) -> Stages {
        let least = |of: fn(&Limits) -> Option<usize>| stages.iter().filter_map(|s| of(&s.limits)).min();
        let width_out = stages.last().map_or(0, |stage| stage.limits.width_out);
        let limits = Limits { ctx: least(|l| l.ctx), vocab: least(|l| l.vocab), width_in: None, width_out };
        Stages { stages, limits, max_rows, crossing: Crossing::default() }
    }

    /// The first part.
    pub fn first(&self) -> &Stage {
        &self.stages[0]
    }

    /// The parts.
    pub fn iter(&self) -> impl Iterator<Item = &Stage> {
        self.stages.iter()
    }

    /// Runs a batch whose rows are these tokens. A single part takes it whole, and splits it itself; through several it
    /// goes in chunks, so that the rows which cross are bounded, and what any part would refuse is refused at first.
    pub fn run(
        &mut self,
        (batch, tokens): (&mut [Rows<'_>], &[u32]),
        logits: &mut Vec<f32>,
        watch: Watch<'_>,
    ) -> Result<(), Fault> {
        let lengths: Vec<usize> = batch.iter().map(|rows| rows.tokens.len()).collect();
        let several = self.stages.len() > 1;
        if several {
            let whole = Chunk::whole(&lengths);
            check_batch(&self.limits, &segments(batch, &whole, 0, false), Input::Tokens(tokens))
                .map_err(Fault::Refused)?;
        }
        let most = if several { self.max_rows } else { usize::MAX };
        let mut done = 0;
        for chunk in chunks(&lengths, most) {
            let rows = chunk.rows();
            let own = &tokens[done..done + rows];
            for i in 0..self.stages.len() {
                self.part(i, (&mut *batch, &chunk), own, logits).map_err(|error| {
                    let before = (i, done) == (0, 0) && refusal(&error);
                    if before { Fault::Refused(error) } else { Fault::Failed(error) }
                })?;
                if done + rows == tokens.len() && watch(i, batch).is_break() {
                    return Err(Fault::Stopped);
                }
            }
            done += rows;
        }
        Ok(())
    }

    /// Runs a chunk through one part, from the rows that the part before it gave.
    fn part(
        &mut self,
        i: usize,
        (batch, chunk): (&mut [Rows<'_>], &Chunk),
        tokens: &[u32],
        logits: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let single = batch.iter().all(|rows| rows.tokens.len() == 1);
        let within = i + 1 < self.stages.len();
        let Crossing { from, to } = &mut self.crossing;
        let input = if i == 0 { Input::Tokens(tokens) } else { Input::RowsAndTokens(from, tokens) };
        to.clear();
        let out = if within { to } else { logits };
        self.stages[i].step(single).run(&mut segments(batch, chunk, i, within), input, out)?;
        std::mem::swap(&mut self.crossing.from, &mut self.crossing.to);
        Ok(())
    }
}

/// What is told of each part that the batch's last rows have run through; it may stop the step.
pub(crate) type Watch<'w> = &'w mut dyn FnMut(usize, &[Rows<'_>]) -> ControlFlow<()>;

/// Why a batch did not run to its end.
pub(crate) enum Fault {
    /// It was refused before anything ran.
    Refused(BackendError),
    /// Something failed after states had changed.
    Failed(BackendError),
    /// The watch said so.
    Stopped,
}

/// Rows of one sequence that run together with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// How many of the sequence's rows of this batch came before.
    done: usize,
    rows: usize,
}

/// Pieces of consecutive sequences of the batch that run together.
#[derive(Debug, PartialEq, Eq)]
struct Chunk {
    sequences: Range<usize>,
    pieces: Vec<Piece>,
}

impl Chunk {
    /// All rows of a batch of sequences with so many rows each.
    fn whole(lengths: &[usize]) -> Chunk {
        let pieces = lengths.iter().map(|&rows| Piece { done: 0, rows }).collect();
        Chunk { sequences: 0..lengths.len(), pieces }
    }

    fn rows(&self) -> usize {
        self.pieces.iter().map(|piece| piece.rows).sum()
    }
}

/// Splits a batch of sequences with so many rows each into chunks of at most `most` rows, in order.
fn chunks(lengths: &[usize], most: usize) -> Vec<Chunk> {
    let (mut chunks, mut sequence, mut done) = (Vec::new(), 0, 0);
    while sequence < lengths.len() {
        let (start, mut pieces, mut room) = (sequence, Vec::new(), most);
        while sequence < lengths.len() && room > 0 {
            let rows = (lengths[sequence] - done).min(room);
            pieces.push(Piece { done, rows });
            (done, room) = (done + rows, room - rows);
            if done == lengths[sequence] {
                (sequence, done) = (sequence + 1, 0);
            }
        }
        chunks.push(Chunk { sequences: start..start + pieces.len(), pieces });
    }
    chunks
}

/// The segments of a chunk for a part: all rows are wanted within, and of the last part those that the batch wants.
fn segments<'s>(batch: &'s mut [Rows<'_>], chunk: &Chunk, part: usize, within: bool) -> Vec<Segment<'s>> {
    let rows = batch[chunk.sequences.clone()].iter_mut().zip(&chunk.pieces);
    let segment = |(rows, piece): (&'s mut Rows<'_>, &Piece)| {
        let ends = piece.done + piece.rows == rows.tokens.len();
        let outputs = match rows.outputs {
            _ if within => Outputs::All,
            Outputs::Last if !ends => Outputs::None,
            wanted => wanted,
        };
        let position = rows.sequence.position() + piece.done;
        Segment { state: rows.sequence.states[part].as_mut(), position, rows: piece.rows, outputs }
    };
    rows.map(segment).collect()
}

/// Whether an error says that a batch was refused before anything ran; after any other the states are not known.
fn refusal(error: &BackendError) -> bool {
    matches!(error, BackendError::Batch(_) | BackendError::Context { .. } | BackendError::Token { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_cut_in_order() {
        let found = |lengths: &[usize], most| -> Vec<(usize, Vec<(usize, usize)>)> {
            let pieces = |c: Chunk| c.pieces.iter().map(|p| (p.done, p.rows)).collect();
            chunks(lengths, most).into_iter().map(|c| (c.sequences.start, pieces(c))).collect()
        };
        assert_eq!(found(&[3, 1, 2], usize::MAX), [(0, vec![(0, 3), (0, 1), (0, 2)])]);
        assert_eq!(found(&[5], 5), [(0, vec![(0, 5)])]);
        assert_eq!(found(&[5], 2), [(0, vec![(0, 2)]), (0, vec![(2, 2)]), (0, vec![(4, 1)])]);
        assert_eq!(
            found(&[3, 1, 4], 2),
            [(0, vec![(0, 2)]), (0, vec![(2, 1), (0, 1)]), (2, vec![(0, 2)]), (2, vec![(2, 2)])]
        );
        assert_eq!(found(&[1, 1, 1], 2), [(0, vec![(0, 1), (0, 1)]), (2, vec![(0, 1)])]);
    }
}
