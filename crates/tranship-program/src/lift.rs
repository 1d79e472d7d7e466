//! Lifting: names resolved, nested expressions made flat, every rule held. This pass is the verifier; its
//! invariants are the list of [`Rule`]s.

use crate::error::{ProgramError, Rule, Span, fault};
use crate::graph::{Action, Graph, Node, Origin, Rows, Value, ValueId};
use crate::ops::{Call, Op};
use crate::syntax::{Bound, Decl, Expr, Item, Named, Program, Range};
use crate::{Dim, Kind, Roles, Shape, operands};
use std::collections::HashMap;

impl Program {
    /// Checks the program against every rule and gives its flat graph.
    ///
    /// # Errors
    /// The first rule that is broken: of single statements in the order of the text, then of the whole.
    pub fn lift(&self) -> Result<Graph, ProgramError> {
        let ctx = self.param("ctx");
        let mut lift =
            Lift { ctx: ctx.unwrap_or(1).max(1), positions: ctx.unwrap_or(u64::MAX), ..Lift::default() };
        let mut result = None;
        for item in self.lines.iter().filter_map(|l| l.item.as_ref()) {
            if let Some((span, _)) = result {
                return Err(fault(
                    Rule::Return,
                    span,
                    "`return` is the program's last statement, but more follows",
                ));
            }
            result = lift.item(item)?.or(result);
        }
        let (_, result) = result
            .ok_or_else(|| fault(Rule::Return, Span::default(), "the program ends without a `return`"))?;
        lift.written_are_read_by_rows()?;
        lift.all_used(result)?;
        let mut graph = Graph {
            name: self.name.clone(),
            params: self.params.clone(),
            values: lift.values,
            nodes: lift.nodes,
            result,
            roles: Roles::default(),
        };
        graph.roles = Roles::derive(&graph)?;
        Ok(graph)
    }
}

#[derive(Default)]
struct Lift {
    values: Vec<Value>,
    spans: Vec<Span>,
    nodes: Vec<Node>,
    names: HashMap<String, ValueId>,
    /// Operands given by name alone.
    bare: Vec<(ValueId, Span)>,
    /// The most rows that a symbolic size stands for, as far as the program says.
    ctx: u64,
    /// The most positions that there are.
    positions: u64,
    /// The statement being lifted, and how many inner values it has had.
    target: (String, u32),
}

impl Lift {
    fn item(&mut self, item: &Item) -> Result<Option<(Span, ValueId)>, ProgramError> {
        match item {
            Item::Decls(decls) => {
                for decl in decls {
                    self.declare(decl)?;
                }
                Ok(None)
            }
            Item::Let(name, value) => {
                self.result_name(name)?;
                if let Expr::Name(other) = value {
                    let message = format!("`{}` would be a second name of `{}`", name.name, other.name);
                    return Err(fault(Rule::DuplicateName, name.span, message));
                }
                self.target = (name.name.clone(), 0);
                let id = self.expr(value)?;
                self.values[id.0].name = name.name.clone();
                self.spans[id.0] = name.span;
                self.names.insert(name.name.clone(), id);
                Ok(None)
            }
            Item::Write(name, range, value) => {
                self.target = (name.name.clone(), 0);
                let value = self.expr(value)?;
                self.write(name, range, value)?;
                Ok(None)
            }
            Item::Update(name, state, range, value) => {
                self.result_name(name)?;
                self.target = (name.name.clone(), 0);
                let id = self.update(state, range, value)?;
                self.values[id.0].name = name.name.clone();
                self.spans[id.0] = name.span;
                self.names.insert(name.name.clone(), id);
                Ok(None)
            }
            Item::Return(span, value) => {
                self.target = ("return".into(), 0);
                let id = self.expr(value)?;
                let found = &self.values[id.0];
                let rows = found.shape.rows() == Dim::N && found.shape.0.len() >= 2;
                if found.origin != Origin::Computed || found.kind != Kind::Float || !rows {
                    let index = if found.kind == Kind::Index { "the index " } else { "" };
                    let message = format!(
                        "wanted a computed tensor [n, width], found {index}`{}` {}",
                        found.name, found.shape
                    );
                    return Err(fault(Rule::Return, *span, message));
                }
                Ok(Some((*span, id)))
            }
        }
    }

    fn fresh(&self, name: &Named) -> Result<(), ProgramError> {
        if name.name == "n" || name.name == "index" || name.name == "return" {
            let message = format!("`{}` is a word of the language", name.name);
            return Err(fault(Rule::DuplicateName, name.span, message));
        }
        match self.names.get(&name.name) {
            Some(_) => {
                Err(fault(Rule::DuplicateName, name.span, format!("`{}` is defined already", name.name)))
            }
            None => Ok(()),
        }
    }

