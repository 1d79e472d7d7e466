//! Owned bytes that start on a 64-byte boundary: a cache line, and the widest vector register.

use bytemuck::{Pod, Zeroable};

/// One aligned line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: `Line` is a `repr(C)` wrapper of 64 bytes whose size equals its alignment, so it has no padding, and
// every bit pattern, all zero included, is a valid value of bytes.
unsafe impl Zeroable for Line {}
// SAFETY: as above; it is `Copy`, has no padding, no pointers and no invalid bit patterns.
unsafe impl Pod for Line {}

/// Bytes aligned to 64.
#[derive(Clone)]
pub(crate) struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

impl Buffer {
    pub(crate) fn zeroed(len: usize) -> Buffer {
        Buffer { lines: bytemuck::zeroed_vec(len.div_ceil(64)), len }
    }

    pub(crate) fn copy_of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}
