//! A chain: typed programs, one feeding the next, that a backend compiles together.

use crate::table::{experts_of, routed_tables};
use crate::{BackendError, Weight, Weights};
use std::sync::Arc;
use tranship_ctx::Typed;
use tranship_dtype::DType;
use tranship_program::{
    Action, Dim, Extent, Graph, Kind, Node, Op, Origin, Role, Rows, Value, ValueId, same_sizes,
};

/// Typed programs in the order in which they run: each takes the rows that the one before returns.
#[derive(Clone)]
pub struct Chain {
    /// The programs.
    pub parts: Vec<Arc<Typed>>,
    /// Rows that buffers are made for; longer batches are split.
    pub max_rows: usize,
}

/// A carried tensor of a chain, in the order of its contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedSpec {
    /// The tensor's name in its program.
    pub name: String,
    /// The program of the chain that carries it.
    pub part: usize,
    /// Its value there.
    pub value: ValueId,
    /// Rows: the first axis.
    pub rows: usize,
    /// Elements of a row: the product of the other axes.
    pub cols: usize,
    /// The logical element type.
    pub dtype: DType,
    /// Which rows are valid.
    pub extent: Extent,
}

impl CarriedSpec {
    /// Whether the other is the same tensor of a sequence, wherever in its chain it is declared: a prefill and a
    /// decode program may number their values differently.
    pub fn same_tensor(&self, other: &CarriedSpec) -> bool {
        let key = |c: &CarriedSpec| (c.rows, c.cols, c.dtype, c.extent);
        self.name == other.name && key(self) == key(other)
    }
}

/// What a batch is held to: found once, when a chain is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows that a sequence may have: [`Chain::ctx`].
    pub ctx: Option<usize>,
    /// Tokens that there are, where programs take tokens: [`Chain::vocab`].
    pub vocab: Option<usize>,
    /// Elements of an input row: [`Chain::width_in`].
    pub width_in: Option<usize>,
    /// Elements of an output row.
    pub width_out: usize,
}

impl Chain {
    /// What batches of this chain are held to.
    pub fn limits(&self) -> Limits {
        Limits {
            ctx: self.ctx(),
            vocab: self.vocab(),
            width_in: self.width_in(),
            width_out: self.width_out(),
        }
    }

    /// A chain whose buffers hold `max_rows` rows.
    pub fn new(parts: Vec<Arc<Typed>>, max_rows: usize) -> Chain {
        Chain { parts, max_rows: max_rows.max(1) }
    }

    /// The carried tensors: programs in order, and in each the order of first touch.
    pub fn carried(&self) -> Vec<CarriedSpec> {
        let of_part = |(part, typed): (usize, &Arc<Typed>)| {
            let specs = typed.carried().map(|(c, dtype)| CarriedSpec {
                name: c.name.clone(),
                part,
                value: c.value,
                rows: c.axes.first().map_or(1, |(_, s)| *s as usize),
                cols: c.axes.iter().skip(1).map(|(_, s)| *s as usize).product(),
                dtype,
                extent: c.extent,
            });
            specs.collect::<Vec<_>>()
        };
        self.parts.iter().enumerate().flat_map(of_part).collect()
    }

    /// Rows that a sequence may have: the fewest that a tensor with rows at the position has room for, carried or not,
    /// or that attention without a window reaches back to over a ring.
    pub fn ctx(&self) -> Option<usize> {
        let of_part = |part: &Typed| {
            let graph = part.graph();
            graph.nodes.iter().filter_map(|node| rows_at_position(graph, node)).min()
        };
        self.parts.iter().filter_map(|part| of_part(part)).min()
    }

