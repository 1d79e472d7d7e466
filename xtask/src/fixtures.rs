//! The fixtures: whether they are all there and small, and how they are made anew.

use crate::{XtaskError, fetch, tool};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The most that a committed fixture may take.
pub const MOST_BYTES: u64 = 400 * 1000;

/// The folder of the trained model, and the most that each of its files may take.
const TRAINED: (&str, u64) = ("models/demo", 5_000_000);

/// Folders of fixtures, with the fewest files that each holds.
const FOLDERS: [(&str, usize); 7] = [
    ("configs", 4),
    ("dtype", 16),
    ("families", 33),
    ("models", 16),
    ("real", 3),
    ("scripts", 5),
    ("text", 1),
];

/// A script with its arguments; `{}` stands for the folder of the fixtures.
const SCRIPTS: [(&str, &[&str]); 5] = [
    ("dequant.py", &["{}/dtype"]),
    ("llama_family.py", &["{}/models"]),
    ("families.py", &["{}/families"]),
    ("gguf_models.py", &["{}/models"]),
    ("page_model.py", &["{}/text/page.txt", "{}/models"]),
];

/// What to do with the fixtures.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct FixturesArgs {
    /// Makes them anew with this Python, which has what `fixtures/scripts/requirements.txt` lists
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Only these scripts
    #[arg(long, num_args = 1.., value_name = "NAME", requires = "python")]
    script: Vec<String>,
}

/// Checks the fixtures; with a Python, makes them anew before.
///
/// # Errors
/// Unknown scripts, scripts that fail, fixtures that are missing or too large.
pub fn run(root: &Path, args: &FixturesArgs) -> Result<(), XtaskError> {
    let folder = root.join("fixtures");
    match &args.python {
        Some(python) => make(root, &folder, python, &args.script)?,
        None => {
            println!("to make them anew: a virtual environment with fixtures/scripts/requirements.txt, then");
            println!("  cargo xtask fixtures --python VENV/bin/python");
            println!("those of the real model are made where `cargo xtask fetch smollm2` has put it");
        }
    }
    let found = check(&folder)?;
    let (folders, most) = (FOLDERS.len(), MOST_BYTES / 1000);
    println!("fixtures: {found} files in {folders} folders, each under {most} kB but for {}", TRAINED.0);
    Ok(())
}

fn make(root: &Path, folder: &Path, python: &Path, only: &[String]) -> Result<(), XtaskError> {
    const REAL: &str = "smollm2_truth.py";
    let names = || SCRIPTS.iter().map(|(name, _)| *name).chain([REAL]);
    if let Some(unknown) = only.iter().find(|name| !names().any(|n| n == name.as_str())) {
        return Err(XtaskError::unknown("script", unknown, names()));
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|n| n == name);
    let scripts = folder.join("scripts");
    let fixtures = folder.display().to_string();
    for (name, arguments) in SCRIPTS.iter().filter(|(name, _)| wanted(name)) {
        let arguments = arguments.iter().map(|a| a.replace("{}", &fixtures));
        tool::shown(Command::new(python).arg(scripts.join(name)).args(arguments))?;
    }
    let file = Path::new(fetch::SMOLLM2.inside).file_name().unwrap_or_default();
    let model = root.join("models").join(fetch::SMOLLM2.name).join(file);
    if !wanted(REAL) {
        return Ok(());
    }
    if !model.exists() {
        println!("{REAL} is left out: {} is not there", model.display());
        return Ok(());
    }
    let full = root.join("target").join("smollm2_logits.safetensors");
    let mut command = Command::new(python);
    command.arg(scripts.join(REAL)).arg(&model).arg(folder.join("text/page.txt"));
    tool::shown(command.arg(folder.join("real")).arg(full))
}

/// Holds the fixtures to what there must be, and gives the number of files.
///
/// # Errors
/// [`XtaskError::Content`] naming the folder that lacks files, or the file that is too large.
pub fn check(folder: &Path) -> Result<usize, XtaskError> {
    let mut count = 0;
    for (name, fewest) in FOLDERS {
        let path = folder.join(name);
        let sizes = sizes(&path)?;
        let entries = std::fs::read_dir(&path).map_err(|e| XtaskError::io(&path, e))?.count();
        let content = |path: &Path, wanted: String, found: String| {
            Err(XtaskError::Content { path: path.display().to_string(), wanted, found })
        };
        if entries < fewest {
            return content(&path, format!("at least {fewest} entries"), entries.to_string());
        }
        let trained = folder.join(TRAINED.0);
        let most = |file: &Path| if file.starts_with(&trained) { TRAINED.1 } else { MOST_BYTES };
        if let Some((file, bytes)) = sizes.iter().find(|(file, bytes)| *bytes >= most(file)) {
            return content(file, format!("less than {} bytes", most(file)), bytes.to_string());
        }
        count += sizes.len();
    }
    Ok(count)
}

/// The files below a folder with their sizes.
fn sizes(folder: &Path) -> Result<Vec<(PathBuf, u64)>, XtaskError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| XtaskError::io(folder, e))? {
        let entry = entry.map_err(|e| XtaskError::io(folder, e))?;
        let metadata = entry.metadata().map_err(|e| XtaskError::io(&entry.path(), e))?;
        if metadata.is_dir() {
            found.extend(sizes(&entry.path())?);
        } else {
            found.push((entry.path(), metadata.len()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixtures_are_all_there_and_small() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
        assert!(check(&folder).expect("they are") > 50);
    }

    #[test]
    fn missing_and_large_ones_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, fewest) in FOLDERS {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).expect("a folder");
            for i in 0..fewest {
                std::fs::write(path.join(i.to_string()), "").expect("a file");
            }
        }
        assert_eq!(check(folder.path()).expect("all are there"), 78);
        let large = folder.path().join("text/0");
        std::fs::write(&large, vec![0; MOST_BYTES as usize]).expect("a file");
        assert!(check(folder.path()).is_err_and(|e| e.to_string().contains("less than 400000 bytes")));
        std::fs::remove_file(&large).expect("it was there");
        assert!(check(folder.path()).is_err_and(|e| e.to_string().contains("at least 1 entries")));
    }
}
