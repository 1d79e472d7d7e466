//! The workspace as data: what Cargo says of its packages, and the text of its files.

use crate::XtaskError;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// What the rules look at.
#[derive(Clone, Debug, Default)]
pub struct Workspace {
    /// The packages.
    pub packages: Vec<Package>,
    /// The text files, by path.
    pub files: Vec<File>,
}

/// A package of the workspace.
#[derive(Clone, Debug, Default)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Keys of its manifest that publishing asks for, and that are there.
    pub keys: Vec<String>,
    /// The packages that its code uses.
    pub uses: Vec<String>,
    /// The packages that its tests use as well.
    pub test_uses: Vec<String>,
    /// Its Cargo features, `default` included.
    pub features: Vec<String>,
    /// Its library and programs.
    pub targets: Vec<Target>,
}

/// A library or a program.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// The root file, relative to the workspace.
    pub path: String,
    /// Whether it is a library.
    pub library: bool,
}

/// A text file.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// Its path, relative to the workspace, with `/`.
    pub path: String,
    /// What it says.
    pub text: String,
}

impl File {
    /// Whether it is Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether it is a test, a benchmark or an example: a file that no crate ships as its code.
    pub fn is_test(&self) -> bool {
        self.path.split('/').any(|part| matches!(part, "tests" | "benches" | "examples"))
    }
}

/// The manifest's keys that a package must have to be published.
pub const KEYS: [&str; 4] = ["description", "keywords", "license", "version"];

/// Folders that hold nothing of ours.
const SKIPPED: [&str; 5] = ["target", ".git", "models", "__pycache__", "node_modules"];

/// Text files are smaller than this; larger ones are data.
const TEXT_BYTES: u64 = 2 << 20;

impl Workspace {
    /// Reads the workspace at `root`, without the network.
    ///
    /// # Errors
    /// When Cargo refuses the manifests, or a file cannot be read.
    pub fn read(root: &Path) -> Result<Workspace, XtaskError> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
        let said = Command::new(cargo).args(arguments).current_dir(root).output();
        let said = said.map_err(|e| XtaskError::tool("cargo metadata", e))?;
        if !said.status.success() {
            return Err(XtaskError::tool("cargo metadata", String::from_utf8_lossy(&said.stderr).trim()));
        }
        let metadata: Value =
            serde_json::from_slice(&said.stdout).map_err(|e| XtaskError::tool("cargo metadata", e))?;
        let base = metadata["workspace_root"].as_str().unwrap_or_default().to_owned();
        let mut packages: Vec<Package> = list(&metadata["packages"]).map(|p| package(p, &base)).collect();
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        let mut files = Vec::new();
        collect(root, root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Workspace { packages, files })
    }

    /// A file by path.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|f| f.path == path)
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn package(value: &Value, base: &str) -> Package {
    let given = |key: &&str| match &value[*key] {
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    let uses = |test: bool| {
        let of_kind = list(&value["dependencies"]).filter(move |d| (d["kind"] == "dev") == test);
        of_kind.map(|d| text(&d["name"])).collect()
    };
    let targets = list(&value["targets"]).filter_map(|target| {
        let kinds: Vec<String> = list(&target["kind"]).map(text).collect();
        let library = kinds.iter().any(|k| k == "lib" || k == "proc-macro");
        let path = text(&target["src_path"]).trim_start_matches(base).trim_start_matches('/').to_owned();
        (library || kinds.iter().any(|k| k == "bin")).then_some(Target { path, library })
    });
    Package {
        name: text(&value["name"]),
        keys: KEYS.iter().filter(|k| given(k)).map(|k| (*k).to_owned()).collect(),
        uses: uses(false),
        test_uses: uses(true),
        features: value["features"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect(),
        targets: targets.collect(),
    }
}

/// Adds the text files below a folder; what is no UTF-8 is data, and passed over.
fn collect(root: &Path, folder: &Path, files: &mut Vec<File>) -> Result<(), XtaskError> {
    for entry in std::fs::read_dir(folder).map_err(|e| XtaskError::io(folder, e))? {
        let entry = entry.map_err(|e| XtaskError::io(folder, e))?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = entry.file_type().map_err(|e| XtaskError::io(&path, e))?;
        let ours = !SKIPPED.contains(&name.as_str()) || folder.ends_with("fixtures");
        if kind.is_dir() && ours {
            collect(root, &path, files)?;
        }
        let small = || entry.metadata().is_ok_and(|m| m.len() <= TEXT_BYTES);
        if !kind.is_file() || !small() {
            continue;
        }
        // A file that is being replaced while this reads is as if it were not there.
        let Ok(bytes) = std::fs::read(&path) else { continue };
        if let (Ok(text), Ok(relative)) = (String::from_utf8(bytes), path.strip_prefix(root)) {
            files.push(File { path: relative.to_string_lossy().replace('\\', "/"), text });
        }
    }
    Ok(())
}
