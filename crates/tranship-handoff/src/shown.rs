//! Text from outside on its way to a terminal.

use std::fmt::{self, Write};

/// A text that came from outside, displayed fit for one line of a terminal: line feeds, escape sequences and whatever
/// else has no shape of its own are shown as `\n` or `\u{1b}`.
///
/// ```
/// use tranship_handoff::Shown;
/// assert_eq!(Shown("kv=\"f16\"\n\u{1b}[2J").to_string(), "kv=\"f16\"\\n\\u{1b}[2J");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '"' | '\'' | '\\' => f.write_char(c),
            _ => write!(f, "{}", c.escape_debug()),
        })
    }
}
