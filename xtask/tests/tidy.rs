//! The house rules, held to the workspace, and each of them to samples that it refuses and accepts.

use std::path::Path;
use xtask::tidy::{self, File, LAYERS, Package, RULES, Target, Workspace};

#[test]
fn the_workspace_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let workspace = Workspace::read(&root).expect("the workspace reads");
    assert!(workspace.packages.len() >= 15, "only {} packages were found", workspace.packages.len());
    assert!(workspace.files.len() >= 100, "only {} files were found", workspace.files.len());
    let faults: Vec<String> =
        tidy::faults(&workspace).into_iter().map(|(rule, fault)| format!("{fault}  [{rule}]")).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// What a sample puts into a workspace that is otherwise tidy.
enum Sample {
    /// A file.
    File(&'static str, String),
    /// A change to a package.
    Package(&'static str, fn(&mut Package)),
    /// A package of its own.
    Extra(Package),
    /// A line of the document's table that reads otherwise.
    Row(&'static str, &'static str),
}

/// The smallest workspace in which every rule holds.
fn tidy_workspace() -> Workspace {
    let keys: Vec<String> =
        ["description", "keywords", "license", "version"].iter().map(|k| (*k).to_owned()).collect();
    let mut workspace = Workspace::default();
    let mut document = String::from("| layer | crate | what | may use |\n|---|---|---|---|\n");
    for layer in LAYERS {
        let path = format!("crates/{}/src/lib.rs", layer.name);
        let uses: Vec<String> = layer.uses.iter().map(|u| (*u).to_owned()).collect();
        let marked: Vec<String> =
            uses.iter().map(|u| format!("`{}`", u.trim_start_matches("tranship-"))).collect();
        document.push_str(&format!(
            "| {} | `{}` | a crate | {} |\n",
            layer.layer,
            layer.name,
            marked.join(", ")
        ));
        workspace.files.push(File {
            path: path.clone(),
            text: "//! A crate.\n//! ```\n//! assert!(true);\n//! ```\n#![forbid(unsafe_code)]\n".into(),
        });
        workspace.packages.push(Package {
            name: layer.name.into(),
            keys: keys.clone(),
            uses,
            targets: vec![Target { path, library: true }],
            ..Package::default()
        });
    }
    workspace.files.push(File { path: "docs/ARCHITECTURE.md".into(), text: document });
    workspace
}

fn broken_by(sample: Sample) -> Vec<&'static str> {
    let mut workspace = tidy_workspace();
    match sample {
        Sample::File(path, text) => {
            workspace.files.retain(|f| f.path != path);
            workspace.files.push(File { path: path.into(), text });
        }
        Sample::Package(name, change) => {
            change(workspace.packages.iter_mut().find(|p| p.name == name).expect("a package of that name"));
        }
        Sample::Extra(package) => workspace.packages.push(package),
        Sample::Row(from, to) => {
            let document = workspace.files.last_mut().expect("the document");
            assert!(document.text.contains(from), "no {from} in {}", document.text);
            document.text = document.text.replace(from, to);
        }
    }
    let mut rules: Vec<&str> = tidy::faults(&workspace).into_iter().map(|(rule, _)| rule).collect();
    rules.dedup();
    rules
}

fn rust(text: &str) -> Sample {
    Sample::File("crates/tranship-model/src/sample.rs", format!("//! A sample.\n{text}"))
}

/// A sample for each rule that breaks this rule and no other.
fn refused() -> Vec<(&'static str, Sample)> {
    let long_body = "    let _ = 1;\n".repeat(100);
    let extra = Package { name: "tranship-else".into(), ..tidy_workspace().packages[0].clone() };
    vec![
        ("layers", Sample::Package("tranship-tensor", |p| p.uses.push("tranship-program".into()))),
        ("layers", Sample::Package("tranship-session", |p| p.uses.push("tranship-cpu".into()))),
        ("layers", Sample::Package("tranship-cli", |p| p.uses.push("tranship-session".into()))),
        ("rows", Sample::Extra(extra)),
        ("document", Sample::Row("| `dtype`, `weights`, `program` |", "| `dtype`, `program` |")),
        ("document", Sample::Row("| 1 | `tranship-tensor`", "| 2 | `tranship-tensor`")),
        ("document", Sample::File("docs/ARCHITECTURE.md", "no table".into())),
        ("cycles", Sample::Package("tranship-dtype", |p| p.test_uses.push("tranship-tensor".into()))),
        ("manifest", Sample::Package("tranship-dtype", |p| p.keys.retain(|k| k != "keywords"))),
        ("manifest", Sample::Package("xtask", |p| p.keys.retain(|k| k != "license"))),
        ("features", Sample::Package("tranship-session", |p| p.features.push("cuda".into()))),
        (
            "safe",
            Sample::File(
                "crates/tranship-ctx/src/lib.rs",
                "//! ```\n//! ```\n// #![forbid(unsafe_code)]".into(),
            ),
        ),
        (
            "example",
            Sample::File(
                "crates/tranship-ctx/src/lib.rs",
                "//! ```text\n//! ```\n//! ```ignore\n//! ```\n#![forbid(unsafe_code)]".into(),
            ),
        ),
        ("header", Sample::File("crates/tranship-ctx/src/a.rs", "/// No page.\nfn f() {}".into())),
        ("file length", rust(&"// a line\n".repeat(800))),
        ("function length", rust(&format!("fn f(x: [u8; 2]) -> u8 {{\n{long_body}}}\n"))),
        ("safety", rust("fn f() {\n    unsafe { g() }\n}")),
        ("safety", rust("// SAFETY: too far away.\n\n\n\n\nunsafe impl Send for X {}")),
        ("finished", rust("fn f() {\n    todo!()\n}")),
        ("finished", rust("fn f() {\n    dbg!(1);\n}")),
        ("finished", rust("fn f() {\n    unimplemented!()\n}")),
        ("finished", rust("#[ignore = \"slow\"]\nfn f() {}")),
        ("finished", rust(concat!("// FIX", "ME later"))),
        ("casts", rust("fn f() -> Op {\n    Op::Cast(DType::F32)\n}")),
        ("casts", rust("fn f() {\n    push(Action::Apply { op: Op::Cast(to), args, out }, span);\n}")),
        ("casts", rust("fn f() {\n    let g = Op::Cast;\n}")),
        ("casts", rust("fn f(x: u8) -> Op {\n    match x {\n        _ => Op::Cast(to),\n    }\n}")),
        ("machine paths", rust(concat!("const A: &str = \"/tm", "p/a\";"))),
        ("machine paths", Sample::File("README.md", concat!("see /wo", "rk/main").into())),
        ("hosts", Sample::File("README.md", concat!("from https://pypi", ".org/simple").into())),
    ]
}

#[test]
fn every_rule_refuses_its_samples() {
    let refused = refused();
    for rule in RULES {
        assert!(refused.iter().any(|(name, _)| *name == rule.name), "`{}` has no sample", rule.name);
    }
    for (i, (rule, sample)) in refused.into_iter().enumerate() {
        assert_eq!(broken_by(sample), [rule], "sample {i}");
    }
}

#[test]
fn what_only_looks_broken_is_accepted() {
    let accepted = [
        rust(
            "#[test]\nfn f() {\n    // unsafe { g() } and todo!() are words here\n    let s = \"unsafe { dbg!() }\";\n}",
        ),
        rust("fn f() {\n    // SAFETY: g has no conditions.\n    unsafe { g() }\n}"),
        rust(&format!(
            "// SAFETY: a long reason.\n{}unsafe impl Send for X {{}}",
            "// More of it.\n".repeat(9)
        )),
        rust("unsafe fn g() {}\ntype F = unsafe fn();"),
        rust(
            "fn f(op: &Op) -> bool {\n    match op {\n        Op::Cast(to) => true,\n        Op::Add | Op::Cast(_) => false,\n    }\n}",
        ),
        rust("fn f() {\n    if let Action::Apply { op: Op::Cast(to), args, .. } = action {}\n}"),
        rust("fn f() {\n    match (a, b) {\n        (Some(Op::Cast(to)), _) if to == x => {}\n    }\n}"),
        rust("fn f() -> bool {\n    matches!(op, Op::Cast(..))\n}"),
        rust(&format!("trait T {{\n    fn f(&self);\n}}\n{}", "const A: fn() = g;\n".repeat(120))),
        Sample::File(
            "crates/tranship-ctx/src/pass.rs",
            "//! The pass.\nfn f() -> Op {\n    Op::Cast(to)\n}".into(),
        ),
        Sample::File(
            "Cargo.lock",
            concat!("registry+https://github.com/rust-lang/crates", ".io-index").into(),
        ),
        Sample::File("a.sh", concat!("cp $OUT/tm", "p/a src/tm", "p/b ./ro", "ot/c").into()),
        Sample::Package("tranship-tensor", |p| p.uses.push("half".into())),
        Sample::Package("tranship", |p| p.features.push("cuda".into())),
        Sample::Package("tranship-session", |p| p.test_uses.push("tranship-cpu".into())),
    ];
    for (i, sample) in accepted.into_iter().enumerate() {
        assert_eq!(broken_by(sample), [""; 0], "sample {i}");
    }
}
