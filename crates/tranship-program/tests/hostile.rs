//! Nothing that is read as a program makes the parser, the verifier or a graph's texts panic: soups of tokens,
//! mutated programs, deep and long ones. What is accepted keeps what backends rely on.

use proptest::prelude::*;
use std::collections::BTreeSet;
use tranship_program::{Action, Dim, Graph, Kind, Op, Origin, Program, Rule, ValueId};

/// Reads, verifies and prints a text in all its forms.
fn exercise(text: &str) -> Option<Graph> {
    let program = Program::parse(text).ok()?;
    assert_eq!(Program::parse(&program.to_string()).as_ref(), Ok(&program));
    let graph = program.lift().ok()?;
    assert!(!graph.canonical().is_empty() && !graph.dot().is_empty() && !graph.to_string().is_empty());
    hold(&graph);
    Some(graph)
}

/// What backends rely on: operands come before their use and are no memory that changes, sizes can be counted,
/// frequencies are numbers, and the result is rows of the step.
fn hold(graph: &Graph) {
    let written: BTreeSet<ValueId> = graph.nodes.iter().filter_map(|n| target(&n.action)).collect();
    let mut known: BTreeSet<ValueId> = graph.declared().map(|(id, _)| id).collect();
    for node in &graph.nodes {
        assert!(node.action.inputs().iter().all(|id| known.contains(id)), "{graph}");
        let reads = matches!(node.action, Action::Read { .. });
        assert!(reads || node.action.inputs().iter().all(|id| !written.contains(id)), "{graph}");
        if let Action::Apply { op: Op::Rope(rope), .. } = &node.action
            && rope.dims <= 4096
        {
            assert_eq!(rope.frequencies().len() as u64, rope.dims / 2);
            assert!(rope.frequencies().iter().all(|f| f.is_finite() && *f > 0.0), "{graph}");
        }
        known.extend(node.action.out());
    }
    for value in &graph.values {
        let rows = value.shape.fixed_rows().unwrap_or(graph.param("ctx").unwrap_or(1));
        assert!(rows.checked_mul(value.shape.cols()).is_some_and(|e| e < 1 << 63), "{graph}");
    }
    let result = graph.value(graph.result);
    assert!(result.origin == Origin::Computed && result.kind == Kind::Float && result.shape.rows() == Dim::N);
}

fn target(action: &Action) -> Option<ValueId> {
    match action {
        Action::Write { tensor, .. } => Some(*tensor),
        _ => None,
    }
}

/// A program with every operation and every form of rows.
const SEED: &str = r#"program decode layer=0 ctx=16
  x : [n, 8]   ids : index [n]
  pos : index
  k : [position 16, kv_head 2, head_dim 2]   v : [16, 4]
  s : [8, 8]   t : [n, 8]
  g : [8] @ "g"
  w : [4, 8] @ "w"
  e : [32, 8] @ "e"
  d : [1] @ "d"
  h = rms_norm(x + gather(e, ids), g, eps: 1e-5)
  k[pos .. pos+n] = rope(linear(h, w), pos, d, heads: 2, dims: 2, theta: 1e4, scaling: linear, factor: 2)
  v[pos .. pos+n] = linear(h, w)
  t[..] = rope(h, pos, heads: 4, dims: 2, theta: 1e6, scaling: yarn, factor: 4, original: 64, magnitude: 1)
  old = s[..]
  s[..] = silu(old * g)
  a = attend(t[..], k[.. pos+n], v[.. pos+n], heads: 4, kv_heads: 2, scale: 0.5)
  return linear(x + a, s[..]) * silu(a)
"#;

const PIECES: [&str; 44] = [
    "program",
    "p",
    "ctx",
    "=",
    "16",
    "\n",
    "\n  ",
    " ",
    ":",
    "[",
    "]",
    "(",
    ")",
    ",",
    "..",
    "+",
    "*",
    "@",
    "\"w\"",
    "\"",
    "\\",
    "#",
    "n",
    "pos",
    "index",
    "return",
    "x",
    "s",
    "[..]",
    "[pos .. pos+n]",
    "[.. pos+n]",
    "silu",
    "linear",
    "rope",
    "attend",
    "eps: 1e-5",
    "heads: 2",
    "-0",
    "9e15",
    "1e400",
    "é",
    "\t",
    "\r",
    "\u{0}",
];

