//! Hand-offs between this program and `transformers`, both ways: what is prefilled in one is decoded in the other, and
//! tokens and logits are held to each other. By hand, since it takes a Python; the result is kept in `docs/interop.md`.

use crate::parity::models::{self, Subject};
use crate::{XtaskError, backends, tool};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tranship_backend::{Backend, Outputs};
use tranship_ctx::{ComputeCtx, Device};
use tranship_handoff::{Expect, Handoff};
use tranship_session::{Model, Options, Sequence, Session, argmax};
use tranship_weights::Checkpoint;

/// The page that the result is written into.
const PAGE: &str = "docs/interop.md";

/// Between these lines, the page is what this command writes.
const MARKS: [&str; 2] = ["<!-- result -->\n", "<!-- end of result -->\n"];

/// Fixture models that are run where none are named: one for each kind of carried tensor.
const MODELS: [&str; 12] = [
    "llama_base",
    "gemma3_text",
    "gpt_oss",
    "qwen3_next",
    "qwen3_5_text",
    "kimi_linear",
    "minimax",
    "lfm2",
    "granitemoehybrid",
    "nemotron_h",
    "deepseek_v3",
    "deepseek_v3_noq",
];

/// Tokens of the prompt: past every window, twice, and a multiple of nothing.
const POSITION: usize = 23;

/// Tokens that are decoded.
const COUNT: usize = 20;

/// Rows that a sequence may have.
const CTX: u64 = 48;

/// The largest error of a logit, in standard deviations.
const MOST: f64 = 2e-4;

/// What is run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct InteropArgs {
    /// The Python, which has what `fixtures/scripts/requirements.txt` lists
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Only these fixture models
    #[arg(long, num_args = 1.., value_name = "NAME")]
    model: Vec<String>,
    /// The backend on this side
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    backend: String,
    /// Writes the result into docs/interop.md
    #[arg(long, conflicts_with = "model")]
    write: bool,
}

/// Which way a hand-off went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Prefilled by `transformers`, decoded here.
    Here,
    /// Prefilled here, decoded by `transformers`.
    There,
}

/// What follows a hand-off: the tokens, and the logits after each.
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    /// The tokens, the hand-off's next token first.
    pub tokens: Vec<u32>,
    /// `[tokens, vocab]`.
    pub logits: Vec<f32>,
}

/// The result of one hand-off.
#[derive(Clone, Debug)]
pub struct Crossing {
    /// The model.
    pub model: String,
    /// Which way.
    pub direction: Direction,
    /// Tensors that were handed over.
    pub tensors: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Tokens that are the same on both sides, from the first one on.
    pub same: usize,
    /// Tokens that were decoded.
    pub count: usize,
    /// The largest difference of a logit, over the standard deviation of the other engine's.
    pub error: f64,
}

impl Crossing {
    /// Whether both sides go on alike.
    pub fn holds(&self) -> bool {
        self.count > 0 && self.same == self.count && self.error <= MOST
    }
}

impl Continuation {
    /// How far another one goes along: tokens that are the same from the first one on, and the largest difference of
    /// logits over the deviation of these, infinite where they are of another number or are not finite.
    pub fn compared(&self, other: &Continuation) -> (usize, f64) {
        let same = self.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
        let all = || self.logits.iter().chain(&other.logits);
        if self.logits.len() != other.logits.len() || self.logits.is_empty() || all().any(|v| !v.is_finite())
        {
            return (same, f64::INFINITY);
        }
        let count = self.logits.len() as f64;
        let mean = self.logits.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
        let variance = self.logits.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
        let pairs = self.logits.iter().zip(&other.logits);
        let most = pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs()).fold(0.0, f64::max);
        (same, most / variance.sqrt().max(f64::MIN_POSITIVE))
    }
}

/// Runs every model both ways, and prints the result.
///
/// # Errors
/// [`XtaskError::Needs`] without a Python, [`XtaskError::Apart`] where the sides differ; models that cannot be opened,
/// scripts that fail.
pub fn run(root: &Path, args: &InteropArgs) -> Result<(), XtaskError> {
    let Some(python) = &args.python else {
        let needs = "interop takes a virtual environment with fixtures/scripts/requirements.txt: \
                     cargo xtask interop --python VENV/bin/python";
        return Err(XtaskError::Needs(needs.into()));
    };
    let named: Vec<String> =
        if args.model.is_empty() { MODELS.map(str::to_owned).into() } else { args.model.clone() };
    let ends = Ends {
        scripts: root.join("fixtures/scripts"),
        scratch: root.join("target/interop"),
        python: python.clone(),
        backend: backends::open(&args.backend, None)?,
    };
    let made_by = ends.script("continue_in_transformers.py", &["--versions".into()])?;
    let mut crossings = Vec::new();
    for subject in &models::fixtures(root, &named)? {
        for crossing in ends.both(subject)? {
            println!("{}", line(&crossing));
            crossings.push(crossing);
        }
    }
    let figures = figures(made_by.trim(), &args.backend, &crossings);
    if args.write {
        let path = root.join(PAGE);
        let page = std::fs::read_to_string(&path).map_err(|e| XtaskError::io(&path, e))?;
        let text = with(&page, &figures)?;
        std::fs::write(&path, text).map_err(|e| XtaskError::io(&path, e))?;
    }
    match crossings.iter().filter(|crossing| !crossing.holds()).count() {
        0 => Ok(()),
        apart => Err(XtaskError::Apart(apart)),
    }
}

