//! Nothing that is read as a program makes the parser, the verifier or a graph's texts panic: soups of tokens,
//! mutated programs, deep and long ones. What is accepted keeps what backends rely on.

use proptest::prelude::*;
use std::collections::BTreeSet;
use tranship_program::{Action, Dim, Graph, Kind, Op, Origin, Program, Rows, Rule, ValueId};

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
        let operands = match &node.action {
            Action::Read { .. } => Vec::new(),
            Action::Update { args, .. } => args.clone(),
            action => action.inputs(),
        };
        assert!(operands.iter().all(|id| !written.contains(id)), "{graph}");
        hold_rows(graph, &node.action);
        if let Action::Apply { op: Op::Rope(rope), .. } = &node.action
            && rope.dims <= 4096
        {
            assert_eq!(rope.frequencies().len() as u64, rope.dims / 2);
            assert!(rope.frequencies().iter().all(|f| f.is_finite() && *f > 0.0), "{graph}");
        }
        known.extend(node.action.out());
    }
    for value in &graph.values {
        let ctx = graph.param("ctx").unwrap_or(1);
        let rows = match value.shape.rows() {
            Dim::Fixed(rows) => rows,
            Dim::After(before) => before + ctx,
            Dim::N | Dim::PosN => ctx,
            Dim::Per(rate) => ctx / rate,
        };
        assert!(rows.checked_mul(value.shape.cols()).is_some_and(|e| e < 1 << 63), "{graph}");
    }
    let result = graph.value(graph.result);
    assert!(result.origin == Origin::Computed && result.kind == Kind::Float && result.shape.rows() == Dim::N);
}

/// What an action's operands come from, where a backend relies on it to stay within memory.
fn hold_rows(graph: &Graph, action: &Action) {
    let maker = |id: ValueId| graph.nodes.iter().find(|n| n.action.out() == Some(id)).map(|n| &n.action);
    let apply = |id: ValueId| match maker(id) {
        Some(Action::Apply { op, .. }) => Some(op),
        _ => None,
    };
    let before = |id: ValueId| matches!(maker(id), Some(Action::Read { rows: Rows::Before(_), .. }));
    for (i, id) in action.inputs().into_iter().enumerate() {
        let joins = matches!(action, Action::Apply { op: Op::Join, .. }) && i == 0;
        assert_eq!(before(id), joins, "{graph}");
        if matches!(graph.value(id).shape.rows(), Dim::After(_)) {
            assert!(matches!(action, Action::Apply { op, .. } if op.reaches_back()), "{graph}");
        }
        // Numbers of rows or experts that only one kind of operation can read.
        let chosen = matches!(apply(id), Some(Op::Choose(_)));
        assert!(!chosen || matches!(action, Action::Apply { op: Op::CompressedAttend(_), .. }), "{graph}");
    }
    match action {
        Action::Apply { op: Op::CompressedAttend(op), args, .. } if args.len() == 5 => {
            assert!(matches!(apply(args[4]), Some(Op::Choose(choose)) if choose.rate == op.rate), "{graph}");
        }
        Action::Apply { op: Op::Experts(op), args, .. } => {
            let routed =
                matches!(apply(args[1]), Some(Op::Route(r) | Op::RouteByTable(r)) if r.top_k == op.top_k);
            assert!(routed, "{graph}");
        }
        Action::Apply { op: Op::RouteByTable(_), args, .. } => {
            assert!(matches!(graph.value(args[2]).origin, Origin::Weight(_)), "{graph}");
        }
        Action::Update { op, tensor, .. } => {
            assert!(op.updates() && graph.value(*tensor).origin == Origin::Declared, "{graph}");
        }
        _ => {}
    }
}