#[derive(Clone, Debug)]
enum Edit {
    Piece(usize, usize, &'static str),
    Swap(usize, usize),
    Drop(usize),
    Repeat(usize, usize),
    Word(usize, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = || 0..1000usize;
    prop_oneof![
        (at(), 0..6usize, proptest::sample::select(PIECES.to_vec()))
            .prop_map(|(i, n, p)| Edit::Piece(i, n, p)),
        (at(), at()).prop_map(|(i, j)| Edit::Swap(i, j)),
        at().prop_map(Edit::Drop),
        (at(), at()).prop_map(|(i, j)| Edit::Repeat(i, j)),
        (at(), at()).prop_map(|(i, j)| Edit::Word(i, j)),
    ]
}

/// The text with pieces put in, lines swapped, dropped and repeated, or one word put in the place of another.
fn edited(text: &str, edit: &Edit) -> String {
    let mut lines: Vec<&str> = text.split('\n').collect();
    let count = lines.len();
    match *edit {
        Edit::Piece(at, cut, piece) => {
            let chars: Vec<char> = text.chars().collect();
            let at = at % (chars.len() + 1);
            let rest = chars[(at + cut).min(chars.len())..].iter();
            return chars[..at].iter().copied().chain(piece.chars()).chain(rest.copied()).collect();
        }
        Edit::Word(from, to) => {
            let words: Vec<&str> = text.split_whitespace().collect();
            let (Some(a), Some(b)) =
                (words.get(from % words.len().max(1)), words.get(to % words.len().max(1)))
            else {
                return text.to_owned();
            };
            return text.replacen(a, b, 1);
        }
        Edit::Swap(i, j) => lines.swap(i % count, j % count),
        Edit::Drop(i) => drop(lines.remove(i % count)),
        Edit::Repeat(i, j) => lines.insert(j % count, lines[i % count]),
    }
    lines.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn token_soup(pieces in proptest::collection::vec(proptest::sample::select(PIECES.to_vec()), 0..60)) {
        exercise(&pieces.concat());
        exercise(&format!("program p ctx=16\n  x : [n, 8]\n  pos : index\n  {}", pieces.join(" ")));
    }

    #[test]
    fn any_text(text in "\\PC*") {
        exercise(&text);
        exercise(&format!("program p\n{text}"));
    }

    #[test]
    fn mutated_programs(edits in proptest::collection::vec(edit(), 1..4)) {
        exercise(&edits.iter().fold(SEED.to_owned(), |text, e| edited(&text, e)));
    }
}

#[test]
fn the_seed_is_accepted() {
    assert!(exercise(SEED).is_some(), "{:?}", Program::parse(SEED).and_then(|p| p.lift()));
}

/// Depth and length that would overflow a stack, if anything followed them by recursion.
#[test]
fn deep_and_long_texts_are_refused_or_read() {
    let line = |body: String| format!("program p\n  x : [n, 4]\n  return {body}\n");
    let refused = |text: String| Program::parse(&text).map(|_| ()).map_err(|e| e.rule);
    let many = 200_000;
    for deep in [
        format!("{}x{}", "(".repeat(many), ")".repeat(many)),
        format!("{}x{}", "silu(".repeat(many), ")".repeat(many)),
        "(".repeat(many),
        format!("x{}", " + x".repeat(many)),
        format!("x{}", " * x".repeat(many)),
        format!("{}x{}", "(x + ".repeat(many), ")".repeat(many)),
        format!("x[.. {}]", "9e14+".repeat(many)),
    ] {
        assert_eq!(refused(line(deep)), Err(Rule::Syntax));
    }
    // The deepest that is read goes through everything.
    let sums = format!("x{}", " + silu(x)".repeat(192));
    assert!(exercise(&line(format!("{}{sums}{}", "(x + ".repeat(62), ")".repeat(62)))).is_some());
    // Long, and not deep.
    let wide = refused(line(format!("f({})", "x, ".repeat(many))));
    assert_eq!(wide, Err(Rule::Syntax)); // a comma with no operand after it
    let values: String = (0..10_000).map(|i| format!("  y{} = silu(y{i})\n", i + 1)).collect();
    assert!(exercise(&format!("program p\n  y0 : [n, 4]\n{values}  return silu(y10000)\n")).is_some());
    assert_eq!(refused(line(format!("x  # {}", "é".repeat(many)))), Ok(()));
}
