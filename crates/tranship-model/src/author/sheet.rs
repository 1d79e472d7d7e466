//! The sheet that author functions write on: declarations and statements apart, so that each part can add to both.

use super::Cut;
use crate::{ModelError, ModelSpec, Part};
use std::fmt::Display;

/// A program being written.
pub(super) struct Sheet<'a> {
    spec: &'a ModelSpec,
    layer: usize,
    declarations: Vec<String>,
    weights: Vec<String>,
    statements: Vec<String>,
}

impl<'a> Sheet<'a> {
    pub fn new(spec: &'a ModelSpec, layer: usize) -> Sheet<'a> {
        Sheet { spec, layer, declarations: Vec::new(), weights: Vec::new(), statements: Vec::new() }
    }

    /// The width of the rows that a part takes and gives.
    pub fn hidden(&self) -> u64 {
        self.spec.hidden
    }

    /// Declares a tensor or an index that is no weight.
    pub fn declare(&mut self, declaration: impl Display, comment: &str) {
        self.declarations.push(format!("{declaration}  # {comment}"));
    }

    /// Declares a part's weight as `name`.
    pub fn weight(&mut self, name: &str, shape: &[u64], part: Part) -> Result<(), ModelError> {
        let weight = self.spec.names.weight(part, self.layer)?;
        self.weights.push(format!("{name} : {shape:?} @ {weight:?}"));
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
        let weight = self.spec.names.bias(part, self.layer)?;
        self.weights.push(format!("{bias} : [{}] @ {weight:?}", shape[0]));
        Ok(format!("linear({x}, {name}, {bias})"))
    }

    /// Declares a gain over the hidden width as `name`; gives the expression that normalizes `x` with it.
    pub fn norm(&mut self, x: &str, name: &str, part: Part) -> Result<String, ModelError> {
        self.weight(name, &[self.spec.hidden], part)?;
        Ok(format!("rms_norm({x}, {name}, eps: {})", self.spec.norm_eps))
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
