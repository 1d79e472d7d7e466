//! A hand-off beside the contract that it is held to: a line for each carried tensor of either, equal layers folded.

use crate::out;
use std::collections::HashMap;
use std::fmt::Write as _;
use tranship::handoff::{Carried, Contract, Handoff, HandoffError, HandoffTensor, Refusal, Shown};
use tranship::program::Extent;

/// A carried tensor of the contract, of the hand-off, or of both.
pub struct Line<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// What the contract says of it.
    pub ours: Option<&'a Carried>,
    /// What the hand-off's manifest says of it.
    pub theirs: Option<&'a Carried>,
    /// What the hand-off has of it.
    pub tensor: Option<&'a HandoffTensor>,
    /// What is wrong with it.
    pub faults: Vec<&'a HandoffError>,
}

/// A hand-off held to a contract.
pub struct Held<'a> {
    /// The tensors: the contract's in their order, then those that it does not have.
    pub lines: Vec<Line<'a>>,
    /// What is wrong, and with no tensor.
    pub others: Vec<&'a HandoffError>,
}

impl<'a> Held<'a> {
    /// Puts side by side what the contract has, what the hand-off has, and what a check has found.
    pub fn new(contract: &'a Contract, handoff: &'a Handoff, found: Option<&'a Refusal>) -> Held<'a> {
        let errors = || found.iter().flat_map(|refusal| &refusal.errors);
        let mut faults: HashMap<&str, Vec<&HandoffError>> = HashMap::new();
        for error in errors() {
            if let Some(name) = error.tensor() {
                faults.entry(name).or_default().push(error);
            }
        }
        let named = |list: &'a [Carried]| list.iter().map(|c| (c.name.as_str(), c)).collect();
        let ours: HashMap<&str, &Carried> = named(&contract.carried);
        let theirs: HashMap<&str, &Carried> = named(&handoff.contract().carried);
        let tensors: HashMap<&str, &HandoffTensor> =
            handoff.state().iter().map(|t| (t.name.as_str(), t)).collect();
        let more = handoff.state().iter().map(|t| t.name.as_str()).filter(|name| !ours.contains_key(name));
        let names = contract.carried.iter().map(|c| c.name.as_str()).chain(more);
        let line = |name: &'a str| Line {
            name,
            ours: ours.get(name).copied(),
            theirs: theirs.get(name).copied(),
            tensor: tensors.get(name).copied(),
            faults: faults.get(name).cloned().unwrap_or_default(),
        };
        let lines = names.map(line).collect();
        Held { lines, others: errors().filter(|e| e.tensor().is_none()).collect() }
    }

    /// The tensors as a table. Layers that are alike, faults included, are one entry unless `all` are wanted.
    pub fn table(&self, all: bool) -> String {
        let groups = self.groups(all);
        let mut widths = HEAD.map(str::len);
        for row in groups.iter().flat_map(|g| &g.rows) {
            for (width, cell) in widths.iter_mut().zip(&row.cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        // What does not fit on a line is cut short where the axes stand; a fault of theirs says them in full.
        let whole = widths.iter().sum::<usize>() + 2 * (widths.len() - 1) + MARK.len();
        widths[AXES] = widths[AXES].saturating_sub(whole.saturating_sub(out::WIDTH)).max(8);
        let mut text = line(MARK, &HEAD.map(str::to_owned), &widths);
        for group in &groups {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {}", group.title());
            for row in &group.rows {
                let mark = if row.faults.is_empty() { MARK } else { FAULTY };
                text.push_str(&line(mark, &row.cells, &widths));
                for fault in &row.faults {
                    text.push_str(&out::wrap(fault, "        ", "          "));
                }
            }
        }
        text
    }

    fn groups(&self, all: bool) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut alike: HashMap<(bool, Vec<Row>), usize> = HashMap::new();
        let place = |line: &Line<'_>| (line.ours.is_some(), line.layer());
        for lines in self.lines.chunk_by(|a, b| place(a) == place(b)) {
            let (known, layer) = lines.first().map_or((true, None), place);
            let rows = |fold: bool| lines.iter().map(|l| l.row(fold)).collect::<Vec<Row>>();
            let pattern = (known, rows(true));
            if let (Some(layer), Some(at), false) = (layer, alike.get(&pattern), all) {
                let group = &mut groups[*at];
                group.layers.push(layer);
                group.rows = pattern.1;
                continue;
            }
            alike.insert(pattern, groups.len());
            groups.push(Group { known, layers: layer.into_iter().collect(), rows: rows(false) });
        }
        groups
    }
}

/// Before a line, and before one that something is wrong with.
const MARK: &str = "      ";
const FAULTY: &str = "    ! ";
const HEAD: [&str; 7] = ["tensor", "kind", "rows", "axes", "type", "bytes", "cut in"];
/// The column of the axes, and that of the bytes.
const AXES: usize = 3;
const BYTES: usize = 5;
/// Characters of a name that are shown.
const NAME: usize = 24;

/// Layers that are alike.
struct Group {
    /// Whether they are the contract's; else they are of the hand-off alone.
    known: bool,
    /// None where no manifest has the tensors.
    layers: Vec<u64>,
    rows: Vec<Row>,
}

/// A tensor as it is shown.
#[derive(PartialEq, Eq, Hash)]
struct Row {
    cells: [String; 7],
    faults: Vec<String>,
}

impl Line<'_> {
    /// Its layer; where the contract does not have it, that in the hand-off.
    fn layer(&self) -> Option<u64> {
        self.listed().map(|c| c.layer)
    }

