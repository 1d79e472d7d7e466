//! Why a task fails.

use std::fmt::Display;
use std::path::Path;
use tranship_backend::BackendError;
use tranship_ctx::CtxError;
use tranship_handoff::HandoffError;
use tranship_model::ModelError;
use tranship_program::ProgramError;
use tranship_session::SessionError;

/// Why a task fails.
#[derive(Debug, thiserror::Error)]
pub enum XtaskError {
    /// House rules are broken; each was printed.
    #[error("tidy: {0} faults")]
    Untidy(usize),
    /// Results are outside their bounds; each was printed.
    #[error("parity: {0} results are outside their bounds")]
    Missed(usize),
    /// Another engine goes on otherwise; each result was printed.
    #[error("interop: {0} continuations differ")]
    Apart(usize),
    /// A name that is none of those there are.
    #[error("{what} `{name}` is unknown: there are {known}")]
    Unknown {
        /// The kind of thing.
        what: &'static str,
        /// The name given.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {what}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        what: String,
    },
    /// A file is not what it must be.
    #[error("{path}: wanted {wanted}, found {found}")]
    Content {
        /// The file.
        path: String,
        /// What was wanted.
        wanted: String,
        /// What was there.
        found: String,
    },
    /// A program that a task calls fails.
    #[error("{tool}: {what}")]
    Tool {
        /// The program.
        tool: String,
        /// What it said.
        what: String,
    },
    /// Something that a task needs was not given.
    #[error("{0}")]
    Needs(String),
    /// The façade refuses: an unknown backend, or a device.
    #[error(transparent)]
    Facade(#[from] tranship::Error),
    /// A model cannot be run.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A backend refuses.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A program cannot be typed.
    #[error(transparent)]
    Ctx(#[from] CtxError),
    /// A program cannot be written.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A program does not verify.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A hand-off cannot be written or read.
    #[error(transparent)]
    Handoff(#[from] HandoffError),
}

impl XtaskError {
    /// A file that cannot be read or written.
    pub fn io(path: &Path, what: impl Display) -> XtaskError {
        XtaskError::Io { path: path.display().to_string(), what: what.to_string() }
    }

    /// A program that fails.
    pub fn tool(tool: impl Display, what: impl Display) -> XtaskError {
        XtaskError::Tool { tool: tool.to_string(), what: what.to_string() }
    }

    /// A name that is none of those there are.
    pub fn unknown<'n>(
        what: &'static str,
        name: &str,
        known: impl IntoIterator<Item = &'n str>,
    ) -> XtaskError {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        XtaskError::Unknown { what, name: name.to_owned(), known }
    }
}
