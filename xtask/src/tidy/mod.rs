//! The house rules as a check: which crate may use which, and what every file must be.
//!
//! A [`Rule`] looks at a [`Workspace`], which is plain data, and names faults. The list of rules is [`RULES`]; each
//! has a sample that it refuses among the tests, so that none can come to refuse nothing.

mod layers;
mod manifests;
mod places;
mod scan;
mod sources;
mod workspace;

pub use layers::{LAYERS, Layer};
pub use workspace::{File, Package, Target, Workspace};

use crate::XtaskError;
use std::fmt;
use std::path::Path;

/// What a rule found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// A file with a line, or a crate.
    pub place: String,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// One house rule.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// What it asks, in a sentence.
    pub says: &'static str,
    /// Everything that breaks it.
    pub check: fn(&Workspace) -> Vec<Fault>,
}

/// The rules, in the order in which they are reported.
pub const RULES: &[Rule] = &[
    Rule {
        name: "layers",
        says: "a crate uses only what its row of the layer table names",
        check: layers::edges,
    },
    Rule {
        name: "rows",
        says: "every crate has a row of the layer table, and rows use rows above",
        check: layers::rows,
    },
    Rule {
        name: "document",
        says: "the table in docs/ARCHITECTURE.md is the table of the code",
        check: layers::document,
    },
    Rule { name: "cycles", says: "no test dependency closes a circle", check: layers::cycles },
    Rule { name: "manifest", says: "a crate could be published as it is", check: manifests::complete },
    Rule { name: "features", says: "only the façade has Cargo features", check: manifests::features },
    Rule {
        name: "safe",
        says: "unsafe code is forbidden but where it is needed",
        check: manifests::forbids_unsafe,
    },
    Rule {
        name: "example",
        says: "a library's page has an example that compiles",
        check: manifests::examples,
    },
    Rule { name: "header", says: "a Rust file opens with `//!`", check: sources::headers },
    Rule { name: "file length", says: "a Rust file has at most 800 lines", check: sources::lengths },
    Rule { name: "function length", says: "a function has at most 100 lines", check: sources::functions },
    Rule { name: "safety", says: "unsafe code says why it is sound", check: sources::safety },
    Rule {
        name: "finished",
        says: "nothing is left for later, nothing is skipped",
        check: sources::finished,
    },
    Rule { name: "casts", says: "only tranship-ctx makes casts", check: sources::casts },
    Rule { name: "machine paths", says: "no path of one machine", check: places::machine_paths },
    Rule { name: "hosts", says: "no registry's host outside the lock file", check: places::hosts },
];

/// Every fault of a workspace, with the rule that names it.
pub fn faults(workspace: &Workspace) -> Vec<(&'static str, Fault)> {
    RULES.iter().flat_map(|rule| (rule.check)(workspace).into_iter().map(|f| (rule.name, f))).collect()
}

/// Checks the workspace at `root` and prints what is wrong, and which files have grown long.
///
/// # Errors
/// [`XtaskError::Untidy`] with the number of faults; files that cannot be read.
pub fn run(root: &Path) -> Result<(), XtaskError> {
    let workspace = Workspace::read(root)?;
    let faults = faults(&workspace);
    for (rule, fault) in &faults {
        println!("{fault}  [{rule}]");
    }
    for note in sources::long(&workspace) {
        println!("note: {note}");
    }
    if !faults.is_empty() {
        return Err(XtaskError::Untidy(faults.len()));
    }
    let (rules, crates, files) = (RULES.len(), workspace.packages.len(), workspace.files.len());
    println!("tidy: {rules} rules hold in {crates} crates, {files} files");
    Ok(())
}
