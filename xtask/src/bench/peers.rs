//! Where the peers' programs are.

use super::BenchArgs;
use std::path::{Path, PathBuf};

/// `llama-bench`, as it is named or in one of the folders of `PATH`.
pub fn llama_bench(args: &BenchArgs) -> Option<PathBuf> {
    args.llama_bench.clone().or_else(|| on_path(&file_name("llama-bench")))
}

/// Another of llama.cpp's programs, beside `llama-bench` or in one of the folders of `PATH`.
pub fn llama(args: &BenchArgs, name: &str) -> Option<PathBuf> {
    let name = file_name(name);
    let beside = |program: PathBuf| Some(program.with_file_name(&name)).filter(|path| path.is_file());
    llama_bench(args).and_then(beside).or_else(|| on_path(&name))
}

/// A program's file on this system.
pub fn file_name(name: &str) -> String {
    format!("{name}{}", std::env::consts::EXE_SUFFIX)
}

fn on_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| Path::new(&folder).join(name)).find(|path| path.is_file())
}
