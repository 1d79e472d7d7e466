//! A call being resolved: its operands and attributes, with the errors that name what was wanted.

use crate::error::{ProgramError, Rule, Span, fault};
use crate::graph::Value;
use crate::syntax::{Attr, Named};
use crate::{Kind, Shape};

/// The largest count.
const COUNT: f64 = 4_294_967_296.0;

/// A call with its operands resolved. Attributes are taken out as they are read; what is left is unknown.
pub struct Call<'a> {
    op: &'a Named,
    operands: Vec<&'a Value>,
    attrs: Vec<(&'a Named, &'a Attr)>,
    ctx: u64,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        op: &'a Named,
        operands: Vec<&'a Value>,
        attrs: &'a [(Named, Attr)],
        ctx: u64,
    ) -> Result<Call<'a>, ProgramError> {
        for (i, (key, _)) in attrs.iter().enumerate() {
            if attrs[..i].iter().any(|(k, _)| k == key) {
                let message = format!("`{}` gives `{}` twice", op.name, key.name);
                return Err(fault(Rule::UnknownAttribute, key.span, message));
            }
        }
        Ok(Call { op, operands, attrs: attrs.iter().map(|(k, v)| (k, v)).collect(), ctx })
    }

    pub(crate) fn name(&self) -> &'a str {
        &self.op.name
    }

    pub(crate) fn span(&self) -> Span {
        self.op.span
    }

    /// Holds the operands to their kinds; the last `optional` of them may be absent.
    pub(crate) fn operands(&self, kinds: &[(&str, Kind)], optional: usize) -> Result<(), ProgramError> {
        let (least, most, found) = (kinds.len() - optional, kinds.len(), self.operands.len());
        if found < least || found > most {
            let names: Vec<&str> = kinds.iter().map(|(n, _)| *n).collect();
            let wanted = if optional > 0 { format!("{least} to {most}") } else { most.to_string() };
            let plural = if most == 1 { "operand" } else { "operands" };
            let message =
                format!("`{}` takes {wanted} {plural} ({}), found {found}", self.name(), names.join(", "));
            return Err(fault(Rule::OperandCount, self.span(), message));
        }
        for ((role, kind), value) in kinds.iter().zip(&self.operands) {
            if value.kind != *kind {
                let word = |k: Kind| if k == Kind::Index { "an index" } else { "a tensor" };
                let message = format!(
                    "`{}`: `{}` in the place of {role} is {}, wanted {}",
                    self.name(),
                    value.name,
                    word(value.kind),
                    word(*kind)
                );
                return Err(fault(Rule::OperandKind, self.span(), message));
            }
        }
        Ok(())
    }

    /// The shape of an operand that [`Call::operands`] has found present.
    pub(crate) fn shape(&self, i: usize) -> &'a Shape {
        &self.operands[i].shape
    }

    /// The shape of an optional operand.
    pub(crate) fn optional(&self, i: usize) -> Option<&'a Shape> {
        self.operands.get(i).map(|v| &v.shape)
    }

    /// How many operands there are.
    pub(crate) fn count_operands(&self) -> usize {
        self.operands.len()
    }

    /// The most positions that there are; as good as no bound where the program gives no `ctx`.
    pub(crate) fn ctx(&self) -> u64 {
        self.ctx
    }

    /// Holds a condition on shapes.
    pub(crate) fn hold(&self, condition: bool, wanted: &str) -> Result<(), ProgramError> {
        if condition {
            return Ok(());
        }
        let found: Vec<String> = self.operands.iter().map(|v| format!("`{}` {}", v.name, v.shape)).collect();
        let message = format!("`{}` wants {wanted}, found {}", self.name(), found.join(", "));
        Err(fault(Rule::ShapeMismatch, self.span(), message))
    }

    /// Holds a condition on the values of attributes.
    pub(crate) fn hold_attrs(&self, condition: bool, wanted: &str) -> Result<(), ProgramError> {
        if condition {
            return Ok(());
        }
        Err(fault(Rule::AttributeValue, self.span(), format!("`{}` wants {wanted}", self.name())))
    }

    fn take(&mut self, key: &str) -> Option<(Span, &'a Attr)> {
        let at = self.attrs.iter().position(|(k, _)| k.name == key)?;
        let (key, value) = self.attrs.remove(at);
        Some((key.span, value))
    }

    /// A number within `range`, or `None` if the attribute is not given.
    pub(crate) fn number_or(
        &mut self,
        key: &str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<Option<f64>, ProgramError> {
        match self.take(key) {
            None => Ok(None),
            Some((_, Attr::Number(v))) if range.contains(v) => Ok(Some(*v)),
            Some((span, found)) => {
                let wanted = [range.start(), range.end()].map(|bound| Attr::Number(*bound).to_string());
                let wanted = format!("a number from {} to {}", wanted[0], wanted[1]);
                let message = format!("`{}`: `{key}` wants {wanted}, found {found}", self.name());
                Err(fault(Rule::AttributeValue, span, message))
            }
        }
    }

    /// A number within `range`.
    pub(crate) fn number(
        &mut self,
        key: &str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<f64, ProgramError> {
        match self.number_or(key, range)? {
            Some(v) => Ok(v),
            None => {
                let message = format!("`{}` needs the attribute `{key}`", self.name());
                Err(fault(Rule::MissingAttribute, self.span(), message))
            }
        }
    }

    /// A whole number from 1 to 2^32.
    pub(crate) fn count(&mut self, key: &str) -> Result<u64, ProgramError> {
        let value = self.number(key, 1.0..=COUNT)?;
        self.whole(key, value)
    }

    /// A whole number from `least` to 2^32, or `None` if the attribute is not given.
    pub(crate) fn count_or(&mut self, key: &str, least: u64) -> Result<Option<u64>, ProgramError> {
        let value = self.number_or(key, least as f64..=COUNT)?;
        value.map(|value| self.whole(key, value)).transpose()
    }

    fn whole(&self, key: &str, value: f64) -> Result<u64, ProgramError> {
        if value.fract() != 0.0 {
            let message = format!("`{}`: `{key}` wants a whole number, found {value}", self.name());
            return Err(fault(Rule::AttributeValue, self.span(), message));
        }
        Ok(value as u64)
    }

    /// `yes` or `no`; `absent` if the attribute is not given.
    pub(crate) fn flag_or(&mut self, key: &str, absent: bool) -> Result<bool, ProgramError> {
        Ok(self.word_or(key, &["yes", "no"])?.map_or(absent, |word| word == "yes"))
    }

    /// Numbers within `range`, or `None` if the attribute is not given.
    pub(crate) fn list_or(
        &mut self,
        key: &str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<Option<Vec<f64>>, ProgramError> {
        match self.take(key) {
            None => Ok(None),
            Some((_, Attr::List(values))) if values.iter().all(|v| range.contains(v)) => {
                Ok(Some(values.clone()))
            }
            Some((span, found)) => {
                let wanted = [range.start(), range.end()].map(|bound| Attr::Number(*bound).to_string());
                let wanted = format!("numbers from {} to {}", wanted[0], wanted[1]);
                let message = format!("`{}`: `{key}` wants {wanted}, found {found}", self.name());
                Err(fault(Rule::AttributeValue, span, message))
            }
        }
    }

    /// One of `words`, or `None` if the attribute is not given.
    pub(crate) fn word_or(
        &mut self,
        key: &str,
        words: &[&'static str],
    ) -> Result<Option<&'static str>, ProgramError> {
        let Some((span, found)) = self.take(key) else { return Ok(None) };
        let known = words.iter().find(|w| matches!(found, Attr::Word(f) if f == *w));
        match known {
            Some(word) => Ok(Some(word)),
            None => {
                let message =
                    format!("`{}`: `{key}` is one of {}, found {found}", self.name(), words.join(", "));
                Err(fault(Rule::AttributeValue, span, message))
            }
        }
    }

    /// Holds that no attribute is left.
    pub(crate) fn finish(self) -> Result<(), ProgramError> {
        match self.attrs.first() {
            Some((key, _)) => {
                let message = format!("`{}` has no attribute `{}`", self.op.name, key.name);
                Err(fault(Rule::UnknownAttribute, key.span, message))
            }
            None => Ok(()),
        }
    }
}
