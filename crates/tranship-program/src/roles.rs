//! What each declared tensor is, found by dataflow: nothing in a program says "state".
//!
//! The walk follows the actions in order and asks two things of every declared tensor that is no weight: is a
//! row read that this step has not written (then it is live on entry), and is it written? Both make it carried,
//! and the form of its writes says which rows are valid after a number of tokens. A state cannot be forgotten,
//! because reading it is what makes it one.
//!
//! The same walk holds that rows which were read are not used after they were written: a backend may take every
//! read as a view of the tensor's memory.

use crate::error::{ProgramError, Rule, Span, fault};
use crate::graph::{Action, Graph, Node, Origin, Rows, Value, ValueId};
use crate::{Dim, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a declared tensor is to its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A tensor of the checkpoint.
    Weight,
    /// Given anew for each step: rows, tokens, the position.
    Input,
    /// Written before any read: nothing of it outlives the step.
    Scratch,
    /// Read and never written: the same in every step.
    Frozen,
    /// Live on entry and written in place: what a decode step carries.
    Carried(Extent),
}

/// Which rows of a carried tensor are valid, as a function of the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Extent {
    /// One row is added for each token: after `position` tokens the first `position` rows are valid.
    Append,
    /// The whole is rewritten in each step: all rows are valid, always.
    Recurrent,
}

impl Extent {
    /// Valid rows after `position` tokens, of a tensor of `rows` rows.
    pub fn valid_rows(self, position: u64, rows: u64) -> u64 {
        match self {
            Extent::Append => position.min(rows),
            Extent::Recurrent => rows,
        }
    }

    /// The extent's name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Extent::Append => "append",
            Extent::Recurrent => "recurrent",
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Weight => f.write_str("weight"),
            Role::Input => f.write_str("step input"),
            Role::Scratch => f.write_str("scratch"),
            Role::Frozen => f.write_str("frozen"),
            Role::Carried(extent) => write!(f, "carried, {extent}"),
        }
    }
}

/// A tensor that a step takes from the step before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Its name in the program.
    pub name: String,
    /// Its value in the graph.
    pub value: ValueId,
    /// Axes with names and sizes, outermost first; an axis that the program does not name is `axisK`.
    pub axes: Vec<(String, u64)>,
    /// Which rows are valid.
    pub extent: Extent,
}

/// The roles of a graph's declared values.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Roles {
    roles: BTreeMap<usize, Role>,
    carried: Vec<Carried>,
}

impl Roles {
    /// The role of a declared value; `None` for a computed one.
    pub fn of(&self, id: ValueId) -> Option<Role> {
        self.roles.get(&id.0).copied()
    }

    /// The carried tensors, in the order in which the program first touches them.
    pub fn carried(&self) -> impl Iterator<Item = &Carried> {
        self.carried.iter()
    }

    pub(crate) fn derive(graph: &Graph) -> Result<Roles, ProgramError> {
        let mut uses: BTreeMap<usize, Uses> = BTreeMap::new();
        let mut views = Views::default();
        for (order, node) in graph.nodes.iter().enumerate() {
            views.follow(graph, node)?;
            let mut touch = |id: ValueId, rows: Rows, write: bool| {
                if graph.value(id).origin != Origin::Declared || graph.value(id).kind != Kind::Float {
                    return Ok(());
                }
                let uses = uses.entry(id.0).or_insert(Uses { first: order, ..Uses::default() });
                uses.touch(graph.value(id), rows, write, node.span)
            };
            match &node.action {
                Action::Apply { args, .. } => args.iter().try_for_each(|&a| touch(a, Rows::All, false))?,
                Action::Read { tensor, rows, .. } => touch(*tensor, *rows, false)?,
                Action::Write { tensor, rows, value } => {
                    touch(*value, Rows::All, false)?;
                    touch(*tensor, *rows, true)?;
                }
            }
        }
        let mut roles = Roles::default();
        let mut carried = Vec::new();
        for (id, value) in graph.declared() {
            let role = match (&value.origin, uses.get(&id.0)) {
                (Origin::Weight(_), _) => Role::Weight,
                (_, Some(uses)) => uses.role(graph, value)?,
                // An index: the verifier holds that every other value is read.
                (_, None) => Role::Input,
            };
            if let (Role::Carried(extent), Some(uses)) = (role, uses.get(&id.0)) {
                carried.push((
                    uses.first,
                    Carried { name: value.name.clone(), value: id, axes: axes(value), extent },
                ));
            }
            roles.roles.insert(id.0, role);
        }
        carried.sort_by_key(|(first, _)| *first);
        roles.carried = carried.into_iter().map(|(_, c)| c).collect();
        Ok(roles)
    }
}

fn axes(value: &Value) -> Vec<(String, u64)> {
    let sized = |(i, axis): (usize, &crate::Axis)| match axis.size {
        Dim::Fixed(size) => Some((axis.name.clone().unwrap_or_else(|| format!("axis{i}")), size)),
        _ => None,
    };
    value.shape.0.iter().enumerate().filter_map(sized).collect()
}

/// Values that are rows of a tensor, and those whose tensor was written since.
#[derive(Default)]
struct Views {
    /// The tensor and rows that a read value shows.
    of: BTreeMap<ValueId, (ValueId, Rows)>,
    stale: BTreeSet<ValueId>,
}

