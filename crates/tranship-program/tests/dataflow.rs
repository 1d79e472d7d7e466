//! Roles against a simulation: random programs of reads and writes are run on a memory that holds, for each row,
//! the step that wrote it. What the verifier accepts must read no row that was never written and no view of rows
//! that changed since, and the roles must be what the steps show.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tranship_program::{Extent, Program, Role, Rows};

const CTX: usize = 8;
const STEPS: usize = 3;
const TENSORS: [&str; 3] = ["r", "s", "t"];

#[derive(Clone, Copy, Debug)]
enum Line {
    /// Rows of a tensor are read and used at once.
    Read(usize, Rows),
    /// The whole is read into a value.
    Keep(usize),
    /// A kept value is used.
    Use(usize),
    /// The whole is written with a constant, with another tensor's whole or with a kept value.
    WriteConstant(usize),
    WriteFrom(usize, usize),
    WriteKept(usize, usize),
    /// The step's rows are written.
    WriteNew(usize),
}

/// One line, or a cache's write and read.
fn lines() -> impl Strategy<Value = Vec<Line>> {
    let cache = |t| vec![Line::WriteNew(t), Line::Read(t, Rows::UpTo)];
    prop_oneof![5 => line().prop_map(|l| vec![l]), 1 => (0..TENSORS.len()).prop_map(cache)]
}

fn line() -> impl Strategy<Value = Line> {
    let tensor = || 0..TENSORS.len();
    let rows = proptest::sample::select(vec![Rows::All, Rows::UpTo, Rows::New]);
    prop_oneof![
        4 => (tensor(), rows).prop_map(|(t, rows)| Line::Read(t, rows)),
        1 => tensor().prop_map(Line::Keep),
        1 => (0..2usize).prop_map(Line::Use),
        1 => tensor().prop_map(Line::WriteConstant),
        1 => (tensor(), tensor()).prop_map(|(t, from)| Line::WriteFrom(t, from)),
        1 => (tensor(), 0..2usize).prop_map(|(t, kept)| Line::WriteKept(t, kept)),
        3 => tensor().prop_map(Line::WriteNew),
    ]
}

/// The lines as a program; tensors that no line names are not declared.
fn text(lines: &[Line]) -> String {
    let mut body = String::new();
    let mut sum = String::from("linear(rope(x, pos, heads: 1, dims: 4, theta: 1e4), w) + linear(x, silu(f))");
    let mut kept = 0;
    for (i, line) in lines.iter().enumerate() {
        let read = |value: String| format!("  z{i} = {value}\n");
        body += &match *line {
            Line::Read(t, Rows::All) => read(format!("linear(x, {}[..])", TENSORS[t])),
            Line::Read(t, Rows::New) => read(format!("linear({}[pos .. pos+n], w)", TENSORS[t])),
            Line::Read(t, Rows::UpTo) => {
                let rows = format!("{}[.. pos+n]", TENSORS[t]);
                let attend = format!("attend(x, {rows}, {rows}, heads: 1, kv_heads: 1, scale: 1)");
                read(format!("linear({attend}, w)"))
            }
            Line::Keep(t) => {
                kept += 1;
                format!("  kept{} = {}[..]\n", kept - 1, TENSORS[t])
            }
            Line::Use(kept) => read(format!("linear(x, kept{kept})")),
            Line::WriteConstant(t) => format!("  {}[..] = silu(f)\n", TENSORS[t]),
            Line::WriteFrom(t, from) => format!("  {}[..] = silu({}[..])\n", TENSORS[t], TENSORS[from]),
            Line::WriteKept(t, kept) => format!("  {}[..] = kept{kept}\n", TENSORS[t]),
            Line::WriteNew(t) => format!("  {}[pos .. pos+n] = x\n", TENSORS[t]),
        };
        if matches!(line, Line::Read(..) | Line::Use(_)) {
            let _ = write!(sum, " + z{i}");
        }
    }
    let mut text = format!("program decode ctx={CTX}\n  x : [n, 4]   pos : index\n");
    text += "  w : [8, 4] @ \"w\"   f : [8, 4] @ \"f\"\n";
    for name in TENSORS.iter().filter(|t| body.contains(&format!("{t}["))) {
        let _ = writeln!(text, "  {name} : [{CTX}, 4]");
    }
    text + &body + "  return " + &sum + "\n"
}

