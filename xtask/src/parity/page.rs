//! The perplexity of a page of prose that a trained model was not taught, under every policy on every backend.
//!
//! Distances between logits say how far a policy rounds; what that costs a reader is said by how much more a text
//! surprises the model. Fixtures with random weights have no such figure: every text surprises them alike.

use super::bounds::of_page;
use super::{End, Subject};
use crate::XtaskError;
use crate::backends::REFERENCE;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use tranship::text::{self, Specials};
use tranship_backend::{Outputs, Reference};
use tranship_session::Model;
use tranship_weights::Checkpoint;

/// The page.
const PAGE: &str = "fixtures/text/held_out.txt";

/// What a model that was not taught the page makes of it on one end: perplexities are those of a token.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The model's name.
    pub model: String,
    /// The backend and the policy.
    pub end: (String, String),
    /// Tokens of the page; all but the first are predicted.
    pub tokens: usize,
    /// The perplexity, or why there is none.
    pub perplexity: Result<f64, String>,
    /// That of the reference in F32.
    pub reference: f64,
    /// That of another implementation.
    pub golden: f64,
    /// How far from either it may be, as a part of it.
    pub bound: f64,
}

impl Reading {
    /// The parts by which it differs from the reference's and from the other implementation's.
    pub fn apart(&self) -> [f64; 2] {
        let found = self.perplexity.as_ref().copied().unwrap_or(f64::INFINITY);
        [self.reference, self.golden].map(|wanted| found / wanted - 1.0)
    }

    /// Whether it is within its bound.
    pub fn pass(&self) -> bool {
        self.apart().iter().all(|apart| apart.abs() <= self.bound)
    }
}

/// The readings of a subject on these ends; none of one whose golden knows no perplexity.
///
/// # Errors
/// When the page or the golden cannot be read, the page has other tokens than the golden says, or the reference cannot
/// run. What an end cannot do is a reading that fails.
pub fn all(root: &Path, subject: &Subject, ends: &[End]) -> Result<Vec<Reading>, XtaskError> {
    let Some((count, loss)) = known(&subject.path.join("golden.safetensors"))? else { return Ok(vec![]) };
    let model = Arc::new(Model::open(&subject.path)?);
    let path = root.join(PAGE);
    let page = std::fs::read_to_string(&path).map_err(|e| XtaskError::io(&path, e))?;
    let tokens = text::tokenizer(&model)?.encode_text(&page, Specials::Add).map_err(tranship::Error::from)?;
    if tokens.len() != count {
        let (wanted, found) = (format!("{count} tokens of {}", subject.name), tokens.len().to_string());
        return Err(XtaskError::Content { path: path.display().to_string(), wanted, found });
    }
    let truth = End { backend: Arc::new(Reference::new()), policy: "parity".into() };
    let reference = perplexity(&truth, &model, &tokens)?;
    let reading = |end: &End| Reading {
        model: subject.name.clone(),
        end: (end.backend.name().to_owned(), end.policy.clone()),
        tokens: count,
        perplexity: match (end.backend.name(), end.policy.as_str()) {
            (REFERENCE, "parity") => Ok(reference),
            _ => perplexity(end, &model, &tokens).map_err(|e| e.to_string()),
        },
        reference,
        golden: loss.exp(),
        bound: of_page(&end.policy),
    };
    Ok(ends.iter().map(reading).collect())
}

/// The tokens of the page and their mean surprise in nats, as the golden's metadata has them.
fn known(golden: &Path) -> Result<Option<(usize, f64)>, XtaskError> {
    if !golden.exists() {
        return Ok(None);
    }
    let file = Checkpoint::open(golden).map_err(|e| XtaskError::io(golden, e))?;
    let text = |key: &str| file.metadata().optional::<&str>(key).map_err(|e| XtaskError::io(golden, e));
    let (Some(tokens), Some(loss)) = (text("page_tokens")?, text("page_loss")?) else { return Ok(None) };
    let content = |wanted: &str, found: &str| XtaskError::Content {
        path: golden.display().to_string(),
        wanted: wanted.into(),
        found: found.into(),
    };
    let tokens = tokens.parse().map_err(|_| content("a number of `page_tokens`", tokens))?;
    let loss = loss.parse().map_err(|_| content("a `page_loss` in nats", loss))?;
    Ok(Some((tokens, loss)))
}

/// The perplexity of tokens on an end.
///
/// # Errors
/// What the end says.
pub fn perplexity(end: &End, model: &Arc<Model>, tokens: &[u32]) -> Result<f64, XtaskError> {
    let mut session = end.session(model, tokens.len(), tokens.len())?;
    let mut sequence = session.sequence()?;
    let logits = session.extend(&mut sequence, tokens, Outputs::All)?;
    Ok(text::surprise(&logits, logits.len() / tokens.len().max(1), tokens).exp())
}

/// The readings as a table; nothing where there are none.
pub fn lines(readings: &[Reading]) -> String {
    let Some(first) = readings.first() else { return String::new() };
    let head = format!("{:22} on a page of {} tokens", first.model, first.tokens);
    let mut text = format!("{head:58} {:>10} {:>12} {:>10}\n", "perplexity", "to reference", "to golden");
    for reading in readings {
        let (backend, policy) = &reading.end;
        let figure = reading.perplexity.as_ref().map_or("-".to_owned(), |found| format!("{found:.4}"));
        let [reference, golden] = reading.apart().map(|apart| format!("{apart:+.1e}"));
        let verdict = if reading.pass() { "ok" } else { "MISS" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:22} {policy:9} {backend:25} {figure:>10} {reference:>12} {golden:>10}  {verdict}",
            reading.model
        );
        match &reading.perplexity {
            Err(error) => text += &format!("    {error}\n"),
            Ok(_) if !reading.pass() => text += &format!("    at most {:.1e}\n", reading.bound),
            Ok(_) => {}
        }
    }
    text
}

/// The readings as JSON. What is not finite is `null`.
pub fn json(readings: &[Reading]) -> Value {
    let one = |reading: &Reading| {
        json!({
            "model": reading.model,
            "backend": reading.end.0, "policy": reading.end.1,
            "tokens": reading.tokens,
            "perplexity": reading.perplexity.as_ref().ok(),
            "reference": reading.reference, "golden": reading.golden,
            "bound": reading.bound,
            "error": reading.perplexity.as_ref().err(), "pass": reading.pass(),
        })
    };
    readings.iter().map(one).collect()
}
