//! The hand-off as a stream: framed layer by layer, as prefill finishes them.
//!
//! A stream is one safetensors file after the other: an opening with the manifest, a frame for each layer that carries
//! something, and a close with the manifest once more, in which the next token is named, and the seal. It is the seal
//! that the file form has. So a layer leaves as soon as it is done and is installed while the next one is computed, a
//! pipe or a socket carries it, and neither end holds more than a layer beside its own state.

use crate::course::Course;
use crate::file::{cut_short, ends, fits, metadata, whole};
use crate::frame::Entry;
use crate::handoff::{Content, Manifest};
use crate::{Carried, Contract, Expect, HandoffError, HandoffTensor, Progress, Refusal, check, frame, pass};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;

/// Writes a hand-off as a stream.
pub struct StreamWriter<W: Write> {
    out: W,
    contract: Contract,
    progress: Progress,
    content: Content,
    /// The carried tensor that is next.
    next: usize,
}

impl<W: Write> StreamWriter<W> {
    /// Opens a stream of the state after `progress`, whose next token is named at the close alone.
    ///
    /// # Errors
    /// [`HandoffError::Position`] where no step can follow, or what the output says.
    pub fn open(mut out: W, contract: Contract, progress: Progress) -> Result<StreamWriter<W>, Refusal> {
        if progress.position >= contract.ctx {
            return Err(HandoffError::Position { position: progress.position, ctx: contract.ctx }.into());
        }
        let progress = Progress { next_token: None, ..progress };
        let line = Manifest::new(contract.clone(), progress).to_line();
        send(&mut out, &frame::prelude(metadata("open", &[("tranship", &line)]), std::iter::empty())?)?;
        Ok(StreamWriter { out, contract, progress, content: Content::default(), next: 0 })
    }

    /// Sends the carried tensors of the next layer that has some: the bytes of their valid rows, in the order of the
    /// contract.
    ///
    /// # Errors
    /// Another layer than the next one, or rows that do not fit the contract or hold NaN: the stream is of no use then.
    pub fn layer(&mut self, layer: u64, rows: &[impl AsRef<[u8]>]) -> Result<(), Refusal> {
        let position = self.progress.position;
        let tensors: Vec<&Carried> =
            self.contract.carried.iter().skip(self.next).take_while(|c| c.layer == layer).collect();
        if tensors.len() != rows.len() {
            let due = self.contract.carried.get(self.next).map_or("none".into(), |c| c.layer.to_string());
            let what = format!("{} tensors of layer {layer} are given; layer {due} is next", rows.len());
            return Err(HandoffError::Format(what).into());
        }
        for (carried, bytes) in tensors.iter().zip(rows) {
            fits(&self.contract, carried, position, bytes.as_ref().len())?;
        }
        if tensors.is_empty() {
            return Ok(());
        }
        let listed = tensors.iter().zip(rows);
        let listed =
            listed.map(|(c, r)| (c.name.as_str(), c.dtype, c.valid_shape(position), r.as_ref().len() as u64));
        let text = layer.to_string();
        send(&mut self.out, &frame::prelude(metadata("layer", &[("layer", &text)]), listed)?)?;
        for (carried, bytes) in tensors.iter().zip(rows) {
            let shape = carried.valid_shape(position);
            let examined =
                pass::write(&mut self.out, carried.dtype, bytes.as_ref()).map_err(HandoffError::input)?;
            if let Some(error) = check::nan(&carried.name, &shape, examined.nan) {
                return Err(error.into());
            }
            self.content.add(&carried.name, carried.dtype, &shape, examined.digest);
        }
        self.next += tensors.len();
        Ok(self.out.flush().map_err(HandoffError::input)?)
    }

    /// Closes the stream: names the token that follows, where it is known, and seals it. Returns the output and the
    /// seal.
    ///
    /// # Errors
    /// [`HandoffError::Missing`] for every tensor that was not sent, or what the output says.
    pub fn close(mut self, next_token: Option<u32>) -> Result<(W, String), Refusal> {
        let left = &self.contract.carried[self.next.min(self.contract.carried.len())..];
        if !left.is_empty() {
            return Err(Refusal { errors: left.iter().map(missing).collect() });
        }
        let line = Manifest::new(self.contract, Progress { next_token, ..self.progress }).to_line();
        let seal = self.content.digest(&line);
        let metadata = metadata("close", &[("tranship", &line), ("seal", &seal)]);
        send(&mut self.out, &frame::prelude(metadata, std::iter::empty())?)?;
        self.out.flush().map_err(HandoffError::input)?;
        Ok((self.out, seal))
    }
}

