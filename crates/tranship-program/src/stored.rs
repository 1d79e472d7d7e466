//! What a stored tensor's shape has to do with a declared one.

/// Whether a tensor of the stored sizes can be read as one of the declared sizes: they are equal once the axes of size
/// 1 are left out of both. So the filters `[C, 1, K]` of a convolution are `[C, K]`, and `[1, 1, H, 1]` is `[H]`.
pub fn same_sizes(stored: &[u64], declared: &[u64]) -> bool {
    let long = |sizes: &'_ [u64]| sizes.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
    long(stored) == long(declared)
}

#[cfg(test)]
mod tests {
    use super::same_sizes;

    #[test]
    fn axes_of_one_are_of_no_account_and_all_others_are() {
        let same: [(&[u64], &[u64]); 5] =
            [(&[6, 1, 4], &[6, 4]), (&[1, 1, 8, 1], &[8]), (&[2], &[1, 2]), (&[1], &[]), (&[3, 4], &[3, 4])];
        let other: [(&[u64], &[u64]); 5] =
            [(&[4, 6], &[6, 4]), (&[24], &[6, 4]), (&[6, 4], &[24]), (&[0], &[]), (&[2, 2], &[2])];
        assert!(same.iter().all(|(stored, declared)| same_sizes(stored, declared)));
        assert!(other.iter().all(|(stored, declared)| !same_sizes(stored, declared)));
    }
}
