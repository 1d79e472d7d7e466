//! From a typed program to a flat list of kernel calls over numbered buffers.
//!
//! [`lower`] walks the graph once to see who reads what, fuses what one kernel can do, and assigns buffers by
//! lifetime, so that a step needs neither names nor allocation. Layers whose programs differ in names alone lower
//! to one [`Lowered`], which each of them runs with its own weights and carried tensors.
//!
//! Rows of the past are not copied where a kernel can read them in place: rows of a carried tensor stay a view of it,
//! and rows of a ring joined with the step's own stay the two. Whatever else meets them gets them in a buffer.

mod apply;
pub(crate) mod bind;
mod fuse;
mod lower;
mod schedule;
mod slots;

pub(crate) use lower::lower;

use crate::ops::experts::ExpertsSizes;
use tranship_dtype::DType;
use tranship_program::ops::{DecayForm, Experts, Rope, RopeStyle, Route, Unary};
use tranship_program::{Rows, ValueId};

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
pub(crate) struct Tensor(pub usize);

/// A rotary embedding of the program, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RopeSlot(pub usize);

/// How many rows a value has in each segment: a fixed number, the segment's own, or the sum of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub fixed: usize,
    pub step: bool,
}

impl Form {
    /// The step's rows.
    pub const STEP: Form = Form { fixed: 0, step: true };
}

/// Rows in a buffer, segment after segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub buffer: Buffer,
    pub width: usize,
    pub form: Form,
}

/// The room of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Room {
    /// Floats for each row of the step.
    pub step: usize,
    /// Floats for each segment.
    pub fixed: usize,
}

impl Room {
    /// What rows of a width and form take.
    pub fn of(width: usize, form: Form) -> Room {
        Room { step: if form.step { width } else { 0 }, fixed: width * form.fixed }
    }

    /// Room for either.
    pub fn max(self, other: Room) -> Room {
        Room { step: self.step.max(other.step), fixed: self.fixed.max(other.fixed) }
    }
}

/// What a buffer of 8-bit blocks holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRows {
    /// Elements of a row of blocks.
    pub width: usize,
    /// Rows of blocks that a row of the value is.
    pub times: usize,
    pub form: Form,
}

/// The second operand of an element-wise operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// Rows like the first.
    Rows(Area),
    /// A number for each of a row's equal parts.
    Parts(Area),
    /// One row that meets every row of its segment.
    OneRow(Area),
    /// A weight that meets every row, or all rows of every segment.
    Weight(WeightSlot),
}

/// What is done to each element of a buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum EachOp {
    /// `x · sigmoid(x)`.
    Silu,
    /// Another function.
    Unary(Unary),
    /// `silu(x) · other`.
    SiluMul(Area),
    /// `f(x) · other`.
    UnaryMul(Unary, Area),
    /// A sum.
    Add(Other),
    /// A product.
    Mul(Other),
    /// Rounding to a narrower type.
    Round(DType),
}

/// Rows by their positions, or compressed ones, as attention, convolution and compression read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    /// Rows of a carried tensor, those of the step among them.
    Kept(Tensor),
    /// Rows of a ring, then the step's own.
    Joined { ring: Tensor, new: Area },
    /// The same, in a buffer.
    Window(Area),
}

/// The number of a segment's first row that a call reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// The first that there is.
    Zero,
    /// That at the position.
    Position,
    /// So many before it.
    Before(usize),
}

/// Attention over the past.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttendCall {
    pub q: Area,
    pub keys: Past,
    /// The keys where there are none.
    pub values: Option<Past>,
    pub heads: usize,
    pub kv_heads: usize,
    pub scale: f32,
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    pub sinks: Option<WeightSlot>,
    pub compressed: Option<CompressedRows>,
    pub out: Area,
}

/// Compressed rows that attention reads too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CompressedRows {
    pub rows: Past,
    pub rate: usize,
    /// Which of them.
    pub chosen: Option<Area>,
}

/// An operation that advances a memory of so many heads, rows and columns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Memory {
    pub sizes: [usize; 3],
    pub op: MemoryOp,
}

/// Which.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MemoryOp {
    /// `gated_delta` of queries, keys, values, decays and factors.
    GatedDelta { key_heads: usize, scale: f32, args: [Area; 5] },
    /// `decayed_linear` of queries, keys and values, with the decay of each head.
    DecayedLinear { decay: Vec<f32>, args: [Area; 3] },
    /// `state_space` of inputs, two projections and steps.
    StateSpace { groups: usize, args: [Area; 4], rate: WeightSlot, skip: WeightSlot },
}

/// What meets a matrix, or matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rows8 {
    Floats(Area),
    Blocks(Blocks),
}

