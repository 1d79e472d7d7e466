//! Roles against a simulation: random programs of reads, writes and updates are run on a memory that holds, for each
//! row, the step that wrote it, and for each slot of a ring the position that it holds. What the verifier accepts must
//! read no row that was never written and no view of rows that changed since, and the roles must be what the steps
//! show. Valid rows must be those that later steps need, found here by trying every later position.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;
use tranship_program::{Extent, Program, Role, Rows};

const CTX: usize = 8;
/// Rows of each step.
const STEPS: [usize; 4] = [1, 3, 1, 2];
/// Tensors that are addressed as a whole or at the position, a memory, rings, and rows for every so many positions.
const TENSORS: [&str; 8] = ["r", "s", "t", "m", "u", "v", "c", "d"];
const PLAIN: Range<usize> = 0..3;
const MEMORY: usize = 3;
const RINGS: Range<usize> = 4..6;
const PERS: Range<usize> = 6..8;
/// Rows of a ring.
const RING: usize = 3;
/// Positions for a row.
const RATE: usize = 2;

/// What rows of a ring go into. All of it reaches three rows back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Goal {
    Attend,
    Conv,
    /// Compression at rate 2 that overlaps.
    Overlap,
    /// Compression at rate 4 that does not.
    Four,
}

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
    /// The last rows before the step are joined with the step's.
    Join(usize, Goal),
    /// The step's rows are kept as the last ones.
    WriteLast(usize),
    /// A row for every so many positions is written.
    WritePer(usize),
    /// All such rows are read.
    ReadPer(usize),
    /// An operation advances the memory.
    Advance,
}

/// One line, or a write and a read that go together.
fn lines() -> impl Strategy<Value = Vec<Line>> {
    let cache = |t| vec![Line::WriteNew(t), Line::Read(t, Rows::UpTo)];
    let ring = |(t, goal)| vec![Line::Join(t, goal), Line::WriteLast(t)];
    let per = |t| vec![Line::WritePer(t), Line::ReadPer(t)];
    prop_oneof![
        8 => line().prop_map(|l| vec![l]),
        1 => PLAIN.prop_map(cache),
        3 => (RINGS, goal()).prop_map(ring),
        2 => PERS.prop_map(per),
    ]
}

fn goal() -> impl Strategy<Value = Goal> {
    use Goal::*;
    proptest::sample::select(vec![Attend, Conv, Overlap, Overlap, Four, Four])
}

fn line() -> impl Strategy<Value = Line> {
    let plain = || PLAIN;
    let whole = || 0..MEMORY + 1;
    // Mostly the tensors that a form is meant for, at times others: forms must not go together.
    let ring = || prop_oneof![6 => RINGS, 1 => 0..TENSORS.len()];
    let per = || prop_oneof![6 => PERS, 1 => 0..TENSORS.len()];
    let rows = proptest::sample::select(vec![Rows::All, Rows::UpTo, Rows::New]);
    prop_oneof![
        8 => (plain(), rows).prop_map(|(t, rows)| Line::Read(t, rows)),
        2 => plain().prop_map(Line::Keep),
        2 => (0..2usize).prop_map(Line::Use),
        2 => whole().prop_map(Line::WriteConstant),
        2 => (whole(), whole()).prop_map(|(t, from)| Line::WriteFrom(t, from)),
        2 => (whole(), 0..2usize).prop_map(|(t, kept)| Line::WriteKept(t, kept)),
        6 => plain().prop_map(Line::WriteNew),
        2 => (ring(), goal()).prop_map(|(t, goal)| Line::Join(t, goal)),
        2 => ring().prop_map(Line::WriteLast),
        1 => per().prop_map(Line::WritePer),
        1 => per().prop_map(Line::ReadPer),
        2 => Just(Line::Advance),
    ]
}

