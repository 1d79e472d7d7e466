//! Where a miss comes from: the first cut of the model whose output leaves the bound, and in it the first operation.
//!
//! Each cut (the embedding, a layer, the head) is run by itself, fed with the rows that the reference has at that
//! place, so that the errors of one cut do not pass into the next. Within the cut that is found, programs are cut off
//! after each value in turn ([`Typed::until`]), and run on both sides.

use super::Subject;
use super::bounds::Bound;
use super::cases::{End, What};
use super::measure::{deviation, identical};
use crate::XtaskError;
use std::fmt;
use std::sync::Arc;
use tranship_backend::{Chain, Input, Outputs, Reference, Segment};
use tranship_ctx::Typed;
use tranship_model::Cut;
use tranship_program::{Action, Dim, Graph, Kind, Node, ValueId};
use tranship_session::Model;

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The largest error of each cut's output, in deviations of the reference's, by the cut's name.
    pub cuts: Vec<(String, f64)>,
    /// What a cut may be off.
    pub bound: f64,
    /// The first place that is past the bound.
    pub place: Option<Place>,
}

/// The first place that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The cut: `layer 3`.
    pub cut: String,
    /// The operation, as the program says it; none where every value of the cut is within the bound.
    pub op: Option<String>,
    /// The error of the operation's result, or of the cut's.
    pub error: f64,
    /// The row and the column of the largest difference, the reference's value there and ours.
    pub at: (usize, usize, f32, f32),
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, error) in &self.cuts {
            let mark = if *error > self.bound { "  <-" } else { "" };
            writeln!(f, "    {name:9} {error:9.2e}{mark}")?;
        }
        match &self.place {
            None => writeln!(f, "    each cut by itself is within {:.0e}: the errors add up", self.bound),
            Some(place) => {
                let (row, column, wanted, found) = place.at;
                let what = place.op.as_deref().unwrap_or("its result, though no value before it");
                writeln!(f, "    first: {}, {what}", place.cut)?;
                writeln!(f, "    row {row}, column {column}: wanted {wanted:e}, found {found:e}")
            }
        }
    }
}

/// What an end is held to.
#[derive(Clone, Copy)]
enum Oracle {
    /// The reference in F32, within this many deviations.
    Reference(f64),
    /// The same end, not split: every bit.
    Itself,
}

/// Looks for the place where an end leaves its bound in a case that missed.
///
/// # Errors
/// When a cut cannot be run by the reference, or not be compiled by the end.
pub fn trace(subject: &Subject, end: &End, what: What) -> Result<Trace, XtaskError> {
    let model = Model::open(&subject.path)?;
    let rows = subject.tokens.len();
    let at = match what {
        What::Split(at) | What::Handoff(at) => at,
        What::Golden | What::Whole => rows,
    };
    let bound = Bound::of(&end.policy, 1.0);
    let reference = End { backend: Arc::new(Reference::new()), policy: "parity".into() };
    let run = Run { subject, model: &model, reference, end, at };
    let trace = run.all(Oracle::Reference(bound.max))?;
    if trace.place.is_some() || at == rows || !bound.exact {
        return Ok(trace);
    }
    // Every cut is near enough, so what is left is that a split changes bits.
    run.all(Oracle::Itself)
}

struct Run<'a> {
    subject: &'a Subject,
    model: &'a Model,
    reference: End,
    end: &'a End,
    /// Rows of the first step; those after it are stepped one by one.
    at: usize,
}

/// Rows between two cuts; before the first there are only tokens.
type Fed<'a> = Option<&'a [f32]>;

