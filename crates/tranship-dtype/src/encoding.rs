//! Block encodings: weights stored as blocks of small integers that share scales.
//!
//! Sizes are those of the GGUF format, where each encoding is defined as a C struct; they are exact, and a
//! row of a tensor is always a whole number of blocks.

use std::fmt;

/// How a block of weights is stored: block-quantized encodings, named as GGUF names them.
///
/// Every value of a block is *defined* by its dequantization in F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Encoding {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

impl Encoding {
    /// All encodings, in declaration order.
    pub const ALL: [Encoding; 15] = {
        use Encoding::*;
        [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ4_NL, IQ4_XS, MXFP4]
    };

    /// Elements of one block: 32, or 256 for the super-blocks.
    pub const fn block_len(self) -> usize {
        use Encoding::*;
        match self {
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q8_1 | IQ4_NL | MXFP4 => 32,
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | Q8_K | IQ4_XS => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        use Encoding::*;
        match self {
            Q4_0 | IQ4_NL => 18,
            Q4_1 => 20,
            Q5_0 => 22,
            Q5_1 => 24,
            Q8_0 => 34,
            Q8_1 => 36,
            MXFP4 => 17,
            Q2_K => 84,
            Q3_K => 110,
            Q4_K => 144,
            Q5_K => 176,
            Q6_K => 210,
            Q8_K => 292,
            IQ4_XS => 136,
        }
    }

    /// The name, as GGUF writes it in lower case: `q4_k`.
    pub const fn name(self) -> &'static str {
        use Encoding::*;
        match self {
            Q4_0 => "q4_0",
            Q4_1 => "q4_1",
            Q5_0 => "q5_0",
            Q5_1 => "q5_1",
            Q8_0 => "q8_0",
            Q8_1 => "q8_1",
            Q2_K => "q2_k",
            Q3_K => "q3_k",
            Q4_K => "q4_k",
            Q5_K => "q5_k",
            Q6_K => "q6_k",
            Q8_K => "q8_k",
            IQ4_NL => "iq4_nl",
            IQ4_XS => "iq4_xs",
            MXFP4 => "mxfp4",
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
