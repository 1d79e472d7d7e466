//! The syntax tree: a program as it is written, comments and empty lines included, so that it prints back.

use crate::{Axis, Kind, Span};

/// A program as text says it: a header, and lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// What it is: `embed`, `prefill`, `decode` or `head`.
    pub name: String,
    /// Numbers of the header, in order: `layer=3 ctx=2048`.
    pub params: Vec<(String, u64)>,
    /// The comment after the header.
    pub comment: Option<String>,
    /// Declarations and statements.
    pub lines: Vec<Line>,
}

impl Program {
    /// A number of the header.
    pub fn param(&self, name: &str) -> Option<u64> {
        self.params.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }
}

/// One line: perhaps an item, perhaps a comment.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What the line says.
    pub item: Option<Item>,
    /// The text after `#`, without the space that follows it.
    pub comment: Option<String>,
}

/// What a line says.
#[derive(Clone, Debug)]
pub enum Item {
    /// One or more declarations.
    Decls(Vec<Decl>),
    /// `name = expr`
    Let(Named, Expr),
    /// `name[rows] = expr`
    Write(Named, Range, Expr),
    /// `name, state[..] = op(state[..], …)`: an operation that advances a state as it goes over the step's rows.
    Update(Named, Named, Range, Expr),
    /// `return expr`
    Return(Span, Expr),
}

/// Places do not count when programs are compared.
impl PartialEq for Item {
    fn eq(&self, other: &Item) -> bool {
        match (self, other) {
            (Item::Decls(a), Item::Decls(b)) => a == b,
            (Item::Let(name, value), Item::Let(n, v)) => name == n && value == v,
            (Item::Write(name, rows, value), Item::Write(n, r, v)) => name == n && rows == r && value == v,
            (Item::Update(name, state, rows, value), Item::Update(n, s, r, v)) => {
                name == n && state == s && rows == r && value == v
            }
            (Item::Return(_, value), Item::Return(_, v)) => value == v,
            _ => false,
        }
    }
}

/// A name and where it stands.
#[derive(Clone, Debug)]
pub struct Named {
    /// The name.
    pub name: String,
    /// Its place.
    pub span: Span,
}

/// Places do not count when programs are compared.
impl PartialEq for Named {
    fn eq(&self, other: &Named) -> bool {
        self.name == other.name
    }
}

/// A declaration: `k3 : [position 2048, kv_head 3, head_dim 64]`, `pos : index`, `w : [64, 64] @ "name"`.
#[derive(Clone, Debug, PartialEq)]
pub struct Decl {
    /// The declared name.
    pub name: Named,
    /// Tensor or index.
    pub kind: Kind,
    /// Its axes; an index without axes is one number.
    pub axes: Vec<Axis>,
    /// The name of the checkpoint's tensor, of a weight.
    pub weight: Option<String>,
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A value by name.
    Name(Named),
    /// Rows of a declared tensor.
    Rows(Named, Range),
    /// An operation: `rope(x, pos, heads: 3)`. Sums and products are the operations `add` and `mul`.
    Call(Named, Vec<Expr>, Vec<(Named, Attr)>),
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// A number.
    Number(f64),
    /// A word, as `half`.
    Word(String),
    /// Numbers, as `[1, 1.5]`.
    List(Vec<f64>),
}

/// Rows of a tensor; an absent bound is its start or end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first row.
    pub from: Option<Bound>,
    /// The row after the last.
    pub to: Option<Bound>,
}

/// A bound of rows: a sum of `pos`, `n` and a number, less a number, over a number: `(pos+n)/4`, `pos-7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Bound {
    /// Whether the position is added.
    pub pos: bool,
    /// Whether the step's rows are added.
    pub n: bool,
    /// The number.
    pub offset: u64,
    /// What is taken off, where something is.
    pub back: Option<u64>,
    /// What the whole is divided by, rounded down, where it is.
    pub per: Option<u64>,
}
