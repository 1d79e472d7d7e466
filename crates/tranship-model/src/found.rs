//! Sources looked up in a checkpoint: type, shape, and where each byte lies. Nothing is read before it is asked for.

use crate::{Base, Name, Pick, Source, SourceError};
use tranship_dtype::{DType, Encoding};
use tranship_weights::{Checkpoint, View};

/// Elements of an MXFP4 block, bytes of its quants, and bytes of it in the layout of `DType::MXFP4`: its scale first.
const MX_LEN: usize = 32;
const MX_QUANTS: usize = 16;
const MX_BLOCK: usize = 17;

/// Smaller pieces are assembled: a list of them would be longer than they are.
const MIN_PIECE_BYTES: usize = 64;

/// A source, found: its type and shape are known, and its tensors are as it needs them.
#[derive(Clone, Debug)]
pub struct Found {
    dtype: DType,
    lay: Lay,
    /// Of MXFP4 in two tensors; `lay` is that of the quants.
    scales: Option<Lay>,
    /// What lies beside `lay`, part by part; both are `[parts, rows, in]`.
    beside: Option<Lay>,
}

/// Bytes of a mapped tensor.
#[derive(Clone, Debug)]
pub struct Piece {
    view: View,
    start: usize,
    len: usize,
}

impl Piece {
    /// The bytes, in the map.
    pub fn bytes(&self) -> &[u8] {
        &self.view.bytes()[self.start..self.start + self.len]
    }
}

/// How elements lie in tensors that are alike: as units of bytes along axes.
#[derive(Clone, Debug)]
struct Lay {
    /// One tensor, or of a bank one for each expert.
    views: Vec<View>,
    bank: bool,
    /// The first byte in each.
    start: usize,
    /// The axes of each, outermost first, without the row.
    axes: Vec<Axis>,
    /// The elements of a row, where rows are units: of blocks, which do not come apart.
    row: Option<usize>,
    /// Bytes of a unit.
    unit: usize,
}

#[derive(Clone, Copy, Debug)]
struct Axis {
    len: usize,
    stride_bytes: usize,
}

impl Source {
    /// Looks the source up.
    ///
    /// # Errors
    /// A tensor that is missing, of a bank the first expert's without one; tensors that do not go together; a pick that
    /// there is nothing for.
    pub fn find(&self, checkpoint: &Checkpoint) -> Result<Found, SourceError> {
        let mut found = match &self.base {
            Base::Tensor(name) => {
                let views = self.views(name, checkpoint)?;
                let lay = Lay::new(views, name.is_bank());
                Found { dtype: lay.views[0].dtype(), lay, scales: None, beside: None }
            }
            Base::Mxfp4 { blocks, scales } => self.mxfp4((blocks, scales), checkpoint)?,
            Base::Beside(sources) => self.beside(sources, checkpoint)?,
        };
        for pick in &self.picks {
            found.take(*pick).map_err(|wanted| SourceError::Pick {
                source_text: self.to_string(),
                pick: *pick,
                found: describe(found.dtype, &found.shape()),
                wanted,
            })?;
        }
        Ok(found)
    }

    /// The tensors of a name, at least one, all of one type and shape.
    fn views(&self, name: &Name, checkpoint: &Checkpoint) -> Result<Vec<View>, SourceError> {
        let views: Vec<View> = (0..name.most()).map_while(|e| checkpoint.get(&name.of(e))).collect();
        let source_text = self.to_string();
        let Some(first) = views.first() else {
            return Err(SourceError::Missing { tensor: name.of(0), source_text });
        };
        let same = |view: &View| view.dtype() == first.dtype() && view.shape() == first.shape();
        match views.iter().find(|view| !same(view)) {
            Some(other) => Err(self.unlike(other, format!("{} like `{}`", tensor(first), first.name()))),
            None => Ok(views),
        }
    }

    fn unlike(&self, view: &View, wanted: String) -> SourceError {
        let (tensor, found) = (view.name().to_owned(), tensor(view));
        SourceError::Tensor { tensor, found, wanted, source_text: self.to_string() }
    }

