//! Rules on every text file: nothing in it belongs to one machine or leads to one registry.

use super::{Fault, Workspace};

/// Folders of one machine. Written in two parts, so that this file holds none.
const MACHINES: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tm", "p/"), concat!("/ho", "me/")];

/// Hosts of package registries and model hubs.
const HOSTS: [&str; 6] = [
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("crates", ".io"),
    concat!("npmjs", ".org"),
    concat!("huggingface", ".co"),
    concat!("proxy.golang", ".org"),
];

/// The file that names a registry by nature.
const LOCK: &str = "Cargo.lock";

/// Absolute paths of one machine, in code, scripts and documents; not in tests, which may refuse one.
pub fn machine_paths(workspace: &Workspace) -> Vec<Fault> {
    // A longer path, as `src/…`, or a variable's folder, is no absolute one.
    let inside = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}' | ')');
    let absolute = |line: &str, folder: &str| {
        line.match_indices(folder).any(|(at, _)| !line[..at].chars().next_back().is_some_and(inside))
    };
    named(workspace, &MACHINES, "a path of one machine", absolute, |path| {
        path.split('/').any(|part| part == "tests")
    })
}

/// Names of hosts.
pub fn hosts(workspace: &Workspace) -> Vec<Fault> {
    named(workspace, &HOSTS, "a registry's host", |line, host| line.contains(host), |path| path == LOCK)
}

fn named(
    workspace: &Workspace,
    names: &[&str],
    what: &str,
    found: impl Fn(&str, &str) -> bool,
    exempt: impl Fn(&str) -> bool,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in workspace.files.iter().filter(|f| !exempt(&f.path)) {
        for (i, line) in file.text.lines().enumerate() {
            for name in names.iter().filter(|name| found(line, name)) {
                faults.push(Fault {
                    place: format!("{}:{}", file.path, i + 1),
                    what: format!("{what}: `{name}`"),
                });
            }
        }
    }
    faults
}