    /// Holds that a name may be given to a result.
    fn result_name(&self, name: &Named) -> Result<(), ProgramError> {
        self.fresh(name)?;
        if name.name == "pos" { Err(position(name)) } else { Ok(()) }
    }

    fn declare(&mut self, decl: &Decl) -> Result<(), ProgramError> {
        self.fresh(&decl.name)?;
        let name = &decl.name.name;
        if decl.kind == Kind::Float && decl.axes.is_empty() {
            return Err(fault(Rule::Size, decl.name.span, format!("`{name}` has no axes")));
        }
        for (i, axis) in decl.axes.iter().enumerate() {
            let fixed = matches!(axis.size, Dim::Fixed(_));
            if !fixed && (i > 0 || decl.weight.is_some() || axis.size == Dim::PosN) {
                let message = format!("`{name}`: only the first axis of an unbound tensor may be `n`");
                return Err(fault(Rule::Size, decl.name.span, message));
            }
        }
        let shape = Shape(decl.axes.clone());
        if shape.elements(self.ctx).is_none_or(|elements| elements == 0) {
            let message = format!("`{name}` {shape} is empty or has 2^63 elements or more");
            return Err(fault(Rule::Size, decl.name.span, message));
        }
        if decl.kind == Kind::Index && decl.weight.is_some() {
            return Err(fault(Rule::OperandKind, decl.name.span, format!("`{name}`: an index is no weight")));
        }
        self.index_form(&decl.name, decl.kind, &shape)?;
        let origin = decl.weight.clone().map_or(Origin::Declared, Origin::Weight);
        let id = self.value(name.clone(), decl.kind, shape, origin, decl.name.span);
        self.names.insert(name.clone(), id);
        Ok(())
    }

    /// An index is the position, or the one of the step's rows.
    fn index_form(&self, name: &Named, kind: Kind, shape: &Shape) -> Result<(), ProgramError> {
        let scalar = kind == Kind::Index && shape.0.is_empty();
        if name.name == "pos" {
            return if scalar { Ok(()) } else { Err(position(name)) };
        }
        if kind != Kind::Index {
            return Ok(());
        }
        let refused = |message: String| Err(fault(Rule::IndexForm, name.span, message));
        if shape.0.len() != 1 || shape.rows() != Dim::N {
            return refused(format!("`{}`: an index is `pos`, the position, or has the axis [n]", name.name));
        }
        let declared = |v: &&Value| v.origin == Origin::Declared && v.kind == Kind::Index;
        match self.values.iter().filter(declared).find(|v| !v.shape.0.is_empty()) {
            Some(first) => {
                refused(format!("`{}`: a step has one index [n], and it is `{}`", name.name, first.name))
            }
            None => Ok(()),
        }
    }

    fn value(&mut self, name: String, kind: Kind, shape: Shape, origin: Origin, span: Span) -> ValueId {
        self.values.push(Value { name, kind, shape, origin });
        self.spans.push(span);
        ValueId(self.values.len() - 1)
    }

    fn computed(&mut self, kind: Kind, shape: Shape, span: Span) -> Result<ValueId, ProgramError> {
        if shape.elements(self.ctx).is_none() {
            let message = format!("the result {shape} has 2^63 elements or more");
            return Err(fault(Rule::Size, span, message));
        }
        self.target.1 += 1;
        let name = format!("{}.{}", self.target.0, self.target.1);
        Ok(self.value(name, kind, shape, Origin::Computed, span))
    }

    fn find(&self, name: &Named) -> Result<ValueId, ProgramError> {
        let unknown = || {
            fault(Rule::UnknownName, name.span, format!("`{}` is not defined before this line", name.name))
        };
        self.names.get(&name.name).copied().ok_or_else(unknown)
    }