impl Run<'_> {
    fn all(&self, oracle: Oracle) -> Result<Trace, XtaskError> {
        let ctx = self.subject.tokens.len() as u64;
        let bound = if let Oracle::Reference(bound) = oracle { bound } else { 0.0 };
        let mut trace = Trace { cuts: Vec::new(), bound, place: None };
        let mut fed: Option<Vec<f32>> = None;
        for cut in self.model.spec().cuts(ctx).filter(|c| !matches!(c, Cut::DecodeLayer { .. })) {
            let graph = self.model.spec().program(cut)?.lift()?;
            let ours = self.typed(self.end, &graph)?;
            let plain = self.typed(&self.reference, &graph)?;
            let next = self.run(&self.reference, &plain, fed.as_deref(), self.subject.tokens.len())?;
            let found = self.compare(oracle, &ours, &plain, fed.as_deref())?;
            trace.cuts.push((name(cut), found.0));
            if found.0 > bound && trace.place.is_none() {
                trace.place =
                    Some(self.within(oracle, cut, (&graph, &ours, &plain), fed.as_deref(), found)?);
            }
            fed = Some(next);
        }
        Ok(trace)
    }

    fn typed(&self, end: &End, graph: &Graph) -> Result<Typed, XtaskError> {
        let accepts = &end.backend.caps().accepts;
        Ok(end.ctx()?.typed(graph, &|name| self.model.stored(name), accepts)?)
    }

    /// Runs one program on an end over the whole prompt: the first `at` rows as one step, the rest one by one.
    fn run(&self, end: &End, typed: &Typed, fed: Fed<'_>, at: usize) -> Result<Vec<f32>, XtaskError> {
        let rows = self.subject.tokens.len();
        let chain = Chain::new(vec![Arc::new(typed.clone())], rows);
        let mut step = end.backend.compile(&chain, &self.model.weights())?;
        let mut state = step.new_state()?;
        let width = fed.map_or(0, |f| f.len() / rows);
        let mut out = Vec::new();
        let mut position = 0;
        while position < rows {
            let count = if position < at { at.min(rows) - position } else { 1 };
            let segment = Segment { state: state.as_mut(), position, rows: count, outputs: Outputs::All };
            let input = match fed {
                None => Input::Tokens(&self.subject.tokens[position..position + count]),
                Some(fed) => Input::Rows(&fed[position * width..(position + count) * width]),
            };
            step.run(&mut [segment], input, &mut out)?;
            position += count;
        }
        Ok(out)
    }

    /// The error of what the programs return, and where it is largest.
    fn compare(
        &self,
        oracle: Oracle,
        ours: &Typed,
        plain: &Typed,
        fed: Fed<'_>,
    ) -> Result<(f64, Difference), XtaskError> {
        let rows = self.subject.tokens.len();
        let found = self.run(self.end, ours, fed, self.at)?;
        let wanted = match oracle {
            Oracle::Reference(_) => self.run(&self.reference, plain, fed, rows)?,
            Oracle::Itself => self.run(self.end, ours, fed, rows)?,
        };
        let difference = Difference::of(&wanted, &found, wanted.len() / rows);
        let error = match oracle {
            Oracle::Itself if identical(&wanted, &found) => 0.0,
            Oracle::Itself => difference.size.max(f64::MIN_POSITIVE),
            Oracle::Reference(_) => difference.size / deviation(&wanted).max(f64::MIN_POSITIVE),
        };
        Ok((error, difference))
    }

    /// The first value of a cut that is past the bound.
    fn within(
        &self,
        oracle: Oracle,
        cut: Cut,
        (graph, ours, plain): (&Graph, &Typed, &Typed),
        fed: Fed<'_>,
        found: (f64, Difference),
    ) -> Result<Place, XtaskError> {
        let bound = if let Oracle::Reference(bound) = oracle { bound } else { 0.0 };
        for node in &graph.nodes {
            // The typing pass keeps the numbers of the values that it finds, so one number names both sides' value.
            let Some(value) = rows_of(graph, node) else { continue };
            let (error, difference) = self.compare(oracle, &ours.until(value), &plain.until(value), fed)?;
            if error > bound {
                let op = Some(text(graph, node, value));
                return Ok(Place { cut: name(cut), op, error, at: difference.at });
            }
        }
        Ok(Place { cut: name(cut), op: None, error: found.0, at: found.1.at })
    }
}

/// The value that an operation makes, where it is rows of this step.
fn rows_of(graph: &Graph, node: &Node) -> Option<ValueId> {
    let Action::Apply { out, .. } = node.action else { return None };
    let value = graph.value(out);
    (value.kind == Kind::Float && value.shape.rows() == Dim::N).then_some(out)
}

fn name(cut: Cut) -> String {
    match cut {
        Cut::PrefillLayer { layer, .. } | Cut::DecodeLayer { layer, .. } => format!("layer {layer}"),
        other => other.to_string(),
    }
}

/// The line of the program that makes a value, with the tensor of a weight beside its name.
fn text(graph: &Graph, node: &Node, value: ValueId) -> String {
    let Action::Apply { op, args, .. } = &node.action else { return String::new() };
    let operand = |id: &ValueId| {
        let value = graph.value(*id);
        match &value.origin {
            tranship_program::Origin::Weight(weight) => format!("{} @ \"{weight}\"", value.name),
            _ => value.name.clone(),
        }
    };
    let args: Vec<String> = args.iter().map(operand).collect();
    format!("`{} = {}({})`", graph.value(value).name, op.name(), args.join(", "))
}

/// The largest difference of two outputs.
struct Difference {
    size: f64,
    at: (usize, usize, f32, f32),
}

impl Difference {
    fn of(wanted: &[f32], found: &[f32], width: usize) -> Difference {
        let mut largest = Difference { size: 0.0, at: (0, 0, 0.0, 0.0) };
        for (i, (w, f)) in wanted.iter().zip(found).enumerate() {
            let size = (f64::from(*w) - f64::from(*f)).abs();
            let size = if f.is_finite() { size } else { f64::INFINITY };
            if size > largest.size {
                largest = Difference { size, at: (i / width.max(1), i % width.max(1), *w, *f) };
            }
        }
        largest
    }
}
