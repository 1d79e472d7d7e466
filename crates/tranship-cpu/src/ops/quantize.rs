//! Activations as 8-bit blocks: what block-encoded weights are multiplied with under the `quantized` policy.
//!
//! Each 32 values share a scale `d = max|x| / 127`, rounded to half precision, and are stored as `q`, the integers
//! nearest to `x / d`: value `d · q`. All encodings take this one form. It is finer than one scale for 256 values.
//!
//! Beside the codes lie, for groups of 32 and of 16 values, the scale of each group and `d · Σq`: what a weight's
//! min or zero point is multiplied with.

use super::Out;
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;

/// Values that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Rows of 8-bit blocks; see the module's introduction. The memory is kept from one use to the next.
#[derive(Default)]
pub struct QuantizedRows {
    rows: usize,
    width: usize,
    codes: Vec<i8>,
    /// The codes with 128 added: for machines that multiply unsigned by signed bytes.
    offset_codes: Vec<u8>,
    by_32: Groups,
    by_16: Groups,
}

/// Floats between the groups of one row and the next, for groups of `group` values.
fn stride(width: usize, group: usize) -> usize {
    (width / group).next_multiple_of(MAX_LANES)
}

/// Some rows of 8-bit blocks, equally far apart.
#[derive(Clone, Copy)]
pub(crate) struct BlockRows<'a> {
    rows: usize,
    width: usize,
    /// One row is so many rows behind the one before.
    step: usize,
    /// From the first row on.
    codes: &'a [i8],
    offset_codes: &'a [u8],
    by_32: GroupRows<'a>,
    by_16: GroupRows<'a>,
}

/// [`Groups`] of some rows, `stride` floats apart.
#[derive(Clone, Copy)]
pub(crate) struct GroupRows<'a> {
    pub(crate) stride: usize,
    pub(crate) scale: &'a [f32],
    pub(crate) scaled_sum: &'a [f32],
}

impl<'a> BlockRows<'a> {
    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// `rows` of these rows: `first`, and then each that is `step` behind.
    pub(crate) fn some(&self, first: usize, step: usize, rows: usize) -> BlockRows<'a> {
        assert!(rows == 0 || first + (rows - 1) * step < self.rows, "rows that there are");
        let groups = |of: GroupRows<'a>| {
            let at = first * of.stride;
            GroupRows { stride: of.stride * step, scale: &of.scale[at..], scaled_sum: &of.scaled_sum[at..] }
        };
        let first = first * self.step;
        BlockRows {
            rows,
            width: self.width,
            step: self.step * step,
            codes: &self.codes[first * self.width..],
            offset_codes: &self.offset_codes[first * self.width..],
            by_32: groups(self.by_32),
            by_16: groups(self.by_16),
        }
    }

    /// Bytes between the codes of one row and the next.
    pub(crate) fn code_stride(&self) -> usize {
        self.step * self.width
    }

    /// The codes of row `row`.
    pub(crate) fn codes_ptr(&self, row: usize) -> *const i8 {
        self.codes[row * self.code_stride()..].as_ptr()
    }

    /// The codes of row `row` plus `offset`, which is 0 or 128.
    pub(crate) fn offset_codes_ptr(&self, row: usize, offset: u8) -> *const u8 {
        let from = row * self.code_stride();
        if offset == 0 { self.codes[from..].as_ptr().cast() } else { self.offset_codes[from..].as_ptr() }
    }

    /// Scales and sums for weights whose groups have `group` values.
    pub(crate) fn groups(&self, group: usize) -> GroupRows<'a> {
        if group == 16 { self.by_16 } else { self.by_32 }
    }

    /// The values that row `row` stands for: `d · q`.
    pub(crate) fn decode_row(&self, row: usize, out: &mut [f32]) {
        let scale = &self.by_32.scale[row * self.by_32.stride..];
        let codes = &self.codes[row * self.code_stride()..][..self.width];
        for (i, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            *out = scale[i / BLOCK] * f32::from(*code);
        }
    }
}

