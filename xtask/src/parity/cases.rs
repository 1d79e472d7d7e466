//! The runs that are compared: whole, split, handed from one end to another, and cut between two layers.
//!
//! An end is a backend under a policy. Each end has two sessions, with contexts and batch sizes that differ: the
//! first prefills, the second takes over from nothing but the bytes of a hand-off, and steps row by row. A session that
//! is cut has its first layers on one end and the others on the same or another end of one policy.

use super::Subject;
use super::bounds::{Bound, chooses};
use super::measure::{Figures, deviation, identical};
use crate::XtaskError;
use crate::backends::REFERENCE;
use std::collections::BTreeMap;
use std::sync::Arc;
use tranship_backend::{Backend, Outputs, Reference};
use tranship_ctx::{ComputeCtx, Device};
use tranship_handoff::{Conversion, Expect, Handoff};
use tranship_session::{Model, Options, Part, Session};

/// A backend under a policy.
#[derive(Clone)]
pub struct End {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// The policy's name.
    pub policy: String,
}

impl End {
    /// The name of the end in reports: `cpu/quantized`.
    pub fn label(&self) -> String {
        format!("{}/{}", self.backend.name(), self.policy)
    }

    /// The policy as a value.
    ///
    /// # Errors
    /// A name that is no policy.
    pub fn ctx(&self) -> Result<ComputeCtx, XtaskError> {
        Ok(ComputeCtx::preset(&self.policy, Device::of(self.backend.name()))?)
    }

    pub(crate) fn session(
        &self,
        model: &Arc<Model>,
        ctx: usize,
        max_rows: usize,
    ) -> Result<Session, XtaskError> {
        let options = Options { ctx: ctx as u64, max_rows };
        Ok(Session::open(model.clone(), self.backend.clone(), self.ctx()?, options)?)
    }
}

/// What a case compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The whole prompt with an independent implementation's logits.
    Golden,
    /// The whole prompt with the reference.
    Whole,
    /// The prompt in two parts, the second fed by a hand-off, with the reference.
    Split(usize),
    /// As a split, but the second part runs on another end; its rows alone count.
    Handoff(usize),
    /// The whole prompt, through the layers before this one on the end that prefills, and through the others on the end
    /// that decodes; with the reference, and on one end with the whole run as well.
    Layers(usize),
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Case {
    /// The model's name.
    pub model: String,
    /// What is compared.
    pub what: What,
    /// The end that prefills: its backend and policy.
    pub from: (String, String),
    /// The end that decodes.
    pub to: (String, String),
    /// The distance, or why there is none.
    pub figures: Result<Figures, String>,
    /// Whether every bit is that of the whole run on the same end, where that was compared.
    pub identical: Option<bool>,
    /// What is allowed.
    pub bound: Bound,
}

impl Case {
    /// Whether the case is within its bounds.
    pub fn pass(&self) -> bool {
        let exact = !self.bound.exact || self.identical != Some(false);
        exact && self.figures.as_ref().is_ok_and(|f| self.bound.holds(f))
    }
}

/// Rows that the second session's context has beyond the first's: another context, and one at which no fixture's
/// rotations are those of long contexts where the first's are not.
const WIDER: usize = 15;

/// The logits of the prompt by the reference interpreter in F32.
///
/// # Errors
/// When the model cannot be run.
pub fn truth(model: &Arc<Model>, tokens: &[u32]) -> Result<Vec<f32>, XtaskError> {
    by_reference(model, tokens, "parity")
}

fn by_reference(model: &Arc<Model>, tokens: &[u32], policy: &str) -> Result<Vec<f32>, XtaskError> {
    let end = End { backend: Arc::new(Reference::new()), policy: policy.to_owned() };
    whole(&mut end.session(model, tokens.len(), tokens.len())?, tokens)
}

fn whole(session: &mut Session, tokens: &[u32]) -> Result<Vec<f32>, XtaskError> {
    let mut sequence = session.sequence()?;
    Ok(session.extend(&mut sequence, tokens, Outputs::All)?)
}

/// What an end has prefilled: the first rows' logits, and the hand-off as bytes.
struct Prefilled {
    logits: Vec<f32>,
    bytes: Vec<u8>,
}

/// What the first session of an end gives.
struct First {
    whole: Vec<f32>,
    parts: BTreeMap<usize, Prefilled>,
}