fn missing(carried: &Carried) -> HandoffError {
    HandoffError::Missing { name: carried.name.clone(), layer: carried.layer }
}

fn send(out: &mut impl Write, bytes: &[u8]) -> Result<(), HandoffError> {
    out.write_all(bytes).map_err(HandoffError::input)
}

/// A hand-off of either form under a contract, read tensor by tensor ([`Opening::under`]): each can be installed as it
/// comes, and is worth something only after [`Incoming::finish`].
///
/// What a manifest or a header shows is refused before a byte of a tensor is read, every reason at once. So a sender can
/// make a receiver take no more memory than the contract's own rows do, and what a header of 4 MiB takes.
pub struct Incoming<'c, R: Read> {
    input: R,
    ours: &'c Contract,
    expect: Expect<'c>,
    course: Course,
    /// Tensors of the frame that is being read, with their places in the contract.
    due: VecDeque<(usize, Entry)>,
    seen: Vec<bool>,
    /// Memory for the next tensor.
    spare: Vec<u8>,
    /// Whether nothing may follow its end.
    alone: bool,
    /// Something was refused: nothing of it is worth anything any more.
    refused: bool,
}

/// The manifest of a hand-off of either form, as far as it has come: enough to make a place for the state.
pub struct Opening<R: Read> {
    input: R,
    course: Course,
    /// Tensors that are next: those of a file.
    entries: Vec<Entry>,
    /// Whether nothing may follow its end.
    alone: bool,
}

impl<R: Read> Opening<R> {
    /// Reads the manifest, and nothing that comes after it.
    ///
    /// # Errors
    /// What is no hand-off, or none of a version that is read here.
    pub fn read(mut input: R) -> Result<Opening<R>, HandoffError> {
        let none = || HandoffError::Ends("before its first byte".into());
        let mut header = frame::next(&mut input)?.ok_or_else(none)?;
        let course = Course::open(&mut header)?;
        Ok(Opening { input, alone: course.is_file(), course, entries: header.entries })
    }

    /// The same with its input as another type.
    pub fn map<S: Read>(self, input: impl FnOnce(R) -> S) -> Opening<S> {
        let Opening { course, entries, alone, .. } = self;
        Opening { input: input(self.input), course, entries, alone }
    }

    /// Whether a stream follows, and not the tensors of a file.
    pub fn is_stream(&self) -> bool {
        !self.course.is_file()
    }

    /// The contract that the state was made under.
    pub fn contract(&self) -> &Contract {
        &self.course.manifest.contract
    }

    /// Tokens that the state covers.
    pub fn position(&self) -> u64 {
        self.course.manifest.position
    }

    /// Holds the manifest to a contract and to what the receiver expects.
    ///
    /// # Errors
    /// Every reason for which the hand-off does not fit as far as it has come.
    pub fn under<'c>(self, ours: &'c Contract, expect: Expect<'c>) -> Result<Incoming<'c, R>, Refusal> {
        let Opening { input, course, entries, alone } = self;
        let mut errors = Vec::new();
        check::manifest(ours, &course.manifest, &expect, &mut errors);
        check::listing(ours, &course.manifest, &expect, &mut errors);
        if !errors.is_empty() {
            return Err(Refusal { errors });
        }
        let seen = vec![false; ours.carried.len()];
        let (due, spare, refused) = (VecDeque::new(), Vec::new(), false);
        let mut incoming = Incoming { input, ours, expect, course, due, seen, spare, alone, refused };
        if incoming.course.is_file() {
            incoming.frame(entries)?;
        }
        Ok(incoming)
    }
}

impl Opening<File> {
    /// Opens a file and reads the manifest. Nothing may follow the end of what is in a file. Where it is a regular one, of
    /// the file form, its tensors are held to the bytes that are there.
    ///
    /// # Errors
    /// As [`Opening::read`], and [`HandoffError::Io`] naming the file.
    pub fn of_file(path: &Path) -> Result<Opening<File>, HandoffError> {
        let io = |what: String| HandoffError::Io { path: path.display().to_string(), what };
        let named = |error| match error {
            HandoffError::Io { what, .. } => io(what),
            other => other,
        };
        let mut file = File::open(path).map_err(|e| io(e.to_string()))?;
        let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|m| m.len());
        let Opening { course, entries, .. } = Opening::read(&mut file).map_err(named)?;
        if let (Some(size), true) = (size, course.is_file()) {
            let at = file.stream_position().map_err(|e| io(e.to_string()))?;
            let data = entries.last().map_or(0, |entry| entry.range.end);
            whole(data, usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX))?;
        }
        Ok(Opening { input: file, course, entries, alone: true })
    }
}