/// Per group of values: its scale, and its scale times the sum of its codes. Rows are padded with zeros.
#[derive(Default)]
pub(crate) struct Groups {
    pub(crate) stride: usize,
    pub(crate) scale: Vec<f32>,
    pub(crate) scaled_sum: Vec<f32>,
}

impl Groups {
    fn view(&self) -> GroupRows<'_> {
        GroupRows { stride: self.stride, scale: &self.scale, scaled_sum: &self.scaled_sum }
    }

    fn reshape(&mut self, rows: usize, groups: usize) {
        self.stride = groups.next_multiple_of(MAX_LANES);
        for values in [&mut self.scale, &mut self.scaled_sum] {
            values.clear();
            values.resize(rows * self.stride, 0.0);
        }
    }
}

impl QuantizedRows {
    /// No rows yet.
    pub fn new() -> QuantizedRows {
        QuantizedRows::default()
    }

    /// Makes room for `rows` rows of `width` values. Allocates only beyond what was ever asked for.
    ///
    /// # Panics
    /// When `width` is not a multiple of 32.
    pub fn reshape(&mut self, rows: usize, width: usize) {
        assert!(width.is_multiple_of(BLOCK), "8-bit blocks need a multiple of 32 values, not {width}");
        (self.rows, self.width) = (rows, width);
        self.codes.resize(rows * width, 0);
        self.offset_codes.resize(rows * width, 0);
        self.by_32.reshape(rows, width / 32);
        self.by_16.reshape(rows, width / 16);
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The values that row `row` stands for: `d · q`.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        self.view().decode_row(row, out);
    }

    /// Makes room for `rows` rows of `width` values beside what there is room for already: see [`QuantizedOut::shaped`].
    pub(crate) fn make_room(&mut self, rows: usize, width: usize) {
        self.codes.resize(self.codes.len().max(rows * width), 0);
        self.offset_codes.resize(self.codes.len(), 0);
        for (groups, size) in [(&mut self.by_32, 32), (&mut self.by_16, 16)] {
            let floats = groups.scale.len().max(rows * stride(width, size));
            groups.scale.resize(floats, 0.0);
            groups.scaled_sum.resize(floats, 0.0);
        }
    }

    /// All rows, as kernels take them.
    pub(crate) fn view(&self) -> BlockRows<'_> {
        BlockRows {
            rows: self.rows,
            width: self.width,
            step: 1,
            codes: &self.codes,
            offset_codes: &self.offset_codes,
            by_32: self.by_32.view(),
            by_16: self.by_16.view(),
        }
    }

    /// What several threads write.
    pub(crate) fn out(&mut self) -> QuantizedOut<'_> {
        QuantizedOut {
            width: self.width,
            strides: [self.by_32.stride, self.by_16.stride],
            codes: Out::new(&mut self.codes),
            offset_codes: Out::new(&mut self.offset_codes),
            scale: [Out::new(&mut self.by_32.scale), Out::new(&mut self.by_16.scale)],
            scaled_sum: [Out::new(&mut self.by_32.scaled_sum), Out::new(&mut self.by_16.scaled_sum)],
        }
    }
}

