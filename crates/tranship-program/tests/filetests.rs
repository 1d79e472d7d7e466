//! Programs as test data. A `.tp` file holds a program and, after a line `---`, what is expected of it:
//!
//! - `refused/RULE*.tp`: the one error, which must be of the rule that the file is named after. A line `--- with`
//!   starts a second program, and then the two are held to carry the same tensors;
//! - `accepted/*.tp`: the program as it prints (`as written` if the text is canonical), its flat graph with the
//!   roles, and the tensors it carries.
//!
//! `TRANSHIP_BLESS=1 cargo test -p tranship-program --test filetests` writes what was found into the files; the
//! difference is then for a person to read.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use tranship_program::{Action, Extent, Graph, Op, Program, ProgramError, Rule, same_state};

const EXPECTED: &str = "---\n";
const WITH: &str = "--- with\n";

/// The `.tp` files of a folder of this crate's tests, in the order of their names.
fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let entries = std::fs::read_dir(&folder).expect("the folder of test programs");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("a file").path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "tp"));
    files.sort();
    files
}

/// Holds every file of a folder to its expectation, or writes the expectation when blessing.
fn check(folder: &str, found: impl Fn(&str, &str) -> String) {
    let bless = std::env::var_os("TRANSHIP_BLESS").is_some();
    let mut wrong = String::new();
    for path in files(folder) {
        let stem = path.file_stem().and_then(|s| s.to_str()).expect("a file's name");
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let (input, expected) = text.split_once(EXPECTED).unwrap_or((&text, ""));
        let found = found(stem, input);
        if bless && found != expected {
            std::fs::write(&path, format!("{input}{EXPECTED}{found}")).expect("a writable file");
        } else if found != expected {
            let _ = writeln!(wrong, "{folder}/{stem}.tp\n-- wanted\n{expected}-- found\n{found}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn lift(text: &str) -> Result<Graph, ProgramError> {
    Program::parse(text)?.lift()
}

/// The error of a text, or of two that are to carry the same.
fn refusal(input: &str) -> Result<(), ProgramError> {
    match input.split_once(WITH) {
        None => lift(input).map(|_| ()),
        Some((prefill, decode)) => same_state(&lift(prefill)?, &lift(decode)?),
    }
}

#[test]
fn refused() {
    let misnamed = RefCell::new(String::new());
    check("refused", |stem, input| match refusal(input) {
        Ok(()) => "nothing is wrong\n".into(),
        Err(error) => {
            let named = stem == error.rule.name() || stem.starts_with(&format!("{}.", error.rule.name()));
            if !named {
                let _ = writeln!(misnamed.borrow_mut(), "{stem}.tp is named after another rule: {error}");
            }
            format!("{error}\n")
        }
    });
    assert!(misnamed.borrow().is_empty(), "{}", misnamed.borrow());
}

/// A rule without a program that breaks it is a rule that nothing holds.
#[test]
fn every_rule_has_a_refused_program() {
    let stems: Vec<String> =
        files("refused").iter().filter_map(|p| Some(p.file_stem()?.to_str()?.to_owned())).collect();
    for rule in Rule::ALL {
        let named = |s: &String| s.split('.').next() == Some(rule.name().as_str());
        assert!(stems.iter().any(named), "no refused/{}*.tp", rule.name());
    }
    for text in files("refused").iter().map(|p| std::fs::read_to_string(p).expect("a readable file")) {
        assert!(!text.ends_with("nothing is wrong\n"), "a refused program is accepted:\n{text}");
    }
}

#[test]
fn accepted() {
    check("accepted", |stem, input| {
        let program = Program::parse(input).unwrap_or_else(|e| panic!("{stem}.tp: {e}"));
        let graph = program.lift().unwrap_or_else(|e| panic!("{stem}.tp: {e}"));
        let printed = program.to_string();
        assert_eq!(Program::parse(&printed).as_ref(), Ok(&program), "{stem}.tp does not print back");
        assert_eq!(same_state(&graph, &graph), Ok(()));
        let printed = if printed == input { "as written\n".into() } else { printed };
        let mut carried = String::new();
        for c in graph.roles().carried() {
            let axes: Vec<String> = c.axes.iter().map(|(name, size)| format!("{name} {size}")).collect();
            let read = if c.cache && c.extent == Extent::Ring { ", read by attention" } else { "" };
            let _ = writeln!(carried, "{} [{}] {}{read}", c.name, axes.join(", "), c.extent);
        }
        format!("-- printed\n{printed}-- graph\n{graph}-- carried\n{carried}")
    });
}

/// Layers that differ in names and numbers of layers share one compiled step; what changes a result does not.
#[test]
fn canonical_text_is_blind_to_names_alone() {
    let text =
        std::fs::read_to_string(files("accepted")[0].with_file_name("layer-prefill.tp")).expect("a file");
    let text = text.split_once(EXPECTED).expect("a program").0;
    let canonical = |from: &str, to: &str| {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from} is not in the program");
        lift(&changed).unwrap_or_else(|e| panic!("{from}: {e}")).canonical()
    };
    let own = lift(text).expect("a program").canonical();
    for (from, to) in [("blk.0", "blk.7"), ("layer=0", "layer=7"), ("k0", "k7"), ("h =", "h  =")] {
        assert_eq!(canonical(from, to), own, "{from} to {to}");
    }
    for (from, to) in [("1e-5", "1e-6"), ("style: half", "style: interleaved"), ("96", "97"), ("64", "65")] {
        assert_ne!(canonical(from, to), own, "{from} to {to}");
    }
}

/// The accepted programs, without what is expected of them.
fn accepted_texts() -> Vec<String> {
    let texts = files("accepted").into_iter().map(|p| std::fs::read_to_string(p).expect("a readable file"));
    texts.map(|text| text.split(EXPECTED).next().unwrap_or_default().to_owned()).collect()
}

/// The operations of a graph.
fn ops(graph: &Graph) -> impl Iterator<Item = &Op> {
    graph.nodes.iter().filter_map(|node| match &node.action {
        Action::Apply { op, .. } | Action::Update { op, .. } => Some(op),
        _ => None,
    })
}

#[test]
fn every_operation_is_in_an_accepted_program() {
    let graphs: Vec<Graph> = accepted_texts().iter().map(|text| lift(text).expect("a program")).collect();
    let found: BTreeSet<&str> = graphs.iter().flat_map(ops).map(Op::name).collect();
    assert_eq!(found, Op::NAMES.into_iter().collect());
}

/// The texts that have one attribute's value changed, with the attribute's key.
fn with_other_values(text: &str) -> Vec<(String, String)> {
    const WORDS: &str = "half interleaved linear llama3 yarn listed exact whole forth back yes no log negative softmax \
                         sigmoid sqrt_softplus logits choice max top2 silu gelu gelu_tanh swish";
    let mut changed = Vec::new();
    for (at, _) in text.match_indices(": ") {
        let key = text[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let rest = &text[at + 2..];
        let end = if rest.starts_with('[') { rest.find(']').map(|e| e + 1) } else { rest.find([',', ')']) };
        let Some(end) = end.filter(|_| !key.is_empty()) else { continue };
        let others: Vec<String> = match rest[..end].parse::<f64>() {
            Ok(v) => [v + 1.0, v * 2.0, v / 2.0, v - 1.0].map(|v| v.to_string()).into(),
            Err(_) if rest.starts_with('[') => vec![rest[..end].replacen('[', "[3", 1)],
            Err(_) => WORDS.split_whitespace().map(str::to_owned).collect(),
        };
        let other = |other: &String| format!("{}: {other}{}", &text[..at], &rest[end..]);
        changed.extend(others.iter().map(|o| (key.to_owned(), other(o))));
    }
    changed
}

/// A canonical text names every attribute: programs whose operations differ in one are not one.
#[test]
fn canonical_text_tells_every_attribute_apart() {
    let (mut all, mut told) = (BTreeSet::new(), BTreeSet::new());
    for text in accepted_texts() {
        let own = lift(&text).expect("a program");
        all.extend(ops(&own).flat_map(|op| op.attrs()).map(|(key, _)| key.to_owned()));
        for (key, text) in with_other_values(&text) {
            let Ok(other) = lift(&text) else { continue };
            if ops(&other).ne(ops(&own)) {
                assert_ne!(other.canonical(), own.canonical(), "{text}");
                told.insert(key);
            }
        }
    }
    // These follow from shapes and from which other attributes there are, so that no program differs in them alone.
    for key in ["kv_heads", "key_heads", "key_dim", "overlap", "scaling"] {
        assert!(all.remove(key), "{key}");
    }
    assert_eq!(told, all);
}

fn doc(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What the language's page shows is a program in printed form, every rule, and errors as they are.
#[test]
fn the_page_on_the_language_is_true() {
    let page = doc("program-language.md");
    let example = page.split("```\n").nth(1).expect("a program");
    let program = Program::parse(example).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(program.to_string(), example);
    let roles: Vec<String> =
        program.lift().expect("a program").roles().carried().map(|c| c.name.clone()).collect();
    assert_eq!(roles, ["k0", "v0"]);
    let errors: Vec<String> = files("refused")
        .iter()
        .map(|p| std::fs::read_to_string(p).expect("a readable file").trim_end().to_owned())
        .collect();
    let rules = page.split("\n**`").skip(1).collect::<Vec<_>>();
    let names: Vec<&str> = rules.iter().filter_map(|r| r.split_once("`**").map(|(name, _)| name)).collect();
    assert_eq!(names, Rule::ALL.map(Rule::name));
    for (rule, section) in names.iter().zip(rules) {
        let mut quotes = section.lines().filter_map(|l| l.strip_prefix("> ")).peekable();
        assert!(quotes.peek().is_some(), "`{rule}` shows no error");
        for quoted in quotes {
            let said = |error: &String| error.ends_with(&format!("{rule}: {quoted}"));
            assert!(errors.iter().any(said), "no program is refused with `{rule}: {quoted}`");
        }
    }
}

#[test]
fn the_page_on_operations_names_each() {
    let page = doc("ops.md");
    for op in Op::NAMES {
        assert!(page.contains(&format!("[`{op}`](#")), "`{op}` is not in the table");
        let named = |l: &str| l.split([' ', ',']).any(|word| word == op);
        let heading = page.lines().any(|l| l.starts_with("## ") && named(l));
        assert!(heading, "`{op}` has no section");
    }
}
