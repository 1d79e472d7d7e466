//! The hand-off as a file: safetensors, with the manifest and the seal in its metadata.
//!
//! `docs/handoff-format.md` describes it for those who write one elsewhere. A file is written beside its place and
//! then moved there, so that no reader sees half of one; its bytes are held in memory once.

use crate::course::{Course, FRAME};
use crate::frame::Header;
use crate::handoff::{Content, Manifest};
use crate::pass::{self, AHEAD};
use crate::{Carried, Contract, Handoff, HandoffError, HandoffTensor, Progress, Refusal, check, frame};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

/// What stands in the place of a seal until it is known.
const UNKNOWN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

impl Handoff {
    /// Writes the hand-off to a file. What is there and no regular file, as a pipe, is written to where it is.
    ///
    /// # Errors
    /// [`HandoffError::Io`], [`HandoffError::Unsealed`] for a hand-off whose seal was not found whole.
    pub fn write(&self, path: &Path) -> Result<(), HandoffError> {
        let prelude = self.prelude()?;
        let io = |e: io::Error| io_of(path, &e);
        placed(path, io, |file| {
            file.write_all(&prelude).map_err(io)?;
            self.state.iter().try_for_each(|t| file.write_all(t.bytes())).map_err(io)
        })
    }

    /// The bytes of the file form: a second copy of all rows. [`Handoff::write`] makes none.
    ///
    /// # Errors
    /// [`HandoffError::Unsealed`] for a hand-off whose seal was not found whole.
    pub fn to_bytes(&self) -> Result<Vec<u8>, HandoffError> {
        let mut bytes = self.prelude()?;
        for tensor in &self.state {
            bytes.extend_from_slice(tensor.bytes());
        }
        Ok(bytes)
    }

    /// Reads a hand-off of either form from a file. What is wrong with it beyond its form, [`crate::Contract::check`]
    /// says.
    ///
    /// # Errors
    /// [`HandoffError::Io`], [`HandoffError::Format`], [`HandoffError::Version`] or [`HandoffError::Ends`].
    pub fn read(path: &Path) -> Result<Handoff, HandoffError> {
        let named = |e| match e {
            HandoffError::Io { what, .. } => HandoffError::Io { path: path.display().to_string(), what },
            other => other,
        };
        let mut file = File::open(path).map_err(|e| io_of(path, &e))?;
        let known = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|m| m.len());
        collect(&mut file, known).and_then(|handoff| ends(&mut file, handoff)).map_err(named)
    }

    /// Reads a hand-off of either form. A file ends where the input ends; of a stream nothing is read past its close.
    /// Memory is taken as the bytes come.
    ///
    /// # Errors
    /// As [`Handoff::read`].
    pub fn from_reader(input: &mut impl Read) -> Result<Handoff, HandoffError> {
        collect(input, None)
    }

    /// Reads a hand-off of either form from its bytes, which its tensors stay parts of.
    ///
    /// # Errors
    /// [`HandoffError::Format`], [`HandoffError::Version`] or [`HandoffError::Ends`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Handoff, HandoffError> {
        let data = Arc::new(bytes);
        let (mut at, mut state, mut course) = (0, Vec::new(), None::<Course>);
        loop {
            let rest = data.get(at..).unwrap_or_default();
            if let Some(course) = course.as_ref().filter(|_| rest.is_empty()) {
                return Err(course.early());
            }
            let (start, mut header) = frame::of_bytes(rest)?;
            holds(&header, rest.len() - start, course.is_none())?;
            let course = match &mut course {
                None => course.insert(Course::open(&mut header)?),
                Some(course) => {
                    course.follow(&mut header)?;
                    course
                }
            };
            for entry in header.entries {
                let range = at + start + entry.range.start..at + start + entry.range.end;
                let tensor = HandoffTensor::part(entry.name, entry.dtype, entry.shape, data.clone(), range);
                course.add(&tensor);
                state.push(tensor);
            }
            if course.ended() {
                let seal = course.seal();
                return Ok(Handoff {
                    manifest: course.manifest.clone(),
                    line: course.line.clone(),
                    state,
                    seal,
                    streamed: !course.is_file(),
                });
            }
            at += start + header.data;
        }
    }

    /// The safetensors header of the file form: metadata first, then each tensor.
    fn prelude(&self) -> Result<Vec<u8>, HandoffError> {
        let seal = self.seal().ok_or(HandoffError::Unsealed)?;
        let metadata = json!({ "tranship": self.line, "seal": seal });
        let tensors =
            self.state.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.clone(), t.bytes().len() as u64));
        frame::prelude(metadata, tensors)
    }
}

