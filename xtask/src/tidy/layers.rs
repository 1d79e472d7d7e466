//! Which crate may use which: a table in code, the same table in the document, and the manifests held to it.

use super::{Fault, Workspace};
use std::collections::BTreeSet;

/// A row of the table.
pub struct Layer {
    /// The layer: what it uses lies in lower layers, or above it in the same one.
    pub layer: u32,
    /// The crate.
    pub name: &'static str,
    /// The crates that it may use, in the order of the table.
    pub uses: &'static [&'static str],
}

const fn row(layer: u32, name: &'static str, uses: &'static [&'static str]) -> Layer {
    Layer { layer, name, uses }
}

const DTYPE: &str = "tranship-dtype";
const RESIDENCY: &str = "tranship-residency";
const TENSOR: &str = "tranship-tensor";
const WEIGHTS: &str = "tranship-weights";
const PROGRAM: &str = "tranship-program";
const CTX: &str = "tranship-ctx";
const MODEL: &str = "tranship-model";
const HANDOFF: &str = "tranship-handoff";
const BACKEND: &str = "tranship-backend";
const CPU: &str = "tranship-cpu";
const SESSION: &str = "tranship-session";
const TEXT: &str = "tranship-text";
const FACADE: &str = "tranship";
const CLI: &str = "tranship-cli";

/// The table: the crates of the workspace from the bottom up.
pub const LAYERS: &[Layer] = &[
    row(0, DTYPE, &[]),
    row(0, RESIDENCY, &[]),
    row(1, TENSOR, &[DTYPE]),
    row(1, WEIGHTS, &[DTYPE]),
    row(1, PROGRAM, &[DTYPE]),
    row(2, CTX, &[DTYPE, RESIDENCY, TENSOR, PROGRAM]),
    row(2, MODEL, &[DTYPE, WEIGHTS, PROGRAM]),
    row(3, HANDOFF, &[DTYPE, TENSOR, PROGRAM, CTX, MODEL]),
    row(3, BACKEND, &[DTYPE, TENSOR, PROGRAM, CTX]),
    row(4, CPU, &[DTYPE, TENSOR, PROGRAM, CTX, BACKEND]),
    row(5, SESSION, &[DTYPE, RESIDENCY, TENSOR, WEIGHTS, PROGRAM, CTX, MODEL, HANDOFF, BACKEND]),
    row(5, TEXT, &[]),
    row(
        6,
        FACADE,
        &[DTYPE, RESIDENCY, TENSOR, WEIGHTS, PROGRAM, CTX, MODEL, HANDOFF, BACKEND, CPU, SESSION, TEXT],
    ),
    row(7, CLI, &[FACADE]),
    row(
        7,
        "xtask",
        &[
            DTYPE, RESIDENCY, TENSOR, WEIGHTS, PROGRAM, CTX, MODEL, HANDOFF, BACKEND, CPU, SESSION, TEXT,
            FACADE,
        ],
    ),
];

/// The document that holds the table.
pub const DOCUMENT: &str = "docs/ARCHITECTURE.md";

fn fault(place: impl Into<String>, what: impl Into<String>) -> Fault {
    Fault { place: place.into(), what: what.into() }
}

fn of(name: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|l| l.name == name)
}

/// Each dependency of a package's code on a package of the workspace is in the table.
pub fn edges(workspace: &Workspace) -> Vec<Fault> {
    let ours = |name: &&String| workspace.packages.iter().any(|p| p.name == **name);
    let mut faults = Vec::new();
    for package in &workspace.packages {
        let allowed = of(&package.name).map_or(&[][..], |l| l.uses);
        for used in package.uses.iter().filter(ours) {
            if !allowed.contains(&used.as_str()) {
                let what = format!("uses {used}; its row of the layer table allows {}", named(allowed));
                faults.push(fault(&package.name, what));
            }
        }
    }
    faults
}

fn named(names: &[&str]) -> String {
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}

