//! `gather`: rows of a table.

/// Row `ids[i]` of `table` for each `i`; `table` has `width` columns.
pub(super) fn run(table: &[f32], width: usize, ids: &[u32]) -> Vec<f32> {
    ids.iter().flat_map(|&id| table[id as usize * width..][..width].iter().copied()).collect()
}