    fn mxfp4(&self, (blocks, scales): (&Name, &Name), checkpoint: &Checkpoint) -> Result<Found, SourceError> {
        let (quants, exponents) = (self.views(blocks, checkpoint)?, self.views(scales, checkpoint)?);
        let (first, scale) = (quants[0].clone(), exponents[0].clone());
        let shape = match first.shape() {
            [shape @ .., MX_QUANTS] if first.dtype() == DType::U8 && !shape.is_empty() => shape,
            _ => return Err(self.unlike(&first, format!("u8 [.., in/{MX_LEN}, {MX_QUANTS}]"))),
        };
        if !matches!(scale.dtype(), DType::U8 | DType::F8E8M0) || scale.shape() != shape {
            return Err(self.unlike(&scale, describe(DType::U8, shape)));
        }
        if blocks.is_bank() != scales.is_bank() || quants.len() != exponents.len() {
            let tensor = if quants.len() > exponents.len() { scales } else { blocks };
            let tensor = tensor.of(quants.len().min(exponents.len()) as u64);
            return Err(SourceError::Missing { tensor, source_text: self.to_string() });
        }
        let in_row = shape.last().copied().unwrap_or(0);
        let Some(row) = in_row.checked_mul(MX_LEN) else {
            return Err(self.unlike(&first, "a row that can be counted".into()));
        };
        let lay = |views, unit| Lay::of_rows(views, blocks.is_bank(), &shape[..shape.len() - 1], (row, unit));
        let (lay, scales) = (lay(quants, in_row * MX_QUANTS), Some(lay(exponents, in_row)));
        Ok(Found { dtype: DType::Block(Encoding::MXFP4), lay, scales, beside: None })
    }

    fn beside(&self, sources: &[Source; 2], checkpoint: &Checkpoint) -> Result<Found, SourceError> {
        let (first, second) = (sources[0].find(checkpoint)?, sources[1].find(checkpoint)?);
        let (a, b) = (first.shape(), second.shape());
        let plain = |found: &Found| found.scales.is_none() && !found.lay.bank;
        let alike = plain(&first) && plain(&second) && first.dtype == second.dtype;
        let alike = alike && a.len() == 3 && b.len() == 3 && (a[0], a[2]) == (b[0], b[2]);
        if !alike {
            let wanted = match a.as_slice() {
                &[parts, _, inner] => format!("{} [{parts}, rows, {inner}]", first.dtype),
                _ => format!("two sources [parts, rows, in], and the first is {}", describe(first.dtype, &a)),
            };
            let (tensor, found) = (sources[1].to_string(), describe(second.dtype, &b));
            return Err(SourceError::Tensor { tensor, found, wanted, source_text: self.to_string() });
        }
        Ok(Found { beside: Some(second.lay), ..first })
    }
}

impl Found {
    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes, outermost first.
    pub fn shape(&self) -> Vec<usize> {
        let shape = self.lay.shape();
        match (&self.beside, shape.as_slice()) {
            (Some(beside), &[parts, rows, inner]) => vec![parts * (rows + beside.shape()[1]), inner],
            _ => shape,
        }
    }

    /// The size in bytes. No source has more than its tensors, or 17 for each 16 bytes of MXFP4 quants.
    pub fn bytes_len(&self) -> usize {
        let unit = if self.scales.is_some() { self.lay.unit / MX_QUANTS * MX_BLOCK } else { self.lay.unit };
        self.lay.units() * unit + self.beside.as_ref().map_or(0, |beside| beside.units() * beside.unit)
    }

    /// The bytes where they lie: equal parts of the first axis, in order. `None` where the source is no row of such
    /// pieces, and is put together by [`Found::assemble`].
    pub fn pieces(&self) -> Option<Vec<Piece>> {
        if self.scales.is_some() || self.beside.is_some() { None } else { self.lay.pieces() }
    }

    /// Writes all bytes in order.
    ///
    /// # Panics
    /// When `out` is not [`Found::bytes_len`] long.
    pub fn assemble(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes_len(), "the place for {}", describe(self.dtype, &self.shape()));
        match &self.scales {
            _ if out.is_empty() => {}
            Some(scales) => {
                let row_bytes = self.lay.unit / MX_QUANTS * MX_BLOCK;
                let rows = self.lay.places(&self.lay.axes).zip(scales.places(&scales.axes));
                for (((quants, q), (scales_of, s)), row) in rows.zip(out.chunks_exact_mut(row_bytes)) {
                    interleave(&quants[q..q + self.lay.unit], &scales_of[s..s + scales.unit], row);
                }
            }
            None => match &self.beside {
                None => self.lay.copy(out),
                Some(beside) => self.lay.copy_beside(beside, out),
            },
        }
    }

    fn take(&mut self, pick: Pick) -> Result<(), String> {
        if self.beside.is_some() {
            return Err("one source, for nothing is picked of two".into());
        }
        let (axis, from, step, to) = match pick {
            Pick::Transposed => {
                return match self.dtype {
                    DType::Block(_) => Err("elements that are not in blocks".into()),
                    _ => self.lay.transpose(),
                };
            }
            Pick::Merged => return self.merge(),
            Pick::Rows { axis, from, to } => (axis, from, 1, Some(to)),
            Pick::Every { axis, from, step } => (axis, from, step, None),
        };
        let len = self.lay.len(axis)?;
        let to = to.unwrap_or(len as u64);
        if from >= to || to > len as u64 {
            return Err(format!("at least {} in axis {axis}", to.max(from.saturating_add(1))));
        }
        // All below `len` now, but for a step past the end, which is as good as one of `len`.
        let (from, to) = (from as usize, to as usize);
        let step = usize::try_from(step).unwrap_or(len).min(len);
        [Some(&mut self.lay), self.scales.as_mut()]
            .into_iter()
            .flatten()
            .for_each(|lay| lay.take(axis, (from, to), step));
        Ok(())
    }
}

