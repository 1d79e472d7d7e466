//! Buffers by lifetime: a value takes a buffer that is free, and gives it back after its last use.

use super::{Buffer, Form, Room};

/// Buffers and which of them are free.
pub(crate) struct Slots {
    rooms: Vec<Room>,
    free: Vec<Buffer>,
}

impl Slots {
    /// Buffer 0, for the rows that pass from program to program: taken for input rows of a width, or free.
    pub fn new(input: Option<usize>) -> Slots {
        match input {
            Some(width) => Slots { rooms: vec![Room::of(width, Form::STEP)], free: Vec::new() },
            None => Slots { rooms: vec![Room::of(1, Form::STEP)], free: vec![Buffer(0)] },
        }
    }

    /// A free buffer for rows of `width`: the one that needs the least more room, or a new one.
    pub fn take(&mut self, width: usize, form: Form) -> Buffer {
        let wanted = Room::of(width, form);
        let growth = |b: &Buffer| {
            let room = self.rooms[b.0];
            (wanted.fixed.saturating_sub(room.fixed), wanted.step.saturating_sub(room.step), room.step)
        };
        let best = self.free.iter().enumerate().min_by_key(|(_, b)| growth(b)).map(|(i, _)| i);
        match best {
            Some(i) => {
                let buffer = self.free.swap_remove(i);
                self.rooms[buffer.0] = self.rooms[buffer.0].max(wanted);
                buffer
            }
            None => {
                self.rooms.push(wanted);
                Buffer(self.rooms.len() - 1)
            }
        }
    }

    /// Gives a buffer back.
    pub fn give_back(&mut self, buffer: Buffer) {
        debug_assert!(!self.free.contains(&buffer), "a buffer is given back once");
        self.free.push(buffer);
    }

    /// The room of each buffer.
    pub fn rooms(self) -> Vec<Room> {
        self.rooms
    }
}