/// The parts of experts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExpertsCall {
    pub op: Experts,
    pub x: Rows8,
    pub route: Area,
    pub gate: Option<WeightSlot>,
    pub up: WeightSlot,
    pub down: WeightSlot,
    pub biases: Option<[WeightSlot; 3]>,
    pub out: Area,
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    /// Rows of a table, by the step's tokens.
    Gather { table: WeightSlot, out: Area },
    /// Root-mean-square normalization.
    RmsNorm { x: Area, gain: Option<WeightSlot>, heads: usize, offset: f32, eps: f32, out: Area },
    /// Normalization by length.
    L2Norm { x: Area, heads: usize, eps: f32, out: Area },
    /// Rows into 8-bit blocks.
    Quantize { x: Area, out: Blocks },
    /// Rows times a matrix; `add`: onto what is in `out`.
    Linear { x: Rows8, w: WeightSlot, groups: usize, bias: Option<WeightSlot>, add: bool, out: Area },
    /// Rotary embedding, in place.
    Rope { x: Area, table: RopeSlot, heads: usize, style: RopeStyle, skip: usize },
    /// Rows of a carried tensor into a buffer, from its row `out_first` of each segment on.
    Load { tensor: Tensor, first: First, rows: Form, out: Area, out_first: usize },
    /// Rows into a carried tensor.
    Store { x: Area, tensor: Tensor, rows: Rows },
    /// Rows of each segment from one buffer to another.
    Move { x: Area, first: First, rows: Form, out: Area, out_first: usize },
    /// A weight as rows of every segment.
    Constant { w: WeightSlot, out: Area },
    /// Attention.
    Attend(Box<AttendCall>),
    /// Attention over latent rows.
    LatentAttend {
        q: Area,
        latent: Past,
        rope: Past,
        w: WeightSlot,
        heads: usize,
        key_dim: usize,
        scale: f32,
        /// Whether rows must have the same bits in steps of any length.
        exact: bool,
        out: Area,
    },
    /// Rows of spans of positions, each made one.
    Compress { values: Past, gates: Past, bias: WeightSlot, rate: usize, overlap: bool, out: Area },
    /// Compressed rows that are read.
    Choose { q: Area, rows: Past, w: Area, heads: usize, top_k: usize, rate: usize, scale: f32, out: Area },
    /// Something done to every element, in place.
    Each { x: Area, op: EachOp },
    /// Rows from one buffer to another.
    Copy { x: Area, out: Area },
    /// Columns of equal parts.
    Slice { x: Area, heads: usize, from: usize, to: usize, out: Area },
    /// Rows side by side.
    Tile { x: Area, times: usize, out: Area },
    /// Convolution over positions.
    Conv { x: Past, taps: usize, w: WeightSlot, bias: Option<WeightSlot>, out: Area },
    /// The logarithm of a decay.
    LogDecay { x: Area, rate: WeightSlot, bias: WeightSlot, out: Area },
    /// An operation that advances a memory.
    Update { tensor: Tensor, op: Box<Memory>, out: Area },
    /// Weights of experts; by the step's tokens where there is a table.
    Route {
        x: Area,
        w: WeightSlot,
        bias: Option<WeightSlot>,
        table: Option<WeightSlot>,
        route: Box<Route>,
        out: Area,
    },
    /// The experts.
    Experts(Box<ExpertsCall>),
    /// Gates of streams.
    StreamGates {
        x: Area,
        base: WeightSlot,
        scale: WeightSlot,
        streams: usize,
        iterations: usize,
        eps: f64,
        out: Area,
    },
    /// Streams into one row.
    StreamCollapse { x: Area, gates: Area, streams: usize, out: Area },
    /// A row back onto streams.
    StreamExpand { x: Area, y: Area, gates: Area, streams: usize, out: Area },
}

/// A call, and whether all threads must have finished what came before it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scheduled {
    pub call: Call,
    pub barrier: bool,
}

/// In what form kernels read a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WeightForm {
    /// As it is stored.
    Stored,
    /// As F32 values, row after row.
    Row,
    /// As the rate of each of so many columns, in equal parts.
    Rates(DecayForm, usize),
    /// As whole numbers below one.
    Numbers(u64),
}

/// How a weight is wanted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WeightUse {
    /// The weight's value in the program.
    pub value: ValueId,
    /// Types that it is cast through when it is bound, in order.
    pub casts: Vec<DType>,
    pub form: WeightForm,
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
    /// The room of each buffer. Buffer 0 holds the rows that pass from program to program.
    pub buffers: Vec<Room>,
    pub blocks: Vec<BlockRows>,
    pub weights: Vec<WeightUse>,
    pub ropes: Vec<RopeUse>,
    pub experts: Vec<ExpertsSizes>,
    /// Carried tensors.
    pub tensors: usize,
    /// Where the result is.
    pub result: ResultRows,
    /// Whether rows do not meet each other, a position or a token: any subset of them can be run alone.
    pub row_wise: bool,
    /// Whether a carried tensor is rewritten as a whole, once for each step: then a segment's rows are not split.
    pub rewrites: bool,
}

/// The buffer of a program's result, and its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct ResultRows {
    pub buffer: usize,
    pub width: usize,
}