impl Found {
    /// The first two axes as one, where the one lies in the other without a gap.
    fn merge(&mut self) -> Result<(), String> {
        let merged = |lay: &mut Lay| match lay.axes.as_slice() {
            &[outer, inner, ..] if !lay.bank && outer.stride_bytes == inner.stride_bytes * inner.len => {
                lay.axes[1].len *= outer.len;
                lay.axes.remove(0);
                Ok(())
            }
            _ => Err("two axes of one tensor that lie one in the other".to_owned()),
        };
        [Some(&mut self.lay), self.scales.as_mut()].into_iter().flatten().try_for_each(merged)
    }
}

impl Lay {
    /// All of these tensors, of one type and shape.
    fn new(views: Vec<View>, bank: bool) -> Lay {
        let (dtype, shape) = (views[0].dtype(), views[0].shape().to_vec());
        match shape.split_last() {
            Some((&row, outer)) if dtype.block_len() > 1 => {
                let unit = dtype.row_bytes(row).unwrap_or(0);
                Lay::of_rows(views, bank, outer, (row, unit))
            }
            _ => Lay { row: None, ..Lay::of_rows(views, bank, &shape, (1, dtype.block_bytes())) },
        }
    }

    /// Units along axes, each a row of so many elements.
    fn of_rows(views: Vec<View>, bank: bool, shape: &[usize], (row, unit): (usize, usize)) -> Lay {
        let mut stride_bytes = unit;
        let mut axis = |&len: &usize| {
            let axis = Axis { len, stride_bytes };
            // No overflow: the checkpoint's reader has held the product of all sizes, 0 taken as 1.
            stride_bytes *= len;
            axis
        };
        let mut axes: Vec<Axis> = shape.iter().rev().map(&mut axis).collect();
        axes.reverse();
        Lay { views, bank, start: 0, axes, row: Some(row), unit }
    }

    fn shape(&self) -> Vec<usize> {
        let experts = self.bank.then_some(self.views.len());
        experts.into_iter().chain(self.axes.iter().map(|axis| axis.len)).chain(self.row).collect()
    }

    /// Units in all tensors together.
    fn units(&self) -> usize {
        self.axes.iter().map(|axis| axis.len).product::<usize>() * self.views.len()
    }

    /// The size of an axis that may be cut.
    fn len(&self, axis: usize) -> Result<usize, String> {
        match axis.checked_sub(usize::from(self.bank)) {
            None => Ok(self.views.len()),
            Some(inner) => match self.axes.get(inner) {
                Some(axis) => Ok(axis.len),
                None if inner == self.axes.len() && self.row.is_some() => {
                    Err(format!("axis {axis} not to be that of the blocks"))
                }
                None => Err(format!("an axis {axis}")),
            },
        }
    }

    /// Those from `from` to `to` of an axis, every `step`th.
    fn take(&mut self, axis: usize, (from, to): (usize, usize), step: usize) {
        match axis.checked_sub(usize::from(self.bank)) {
            None => self.views = self.views[from..to].iter().step_by(step).cloned().collect(),
            Some(inner) => {
                let Axis { len, stride_bytes } = &mut self.axes[inner];
                self.start += from * *stride_bytes;
                *len = (to - from).div_ceil(step);
                *stride_bytes = if *len > 1 { *stride_bytes * step } else { *stride_bytes };
            }
        }
    }

    fn transpose(&mut self) -> Result<(), String> {
        let count = self.axes.len();
        if self.row.is_some() || count < 2 {
            return Err("two axes in each tensor, of elements that are bytes or more".into());
        }
        self.axes.swap(count - 2, count - 1);
        Ok(())
    }

