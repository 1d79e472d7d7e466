//! The sheet that author functions write on: declarations and statements apart, so that each part can add to both.

use super::Cut;
use crate::{HyperConnections, ModelError, ModelSpec, Part, RopeSpec};
use std::fmt::Display;
use tranship_program::Op;
use tranship_program::ops::Rope;

/// A program being written.
pub(super) struct Sheet<'a> {
    spec: &'a ModelSpec,
    layer: usize,
    ctx: u64,
    declarations: Vec<String>,
    weights: Vec<String>,
    statements: Vec<String>,
}

/// Where within a head elements are rotated, and to which position.
#[derive(Clone, Copy, Default)]
pub(super) struct Turn {
    /// Elements before the rotated ones.
    pub skip: u64,
    /// Positions that a row stands before its own.
    pub back: u64,
    /// Whether elements are turned back.
    pub inverse: bool,
}

impl<'a> Sheet<'a> {
    pub fn new(spec: &'a ModelSpec, layer: usize, ctx: u64) -> Sheet<'a> {
        let (declarations, weights, statements) = (Vec::new(), Vec::new(), Vec::new());
        Sheet { spec, layer, ctx, declarations, weights, statements }
    }

    /// The width of the rows that a part takes and gives.
    pub fn hidden(&self) -> u64 {
        self.spec.hidden
    }

    /// Added to the mean square in normalizations of the hidden width and of attention heads.
    pub fn eps(&self) -> f64 {
        self.spec.norm_eps
    }

    /// The width of a whole row, all streams together.
    pub fn row(&self) -> u64 {
        self.spec.hidden.saturating_mul(self.spec.streams)
    }

    /// Residual streams.
    pub fn streams(&self) -> u64 {
        self.spec.streams
    }

    /// How streams are mixed, where there are several.
    pub fn hyper(&self) -> Option<HyperConnections> {
        self.spec.hyper
    }

    /// The layer's number.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> u64 {
        self.spec.vocab
    }

    /// Rows of caches that have one for each position.
    pub fn ctx(&self) -> u64 {
        self.ctx
    }

    /// A name with the layer's number after it: what is carried is named so.
    pub fn own(&self, name: &str) -> String {
        format!("{name}{}", self.layer)
    }

    /// Declares a tensor or an index that is no weight, once.
    pub fn declare(&mut self, declaration: impl Display, comment: &str) {
        let line = format!("{declaration}  # {comment}");
        if !self.declarations.contains(&line) {
            self.declarations.push(line);
        }
    }

    /// Declares the position.
    pub fn position(&mut self) {
        self.declare("pos : index", "rows already in the caches");
    }

    /// Declares a carried tensor with its axes, the first of `rows`; gives its name.
    pub fn carry(&mut self, name: &str, axes: &[(&str, u64)], comment: &str) -> String {
        let name = self.own(name);
        let axes: Vec<String> = axes.iter().map(|(axis, size)| format!("{axis} {size}")).collect();
        self.declare(format!("{name} : [{}]", axes.join(", ")), comment);
        name
    }

    /// Joins rows of the step with the last `rows` before it, and has those rows of `ring` kept: what convolutions and
    /// compression read. Gives the joined value's name.
    pub fn window(&mut self, ring: &str, axes: &[(&str, u64)], new: &str, comment: &str) -> String {
        let rows = axes.first().map_or(0, |(_, rows)| *rows);
        let name = self.carry(ring, axes, comment);
        self.position();
        let joined = format!("{ring}_w");
        self.say(format!("{joined} = join({name}[pos-{rows} .. pos], {new})"));
        joined
    }

    /// Keeps rows of the step as the last of a ring.
    pub fn keep(&mut self, ring: &str, rows: u64, new: &str) {
        let name = self.own(ring);
        self.say(format!("{name}[pos+n-{rows} .. pos+n] = {new}"));
    }