/// Holds a frame to the bytes that are there after its header: nothing follows that of a file, or the close of a stream.
fn holds(header: &Header, there: usize, first: bool) -> Result<(), HandoffError> {
    let frame = header.metadata.get(FRAME).map(String::as_str);
    let goes_on = frame.map_or(!first, |frame| frame != "close");
    match frame {
        _ if goes_on && header.data < there => Ok(()),
        Some("close") if header.data < there => Err(more()),
        _ => whole(header.data, there),
    }
}

/// Holds the tensors of a frame to be all that is there.
pub(crate) fn whole(data: usize, there: usize) -> Result<(), HandoffError> {
    if data == there {
        return Ok(());
    }
    let what = format!("not a safetensors file ({data} bytes of tensors, and {there} are there)");
    Err(HandoffError::Format(what))
}

/// Reads a whole hand-off: from an input of `known` length, where it is known.
fn collect(input: &mut impl Read, known: Option<u64>) -> Result<Handoff, HandoffError> {
    let mut counted = Counted { input, count: 0 };
    let empty = "not a safetensors file (0 bytes, and the length of a header takes 8)";
    let mut header = frame::next(&mut counted)?.ok_or_else(|| HandoffError::Format(empty.into()))?;
    let left = |counted: &Counted<'_, _>| {
        known.map(|len| usize::try_from(len.saturating_sub(counted.count)).unwrap_or(usize::MAX))
    };
    let mut there = left(&counted);
    there.map_or(Ok(()), |there| holds(&header, there, true))?;
    let (mut course, mut state) = (Course::open(&mut header)?, Vec::new());
    loop {
        for entry in header.entries {
            let len = entry.range.len();
            let (bytes, examined) =
                pass::read(&mut counted, entry.dtype, (len, there.unwrap_or(AHEAD)), Vec::new())
                    .map_err(|e| cut_short(e, &entry.name, len))?;
            let tensor =
                HandoffTensor::new(entry.name, entry.dtype, entry.shape, bytes).examined_as(examined);
            course.add(&tensor);
            state.push(tensor);
        }
        if course.ended() {
            break;
        }
        header = frame::next(&mut counted)?.ok_or_else(|| course.early())?;
        there = left(&counted);
        there.map_or(Ok(()), |there| holds(&header, there, false))?;
        course.follow(&mut header)?;
    }
    let seal = course.seal();
    let file = course.is_file();
    let handoff = Handoff { manifest: course.manifest, line: course.line, state, seal, streamed: !file };
    if file { ends(counted.input, handoff) } else { Ok(handoff) }
}

/// Holds that an input has no more to give.
pub(crate) fn ends<T>(input: &mut impl Read, read: T) -> Result<T, HandoffError> {
    let mut more = Vec::new();
    input.take(1).read_to_end(&mut more).map_err(HandoffError::input)?;
    if more.is_empty() { Ok(read) } else { Err(self::more()) }
}

fn more() -> HandoffError {
    HandoffError::Format("bytes follow its end".into())
}

/// That an input failed, or ended, within a tensor.
pub(crate) fn cut_short(error: io::Error, name: &str, len: usize) -> HandoffError {
    match error.kind() {
        ErrorKind::UnexpectedEof => HandoffError::Ends(format!("after {error} of {len} bytes of `{name}`")),
        ErrorKind::OutOfMemory => {
            HandoffError::Io { path: format!("`{name}`"), what: format!("no memory for {len} bytes") }
        }
        _ => HandoffError::input(error),
    }
}

struct Counted<'a, R> {
    input: &'a mut R,
    count: u64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, memory: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(memory)?;
        self.count += count as u64;
        Ok(count)
    }
}