    fn expr(&mut self, expr: &Expr) -> Result<ValueId, ProgramError> {
        match expr {
            Expr::Name(name) => {
                let id = self.find(name)?;
                self.bare.push((id, name.span));
                Ok(id)
            }
            Expr::Rows(name, range) => {
                let tensor = self.find(name)?;
                let rows = self.rows(name, tensor, range)?;
                let shape = match rows {
                    Rows::All => self.values[tensor.0].shape.clone(),
                    Rows::UpTo => self.values[tensor.0].shape.with_rows(Dim::PosN),
                    Rows::New => self.values[tensor.0].shape.with_rows(Dim::N),
                    Rows::Before(before) => self.values[tensor.0].shape.with_rows(Dim::Fixed(before)),
                    Rows::UpToPer(rate) => self.values[tensor.0].shape.with_rows(Dim::Per(rate)),
                    Rows::Last(_) | Rows::NewPer(_) => {
                        let message = format!("`{}{rows}` is written, and never read", name.name);
                        return Err(fault(Rule::RowRange, name.span, message));
                    }
                };
                let out = self.computed(Kind::Float, shape, name.span)?;
                self.nodes.push(Node { action: Action::Read { tensor, rows, out }, span: name.span });
                Ok(out)
            }
            Expr::Call(op, args, attrs) => {
                let ids = args.iter().map(|a| self.expr(a)).collect::<Result<Vec<_>, _>>()?;
                let operands = ids.iter().map(|id| &self.values[id.0]).collect();
                let (lifted, shape) = Op::lift(Call::new(op, operands, attrs, self.positions)?)?;
                if lifted.updates() {
                    let message =
                        format!("`{0}` advances a state: write `y, s[..] = {0}(s[..], …)`", op.name);
                    return Err(fault(Rule::UpdateForm, op.span, message));
                }
                operands::hold(&self.values, &self.nodes, (&lifted, op), &ids)?;
                let out = self.computed(lifted.kind(), shape, op.span)?;
                self.nodes.push(Node { action: Action::Apply { op: lifted, args: ids, out }, span: op.span });
                Ok(out)
            }
        }
    }

    /// A statement `y, s[..] = op(s[..], …)`.
    fn update(&mut self, state: &Named, range: &Range, value: &Expr) -> Result<ValueId, ProgramError> {
        let refused = |message: String| Err(fault(Rule::UpdateForm, state.span, message));
        let Expr::Call(op, args, attrs) = value else {
            return refused(format!("`{}` is advanced by an operation, found `{value}`", state.name));
        };
        let own = |arg: &&Expr| matches!(arg, Expr::Rows(name, rows) if name == state && rows == range);
        let Some(_) = args.first().filter(own) else {
            return refused(format!("`{}` takes `{}{range}` first, for it advances it", op.name, state.name));
        };
        let tensor = self.find(state)?;
        if self.rows(state, tensor, range)? != Rows::All {
            return refused(format!("`{}` is advanced as a whole, as `{}[..]`", state.name, state.name));
        }
        if self.values[tensor.0].shape.fixed_rows().is_none() {
            let message = format!("`{}` is a step input, and is not written", state.name);
            return Err(fault(Rule::NotWritable, state.span, message));
        }
        let ids = args[1..].iter().map(|a| self.expr(a)).collect::<Result<Vec<_>, _>>()?;
        let operands = [tensor].iter().chain(&ids).map(|id| &self.values[id.0]).collect();
        let (lifted, shape) = Op::lift(Call::new(op, operands, attrs, self.positions)?)?;
        if !lifted.updates() {
            return refused(format!("`{}` advances no state", op.name));
        }
        operands::hold(&self.values, &self.nodes, (&lifted, op), &ids)?;
        let out = self.computed(Kind::Float, shape, op.span)?;
        self.nodes
            .push(Node { action: Action::Update { op: lifted, tensor, args: ids, out }, span: op.span });
        Ok(out)
    }

    /// The form of a row range, if it is one of the language's.
    fn rows(&self, name: &Named, tensor: ValueId, range: &Range) -> Result<Rows, ProgramError> {
        let value = &self.values[tensor.0];
        if value.origin != Origin::Declared || value.kind != Kind::Float {
            let what = match (value.kind, &value.origin) {
                (Kind::Index, _) => "an index",
                (_, Origin::Weight(_)) => "a weight",
                _ => "a computed value",
            };
            let message =
                format!("`{}` is {what}, and only declared tensors have rows to address", name.name);
            return Err(fault(Rule::RowRange, name.span, message));
        }
        let Some(rows) = form(range) else {
            let message = format!(
                "wanted [..], [.. pos+n], [pos .. pos+n], [pos-K .. pos], [pos+n-K .. pos+n], [.. (pos+n)/R] or [pos/R \
                 .. (pos+n)/R] of `{}`, found {range}",
                name.name
            );
            return Err(fault(Rule::RowRange, name.span, message));
        };
        if rows == Rows::All {
            return Ok(rows);
        }
        if !self.names.contains_key("pos") {
            let message = format!("`{}{range}` needs a declaration `pos : index`", name.name);
            return Err(fault(Rule::RowRange, name.span, message));
        }
        if value.shape.fixed_rows().is_none() {
            let message =
                format!("`{}` {} has the step's rows alone, so none at `pos`", name.name, value.shape);
            return Err(fault(Rule::RowRange, name.span, message));
        }
        Ok(rows)
    }