/// What is done with rows of a ring, as a value of the width 4.
fn joined(t: usize, goal: Goal) -> String {
    let rows = format!("join({}[pos-{RING} .. pos], x)", TENSORS[t]);
    match goal {
        Goal::Attend => {
            let attrs = format!("heads: 1, kv_heads: 1, scale: 1, window: {}", RING + 1);
            format!("attend(x, {rows}, {rows}, {attrs})")
        }
        Goal::Conv => format!("conv({rows}, taps)"),
        Goal::Overlap => {
            format!("tile(compress({rows}, {rows}, gate2, rate: 2, overlap: yes), times: 2)")
        }
        Goal::Four => format!("compress({rows}, {rows}, gate4, rate: 4)"),
    }
}

/// A line as text; `z{i}` is what it adds to the result.
fn line_text(line: &Line, i: usize, kept: &mut usize) -> String {
    let name = |t: usize| TENSORS[t];
    let read = |value: String| format!("  z{i} = {value}\n");
    match *line {
        Line::Read(t, Rows::New) => read(format!("linear({}[pos .. pos+n], w)", name(t))),
        Line::Read(t, Rows::UpTo) => {
            let rows = format!("{}[.. pos+n]", name(t));
            let attend = format!("attend(x, {rows}, {rows}, heads: 1, kv_heads: 1, scale: 1)");
            read(format!("linear({attend}, w)"))
        }
        Line::Read(t, _) => read(format!("linear(x, {}[..])", name(t))),
        Line::Keep(t) => {
            *kept += 1;
            format!("  kept{} = {}[..]\n", *kept - 1, name(t))
        }
        Line::Use(kept) => read(format!("linear(x, kept{kept})")),
        Line::WriteConstant(t) => format!("  {}[..] = silu(f)\n", name(t)),
        Line::WriteFrom(t, from) => format!("  {}[..] = silu({}[..])\n", name(t), name(from)),
        Line::WriteKept(t, kept) => format!("  {}[..] = kept{kept}\n", name(t)),
        Line::WriteNew(t) => format!("  {}[pos .. pos+n] = x\n", name(t)),
        Line::Join(t, goal) => read(format!("linear({}, w)", joined(t, goal))),
        Line::WriteLast(t) => format!("  {}[pos+n-{RING} .. pos+n] = x\n", name(t)),
        Line::WritePer(t) => format!("  {}[pos/{RATE} .. (pos+n)/{RATE}] = x\n", name(t)),
        Line::ReadPer(t) => {
            let rows = format!("join(near[pos-1 .. pos], x), {}[.. (pos+n)/{RATE}], sinks", name(t));
            let attrs = format!("heads: 1, scale: 1, window: 2, rate: {RATE}");
            read(format!("linear(compressed_attend(x, {rows}, {attrs}), w)"))
        }
        Line::Advance => {
            let rows = "linear(x, w), linear(x, w), tile(linear(x, w), times: 4)";
            format!("  y{i}, m[..] = decayed_linear(m[..], {rows}, heads: 8, rate: 1)\n")
                + &read(format!("slice(y{i}, to: 8)"))
        }
    }
}

/// The lines as a program; tensors that no line names are not declared.
fn text(lines: &[Line]) -> String {
    let mut body = String::new();
    let mut sum = String::from("linear(rope(x, pos, heads: 1, dims: 4, theta: 1e4), w) + linear(x, silu(f))");
    let mut kept = 0;
    for (i, line) in lines.iter().enumerate() {
        let line = line_text(line, i, &mut kept);
        if line.contains(&format!("z{i} =")) {
            let _ = write!(sum, " + z{i}");
        }
        body += &line;
    }
    if body.contains("near[") {
        body += "  near[pos+n-1 .. pos+n] = x\n";
    }
    let mut text = format!("program decode ctx={CTX}\n  x : [n, 4]   pos : index\n");
    text += "  w : [8, 4] @ \"w\"   f : [8, 4] @ \"f\"\n";
    let per = CTX / RATE;
    let of = |t: usize| match t {
        MEMORY => "[8, 1, 4]".into(),
        _ if RINGS.contains(&t) => format!("[{RING}, 4]"),
        _ if PERS.contains(&t) => format!("[{per}, 4]"),
        _ => format!("[{CTX}, 4]"),
    };
    let tensors = TENSORS.iter().enumerate().map(|(t, name)| (*name, format!("{name} : {}", of(t)), "["));
    let weights = [("taps", "[4, 4]"), ("gate2", "[2, 4]"), ("gate4", "[4, 4]"), ("sinks", "[1]")];
    let weights = weights.map(|(name, shape)| (name, format!("{name} : {shape} @ \"{name}\""), ""));
    let near = ("near", "near : [1, 4]".to_owned(), "[");
    for (name, declared, after) in tensors.chain(weights).chain([near]) {
        if body.contains(&format!(" {name}{after}")) || body.contains(&format!("({name}{after}")) {
            let _ = writeln!(text, "  {declared}");
        }
    }
    text + &body + "  return " + &sum + "\n"
}

