//! Language-model programs as text, and what they say about a model's state.
//!
//! A model is authored once, as one short program for each cut (the embedding, each layer, the head). A program
//! names its tensors and says what happens to them; it holds no dtypes, no devices and no list of states. From
//! the text, in this order:
//!
//! 1. [`Program::parse`] reads it into a syntax tree that prints back exactly;
//! 2. [`Program::lift`] checks it against every [`Rule`] and gives a flat [`Graph`] with shapes;
//! 3. [`Graph::roles`] derives by dataflow what each tensor is: weight, step input, scratch, frozen, or
//!    **carried** from one step to the next, and then which rows are valid after a number of tokens.
//!
//! What [`Program::lift`] accepts, no backend may panic on.
//!
//! ```
//! use tranship_program::{Extent, Program};
//!
//! let text = r#"
//! program decode layer=0 ctx=128
//!   x   : [n, 64]
//!   pos : index
//!   k0  : [position 128, kv_head 2, head_dim 16]
//!   v0  : [position 128, kv_head 2, head_dim 16]
//!   wq  : [64, 64] @ "q.weight"
//!   wk  : [32, 64] @ "k.weight"
//!   wv  : [32, 64] @ "v.weight"
//!   q = rope(linear(x, wq), pos, heads: 4, dims: 16, theta: 1e4, style: half)
//!   k0[pos .. pos+n] = rope(linear(x, wk), pos, heads: 2, dims: 16, theta: 1e4, style: half)
//!   v0[pos .. pos+n] = linear(x, wv)
//!   a = attend(q, k0[.. pos+n], v0[.. pos+n], heads: 4, kv_heads: 2, scale: 0.25)
//!   return x + a
//! "#;
//! let graph = Program::parse(text)?.lift()?;
//! let roles = graph.roles();
//! let carried: Vec<_> = roles.carried().map(|c| (c.name.as_str(), c.extent)).collect();
//! assert_eq!(carried, [("k0", Extent::Append), ("v0", Extent::Append)]);
//! assert_eq!(Extent::Append.valid_rows(7, 128), 7); // seven tokens fill seven rows
//! # Ok::<(), tranship_program::ProgramError>(())
//! ```
#![forbid(unsafe_code)]

mod error;
mod graph;
mod lexer;
mod lift;
mod operands;
pub mod ops;
mod parser;
mod printer;
mod roles;
mod segments;
mod shape;
mod stored;
mod syntax;

pub use error::{ProgramError, Rule, Span};
pub use graph::{Action, Graph, Node, Origin, Rows, Value, ValueId};
pub use ops::Op;
pub use roles::{Carried, Extent, Role, Roles, same_state};
pub use segments::{Columns, Run, Segments};
pub use shape::{Axis, Dim, Kind, Shape};
pub use stored::same_sizes;
pub use syntax::{Attr, Bound, Decl, Expr, Item, Line, Named, Program, Range};
