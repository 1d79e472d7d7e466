//! The peers from sources, so that a comparison can be repeated: what was fetched, mended and built is printed.
//! llama.cpp needs pip, CMake (on the path, or beside the Python that is named), a build tool for it and a C++
//! compiler.

use super::peers::file_name;
use crate::{XtaskError, fetch, tool};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package whose source archive holds llama.cpp.
const PACKAGE: &str = "llama-cpp-python==0.3.36";

/// How it is configured: the processor's own instruction sets, and nothing that the benchmark does not need.
const OPTIONS: [&str; 9] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_UI=OFF",
];

/// The file of llama.cpp with the tiles' configuration, and the call in it.
const TILES: &str = "ggml/src/ggml-cpu/amx/mmq.cpp";
const LOAD: &str = "_tile_loadconfig(&";
const BARRIER: &str = "asm volatile(\"\" ::: \"memory\");";

/// The programs: what measures speed, what makes encodings, and what measures accuracy.
const TARGETS: [&str; 3] = ["llama-bench", "llama-quantize", "llama-perplexity"];

/// Gets llama.cpp's sources into a folder, builds there, and says how.
///
/// # Errors
/// When pip, CMake or the compiler fails, or the sources are not laid out as expected.
pub fn llama(folder: &Path, python: &Path) -> Result<(), XtaskError> {
    std::fs::create_dir_all(folder).map_err(|e| XtaskError::io(folder, e))?;
    let ending = ".tar.gz";
    if fetch::archive(folder, ending).is_err() {
        let pip = ["-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python", "-d"];
        let fetched = tool::shown(Command::new(python).args(pip).arg(folder).arg(PACKAGE));
        // Some versions of pip fail over a source package's metadata after the archive has arrived.
        if fetched.is_err() && fetch::archive(folder, ending).is_err() {
            return fetched;
        }
    }
    let archive = fetch::archive(folder, ending)?;
    tool::shown(Command::new(python).args(["-m", "tarfile", "-e"]).arg(&archive).arg(folder))?;
    let name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let sources = folder.join(name.trim_end_matches(ending)).join("vendor").join("llama.cpp");
    let mended = mend(&sources.join(TILES))?;
    let build = folder.join("build");
    let cmake = cmake(python);
    tool::shown(Command::new(&cmake).arg("-S").arg(&sources).arg("-B").arg(&build).args(OPTIONS))?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let mut command = Command::new(&cmake);
    command.arg("--build").arg(&build).arg("--target").args(TARGETS).args(["--parallel", &jobs]);
    tool::shown(&mut command)?;
    let program: PathBuf = build.join("bin").join(file_name("llama-bench"));
    println!("{PACKAGE}, its vendor/llama.cpp, cmake {}", OPTIONS.join(" "));
    println!(
        "{mended} calls of {LOAD} have a compiler barrier before them: GCC 12 drops the stores to what they read"
    );
    println!("{}", program.display());
    Ok(())
}

/// The candle peer: a package of its own, which the workspace does not know.
const CANDLE: &str = "bench/peers/candle";
/// Candle chooses its kernels when it is built.
const NATIVE: &str = "-C target-cpu=native";

/// Builds the candle peer in a folder, for this machine's processor, and says how. It is built from a copy, so that its
/// lock file, which names the versions of everything that went in, stays there.
///
/// # Errors
/// When the copy cannot be written, or cargo fails.
pub fn candle(root: &Path, folder: &Path) -> Result<(), XtaskError> {
    let sources = folder.join("sources");
    for file in ["Cargo.toml", "src/main.rs"] {
        let (from, to) = (root.join(CANDLE).join(file), sources.join(file));
        let within = to.parent().unwrap_or(&sources);
        std::fs::create_dir_all(within).map_err(|e| XtaskError::io(within, e))?;
        std::fs::copy(&from, &to).map_err(|e| XtaskError::io(&from, e))?;
    }
    let sources = sources.canonicalize().map_err(|e| XtaskError::io(&sources, e))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--target-dir", "target"]).current_dir(&sources);
    tool::shown(command.env("RUSTFLAGS", NATIVE))?;
    println!(
        "{CANDLE}, cargo build --release, RUSTFLAGS=\"{NATIVE}\"; versions are in Cargo.lock beside the copy"
    );
    println!("{}", sources.join("target/release").join(file_name("candle-peer")).display());
    Ok(())
}

/// CMake as Python's package of that name puts it beside the interpreter, or else the machine's.
fn cmake(python: &Path) -> PathBuf {
    let beside = python.with_file_name(file_name("cmake"));
    if beside.is_file() { beside } else { PathBuf::from("cmake") }
}

/// Puts a barrier before each load of a tile configuration, and gives the number of loads. A second time changes
/// nothing.
fn mend(path: &Path) -> Result<usize, XtaskError> {
    let text = std::fs::read_to_string(path).map_err(|e| XtaskError::io(path, e))?;
    let (text, count) = mended(&text);
    std::fs::write(path, text).map_err(|e| XtaskError::io(path, e))?;
    Ok(count)
}

fn mended(text: &str) -> (String, usize) {
    let mut out = String::with_capacity(text.len());
    let mut count = 0;
    let mut before = "";
    for line in text.lines() {
        if line.trim_start().starts_with(LOAD) {
            count += 1;
            if !before.contains(BARRIER) {
                out.push_str(&format!("    {BARRIER}\n"));
            }
        }
        out.push_str(line);
        out.push('\n');
        before = line;
    }
    (out, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_is_put_before_the_load_once() {
        let text = "tc.rows[7] = 16;\n\n    _tile_loadconfig(&tc);\n    done = true;\n";
        let (once, count) = mended(text);
        assert_eq!(count, 1);
        assert!(
            once.contains("    asm volatile(\"\" ::: \"memory\");\n    _tile_loadconfig(&tc);"),
            "{once}"
        );
        assert_eq!(mended(&once), (once.clone(), 1));
    }
}