    /// The rows of the tables that tokens are looked up in, where a program takes tokens: of several tables, in whatever
    /// program, the fewest rows.
    pub fn vocab(&self) -> Option<usize> {
        let of_part = |part: &Typed| {
            let graph = part.graph();
            let table = |node: &Node| match &node.action {
                Action::Apply { op: Op::Gather, args, .. } => graph.value(args[0]).shape.fixed_rows(),
                Action::Apply { op: Op::RouteByTable(_), args, .. } => {
                    graph.value(args[2]).shape.fixed_rows()
                }
                _ => None,
            };
            graph.nodes.iter().filter_map(table).min()
        };
        self.parts.iter().filter_map(|part| of_part(part)).min().map(|rows| rows as usize)
    }

    /// Elements of an input row of the first program; none where that takes tokens alone.
    pub fn width_in(&self) -> Option<usize> {
        let (_, rows) = self.parts.first().and_then(|part| input_rows(part.graph()))?;
        Some(rows.shape.cols() as usize)
    }

    /// Elements of an output row.
    pub fn width_out(&self) -> usize {
        self.parts.last().map_or(0, |p| p.graph().value(p.graph().result).shape.cols() as usize)
    }

    /// Holds that the programs fit: each but the first takes one tensor of rows, as wide as what the one before
    /// returns, each returns the step's rows, and none reads a tensor that nothing gives a value to. Any may take tokens.
    ///
    /// # Errors
    /// [`BackendError::Chain`], naming the program.
    pub fn check(&self) -> Result<(), BackendError> {
        let fault = |what: String| Err(BackendError::Chain(what));
        if self.parts.is_empty() {
            return fault("there are none".into());
        }
        let mut width = None;
        for (i, part) in self.parts.iter().enumerate() {
            let graph = part.graph();
            let named = format!("program {i} (`{}`)", graph.name);
            check_input(graph, &named, width)?;
            let frozen = graph.declared().find(|(id, _)| graph.roles().of(*id) == Some(Role::Frozen));
            if let Some((_, value)) = frozen {
                let what =
                    format!("{named} reads `{}`, which nothing writes or gives: it is no weight", value.name);
                return fault(what);
            }
            let result = graph.value(graph.result);
            if result.shape.rows() != Dim::N || result.kind != Kind::Float {
                return fault(format!("{named} returns {}, not the step's rows", result.shape));
            }
            width = Some(result.shape.cols());
        }
        Ok(())
    }

    /// Finds every weight of the chain and holds it to its program's shape and type, before anything is compiled.
    ///
    /// Entry `[part][value]` is the weight of that value in the program's shape, `None` where the value is no weight. The
    /// stored shape may have other axes of size 1. Several pieces are equal parts of the program's first axis.
    ///
    /// # Errors
    /// A weight that is missing, misshapen, or shorter than its shape; a table of experts that lists others than there
    /// are.
    pub fn bind(&self, weights: &dyn Weights) -> Result<Vec<Vec<Option<Weight>>>, BackendError> {
        self.parts.iter().map(|part| bind_part(part, weights)).collect()
    }
}

/// Holds a program to what it takes: the first tokens or rows, the others rows of `width`; tokens beside them or not.
fn check_input(graph: &Graph, named: &str, width: Option<u64>) -> Result<(), BackendError> {
    let fault = |what: String| Err(BackendError::Chain(what));
    let inputs = graph
        .declared()
        .filter(|(id, v)| v.kind == Kind::Float && graph.roles().of(*id) == Some(Role::Input));
    let inputs: Vec<&Value> = inputs.map(|(_, v)| v).collect();
    match (inputs.as_slice(), width) {
        ([], None) if takes_tokens(graph) => Ok(()),
        ([x], _) if x.shape.rows() == Dim::N => match width.filter(|width| *width != x.shape.cols()) {
            Some(width) => {
                let found = x.shape.cols();
                fault(format!("{named} takes rows of {found}, and gets rows of {width}"))
            }
            None => Ok(()),
        },
        _ => fault(format!("{named} takes other than one tensor of rows, or tokens at the start")),
    }
}