/// What the steps have shown of one tensor.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// The step that wrote each row last.
    rows: [Option<usize>; CTX],
    writes: usize,
    whole: bool,
    /// A row was read that the step had not written.
    live: bool,
    /// Rows were read that no step had written.
    empty: bool,
}

impl Seen {
    fn read(&mut self, step: usize, rows: std::ops::Range<usize>) {
        for row in &self.rows[rows] {
            self.live |= *row != Some(step);
            self.empty |= row.is_none();
        }
    }

    fn write(&mut self, step: usize, rows: std::ops::Range<usize>) {
        self.writes += 1;
        self.whole |= rows.len() == CTX;
        self.rows[rows].fill(Some(step));
    }

    fn role(&self) -> Role {
        match (self.writes > 0, self.live) {
            (false, _) => Role::Frozen,
            (true, false) => Role::Scratch,
            (true, true) if self.whole => Role::Carried(Extent::Recurrent),
            (true, true) => Role::Carried(Extent::Append),
        }
    }
}

/// Runs steps of one row each from an empty memory. A kept value is a view: it holds the tensor, and how often the
/// tensor had been written.
fn simulate(lines: &[Line]) -> BTreeMap<&'static str, Seen> {
    let mut seen = vec![Seen::default(); TENSORS.len()];
    for step in 0..STEPS {
        let mut kept: Vec<(usize, usize)> = Vec::new();
        for line in lines {
            match *line {
                Line::Read(t, Rows::All) => seen[t].read(step, 0..CTX),
                Line::Read(t, Rows::UpTo) => seen[t].read(step, 0..step + 1),
                Line::Read(t, Rows::New) => seen[t].read(step, step..step + 1),
                Line::Keep(t) => {
                    seen[t].read(step, 0..CTX);
                    kept.push((t, seen[t].writes));
                }
                Line::Use(k) => assert_eq!(kept[k].1, seen[kept[k].0].writes, "a view changed: {lines:?}"),
                Line::WriteConstant(t) => seen[t].write(step, 0..CTX),
                Line::WriteFrom(t, from) => {
                    seen[from].read(step, 0..CTX);
                    seen[t].write(step, 0..CTX);
                }
                Line::WriteKept(t, k) => {
                    assert_eq!(kept[k].1, seen[kept[k].0].writes, "a view changed: {lines:?}");
                    assert_ne!(kept[k].0, t, "a view is written to itself: {lines:?}");
                    seen[t].write(step, 0..CTX);
                }
                Line::WriteNew(t) => seen[t].write(step, step..step + 1),
            }
        }
    }
    TENSORS.into_iter().zip(seen).collect()
}

#[test]
fn roles_are_what_the_steps_show() {
    let mut runner = TestRunner::deterministic();
    let programs = proptest::collection::vec(lines(), 1..9);
    let mut accepted: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..20_000 {
        let lines = programs.new_tree(&mut runner).expect("a program").current().concat();
        let text = text(&lines);
        let Ok(graph) = Program::parse(&text).expect("a program of the right form").lift() else { continue };
        let seen = simulate(&lines);
        for (id, value) in graph.declared() {
            let Some(seen) = seen.get(value.name.as_str()) else { continue };
            let role = graph.roles().of(id).expect("a declared value has a role");
            assert_eq!(role, seen.role(), "{text}{graph}");
            let from_empty = matches!(role, Role::Scratch | Role::Carried(Extent::Append));
            assert!(!(from_empty && seen.empty), "rows are read that nothing has written\n{text}{graph}");
            if role == Role::Carried(Extent::Append) {
                let valid = Extent::Append.valid_rows(STEPS as u64, CTX as u64) as usize;
                let written = |row: usize| seen.rows[row] == (row < valid).then_some(row);
                assert!((0..CTX).all(written), "{text}{graph}");
            }
            *accepted.entry(role.to_string()).or_default() += 1;
        }
    }
    for role in ["frozen", "scratch", "carried, append", "carried, recurrent"] {
        assert!(accepted.get(role).is_some_and(|&count| count >= 50), "{role} in {accepted:?}");
    }
}
