//! The syntax tree as text: two spaces of indent, one space around signs, numbers in their shortest exact form.

use crate::syntax::{Attr, Bound, Decl, Expr, Item, Line, Program, Range};
use crate::{Kind, Shape};
use std::fmt;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {}", self.name)?;
        for (key, value) in &self.params {
            write!(f, " {key}={value}")?;
        }
        comment(f, &self.comment, true)?;
        writeln!(f)?;
        let width = self.lines.iter().filter_map(first_name).map(str::len).max().unwrap_or(0);
        for line in &self.lines {
            if let Some(item) = &line.item {
                f.write_str("  ")?;
                print_item(f, item, width)?;
            }
            if line.item.is_none() && line.comment.is_some() {
                f.write_str("  ")?;
            }
            comment(f, &line.comment, line.item.is_some())?;
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The declared name that a line starts with: declarations are aligned to the longest.
fn first_name(line: &Line) -> Option<&str> {
    match &line.item {
        Some(Item::Decls(decls)) => decls.first().map(|d| d.name.name.as_str()),
        _ => None,
    }
}

fn comment(f: &mut fmt::Formatter<'_>, text: &Option<String>, after: bool) -> fmt::Result {
    let space = if after { "  " } else { "" };
    match text {
        Some(text) if text.is_empty() => write!(f, "{space}#"),
        Some(text) => write!(f, "{space}# {text}"),
        None => Ok(()),
    }
}

fn print_item(f: &mut fmt::Formatter<'_>, item: &Item, width: usize) -> fmt::Result {
    match item {
        Item::Decls(decls) => {
            for (i, decl) in decls.iter().enumerate() {
                if i > 0 {
                    f.write_str("   ")?;
                }
                print_decl(f, decl, if i == 0 { width } else { 0 })?;
            }
            Ok(())
        }
        Item::Let(name, value) => write!(f, "{} = {value}", name.name),
        Item::Write(name, range, value) => write!(f, "{}{range} = {value}", name.name),
        Item::Update(name, state, range, value) => {
            write!(f, "{}, {}{range} = {value}", name.name, state.name)
        }
        Item::Return(_, value) => write!(f, "return {value}"),
    }
}

fn print_decl(f: &mut fmt::Formatter<'_>, decl: &Decl, width: usize) -> fmt::Result {
    write!(f, "{:width$} : ", decl.name.name)?;
    match (decl.kind, decl.axes.is_empty()) {
        (Kind::Index, true) => f.write_str("index")?,
        (Kind::Index, false) => write!(f, "index {}", Shape(decl.axes.clone()))?,
        (Kind::Float, _) => write!(f, "{}", Shape(decl.axes.clone()))?,
    }
    match &decl.weight {
        Some(weight) => write!(f, " @ {}", quoted(weight)),
        None => Ok(()),
    }
}

/// A text in quotes, as the lexer reads it and as DOT does.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Name(name) => f.write_str(&name.name),
            Expr::Rows(name, range) => write!(f, "{}{range}", name.name),
            Expr::Call(op, args, attrs)
                if attrs.is_empty() && args.len() == 2 && infix(&op.name).is_some() =>
            {
                let (sign, level) = infix(&op.name).unwrap_or(("+", 0));
                side(f, &args[0], level)?;
                write!(f, " {sign} ")?;
                side(f, &args[1], level + 1)
            }
            Expr::Call(op, args, attrs) => {
                write!(f, "{}(", op.name)?;
                let mut comma = "";
                for arg in args {
                    write!(f, "{comma}{arg}")?;
                    comma = ", ";
                }
                for (key, value) in attrs {
                    write!(f, "{comma}{}: {value}", key.name)?;
                    comma = ", ";
                }
                f.write_str(")")
            }
        }
    }
}

/// The sign of an operation that is written between its operands, and how tightly it binds.
fn infix(op: &str) -> Option<(&'static str, u8)> {
    match op {
        "add" => Some(("+", 0)),
        "mul" => Some(("*", 1)),
        _ => None,
    }
}

/// An operand, in parentheses where it binds less tightly than its place asks.
fn side(f: &mut fmt::Formatter<'_>, operand: &Expr, level: u8) -> fmt::Result {
    let loose = match operand {
        Expr::Call(op, args, attrs) if args.len() == 2 && attrs.is_empty() => infix(&op.name),
        _ => None,
    };
    match loose {
        Some((_, own)) if own < level => write!(f, "({operand})"),
        _ => write!(f, "{operand}"),
    }
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Word(word) => f.write_str(word),
            Attr::Number(value) => f.write_str(&number(*value)),
            Attr::List(values) => {
                let values: Vec<String> = values.iter().map(|v| number(*v)).collect();
                write!(f, "[{}]", values.join(", "))
            }
        }
    }
}

/// The shorter of a number's two exact forms.
fn number(value: f64) -> String {
    let (plain, exponent) = (format!("{value}"), format!("{value:e}"));
    if plain.len() <= exponent.len().max(5) { plain } else { exponent }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.from, &self.to) {
            (None, None) => f.write_str("[..]"),
            (None, Some(to)) => write!(f, "[.. {to}]"),
            (Some(from), None) => write!(f, "[{from} ..]"),
            (Some(from), Some(to)) => write!(f, "[{from} .. {to}]"),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut terms = Vec::new();
        if self.pos {
            terms.push("pos".to_owned());
        }
        if self.n {
            terms.push("n".to_owned());
        }
        if self.offset > 0 || terms.is_empty() {
            terms.push(self.offset.to_string());
        }
        let mut sum = terms.join("+");
        if let Some(back) = self.back {
            sum = format!("{sum}-{back}");
        }
        match self.per {
            Some(per) if terms.len() > 1 || self.back.is_some() => write!(f, "({sum})/{per}"),
            Some(per) => write!(f, "{sum}/{per}"),
            None => f.write_str(&sum),
        }
    }
}