fn first(end: &End, model: &Arc<Model>, subject: &Subject) -> Result<First, XtaskError> {
    let tokens = &subject.tokens;
    let mut session = end.session(model, tokens.len(), tokens.len())?;
    let logits = whole(&mut session, tokens)?;
    let mut parts = BTreeMap::new();
    for &at in &subject.splits {
        let mut sequence = session.sequence()?;
        let logits = session.extend(&mut sequence, &tokens[..at], Outputs::All)?;
        let bytes = session.suspend(&sequence, Some(tokens[at]))?.to_bytes()?;
        parts.insert(at, Prefilled { logits, bytes });
    }
    Ok(First { whole: logits, parts })
}

/// The logits of the rows from `at` on, from a hand-off's bytes.
fn rest(session: &mut Session, bytes: &[u8], tokens: &[u32], at: usize) -> Result<Vec<f32>, XtaskError> {
    let handoff = Handoff::from_bytes(bytes.to_vec())?;
    let same = handoff.contract().identity.policy == session.policy().numerics();
    let conversion = if same { Conversion::None } else { Conversion::Declared };
    let mut sequence =
        session.resume(&handoff, &Expect { conversion, tokens: Some(&tokens[..at]), ..Expect::default() })?;
    let mut logits = Vec::new();
    for token in &tokens[at..] {
        logits.extend(session.extend(&mut sequence, &[*token], Outputs::All)?);
    }
    Ok(logits)
}

/// The logits of the prompt through two ends of one policy, of which the second has the layers from `cut` on.
fn through(
    model: &Arc<Model>,
    (from, to): (&End, &End),
    cut: usize,
    tokens: &[u32],
) -> Result<Vec<f32>, XtaskError> {
    let part = |end: &End, layers| Part { backend: end.backend.clone(), layers };
    let parts = vec![part(from, 0..cut), part(to, cut..model.spec().layers.len())];
    let options = Options { ctx: tokens.len() as u64, max_rows: tokens.len() };
    whole(&mut Session::split(model.clone(), parts, from.ctx()?, options)?, tokens)
}

/// Where hand-offs between two ends are made: the split in the middle.
fn middle(subject: &Subject) -> usize {
    subject.splits.iter().copied().min_by_key(|s| s.abs_diff(subject.tokens.len() / 2)).unwrap_or(1)
}

/// Every case of one model over these ends.
///
/// # Errors
/// When the model cannot be opened, or not run by the reference. What an end cannot do is a case that fails.
pub fn all(subject: &Subject, ends: &[End]) -> Result<Vec<Case>, XtaskError> {
    let model = Arc::new(Model::open(&subject.path)?);
    let truth = truth(&model, &subject.tokens)?;
    let width = truth.len() / subject.tokens.len().max(1);
    let mut costs = BTreeMap::new();
    for policy in ends.iter().map(|e| e.policy.as_str()) {
        if !costs.contains_key(policy) {
            let ours = by_reference(&model, &subject.tokens, policy)?;
            costs.insert(policy.to_owned(), Figures::of(&truth, &ours, width));
        }
    }
    let chooses = chooses(model.spec());
    let run = Run { subject, truth: &truth, deviation: deviation(&truth), width, costs, chooses };
    let firsts: Vec<Result<First, XtaskError>> = ends.iter().map(|end| first(end, &model, subject)).collect();
    let mut cases = Vec::new();
    for (end, first) in ends.iter().zip(&firsts) {
        run.whole(end, first, &mut cases);
    }
    for (to, own) in ends.iter().zip(&firsts) {
        let Ok(own) = own else { continue };
        let rows = subject.tokens.len();
        let mut session = match to.session(&model, rows + WIDER, 5) {
            Ok(session) => session,
            Err(error) => {
                cases.push(run.failed(What::Whole, to, to, &error));
                continue;
            }
        };
        for (&at, part) in &own.parts {
            run.split(to, own, (at, part), &mut session, &mut cases);
        }
        for from in ends.iter().filter(|from| from.policy == to.policy) {
            run.layers(&model, (from, to), own, &mut cases);
        }
        for (from, first) in ends.iter().zip(&firsts).filter(|(from, _)| from.label() != to.label()) {
            let at = middle(subject);
            if let Some(part) = first.as_ref().ok().and_then(|f| f.parts.get(&at)) {
                run.handoff((from, to), (at, part), &mut session, &mut cases);
            }
        }
    }
    Ok(cases)
}

