//! Where a miss comes from: the first cut of the model whose output leaves the bound, and in it the first operation.
//!
//! Each cut (the embedding, a layer, the head) is run by itself, fed with the rows that the reference has at that
//! place, so that the errors of one cut do not pass into the next. Within the cut that is found, programs are cut off
//! after each value in turn ([`Typed::until`]), and run on both sides.
//!
//! A cut may be off by the bound of its policy; on a backend that is not the reference, by twice what the reference
//! under that policy is off at the same place, where that is less.

use super::Subject;
use super::bounds::Bound;
use super::cases::{End, What};
use super::measure::{deviation, identical};
use crate::XtaskError;
use crate::backends::REFERENCE;
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
    /// Each cut by name: the largest error of its output, in deviations of the reference's, and what it may be.
    pub cuts: Vec<(String, f64, f64)>,
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
        for (name, error, bound) in &self.cuts {
            let mark = if error > bound { "  <-" } else { "" };
            writeln!(f, "    {name:9} {error:9.2e} of {bound:8.1e}{mark}")?;
        }
        match &self.place {
            None => writeln!(f, "    each cut by itself is within its bound"),
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
        What::Golden | What::Whole | What::Layers(_) => rows,
    };
    let bound = Bound::of(&end.policy, 1.0);
    let backend = Arc::new(Reference::new());
    let reference = End { backend: backend.clone(), policy: "parity".into() };
    let alike = End { backend, policy: end.policy.clone() };
    let run = Run { subject, model: &model, reference, alike, end, at };
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
    /// The reference in F32.
    reference: End,
    /// The reference under the policy of the end.
    alike: End,
    end: &'a End,
    /// Rows of the first step; those after it are stepped one by one.
    at: usize,
}

/// Rows between two cuts; before the first there are only tokens.
type Fed<'a> = Option<&'a [f32]>;

/// A program as the three sides have it.
struct Sides {
    reference: Typed,
    alike: Typed,
    ours: Typed,
}

impl Sides {
    fn until(&self, value: ValueId) -> Sides {
        let [reference, alike, ours] = [&self.reference, &self.alike, &self.ours].map(|t| t.until(value));
        Sides { reference, alike, ours }
    }
}

/// What a comparison found.
struct Found {
    error: f64,
    bound: f64,
    difference: Difference,
}

/// A backend of its own may be off this many times what the reference is, beside the bound of `parity`.
const BESIDE: f64 = 2.0;

impl Run<'_> {
    fn all(&self, oracle: Oracle) -> Result<Trace, XtaskError> {
        let ctx = self.subject.tokens.len() as u64;
        let mut trace = Trace { cuts: Vec::new(), place: None };
        let mut fed: Option<Vec<f32>> = None;
        for cut in self.model.spec().cuts(ctx).filter(|c| !matches!(c, Cut::DecodeLayer { .. })) {
            let graph = self.model.spec().program(cut)?.lift()?;
            let sides = Sides {
                reference: self.typed(&self.reference, &graph)?,
                alike: self.typed(&self.alike, &graph)?,
                ours: self.typed(self.end, &graph)?,
            };
            let rows = self.subject.tokens.len();
            let next = self.run(&self.reference, &sides.reference, fed.as_deref(), rows)?;
            let found = self.compare(oracle, &sides, fed.as_deref())?;
            trace.cuts.push((name(cut), found.error, found.bound));
            if found.error > found.bound && trace.place.is_none() {
                trace.place = Some(self.within(oracle, cut, (&graph, &sides), fed.as_deref(), found)?);
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
    fn compare(&self, oracle: Oracle, sides: &Sides, fed: Fed<'_>) -> Result<Found, XtaskError> {
        let rows = self.subject.tokens.len();
        let ours = self.run(self.end, &sides.ours, fed, self.at)?;
        let most = match oracle {
            Oracle::Itself => {
                let wanted = self.run(self.end, &sides.ours, fed, rows)?;
                let difference = Difference::of(&wanted, &ours, wanted.len() / rows);
                let same = identical(&wanted, &ours);
                let error = if same { 0.0 } else { difference.size.max(f64::MIN_POSITIVE) };
                return Ok(Found { error, bound: 0.0, difference });
            }
            Oracle::Reference(most) => most,
        };
        let wanted = self.run(&self.reference, &sides.reference, fed, rows)?;
        let unit = deviation(&wanted).max(f64::MIN_POSITIVE);
        let mut bound = most;
        if self.end.backend.name() != REFERENCE {
            let alike = self.run(&self.alike, &sides.alike, fed, rows)?;
            let cost = Difference::of(&wanted, &alike, 1).size / unit;
            bound = most.min(BESIDE * cost + Bound::of("parity", 1.0).max);
        }
        let difference = Difference::of(&wanted, &ours, wanted.len() / rows);
        Ok(Found { error: difference.size / unit, bound, difference })
    }

    /// The first value of a cut that is past its bound.
    fn within(
        &self,
        oracle: Oracle,
        cut: Cut,
        (graph, sides): (&Graph, &Sides),
        fed: Fed<'_>,
        whole: Found,
    ) -> Result<Place, XtaskError> {
        for node in &graph.nodes {
            // The typing pass keeps the numbers of the values that it finds, so one number names all sides' value.
            let Some(value) = rows_of(graph, node) else { continue };
            let found = self.compare(oracle, &sides.until(value), fed)?;
            if found.error > found.bound {
                let op = Some(text(graph, node, value));
                return Ok(Place { cut: name(cut), op, error: found.error, at: found.difference.at });
            }
        }
        Ok(Place { cut: name(cut), op: None, error: whole.error, at: whole.difference.at })
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
