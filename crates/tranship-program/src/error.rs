//! What can be wrong with a program: one rule for each fault, with the place in the text.

use std::fmt;

/// A place in a program's text; lines and columns count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// The line.
    pub line: u32,
    /// The first column, in characters.
    pub column: u32,
}

/// A rule that a program broke. The list is the whole of what the parser and the verifier hold a program to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// The text is not of the language's form.
    Syntax,
    /// A name is defined once and is no word of the language, and a value has one name.
    DuplicateName,
    /// A name is defined before it is used.
    UnknownName,
    /// An operation is one of the language's.
    UnknownOp,
    /// An operation has as many operands as it takes.
    OperandCount,
    /// An operand is an index where an index is wanted, a tensor where a tensor is, and what a certain operation gives
    /// where nothing else will do.
    OperandKind,
    /// An index is `pos : index`, the position, or the one of shape `[n]`, a number for each row of the step.
    IndexForm,
    /// An attribute is one that the operation has, and is given once.
    UnknownAttribute,
    /// An attribute that the operation needs is given.
    MissingAttribute,
    /// An attribute's value is in its range.
    AttributeValue,
    /// Shapes agree with each other and with the attributes.
    ShapeMismatch,
    /// A declared size is not 0, and no tensor, declared or computed, has 2^63 elements or more.
    Size,
    /// Rows are of one of the forms of addressing, of a declared tensor; a tensor that is written is read by its rows,
    /// not by its name alone; and rows from before the step are joined with the step's own.
    RowRange,
    /// Only declared tensors that are no weights and no step inputs are written.
    NotWritable,
    /// Rows are written before they are read in the same step.
    ReadsUnwritten,
    /// Rows that were read are used before they are written, so that no read has to copy.
    StaleRows,
    /// Rows are written once in a step.
    WrittenTwice,
    /// A tensor with rows at the position has one for each position of `ctx`, or for every so many.
    AppendLength,
    /// A tensor that holds the last rows before the position is addressed with all of them.
    RingLength,
    /// A tensor is addressed in one form, so that its valid rows are a function of the position.
    MixedExtent,
    /// An operation that advances a state is written as `y, s[..] = op(s[..], …)`, and no other one is.
    UpdateForm,
    /// What is declared or computed is used.
    Unused,
    /// A program ends in one `return`, of a computed tensor `[n, width]`.
    Return,
    /// Prefill and decode of one layer carry the same tensors.
    StateMismatch,
}

impl Rule {
    /// All rules, in declaration order.
    pub const ALL: [Rule; 24] = {
        use Rule::*;
        [
            Syntax,
            DuplicateName,
            UnknownName,
            UnknownOp,
            OperandCount,
            OperandKind,
            IndexForm,
            UnknownAttribute,
            MissingAttribute,
            AttributeValue,
            ShapeMismatch,
            Size,
            RowRange,
            NotWritable,
            ReadsUnwritten,
            StaleRows,
            WrittenTwice,
            AppendLength,
            RingLength,
            MixedExtent,
            UpdateForm,
            Unused,
            Return,
            StateMismatch,
        ]
    };

    /// The rule's name in messages: `shape-mismatch`.
    pub fn name(self) -> String {
        let mut name = String::new();
        for c in format!("{self:?}").chars() {
            if c.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(c.to_ascii_lowercase());
        }
        name
    }
}

/// A program that is refused: which rule, where, and what was wanted and found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ProgramError {
    /// The rule that was broken.
    pub rule: Rule,
    /// Where, if the fault has one place.
    pub span: Span,
    /// What was wanted and what was there, as a sentence without its stop.
    pub message: String,
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { line, column } = self.span;
        if line > 0 {
            write!(f, "line {line}, column {column}: ")?;
        }
        write!(f, "{}: {}", self.rule.name(), self.message)
    }
}

/// Builds the error of a rule at a place.
pub(crate) fn fault(rule: Rule, span: Span, message: impl Into<String>) -> ProgramError {
    ProgramError { rule, span, message: message.into() }
}
