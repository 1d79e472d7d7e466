//! The errors of the program: those of the library, and those of a command line that parses and cannot be done.

use std::io;
use std::path::PathBuf;
use tranship::handoff::Refusal;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The library says so.
    #[error(transparent)]
    Library(Box<tranship::Error>),
    /// The library says so of this file.
    #[error("{}: {source}", path.display())]
    Of {
        /// The file.
        path: PathBuf,
        /// What it says.
        source: Box<tranship::Error>,
    },
    /// A hand-off does not fit.
    #[error("{}: {refusal}", path.display())]
    Refused {
        /// The hand-off's file.
        path: PathBuf,
        /// Every reason.
        refusal: Refusal,
    },
    /// Standard output cannot be written to.
    #[error("standard output: {0}")]
    Stdout(#[from] io::Error),
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A prompt that the context has no room for.
    #[error("the prompt has {tokens} tokens, and a context of {ctx} holds no more than {ctx}")]
    Prompt {
        /// Its tokens.
        tokens: usize,
        /// Rows of the context.
        ctx: u64,
    },
    /// A hand-off after which the context has no room for a step.
    #[error("{tokens} tokens leave no row of a context of {ctx} for the step after the hand-off")]
    NoRow {
        /// The tokens before it.
        tokens: usize,
        /// Rows of the context.
        ctx: u64,
    },
    /// A hand-off that says not which token follows.
    #[error("{}: the hand-off does not say which token follows, so there is none to go on with", path.display())]
    NoNextToken {
        /// The hand-off's file.
        path: PathBuf,
    },
    /// A prompt without tokens.
    #[error("--prompt {prompt:?}: there are no tokens to run")]
    EmptyPrompt {
        /// The prompt.
        prompt: String,
    },
    /// A second context that has no room for all tokens.
    #[error("--split-ctx {ctx}: wanted {tokens} or more, a row for each of {tokens} tokens")]
    SplitCtx {
        /// Rows of the context.
        ctx: u64,
        /// The tokens.
        tokens: usize,
    },
    /// A split outside the tokens.
    #[error("--split {split}: wanted 1 to {most}, so that of {tokens} tokens some come after it", most = tokens.saturating_sub(1))]
    Split {
        /// The split.
        split: usize,
        /// The tokens.
        tokens: usize,
    },
    /// A chat with a model that has no template for one.
    #[error("{}: the model has no chat template", path.display())]
    NoChatTemplate {
        /// The model.
        path: PathBuf,
    },
    /// Nothing to measure.
    #[error("-p 0 and -n 0 leave nothing to measure")]
    NothingToMeasure,
}

impl CliError {
    /// What the library says, of this file.
    pub fn of(path: impl Into<PathBuf>, source: impl Into<tranship::Error>) -> CliError {
        CliError::Of { path: path.into(), source: Box::new(source.into()) }
    }

    /// Whether the reader of standard output has gone.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Stdout(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The message on one line.
    pub fn line(&self) -> String {
        let text = self.to_string();
        text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

macro_rules! through_the_library {
    ($($source:ty),* $(,)?) => {$(
        impl From<$source> for CliError {
            fn from(error: $source) -> CliError {
                CliError::Library(Box::new(error.into()))
            }
        }
    )*};
}

through_the_library!(
    tranship::Error,
    tranship::session::SessionError,
    tranship::model::ModelError,
    tranship::program::ProgramError,
    tranship::ctx::CtxError,
    tranship::handoff::HandoffError,
    tranship::text::TextError,
    tranship::residency::PlanError,
);
