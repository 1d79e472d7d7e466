//! Rust source with its comments and literals blanked out: enough of a lexer to look for code where code is.
//!
//! Every character of a comment or of a literal's content becomes a space, line breaks stay. So offsets and line
//! numbers are those of the text, braces balance, and what is found is code.

/// The code of a Rust source text: the same length in characters, comments and literals blank.
pub fn code(text: &str) -> Vec<char> {
    let chars: Vec<char> = text.chars().collect();
    let mut out = chars.clone();
    let mut at = 0;
    while at < chars.len() {
        let end = match chars[at] {
            '/' if chars.get(at + 1) == Some(&'/') => line_end(&chars, at),
            '/' if chars.get(at + 1) == Some(&'*') => comment_end(&chars, at),
            '"' => string_end(&chars, at + 1),
            '\'' => quote_end(&chars, at),
            c if c.is_alphanumeric() || c == '_' => word_end(&chars, at),
            _ => at + 1,
        };
        let blank = !(chars[at].is_alphanumeric() || chars[at] == '_') && end > at + 1;
        let raw = !blank && matches!(chars.get(end - 1), Some('"' | '#' | '\'')) && end > at + 1;
        if blank || raw {
            for c in out[at..end].iter_mut().filter(|c| **c != '\n') {
                *c = ' ';
            }
        }
        at = end;
    }
    out
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..].iter().position(|c| *c == '\n').map_or(chars.len(), |n| at + n)
}

/// The end of a block comment; they nest.
fn comment_end(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

/// The end of a string whose content starts at `at`.
fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// The end of a character literal; of a lifetime, only its quote.
fn quote_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => {
            let mut end = at + 3;
            while end < chars.len() && chars[end] != '\'' {
                end += 1;
            }
            (end + 1).min(chars.len())
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at + 1,
    }
}

/// The end of a word; of a prefix such as `r#` or `b` the end of the literal that it starts.
fn word_end(chars: &[char], at: usize) -> usize {
    let mut end = at;
    while end < chars.len() && (chars[end].is_alphanumeric() || chars[end] == '_') {
        end += 1;
    }
    let word: String = chars[at..end].iter().collect();
    match word.as_str() {
        "r" | "br" | "cr" => {
            let hashes = chars[end..].iter().take_while(|c| **c == '#').count();
            if chars.get(end + hashes) != Some(&'"') {
                return end;
            }
            let mut close = end + hashes + 1;
            while close < chars.len() {
                let tail = &chars[close + 1..];
                if chars[close] == '"' && tail.iter().take(hashes).filter(|c| **c == '#').count() == hashes {
                    return close + 1 + hashes;
                }
                close += 1;
            }
            chars.len()
        }
        "b" | "c" if chars.get(end) == Some(&'"') => string_end(chars, end + 1),
        "b" if chars.get(end) == Some(&'\'') => quote_end(chars, end),
        _ => end,
    }
}

/// Offsets at which `word` stands as a word of its own. A word may hold other characters inside, as `Op::Cast(`.
pub fn words(code: &[char], word: &str) -> Vec<usize> {
    let wanted: Vec<char> = word.chars().collect();
    let name = |c: &char| c.is_alphanumeric() || *c == '_';
    let whole = |at: usize| {
        let before = at.checked_sub(1).and_then(|b| code.get(b)).is_some_and(name);
        let after = wanted.last().is_some_and(name) && code.get(at + wanted.len()).is_some_and(name);
        !before && !after
    };
    let last = code.len().saturating_sub(wanted.len().saturating_sub(1));
    (0..last).filter(|&at| code[at..at + wanted.len()] == wanted[..] && whole(at)).collect()
}

/// The line of an offset, from 1.
pub fn line_of(code: &[char], at: usize) -> usize {
    1 + code[..at.min(code.len())].iter().filter(|c| **c == '\n').count()
}

/// The offset past the bracket that closes the one at `open`.
pub fn close_of(code: &[char], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, c) in code.iter().enumerate().skip(open) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank_and_code_is_kept() {
        let cases = [
            ("a // b", "a     "),
            ("a /* b /* c */ d */ e", "a                   e"),
            ("x = \"}\\\"{\";", "x =       ;"),
            ("r#\"a \" b\"# + c", "           + c"),
            ("b'{' b\"{\" 'x' '\\'' 'a", "                   'a"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("for r in rows {}", "for r in rows {}"),
        ];
        for (text, wanted) in cases {
            assert_eq!(code(text).iter().collect::<String>(), wanted, "{text}");
        }
    }

    #[test]
    fn words_stand_alone() {
        let text: Vec<char> = "unsafe_code unsafe { not_unsafe }".chars().collect();
        assert_eq!(words(&text, "unsafe"), [12]);
        assert_eq!(close_of(&text, 19), text.len());
    }
}
