//! Rendered conversations against `transformers`' own Jinja environment, and bounds on templates that mean harm.

mod common;

use common::{data, text};
use serde_json::Value;
use tranship_text::{ChatTemplate, Date, GenerationPrompt, Message, RenderOptions, TextError};

fn messages(list: &Value) -> Vec<Message> {
    let field = |m: &Value, key: &str| m[key].as_str().expect("a string").to_owned();
    let list = list.as_array().expect("messages");
    list.iter().map(|m| Message::new(field(m, "role"), field(m, "content"))).collect()
}

/// Renders one case as its options say.
fn render(case: &Value) -> Result<String, TextError> {
    let name = case["template"].as_str().expect("a name");
    let options = &case["options"];
    let extra: Vec<(&str, Value)> = options["extra"]
        .as_object()
        .expect("extra variables")
        .iter()
        .map(|(k, v)| (k.as_str(), v.clone()))
        .collect();
    let date = options["date"].as_array().map(|d| {
        let part = |i: usize| d[i].as_u64().expect("a number");
        Date::new(part(0) as u16, part(1) as u8, part(2) as u8).expect("a date")
    });
    let prompt = match options["generation_prompt"].as_bool().expect("a choice") {
        true => GenerationPrompt::Add,
        false => GenerationPrompt::Omit,
    };
    let template = ChatTemplate::new(&text(&format!("templates/{name}.jinja")))?;
    let options = RenderOptions {
        generation_prompt: prompt,
        bos: options["bos"].as_str(),
        eos: options["eos"].as_str(),
        date,
        extra: &extra,
    };
    template.render(&messages(&case["messages"]), &options)
}

#[test]
fn conversations_come_out_as_in_python() {
    let file = data("chat.json");
    let cases = file["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 17);
    for case in cases {
        let name = format!("{} with {}", case["template"], case["options"]);
        match (render(case), case["text"].as_str(), case["raises"].as_str()) {
            (Ok(found), Some(wanted), _) => assert_eq!(found, wanted, "{name}"),
            (Err(TextError::TemplateRaised { message }), _, Some(wanted)) => {
                assert_eq!(message, wanted, "{name}")
            }
            (Err(TextError::TemplateRender { .. }), _, Some(wanted)) => {
                assert!(wanted.contains("undefined") || wanted.contains("no element"), "{name}: {wanted}");
            }
            (found, wanted, raises) => panic!("{name}: wanted {wanted:?} or {raises:?}, found {found:?}"),
        }
    }
}

#[test]
fn dates_are_written_as_in_python() {
    let file = data("dates.json");
    let pattern = file["pattern"].as_str().expect("pattern");
    for case in file["cases"].as_array().expect("cases") {
        let date = Date::from_unix(case["seconds"].as_u64().expect("seconds")).expect("in the calendar");
        assert_eq!(date.format(pattern), case["text"].as_str().expect("text"));
    }
    assert!(
        Date::new(2023, 2, 29).is_err() && Date::new(2024, 2, 29).is_ok() && Date::new(2024, 13, 1).is_err()
    );
    assert!(Date::from_unix(u64::MAX).is_err());
}

/// What a template without messages comes to.
fn outcome(source: &str) -> Result<String, TextError> {
    ChatTemplate::new(source)?.render(&[], &RenderOptions::default())
}

#[test]
fn a_template_cannot_run_away() {
    let budget = |source: &str| {
        let found = outcome(source);
        assert!(matches!(found, Err(TextError::TemplateBudget { .. })), "{source}: found {found:?}");
    };
    budget(
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
    );
    budget(
        "{% set n = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
    );
    budget(
        "{% set n = namespace(s=[1]) %}{% for i in range(30) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s | tojson }}",
    );
    budget("{{ range(9) | list | tojson(indent=99999999999) }}");
    budget(
        "{% set n = namespace(s=[1]) %}{% for i in range(50) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
    );
    let refused = |source: &str, part: &str| {
        let error = outcome(source).expect_err(source).to_string();
        assert!(error.contains(part), "{source}: wanted {part:?} in {error:?}");
    };
    refused("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion");
    refused(&"{% if 1 %}".repeat(3000), "recursion");
    refused(&format!("{{{{ {}1 }}}}", "(".repeat(3000)), "recursion");
    let nested = "{% set n = namespace(s=1) %}{% for i in range(70) %}{% set n.s = [n.s] %}{% endfor %}";
    refused(&format!("{nested}{{{{ n.s }}}}"), "64 levels deep");
    refused(&format!("{nested}{{{{ n.s | tojson }}}}"), "64 levels deep");
    refused("{% include 'other.jinja' %}", "non-existing template");
}

#[test]
fn errors_are_typed_and_have_their_line() {
    let syntax = ChatTemplate::new("a\n{% if %}").expect_err("no condition");
    assert!(matches!(syntax, TextError::TemplateSyntax { line: 2, .. }), "{syntax}");
    let render = outcome("\n\n{{ nothing.at.all }}").expect_err("undefined");
    assert!(matches!(render, TextError::TemplateRender { line: 3, .. }), "{render}");
    let raised =
        outcome("{% for i in [1] %}{{ raise_exception('no: ' ~ i) }}{% endfor %}").expect_err("raises");
    assert_eq!(raised.to_string(), "chat template refuses the conversation: no: 1");
    let clock = outcome("{{ strftime_now('%Y') }}").expect_err("no date was given");
    assert!(clock.to_string().contains("strftime_now"), "{clock}");
}
