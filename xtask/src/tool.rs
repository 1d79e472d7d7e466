//! Calls of other programs, with what they say when they fail.

use crate::XtaskError;
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// The last lines of what a failed program said.
const LAST_LINES: usize = 12;

/// Runs a program to its end and gives what it printed. `told` says whether the call is shown first.
///
/// # Errors
/// [`XtaskError::Tool`] when it cannot be started or fails, with the last lines of its errors.
pub fn output(command: &mut Command) -> Result<String, XtaskError> {
    let said = command.stdin(Stdio::null()).output().map_err(|e| XtaskError::tool(line(command), e))?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    let lines: Vec<&str> = errors.trim().lines().collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
    Err(XtaskError::tool(line(command), format!("{}\n{last}", said.status)))
}

/// Runs a program whose output is its own to show; the call is shown before it.
///
/// # Errors
/// [`XtaskError::Tool`] when it cannot be started or fails.
pub fn shown(command: &mut Command) -> Result<(), XtaskError> {
    let line = line(command);
    eprintln!("$ {line}");
    let status = command.stdin(Stdio::null()).status().map_err(|e| XtaskError::tool(&line, e))?;
    if status.success() { Ok(()) } else { Err(XtaskError::tool(line, status)) }
}

/// The command as one line.
fn line(command: &Command) -> String {
    let parts = std::iter::once(command.get_program()).chain(command.get_args());
    parts.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