fn target(action: &Action) -> Option<ValueId> {
    match action {
        Action::Write { tensor, .. } | Action::Update { tensor, .. } => Some(*tensor),
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

/// A program with every operation and every form of rows that the first has not.
const MODERN: &str = r#"program decode layer=0 ctx=16
  x : [n, 8]   tokens : index [n]   pos : index
  kr : [3, 4]   conv : [2, 8]   ck : [3, 8]   cg : [3, 8]   c : [8, 4]   lat : [16, 4]   rot : [16, 2]
  m1 : [2, 4, 4]   m2 : [2, 4, 4]   m3 : [2, 4, 4]
  w : [8, 8] @ "w"   w2 : [2, 8] @ "w2"   w4 : [4, 8] @ "w4"   taps : [8, 3] @ "taps"   two : [2] @ "two"
  g : [8] @ "g"   bias : [2, 8] @ "bias"   sinks : [2] @ "sinks"   wx : [12, 4] @ "wx"   wg : [8, 4] @ "wg"   route : [4, 8] @ "route"
  eb : [4] @ "eb"   table : [32, 2] @ "table"   up : [4, 6, 8] @ "up"   down : [4, 8, 6] @ "down"
  base : [8] @ "base"   three : [3] @ "three"   up_bias : [4, 6] @ "ub"   down_bias : [4, 8] @ "db"
  u = silu(conv(join(conv[pos-2 .. pos], x), taps, g))
  conv[pos+n-2 .. pos+n] = x
  new = linear(u, w4)
  j = join(kr[pos-3 .. pos], new)
  a = attend(u, j, j, sinks, heads: 2, kv_heads: 1, scale: 0.5, window: 4, softcap: 50)
  kr[pos+n-3 .. pos+n] = new
  kw = join(ck[pos-3 .. pos], u)
  gw = join(cg[pos-3 .. pos], x)
  c[pos/2 .. (pos+n)/2] = compress(kw, gw, bias, rate: 2, overlap: yes)
  ck[pos+n-3 .. pos+n] = u
  cg[pos+n-3 .. pos+n] = x
  top = choose(u, c[.. (pos+n)/2], linear(u, w2), heads: 2, top_k: 3, rate: 2, scale: 0.5)
  b = compressed_attend(u, j, c[.. (pos+n)/2], sinks, top, heads: 2, scale: 0.5, window: 4, rate: 2)
  lat[pos .. pos+n] = new
  rot[pos .. pos+n] = rope(linear(x, w2), pos, heads: 1, dims: 2, theta: 1e4, scaling: listed, divisors: [1.5], magnitude: 1)
  q = tile(slice(u, heads: 2, from: 1, to: 4), times: 2)
  l = latent_attend(q, lat[.. pos+n], rot[.. pos+n], wx, heads: 2, key_dim: 4, scale: 1)
  f = log_decay(linear(x, w2), two, two, form: negative)
  y1, m1[..] = gated_delta(m1[..], l2_norm(x, eps: 1e-6, heads: 2), x, u, f, sigmoid(f), heads: 2, key_heads: 2, scale: 0.5)
  y2, m2[..] = decayed_linear(m2[..], x, u, x, heads: 2, rate: 1)
  y3, m3[..] = state_space(m3[..], x, new, new, softplus(f), two, two, heads: 2, groups: 1, form: log)
  r = route(x, route, eb, top_k: 2, score: sigmoid, bias: choice, normalize: yes, eps: 1e-20, scale: 2.5, groups: 2, top_groups: 1)
  e = experts(x, r, up, up, down, up_bias, up_bias, down_bias, top_k: 2, act: swish, alpha: 1.702, limit: 7)
  t = route_by_table(x, route, table, tokens, top_k: 2, score: sqrt_softplus)
  o = experts(x, t, up, down, top_k: 2, act: relu2)
  h = stream_gates(clamp(u, min: -5, max: 5), base, three, streams: 2, iterations: 3, eps: 1e-6)
  z = stream_expand(x, stream_collapse(x, h, streams: 2), h, streams: 2)
  n1 = rms_norm(a + b + scale(y1, by: 2) + y2 + y3, eps: 1e-5, heads: 2, offset: 1)
  n2 = gelu(n1) + gelu_tanh(e) + relu2(o) + softcap(z, cap: 30) + linear(n1, wg, groups: 2) * f
  return linear(n2 + tile(l, times: 2), w)
"#;

const PIECES: [&str; 60] = [
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
    "[pos-3 .. pos]",
    "[pos+n-3 .. pos+n]",
    "[.. (pos+n)/2]",
    "[pos/2 .. (pos+n)/2]",
    "m1[..]",
    ", m1[..] =",
    "-",
    "/",
    "join",
    "conv",
    "choose",
    "top",
    "j",
    "x, m2[..]",
    "x",
    "[1, 2.5]",
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
        exercise(&edits.iter().fold(MODERN.to_owned(), |text, e| edited(&text, e)));
    }
}

#[test]
fn the_seeds_are_accepted_and_have_every_operation() {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for seed in [SEED, MODERN] {
        let graph = exercise(seed);
        let graph = graph.unwrap_or_else(|| panic!("{:?}", Program::parse(seed).and_then(|p| p.lift())));
        names.extend(graph.nodes.iter().filter_map(|node| match &node.action {
            Action::Apply { op, .. } | Action::Update { op, .. } => Some(op.name()),
            _ => None,
        }));
    }
    assert_eq!(names, Op::NAMES.into_iter().collect());
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
        format!("x[.. {}pos{}]", "(".repeat(many), ")".repeat(many)),
        format!("x[.. pos{}]", "-1".repeat(many)),
        format!("f(a: {})", "[".repeat(many)),
        format!("f(a: [{}])", "1, ".repeat(many)),
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
