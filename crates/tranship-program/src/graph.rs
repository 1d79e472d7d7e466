//! The flat graph: values in the order in which they come to be, and what is done, one action at a time.

use crate::printer::quoted;
use crate::{Kind, Op, Roles, Shape, Span};
use std::fmt::{self, Write as _};

/// A value of a graph, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(
    /// The index into [`Graph::values`].
    pub usize,
);

/// A verified program: every name resolved, every shape known, every action in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The program's name: `embed`, `prefill`, `decode` or `head`.
    pub name: String,
    /// The numbers of its header.
    pub params: Vec<(String, u64)>,
    /// Declared and computed values, in the order of the text.
    pub values: Vec<Value>,
    /// What is done, in order.
    pub nodes: Vec<Node>,
    /// The value that the program returns.
    pub result: ValueId,
    pub(crate) roles: Roles,
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The authored name; a value inside an expression is `name.k` after the statement that it is part of.
    pub name: String,
    /// Tensor or index.
    pub kind: Kind,
    /// The symbolic shape.
    pub shape: Shape,
    /// Where it comes from.
    pub origin: Origin,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A tensor of the checkpoint, by its name there.
    Weight(String),
    /// A tensor or index that the program declares; its [`crate::Role`] says what it is.
    Declared,
    /// An action's result.
    Computed,
}

/// One action and its place in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is done.
    pub action: Action,
    /// Where the text says so.
    pub span: Span,
}

/// What is done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// An operation on values.
    Apply {
        /// The operation.
        op: Op,
        /// Its operands.
        args: Vec<ValueId>,
        /// Its result.
        out: ValueId,
    },
    /// Rows of a declared tensor, as they are at this point.
    Read {
        /// The tensor.
        tensor: ValueId,
        /// Which rows.
        rows: Rows,
        /// The rows as a value.
        out: ValueId,
    },
    /// An operation that goes over the step's rows in order and advances a declared tensor by each, in place.
    Update {
        /// The operation.
        op: Op,
        /// The tensor, which it reads and writes whole.
        tensor: ValueId,
        /// Its other operands.
        args: Vec<ValueId>,
        /// What it gives for each row.
        out: ValueId,
    },
    /// A write into a declared tensor, in place.
    Write {
        /// The tensor.
        tensor: ValueId,
        /// Which rows.
        rows: Rows,
        /// What is written.
        value: ValueId,
    },
}

impl Action {
    /// The values that the action reads.
    pub fn inputs(&self) -> Vec<ValueId> {
        match self {
            Action::Apply { args, .. } => args.clone(),
            Action::Read { tensor, .. } => vec![*tensor],
            Action::Update { tensor, args, .. } => {
                [*tensor].into_iter().chain(args.iter().copied()).collect()
            }
            Action::Write { value, .. } => vec![*value],
        }
    }

    /// The value that the action makes, if it makes one.
    pub fn out(&self) -> Option<ValueId> {
        match self {
            Action::Apply { out, .. } | Action::Read { out, .. } | Action::Update { out, .. } => Some(*out),
            Action::Write { .. } => None,
        }
    }
}

/// The forms that rows are addressed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// `[..]`: the whole tensor.
    All,
    /// `[.. pos+n]`: what was before this step, and this step's.
    UpTo,
    /// `[pos .. pos+n]`: this step's.
    New,
    /// `[pos-7 .. pos]`: the last rows before this step, of a tensor that holds so many.
    Before(u64),
    /// `[pos+n-7 .. pos+n]`: the last rows after this step, of a tensor that holds so many. Written with the step's
    /// rows: the oldest make room.
    Last(u64),
    /// `[.. (pos+n)/4]`: a row for every so many positions, before this step and of it.
    UpToPer(u64),
    /// `[pos/4 .. (pos+n)/4]`: those of this step. Written with the step's rows, of which those are kept that close
    /// their span: row `i` where `pos + i + 1` is a multiple.
    NewPer(u64),
}

impl Rows {
    /// Whether rows are addressed by the position.
    pub fn positional(self) -> bool {
        self != Rows::All
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rows::All => f.write_str("[..]"),
            Rows::UpTo => f.write_str("[.. pos+n]"),
            Rows::New => f.write_str("[pos .. pos+n]"),
            Rows::Before(rows) => write!(f, "[pos-{rows} .. pos]"),
            Rows::Last(rows) => write!(f, "[pos+n-{rows} .. pos+n]"),
            Rows::UpToPer(rate) => write!(f, "[.. (pos+n)/{rate}]"),
            Rows::NewPer(rate) => write!(f, "[pos/{rate} .. (pos+n)/{rate}]"),
        }
    }
}