/// Writes a hand-off file tensor by tensor, so that no more than one of them is in memory at a time, and seals it with
/// what has passed. `rows` gives the valid rows of each carried tensor, in the order of the contract. Returns the seal.
///
/// What is at the path and no regular file, as a pipe, cannot be gone back in: for it all tensors are held.
///
/// # Errors
/// What `rows` says; rows that do not fit the contract, or hold NaN; [`HandoffError::Io`]. No file is left then.
pub fn write_file<'r, E: From<Refusal>>(
    path: &Path,
    contract: &Contract,
    progress: Progress,
    mut rows: impl FnMut(usize, &Carried) -> Result<Cow<'r, [u8]>, E>,
) -> Result<String, E> {
    let position = progress.position;
    if in_place(path) {
        let one = |(i, c): (usize, &Carried)| -> Result<HandoffTensor, E> {
            Ok(HandoffTensor::new(&c.name, c.dtype, c.valid_shape(position), rows(i, c)?.into_owned()))
        };
        let tensors = contract.carried.iter().enumerate().map(one).collect::<Result<_, E>>()?;
        let handoff = contract.take(progress, tensors)?;
        handoff.write(path).map_err(Refusal::from)?;
        return Ok(handoff.seal().unwrap_or_default().to_owned());
    }
    let line = Manifest::new(contract.clone(), progress).to_line();
    let listed = contract.carried.iter().map(|c| {
        let bytes = c.bytes(c.valid_rows(position)).unwrap_or(u64::MAX);
        (c.name.as_str(), c.dtype, c.valid_shape(position), bytes)
    });
    let metadata = json!({ "tranship": line, "seal": UNKNOWN });
    let prelude = frame::prelude(metadata, listed).map_err(Refusal::from)?;
    let io = |e: io::Error| E::from(Refusal::from(io_of(path, &e)));
    placed(path, io, |file| {
        file.write_all(&prelude).map_err(io)?;
        let mut content = Content::default();
        for (i, carried) in contract.carried.iter().enumerate() {
            let (bytes, shape) = (rows(i, carried)?, carried.valid_shape(position));
            fits(contract, carried, position, bytes.len())?;
            let examined = pass::write(file, carried.dtype, &bytes).map_err(io)?;
            if let Some(error) = check::nan(&carried.name, &shape, examined.nan) {
                return Err(Refusal::from(error).into());
            }
            content.add(&carried.name, carried.dtype, &shape, examined.digest);
        }
        let seal = content.digest(&line);
        let place = seal_at(&prelude).ok_or_else(|| io(io::Error::other("the header has no seal")))?;
        file.seek(SeekFrom::Start(place)).and_then(|_| file.write_all(seal.as_bytes())).map_err(io)?;
        Ok(seal)
    })
}

/// Holds the bytes of a tensor's valid rows to the contract, and the position to its room.
pub(crate) fn fits(
    contract: &Contract,
    carried: &Carried,
    position: u64,
    bytes: usize,
) -> Result<(), Refusal> {
    if position >= contract.ctx {
        return Err(HandoffError::Position { position, ctx: contract.ctx }.into());
    }
    let wanted = carried.bytes(carried.valid_rows(position));
    if wanted == Some(bytes as u64) {
        return Ok(());
    }
    let wanted = wanted.map_or("more than can be counted".into(), |b| b.to_string());
    Err(HandoffError::Size { name: carried.name.clone(), wanted, found: bytes as u64 }.into())
}

/// Where in a header the seal stands. Quotes within the manifest are escaped there, so that its own text is not met.
fn seal_at(prelude: &[u8]) -> Option<u64> {
    let key = b"\"seal\":\"";
    let wanted = [key.as_slice(), UNKNOWN.as_bytes()].concat();
    let at = prelude.windows(wanted.len()).position(|w| w == wanted)?;
    Some((at + key.len()) as u64)
}

fn io_of(path: &Path, error: &io::Error) -> HandoffError {
    HandoffError::Io { path: path.display().to_string(), what: error.to_string() }
}

/// Whether something is at a path that is no regular file: moving one there would put it in the place of a pipe or a
/// device.
fn in_place(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| !m.is_file())
}

/// Writes a file beside its place and moves it there when it is whole; what is there and no regular file is written to
/// where it is.
fn placed<T, E>(
    path: &Path,
    io: impl Fn(io::Error) -> E,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<T, E>,
) -> Result<T, E> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let beside = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
    let in_place = in_place(path);
    let place = if in_place { path } else { &beside };
    let mut file = BufWriter::with_capacity(1 << 20, File::create(place).map_err(&io)?);
    let written = write(&mut file).and_then(|value| {
        file.into_inner().map_err(|e| io(e.into_error()))?;
        if !in_place {
            std::fs::rename(&beside, path).map_err(&io)?;
        }
        Ok(value)
    });
    if written.is_err() && !in_place {
        // What is left of a failed write is of no use; that it could not be removed changes nothing.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// The metadata of a stream's frame.
pub(crate) fn metadata(frame: &str, more: &[(&str, &str)]) -> Value {
    let mut metadata = json!({ FRAME: frame });
    for (key, value) in more {
        metadata[*key] = json!(value);
    }
    metadata
}
