//! Text and tree are two forms of one program: what is printed reads back equal, for trees that no author would
//! write too, and every finite number keeps its bits.

use proptest::prelude::*;
use tranship_program::{
    Attr, Axis, Bound, Decl, Dim, Expr, Item, Kind, Line, Named, Program, Range, Rule, Span,
};

fn named(name: String) -> Named {
    Named { name, span: Span::default() }
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z_][a-zA-Z0-9_]{0,5}",
        Just("n".to_owned()),
        Just("pos".to_owned()),
        Just("index".to_owned()),
        Just("add".to_owned()),
        Just("mul".to_owned()),
        Just("program".to_owned()),
    ]
}

/// A name that may start a line.
fn first_word() -> impl Strategy<Value = String> {
    word().prop_filter("`return` starts another kind of line", |w| w != "return")
}

fn comment() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[ -~éß\t]{0,12}".prop_map(|text| text.trim_end().to_owned()))
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![0..100u64, 0..9_000_000_000_000_000u64]
}

fn number() -> impl Strategy<Value = f64> {
    let any = any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |v| v.is_finite());
    let known = [0.0, -0.0, 5e-324, 2.2250738585072014e-308, f64::MAX, 1e300, 9007199254740993.0, 0.1, 1e5];
    prop_oneof![any, proptest::sample::select(known.to_vec()), -100.0..100.0f64]
}

fn bound() -> impl Strategy<Value = Bound> {
    let back = proptest::option::of(size());
    let per = proptest::option::of(size().prop_map(|rate| rate.max(1)));
    let parts = (any::<bool>(), any::<bool>(), prop_oneof![Just(0), size()], back, per);
    parts.prop_map(|(pos, n, offset, back, per)| Bound { pos, n, offset, back, per })
}

fn range() -> impl Strategy<Value = Range> {
    (proptest::option::of(bound()), proptest::option::of(bound())).prop_map(|(from, to)| Range { from, to })
}

fn attr() -> impl Strategy<Value = Attr> {
    let list = proptest::collection::vec(number(), 1..4).prop_map(Attr::List);
    prop_oneof![number().prop_map(Attr::Number), word().prop_map(Attr::Word), list]
}

fn expr() -> impl Strategy<Value = Expr> {
    let name = word().prop_map(|name| Expr::Name(named(name)));
    let rows = (word(), range()).prop_map(|(name, range)| Expr::Rows(named(name), range));
    prop_oneof![name, rows].prop_recursive(5, 40, 4, |inner| {
        let attrs = proptest::collection::vec((word().prop_map(named), attr()), 0..3);
        let call = (word(), proptest::collection::vec(inner.clone(), 0..4), attrs)
            .prop_map(|(op, args, attrs)| Expr::Call(named(op), args, attrs));
        let sign = (proptest::sample::select(vec!["add", "mul"]), inner.clone(), inner)
            .prop_map(|(op, a, b)| Expr::Call(named(op.to_owned()), vec![a, b], Vec::new()));
        prop_oneof![call, sign]
    })
}

fn decl() -> impl Strategy<Value = Decl> {
    let dim = prop_oneof![Just(Dim::N), size().prop_map(Dim::Fixed)];
    let axis = (proptest::option::of(word()), dim).prop_map(|(name, size)| Axis { name, size });
    let weight = proptest::option::of("[ -~é]{0,8}");
    (first_word(), any::<bool>(), proptest::collection::vec(axis, 0..4), weight).prop_map(
        |(name, index, axes, weight)| {
            let kind = if index || axes.is_empty() { Kind::Index } else { Kind::Float };
            Decl { name: named(name), kind, axes, weight }
        },
    )
}

fn item() -> impl Strategy<Value = Item> {
    let name = || first_word().prop_map(named);
    prop_oneof![
        proptest::collection::vec(decl(), 1..4).prop_map(Item::Decls),
        (name(), expr()).prop_map(|(name, value)| Item::Let(name, value)),
        (name(), range(), expr()).prop_map(|(name, range, value)| Item::Write(name, range, value)),
        (name(), word().prop_map(named), range(), expr())
            .prop_map(|(name, state, range, value)| Item::Update(name, state, range, value)),
        expr().prop_map(|value| Item::Return(Span::default(), value)),
    ]
}

