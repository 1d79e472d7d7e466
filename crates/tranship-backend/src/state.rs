//! A sequence's carried tensors, and their logical edge.

use crate::{BackendError, CarriedSpec, Segment};
use std::any::Any;
use std::ops::Range;

/// The carried tensors of one sequence, in the order of [`crate::Chain::carried`].
///
/// Whatever layout a backend keeps, these two methods speak in logical rows: row-major, in the carried dtype.
pub trait State: Send {
    /// The bytes of rows of a tensor.
    ///
    /// # Errors
    /// [`BackendError::State`] for a tensor or rows that there are not.
    fn read(&self, tensor: usize, rows: Range<usize>) -> Result<Vec<u8>, BackendError>;

    /// Writes whole rows of a tensor, from `first_row` on.
    ///
    /// # Errors
    /// [`BackendError::State`] for a tensor or rows that there are not, or bytes that are no whole rows.
    fn write(&mut self, tensor: usize, first_row: usize, bytes: &[u8]) -> Result<(), BackendError>;

    /// Bytes of memory that the rows take, in whatever layout; at most a cache line for each tensor comes on top.
    fn memory_bytes(&self) -> usize;

    /// The backend's own type.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Alignment of each tensor's first row, in bytes: a cache line.
const LINE: usize = 64;

/// A state that is kept in its logical form: one buffer of rows for each tensor.
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

    /// The byte range of rows of a tensor, or why there is none.
    fn span(&self, tensor: usize, rows: Range<usize>) -> Result<Range<usize>, BackendError> {
        let Some(spec) = self.specs.get(tensor) else {
            let what = format!("there are only {} carried tensors", self.specs.len());
            return Err(BackendError::State { tensor: tensor.to_string(), what });
        };
        if rows.start > rows.end || rows.end > spec.rows {
            let what = format!("rows {}..{} of {} are asked for", rows.start, rows.end, spec.rows);
            return Err(BackendError::State { tensor: spec.name.clone(), what });
        }
        let row = spec.dtype.row_bytes(spec.cols).unwrap_or(0);
        Ok(rows.start * row..rows.end * row)
    }
}

impl State for RowState {
    fn read(&self, tensor: usize, rows: Range<usize>) -> Result<Vec<u8>, BackendError> {
        let span = self.span(tensor, rows)?;
        Ok(self.buffer(tensor)[span].to_vec())
    }

    fn write(&mut self, tensor: usize, first_row: usize, bytes: &[u8]) -> Result<(), BackendError> {
        self.span(tensor, 0..0)?;
        let spec = &self.specs[tensor];
        let row = spec.dtype.row_bytes(spec.cols).unwrap_or(0).max(1);
        if !bytes.len().is_multiple_of(row) {
            let what = format!("{} bytes are no whole number of rows of {row} bytes", bytes.len());
            return Err(BackendError::State { tensor: spec.name.clone(), what });
        }
        let span = self.span(tensor, first_row..first_row.saturating_add(bytes.len() / row))?;
        self.buffer_mut(tensor)[span].copy_from_slice(bytes);
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.buffers.iter().map(|b| b.bytes().len()).sum()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