struct Run<'a> {
    subject: &'a Subject,
    truth: &'a [f32],
    deviation: f64,
    width: usize,
    /// What each policy costs on the reference.
    costs: BTreeMap<String, Figures>,
    /// Whether rounding may change what rows are made of.
    chooses: bool,
}

impl Run<'_> {
    fn case(&self, what: What, (from, to): (&End, &End), figures: Figures, identical: Option<bool>) -> Case {
        Case {
            model: self.subject.name.clone(),
            what,
            from: (from.backend.name().to_owned(), from.policy.clone()),
            to: (to.backend.name().to_owned(), to.policy.clone()),
            figures: Ok(figures),
            identical,
            bound: self.bound(what, from, to),
        }
    }

    fn bound(&self, what: What, from: &End, to: &End) -> Bound {
        let for_model = |bound: Bound| if self.chooses { bound.by_row(self.deviation) } else { bound };
        let own = for_model(Bound::of(&from.policy, self.deviation));
        match (what, self.costs.get(&from.policy)) {
            // Bits are those of the whole run on one end alone.
            (What::Layers(_), _) if from.backend.name() != to.backend.name() => Bound { exact: false, ..own },
            (What::Handoff(_), _) => for_model(Bound::of_pair(&from.policy, &to.policy, self.deviation)),
            (What::Whole | What::Split(_) | What::Layers(_), Some(cost))
                if from.backend.name() != REFERENCE =>
            {
                own.beside(cost)
            }
            _ => own,
        }
    }

    fn failed(&self, what: What, from: &End, to: &End, error: &XtaskError) -> Case {
        Case { figures: Err(error.to_string()), ..self.case(what, (from, to), Figures::default(), None) }
    }

    fn whole(&self, end: &End, first: &Result<First, XtaskError>, cases: &mut Vec<Case>) {
        let ours = match first {
            Ok(first) => &first.whole,
            Err(error) => return cases.push(self.failed(What::Whole, end, end, error)),
        };
        cases.push(self.case(What::Whole, (end, end), Figures::of(self.truth, ours, self.width), None));
        if let Some(golden) = self.subject.golden.as_ref().filter(|_| end.policy == "parity") {
            let (wanted, ours, width) = golden.pick(ours, self.width);
            cases.push(self.case(What::Golden, (end, end), Figures::of(&wanted, &ours, width), None));
        }
    }

    fn split(
        &self,
        end: &End,
        first: &First,
        (at, part): (usize, &Prefilled),
        session: &mut Session,
        cases: &mut Vec<Case>,
    ) {
        let what = What::Split(at);
        match rest(session, &part.bytes, &self.subject.tokens, at) {
            Ok(rest) => {
                let ours = [part.logits.as_slice(), rest.as_slice()].concat();
                let figures = Figures::of(self.truth, &ours, self.width);
                let same = identical(&ours, &first.whole);
                cases.push(self.case(what, (end, end), figures, Some(same)));
            }
            Err(error) => cases.push(self.failed(what, end, end, &error)),
        }
    }

    /// A cut in the middle of the layers, if there are two.
    fn layers(&self, model: &Arc<Model>, (from, to): (&End, &End), own: &First, cases: &mut Vec<Case>) {
        let cut = model.spec().layers.len() / 2;
        if cut == 0 {
            return;
        }
        let what = What::Layers(cut);
        match through(model, (from, to), cut, &self.subject.tokens) {
            Ok(ours) => {
                let figures = Figures::of(self.truth, &ours, self.width);
                let alone = from.backend.name() == to.backend.name();
                let same = alone.then(|| identical(&ours, &own.whole));
                cases.push(self.case(what, (from, to), figures, same));
            }
            Err(error) => cases.push(self.failed(what, from, to, &error)),
        }
    }

    fn handoff(
        &self,
        (from, to): (&End, &End),
        (at, part): (usize, &Prefilled),
        session: &mut Session,
        cases: &mut Vec<Case>,
    ) {
        let what = What::Handoff(at);
        match rest(session, &part.bytes, &self.subject.tokens, at) {
            Ok(rest) => {
                let figures = Figures::of(&self.truth[at * self.width..], &rest, self.width);
                cases.push(self.case(what, (from, to), figures, None));
            }
            Err(error) => cases.push(self.failed(what, from, to, &error)),
        }
    }
}