impl Graph {
    /// A number of the header, as `ctx`.
    pub fn param(&self, name: &str) -> Option<u64> {
        self.params.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// The declared values, in order.
    pub fn declared(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        let declared = self.values.iter().enumerate().filter(|(_, v)| v.origin != Origin::Computed);
        declared.map(|(i, v)| (ValueId(i), v))
    }

    /// What each declared tensor is, by dataflow.
    pub fn roles(&self) -> &Roles {
        &self.roles
    }

    /// The graph without any names: two layers that differ in names and numbers of layers alone have one
    /// canonical text, and can share one compiled step.
    pub fn canonical(&self) -> String {
        let mut text = String::new();
        for (i, value) in self.values.iter().enumerate() {
            let role = self.roles.of(ValueId(i)).map_or(String::new(), |r| format!("{r:?}"));
            let _ = writeln!(text, "v{i} {:?} {} {role}", value.kind, value.shape);
        }
        for node in &self.nodes {
            let _ = writeln!(text, "{}", self.action_text(&node.action, &|id| format!("v{}", id.0)));
        }
        let _ = writeln!(text, "return v{}", self.result.0);
        text
    }

    /// The graph as text, one action a line; `note` says more of a value (a dtype, say) after its name, and
    /// `tail` more of a node at the end of its line.
    pub fn render(&self, note: &dyn Fn(ValueId) -> String, tail: &dyn Fn(usize) -> String) -> String {
        let mut text = format!("program {}", self.name);
        for (key, value) in &self.params {
            let _ = write!(text, " {key}={value}");
        }
        text.push('\n');
        let name = |id: ValueId| self.value(id).name.clone();
        for (id, value) in self.declared() {
            let weight = match &value.origin {
                Origin::Weight(w) => format!(" @ {}", quoted(w)),
                _ => String::new(),
            };
            let role = self.roles.of(id).map_or(String::new(), |r| format!("  # {r}"));
            let index = if value.kind == Kind::Index { "index " } else { "" };
            let shape = if value.shape.0.is_empty() { String::new() } else { value.shape.to_string() };
            let kind = format!("{index}{}{shape}", note(id));
            let _ = writeln!(text, "  {} : {}{weight}{role}", value.name, kind.trim_end());
        }
        for (i, node) in self.nodes.iter().enumerate() {
            let action = self.action_text(&node.action, &name);
            let line = match node.action.out() {
                Some(out) => {
                    let (left, right) = action.split_once(" = ").unwrap_or((&action, ""));
                    let (out_name, state) = left.split_at(left.find(',').unwrap_or(left.len()));
                    format!("{out_name} : {}{}{state} = {right}", note(out), self.value(out).shape)
                }
                None => action,
            };
            let _ = writeln!(text, "  {line}{}", tail(i));
        }
        let _ = writeln!(text, "  return {}", name(self.result));
        text
    }

    fn action_text(&self, action: &Action, name: &dyn Fn(ValueId) -> String) -> String {
        match action {
            Action::Apply { op, args, out } => {
                let mut parts: Vec<String> = args.iter().map(|&a| name(a)).collect();
                parts.extend(op.attrs().into_iter().map(|(key, value)| format!("{key}: {value}")));
                format!("{} = {}({})", name(*out), op.name(), parts.join(", "))
            }
            Action::Update { op, tensor, args, out } => {
                let mut parts = vec![format!("{}[..]", name(*tensor))];
                parts.extend(args.iter().map(|&a| name(a)));
                parts.extend(op.attrs().into_iter().map(|(key, value)| format!("{key}: {value}")));
                format!("{}, {}[..] = {}({})", name(*out), name(*tensor), op.name(), parts.join(", "))
            }
            Action::Read { tensor, rows, out } => format!("{} = {}{rows}", name(*out), name(*tensor)),
            Action::Write { tensor, rows, value } => format!("{}{rows} = {}", name(*tensor), name(*value)),
        }
    }

    /// The graph in the DOT language of Graphviz: tensors as boxes coloured by role, operations as ovals.
    pub fn dot(&self) -> String {
        let mut text = String::from("digraph program {\n  rankdir=TB;\n  node [fontname=monospace];\n");
        let quote = |s: &str| s.replace('\\', "\\\\").replace('"', "\\\"");
        for (id, value) in self.declared() {
            let role = self.roles.of(id).map_or(String::new(), |r| r.to_string());
            let label = format!("{}\\n{}\\n{role}", quote(&value.name), value.shape);
            let style = if role.starts_with("carried") { ",style=filled" } else { "" };
            let _ = writeln!(text, "  v{} [shape=box,label=\"{label}\"{style}];", id.0);
        }
        for node in &self.nodes {
            match &node.action {
                Action::Apply { op, args, out } => {
                    let label = format!("{} = {}", quote(&self.value(*out).name), op.name());
                    let _ = writeln!(text, "  v{} [shape=oval,label=\"{label}\"];", out.0);
                    for arg in args {
                        let _ = writeln!(text, "  v{} -> v{};", arg.0, out.0);
                    }
                }
                Action::Update { op, tensor, args, out } => {
                    let label = format!("{} = {}", quote(&self.value(*out).name), op.name());
                    let _ = writeln!(text, "  v{} [shape=oval,label=\"{label}\"];", out.0);
                    for arg in args {
                        let _ = writeln!(text, "  v{} -> v{};", arg.0, out.0);
                    }
                    let _ = writeln!(text, "  v{} -> v{} [dir=both,label=\"update\"];", tensor.0, out.0);
                }
                Action::Read { tensor, rows, out } => {
                    let _ = writeln!(text, "  v{} [shape=oval,label=\"read {rows}\"];", out.0);
                    let _ = writeln!(text, "  v{} -> v{};", tensor.0, out.0);
                }
                Action::Write { tensor, rows, value } => {
                    let _ = writeln!(text, "  v{} -> v{} [label=\"write {rows}\"];", value.0, tensor.0);
                }
            }
        }
        let _ =
            writeln!(text, "  result [shape=plaintext,label=return];\n  v{} -> result;\n}}", self.result.0);
        text
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(&|_| String::new(), &|_| String::new()))
    }
}
