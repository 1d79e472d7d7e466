//! Many rows by block-encoded weights on matrix tiles.
//!
//! The panel is that of [`super::gemm`], and so is the arithmetic, addition by addition: the results have the same bits.
//! One instruction multiplies 16 rows of a group by 16 outputs; its sums go through memory into vector registers, where
//! the group's scales are applied. That takes longer than the products, and is two groups behind them, so that it never
//! waits.

use super::LinearQuant;
use super::panel::Panel;
use crate::arch::amx::{SIDE, Session};
use crate::arch::{Isa, Kernel, Simd};
use crate::ops::quantize::QuantizedRows;
use std::ops::Range;

/// Fewer rows than this are left to vectors.
pub(super) const LEAST_ROWS: usize = SIDE;
/// Groups whose sums are under way.
const AHEAD: usize = 2;

/// The first rows of the tiles: the last tile overlaps the one before, where the rows do not fill it.
fn first_rows(rows: usize) -> impl Iterator<Item = usize> {
    (0..rows).step_by(SIDE).map(move |row| row.min(rows - SIDE))
}

/// Floats that [`transpose_scales`] fills.
pub(super) fn floats(rows: usize, groups: usize) -> usize {
    rows.div_ceil(SIDE) * groups * SIDE * 2
}

/// Writes the activations' scales, then their scaled sums, as tiles need them: `[tiles, groups, 2, SIDE]`.
pub(super) fn transpose_scales(x: &QuantizedRows, group: usize, out: &mut [f32]) {
    let from = x.groups(group);
    let groups = x.width() / group;
    for (first, out) in first_rows(x.rows()).zip(out.chunks_exact_mut(groups * SIDE * 2)) {
        for m in 0..SIDE {
            let at = (first + m) * from.stride;
            for g in 0..groups {
                out[g * SIDE * 2 + m] = from.scale[at + g];
                out[(g * 2 + 1) * SIDE + m] = from.scaled_sum[at + g];
            }
        }
    }
}

/// All rows by one panel.
pub(super) fn tiles<const GROUP: usize, const MINS: bool>(
    op: &LinearQuant<'_>,
    isa: Isa,
    panel: &Panel,
    outs: Range<usize>,
    scales: &[f32],
) {
    let session = Session::<GROUP>::new();
    isa.dispatch_bytes(Tiles::<GROUP, MINS> { op, panel, outs, scales, session: &session });
}

struct Tiles<'a, const GROUP: usize, const MINS: bool> {
    op: &'a LinearQuant<'a>,
    panel: &'a Panel,
    outs: Range<usize>,
    scales: &'a [f32],
    session: &'a Session<GROUP>,
}

impl<const GROUP: usize, const MINS: bool> Kernel for Tiles<'_, GROUP, MINS> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(S::LANES == SIDE, "tiles go with vectors of {SIDE} lanes");
        let (rows, groups) = (self.op.x.rows(), self.op.x.width() / GROUP);
        let scales = self.scales.chunks_exact(groups * SIDE * 2);
        for (tile, (first, scales)) in first_rows(rows).zip(scales).enumerate() {
            for (vector, out) in self.outs.clone().step_by(SIDE).enumerate() {
                // SAFETY: 16 rows from `first` on exist, and the panel has the vector; `scales` are those of the tile.
                let acc = unsafe { self.tile(s, first, vector, scales) };
                let n = SIDE.min(self.outs.end - out);
                for (m, acc) in acc.into_iter().enumerate().skip(tile * SIDE - first) {
                    // SAFETY: outputs of this thread, of a row that exists and that no tile before has written.
                    unsafe { self.op.store(s, first + m, out, n, acc) };
                }
            }
        }
    }
}

impl<const GROUP: usize, const MINS: bool> Tiles<'_, GROUP, MINS> {
    /// 16 rows from `first` on by a vector of outputs.
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, s: S, first: usize, vector: usize, scales: &[f32]) -> [S::F; SIDE] {
        let groups = self.op.x.width() / GROUP;
        let mut sums = Sums([[0; SIDE * SIDE]; 2 * AHEAD]);
        let mut acc = [s.splat(0.0); SIDE];
        // SAFETY: the caller's; `groups` groups of rows, panel and scales.
        unsafe {
            let mut g = 0;
            while g < groups + AHEAD {
                if g < groups {
                    self.products::<false>(first, vector, g, &mut sums);
                }
                if g + 1 < groups {
                    self.products::<true>(first, vector, g + 1, &mut sums);
                }
                for behind in [g, g + 1] {
                    if behind >= AHEAD && behind < groups + AHEAD {
                        let done = behind - AHEAD;
                        let scales = scales.as_ptr().add(done * SIDE * 2);
                        self.scale(s, vector, done, &sums.0[done % (2 * AHEAD)], scales, &mut acc);
                    }
                }
                g += 2;
            }
        }
        acc
    }

    /// The integer sums of group `g`.
    #[inline(always)]
    unsafe fn products<const ODD: bool>(&self, first: usize, vector: usize, g: usize, sums: &mut Sums) {
        let x = self.op.x;
        let rows = x.codes_ptr(first).wrapping_add(g * GROUP);
        let codes = self.panel.codes_ptr(g * GROUP / 4, vector, SIDE);
        let sums = sums.0[g % (2 * AHEAD)].as_mut_ptr();
        // SAFETY: the caller's: 16 rows of the width, and a vector of the panel.
        unsafe { self.session.dot::<ODD>(rows, x.width(), codes, Panel::CODE_STRIDE, sums) };
    }

    /// Adds a group's sums, scaled.
    #[inline(always)]
    unsafe fn scale<S: Simd>(
        &self,
        s: S,
        vector: usize,
        g: usize,
        sums: &[i32; SIDE * SIDE],
        scales: *const f32,
        acc: &mut [S::F; SIDE],
    ) {
        // SAFETY: the caller's: group `g` of the panel, and its `[2, SIDE]` scales of rows.
        unsafe {
            let scale = s.load(self.panel.scale_ptr(g, vector, SIDE));
            for m in 0..SIDE {
                let scaled = s.mul(s.i_to_f(s.i_load(sums.as_ptr().add(m * SIDE))), scale);
                acc[m] = s.fma(scaled, s.splat(scales.add(m).read()), acc[m]);
            }
            if MINS {
                let min = s.load(self.panel.low_ptr(g, vector, SIDE));
                for m in 0..SIDE {
                    acc[m] = s.fnma(min, s.splat(scales.add(SIDE + m).read()), acc[m]);
                }
            }
        }
    }
}

/// Tiles of sums on their way.
#[repr(C, align(64))]
struct Sums([[i32; SIDE * SIDE]; 2 * AHEAD]);