/// The two ends.
struct Ends {
    scripts: PathBuf,
    scratch: PathBuf,
    python: PathBuf,
    backend: Arc<dyn Backend>,
}

impl Ends {
    /// Runs a script of the fixtures and gives what it printed.
    fn script(&self, name: &str, arguments: &[String]) -> Result<String, XtaskError> {
        let mut command = Command::new(&self.python);
        command.arg(self.scripts.join(name)).args(arguments);
        tool::output(command.env("HF_HUB_OFFLINE", "1").env("PYTHONWARNINGS", "ignore"))
    }

    fn both(&self, subject: &Subject) -> Result<[Crossing; 2], XtaskError> {
        std::fs::create_dir_all(&self.scratch).map_err(|e| XtaskError::io(&self.scratch, e))?;
        let end = End {
            ends: self,
            name: &subject.name,
            folder: subject.path.display().to_string(),
            model: Arc::new(Model::open(&subject.path)?),
            tokens: &subject.tokens[..POSITION.min(subject.tokens.len())],
        };
        Ok([end.here()?, end.there()?])
    }
}

/// A model at both ends.
struct End<'a> {
    ends: &'a Ends,
    name: &'a str,
    folder: String,
    model: Arc<Model>,
    tokens: &'a [u32],
}

impl End<'_> {
    fn policy(&self) -> ComputeCtx {
        ComputeCtx::parity(Device::of(self.ends.backend.name()))
    }

    fn session(&self) -> Result<Session, XtaskError> {
        let (model, backend) = (self.model.clone(), self.ends.backend.clone());
        Ok(Session::open(model, backend, self.policy(), Options::new(CTX))?)
    }

    /// A file of this model's.
    fn file(&self, what: &str) -> PathBuf {
        self.ends.scratch.join(format!("{}.{what}", self.name))
    }

    /// `transformers` prefills, and goes on itself; from its hand-off this side goes on.
    fn here(&self) -> Result<Crossing, XtaskError> {
        let [contract, file, out] =
            ["contract.json", "from.safetensors", "there.safetensors"].map(|f| self.file(f));
        let json = self.model.contract(CTX, &self.policy())?.to_json();
        std::fs::write(&contract, json).map_err(|e| XtaskError::io(&contract, e))?;
        let shown = |path: &Path| path.display().to_string();
        let arguments = [
            [self.folder.clone(), shown(&file)],
            ["--contract".into(), shown(&contract)],
            ["--position".into(), self.tokens.len().to_string()],
            ["--continuation".into(), shown(&out)],
            ["--count".into(), COUNT.to_string()],
        ];
        self.ends.script("handoff_from_python.py", arguments.as_flattened())?;
        self.crossing(Direction::Here, &file, &out)
    }

    /// This side prefills; from its hand-off both go on.
    fn there(&self) -> Result<Crossing, XtaskError> {
        let [file, out] = ["to.safetensors", "onward.safetensors"].map(|f| self.file(f));
        let mut session = self.session()?;
        let mut sequence = session.sequence()?;
        let logits = session.extend(&mut sequence, self.tokens, Outputs::Last)?;
        session.suspend(&sequence, Some(argmax(&logits)))?.write(&file)?;
        let ids: Vec<String> = self.tokens.iter().map(u32::to_string).collect();
        let shown = |path: &Path| path.display().to_string();
        let arguments = [
            [self.folder.clone(), shown(&file)],
            ["--tokens".into(), ids.join(",")],
            ["--out".into(), shown(&out)],
            ["--count".into(), COUNT.to_string()],
        ];
        self.ends.script("continue_in_transformers.py", arguments.as_flattened())?;
        self.crossing(Direction::There, &file, &out)
    }

    /// Goes on here from a file, and compares with how the other engine went on.
    fn crossing(&self, direction: Direction, file: &Path, out: &Path) -> Result<Crossing, XtaskError> {
        let handoff = Handoff::read(file)?;
        let mut session = self.session()?;
        let expect = Expect { tokens: Some(self.tokens), ..Expect::default() };
        let mut sequence = session.resume(&handoff, &expect)?;
        let content = |wanted: &str| XtaskError::Content {
            path: file.display().to_string(),
            wanted: wanted.into(),
            found: "none".into(),
        };
        let first = handoff.next_token().ok_or_else(|| content("the token that follows"))?;
        let ours = follow(&mut session, &mut sequence, first)?;
        let other = Checkpoint::open(out).map_err(|e| XtaskError::io(out, e))?;
        let theirs = Continuation {
            tokens: models::numbers(&other, out, "tokens")?.into_iter().map(|t| t as u32).collect(),
            logits: models::numbers(&other, out, "logits")?,
        };
        let (same, error) = theirs.compared(&ours);
        let (tensors, bytes) = (handoff.state().len(), handoff.bytes());
        Ok(Crossing { model: self.name.to_owned(), direction, tensors, bytes, same, count: COUNT, error })
    }
}