    /// The contract's entry; where it has none, the hand-off's.
    pub fn listed(&self) -> Option<&Carried> {
        self.ours.or(self.theirs)
    }

    fn row(&self, fold: bool) -> Row {
        let none = || "-".to_owned();
        let listed = self.listed();
        let (named, of_layer) = match self.layer().filter(|_| fold) {
            Some(layer) => (pattern(self.name, layer), Some(layer)),
            None => (self.name.to_owned(), None),
        };
        let rows = self.tensor.map_or("none".to_owned(), |t| t.rows().to_string());
        let whole = listed.map_or(String::new(), |c| format!(" of {}", c.rows()));
        let cells = [
            short(&Shown(&named).to_string(), NAME),
            listed.map_or_else(none, |c| kind(c.extent)),
            rows + &whole,
            listed.map_or_else(none, axes),
            self.tensor.map_or_else(none, |t| t.dtype.to_string()),
            self.tensor.map_or_else(none, |t| out::bytes(t.bytes().len() as u64)),
            listed.map_or_else(none, units),
        ];
        let told = |fault: &&HandoffError| {
            let text = fault.to_string();
            let Some(layer) = of_layer else { return text };
            let quoted = |name: &str| format!("`{}`", Shown(name));
            let text = text.replace(&quoted(self.name), &quoted(&named));
            text.replace(&format!(" layer {layer})"), " layer *)")
                .replace(&format!("of layer {layer} is missing"), "is missing")
        };
        Row { cells, faults: self.faults.iter().map(told).collect() }
    }
}

impl Group {
    fn title(&self) -> String {
        let alone = if self.known { "" } else { " in the hand-off alone" };
        match self.layers[..] {
            [] => format!("of no layer,{alone}"),
            [layer] => format!("layer {layer}{alone}"),
            _ => format!("layers {}{alone}: {} alike, each", runs(&self.layers), self.layers.len()),
        }
    }
}

/// Numbers in runs: `0-2, 4-6, 8 … 44-46`.
pub fn runs(numbers: &[u64]) -> String {
    let run = |run: &[u64]| match run {
        [] => String::new(),
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
    };
    let runs: Vec<String> = numbers.chunk_by(|a, b| a + 1 == *b).map(run).collect();
    match &runs[..] {
        [a, b, c, .., z] if runs.len() > 6 => format!("{a}, {b}, {c} … {z}"),
        few => few.join(", "),
    }
}

/// A name without the number of its layer: `k*`.
pub fn pattern(name: &str, layer: u64) -> String {
    let stem = name.strip_suffix(&layer.to_string());
    stem.filter(|stem| !stem.ends_with(|c: char| c.is_ascii_digit()))
        .map_or(name.to_owned(), |stem| format!("{stem}*"))
}

fn kind(extent: Extent) -> String {
    match extent {
        Extent::Compressed { rate } => format!("compressed 1:{rate}"),
        Extent::Frontier { rate, keep } => format!("frontier {rate}+{keep}"),
        plain => plain.name().to_owned(),
    }
}

/// The axes; how many rows there are stands beside them.
fn axes(carried: &Carried) -> String {
    let axis = |(i, axis): (usize, &tranship::handoff::Axis)| match i {
        0 => Shown(&axis.name).to_string(),
        _ => format!("{} {}", Shown(&axis.name), axis.size),
    };
    let axes: Vec<String> = carried.axes.iter().enumerate().map(axis).collect();
    format!("[{}]", axes.join(", "))
}

/// How many units a cut may fall between, in each run of them.
fn units(carried: &Carried) -> String {
    let Some(segments) = &carried.segments else { return "-".to_owned() };
    segments.runs.iter().map(|run| run.count.to_string()).collect::<Vec<_>>().join("+")
}

/// At most so many characters of a text.
fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    kept + "…"
}

/// A line of the table.
fn line(mark: &str, cells: &[String; 7], widths: &[usize; 7]) -> String {
    let mut text = mark.to_owned();
    for (i, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        let cell = if i == AXES { short(cell, width) } else { cell.clone() };
        // Writing to a string cannot fail.
        let _ = if i == BYTES { write!(text, "{cell:>width$}  ") } else { write!(text, "{cell:width$}  ") };
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_told_in_runs() {
        let title = |known, layers| Group { known, layers, rows: vec![] }.title();
        assert_eq!(title(false, vec![]), "of no layer, in the hand-off alone");
        assert_eq!(title(true, vec![7]), "layer 7");
        assert_eq!(title(false, vec![0, 1, 2, 4]), "layers 0-2, 4 in the hand-off alone: 4 alike, each");
        let every_fourth = (3..100).step_by(4).collect();
        assert_eq!(title(true, every_fourth), "layers 3, 7, 11 … 99: 25 alike, each");
    }

    #[test]
    fn names_lose_the_number_of_their_layer_alone() {
        for (name, layer, wanted) in
            [("k3", 3, "k*"), ("conv_q12", 12, "conv_q*"), ("k13", 3, "k13"), ("k", 3, "k"), ("3", 3, "*")]
        {
            assert_eq!(pattern(name, layer), wanted);
        }
    }
}
