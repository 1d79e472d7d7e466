//! The join: the smallest type that holds every value of both.
//!
//! The order is given by a small table of parents: `b` is a parent of `a` when each value of `a` is exactly a
//! value of `b`. Reachability over that table is the order, and the join of two types is the least of their
//! common upper bounds. It is computed when the crate is compiled, for all pairs.
//!
//! Three islands are not joined: truth values go up into integers, but no integer goes up into a float, because
//! no float holds every index, and an index that meets an activation is a fault to be named, not rounded.
//! F8E5M2 goes up into F16 alone (both F16 and BF16 would do, and then F8E4M3 ⊔ F8E5M2 would have two least
//! bounds). Block encodings are defined by their F32 dequantization, so F32 is their only parent.

use crate::{DType, Encoding};
use std::fmt;

/// Two element types that no type holds both of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NoJoin {
    /// The left operand.
    pub left: DType,
    /// The right operand.
    pub right: DType,
}

impl fmt::Display for NoJoin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no element type holds every value of both {} and {}", self.left, self.right)
    }
}

impl std::error::Error for NoJoin {}

/// The types just above `d`: each holds every value of `d`.
const fn parents(d: DType) -> &'static [DType] {
    use DType::*;
    match d {
        Bool => &[U8, I8],
        U8 => &[U16, I16],
        U16 => &[U32, I32],
        U32 => &[U64, I64],
        I8 => &[I16],
        I16 => &[I32],
        I32 => &[I64],
        F4E2M1 => &[F6E2M3, F6E3M2],
        F6E2M3 => &[F8E4M3],
        F6E3M2 => &[F8E4M3, F8E5M2],
        F8E4M3 => &[F16, BF16],
        F8E5M2 => &[F16],
        F8E8M0 => &[BF16],
        F16 | BF16 | Block(_) => &[F32],
        F32 => &[F64],
        U64 | I64 | F64 => &[],
    }
}

/// Bit `i` of entry `d` is set when `DType::ALL[i]` holds every value of `DType::ALL[d]`.
const ABOVE: [u64; 34] = {
    let mut above = [0u64; 34];
    let mut i = 0;
    while i < 34 {
        above[i] = 1 << i;
        i += 1;
    }
    // The longest chain (F4E2M1 to F64) has six steps; seven rounds reach a fixed point.
    let mut round = 0;
    while round < 7 {
        let mut d = 0;
        while d < 34 {
            let up = parents(DType::ALL[d]);
            let mut p = 0;
            while p < up.len() {
                above[d] |= above[up[p].index()];
                p += 1;
            }
            d += 1;
        }
        round += 1;
    }
    above
};

/// The least common upper bound of each pair, as an index into [`DType::ALL`]; 255 where there is none.
const JOIN: [[u8; 34]; 34] = {
    let mut table = [[255u8; 34]; 34];
    let mut a = 0;
    while a < 34 {
        let mut b = 0;
        while b < 34 {
            let common = ABOVE[a] & ABOVE[b];
            let mut j = 0;
            while j < 34 {
                if common & (1 << j) != 0 && ABOVE[j] == common {
                    table[a][b] = j as u8;
                }
                j += 1;
            }
            assert!(common == 0 || table[a][b] != 255, "two types have upper bounds but no least one");
            b += 1;
        }
        a += 1;
    }
    table
};

impl DType {
    /// Whether every value of `self` is exactly a value of `other`, by the table of parents.
    pub const fn fits_in(self, other: DType) -> bool {
        ABOVE[self.index()] & (1 << other.index()) != 0
    }

    /// The smallest type that holds every value of `self` and of `other` exactly.
    ///
    /// # Errors
    /// [`NoJoin`] when there is none: an integer with a float, or `u64` with a signed integer.
    pub const fn join(self, other: DType) -> Result<DType, NoJoin> {
        match JOIN[self.index()][other.index()] {
            255 => Err(NoJoin { left: self, right: other }),
            j => Ok(DType::ALL[j as usize]),
        }
    }

    /// The type that a value is computed in when it leaves its block encoding: F32 for blocks, itself otherwise.
    pub const fn decoded(self) -> DType {
        match self {
            DType::Block(_) => DType::F32,
            d => d,
        }
    }
}

/// The join of two element types; see [`DType::join`].
///
/// # Errors
/// [`NoJoin`] when no type holds both.
pub const fn join(a: DType, b: DType) -> Result<DType, NoJoin> {
    a.join(b)
}

/// Names for the block encodings as element types: `DType::Q4_K`.
#[allow(missing_docs, non_upper_case_globals)]
impl DType {
    pub const Q4_0: DType = DType::Block(Encoding::Q4_0);
    pub const Q4_1: DType = DType::Block(Encoding::Q4_1);
    pub const Q5_0: DType = DType::Block(Encoding::Q5_0);
    pub const Q5_1: DType = DType::Block(Encoding::Q5_1);
    pub const Q8_0: DType = DType::Block(Encoding::Q8_0);
    pub const Q8_1: DType = DType::Block(Encoding::Q8_1);
    pub const Q2_K: DType = DType::Block(Encoding::Q2_K);
    pub const Q3_K: DType = DType::Block(Encoding::Q3_K);
    pub const Q4_K: DType = DType::Block(Encoding::Q4_K);
    pub const Q5_K: DType = DType::Block(Encoding::Q5_K);
    pub const Q6_K: DType = DType::Block(Encoding::Q6_K);
    pub const Q8_K: DType = DType::Block(Encoding::Q8_K);
    pub const IQ4_NL: DType = DType::Block(Encoding::IQ4_NL);
    pub const IQ4_XS: DType = DType::Block(Encoding::IQ4_XS);
    pub const MXFP4: DType = DType::Block(Encoding::MXFP4);
}
