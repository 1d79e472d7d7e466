//! Sizes and places of tensors, checked: the rules that both formats share.

use crate::{Place, View, WeightsError};
use tranship_dtype::DType;

/// The shape in machine words, and its size in bytes.
///
/// # Errors
/// [`WeightsError::Overflow`] or [`WeightsError::PartialBlock`], at `at`.
pub(crate) fn byte_len(
    at: impl Fn() -> Box<Place>,
    dtype: DType,
    shape: &[u64],
) -> Result<(Vec<usize>, usize), WeightsError> {
    let overflow = || WeightsError::Overflow { at: at(), dtype, shape: shape.to_vec() };
    let sizes: Option<Vec<usize>> = shape.iter().map(|&d| usize::try_from(d).ok()).collect();
    let sizes = sizes.ok_or_else(overflow)?;
    // Axes of size 0 are left out of this product: they must not hide an absurd one, since strides are products of
    // some of the axes.
    sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1))).ok_or_else(overflow)?;
    let row = sizes.last().copied().unwrap_or(1);
    if !row.is_multiple_of(dtype.block_len()) {
        return Err(WeightsError::PartialBlock {
            at: at(),
            dtype,
            row: row as u64,
            block: dtype.block_len(),
        });
    }
    let row_bytes = dtype.row_bytes(row).ok_or_else(overflow)?;
    let outer = &sizes[..sizes.len().saturating_sub(1)];
    let bytes = outer.iter().try_fold(row_bytes, |n, &d| n.checked_mul(d)).ok_or_else(overflow)?;
    // A slice of more than `isize::MAX` bytes cannot exist.
    if isize::try_from(bytes).is_err() {
        return Err(overflow());
    }
    Ok((sizes, bytes))
}

/// The positions of `views` in the byte order of their names.
///
/// # Errors
/// [`WeightsError::DuplicateTensor`] where two have one name.
pub(crate) fn by_name(views: &[View]) -> Result<Vec<usize>, WeightsError> {
    let mut order: Vec<usize> = (0..views.len()).collect();
    order.sort_by(|&a, &b| views[a].name().cmp(views[b].name()));
    for pair in order.windows(2) {
        let (first, second) = (&views[pair[0]], &views[pair[1]]);
        if first.name() == second.name() {
            return Err(WeightsError::DuplicateTensor {
                at: Place::tensor(second.source().file, second.name(), second.declared_at()),
                first: first.source().file.to_owned(),
                byte: first.declared_at(),
            });
        }
    }
    Ok(order)
}

/// Checks that no two views of one file share a byte, and that none without bytes lies inside another.
///
/// # Errors
/// [`WeightsError::Overlap`].
pub(crate) fn no_overlap(views: &[View]) -> Result<(), WeightsError> {
    let mut order: Vec<&View> = views.iter().collect();
    // Sorted so, any two that overlap imply two neighbours that do.
    order.sort_by_key(|v| (v.source().offset, v.source().bytes));
    for pair in order.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        let end = before.source().offset + before.source().bytes;
        if after.source().offset < end {
            return Err(WeightsError::Overlap {
                at: Place::tensor(after.source().file, after.name(), after.declared_at()),
                begin: after.source().offset,
                other: before.name().to_owned(),
                end,
            });
        }
    }
    Ok(())
}