    fn write(&mut self, name: &Named, range: &Range, value: ValueId) -> Result<(), ProgramError> {
        let tensor = self.find(name)?;
        let (target, source) = (&self.values[tensor.0], &self.values[value.0]);
        match target.origin {
            Origin::Weight(_) => {
                let message = format!("`{}` is a weight, and weights are not written", name.name);
                return Err(fault(Rule::NotWritable, name.span, message));
            }
            Origin::Computed => {
                let message =
                    format!("`{}` is a computed value, and only declared tensors are written", name.name);
                return Err(fault(Rule::NotWritable, name.span, message));
            }
            Origin::Declared => {}
        }
        let rows = self.rows(name, tensor, range)?;
        if matches!(rows, Rows::UpTo | Rows::Before(_) | Rows::UpToPer(_)) {
            let message = format!("`{}{rows}` would rewrite rows of earlier steps", name.name);
            return Err(fault(Rule::RowRange, name.span, message));
        }
        if source.kind != Kind::Float {
            let message = format!("`{}` holds numbers, and an index is written to it", name.name);
            return Err(fault(Rule::OperandKind, name.span, message));
        }
        let wanted_rows = if rows == Rows::All { target.shape.rows() } else { Dim::N };
        if source.shape.rows() != wanted_rows || source.shape.cols() != target.shape.cols() {
            let wanted = format!("{wanted_rows} rows of {} elements", target.shape.cols());
            let message = format!("`{}{rows}` takes {wanted}, found {}", name.name, source.shape);
            return Err(fault(Rule::ShapeMismatch, name.span, message));
        }
        operands::before_the_step(&self.values, &self.nodes, value, name)?;
        self.nodes.push(Node { action: Action::Write { tensor, rows, value }, span: name.span });
        Ok(())
    }

    /// What is written is read by its rows alone: then operands are values that do not change, and only reads and
    /// writes of rows touch memory.
    fn written_are_read_by_rows(&self) -> Result<(), ProgramError> {
        let mut written = vec![false; self.values.len()];
        for node in &self.nodes {
            if let Action::Write { tensor, .. } | Action::Update { tensor, .. } = node.action {
                written[tensor.0] = true;
            }
        }
        match self.bare.iter().find(|(id, _)| written[id.0]) {
            Some((id, span)) => {
                let name = &self.values[id.0].name;
                let message = format!("`{name}` is written in this program: read its rows, as `{name}[..]`");
                Err(fault(Rule::RowRange, *span, message))
            }
            None => Ok(()),
        }
    }

    /// Every value is read by something, or is the result; `pos` is read by every row range.
    fn all_used(&self, result: ValueId) -> Result<(), ProgramError> {
        let mut used = vec![false; self.values.len()];
        used[result.0] = true;
        for node in &self.nodes {
            for id in node.action.inputs() {
                used[id.0] = true;
            }
            let (Action::Read { rows, .. } | Action::Write { rows, .. }) = node.action else { continue };
            if let (true, Some(pos)) = (rows.positional(), self.names.get("pos")) {
                used[pos.0] = true;
            }
        }
        match used.iter().position(|u| !u) {
            Some(i) => {
                let message = format!("`{}` is never read", self.values[i].name);
                Err(fault(Rule::Unused, self.spans[i], message))
            }
            None => Ok(()),
        }
    }
}

/// The rows that a range means.
fn form(range: &Range) -> Option<Rows> {
    let pos = Bound { pos: true, ..Bound::default() };
    let end = Bound { n: true, ..pos };
    let per = |bound: Bound, rate| Bound { per: Some(rate), ..bound };
    if range.from.or(range.to).is_some_and(|bound| bound.per == Some(0)) {
        return None; // no text says so, but a tree made by hand may
    }
    Some(match (range.from, range.to) {
        (None, None) => Rows::All,
        (None, Some(to)) if to == end => Rows::UpTo,
        (Some(from), Some(to)) if from == pos && to == end => Rows::New,
        (Some(from @ Bound { back: Some(rows), .. }), Some(to)) if to == pos => {
            if from != (Bound { back: Some(rows), ..pos }) {
                return None;
            }
            Rows::Before(rows)
        }
        (Some(from @ Bound { back: Some(rows), .. }), Some(to)) if to == end => {
            if from != (Bound { back: Some(rows), ..end }) {
                return None;
            }
            Rows::Last(rows)
        }
        (None, Some(to @ Bound { per: Some(rate), .. })) if to == per(end, rate) => Rows::UpToPer(rate),
        (Some(from), Some(to @ Bound { per: Some(rate), .. }))
            if to == per(end, rate) && from == per(pos, rate) =>
        {
            Rows::NewPer(rate)
        }
        _ => return None,
    })
}

fn position(name: &Named) -> ProgramError {
    fault(Rule::IndexForm, name.span, "`pos` is the position, and is declared as `pos : index`")
}