impl Views {
    fn follow(&mut self, graph: &Graph, node: &Node) -> Result<(), ProgramError> {
        let name = |id: ValueId| &graph.value(id).name;
        if let Some(old) = node.action.inputs().iter().find(|id| self.stale.contains(id)) {
            let (tensor, rows) = self.of[old];
            let (tensor, old) = (name(tensor), name(*old));
            let message = format!("`{old}` is `{tensor}{rows}` as it was before `{tensor}` was written");
            return Err(fault(Rule::StaleRows, node.span, message));
        }
        match node.action {
            Action::Read { tensor, rows, out } => {
                self.of.insert(out, (tensor, rows));
            }
            Action::Write { tensor, rows, value } => {
                if self.of.get(&value).is_some_and(|(source, _)| *source == tensor) {
                    let message = format!("`{}{rows}` is written with its own rows", name(tensor));
                    return Err(fault(Rule::StaleRows, node.span, message));
                }
                let shown = self.of.iter().filter(|(_, (source, _))| *source == tensor);
                self.stale.extend(shown.map(|(value, _)| *value));
            }
            Action::Apply { .. } => {}
        }
        Ok(())
    }
}

/// What the walk has seen of one tensor.
#[derive(Default)]
struct Uses {
    first: usize,
    span: Span,
    /// Rows were addressed by the position.
    positional: bool,
    /// A row was read that this step had not written.
    live: bool,
    wrote_new: bool,
    wrote_all: bool,
}

impl Uses {
    fn touch(&mut self, value: &Value, rows: Rows, write: bool, span: Span) -> Result<(), ProgramError> {
        self.positional |= rows != Rows::All;
        if write { self.write(value, rows, span) } else { self.read(value, rows, span) }
    }

    fn write(&mut self, value: &Value, rows: Rows, span: Span) -> Result<(), ProgramError> {
        let name = &value.name;
        self.span = span;
        if value.shape.rows() == Dim::N && self.live {
            return Err(fault(
                Rule::NotWritable,
                span,
                format!("`{name}` is a step input, and is not written"),
            ));
        }
        if rows == Rows::New && self.live {
            let message = format!("`{name}` was read whole, and its rows after pos are not written");
            return Err(fault(Rule::ReadsUnwritten, span, message));
        }
        let (written, other) = match rows {
            Rows::All => (&mut self.wrote_all, self.wrote_new),
            _ => (&mut self.wrote_new, self.wrote_all),
        };
        if other {
            let message = format!("`{name}` is written both as a whole and by rows");
            return Err(fault(Rule::MixedExtent, span, message));
        }
        if std::mem::replace(written, true) {
            return Err(fault(
                Rule::WrittenTwice,
                span,
                format!("`{name}{rows}` is written already in this step"),
            ));
        }
        Ok(())
    }

    fn read(&mut self, value: &Value, rows: Rows, span: Span) -> Result<(), ProgramError> {
        if rows == Rows::All {
            if self.wrote_new {
                let message =
                    format!("`{}` is read whole, and its rows after pos+n are not written", value.name);
                return Err(fault(Rule::ReadsUnwritten, span, message));
            }
            self.live |= !self.wrote_all;
            return Ok(());
        }
        if !self.wrote_new && !self.wrote_all {
            let message = format!("`{}{rows}` is read before this step's rows are written", value.name);
            return Err(fault(Rule::ReadsUnwritten, span, message));
        }
        self.live |= rows == Rows::UpTo && !self.wrote_all;
        Ok(())
    }

    fn role(&self, graph: &Graph, value: &Value) -> Result<Role, ProgramError> {
        let name = &value.name;
        if self.positional {
            let ctx = graph.param("ctx");
            if ctx.is_none() || ctx != value.shape.fixed_rows() {
                let wanted = ctx.map_or("a parameter `ctx`".into(), |c| format!("ctx={c} rows"));
                let message = format!("`{name}` {} has rows at the position: wanted {wanted}", value.shape);
                return Err(fault(Rule::AppendLength, self.span, message));
            }
        }
        Ok(match (self.wrote_new || self.wrote_all, self.live) {
            (true, true) if self.wrote_new => Role::Carried(Extent::Append),
            (true, true) => Role::Carried(Extent::Recurrent),
            (true, false) => Role::Scratch,
            (false, _) if value.shape.rows() == Dim::N => Role::Input,
            (false, _) => Role::Frozen,
        })
    }
}

/// Holds that two programs of one layer, prefill and decode, carry the same tensors in the same order.
///
/// # Errors
/// [`Rule::StateMismatch`], naming the first tensor that differs.
pub fn same_state(prefill: &Graph, decode: &Graph) -> Result<(), ProgramError> {
    let describe = |c: Option<&Carried>| match c {
        Some(c) => {
            let axes: Vec<String> = c.axes.iter().map(|(n, s)| format!("{n} {s}")).collect();
            format!("`{}` [{}] ({})", c.name, axes.join(", "), c.extent)
        }
        None => "nothing".into(),
    };
    let (mut a, mut b) = (prefill.roles.carried(), decode.roles.carried());
    loop {
        let (left, right) = (a.next(), b.next());
        if left.is_none() && right.is_none() {
            return Ok(());
        }
        let (left, right) = (describe(left), describe(right));
        if left != right {
            let message =
                format!("`{}` carries {left} where `{}` carries {right}", prefill.name, decode.name);
            return Err(fault(Rule::StateMismatch, Span::default(), message));
        }
    }
}
