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
use crate::{Dim, Kind, Op};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

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
    /// The last rows before the position: a sliding window, or the inputs that a convolution still reaches.
    Ring,
    /// One row is added for every so many tokens.
    Compressed {
        /// Tokens for a row.
        rate: u64,
    },
    /// What is to become the next compressed row: the tokens since the last one, and as many before them as the
    /// compression overlaps.
    Frontier {
        /// Tokens for a compressed row.
        rate: u64,
        /// Tokens of the row before that are still needed.
        keep: u64,
    },
}

impl Extent {
    /// Valid rows after `position` tokens, of a tensor of `rows` rows.
    pub fn valid_rows(self, position: u64, rows: u64) -> u64 {
        match self {
            Extent::Append | Extent::Ring => position.min(rows),
            Extent::Recurrent => rows,
            Extent::Compressed { rate } => (position / rate.max(1)).min(rows),
            Extent::Frontier { rate, keep } => {
                (position % rate.max(1)).saturating_add(keep).min(position).min(rows)
            }
        }
    }

    /// The valid rows after `position` tokens by their logical numbers: of a ring or a frontier the positions that
    /// they stand at, of all others from 0.
    pub fn valid(self, position: u64, rows: u64) -> Range<u64> {
        let valid = self.valid_rows(position, rows);
        match self {
            Extent::Ring | Extent::Frontier { .. } => position - valid..position,
            _ => 0..valid,
        }
    }

    /// Whether rows are numbered by their positions, of which a tensor holds the last.
    pub fn is_ring(self) -> bool {
        matches!(self, Extent::Ring | Extent::Frontier { .. })
    }

    /// The extent's name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Extent::Append => "append",
            Extent::Recurrent => "recurrent",
            Extent::Ring => "ring",
            Extent::Compressed { .. } => "compressed",
            Extent::Frontier { .. } => "frontier",
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Extent::Compressed { rate } => write!(f, " 1:{rate}"),
            Extent::Frontier { rate, keep } => write!(f, " of {rate}, {keep} kept"),
            _ => Ok(()),
        }
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
    /// Whether attention reads its rows, so that it is a cache, and not a memory.
    pub cache: bool,
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
                Action::Update { tensor, args, .. } => {
                    args.iter().try_for_each(|&a| touch(a, Rows::All, false))?;
                    touch(*tensor, Rows::All, false)?;
                    touch(*tensor, Rows::All, true)?;
                }
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
                let (name, axes) = (value.name.clone(), axes(value));
                let extent = frontier(graph, id).filter(|_| extent == Extent::Ring).unwrap_or(extent);
                let cache = is_cache(graph, id);
                carried.push((uses.first, Carried { name, value: id, axes, extent, cache }));
                roles.roles.insert(id.0, Role::Carried(extent));
                continue;
            }
            roles.roles.insert(id.0, role);
        }
        carried.sort_by_key(|(first, _)| *first);
        roles.carried = carried.into_iter().map(|(_, c)| c).collect();
        Ok(roles)
    }
}

/// The operations that a tensor's rows go into, as they are read by the position or joined with the step's own.
fn uses_of(graph: &Graph, tensor: ValueId) -> Vec<&Op> {
    let mut shown = BTreeSet::new();
    let mut ops = Vec::new();
    for node in &graph.nodes {
        match &node.action {
            Action::Read { tensor: read, rows, out } if *read == tensor && rows.positional() => {
                shown.insert(*out);
            }
            Action::Apply { op: Op::Join, args, out } if shown.contains(&args[0]) => {
                shown.insert(*out);
            }
            Action::Apply { op, args, .. } | Action::Update { op, args, .. }
                if args.iter().any(|a| shown.contains(a)) =>
            {
                ops.push(op);
            }
            _ => {}
        }
    }
    ops
}

/// Whether attention, or what chooses rows for it, reads the tensor's rows.
fn is_cache(graph: &Graph, tensor: ValueId) -> bool {
    uses_of(graph, tensor).iter().any(|op| op.attends())
}