fn program() -> impl Strategy<Value = Program> {
    let line = (proptest::option::of(item()), comment()).prop_map(|(item, comment)| Line { item, comment });
    let params = proptest::collection::btree_map(word(), size(), 0..4);
    (word(), params, comment(), proptest::collection::vec(line, 0..8)).prop_map(
        |(name, params, comment, mut lines)| {
            while lines.last().is_some_and(|l| l.item.is_none() && l.comment.is_none()) {
                lines.pop();
            }
            Program { name, params: params.into_iter().collect(), comment, lines }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn any_tree_prints_and_reads_back(program in program()) {
        let text = program.to_string();
        let read = Program::parse(&text);
        prop_assert_eq!(read.as_ref(), Ok(&program), "{}", text);
        prop_assert_eq!(read.map(|p| p.to_string()), Ok(text));
    }

    #[test]
    fn numbers_keep_their_bits(value in number()) {
        let text = format!("program p\n  return f(a: {})\n", Attr::Number(value));
        let program = Program::parse(&text);
        let Ok(Some(Item::Return(_, Expr::Call(_, _, attrs)))) = program.map(|p| p.lines[0].item.clone()) else {
            return Err(TestCaseError::fail(text));
        };
        let Attr::Number(found) = attrs[0].1 else { return Err(TestCaseError::fail(text)) };
        prop_assert_eq!(found.to_bits(), value.to_bits(), "{}", text);
    }
}

/// A tree made by hand may hold sizes that no text may: they print in full, and are refused when read.
#[test]
fn sizes_beyond_the_text_print_in_full() {
    let axes = vec![Axis { name: None, size: Dim::Fixed(u64::MAX) }];
    let decl = Decl { name: named("w".into()), kind: Kind::Float, axes, weight: None };
    let line = Line { item: Some(Item::Decls(vec![decl])), comment: None };
    let params = vec![("ctx".to_owned(), (1 << 53) + 1)];
    let program = Program { name: "p".into(), params, comment: None, lines: vec![line] };
    assert_eq!(program.to_string(), "program p ctx=9007199254740993\n  w : [18446744073709551615]\n");
    assert_eq!(Program::parse(&program.to_string()).map_err(|e| e.rule), Err(Rule::Syntax));
    assert_eq!(program.lift().map(|_| ()).map_err(|e| e.rule), Err(Rule::Size));
}

/// Only the rows of a read are `pos+n`; a declaration of them, which no text can hold, is refused.
#[test]
fn rows_up_to_the_position_are_not_declared() {
    let axes = [Dim::PosN, Dim::Fixed(4)].map(|size| Axis { name: None, size }).to_vec();
    let decl = Decl { name: named("k".into()), kind: Kind::Float, axes, weight: None };
    let line = Line { item: Some(Item::Decls(vec![decl])), comment: None };
    let program = Program { name: "p".into(), params: Vec::new(), comment: None, lines: vec![line] };
    assert_eq!(program.lift().map(|_| ()).map_err(|e| e.rule), Err(Rule::Size));
}

/// No text divides rows by 0; a tree that does is refused before a shape holds it.
#[test]
fn rows_of_no_positions_are_refused() {
    let text = "program p ctx=4\n  pos : index\n  x : [n, 4]\n  c : [4, 4]\n  c[pos/7 .. (pos+n)/7] = x\n  \
                return linear(x, silu(c[.. (pos+n)/7]))\n";
    let mut program = Program::parse(text).expect("a program of the right form");
    for line in &mut program.lines {
        if let Some(Item::Write(_, Range { from: Some(from), to: Some(to) }, _)) = &mut line.item {
            (from.per, to.per) = (Some(0), Some(0));
        }
    }
    assert_eq!(program.lift().map(|_| ()).map_err(|e| e.rule), Err(Rule::RowRange));
}
