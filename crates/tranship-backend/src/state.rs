//! A sequence's carried tensors, and their logical edge.

use crate::{BackendError, CarriedSpec, Segment};
use std::any::Any;
use std::borrow::Cow;
use std::ops::Range;

/// The carried tensors of one sequence, in the order of [`crate::Chain::carried`].
///
/// Whatever layout a backend keeps, these two methods speak in logical rows: row-major, in the carried dtype, numbered
/// as [`tranship_program::Extent::valid`] numbers them. The rows of a ring ([`tranship_program::Extent::is_ring`]) are
/// numbered by their absolute positions: a tensor of `R` rows keeps position `p` in slot `p % R`, and at most `R`
/// positions are read or written at once. All rows of a fresh state are zero.
pub trait State: Send {
    /// The bytes of rows of a tensor.
    ///
    /// Of a ring, positions that were never written, or that newer ones have taken the slots of, give whatever is in
    /// their slots.
    ///
    /// # Errors
    /// [`BackendError::State`] for a tensor or rows that there are not, or more rows of a ring than it has.
    fn read(&self, tensor: usize, rows: Range<usize>) -> Result<Vec<u8>, BackendError>;

    /// The same bytes, borrowed where they lie side by side in the host's memory.
    ///
    /// # Errors
    /// As [`State::read`].
    fn view(&self, tensor: usize, rows: Range<usize>) -> Result<Cow<'_, [u8]>, BackendError> {
        self.read(tensor, rows).map(Cow::Owned)
    }

    /// Writes whole rows of a tensor, from `first_row` on.
    ///
    /// # Errors
    /// [`BackendError::State`] for a tensor or rows that there are not, more rows of a ring than it has, or bytes that
    /// are no whole rows.
    fn write(&mut self, tensor: usize, first_row: usize, bytes: &[u8]) -> Result<(), BackendError>;

    /// Bytes of memory that the rows take, in whatever layout; at most a cache line for each tensor comes on top.
    fn memory_bytes(&self) -> usize;

    /// The backend's own type.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Alignment of each tensor's first row, in bytes: a cache line.
const LINE: usize = 64;

/// A state that is kept in its logical form: one buffer of rows for each tensor, a ring's in the order of its slots.
///
/// Memory is asked of the system zeroed, so that rows that no token has reached take none of it.
pub struct RowState {
    specs: Vec<CarriedSpec>,
    buffers: Vec<Lines>,
}

/// Bytes whose first one that is used starts a cache line.
struct Lines {
    memory: Vec<u8>,
    start: usize,
}

impl Lines {
    fn zeroed(bytes: usize) -> Option<Lines> {
        let all = bytes.checked_add(LINE)?;
        // Asked for on trial first: `vec!` ends the process when there is no memory.
        Vec::<u8>::new().try_reserve_exact(all).ok()?;
        let mut memory = vec![0; all];
        let start = memory.as_ptr().align_offset(LINE).min(LINE);
        memory.truncate(start + bytes);
        Some(Lines { memory, start })
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }
}

impl RowState {
    /// All rows zero.
    ///
    /// # Errors
    /// [`BackendError::State`] when a tensor's size overflows or its memory is not to be had.
    pub fn new(specs: Vec<CarriedSpec>) -> Result<RowState, BackendError> {
        let buffer = |spec: &CarriedSpec| {
            let bytes = spec.dtype.row_bytes(spec.cols).and_then(|b| b.checked_mul(spec.rows));
            bytes.and_then(Lines::zeroed).ok_or_else(|| BackendError::State {
                tensor: spec.name.clone(),
                what: format!("no memory for {} rows of {} {}", spec.rows, spec.cols, spec.dtype),
            })
        };
        let buffers = specs.iter().map(buffer).collect::<Result<_, _>>()?;
        Ok(RowState { specs, buffers })
    }

    /// What is kept, tensor by tensor.
    pub fn specs(&self) -> &[CarriedSpec] {
        &self.specs
    }

    /// Whether these are the tensors that a chain carries, in its order.
    pub fn serves(&self, carried: &[CarriedSpec]) -> bool {
        self.specs.len() == carried.len() && self.specs.iter().zip(carried).all(|(a, b)| a.same_tensor(b))
    }

