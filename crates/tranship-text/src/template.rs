//! A model's own chat template: a conversation to the text that the model was trained on.
//!
//! The environment is the one that Hugging Face templates are written for: Jinja with trimmed blocks, loop controls,
//! Python's string methods and printing, `tojson` as `json.dumps`, `raise_exception`, `strftime_now` and the `generation`
//! block. A template comes from a file that anyone may have written, so its work and its depth are bounded, and it sees
//! nothing but what it is given: no clock, no file, no other template. The bound has one gap, which is the engine's own: a
//! list that is joined to itself more than 32 times is laid out in memory before it is paid for.

use std::error::Error as _;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::python::{self, Json};
use crate::{Date, TextError};

const NAME: &str = "chat";

/// Bound of the work of one rendering: about one unit an instruction or 64 bytes, far above any honest template.
const BUDGET: u64 = 2_000_000;

/// Bound of nested calls.
const DEPTH_MAX: usize = 100;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A turn of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// Whether the text ends where the assistant is to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GenerationPrompt {
    /// It does: the model's next token begins the answer.
    #[default]
    Add,
    /// It ends after the last message.
    Omit,
}

/// What a template is given besides the messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderOptions<'a> {
    /// Whether the text ends where the assistant is to speak.
    pub generation_prompt: GenerationPrompt,
    /// Text of the start token, `bos_token` in templates; undefined where absent.
    pub bos: Option<&'a str>,
    /// Text of the end token, `eos_token` in templates; undefined where absent.
    pub eos: Option<&'a str>,
    /// What `strftime_now` tells; where absent, templates find that function undefined.
    pub date: Option<Date>,
    /// Further variables, such as `tools` or `enable_thinking`; they win over the others.
    pub extra: &'a [(&'a str, serde_json::Value)],
}

/// A chat template, parsed.
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

/// Carries a template's own words through the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] with the line.
    pub fn new(source: &str) -> Result<Self, TextError> {
        let syntax = |source: Error| TextError::TemplateSyntax { line: source.line().unwrap_or(0), source };
        let mut environment = Environment::new();
        environment.set_syntax(
            SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(syntax)?,
        );
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_recursion_limit(DEPTH_MAX);
        environment.set_fuel(Some(BUDGET));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, state, value| {
            let text = python::str_of(state, value)?;
            out.write_str(&text).map_err(Error::from)
        });
        environment.set_debug(false);
        environment.add_filter("tojson", tojson);
        // A bool is a number in Python, and strings, maps and undefined values are sequences; None is none.
        environment.add_test("number", |v: Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool));
        environment.add_test("iterable", |v: Value| is_iterable(&v));
        environment.add_test("sequence", |v: Value| is_iterable(&v) && v.kind() != ValueKind::Iterable);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
        });
        environment.add_template_owned(NAME, scoped_generation(source)).map_err(syntax)?;
        Ok(ChatTemplate { environment })
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// [`TextError::TemplateRaised`] when the template refuses it, [`TextError::TemplateBudget`] when it does not come to
    /// an end, else [`TextError::TemplateRender`] with the line.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TextError> {
        let template = self.environment.get_template(NAME).map_err(render_error)?;
        template.render(context(messages, options)).map_err(render_error)
    }
}

fn context(messages: &[Message], options: &RenderOptions) -> Value {
    let messages: Vec<Value> = messages
        .iter()
        .map(|m| Value::from_pairs([("role", m.role.as_str()), ("content", m.content.as_str())]))
        .collect();
    let mut variables = vec![
        ("messages", Value::from(messages)),
        ("tools", Value::from(())),
        ("documents", Value::from(())),
        ("add_generation_prompt", Value::from(options.generation_prompt == GenerationPrompt::Add)),
    ];
    variables.extend(options.bos.map(|bos| ("bos_token", Value::from(bos))));
    variables.extend(options.eos.map(|eos| ("eos_token", Value::from(eos))));
    if let Some(date) = options.date {
        variables.push(("strftime_now", Value::from_function(move |pattern: String| date.format(&pattern))));
    }
    variables.extend(options.extra.iter().map(|(name, value)| (*name, python::from_json(value))));
    Value::from_pairs(variables)
}

fn render_error(error: Error) -> TextError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::TemplateBudget { budget: BUDGET };
    }
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return TextError::TemplateRaised { message: message.clone() };
        }
        if inner.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return TextError::TemplateBudget { budget: BUDGET };
        }
        cause = inner.source();
    }
    TextError::TemplateRender { line: error.line().unwrap_or(0), source: error }
}

fn is_iterable(value: &Value) -> bool {
    use ValueKind as K;
    matches!(value.kind(), K::String | K::Seq | K::Iterable | K::Map | K::Undefined)
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, as Hugging Face defines it.
fn tojson(state: &State, value: Value, positional: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    if !positional.is_empty() {
        return Err(Error::new(ErrorKind::TooManyArguments, "tojson takes its options by name"));
    }
    let separators = named.get::<Option<Vec<String>>>("separators")?;
    let json = Json {
        indent: named.get("indent")?,
        sort_keys: named.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ascii: named.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        separators: match separators.as_deref() {
            None => None,
            Some([comma, colon]) => Some((comma.clone(), colon.clone())),
            Some(other) => {
                let message = format!("separators: wanted two strings, found {}", other.len());
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        },
    };
    named.assert_all_used()?;
    python::json_of(state, &value, &json)
}

/// `{% generation %}` marks the assistant's words for training and prints its body: here, a block with its own scope.
fn scoped_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(length) = tag.find("%}").map(|end| end + 2) else { break };
        let (tag, after) = tag.split_at(length);
        let word = tag[2..length - 2].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