/// [`QuantizedRows`] while threads fill it.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedOut<'a> {
    width: usize,
    strides: [usize; 2],
    codes: Out<'a, i8>,
    offset_codes: Out<'a, u8>,
    scale: [Out<'a>; 2],
    scaled_sum: [Out<'a>; 2],
}

impl<'a> QuantizedOut<'a> {
    /// The same memory as rows of `width` values; there must have been [`QuantizedRows::make_room`] for them.
    pub(crate) fn shaped(self, width: usize) -> QuantizedOut<'a> {
        QuantizedOut { width, strides: [stride(width, 32), stride(width, 16)], ..self }
    }

    /// The first `rows` rows, to read.
    ///
    /// # Safety
    /// As long as they are used, nobody writes them.
    pub(crate) unsafe fn view(&self, rows: usize) -> BlockRows<'a> {
        // SAFETY: within the memory, which outlives `'a`; the caller's word for the rest.
        unsafe fn read<'a, T>(of: Out<'a, T>, len: usize) -> &'a [T] {
            assert!(len <= of.len(), "{len} elements of {}", of.len());
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(of.ptr(), len) }
        }
        // SAFETY: the caller's.
        unsafe {
            let groups = |i: usize| GroupRows {
                stride: self.strides[i],
                scale: read(self.scale[i], rows * self.strides[i]),
                scaled_sum: read(self.scaled_sum[i], rows * self.strides[i]),
            };
            BlockRows {
                rows,
                width: self.width,
                step: 1,
                codes: read(self.codes, rows * self.width),
                offset_codes: read(self.offset_codes, rows * self.width),
                by_32: groups(0),
                by_16: groups(1),
            }
        }
    }

    /// Copies row `from` of `rows`, of the same width, to row `to`.
    ///
    /// # Safety
    /// Nobody else has row `to` at the same time.
    pub(crate) unsafe fn copy_row(&self, rows: &BlockRows<'_>, from: usize, to: usize) {
        assert_eq!(rows.width, self.width, "rows of one width");
        // SAFETY: the caller's.
        unsafe {
            let there = to * self.width..(to + 1) * self.width;
            let from_codes = from * rows.code_stride();
            self.codes.range(there.clone()).copy_from_slice(&rows.codes[from_codes..][..self.width]);
            self.offset_codes.range(there).copy_from_slice(&rows.offset_codes[from_codes..][..self.width]);
            for (i, groups) in [rows.by_32, rows.by_16].into_iter().enumerate() {
                // Padding is copied too.
                let (n, at) = (self.strides[i], from * groups.stride);
                self.scale[i].range(to * n..(to + 1) * n).copy_from_slice(&groups.scale[at..at + n]);
                self.scaled_sum[i]
                    .range(to * n..(to + 1) * n)
                    .copy_from_slice(&groups.scaled_sum[at..at + n]);
            }
        }
    }

    /// Writes the zeros behind the groups of row `row`.
    ///
    /// # Safety
    /// Nobody else has them at the same time.
    unsafe fn pad(&self, row: usize) {
        for (i, group) in [32, 16].into_iter().enumerate() {
            let padding = row * self.strides[i] + self.width / group..(row + 1) * self.strides[i];
            // SAFETY: the caller's.
            unsafe {
                self.scale[i].range(padding.clone()).fill(0.0);
                self.scaled_sum[i].range(padding).fill(0.0);
            }
        }
    }
}

/// Rows to be quantized.
#[derive(Clone, Copy)]
pub(crate) struct Quantize<'a> {
    /// `[rows, width]`.
    pub(crate) x: &'a [f32],
    pub(crate) out: QuantizedOut<'a>,
}

impl Quantize<'_> {
    /// Quantizes this thread's share of the blocks (of all rows together: one row is shared too).
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        let rows = self.x.len() / self.out.width;
        // Units of 16 blocks, so that no two threads write one cache line of scales.
        let blocks = share.range(rows * self.out.width / BLOCK, MAX_LANES);
        isa.dispatch(QuantizeBlocks { op: *self, first: blocks.start, end: blocks.end });
    }
}

/// The blocks `first .. end`, of all rows.
struct QuantizeBlocks<'a> {
    op: Quantize<'a>,
    first: usize,
    end: usize,
}