    /// Holds every segment's state to a chain's carried tensors, before anything runs.
    ///
    /// # Errors
    /// [`BackendError::Batch`] for a state of another kind, or of other programs.
    pub fn check(batch: &mut [Segment<'_>], carried: &[CarriedSpec]) -> Result<(), BackendError> {
        let mut states = batch.iter_mut().map(|s| s.state.as_any().downcast_mut::<RowState>());
        if states.any(|state| state.is_none_or(|s| !s.serves(carried))) {
            return Err(BackendError::Batch("a segment's state was made for other programs".into()));
        }
        Ok(())
    }

    /// All bytes of a tensor, row-major; the first starts a cache line.
    pub fn buffer(&self, tensor: usize) -> &[u8] {
        self.buffers[tensor].bytes()
    }

    /// All bytes of a tensor, to write to.
    pub fn buffer_mut(&mut self, tensor: usize) -> &mut [u8] {
        self.buffers[tensor].bytes_mut()
    }

    /// The byte ranges of rows of a tensor, in their order: one, or two where a ring wraps. Or why there are none.
    fn spans(&self, tensor: usize, rows: Range<usize>) -> Result<[Range<usize>; 2], BackendError> {
        let Some(spec) = self.specs.get(tensor) else {
            let what = format!("there are only {} carried tensors", self.specs.len());
            return Err(BackendError::State { tensor: tensor.to_string(), what });
        };
        let ring = spec.extent.is_ring();
        let most = if ring { rows.start.saturating_add(spec.rows) } else { spec.rows };
        if rows.start > rows.end || rows.end > most {
            let of = if ring { format!("a ring of {}", spec.rows) } else { spec.rows.to_string() };
            let what = format!("rows {}..{} of {of} are asked for", rows.start, rows.end);
            return Err(BackendError::State { tensor: spec.name.clone(), what });
        }
        let row = spec.dtype.row_bytes(spec.cols).unwrap_or(0);
        let first = if ring { rows.start % spec.rows.max(1) } else { rows.start };
        let end = (first + rows.len()).min(spec.rows);
        let wrapped = rows.len() - (end - first);
        Ok([first * row..end * row, 0..wrapped * row])
    }
}

impl State for RowState {
    fn read(&self, tensor: usize, rows: Range<usize>) -> Result<Vec<u8>, BackendError> {
        let [first, wrapped] = self.spans(tensor, rows)?;
        let buffer = self.buffer(tensor);
        Ok([&buffer[first], &buffer[wrapped]].concat())
    }

    fn view(&self, tensor: usize, rows: Range<usize>) -> Result<Cow<'_, [u8]>, BackendError> {
        let [first, wrapped] = self.spans(tensor, rows)?;
        let buffer = self.buffer(tensor);
        Ok(match &buffer[wrapped] {
            [] => Cow::Borrowed(&buffer[first]),
            wrapped => Cow::Owned([&buffer[first], wrapped].concat()),
        })
    }

    fn write(&mut self, tensor: usize, first_row: usize, bytes: &[u8]) -> Result<(), BackendError> {
        self.spans(tensor, 0..0)?;
        let spec = &self.specs[tensor];
        let row = spec.dtype.row_bytes(spec.cols).unwrap_or(0).max(1);
        if !bytes.len().is_multiple_of(row) {
            let what = format!("{} bytes are no whole number of rows of {row} bytes", bytes.len());
            return Err(BackendError::State { tensor: spec.name.clone(), what });
        }
        let rows = first_row..first_row.saturating_add(bytes.len() / row);
        let [first, wrapped] = self.spans(tensor, rows)?;
        if first.len() + wrapped.len() != bytes.len() {
            let what = format!("rows from {first_row} on are not countable");
            return Err(BackendError::State { tensor: self.specs[tensor].name.clone(), what });
        }
        let (head, tail) = bytes.split_at(first.len());
        self.buffer_mut(tensor)[first].copy_from_slice(head);
        self.buffer_mut(tensor)[wrapped].copy_from_slice(tail);
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.buffers.iter().map(|b| b.bytes().len()).sum()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
