//! A sequence's caches as the kernels read them: rows in order, aligned, in the carried type.
//!
//! Memory is asked of the system zeroed, so that rows that no token has reached take none of it.

use std::any::Any;
use std::ops::Range;
use tranship_backend::{BackendError, CarriedSpec, State};

/// Alignment of a cache, in bytes.
const LINE: usize = 64;

/// The caches of one sequence.
pub(crate) struct CpuState {
    specs: Vec<CarriedSpec>,
    caches: Vec<Rows>,
}

/// One cache's memory.
struct Rows {
    memory: Vec<u8>,
    /// Where the first aligned byte is.
    start: usize,
    row_bytes: usize,
}

impl CpuState {
    /// Empty caches.
    ///
    /// # Errors
    /// [`BackendError::State`] when a size overflows or memory is not to be had.
    pub fn new(specs: Vec<CarriedSpec>) -> Result<CpuState, BackendError> {
        let caches = specs.iter().map(Rows::new).collect::<Result<_, _>>()?;
        Ok(CpuState { specs, caches })
    }

    /// What is kept.
    pub fn specs(&self) -> &[CarriedSpec] {
        &self.specs
    }

    /// Where a cache starts, for kernels.
    pub fn start(&mut self, tensor: usize) -> *mut u8 {
        let rows = &mut self.caches[tensor];
        rows.memory[rows.start..].as_mut_ptr()
    }

    /// The byte range of rows of a tensor within its memory.
    fn span(&self, tensor: usize, rows: Range<usize>) -> Result<Range<usize>, BackendError> {
        let Some(spec) = self.specs.get(tensor) else {
            let what = format!("there are only {} carried tensors", self.specs.len());
            return Err(BackendError::State { tensor: tensor.to_string(), what });
        };
        if rows.start > rows.end || rows.end > spec.rows {
            let what = format!("rows {}..{} of {} are asked for", rows.start, rows.end, spec.rows);
            return Err(BackendError::State { tensor: spec.name.clone(), what });
        }
        let Rows { start, row_bytes, .. } = self.caches[tensor];
        Ok(start + rows.start * row_bytes..start + rows.end * row_bytes)
    }
}

impl Rows {
    fn new(spec: &CarriedSpec) -> Result<Rows, BackendError> {
        let none = || BackendError::State {
            tensor: spec.name.clone(),
            what: format!("no memory for {} rows of {} {}", spec.rows, spec.cols, spec.dtype),
        };
        let row_bytes = spec.dtype.row_bytes(spec.cols).ok_or_else(none)?;
        let bytes = row_bytes.checked_mul(spec.rows).and_then(|b| b.checked_add(LINE)).ok_or_else(none)?;
        // Asked for on trial first: `vec!` ends the process when there is no memory.
        Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| none())?;
        let memory = vec![0u8; bytes];
        let start = memory.as_ptr().align_offset(LINE);
        Ok(Rows { memory, start, row_bytes })
    }
}

impl State for CpuState {
    fn read(&self, tensor: usize, rows: Range<usize>) -> Result<Vec<u8>, BackendError> {
        let span = self.span(tensor, rows)?;
        Ok(self.caches[tensor].memory[span].to_vec())
    }

    fn write(&mut self, tensor: usize, first_row: usize, bytes: &[u8]) -> Result<(), BackendError> {
        self.span(tensor, 0..0)?;
        let row_bytes = self.caches[tensor].row_bytes.max(1);
        if !bytes.len().is_multiple_of(row_bytes) {
            let what = format!("{} bytes are no whole number of rows of {row_bytes} bytes", bytes.len());
            return Err(BackendError::State { tensor: self.specs[tensor].name.clone(), what });
        }
        let span = self.span(tensor, first_row..first_row.saturating_add(bytes.len() / row_bytes))?;
        self.caches[tensor].memory[span].copy_from_slice(bytes);
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.caches.iter().map(|c| c.memory.len()).sum()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