/// What the steps have shown of one tensor.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// The step that wrote each row last; of a ring, by position.
    rows: [Option<usize>; CTX],
    /// The position that each slot of a ring holds.
    slots: [Option<usize>; RING],
    writes: usize,
    whole: bool,
    /// A row was read that the step had not written.
    live: bool,
    /// Rows were read that no step had written, or that hold another position by now.
    empty: bool,
    /// Attention read rows of it.
    attended: bool,
    goals: BTreeSet<Goal>,
}

impl Seen {
    fn read(&mut self, step: usize, rows: Range<usize>) {
        for row in &self.rows[rows] {
            self.live |= *row != Some(step);
            self.empty |= row.is_none();
        }
    }

    fn write(&mut self, step: usize, rows: Range<usize>) {
        self.writes += 1;
        self.whole |= rows.len() == CTX;
        self.rows[rows].fill(Some(step));
    }

    fn write_last(&mut self, step: usize, positions: Range<usize>) {
        self.write(step, positions.clone());
        positions.for_each(|p| self.slots[p % RING] = Some(p));
    }

    /// The last rows before a position, by their slots.
    fn read_last(&mut self, step: usize, position: usize) {
        for p in position.saturating_sub(RING)..position {
            self.live |= self.rows[p] != Some(step);
            self.empty |= self.slots[p % RING] != Some(p);
        }
    }

    /// The role that a tensor of this number has shown.
    fn role(&self, t: usize) -> Role {
        match (self.writes > 0, self.live) {
            (false, _) => Role::Frozen,
            (true, false) => Role::Scratch,
            (true, true) if self.whole => Role::Carried(Extent::Recurrent),
            (true, true) if RINGS.contains(&t) => {
                Role::Carried(match self.goals.iter().collect::<Vec<_>>()[..] {
                    [Goal::Overlap] => Extent::Frontier { rate: 2, keep: 2 },
                    [Goal::Four] => Extent::Frontier { rate: 4, keep: 0 },
                    _ => Extent::Ring,
                })
            }
            (true, true) if PERS.contains(&t) => Role::Carried(Extent::Compressed { rate: RATE as u64 }),
            (true, true) => Role::Carried(Extent::Append),
        }
    }

    /// The rows before a position that a step from there on reads for its result, whatever follows.
    fn needed(&self, position: usize) -> Option<Range<u64>> {
        let whole = |p: usize, rate: usize| (p + 1).is_multiple_of(rate);
        let reads = |goal: &Goal, p: usize| match goal {
            Goal::Attend | Goal::Conv => true,
            Goal::Overlap => whole(p, 2),
            Goal::Four => whole(p, 4),
        };
        let later = (position..position + 2 * CTX).filter(|p| self.goals.iter().any(|g| reads(g, *p)));
        let first = later.map(|p| p.saturating_sub(RING)).min()?;
        Some(first.min(position) as u64..position as u64)
    }
}