    fn pieces(&self) -> Option<Vec<Piece>> {
        let piece = |view: &View, start, len| Piece { view: view.clone(), start, len };
        if let Some(len) = dense(&self.axes, self.unit) {
            return Some(self.views.iter().map(|view| piece(view, self.start, len)).collect());
        }
        let (first, inner) = self.axes.split_first()?;
        let len = dense(inner, self.unit).filter(|len| *len >= MIN_PIECE_BYTES)?;
        let of_matrices = inner.len() + self.row.map_or(0, |_| 1) >= 2;
        if self.bank || !of_matrices {
            return None;
        }
        let at = |i| self.start + i * first.stride_bytes;
        Some((0..first.len).map(|i| piece(&self.views[0], at(i), len)).collect())
    }

    /// The bytes and the offset of each index of the axes, of each tensor, in order.
    fn places<'a>(&'a self, axes: &'a [Axis]) -> impl Iterator<Item = (&'a [u8], usize)> {
        let count: usize = axes.iter().map(|axis| axis.len).product();
        let place = move |mut index: usize| {
            let mut at = self.start;
            for axis in axes.iter().rev() {
                at += index % axis.len * axis.stride_bytes;
                index /= axis.len;
            }
            at
        };
        self.views.iter().flat_map(move |view| (0..count).map(move |i| (view.bytes(), place(i))))
    }

    /// Of each part, the units of this and then those of the other. `out` is as long as all, and not empty.
    fn copy_beside(&self, other: &Lay, out: &mut [u8]) {
        let bytes = [self, other].map(|lay| lay.units() * lay.unit);
        let parts = self.axes.first().map_or(1, |axis| axis.len);
        for (part, out) in out.chunks_exact_mut((bytes[0] + bytes[1]) / parts).enumerate() {
            let (first, second) = out.split_at_mut(bytes[0] / parts);
            for (lay, out) in [(self, first), (other, second)] {
                let mut lay = lay.clone();
                lay.take(0, (part, part + 1), 1);
                if !out.is_empty() {
                    lay.copy(out);
                }
            }
        }
    }

    /// All units in order. `out` is as long as they are, and not empty.
    fn copy(&self, out: &mut [u8]) {
        // Axes whose elements lie side by side are one unit.
        let mut axes = self.axes.as_slice();
        let mut unit = self.unit;
        while let Some((last, outer)) = axes.split_last() {
            if last.len > 1 && last.stride_bytes != unit {
                break;
            }
            (axes, unit) = (outer, unit * last.len);
        }
        let one = Axis { len: 1, stride_bytes: 0 };
        let (last, outer) = axes.split_last().map_or((one, &[][..]), |(last, outer)| (*last, outer));
        for ((bytes, at), run) in self.places(outer).zip(out.chunks_exact_mut(last.len * unit)) {
            match unit {
                1 => strided::<1>(&bytes[at..], last.stride_bytes, run),
                2 => strided::<2>(&bytes[at..], last.stride_bytes, run),
                4 => strided::<4>(&bytes[at..], last.stride_bytes, run),
                _ => {
                    for (i, to) in run.chunks_exact_mut(unit).enumerate() {
                        to.copy_from_slice(&bytes[at + i * last.stride_bytes..][..unit]);
                    }
                }
            }
        }
    }
}

/// Units of `N` bytes, each `stride` after the one before.
fn strided<const N: usize>(from: &[u8], stride: usize, out: &mut [u8]) {
    for (i, to) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        to.copy_from_slice(&from[i * stride..][..N]);
    }
}

/// The bytes of units along these axes, if they lie side by side in order.
fn dense(axes: &[Axis], unit: usize) -> Option<usize> {
    axes.iter()
        .rev()
        .try_fold(unit, |bytes, axis| (axis.len <= 1 || axis.stride_bytes == bytes).then(|| bytes * axis.len))
}

/// A row of blocks in the layout of `DType::MXFP4`: the scale, then byte `j` with element `j` in its low half and
/// `j + 16` in its high half.
fn interleave(quants: &[u8], scales: &[u8], out: &mut [u8]) {
    let blocks = quants.as_chunks::<MX_QUANTS>().0.iter().zip(scales).zip(out.as_chunks_mut::<MX_BLOCK>().0);
    for ((quants, scale), out) in blocks {
        out[0] = *scale;
        for j in 0..MX_QUANTS {
            let half = |element: usize| quants[element / 2] >> (element % 2 * 4) & 15;
            out[1 + j] = half(j) | half(j + MX_QUANTS) << 4;
        }
    }
}

fn tensor(view: &View) -> String {
    describe(view.dtype(), view.shape())
}

fn describe(dtype: DType, shape: &[usize]) -> String {
    format!("{dtype} {shape:?}")
}