/// The frontier that a ring is, if all that reads it is compression of one rate.
fn frontier(graph: &Graph, tensor: ValueId) -> Option<Extent> {
    let mut found = uses_of(graph, tensor).into_iter().map(|op| match op {
        Op::Compress(op) => {
            Some(Extent::Frontier { rate: op.rate, keep: if op.overlap { op.rate } else { 0 } })
        }
        _ => None,
    });
    let first = found.next()??;
    found.all(|next| next == Some(first)).then_some(first)
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
            Action::Update { tensor, .. } => {
                let shown = self.of.iter().filter(|(_, (source, _))| *source == tensor);
                self.stale.extend(shown.map(|(value, _)| *value));
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

/// The forms of addressing that do not go with any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The whole, or a row for each position.
    Plain,
    /// The last rows.
    Ring(u64),
    /// A row for every so many positions.
    Per(u64),
}

impl Form {
    fn of(rows: Rows) -> Form {
        match rows {
            Rows::All | Rows::UpTo | Rows::New => Form::Plain,
            Rows::Before(rows) | Rows::Last(rows) => Form::Ring(rows),
            Rows::UpToPer(rate) | Rows::NewPer(rate) => Form::Per(rate),
        }
    }
}

/// What the walk has seen of one tensor.
#[derive(Default)]
struct Uses {
    first: usize,
    span: Span,
    /// Rows were addressed by the position, a row for each.
    positional: bool,
    /// The form in which rows were addressed, if it is one that stands alone.
    form: Option<Form>,
    /// A row was read that this step had not written.
    live: bool,
    wrote_new: bool,
    wrote_all: bool,
}

impl Uses {
    fn touch(&mut self, value: &Value, rows: Rows, write: bool, span: Span) -> Result<(), ProgramError> {
        self.positional |= matches!(rows, Rows::UpTo | Rows::New);
        let form = *self.form.get_or_insert(Form::of(rows));
        if form != Form::of(rows) {
            let message = format!(
                "`{}{rows}` is a form of rows that does not go with how others of it are addressed",
                value.name
            );
            return Err(fault(Rule::MixedExtent, span, message));
        }
        self.span = if self.span == Span::default() { span } else { self.span };
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
        if matches!(rows, Rows::New | Rows::NewPer(_)) && self.live {
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
        if let Rows::Before(_) = rows {
            if self.wrote_new {
                let message = format!("`{}{rows}` is read after this step's rows were written", value.name);
                return Err(fault(Rule::StaleRows, span, message));
            }
            self.live = true;
            return Ok(());
        }
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
        self.live |= matches!(rows, Rows::UpTo | Rows::UpToPer(_)) && !self.wrote_all;
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
        self.hold_rows(graph, value)?;
        if let (Some(Form::Ring(rows)), false) = (self.form, self.wrote_new) {
            let message = format!("`{name}[pos-{rows} .. pos]` is read, and no step writes its rows");
            return Err(fault(Rule::ReadsUnwritten, self.span, message));
        }
        Ok(match (self.wrote_new || self.wrote_all, self.live) {
            (true, true) if self.wrote_new => Role::Carried(match self.form {
                Some(Form::Ring(_)) => Extent::Ring,
                Some(Form::Per(rate)) => Extent::Compressed { rate },
                _ => Extent::Append,
            }),
            (true, true) => Role::Carried(Extent::Recurrent),
            (true, false) => Role::Scratch,
            (false, _) if value.shape.rows() == Dim::N => Role::Input,
            (false, _) => Role::Frozen,
        })
    }

    /// Holds that a ring is addressed with all its rows, and that a tensor with a row for every so many positions has
    /// as many as `ctx` positions fill.
    fn hold_rows(&self, graph: &Graph, value: &Value) -> Result<(), ProgramError> {
        let (name, rows) = (&value.name, value.shape.fixed_rows());
        match self.form {
            Some(Form::Ring(last)) if rows != Some(last) => {
                let message = format!("`{name}` {} is addressed by its last {last} rows", value.shape);
                Err(fault(Rule::RingLength, self.span, message))
            }
            Some(Form::Per(rate)) => {
                let wanted = graph.param("ctx").map(|ctx| (ctx / rate.max(1)).max(1));
                if wanted.is_some() && wanted == rows {
                    return Ok(());
                }
                let wanted = wanted.map_or("a parameter `ctx`".into(), |rows| format!("{rows} rows"));
                let message =
                    format!("`{name}` {} has a row for every {rate} positions: wanted {wanted}", value.shape);
                Err(fault(Rule::AppendLength, self.span, message))
            }
            _ => Ok(()),
        }
    }
}

/// Holds that two programs of one layer, prefill and decode, carry the same tensors in the same order, to the same end:
/// what attention reads in one is a cache in both.
///
/// # Errors
/// [`Rule::StateMismatch`], naming the first tensor that differs.
pub fn same_state(prefill: &Graph, decode: &Graph) -> Result<(), ProgramError> {
    let describe = |c: Option<&Carried>| match c {
        Some(c) => {
            let axes: Vec<String> = c.axes.iter().map(|(n, s)| format!("{n} {s}")).collect();
            let read = if c.cache && c.extent == Extent::Ring { ", read by attention" } else { "" };
            format!("`{}` [{}] ({}{read})", c.name, axes.join(", "), c.extent)
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
