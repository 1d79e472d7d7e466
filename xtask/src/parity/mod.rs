//! Every policy on every backend, split and handed over in every way, against the all-F32 reference.
//!
//! The truth of a model and a prompt is what [`tranship_backend::Reference`] gives under `parity`; that it is one,
//! the goldens of independent implementations say. [`cases`] runs, [`bounds`] says what is allowed and why,
//! [`trace`] finds the operation behind a miss, and [`page`] says what it all costs a reader.

pub mod bounds;
pub mod cases;
pub mod measure;
pub mod models;
pub mod page;
pub mod report;
pub mod trace;

pub use cases::{Case, End, What};
pub use models::Subject;
pub use page::Reading;
pub use report::Detail;

use crate::{XtaskError, backends};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use tranship_ctx::PRESETS;

/// What is compared, and how it is told.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ParityArgs {
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
    /// Only these fixture models
    #[arg(long, num_args = 1.., value_name = "NAME")]
    model: Vec<String>,
    /// Only these backends
    #[arg(long, num_args = 1.., value_name = "NAME")]
    backend: Vec<String>,
    /// Only these policies
    #[arg(long, num_args = 1.., value_name = "NAME")]
    policy: Vec<String>,
    /// Finds the layer and the operation of each miss; of a named fixture, of every policy and backend, missed or not
    #[arg(long, num_args = 0..=1, default_missing_value = "", value_name = "MODEL")]
    trace: Option<String>,
    /// A model file or folder of your own in the place of the fixtures
    #[arg(long, value_name = "PATH", conflicts_with = "model")]
    real: Option<PathBuf>,
    /// Tokens of the prompt of such a model
    #[arg(long, value_name = "N", default_value_t = 24, requires = "real")]
    rows: usize,
    /// Threads of backends that have threads
    #[arg(short = 't', long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Prints a line for each case
    #[arg(long)]
    verbose: bool,
}

/// Runs the comparison and prints it.
///
/// # Errors
/// [`XtaskError::Missed`] when anything is outside its bounds; unknown names; models that cannot be opened.
pub fn run(root: &Path, args: &ParityArgs) -> Result<(), XtaskError> {
    let traced = args.trace.as_deref().filter(|name| !name.is_empty());
    let named: Vec<String> = args.model.iter().cloned().chain(traced.map(str::to_owned)).collect();
    let subjects = match &args.real {
        Some(path) => vec![models::real(root, path, args.rows)?],
        None => models::fixtures(root, &named)?,
    };
    let ends = ends(args)?;
    let detail = if args.verbose { Detail::Every } else { Detail::Summary };
    if !args.json {
        print!("{}", report::header(detail));
    }
    let (mut all, mut pages) = (Vec::new(), Vec::new());
    for subject in &subjects {
        let cases = cases::all(subject, &ends)?;
        if !args.json {
            print!("{}", report::lines(&cases, detail));
        }
        let readings = page::all(root, subject, &ends)?;
        if !args.json {
            print!("{}", page::lines(&readings));
        }
        if args.trace.is_some() {
            for (end, what) in to_trace(&cases, &ends, traced.is_some()) {
                let found = trace::trace(subject, &end, what)?;
                eprint!("{} on {}:\n{found}", subject.name, end.label());
            }
        }
        all.extend(cases);
        pages.extend(readings);
    }
    let missed = all.iter().filter(|c| !c.pass()).count() + pages.iter().filter(|r| !r.pass()).count();
    if args.json {
        println!("{:#}", report::json(&all, &pages));
    } else {
        let cases = all.len() + pages.len();
        println!("{} models, {cases} cases, {missed} outside their bounds", subjects.len());
    }
    if missed > 0 { Err(XtaskError::Missed(missed)) } else { Ok(()) }
}

/// The backends under the policies that are asked for. A model of one's own is by default not run split on the
/// reference, which takes its time.
fn ends(args: &ParityArgs) -> Result<Vec<End>, XtaskError> {
    let mut names: Vec<String> = args.backend.clone();
    if names.is_empty() {
        names = backends::names().into_iter().map(str::to_owned).collect();
        if args.real.is_some() && names.len() > 1 {
            names.retain(|n| n != backends::REFERENCE);
        }
    }
    let policies: Vec<&str> = match args.policy.as_slice() {
        [] => PRESETS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    if let Some(unknown) = policies.iter().find(|p| !PRESETS.contains(p)) {
        return Err(XtaskError::unknown("policy", unknown, PRESETS));
    }
    let mut ends = Vec::new();
    for name in &names {
        let backend = backends::open(name, args.threads)?;
        ends.extend(policies.iter().map(|p| End { backend: backend.clone(), policy: (*p).to_owned() }));
    }
    Ok(ends)
}

/// The ends to trace with the case to trace on each: the first miss of its own; where all are wanted, its whole run.
fn to_trace(cases: &[Case], ends: &[End], all: bool) -> Vec<(End, What)> {
    let mut wanted = Vec::new();
    for end in ends {
        let own = |c: &&Case| (c.to.0 == end.backend.name()) && c.to.1 == end.policy;
        let missed = cases.iter().filter(own).find(|c| !c.pass() && c.figures.is_ok()).map(|c| c.what);
        wanted.extend(missed.or(all.then_some(What::Whole)).map(|what| (end.clone(), what)));
    }
    wanted
}
