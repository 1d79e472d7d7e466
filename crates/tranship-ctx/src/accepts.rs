//! Which types a device takes, for each thing that a policy decides. The typing pass widens to a type that is
//! here, visibly, or refuses.

use std::fmt;
use tranship_dtype::DType;

/// A set of element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DTypeSet(u64);

impl DTypeSet {
    /// The set of these types.
    pub const fn of(dtypes: &[DType]) -> DTypeSet {
        let mut bits = 0;
        let mut i = 0;
        while i < dtypes.len() {
            bits |= 1 << dtypes[i].index();
            i += 1;
        }
        DTypeSet(bits)
    }

    /// Both sets together.
    pub const fn union(self, other: DTypeSet) -> DTypeSet {
        DTypeSet(self.0 | other.0)
    }

    /// All block encodings.
    pub const fn blocks() -> DTypeSet {
        let mut bits = 0;
        let mut i = 0;
        while i < DType::ALL.len() {
            if matches!(DType::ALL[i], DType::Block(_)) {
                bits |= 1 << i;
            }
            i += 1;
        }
        DTypeSet(bits)
    }

    /// Whether a type is in the set.
    pub const fn has(self, dtype: DType) -> bool {
        self.0 & (1 << dtype.index()) != 0
    }

    /// The types, in the order of [`DType::ALL`].
    pub fn iter(self) -> impl Iterator<Item = DType> {
        DType::ALL.into_iter().filter(move |d| self.has(*d))
    }

    /// The type of the set that holds every value of `dtype` in the fewest bits; of two that do, as F16 and BF16 of
    /// F8E4M3, the earlier in [`DType::ALL`].
    pub fn widened(self, dtype: DType) -> Option<DType> {
        if self.has(dtype) {
            return Some(dtype);
        }
        self.iter().filter(|&d| dtype.fits_in(d)).min_by_key(|d| d.block_bits() / d.block_len())
    }
}

impl fmt::Display for DTypeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(DType::name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

/// The types that a device takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepts {
    /// Activations: what operations take and give.
    pub compute: DTypeSet,
    /// Rows of key/value caches.
    pub kv: DTypeSet,
    /// Accumulators.
    pub accum: DTypeSet,
    /// Recurrent memories.
    pub state: DTypeSet,
    /// Weights as they are stored.
    pub weights: DTypeSet,
    /// Activation blocks against block-encoded weights.
    pub blocks: DTypeSet,
}

impl Default for Accepts {
    /// What a processor takes that converts everything: all floats of 8 bits or more, all encodings.
    fn default() -> Accepts {
        const FLOATS: DTypeSet =
            DTypeSet::of(&[DType::F8E4M3, DType::F8E5M2, DType::F16, DType::BF16, DType::F32, DType::F64]);
        const SMALL: DTypeSet = DTypeSet::of(&[DType::F8E8M0, DType::F6E2M3, DType::F6E3M2, DType::F4E2M1]);
        Accepts {
            compute: FLOATS,
            kv: FLOATS,
            accum: DTypeSet::of(&[DType::F32, DType::F64]),
            state: FLOATS,
            weights: FLOATS.union(SMALL).union(DTypeSet::blocks()),
            blocks: DTypeSet::of(&[DType::Q8_1]),
        }
    }
}
