//! From a typed program to a flat list of kernel calls over numbered buffers.
//!
//! [`lower`] walks the graph once to see who reads what, fuses what one kernel can do, and assigns buffers by
//! lifetime, so that a step needs neither names nor allocation. Layers whose programs differ in names alone lower
//! to one [`Lowered`], which each of them runs with its own weights and caches.

pub(crate) mod bind;
mod fuse;
mod lower;
mod slots;

pub(crate) use lower::lower;

use tranship_dtype::DType;
use tranship_program::ValueId;
use tranship_program::ops::{Rope, RopeStyle};

/// A buffer of rows, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Buffer(pub usize);

/// A buffer of rows in 8-bit blocks, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks(pub usize);

/// A weight of the program, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightSlot(pub usize);

/// A carried tensor of the program, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cache(pub usize);

/// A rotary embedding of the program, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RopeSlot(pub usize);

/// The second operand of an element-wise operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// Rows like the first.
    Rows(Buffer),
    /// One row that meets every row of the first.
    Row(WeightSlot),
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    /// Rows of a table.
    Gather { table: WeightSlot, out: Buffer },
    /// Root-mean-square normalization.
    RmsNorm { x: Buffer, gain: WeightSlot, eps: f64, out: Buffer },
    /// Rows into 8-bit blocks.
    Quantize { x: Buffer, out: Blocks },
    /// Float rows times a matrix; `add`: onto what is in `out`.
    Linear { x: Buffer, w: WeightSlot, bias: Option<WeightSlot>, add: bool, out: Buffer },
    /// 8-bit blocks times a block-encoded matrix.
    LinearBlocks { x: Blocks, w: WeightSlot, bias: Option<WeightSlot>, add: bool, out: Buffer },
    /// Rotary embedding, in place.
    Rope { x: Buffer, width: usize, table: RopeSlot, heads: usize, style: RopeStyle },
    /// Rows into a cache, from each segment's position on.
    Store { x: Buffer, width: usize, cache: Cache },
    /// Attention over two caches.
    Attend {
        q: Buffer,
        width: usize,
        k: Cache,
        v: Cache,
        heads: usize,
        kv_heads: usize,
        scale: f32,
        out: Buffer,
    },
    /// `silu(gate) · up`, in place of the gate.
    SiluMul { gate: Buffer, up: Buffer, width: usize },
    /// `silu(x)`, in place.
    Silu { x: Buffer, width: usize },
    /// A sum, in place of the first operand.
    Add { a: Buffer, b: Other, width: usize },
    /// A product, in place of the first operand.
    Mul { a: Buffer, b: Other, width: usize },
    /// Rounding to a narrower type, in place.
    Round { x: Buffer, width: usize, dtype: DType },
    /// Rows from one buffer to another.
    Copy { x: Buffer, out: Buffer, width: usize },
}

/// A call, and whether all threads must have finished what came before it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scheduled {
    pub call: Call,
    pub barrier: bool,
}

/// How a weight is wanted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WeightUse {
    /// The weight's value in the program.
    pub value: ValueId,
    /// Types that it is cast through when it is bound, in order.
    pub casts: Vec<DType>,
    /// Whether kernels read it as a row of F32.
    pub as_row: bool,
}

/// A rotary embedding of a program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RopeUse {
    pub rope: Rope,
    pub divisors: Option<WeightSlot>,
}

/// A program as kernel calls.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct Lowered {
    pub calls: Vec<Scheduled>,
    /// The width of each buffer's rows. Buffer 0 holds the rows that pass from program to program.
    pub buffers: Vec<usize>,
    /// The width of each buffer of 8-bit blocks.
    pub blocks: Vec<usize>,
    pub weights: Vec<WeightUse>,
    pub ropes: Vec<RopeUse>,
    /// Carried tensors.
    pub caches: usize,
    /// Where the result is.
    pub result: ResultRows,
    /// Whether rows do not meet each other or a position: any subset of them can be run alone.
    pub row_wise: bool,
}

/// The buffer of a program's result, and its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct ResultRows {
    pub buffer: usize,
    pub width: usize,
}
