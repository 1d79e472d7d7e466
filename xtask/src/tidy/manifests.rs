//! Rules on packages: what their manifests say, and what the roots of their targets open with.

use super::workspace::KEYS;
use super::{Fault, Workspace, scan};

/// The crates that may hold unsafe code: conversions over raw bytes, the memory map, the kernels.
const UNSAFE: [&str; 3] = ["tranship-tensor", "tranship-weights", "tranship-cpu"];

/// The one crate with features.
const FACADE: &str = "tranship";

fn fault(place: &str, what: impl Into<String>) -> Fault {
    Fault { place: place.into(), what: what.into() }
}

/// Every key that publishing asks for.
pub fn complete(workspace: &Workspace) -> Vec<Fault> {
    let mut faults = Vec::new();
    for package in &workspace.packages {
        for key in KEYS.iter().filter(|k| !package.keys.iter().any(|p| p == *k)) {
            faults.push(fault(&package.name, format!("its manifest has no `{key}`")));
        }
    }
    faults
}

/// No features but the façade's.
pub fn features(workspace: &Workspace) -> Vec<Fault> {
    let others = workspace.packages.iter().filter(|p| p.name != FACADE && !p.features.is_empty());
    others.map(|p| fault(&p.name, format!("has the features {}", p.features.join(", ")))).collect()
}

/// `#![forbid(unsafe_code)]` in the root of every target of a crate that needs none.
pub fn forbids_unsafe(workspace: &Workspace) -> Vec<Fault> {
    let mut faults = Vec::new();
    for package in workspace.packages.iter().filter(|p| !UNSAFE.contains(&p.name.as_str())) {
        for target in &package.targets {
            let Some(file) = workspace.file(&target.path) else { continue };
            let code: String = scan::code(&file.text).into_iter().filter(|c| !c.is_whitespace()).collect();
            if !code.contains("#![forbid(unsafe_code)]") {
                faults.push(fault(&file.path, "has no `#![forbid(unsafe_code)]`"));
            }
        }
    }
    faults
}

/// A block of Rust in the page of every library that the compiler sees.
pub fn examples(workspace: &Workspace) -> Vec<Fault> {
    let mut faults = Vec::new();
    for target in workspace.packages.iter().flat_map(|p| &p.targets).filter(|t| t.library) {
        let Some(file) = workspace.file(&target.path) else { continue };
        if !has_example(&file.text) {
            faults.push(fault(&file.path, "its page has no example that is compiled"));
        }
    }
    faults
}

/// Whether the `//!` lines hold a fenced block whose info string is empty or of attributes that compile it.
fn has_example(text: &str) -> bool {
    let lines = text.lines().filter_map(|l| l.trim_start().strip_prefix("//!")).map(str::trim);
    let mut open = false;
    for fence in lines.filter_map(|l| l.strip_prefix("```")) {
        let runs = |word: &str| {
            matches!(word, "" | "rust" | "no_run" | "should_panic") || word.starts_with("edition")
        };
        if !open && fence.split(',').all(|word| runs(word.trim())) {
            return true;
        }
        open = !open;
    }
    false
}