    /// Declares a part's weight as `name`.
    pub fn weight(&mut self, name: &str, shape: &[u64], part: Part) -> Result<(), ModelError> {
        let weight = self.spec.names.weight(part, self.layer)?;
        self.weights.push(format!("{name} : {shape:?} @ {weight:?}"));
        Ok(())
    }

    /// Declares a part's bias `[width]` as `name`.
    pub fn bias(&mut self, name: &str, width: u64, part: Part) -> Result<(), ModelError> {
        let weight = self.spec.names.bias(part, self.layer)?;
        self.weights.push(format!("{name} : [{width}] @ {weight:?}"));
        Ok(())
    }

    /// Declares a projection's matrix `[out, in]` as `name`, and its bias under a name of its own where it has one;
    /// gives the expression that applies it to `x`.
    pub fn linear(
        &mut self,
        x: &str,
        name: &str,
        part: Part,
        shape: [u64; 2],
        bias: Option<&str>,
    ) -> Result<String, ModelError> {
        self.weight(name, &shape, part)?;
        let Some(bias) = bias else { return Ok(format!("linear({x}, {name})")) };
        self.bias(bias, shape[0], part)?;
        Ok(format!("linear({x}, {name}, {bias})"))
    }

    /// Declares a gain over the hidden width as `name`; gives the expression that normalizes `x` with it.
    pub fn norm(&mut self, x: &str, name: &str, part: Part) -> Result<String, ModelError> {
        self.weight(name, &[self.spec.hidden], part)?;
        Ok(format!("rms_norm({x}, {name}, eps: {}{})", self.spec.norm_eps, self.offset()))
    }

    /// The attribute of gains that are given by their distance from 1.
    pub fn offset(&self) -> String {
        let offset = self.spec.gain_offset;
        if offset == 0.0 { String::new() } else { format!(", offset: {offset}") }
    }

    /// The expression that turns `x` by its position.
    pub fn rope(&mut self, x: &str, heads: u64, rope: &RopeSpec, turn: Turn) -> Result<String, ModelError> {
        self.position();
        let mut operands = "pos".to_owned();
        if rope.divisors {
            if !self.weights.iter().any(|w| w.starts_with("divisors :")) {
                self.weight("divisors", &[rope.dims / 2], Part::RopeDivisors)?;
            }
            operands += ", divisors";
        }
        let Turn { skip, back, inverse } = turn;
        let (dims, theta, style) = (rope.dims, rope.theta, rope.style);
        let scaling = rope.scaling_at(self.ctx).clone();
        let op = Op::Rope(Rope { heads, dims, theta, style, scaling, skip, back, inverse });
        Ok(format!("rope({x}, {operands}, {})", attrs(&op)))
    }

    /// Gives an expression a name, if it is none itself.
    pub fn bind(&mut self, name: &str, expression: &str) -> String {
        if expression.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return expression.to_owned();
        }
        self.say(format!("{name} = {expression}"));
        name.to_owned()
    }

    /// Writes a statement.
    pub fn say(&mut self, statement: impl Into<String>) {
        self.statements.push(statement.into());
    }

    /// Starts a part: an empty line, and what the part is.
    pub fn title(&mut self, comment: impl Display) {
        self.statements.push(String::new());
        self.statements.push(format!("# {comment}"));
    }

    /// The whole text.
    pub fn text(self, cut: Cut) -> String {
        let mut lines = vec![format!("program {cut}")];
        lines.extend(self.declarations.into_iter().chain(self.weights).chain(self.statements));
        lines.join("\n")
    }
}

/// An operation's attributes as text.
pub(super) fn attrs(op: &Op) -> String {
    let attrs: Vec<String> = op.attrs().iter().map(|(key, value)| format!("{key}: {value}")).collect();
    attrs.join(", ")
}

/// The expression, multiplied by a number that is not 1.
pub(super) fn scaled(expression: String, by: f64) -> String {
    if by == 1.0 { expression } else { format!("scale({expression}, by: {by})") }
}
