//! The suite: rounds of every run, ours and the peers' by turns, so that a machine that is slow for a while is so for
//! all.

use super::kl;
use super::measure::{self, Measured};
use super::prepare::Made;
use super::rows::{Plan, REAL, Run, Sizes};
use super::summary::{Round, Summary};
use super::{BenchArgs, peers};
use crate::XtaskError;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is run.
struct Programs {
    ours: PathBuf,
    llama: Option<PathBuf>,
    candle: Option<PathBuf>,
}

/// Runs the suite over the files of a folder.
///
/// # Errors
/// When our program cannot be built, or no file is there. Runs that fail become notes.
pub fn run(root: &Path, folder: &Path, args: &BenchArgs) -> Result<Summary, XtaskError> {
    let sizes = Sizes {
        prompt: args.prompt,
        tokens: args.tokens,
        long: args.long.max(args.tokens),
        threads: args.threads,
    };
    let plan = if args.kl_only { Plan::default() } else { Plan::of(sizes, &args.only) };
    let path = |run: &Run| folder.join(format!("{}.gguf", run.file));
    if !args.kl_only && !plan.runs.iter().any(|run| path(run).is_file()) {
        let wanted = format!("{REAL}.gguf and the others that --prepare makes");
        return Err(XtaskError::Content { path: folder.display().to_string(), wanted, found: "none".into() });
    }
    let programs = Programs {
        ours: super::tranship(root)?,
        llama: peers::llama_bench(args),
        candle: args.candle.clone(),
    };
    let mut notes = Notes::default();
    let mut rounds: Vec<Vec<Round>> = plan.runs.iter().map(|_| Vec::new()).collect();
    let count = args.rounds.max(1);
    for round in 0..count {
        for (at, run) in plan.runs.iter().enumerate() {
            eprintln!("round {} of {count}, {} of {}: {}", round + 1, at + 1, plan.runs.len(), run.file);
            let path = path(run);
            if !path.is_file() {
                notes.add(format!("{}: no such file in the folder", run.file));
                continue;
            }
            rounds[at].push(one_round(&programs, run, &path, args, round % 2 == 1, &mut notes));
        }
    }
    let mut summary = Summary::of(&plan, &rounds);
    if args.kl_only || args.kl {
        summary.divergences = kl::run(&programs.ours, root, folder, args, &mut notes)?;
    }
    summary.notes = about(&programs, &rounds, args);
    summary.notes.extend(Made::read(folder).notes());
    summary.notes.extend(notes.0);
    Ok(summary)
}

/// What goes below the table, each once.
#[derive(Default)]
pub struct Notes(Vec<String>);

impl Notes {
    /// Adds a line, unless it is there.
    pub fn add(&mut self, note: String) {
        let note = note.split_whitespace().collect::<Vec<_>>().join(" ");
        if !self.0.contains(&note) {
            self.0.push(note);
        }
    }

    /// The result, or a line that says why there is none.
    pub fn kept<T>(&mut self, of: &str, result: Result<T, XtaskError>) -> Option<T> {
        result.map_err(|error| self.add(format!("{of}: {error}"))).ok()
    }
}

/// All programs once; in every second round the peers first.
fn one_round(
    programs: &Programs,
    run: &Run,
    path: &Path,
    args: &BenchArgs,
    peers_first: bool,
    notes: &mut Notes,
) -> Round {
    let ours = |notes: &mut Notes| {
        let ran = measure::run(&mut of_ours(&programs.ours, run, path, args));
        notes.kept(&run.file, ran.and_then(|ended| Measured::of_ours(&ended)))
    };
    let peers = |notes: &mut Notes| {
        let llama = programs.llama.as_ref().filter(|_| run.sequences == 1).and_then(|program| {
            let ran = measure::run(&mut of_llama(program, run, path, args));
            notes.kept(&run.file, ran.and_then(|ended| Measured::of_llama(&ended)))
        });
        let candle = programs.candle.as_ref().filter(|_| run.candle).and_then(|program| {
            let ran = measure::run(&mut of_candle(program, run, path));
            // It reads few encodings and families; a missing figure says so.
            ran.and_then(|ended| Measured::of_candle(&ended)).ok()
        });
        (llama, candle)
    };
    if peers_first {
        let (llama, candle) = peers(notes);
        [ours(notes), llama, candle]
    } else {
        let ours = ours(notes);
        let (llama, candle) = peers(notes);
        [ours, llama, candle]
    }
}

