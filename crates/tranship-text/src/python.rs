//! Values written as Python writes them: `str` and `repr` for what a template prints, `json.dumps` for `tojson`.
//!
//! Chat templates were written against Python's Jinja and a model has seen exactly those characters, so `True`, `None`,
//! `1.0`, the space after a comma and the order of keys all matter.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

/// How deep lists and maps may lie in each other.
const DEPTH_MAX: usize = 64;

/// `json.dumps` with these arguments.
#[derive(Debug, Clone, Default)]
pub(crate) struct Json {
    pub indent: Option<usize>,
    pub sort_keys: bool,
    pub ascii: bool,
    /// Between items, and between a key and its value; Python's own where absent.
    pub separators: Option<(String, String)>,
}

enum Style<'a> {
    Repr,
    Json(&'a Json),
}

/// What Python's `json.loads` makes of it.
pub(crate) fn from_json(json: &serde_json::Value) -> Value {
    use serde_json::Value as J;
    match json {
        J::Null => Value::from(()),
        J::Bool(b) => Value::from(*b),
        J::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (None, Some(u)) => Value::from(u),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        J::String(s) => Value::from(s.as_str()),
        J::Array(items) => Value::from(items.iter().map(from_json).collect::<Vec<_>>()),
        J::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), from_json(v)))),
    }
}

/// `str(value)`: what `{{ value }}` prints.
pub(crate) fn str_of(state: &State, value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => write_all(state, value, &Style::Repr),
    }
}

/// `json.dumps(value, …)`.
pub(crate) fn json_of(state: &State, value: &Value, json: &Json) -> Result<String, Error> {
    write_all(state, value, &Style::Json(json))
}

fn write_all(state: &State, value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    Writer { state, style }.write(value, 0, &mut out)?;
    Ok(out)
}

/// Writes values and pays for them from the template's bound of work: a short template can make a list that is longer than
/// memory, for it is not made until someone goes through it.
struct Writer<'a, 's> {
    state: &'a State<'s, 's>,
    style: &'a Style<'a>,
}

impl Writer<'_, '_> {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            let message = format!("value is more than {DEPTH_MAX} levels deep");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        self.pay(0)?;
        let json = matches!(self.style, Style::Json(_));
        match value.kind() {
            ValueKind::None => out.push_str(if json { "null" } else { "None" }),
            ValueKind::Bool => out.push_str(match (value.is_true(), json) {
                (true, true) => "true",
                (true, false) => "True",
                (false, true) => "false",
                (false, false) => "False",
            }),
            ValueKind::Number => number(value, json, out),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out)?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items = self.items(value)?;
                let (open, close) = match (!json && value.is_tuple(), items.len()) {
                    (true, 1) => ("(", ",)"),
                    (true, _) => ("(", ")"),
                    _ => ("[", "]"),
                };
                self.list(depth, (open, close), items.len(), out, |i, out| {
                    self.write(&items[i], depth + 1, out)
                })?;
            }
            ValueKind::Map => self.map(value, depth, out)?,
            ValueKind::Undefined if !json => out.push_str("Undefined"),
            // Functions and macros: Python prints an address, JSON has nothing like them.
            other => {
                let message = format!("a value of kind {other} has no text");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    /// One value and `bytes` of text.
    fn pay(&self, bytes: usize) -> Result<(), Error> {
        self.state.consume_fuel(1 + bytes as u64 / 64)
    }

    fn items(&self, value: &Value) -> Result<Vec<Value>, Error> {
        let mut items = Vec::new();
        for item in value.try_iter()?.checked() {
            self.pay(0)?;
            items.push(item?);
        }
        Ok(items)
    }

    fn string(&self, text: &str, out: &mut String) -> Result<(), Error> {
        self.pay(text.len())?;
        match self.style {
            Style::Json(j) => json_string(text, j.ascii, out),
            Style::Repr => repr_string(text, out),
        }
        Ok(())
    }

    fn map(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut keys = self.items(value)?;
        if let Style::Json(Json { sort_keys: true, .. }) = self.style {
            keys.sort();
        }
        let colon = match self.style {
            Style::Json(Json { separators: Some((_, colon)), .. }) => colon.as_str(),
            _ => ": ",
        };
        self.list(depth, ("{", "}"), keys.len(), out, |i, out| {
            let key = &keys[i];
            match self.style {
                // JSON has only strings for keys; Python writes a number, a bool or None as one.
                Style::Json(_) if key.as_str().is_none() => {
                    let mut text = String::new();
                    self.write(key, depth + 1, &mut text)?;
                    self.string(&text, out)?;
                }
                _ => self.write(key, depth + 1, out)?,
            }
            out.push_str(colon);
            self.write(&value.get_item(key)?, depth + 1, out)
        })
    }

    fn list(
        &self,
        depth: usize,
        (open, close): (&str, &str),
        count: usize,
        out: &mut String,
        mut item: impl FnMut(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let indent = match self.style {
            Style::Json(j) => j.indent,
            Style::Repr => None,
        };
        let comma = match self.style {
            Style::Json(Json { separators: Some((comma, _)), .. }) => comma.as_str(),
            _ if indent.is_some() => ",",
            _ => ", ",
        };
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = indent {
                let spaces = indent.saturating_mul(depth);
                self.pay(spaces)?;
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', spaces));
            }
            Ok::<(), Error>(())
        };
        out.push_str(open);
        for i in 0..count {
            if i > 0 {
                self.pay(comma.len())?;
                out.push_str(comma);
            }
            line(depth + 1, out)?;
            item(i, out)?;
        }
        if count > 0 {
            line(depth, out)?;
        }
        out.push_str(close);
        Ok(())
    }
}

fn number(value: &Value, json: bool, out: &mut String) {
    if value.is_integer() {
        return out.push_str(&value.to_string());
    }
    let x = f64::try_from(value.clone()).unwrap_or(f64::NAN);
    if x.is_nan() {
        return out.push_str(if json { "NaN" } else { "nan" });
    }
    if x.is_infinite() {
        let name = if json { "Infinity" } else { "inf" };
        return out.extend([if x < 0.0 { "-" } else { "" }, name]);
    }
    // Both languages write the shortest digits that read back the same; Python turns to exponents at 1e16 and below 1e-4.
    let shortest = format!("{x:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        out.push_str(&format!("{x:?}"));
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        out.push_str(&format!("{digits}e{sign}{:02}", exponent.abs()));
    }
}

fn json_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(quote);
}
