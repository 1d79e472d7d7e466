//! Buffers by lifetime: a value takes a buffer that is free, and gives it back after its last use.

use super::Buffer;

/// Buffers and which of them are free.
pub(crate) struct Slots {
    widths: Vec<usize>,
    free: Vec<Buffer>,
}

impl Slots {
    /// Buffer 0, for the rows that pass from program to program: taken for input rows of a width, or free.
    pub fn new(input: Option<usize>) -> Slots {
        match input {
            Some(width) => Slots { widths: vec![width], free: Vec::new() },
            None => Slots { widths: vec![1], free: vec![Buffer(0)] },
        }
    }

    /// A free buffer for rows of `width`: the one that needs the least more room, or a new one.
    pub fn take(&mut self, width: usize) -> Buffer {
        let growth = |b: &Buffer| (width.saturating_sub(self.widths[b.0]), self.widths[b.0]);
        let best = self.free.iter().enumerate().min_by_key(|(_, b)| growth(b)).map(|(i, _)| i);
        match best {
            Some(i) => {
                let buffer = self.free.swap_remove(i);
                self.widths[buffer.0] = self.widths[buffer.0].max(width);
                buffer
            }
            None => {
                self.widths.push(width);
                Buffer(self.widths.len() - 1)
            }
        }
    }

    /// Gives a buffer back.
    pub fn give_back(&mut self, buffer: Buffer) {
        debug_assert!(!self.free.contains(&buffer), "a buffer is given back once");
        self.free.push(buffer);
    }

    /// Makes a taken buffer at least this wide.
    pub fn widen(&mut self, buffer: Buffer, width: usize) {
        self.widths[buffer.0] = self.widths[buffer.0].max(width);
    }

    /// The widths of all buffers.
    pub fn widths(self) -> Vec<usize> {
        self.widths
    }
}