impl<R: Read> Incoming<'_, R> {
    /// The next tensor, and its place among the contract's carried ones; `None` when all have come.
    ///
    /// # Errors
    /// Every reason for which a frame does not fit, NaN, and an input that ends early.
    pub fn next_tensor(&mut self) -> Result<Option<(usize, HandoffTensor)>, Refusal> {
        if self.refused {
            return Err(HandoffError::Format("it was refused before".into()).into());
        }
        let next = self.following();
        self.refused = next.is_err();
        next
    }

    fn following(&mut self) -> Result<Option<(usize, HandoffTensor)>, Refusal> {
        while self.due.is_empty() {
            if self.course.ended() {
                return Ok(None);
            }
            let mut header = frame::next(&mut self.input)?.ok_or_else(|| self.course.early())?;
            self.course.follow(&mut header)?;
            self.frame(header.entries)?;
        }
        let Some((at, Entry { name, dtype, shape, range })) = self.due.pop_front() else {
            return Ok(None);
        };
        let len = range.len();
        let (bytes, examined) =
            pass::read(&mut self.input, dtype, (len, len), std::mem::take(&mut self.spare))
                .map_err(|e| cut_short(e, &name, len))?;
        if let Some(error) = check::nan(&name, &shape, examined.nan) {
            return Err(error.into());
        }
        let tensor = HandoffTensor::new(name, dtype, shape, bytes).examined_as(examined);
        self.course.add(&tensor);
        Ok(Some((at, tensor)))
    }

    /// Takes a tensor back that is no longer wanted, so that the next one uses its memory.
    pub fn recycle(&mut self, tensor: HandoffTensor) {
        self.spare = tensor.into_memory();
    }

    /// Holds that every carried tensor has come and the seal is whole. Nothing may follow in a file; what follows the
    /// close of a stream from elsewhere is left in the input. Returns it, and how far the sequence has come.
    ///
    /// # Errors
    /// [`HandoffError::Missing`], [`HandoffError::Unsealed`], [`HandoffError::Seal`], or a next token that does not fit:
    /// what was read is of no use then.
    pub fn finish(mut self) -> Result<(R, Progress), Refusal> {
        while self.next_tensor()?.is_some() {}
        let mut errors = self.missing();
        check::next_token(&self.course.manifest, &self.expect, &mut errors);
        check::seal(&self.course.seal(), &mut errors);
        if !errors.is_empty() {
            return Err(Refusal { errors });
        }
        let progress = self.course.manifest.progress()?;
        if self.alone {
            ends(&mut self.input, ())?;
        }
        Ok((self.input, progress))
    }

    /// Every carried tensor that no frame has had so far.
    fn missing(&self) -> Vec<HandoffError> {
        let unseen = self.ours.carried.iter().zip(&self.seen).filter(|(_, seen)| !**seen);
        unseen.map(|(c, _)| missing(c)).collect()
    }

    /// Holds a frame's header to the contract before its tensors are read.
    fn frame(&mut self, entries: Vec<Entry>) -> Result<(), Refusal> {
        let mut errors = Vec::new();
        for entry in entries {
            let Some(at) = self.ours.carried.iter().position(|c| c.name == entry.name) else {
                errors.push(HandoffError::Unknown { name: entry.name });
                continue;
            };
            if std::mem::replace(&mut self.seen[at], true) {
                errors.push(HandoffError::Twice { name: entry.name });
                continue;
            }
            let found =
                check::Found { dtype: entry.dtype, shape: &entry.shape, bytes: entry.range.len() as u64 };
            let carried = (&self.ours.carried[at], self.ours.ctx);
            check::one(carried, found, &self.course.manifest, &self.expect, &mut errors);
            self.due.push_back((at, entry));
        }
        if self.course.is_file() {
            errors.extend(self.missing());
        }
        if errors.is_empty() { Ok(()) } else { Err(Refusal { errors }) }
    }
}
