//! The element types, their names and their exact sizes.

use crate::Encoding;
use std::{fmt, str::FromStr};

/// The type of a tensor's elements: a scalar type, or a block encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum DType {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinity (the OCP `FN` form).
    F8E4M3,
    /// 8-bit float, 5 exponent and 2 mantissa bits, with infinity.
    F8E5M2,
    /// 8-bit power of two (an MX scale): `2^(bits - 127)`, 255 is NaN.
    F8E8M0,
    /// 6-bit float, 2 exponent and 3 mantissa bits, no infinity or NaN.
    F6E2M3,
    /// 6-bit float, 3 exponent and 2 mantissa bits, no infinity or NaN.
    F6E3M2,
    /// 4-bit float, 2 exponent and 1 mantissa bit, no infinity or NaN.
    F4E2M1,
    F16,
    BF16,
    F32,
    F64,
    /// Blocks of small integers with shared scales.
    Block(Encoding),
}

/// What an element type stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Truth values.
    Bool,
    /// Signed and unsigned integers: indices, tokens, counts.
    Int,
    /// Floating-point values.
    Float,
    /// Block-encoded floating-point values.
    Block,
}

impl DType {
    /// All element types: 19 scalars, then the block encodings.
    pub const ALL: [DType; 34] = {
        use DType::*;
        let scalars = [
            Bool, U8, U16, U32, U64, I8, I16, I32, I64, F8E4M3, F8E5M2, F8E8M0, F6E2M3, F6E3M2, F4E2M1, F16,
            BF16, F32, F64,
        ];
        let mut all = [Bool; 34];
        let mut i = 0;
        while i < 34 {
            all[i] = if i < 19 { scalars[i] } else { Block(Encoding::ALL[i - 19]) };
            i += 1;
        }
        all
    };

    /// The position in [`DType::ALL`].
    pub const fn index(self) -> usize {
        use DType::*;
        match self {
            Bool => 0,
            U8 => 1,
            U16 => 2,
            U32 => 3,
            U64 => 4,
            I8 => 5,
            I16 => 6,
            I32 => 7,
            I64 => 8,
            F8E4M3 => 9,
            F8E5M2 => 10,
            F8E8M0 => 11,
            F6E2M3 => 12,
            F6E3M2 => 13,
            F4E2M1 => 14,
            F16 => 15,
            BF16 => 16,
            F32 => 17,
            F64 => 18,
            Block(e) => 19 + e as usize,
        }
    }

    /// What the type stands for.
    pub const fn class(self) -> Class {
        use DType::*;
        match self {
            Bool => Class::Bool,
            U8 | U16 | U32 | U64 | I8 | I16 | I32 | I64 => Class::Int,
            Block(_) => Class::Block,
            _ => Class::Float,
        }
    }

    /// Whether values are real numbers: a float, or a block encoding of floats.
    pub const fn is_real(self) -> bool {
        matches!(self.class(), Class::Float | Class::Block)
    }

    /// Elements stored together: the block length of an encoding; 1 for byte-sized scalars; for the 4- and
    /// 6-bit floats the fewest elements that fill whole bytes (2 and 4).
    pub const fn block_len(self) -> usize {
        match self {
            DType::Block(e) => e.block_len(),
            DType::F4E2M1 => 2,
            DType::F6E2M3 | DType::F6E3M2 => 4,
            _ => 1,
        }
    }

    /// Bytes of [`DType::block_len`] elements; never 0.
    pub const fn block_bytes(self) -> usize {
        use DType::*;
        match self {
            Bool | U8 | I8 | F8E4M3 | F8E5M2 | F8E8M0 | F4E2M1 => 1,
            U16 | I16 | F16 | BF16 => 2,
            F6E2M3 | F6E3M2 => 3,
            U32 | I32 | F32 => 4,
            U64 | I64 | F64 => 8,
            Block(e) => e.block_bytes(),
        }
    }

    /// Bits of one element times [`DType::block_len`]: exact for every type (`q4_0`: 144 bits for 32).
    pub const fn block_bits(self) -> usize {
        self.block_bytes() * 8
    }

    /// Bits of one element, as an exact fraction `(bits, elements)` in lowest terms: `(9, 2)` for `q4_0`.
    pub const fn bits(self) -> (usize, usize) {
        let (mut a, mut b) = (self.block_bits(), self.block_len());
        let (num, den) = (a, b);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        (num / a, den / a)
    }

    /// Bytes of one row of `len` elements: exact, or `None` if `len` is not a whole number of blocks or the
    /// size overflows.
    pub const fn row_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The name in lower case, as programs and manifests write it: `bf16`, `q4_k`.
    pub const fn name(self) -> &'static str {
        use DType::*;
        match self {
            Bool => "bool",
            U8 => "u8",
            U16 => "u16",
            U32 => "u32",
            U64 => "u64",
            I8 => "i8",
            I16 => "i16",
            I32 => "i32",
            I64 => "i64",
            F8E4M3 => "f8e4m3",
            F8E5M2 => "f8e5m2",
            F8E8M0 => "f8e8m0",
            F6E2M3 => "f6e2m3",
            F6E3M2 => "f6e3m2",
            F4E2M1 => "f4e2m1",
            F16 => "f16",
            BF16 => "bf16",
            F32 => "f32",
            F64 => "f64",
            Block(e) => e.name(),
        }
    }
}

impl From<Encoding> for DType {
    fn from(e: Encoding) -> DType {
        DType::Block(e)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no element type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDType(
    /// The name as it was given.
    pub String,
);

impl fmt::Display for UnknownDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not an element type", self.0)
    }
}

impl std::error::Error for UnknownDType {}

impl FromStr for DType {
    type Err = UnknownDType;

    /// Reads [`DType::name`], in either case.
    fn from_str(s: &str) -> Result<DType, UnknownDType> {
        let lower = s.to_ascii_lowercase();
        DType::ALL.into_iter().find(|d| d.name() == lower).ok_or_else(|| UnknownDType(s.to_owned()))
    }
}