impl Kernel for QuantizeBlocks<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let per_row = self.op.out.width / BLOCK;
        let mut squares = [[0.0; MAX_LANES * MAX_LANES]; 3];
        let mut block = self.first;
        while block < self.end {
            // Some blocks of one row, one for each lane.
            let (row, i) = (block / per_row, block % per_row);
            let held = S::LANES.min(per_row - i).min(self.end - block);
            let together = Together { x: &self.op.x[block * BLOCK..(block + held) * BLOCK], held };
            // SAFETY: each block belongs to one thread; so do its codes, scales and sums, and what pads its row.
            unsafe {
                let codes = self.op.out.codes.range(block * BLOCK..(block + held) * BLOCK);
                let offset = self.op.out.offset_codes.range(block * BLOCK..(block + held) * BLOCK);
                let groups = together.quantize(s, codes, offset, &mut squares);
                self.op.out.groups(row, i, held, &groups);
                if i + held == per_row {
                    self.op.out.pad(row);
                }
            }
            block += held;
        }
    }
}

/// What some blocks that were quantized together have beside their codes: a lane for each.
struct GroupsOf {
    scale: [f32; MAX_LANES],
    /// The scale times the sum of the codes, of each half of a block.
    sums: [[f32; MAX_LANES]; 2],
}

impl QuantizedOut<'_> {
    /// Writes scales and sums of `held` blocks of a row, from block `i` on.
    ///
    /// # Safety
    /// Nobody else has them at the same time.
    #[inline(always)]
    unsafe fn groups(&self, row: usize, i: usize, held: usize, groups: &GroupsOf) {
        // SAFETY: the caller's.
        unsafe {
            let at = row * self.strides[0] + i;
            let scale = self.scale[0].range(at..at + held);
            let sum = self.scaled_sum[0].range(at..at + held);
            let at = row * self.strides[1] + 2 * i;
            let halves = self.scale[1].range(at..at + 2 * held);
            let half_sums = self.scaled_sum[1].range(at..at + 2 * held);
            for j in 0..held {
                let [low, high] = [groups.sums[0][j], groups.sums[1][j]];
                let d = groups.scale[j];
                scale[j] = d;
                sum[j] = d * (low + high);
                halves[2 * j] = d;
                halves[2 * j + 1] = d;
                half_sums[2 * j] = d * low;
                half_sums[2 * j + 1] = d * high;
            }
        }
    }
}

/// Room for as many vectors as have lanes.
type Square = [f32; MAX_LANES * MAX_LANES];

/// As many blocks as there are lanes, or fewer.
struct Together<'a> {
    x: &'a [f32],
    held: usize,
}

