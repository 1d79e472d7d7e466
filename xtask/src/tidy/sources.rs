//! Rules on Rust files, one at a time.

use super::scan::{close_of, code, line_of, words};
use super::{Fault, File, Workspace};

/// The most lines of a file.
const FILE_LINES: usize = 800;
/// Lines of code past which a file is mentioned.
const LONG_LINES: usize = 600;
/// The most lines of a function.
const FUNCTION_LINES: usize = 100;
/// Lines above unsafe code in which its reason is looked for.
const REASON_LINES: usize = 4;
/// The crate whose pass makes casts.
const CASTS: &str = "crates/tranship-ctx/src/";

fn rust(workspace: &Workspace) -> impl Iterator<Item = &File> {
    workspace.files.iter().filter(|f| f.is_rust())
}

fn at(file: &File, line: usize, what: impl Into<String>) -> Fault {
    Fault { place: format!("{}:{line}", file.path), what: what.into() }
}

/// The first line is a page's, or an attribute of the file.
pub fn headers(workspace: &Workspace) -> Vec<Fault> {
    let opens = |f: &&File| !f.text.starts_with("//!") && !f.text.starts_with("#!");
    rust(workspace).filter(opens).map(|f| at(f, 1, "does not open with `//!`")).collect()
}

/// Files are not too long.
pub fn lengths(workspace: &Workspace) -> Vec<Fault> {
    let over = rust(workspace).filter(|f| f.text.lines().count() > FILE_LINES);
    over.map(|f| at(f, FILE_LINES, format!("has {} lines of at most {FILE_LINES}", f.text.lines().count())))
        .collect()
}

/// Files that have grown long, as notes: lines of code, without blank ones and comments.
pub fn long(workspace: &Workspace) -> Vec<String> {
    let lines = |f: &File| {
        let code: String = code(&f.text).into_iter().collect();
        code.lines().filter(|l| !l.trim().is_empty()).count()
    };
    let counted = rust(workspace).map(|f| (f, lines(f))).filter(|(_, n)| *n > LONG_LINES);
    counted.map(|(f, n)| format!("{} has {n} lines of code: which two things is this?", f.path)).collect()
}

/// Functions are not too long: from `fn` to the brace that closes the body.
pub fn functions(workspace: &Workspace) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in rust(workspace) {
        let code = code(&file.text);
        for start in words(&code, "fn") {
            let Some(open) = body(&code, start) else { continue };
            let (first, last) = (line_of(&code, start), line_of(&code, close_of(&code, open) - 1));
            if last + 1 - first > FUNCTION_LINES {
                let what = format!("a function of {} lines, of at most {FUNCTION_LINES}", last + 1 - first);
                faults.push(at(file, first, what));
            }
        }
    }
    faults
}

/// The brace that opens a function's body; none of a declaration or a function's type.
fn body(code: &[char], start: usize) -> Option<usize> {
    let mut at = start;
    while at < code.len() {
        match code[at] {
            '{' => return Some(at),
            ';' | ')' | ']' | '}' | '=' => return None,
            '(' | '[' => at = close_of(code, at),
            _ => at += 1,
        }
    }
    None
}

/// A `SAFETY:` comment at each block and each impl that is unsafe: within a few lines above, or at the head of the
/// comment that ends right above it.
pub fn safety(workspace: &Workspace) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in rust(workspace) {
        let code = code(&file.text);
        let lines: Vec<&str> = file.text.lines().collect();
        for start in words(&code, "unsafe") {
            let next: String = code[start + 6..].iter().skip_while(|c| c.is_whitespace()).take(4).collect();
            if !next.starts_with('{') && next != "impl" {
                continue;
            }
            let line = line_of(&code, start);
            let near = lines[line.saturating_sub(REASON_LINES + 1)..line].iter();
            let above = lines[..line - 1].iter().rev().take_while(|l| l.trim_start().starts_with("//"));
            if !near.chain(above).any(|l| l.contains("// SAFETY:")) {
                faults.push(at(file, line, "unsafe code without a `// SAFETY:` comment"));
            }
        }
    }
    faults
}

/// Words of things that are not done, and tests that do not run.
pub fn finished(workspace: &Workspace) -> Vec<Fault> {
    const MACROS: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];
    let later = concat!("FIX", "ME");
    let mut faults = Vec::new();
    for file in rust(workspace) {
        let code = code(&file.text);
        for word in MACROS {
            faults.extend(
                words(&code, word).into_iter().map(|w| at(file, line_of(&code, w), format!("has `{word}`"))),
            );
        }
        for start in words(&code, "ignore") {
            let before: String = code[start.saturating_sub(2)..start].iter().collect();
            if before == "#[" {
                faults.push(at(file, line_of(&code, start), "a test that is ignored"));
            }
        }
        let marked = file.text.lines().enumerate().filter(|(_, l)| l.contains(later));
        faults.extend(marked.map(|(i, _)| at(file, i + 1, format!("has `{later}`"))));
    }
    faults
}

/// `Op::Cast(…)` as a value, outside the crate that may make one. Patterns are no casts.
pub fn casts(workspace: &Workspace) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in rust(workspace).filter(|f| !f.is_test() && !f.path.starts_with(CASTS)) {
        let code = code(&file.text);
        for start in words(&code, "Op::Cast") {
            if makes(&code, start + "Op::Cast".len()) {
                faults.push(at(file, line_of(&code, start), "makes a cast: only the typing pass may"));
            }
        }
    }
    faults
}

/// Whether the `(` at `open` starts the operand of a cast that is made. In a pattern what follows, or what follows
/// the brackets around it, is an arrow, a bar, a guard or an equals sign; a wildcard is always a pattern's.
fn makes(code: &[char], open: usize) -> bool {
    if code.get(open) != Some(&'(') {
        // Without an operand it is the constructor as a function.
        return true;
    }
    let mut end = close_of(code, open);
    let inside: String = code[open + 1..end - 1].iter().filter(|c| !c.is_whitespace()).collect();
    if inside == "_" || inside == ".." {
        return false;
    }
    loop {
        if ends_pattern(&code[end..]) {
            return false;
        }
        // Out of the brackets around it, unless the statement ends first.
        loop {
            match code.get(end) {
                None | Some(';') => return true,
                Some('(' | '[' | '{') => end = close_of(code, end),
                Some(')' | ']' | '}') => break,
                Some(_) => end += 1,
            }
        }
        end += 1;
    }
}

/// Whether what stands before `rest` can only be a pattern.
fn ends_pattern(rest: &[char]) -> bool {
    let rest: String = rest.iter().skip_while(|c| c.is_whitespace()).collect();
    let guard = || rest.split(['{', ';']).next().is_some_and(|head| head.contains("=>"));
    let assigns = rest.starts_with('=') && !rest.starts_with("==");
    assigns || rest.starts_with('|') || (rest.starts_with("if ") && guard())
}