fn of_ours(program: &Path, run: &Run, path: &Path, args: &BenchArgs) -> Command {
    let mut command = Command::new(program);
    command.arg("bench").arg(path).args(["--json", "--backend", &args.backend]);
    command.args(["-r", &repeats(run, args), "-t", &run.threads.to_string()]);
    command.args(["-p", &run.prompt.to_string(), "-n", &run.tokens.to_string()]);
    command.args(["-d", &run.depth.to_string(), "--sequences", &run.sequences.to_string()]);
    if let Some(policy) = &args.policy {
        command.args(["--policy", policy]);
    }
    if run.limits {
        command.arg("--limits");
    }
    command
}

fn of_llama(program: &Path, run: &Run, path: &Path, args: &BenchArgs) -> Command {
    let mut command = Command::new(program);
    command.arg("-m").arg(path).args(["-o", "json", "-r", &repeats(run, args)]);
    command.args(["-t", &run.threads.to_string()]);
    command.args(["-p", &run.prompt.to_string(), "-n", &run.tokens.to_string()]);
    if run.depth > 0 {
        command.args(["-d", &run.depth.to_string()]);
    }
    if is_smallest(run) {
        command.arg("--no-warmup");
    }
    command
}

/// How often a run repeats what it measures: once, where that takes long or where starting is what counts.
fn repeats(run: &Run, args: &BenchArgs) -> String {
    let long = run.depth + run.prompt > 2 * args.prompt.max(1);
    if long || is_smallest(run) { "1".into() } else { args.repeats.max(1).to_string() }
}

/// Whether a run is of the time to the first token, to which a warm-up would be added.
fn is_smallest(run: &Run) -> bool {
    run.tokens == 0 && run.prompt <= 8
}

fn of_candle(program: &Path, run: &Run, path: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(path).args([run.prompt, run.tokens].map(|n| n.to_string()));
    command.env("RAYON_NUM_THREADS", run.threads.to_string());
    command
}

/// What ran, how it was built, and how some rows are to be read.
fn about(programs: &Programs, rounds: &[Vec<Round>], args: &BenchArgs) -> Vec<String> {
    let said = |side: usize, name: &str| {
        let first = rounds.iter().flatten().find_map(|round| round[side].as_ref());
        first.map_or_else(|| name.to_owned(), |m| m.note.clone())
    };
    let mut notes = vec![format!("tranship: {}, built for release by cargo", said(0, "no speed measured"))];
    match &programs.llama {
        Some(program) => {
            let built = measure::how_built(program).unwrap_or_else(|| "built as it was found".into());
            notes.push(format!("{}: {built}", said(1, "llama.cpp")));
        }
        None => notes.push("Without llama.cpp: no `llama-bench` was given or found.".into()),
    }
    match &programs.candle {
        Some(_) => notes.push(said(2, "candle: loaded none of the files")),
        None => notes.push("Without candle: --build-candle builds it, --candle names it.".into()),
    }
    if rounds.is_empty() {
        return notes;
    }
    notes.push(format!(
        "Each round starts each program anew, and takes its mean or median of {}; files are in the page cache but \
         in the first round. Shares are of the bytes of weights that a token reads, times tokens a second, over the \
         bytes that as many threads read just after; of a long context and of the delta rule, with the bytes of what \
         is carried, which that rule writes too.",
        args.repeats
    ));
    notes.push(
        "To the first token: of ours from its start to the logits of 8 tokens; of llama.cpp the whole of its smallest \
         run, `llama-bench -p 8 -n 0 -r 1 --no-warmup`, which is more than that."
            .into(),
    );
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_of_one_line_and_said_once() {
        let mut notes = Notes::default();
        for _ in 0..2 {
            let failed: Result<(), _> = Err(XtaskError::tool("llama-bench", "exit status: 1\nbad\n file"));
            assert_eq!(notes.kept("m", failed), None);
        }
        assert_eq!(notes.0, ["m: llama-bench: exit status: 1 bad file"]);
    }
}