fn bind_part(part: &Typed, weights: &dyn Weights) -> Result<Vec<Option<Weight>>, BackendError> {
    let graph = part.graph();
    let mut bound: Vec<Option<Weight>> = vec![None; graph.values.len()];
    for (id, value) in graph.declared() {
        let Origin::Weight(name) = &value.origin else { continue };
        let weight = weights.weight(name).ok_or_else(|| BackendError::NoWeight(name.clone()))?;
        bound[id.0] = Some(bind_one(name, weight, part.dtype(id), value)?);
    }
    for (id, name, experts) in routed_tables(graph) {
        if let Some(table) = &bound[id.0] {
            experts_of(name, table, experts)?;
        }
    }
    Ok(bound)
}

/// The weight in the shape that its program gives it.
fn bind_one(name: &str, weight: Weight, dtype: DType, value: &Value) -> Result<Weight, BackendError> {
    let stored: Vec<u64> = weight.shape.iter().map(|&s| s as u64).collect();
    let sizes = value.shape.0.iter().map(|a| if let Dim::Fixed(s) = a.size { s } else { 0 });
    let wanted: Vec<u64> = sizes.collect();
    let row = wanted.last().map_or(1, |&s| s as usize);
    let rows: usize = wanted.iter().rev().skip(1).map(|&s| s as usize).product();
    let bytes = dtype.row_bytes(row).and_then(|b| b.checked_mul(rows));
    let pieces = weight.pieces.len();
    let shape: Vec<usize> = wanted.iter().map(|&s| s as usize).collect();
    let bound = Weight { shape, ..weight };
    let part = bytes.map(|b| b / pieces.max(1));
    let equal = pieces == 1 || bound.pieces.iter().all(|piece| Some(piece.bytes().len()) == part);
    if !same_sizes(&stored, &wanted)
        || bound.dtype != dtype
        || bytes != Some(bound.bytes_len())
        || bound.piece_rows().is_none()
        || !equal
    {
        let several = if pieces == 1 { String::new() } else { format!(" in {pieces} pieces") };
        let found = format!("{} {stored:?} in {} bytes{several}", bound.dtype, bound.bytes_len());
        let bytes = bytes.map_or("no whole number of".into(), |b| b.to_string());
        let wanted = format!("{dtype} {wanted:?} in {bytes} bytes");
        return Err(BackendError::WeightShape { name: name.to_owned(), wanted, found });
    }
    Ok(bound)
}

/// The tensor of rows that a program takes.
pub(crate) fn input_rows(graph: &Graph) -> Option<(ValueId, &Value)> {
    graph.declared().find(|(id, v)| v.kind == Kind::Float && graph.roles().of(*id) == Some(Role::Input))
}

/// Whether a program takes an index of the step's rows.
fn takes_tokens(graph: &Graph) -> bool {
    graph.declared().any(|(_, v)| v.kind == Kind::Index && v.shape.0.len() == 1)
}

/// The rows of a sequence that a node has room for, if it is limited: by the rows of a tensor at the position, or by
/// how far attention reaches back over a ring.
fn rows_at_position(graph: &Graph, node: &Node) -> Option<usize> {
    let room = match &node.action {
        Action::Read { tensor, rows, .. } | Action::Write { tensor, rows, .. } => {
            let held = graph.value(*tensor).shape.fixed_rows()?;
            match *rows {
                Rows::UpTo | Rows::New => held,
                // The last position before one row too many is whole.
                Rows::UpToPer(rate) | Rows::NewPer(rate) => {
                    (held.saturating_add(1)).saturating_mul(rate.max(1)) - 1
                }
                Rows::All | Rows::Before(_) | Rows::Last(_) => return None,
            }
        }
        Action::Apply { op, args, .. } => {
            let window = match op {
                Op::Attend(op) => op.window,
                Op::CompressedAttend(op) => Some(op.window),
                _ => return None,
            };
            let Dim::After(before) = graph.value(args[1]).shape.rows() else { return None };
            let reach = before.saturating_add(1);
            if window.is_some_and(|window| window <= reach) {
                return None;
            }
            reach
        }
        Action::Update { .. } => return None,
    };
    Some(usize::try_from(room).unwrap_or(usize::MAX))
}
