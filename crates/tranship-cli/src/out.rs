//! Output: standard output that says when its reader has gone, files that are whole or not there, and units.

use crate::error::CliError;
use serde_json::Value;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::Path;

/// Standard output, buffered. It must be flushed: [`io::Write::flush`] says when the reader has gone.
pub fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

/// Prints a text, and nothing else.
pub fn print(text: impl Display) -> Result<(), CliError> {
    let mut out = stdout();
    write!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Prints one JSON object, and nothing else.
pub fn json(value: &Value) -> Result<(), CliError> {
    print(format_args!("{value}\n"))
}

/// Writes a line to standard error. That it cannot be written changes nothing.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes a file beside its place and moves it there when it is whole. What is there and no regular file, as a pipe,
/// is written to where it is.
pub fn write_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let fault = |source| CliError::Write { path: path.to_owned(), source };
    let in_place = path.metadata().is_ok_and(|m| !m.is_file());
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let beside = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
    let place = if in_place { path } else { beside.as_path() };
    let mut file = BufWriter::with_capacity(1 << 18, File::create(place).map_err(fault)?);
    let written = write(&mut file)
        .and_then(|()| file.into_inner().map_err(|e| fault(e.into_error())))
        .and_then(|_| if in_place { Ok(()) } else { std::fs::rename(&beside, path).map_err(fault) });
    if written.is_err() && !in_place {
        // What is left of a failed write is of no use; that it could not be removed changes nothing.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// Bytes with a unit: `1.4 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A number with a unit of thousands: `134.5 M`.
pub fn count(count: u64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, " B"), (1e6, " M"), (1e3, " k")];
    let value = count as f64;
    let unit = UNITS.iter().find(|(size, _)| value >= *size);
    unit.map_or_else(|| count.to_string(), |(size, name)| format!("{:.1}{name}", value / size))
}

/// Characters of a line.
pub const WIDTH: usize = 100;

/// A text in lines of at most [`WIDTH`] characters, broken at spaces where there are any: `first` stands before the first
/// of them, and `rest` before the others.
pub fn wrap(text: &str, first: &str, rest: &str) -> String {
    let (mut lines, mut before, mut left) = (String::new(), first, text.trim_end());
    loop {
        let room = WIDTH.saturating_sub(before.chars().count()).max(1);
        let Some((end, _)) = left.char_indices().nth(room) else {
            lines.extend([before, left, "\n"]);
            return lines;
        };
        // A space right after the room ends a line too.
        let after = left[end..].chars().next().map_or(end, |c| end + c.len_utf8());
        let at = left[..after].rfind(' ').filter(|at| *at > 0).unwrap_or(end);
        lines.extend([before, left[..at].trim_end(), "\n"]);
        (before, left) = (rest, left[at..].trim_start());
    }
}

/// A bar of `width` characters, of which the fraction `part / whole` is full; anything above 0 shows.
pub fn bar(part: u64, whole: u64, width: usize) -> String {
    let share = if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    let full = ((share * width as f64).round() as usize).clamp(usize::from(part > 0), width);
    format!("{}{}", "#".repeat(full), ".".repeat(width - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        let sizes =
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")];
        for (value, wanted) in sizes {
            assert_eq!(bytes(value), wanted);
        }
        for (value, wanted) in
            [(999, "999"), (1500, "1.5 k"), (134_515_008, "134.5 M"), (8_000_000_000, "8.0 B")]
        {
            assert_eq!(count(value), wanted);
        }
    }

    #[test]
    fn lines_are_broken_at_spaces_and_lose_nothing_else() {
        assert_eq!(wrap("a few words", "> ", "  "), "> a few words\n");
        let words = "word ".repeat(45);
        let text = wrap(words.trim_end(), "> ", "    ");
        let lines: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(lines, [96, 98, 38]);
        assert_eq!(text.split_whitespace().skip(1).collect::<Vec<_>>(), ["word"; 45]);
        let one = wrap(&"é".repeat(150), "", "> ");
        assert_eq!(one, format!("{}\n> {}\n", "é".repeat(100), "é".repeat(50)));
        // Exactly a line's words are one line.
        let full = [&"x".repeat(60)[..], &"y".repeat(39)].join(" ");
        assert_eq!(wrap(&full, "", ""), format!("{full}\n"));
        assert_eq!(wrap(&format!("{full} z"), "", ""), format!("{full}\nz\n"));
    }

    #[test]
    fn bars_are_as_long_as_they_say() {
        for (part, whole, wanted) in
            [(0, 10, "...."), (1, 1000, "#..."), (5, 10, "##.."), (20, 10, "####"), (0, 0, "....")]
        {
            assert_eq!(bar(part, whole, 4), wanted, "{part} of {whole}");
        }
    }
}