impl Together<'_> {
    /// Codes, also with 128 added, and the groups.
    #[inline(always)]
    fn quantize<S: Simd>(
        &self,
        s: S,
        codes: &mut [i8],
        offset: &mut [u8],
        [low, high, turned]: &mut [Square; 3],
    ) -> GroupsOf {
        let vectors = BLOCK / S::LANES;
        assert!(self.x.len() == self.held * BLOCK && codes.len() == self.x.len() && self.held <= S::LANES);
        // A row for each block: what is left of it in each lane. Turned, the lanes are blocks.
        let mut lost = [s.splat(0.0); 2];
        for block in 0..self.held {
            let mut most = s.splat(0.0);
            for i in 0..vectors {
                // SAFETY: 32 floats of each block.
                let v = unsafe { s.load(self.x.as_ptr().add(block * BLOCK + i * S::LANES)) };
                most = s.max(most, s.abs(v));
                // Zero, or NaN once a value is not finite: the whole block is NaN then, as the encoding is defined.
                lost[i % 2] = s.fma(v, s.splat(0.0), lost[i % 2]);
            }
            // SAFETY: row `block` of the square.
            unsafe { s.store(low.as_mut_ptr().add(block * S::LANES), most) };
        }
        let most = fold_turned(s, low, turned, |a, b| s.max(a, b));
        let exact = s.div(most, s.splat(127.0));
        // Codes come from the scale before it is rounded: the definition of the encoding. A scale of 0 leaves only zeros: its
        // inverse must not be infinite.
        let inverse = s.min(s.div(s.splat(1.0), exact), s.splat(f32::MAX));
        let inverse = s.select_ge(s.splat(0.0), exact, s.splat(0.0), inverse);
        let mut groups = GroupsOf { scale: [0.0; MAX_LANES], sums: [[0.0; MAX_LANES]; 2] };
        let (mut inverses, mut halves) = ([0f32; MAX_LANES], [0u16; MAX_LANES]);
        // SAFETY: room for the widest vector.
        unsafe {
            s.store(inverses.as_mut_ptr(), inverse);
            s.store_f16(halves.as_mut_ptr(), exact);
            s.store(groups.scale.as_mut_ptr(), s.load_f16(halves.as_ptr()));
        }
        for block in 0..self.held {
            // SAFETY: 32 floats and as many codes of each block, and row `block` of each square.
            unsafe {
                let x = self.x.as_ptr().add(block * BLOCK);
                let sums = codes_of(s, x, s.splat(inverses[block]), codes.as_mut_ptr().add(block * BLOCK));
                s.store(low.as_mut_ptr().add(block * S::LANES), sums[0]);
                s.store(high.as_mut_ptr().add(block * S::LANES), sums[1]);
            }
        }
        for (sums, square) in groups.sums.iter_mut().zip([low, high]) {
            // SAFETY: room for the widest vector.
            unsafe { s.store(sums.as_mut_ptr(), fold_turned(s, square, turned, |a, b| s.add(a, b))) };
        }
        // Not at once: what has just been written in parts is slow to read as a whole.
        for at in (0..codes.len()).step_by(BLOCK) {
            // SAFETY: 32 codes of each block.
            unsafe {
                let codes = s.b_load(codes.as_ptr().add(at).cast());
                s.b_store(offset.as_mut_ptr().add(at), s.b_xor(codes, s.b_splat(0x80)));
            }
        }
        if s.reduce_add(s.add(lost[0], lost[1])).is_nan() {
            self.spoil(&mut groups);
        }
        groups
    }

    /// Makes the scales of blocks with values that are not finite NaN.
    #[cold]
    fn spoil(&self, groups: &mut GroupsOf) {
        for (block, scale) in self.x.chunks_exact(BLOCK).zip(&mut groups.scale) {
            if block.iter().any(|v| !v.is_finite()) {
                *scale = f32::NAN;
            }
        }
    }
}

/// Combines the lanes of each of the square's rows: lane `i` of the result is of row `i`.
#[inline(always)]
fn fold_turned<S: Simd>(s: S, square: &Square, turned: &mut Square, f: impl Fn(S::F, S::F) -> S::F) -> S::F {
    // SAFETY: both have `LANES` rows of `LANES` floats.
    unsafe {
        s.transpose(square.as_ptr().cast(), S::LANES * 4, turned.as_mut_ptr().cast(), S::LANES * 4);
        let mut all = s.load(turned.as_ptr());
        for i in 1..S::LANES {
            all = f(all, s.load(turned.as_ptr().add(i * S::LANES)));
        }
        all
    }
}

/// Writes the codes of a block; gives the vectors of sums of its halves.
///
/// # Safety
/// `x` has 32 floats, `codes` room for 32.
#[inline(always)]
unsafe fn codes_of<S: Simd>(s: S, x: *const f32, inverse: S::F, codes: *mut i8) -> [S::F; 2] {
    let limit = s.splat(127.0);
    let least = s.sub(s.splat(0.0), limit);
    let mut sums = [s.splat(0.0); 2];
    for i in 0..BLOCK / S::LANES {
        // SAFETY: the caller's.
        unsafe {
            let q = s.round(s.mul(s.load(x.add(i * S::LANES)), inverse));
            // The rounded inverse may be a little too great.
            let q = s.max(s.min(q, limit), least);
            s.i_store_i8(codes.add(i * S::LANES), s.f_to_i(q));
            let sum = &mut sums[i * S::LANES / 16];
            *sum = s.add(*sum, q);
        }
    }
    sums
}
