//! The results as a table for people and as JSON for scripts.

use super::cases::{Case, What};
use super::measure::Figures;
use super::page::{self, Reading};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// How much of the table is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// A line for each model, policy and backend.
    Summary,
    /// A line for each case.
    Every,
}

const FAIL: &str = "MISS";

impl What {
    fn label(self) -> String {
        match self {
            What::Golden => "golden".into(),
            What::Whole => "whole".into(),
            What::Split(at) => format!("{at}"),
            What::Handoff(at) => format!("to {at}"),
            What::Layers(cut) => format!("cut {cut}"),
        }
    }
}

/// How far a case has come towards its bounds: 1 is at the bound. What failed is past all of them.
fn strain(case: &Case) -> f64 {
    let Ok(figures) = &case.figures else { return f64::INFINITY };
    if !case.pass() && case.bound.holds(figures) {
        return f64::INFINITY;
    }
    let bound = &case.bound;
    let of_rows = (figures.median / bound.median).max(figures.quartile / bound.quartile);
    (figures.max / bound.max).max(figures.rms / bound.rms).max(figures.kl / bound.kl).max(of_rows)
}

fn worst<'c>(cases: impl Iterator<Item = &'c Case>) -> Option<&'c Case> {
    cases.max_by(|a, b| strain(a).total_cmp(&strain(b)))
}

/// The header of the table.
pub fn header(detail: Detail) -> String {
    match detail {
        Detail::Summary => format!(
            "{:22} {:9} {:9} {:>6} {:>8} {:>8} {:>8} {:>6}  {:19} {:>8}  {}\n",
            "model", "policy", "backend", "worst", "max", "rms", "kl", "argmax", "worst with", "max", ""
        ),
        Detail::Every => format!(
            "{:22} {:19} {:19} {:>7} {:>8} {:>8} {:>8} {:>6}  {:5} {}\n",
            "model", "from", "to", "split", "max", "rms", "kl", "argmax", "bits", ""
        ),
    }
}

/// The lines of one model's cases.
pub fn lines(cases: &[Case], detail: Detail) -> String {
    match detail {
        Detail::Every => cases.iter().map(every).collect(),
        Detail::Summary => {
            let mut text = String::new();
            for whole in cases.iter().filter(|c| c.what == What::Whole) {
                let here = |c: &&Case| c.from == whole.from;
                let own = worst(cases.iter().filter(here).filter(|c| c.from == c.to));
                let out = worst(cases.iter().filter(here).filter(|c| c.from != c.to));
                let pass = cases.iter().filter(here).all(Case::pass);
                let _ = writeln!(text, "{}", summary(own.unwrap_or(whole), out, pass));
                let failures = cases.iter().filter(here).filter(|c| !c.pass());
                text.extend(failures.map(|c| format!("    {}", reason(c))));
            }
            text
        }
    }
}

/// A figure in the width of its column.
fn number(value: f64) -> String {
    if value == 0.0 { "0".into() } else { format!("{value:.1e}") }
}

fn row(figures: &Result<Figures, String>) -> String {
    match figures {
        Ok(f) => {
            let first = f.first_divergent.map_or("same".into(), |r| r.to_string());
            format!("{:>8} {:>8} {:>8} {first:>6}", number(f.max), number(f.rms), number(f.kl))
        }
        Err(_) => format!("{:>8} {:>8} {:>8} {:>6}", "-", "-", "-", "-"),
    }
}

fn summary(own: &Case, out: Option<&Case>, pass: bool) -> String {
    let (backend, policy) = &own.from;
    let handoff = out.map_or(String::new(), |c| {
        let max = c.figures.as_ref().map_or("-".into(), |f| number(f.max));
        format!("{:19} {max:>8}", format!("{}/{}", c.to.0, c.to.1))
    });
    let verdict = if pass { "ok" } else { FAIL };
    format!(
        "{:22} {policy:9} {backend:9} {:>6} {}  {handoff:28}  {verdict}",
        own.model,
        own.what.label(),
        row(&own.figures)
    )
}

fn every(case: &Case) -> String {
    let end = |(backend, policy): &(String, String)| format!("{backend}/{policy}");
    let bits = match case.identical {
        Some(true) => "same",
        Some(false) => "other",
        None => "",
    };
    let verdict = if case.pass() { "ok\n".to_owned() } else { format!("{FAIL}\n    {}", reason(case)) };
    format!(
        "{:22} {:19} {:19} {:>7} {}  {bits:5} {verdict}",
        case.model,
        end(&case.from),
        end(&case.to),
        case.what.label(),
        row(&case.figures)
    )
}

/// Why a case fails, as a line.
fn reason(case: &Case) -> String {
    let place = match case.what {
        What::Golden => "against the golden".into(),
        What::Whole => "whole".into(),
        What::Split(at) => format!("split at {at}"),
        What::Handoff(at) => format!("handed at {at} to {}/{}", case.to.0, case.to.1),
        What::Layers(cut) => format!("layers from {cut} on {}/{}", case.to.0, case.to.1),
    };
    let figures = match &case.figures {
        Err(error) => return format!("{place}: {error}\n"),
        Ok(figures) => figures,
    };
    let bound = &case.bound;
    let mut parts = Vec::new();
    for (name, found, most) in [
        ("max", figures.max, bound.max),
        ("rms", figures.rms, bound.rms),
        ("kl", figures.kl, bound.kl),
        ("median row", figures.median, bound.median),
        ("row at three quarters", figures.quartile, bound.quartile),
    ] {
        if found > most {
            parts.push(format!("{name} {found:.2e}, at most {most:.1e}"));
        }
    }
    if bound.exact && case.identical == Some(false) {
        parts.push("other bits than unsplit".into());
    }
    format!("{place}: {}\n", parts.join("; "))
}

/// All cases and readings of pages as one JSON object. What is not finite is `null`.
pub fn json(cases: &[Case], pages: &[Reading]) -> Value {
    let end = |(backend, policy): &(String, String)| json!({ "backend": backend, "policy": policy });
    let one = |case: &Case| {
        let (what, at) = match case.what {
            What::Golden => ("golden", None),
            What::Whole => ("whole", None),
            What::Split(at) => ("split", Some(at)),
            What::Handoff(at) => ("handoff", Some(at)),
            What::Layers(cut) => ("layers", Some(cut)),
        };
        let figures = case.figures.as_ref().ok();
        json!({
            "model": case.model, "what": what, "split": at, "from": end(&case.from), "to": end(&case.to),
            "max": figures.map(|f| f.max), "rms": figures.map(|f| f.rms), "kl": figures.map(|f| f.kl),
            "median": figures.map(|f| f.median), "quartile": figures.map(|f| f.quartile),
            "first_divergent": figures.and_then(|f| f.first_divergent),
            "argmax_equal": figures.map(|f| f.argmax_equal), "bit_identical": case.identical,
            "bound": { "median": case.bound.median, "quartile": case.bound.quartile, "max": case.bound.max, "rms": case.bound.rms, "kl": case.bound.kl,
                "bit_identical": case.bound.exact },
            "error": case.figures.as_ref().err(), "pass": case.pass(),
        })
    };
    let missed = cases.iter().filter(|c| !c.pass()).count() + pages.iter().filter(|r| !r.pass()).count();
    let cases: Vec<Value> = cases.iter().map(one).collect();
    json!({ "pass": missed == 0, "missed": missed, "cases": cases, "pages": page::json(pages) })
}
