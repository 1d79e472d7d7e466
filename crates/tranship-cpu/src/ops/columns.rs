//! `slice` and `tile`: values moved between columns.

use super::Out;
use crate::pool::Share;

/// Of each of a row's equal parts, the columns `from .. to`.
#[derive(Clone, Copy)]
pub(crate) struct Slice<'a> {
    /// `[rows, width]`.
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    /// Parts of a row.
    pub(crate) heads: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// `[rows, heads · (to − from)]`.
    pub(crate) y: Out<'a>,
}

impl Slice<'_> {
    /// This thread's share of the parts of all rows.
    pub(crate) fn part(&self, share: Share<'_>) {
        let (dim, taken) = (self.width / self.heads, self.to - self.from);
        let parts = self.x.len() / dim;
        assert!(self.to <= dim && self.y.len() == parts * taken, "columns of each part, and room for them");
        for part in share.range(parts, 1) {
            // SAFETY: each part belongs to one thread.
            let y = unsafe { self.y.range(part * taken..(part + 1) * taken) };
            y.copy_from_slice(&self.x[part * dim + self.from..part * dim + self.to]);
        }
    }
}

/// Each row as often, side by side.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    /// `[rows, width]`.
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    pub(crate) times: usize,
    /// `[rows, times · width]`.
    pub(crate) y: Out<'a>,
}

impl Tile<'_> {
    /// This thread's share of the copies.
    pub(crate) fn part(&self, share: Share<'_>) {
        let width = self.width;
        assert_eq!(self.y.len(), self.x.len() * self.times, "room for every copy");
        for copy in share.range(self.x.len() / width * self.times, 1) {
            let row = copy / self.times;
            // SAFETY: each copy belongs to one thread.
            let y = unsafe { self.y.range(copy * width..(copy + 1) * width) };
            y.copy_from_slice(&self.x[row * width..(row + 1) * width]);
        }
    }
}
