//! Many rows by block-encoded weights on matrix tiles.
//!
//! The panel is that of [`super::gemm`], and so is the arithmetic, addition by addition: the results have the same bits.
//! One instruction multiplies 16 rows of a group by 16 outputs; its sums go through memory into vector registers, where
//! the group's scales are applied. That takes longer than the products, and is some groups behind them, so that it never
//! waits.

use super::LinearQuant;
use super::panel::Panel;
use crate::arch::amx::{SIDE, Session};
use crate::arch::{Isa, Kernel, Simd};
use crate::ops::quantize::BlockRows;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Fewer rows than this are left to vectors.
pub(super) const LEAST_ROWS: usize = SIDE;
/// Groups whose sums are under way.
const AHEAD: usize = 3;
/// Room for the sums of so many groups.
const RING: usize = 4;

/// The first rows of the tiles: the last tile overlaps the one before, where the rows do not fill it.
fn first_rows(rows: usize) -> impl Iterator<Item = usize> {
    (0..rows).step_by(SIDE).map(move |row| row.min(rows - SIDE))
}

/// Floats that [`transpose_scales`] fills.
pub(super) fn floats(rows: usize, groups: usize) -> usize {
    rows.div_ceil(SIDE) * groups * SIDE * 2
}

/// Writes the activations' scales, then their scaled sums, as tiles need them: `[tiles, groups, 2, SIDE]`.
pub(super) fn transpose_scales(x: BlockRows<'_>, group: usize, out: &mut [f32]) {
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
        let vectors = self.outs.len().div_ceil(SIDE);
        let mut ring = Ring([const { MaybeUninit::uninit() }; RING]);
        let mut ahead = Ahead::new(&self, vectors, groups);
        for _ in 0..AHEAD {
            // SAFETY: the cursor goes over rows, vectors and groups that there are.
            unsafe { ahead.issue(&self, &mut ring) };
        }
        let mut now = 0;
        for (tile, (first, scales)) in
            first_rows(rows).zip(self.scales.chunks_exact(groups * SIDE * 2)).enumerate()
        {
            for vector in 0..vectors {
                let out = self.outs.start + vector * SIDE;
                for m in 0..SIDE {
                    let y = self.op.y.ptr().wrapping_add((first + m) * self.op.stride + out);
                    s.prefetch_write(y.cast());
                }
                let mut acc = [s.splat(0.0); SIDE];
                for g in 0..groups {
                    // SAFETY: as above; the sums of this group were issued `AHEAD` steps ago.
                    unsafe {
                        ahead.issue(&self, &mut ring);
                        let sums = ring.0[now % RING].as_ptr().cast::<i32>();
                        let scales = scales.as_ptr().add(g * SIDE * 2);
                        self.scale(s, vector, g, sums, scales, &mut acc);
                    }
                    now += 1;
                }
                let n = SIDE.min(self.outs.end - out);
                for m in 0..SIDE {
                    // What a tile before has written, it has written for good.
                    if first + m >= tile * SIDE {
                        // SAFETY: outputs of this thread, of a row that exists.
                        unsafe { self.op.store(s, first + m, out, n, acc[m]) };
                    }
                }
            }
        }
    }
}

impl<const GROUP: usize, const MINS: bool> Tiles<'_, GROUP, MINS> {
    /// Adds a group's sums, scaled.
    #[inline(always)]
    unsafe fn scale<S: Simd>(
        &self,
        s: S,
        vector: usize,
        g: usize,
        sums: *const i32,
        scales: *const f32,
        acc: &mut [S::F; SIDE],
    ) {
        // SAFETY: the caller's: `[16, 16]` sums, group `g` of the panel, and its `[2, SIDE]` scales of rows.
        unsafe {
            let scale = s.load(self.panel.scale_ptr(g, vector, SIDE));
            for m in 0..SIDE {
                let scaled = s.mul(s.i_to_f(s.i_load(sums.add(m * SIDE))), scale);
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
struct Ring([MaybeUninit<[i32; SIDE * SIDE]>; RING]);

/// Where products are made: some groups ahead of where they are used, across tiles.
struct Ahead {
    rows: *const i8,
    codes: *const u8,
    /// Groups left of the present tile and vector, vectors left of the tile.
    groups: usize,
    vectors: usize,
    /// Tiles begun, of all.
    tile: usize,
    tiles: usize,
    issued: usize,
}

impl Ahead {
    fn new<const GROUP: usize, const MINS: bool>(
        of: &Tiles<'_, GROUP, MINS>,
        vectors: usize,
        groups: usize,
    ) -> Ahead {
        let x = of.op.x;
        let (rows, codes) = (x.codes_ptr(0), of.panel.codes_ptr(0, 0, SIDE).cast_const());
        Ahead { rows, codes, groups, vectors, tile: 0, tiles: x.rows().div_ceil(SIDE), issued: 0 }
    }

    /// Makes the products of the next group, if there is one.
    ///
    /// # Safety
    /// The panel and the activations are those of [`Ahead::new`].
    #[inline(always)]
    unsafe fn issue<const GROUP: usize, const MINS: bool>(
        &mut self,
        of: &Tiles<'_, GROUP, MINS>,
        ring: &mut Ring,
    ) {
        if self.tile == self.tiles {
            return;
        }
        let stride = of.op.x.code_stride();
        let sums = ring.0[self.issued % RING].as_mut_ptr().cast();
        // SAFETY: 16 rows and a vector of the panel, at a group that there is.
        unsafe { of.session.dot(self.rows, stride, self.codes, Panel::CODE_STRIDE, sums) };
        self.issued += 1;
        self.rows = self.rows.wrapping_add(GROUP);
        self.codes = self.codes.wrapping_add(GROUP / 4 * Panel::CODE_STRIDE);
        self.groups -= 1;
        if self.groups == 0 {
            self.next(of);
        }
    }

    /// Goes on to the next vector or tile.
    #[cold]
    fn next<const GROUP: usize, const MINS: bool>(&mut self, of: &Tiles<'_, GROUP, MINS>) {
        let x = of.op.x;
        let all = of.outs.len().div_ceil(SIDE);
        self.groups = x.width() / GROUP;
        self.vectors -= 1;
        if self.vectors == 0 {
            self.vectors = all;
            self.tile += 1;
        }
        if self.tile < self.tiles {
            self.rows = x.codes_ptr((self.tile * SIDE).min(x.rows() - SIDE));
            self.codes = of.panel.codes_ptr(0, all - self.vectors, SIDE);
        }
    }
}