/// Runs steps of several rows from an empty memory. A kept value is a view: it holds the tensor, and how often the
/// tensor had been written.
fn simulate(lines: &[Line]) -> Vec<Seen> {
    let mut seen = vec![Seen::default(); TENSORS.len()];
    let mut position = 0;
    for (step, n) in STEPS.into_iter().enumerate() {
        let (now, end) = (position..position + n, position + n);
        position = end;
        let mut kept: Vec<(usize, usize)> = Vec::new();
        for line in lines {
            match *line {
                Line::Read(t, Rows::UpTo) => {
                    seen[t].attended = true;
                    seen[t].read(step, 0..end);
                }
                Line::Read(t, Rows::New) => seen[t].read(step, now.clone()),
                Line::Read(t, _) => seen[t].read(step, 0..CTX),
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
                Line::WriteNew(t) => seen[t].write(step, now.clone()),
                Line::Join(t, goal) => {
                    seen[t].goals.insert(goal);
                    seen[t].attended |= goal == Goal::Attend;
                    seen[t].read_last(step, now.start);
                }
                Line::WriteLast(t) => seen[t].write_last(step, now.clone()),
                Line::WritePer(t) => {
                    seen[t].writes += 1;
                    let closed = now.clone().filter(|p| (p + 1) % RATE == 0);
                    closed.for_each(|p| seen[t].rows[(p + 1) / RATE - 1] = Some(step));
                }
                Line::ReadPer(t) => {
                    seen[t].attended = true;
                    seen[t].read(step, 0..end / RATE);
                }
                Line::Advance => {
                    seen[MEMORY].read(step, 0..CTX);
                    seen[MEMORY].write(step, 0..CTX);
                }
            }
        }
    }
    seen
}

/// Holds the valid rows of an extent to what the steps wrote and what later ones need.
fn valid_rows_are_needed(extent: Extent, seen: &Seen, said: &str) {
    let total = STEPS.iter().sum::<usize>();
    let written = |rows: u64| (0..CTX as u64).all(|r| seen.rows[r as usize].is_some() == (r < rows));
    match extent {
        Extent::Append => assert!(written(extent.valid_rows(total as u64, CTX as u64)), "{said}"),
        Extent::Compressed { .. } => {
            assert!(written(extent.valid_rows(total as u64, (CTX / RATE) as u64)), "{said}");
        }
        Extent::Ring | Extent::Frontier { .. } => {
            for position in 0..CTX {
                let valid = extent.valid(position as u64, RING as u64);
                let needed = seen.needed(position).expect("it is read");
                assert!(valid.start <= needed.start && valid.end == needed.end, "at {position}\n{said}");
                // Two forms of compression need less than the ring that is kept for both.
                let both = seen.goals == BTreeSet::from([Goal::Overlap, Goal::Four]);
                assert!(both || valid == needed, "at {position}\n{said}");
            }
        }
        _ => assert_eq!(extent.valid(total as u64, CTX as u64), 0..CTX as u64),
    }
}

#[test]
fn roles_are_what_the_steps_show() {
    let mut runner = TestRunner::deterministic();
    let programs = proptest::collection::vec(lines(), 1..8);
    let mut accepted: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..30_000 {
        let lines = programs.new_tree(&mut runner).expect("a program").current().concat();
        let text = text(&lines);
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let Ok(graph) = program.lift() else { continue };
        let all = simulate(&lines);
        for (id, value) in graph.declared() {
            let Some(t) = TENSORS.iter().position(|name| *name == value.name) else { continue };
            let (seen, said) = (&all[t], format!("{text}{graph}"));
            let role = graph.roles().of(id).expect("a declared value has a role");
            assert_eq!(role, seen.role(t), "{said}");
            let whole = matches!(role, Role::Frozen | Role::Carried(Extent::Recurrent));
            assert!(whole || !seen.empty, "rows are read that nothing has written\n{said}");
            if let Role::Carried(extent) = role {
                valid_rows_are_needed(extent, seen, &said);
                let carried = graph.roles().carried().find(|c| c.value == id).expect("it is carried");
                assert_eq!(carried.cache, seen.attended, "{said}");
            }
            *accepted.entry(role.to_string()).or_default() += 1;
        }
    }
    for role in [
        "frozen",
        "scratch",
        "carried, append",
        "carried, recurrent",
        "carried, ring",
        "carried, compressed 1:2",
        "carried, frontier of 2, 2 kept",
        "carried, frontier of 4, 0 kept",
    ] {
        assert!(accepted.get(role).is_some_and(|&count| count >= 50), "{role} in {accepted:?}");
    }
}