/// Goes on greedily.
fn follow(session: &mut Session, sequence: &mut Sequence, first: u32) -> Result<Continuation, XtaskError> {
    let mut tokens = vec![first];
    let mut logits = Vec::new();
    loop {
        let row = session.extend(sequence, &tokens[tokens.len() - 1..], Outputs::Last)?;
        logits.extend_from_slice(&row);
        if tokens.len() == COUNT {
            return Ok(Continuation { tokens, logits });
        }
        tokens.push(argmax(&row));
    }
}

/// A crossing as a row of the table.
fn line(crossing: &Crossing) -> String {
    let Crossing { model, direction, tensors, bytes, same, count, error } = crossing;
    let way = match direction {
        Direction::Here => "transformers → Tranship",
        Direction::There => "Tranship → transformers",
    };
    let end = if crossing.holds() { "" } else { " **apart**" };
    format!(
        "| `{model}` | {way} | {tensors}, {bytes} B | {POSITION} | {same} of {count} | {error:.1e}{end} |"
    )
}

/// What the page has of a run.
fn figures(made_by: &str, backend: &str, crossings: &[Crossing]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("\n{made_by}; Tranship {version} on `{backend}` under `parity`.\n\n");
    text.push_str("| model | direction | handed over | position | tokens equal | max \\|Δlogit\\| / σ |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    for crossing in crossings {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", line(crossing));
    }
    text.push('\n');
    text
}

/// A page with other figures between its marks.
fn with(page: &str, figures: &str) -> Result<String, XtaskError> {
    let unmarked = |mark: &str| XtaskError::Content {
        path: PAGE.into(),
        wanted: format!("the line `{}`", mark.trim_end()),
        found: "none".into(),
    };
    let (before, rest) = page.split_once(MARKS[0]).ok_or_else(|| unmarked(MARKS[0]))?;
    let (_, after) = rest.split_once(MARKS[1]).ok_or_else(|| unmarked(MARKS[1]))?;
    Ok(format!("{before}{}{figures}{}{after}", MARKS[0], MARKS[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        here.parent().unwrap_or(here)
    }

    #[test]
    fn without_a_python_it_says_what_it_needs() {
        let told = run(root(), &InteropArgs::default()).expect_err("there is no Python").to_string();
        assert!(told.contains("requirements.txt") && told.contains("--python"), "{told}");
    }

    #[test]
    fn what_differs_is_apart() {
        let one = Continuation { tokens: vec![4, 5, 6], logits: vec![1.0, -1.0, 1.0, -1.0, 1.0, -1.0] };
        let crossing = |other: &Continuation| {
            let (same, error) = one.compared(other);
            let (model, direction) = ("m".to_owned(), Direction::Here);
            Crossing { model, direction, tensors: 1, bytes: 4, same, count: 3, error }
        };
        assert!(crossing(&one).holds());
        let near = |by| Continuation { logits: one.logits.iter().map(|v| v + by).collect(), ..one.clone() };
        assert!(crossing(&near(1e-4)).holds());
        let off = crossing(&near(3e-4));
        assert!(!off.holds() && (off.error - 3e-4).abs() < 1e-6 && line(&off).contains("apart"), "{off:?}");
        assert!(!crossing(&near(f32::NAN)).holds());
        assert!(!crossing(&Continuation { logits: one.logits[..4].to_vec(), ..one.clone() }).holds());
        let other = crossing(&Continuation { tokens: vec![4, 9, 6], ..one.clone() });
        assert!(!other.holds() && other.same == 1, "{other:?}");
    }

    #[test]
    fn the_page_has_a_result_for_every_model_both_ways() {
        let page = std::fs::read_to_string(root().join(PAGE)).expect("the page");
        let result = page.split_once(MARKS[0]).expect("marks").1.split_once(MARKS[1]).expect("marks").0;
        for model in MODELS {
            let rows: Vec<&str> =
                result.lines().filter(|l| l.starts_with(&format!("| `{model}` |"))).collect();
            assert_eq!(rows.len(), 2, "{model}: run `cargo xtask interop --python PATH --write`");
        }
        assert_eq!(result.matches(&format!("| {COUNT} of {COUNT} |")).count(), 2 * MODELS.len());
        assert!(!result.contains("apart"), "{result}");
        assert_eq!(with(&page, result).expect("marks"), page);
        assert!(with("no marks", result).is_err());
    }
}
