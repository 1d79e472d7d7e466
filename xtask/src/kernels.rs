//! Kernel sources for accelerators: which there are. The checks of backends that bring some hang in here.

use crate::XtaskError;
use std::path::{Path, PathBuf};

/// What to do with the kernels.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct KernelsArgs {
    /// Compiles each, where its compiler is there
    #[arg(long)]
    check: bool,
}

/// The sources below `kernels/`, in order.
///
/// # Errors
/// When the folder cannot be read; one that is not there holds none.
pub fn sources(root: &Path) -> Result<Vec<PathBuf>, XtaskError> {
    let folder = root.join("kernels");
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(XtaskError::io(&folder, e)),
    };
    let mut found: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    found.retain(|p| p.extension().is_some_and(|e| e == "cu" || e == "wgsl"));
    found.sort();
    Ok(found)
}

/// Lists the kernels.
///
/// # Errors
/// With `check`, when there are kernels: no compiler is known here for them.
pub fn run(root: &Path, args: KernelsArgs) -> Result<(), XtaskError> {
    let sources = sources(root)?;
    if sources.is_empty() {
        println!("kernels/ holds no .cu and no .wgsl sources");
        return Ok(());
    }
    for source in &sources {
        println!("{}", source.display());
    }
    if args.check {
        let what = format!("kernels/ holds {} sources, and no check of them is known here", sources.len());
        return Err(XtaskError::Needs(what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_fine_and_unchecked_ones_are_not() {
        let root = tempfile::tempdir().expect("a folder");
        run(root.path(), KernelsArgs { check: true }).expect("there is no folder");
        std::fs::create_dir(root.path().join("kernels")).expect("a folder");
        run(root.path(), KernelsArgs { check: true }).expect("the folder is empty");
        std::fs::write(root.path().join("kernels/linear.cu"), "").expect("a file");
        run(root.path(), KernelsArgs { check: false }).expect("it is listed");
        assert!(run(root.path(), KernelsArgs { check: true }).is_err());
    }
}
