//! Text into tokens, with places. A line's end is a token; a comment belongs to the line it ends.

use crate::error::{ProgramError, Rule, Span, fault};
use crate::syntax::Attr;

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Word(String),
    Number(f64),
    Text(String),
    /// One of `:,=()[]@+*/-` or `..`.
    Sign(&'static str),
    Comment(String),
    End,
}

impl Token {
    /// The token as a message names it.
    pub fn describe(&self) -> String {
        match self {
            Token::Word(w) => format!("`{w}`"),
            Token::Number(v) => format!("`{}`", Attr::Number(*v)),
            Token::Text(t) => format!("\"{t}\""),
            Token::Sign(s) => format!("`{s}`"),
            Token::Comment(_) => "a comment".into(),
            Token::End => "the end of the line".into(),
        }
    }
}

const SIGNS: [&str; 13] = ["..", ":", ",", "=", "(", ")", "[", "]", "@", "+", "*", "/", "-"];

/// Splits one line into tokens; the last is always [`Token::End`].
pub(crate) fn tokens(line: &str, number: u32) -> Result<Vec<(Token, Span)>, ProgramError> {
    let chars: Vec<char> = line.chars().collect();
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        while chars.get(at).is_some_and(|c| c.is_whitespace()) {
            at += 1;
        }
        let span = Span { line: number, column: at as u32 + 1 };
        let Some(&c) = chars.get(at) else {
            out.push((Token::End, span));
            return Ok(out);
        };
        let (token, next) = if c == '#' {
            let text: String = chars[at + 1..].iter().collect();
            (Token::Comment(text.strip_prefix(' ').unwrap_or(&text).trim_end().to_owned()), chars.len())
        } else if c.is_ascii_alphabetic() || c == '_' {
            let end = run(&chars, at, |c| c.is_ascii_alphanumeric() || c == '_');
            (Token::Word(chars[at..end].iter().collect()), end)
        } else if c.is_ascii_digit() || (c == '-' && !follows_part(&out)) {
            number_token(&chars, at, span)?
        } else if c == '"' {
            text_token(&chars, at, span)?
        } else {
            let sign =
                SIGNS.into_iter().find(|s| s.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c)));
            let sign = sign.ok_or_else(|| fault(Rule::Syntax, span, format!("`{c}` has no meaning here")))?;
            (Token::Sign(sign), at + sign.len())
        };
        out.push((token, span));
        at = next;
    }
}

/// Whether a `-` here is the sign of a bound, as in `pos-7`, and not the start of a number.
fn follows_part(before: &[(Token, Span)]) -> bool {
    matches!(before.last(), Some((Token::Word(_) | Token::Number(_), _)))
}

fn run(chars: &[char], from: usize, more: impl Fn(char) -> bool) -> usize {
    chars[from..].iter().position(|&c| !more(c)).map_or(chars.len(), |len| from + len)
}

/// A number: digits, a fraction, an exponent. A point followed by a point is a range, not a fraction.
fn number_token(chars: &[char], at: usize, span: Span) -> Result<(Token, usize), ProgramError> {
    let digits = if chars[at] == '-' { at + 1 } else { at };
    let mut end = run(chars, digits, |c| c.is_ascii_digit());
    if end == digits {
        return Err(fault(Rule::Syntax, span, "`-` is no sign, but the start of a number"));
    }
    if chars.get(end) == Some(&'.') && chars.get(end + 1).is_some_and(|c| c.is_ascii_digit()) {
        end = run(chars, end + 1, |c| c.is_ascii_digit());
    }
    if matches!(chars.get(end), Some('e' | 'E')) {
        let sign = end + 1 + usize::from(matches!(chars.get(end + 1), Some('+' | '-')));
        end = run(chars, sign.min(chars.len()), |c| c.is_ascii_digit());
    }
    let text: String = chars[at..end].iter().collect();
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok((Token::Number(value), end)),
        _ => Err(fault(Rule::Syntax, span, format!("`{text}` is not a number"))),
    }
}

/// A quoted text, with `\"` and `\\` for the two characters that need it.
fn text_token(chars: &[char], at: usize, span: Span) -> Result<(Token, usize), ProgramError> {
    let mut text = String::new();
    let mut i = at + 1;
    while let Some(&c) = chars.get(i) {
        match (c, chars.get(i + 1)) {
            ('"', _) => return Ok((Token::Text(text), i + 1)),
            ('\\', Some(&escaped @ ('"' | '\\'))) => {
                text.push(escaped);
                i += 2;
            }
            _ => {
                text.push(c);
                i += 1;
            }
        }
    }
    Err(fault(Rule::Syntax, span, "a text in quotes does not end on its line"))
}