/// Packages and rows are the same, and rows point down.
pub fn rows(workspace: &Workspace) -> Vec<Fault> {
    let mut faults = Vec::new();
    for package in workspace.packages.iter().filter(|p| of(&p.name).is_none()) {
        faults.push(fault(&package.name, "has no row in the layer table"));
    }
    for layer in LAYERS {
        if !workspace.packages.iter().any(|p| p.name == layer.name) {
            faults.push(fault(layer.name, "has a row in the layer table, and is no crate of the workspace"));
        }
    }
    faults.extend(upward(LAYERS));
    faults
}

/// Uses of a table that do not lie before their row: without them there can be no circle.
pub fn upward(table: &[Layer]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (i, layer) in table.iter().enumerate() {
        for used in layer.uses {
            if !table[..i].iter().any(|l| l.name == *used && l.layer <= layer.layer) {
                faults.push(fault(layer.name, format!("its row uses {used}, which is no row above it")));
            }
        }
        if i > 0 && table[i - 1].layer > layer.layer {
            faults.push(fault(layer.name, "its row is not in the order of layers"));
        }
    }
    faults
}

/// The table of the document, row for row.
pub fn document(workspace: &Workspace) -> Vec<Fault> {
    let Some(file) = workspace.file(DOCUMENT) else { return vec![fault(DOCUMENT, "is not there")] };
    let found: Vec<(usize, String)> =
        file.text.lines().enumerate().filter_map(|(i, line)| Some((i + 1, normal_row(line)?))).collect();
    let mut faults = Vec::new();
    let wanted: Vec<String> = LAYERS.iter().map(|l| row_text(l.layer, l.name, l.uses)).collect();
    for (line, row) in found.iter().filter(|(_, row)| !wanted.contains(row)) {
        faults.push(fault(format!("{DOCUMENT}:{line}"), format!("the code's table has no row `{row}`")));
    }
    for row in wanted.iter().filter(|w| !found.iter().any(|(_, f)| f == *w)) {
        faults.push(fault(DOCUMENT, format!("its table lacks the row `{row}`")));
    }
    faults
}

fn row_text(layer: u32, name: &str, uses: &[&str]) -> String {
    let mut uses = uses.to_vec();
    uses.sort_unstable();
    format!("{layer} | {name} | {}", named(&uses))
}

/// A row of a Markdown table that starts with a layer's number: `| 1 | `crate` | what it is | what it may use |`.
/// Names in the last column are in code marks, with or without their `tranship-`.
fn normal_row(line: &str) -> Option<String> {
    let cells: Vec<&str> =
        line.trim().strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
    let [layer, name, _, uses] = cells[..] else { return None };
    let layer = layer.parse().ok()?;
    let uses: Vec<String> = uses.split('`').skip(1).step_by(2).map(whole_name).collect();
    let uses: Vec<&str> = uses.iter().map(String::as_str).collect();
    Some(row_text(layer, name.trim_matches('`'), &uses))
}

fn whole_name(short: &str) -> String {
    let known = |name: &str| of(name).is_some();
    if known(short) { short.to_owned() } else { format!("tranship-{short}") }
}

/// A package that a test uses does not lead back to the tested package.
pub fn cycles(workspace: &Workspace) -> Vec<Fault> {
    let mut faults = Vec::new();
    for package in &workspace.packages {
        for used in &package.test_uses {
            if reached(workspace, used).contains(package.name.as_str()) {
                faults
                    .push(fault(&package.name, format!("its tests use {used}, which uses {}", package.name)));
            }
        }
    }
    faults
}

/// A package and everything that its code uses, in steps.
fn reached<'w>(workspace: &'w Workspace, from: &'w str) -> BTreeSet<&'w str> {
    let mut seen = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(name) = open.pop() {
        for package in workspace.packages.iter().filter(|p| p.name == name) {
            open.extend(package.uses.iter().map(String::as_str).filter(|used| seen.insert(used)));
        }
    }
    seen
}
