//! One run of a program: what it printed, how long it took and the most memory that it had.

use crate::XtaskError;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a program's memory is asked for. It is a high-water mark, so only the last of its life can be missed.
const PAUSE: Duration = Duration::from_millis(20);
/// The last lines of what a failed program said.
const LAST_LINES: usize = 6;

/// A program that has ended well.
#[derive(Clone, Debug)]
pub struct Ended {
    /// What it printed.
    pub printed: String,
    /// What it said beside that.
    pub told: String,
    /// Milliseconds from its start to its end.
    pub wall_ms: f64,
    /// The most memory that it had resident; `None` where there is no `/proc`.
    pub peak_rss_bytes: Option<f64>,
}

/// Runs a program to its end.
///
/// # Errors
/// [`XtaskError::Tool`] when it cannot be started or fails, with the last lines of what it said.
pub fn run(command: &mut Command) -> Result<Ended, XtaskError> {
    let parts = std::iter::once(command.get_program()).chain(command.get_args());
    let line = parts.map(|p| p.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let start = Instant::now();
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn().map_err(|e| XtaskError::tool(&line, e))?;
    let (pid, done) = (child.id(), AtomicBool::new(false));
    let (said, wall, peak) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peak = None;
            while !done.load(Ordering::Relaxed) {
                let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
                peak = status.ok().and_then(|s| high_water(&s)).or(peak);
                std::thread::sleep(PAUSE);
            }
            peak
        });
        let said = child.wait_with_output();
        let wall = start.elapsed();
        done.store(true, Ordering::Relaxed);
        (said, wall, sampler.join().unwrap_or(None))
    });
    let said = said.map_err(|e| XtaskError::tool(&line, e))?;
    let told = String::from_utf8_lossy(&said.stderr).into_owned();
    if !said.status.success() {
        let lines: Vec<&str> = told.trim().lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        return Err(XtaskError::tool(line, format!("{}\n{last}", said.status)));
    }
    Ok(Ended {
        printed: String::from_utf8_lossy(&said.stdout).into_owned(),
        told,
        wall_ms: wall.as_secs_f64() * 1e3,
        peak_rss_bytes: peak,
    })
}

/// Bytes of the line `VmHWM` of a process's status.
fn high_water(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kib| kib * 1024.0)
}

/// What a machine does at most, as `tranship bench --limits` says it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Bytes read in a second.
    pub read_bytes: f64,
    /// Operations on F32 in a second.
    pub f32_ops: f64,
    /// Operations on bytes in a second.
    pub byte_ops: f64,
    /// Operations in a second of a product of F32 matrices, 2048 wide.
    pub f32_matmul_ops: Option<f64>,
}

/// What one run gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Prefilled tokens a second.
    pub prefill_tps: Option<f64>,
    /// Decoded tokens a second.
    pub decode_tps: Option<f64>,
    /// Milliseconds from the start to the first logits.
    pub first_token_ms: Option<f64>,
    /// Milliseconds of the whole run.
    pub wall_ms: f64,
    /// The most memory.
    pub peak_rss_bytes: Option<f64>,
    /// Bytes of weights that a decoded token reads.
    pub weight_bytes: Option<f64>,
    /// Bytes of carried state that it reads.
    pub carried_bytes: Option<f64>,
    /// The machine's limits, just after.
    pub limits: Option<Limits>,
    /// What the program says of itself.
    pub note: String,
}

impl Measured {
    /// Of `tranship bench --json`.
    ///
    /// # Errors
    /// [`XtaskError::Tool`] when it printed no JSON object.
    pub fn of_ours(ended: &Ended) -> Result<Measured, XtaskError> {
        let value = object("tranship bench", &ended.printed)?;
        let number = |key: &str| positive(&value[key]);
        let limits = &value["limits"];
        let limit = |key: &str| positive(&limits[key]);
        let word = |key: &str| value[key].as_str().unwrap_or("?");
        Ok(Measured {
            prefill_tps: number("prefill_tps"),
            decode_tps: number("decode_tps"),
            first_token_ms: number("first_token_ms"),
            wall_ms: ended.wall_ms,
            // The program's own, from before it measured the limits, which takes memory.
            peak_rss_bytes: number("peak_rss_bytes"),
            weight_bytes: number("weight_bytes_per_token"),
            carried_bytes: number("carried_bytes_per_token"),
            limits: limit("read_bytes_per_s").map(|read_bytes| Limits {
                read_bytes,
                f32_ops: limit("f32_ops_per_s").unwrap_or(0.0),
                byte_ops: limit("byte_ops_per_s").unwrap_or(0.0),
                f32_matmul_ops: limit("f32_matmul_ops_per_s"),
            }),
            note: format!("{}, {}", word("device"), word("policy")),
        })
    }

    /// Of `llama-bench -o json`: a list of tests, of prompts and of generation.
    ///
    /// # Errors
    /// [`XtaskError::Tool`] when it printed no list.
    pub fn of_llama(ended: &Ended) -> Result<Measured, XtaskError> {
        let tool = "llama-bench";
        let value: Value = serde_json::from_str(&ended.printed)
            .map_err(|e| XtaskError::tool(tool, format!("printed no JSON: {e}")))?;
        let Some(tests) = value.as_array().filter(|tests| !tests.is_empty()) else {
            return Err(XtaskError::tool(tool, "printed no list of tests"));
        };
        let speed = |this: &str, other: &str| {
            let test = tests.iter().find(|t| t[this].as_u64() > Some(0) && t[other].as_u64() == Some(0))?;
            positive(&test["avg_ts"])
        };
        Ok(Measured {
            prefill_tps: speed("n_prompt", "n_gen"),
            decode_tps: speed("n_gen", "n_prompt"),
            wall_ms: ended.wall_ms,
            peak_rss_bytes: ended.peak_rss_bytes,
            note: format!("llama.cpp {}", tests[0]["build_commit"].as_str().unwrap_or("?")),
            ..Measured::default()
        })
    }

    /// Of the candle peer, which prints an object with two speeds.
    ///
    /// # Errors
    /// [`XtaskError::Tool`] when it printed no JSON object.
    pub fn of_candle(ended: &Ended) -> Result<Measured, XtaskError> {
        let value = object("the candle peer", &ended.printed)?;
        Ok(Measured {
            prefill_tps: positive(&value["prefill_tps"]),
            decode_tps: positive(&value["decode_tps"]),
            wall_ms: ended.wall_ms,
            peak_rss_bytes: ended.peak_rss_bytes,
            note: value["note"].as_str().unwrap_or("candle").to_owned(),
            ..Measured::default()
        })
    }
}

/// The object that a program printed.
fn object(tool: &str, text: &str) -> Result<Value, XtaskError> {
    let value: Value =
        serde_json::from_str(text).map_err(|e| XtaskError::tool(tool, format!("printed no JSON: {e}")))?;
    if value.is_object() { Ok(value) } else { Err(XtaskError::tool(tool, "printed no JSON object")) }
}

fn positive(value: &Value) -> Option<f64> {
    value.as_f64().filter(|v| v.is_finite() && *v > 0.0)
}

/// How a program of llama.cpp's was built, by the cache that CMake leaves above it; `None` where there is none.
pub fn how_built(program: &Path) -> Option<String> {
    let build = program.parent()?.parent()?;
    let cache = std::fs::read_to_string(build.join("CMakeCache.txt")).ok()?;
    let versions = std::fs::read_dir(build.join("CMakeFiles")).ok().into_iter().flatten();
    let compilers = versions.filter_map(|e| Some(e.ok()?.path().join("CMakeCXXCompiler.cmake")));
    let compiler = compilers.filter_map(|path| std::fs::read_to_string(path).ok()).next();
    Some(built_with(&cache, compiler.as_deref().unwrap_or("")))
}

/// The lines that matter of CMake's cache and of what it found the compiler to be.
fn built_with(cache: &str, compiler: &str) -> String {
    let option = |key: &str| {
        let line = cache.lines().find(|l| l.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')))?;
        Some(format!("{key}={}", line.split_once('=')?.1))
    };
    let keys =
        ["CMAKE_BUILD_TYPE", "GGML_NATIVE", "GGML_OPENMP", "GGML_LLAMAFILE", "GGML_CPU_REPACK", "GGML_LTO"];
    let options: Vec<String> = keys.into_iter().filter_map(option).collect();
    let found = |key: &str| {
        let line = compiler.lines().find_map(|l| l.trim().strip_prefix("set(")?.strip_prefix(key))?;
        line.trim().strip_prefix('"')?.split('"').next().map(str::to_owned)
    };
    let name = found("CMAKE_CXX_COMPILER_ID ").unwrap_or_else(|| "a compiler".into());
    let version = found("CMAKE_CXX_COMPILER_VERSION ").unwrap_or_default();
    format!("{name} {version}, {}", options.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(printed: &str) -> Ended {
        Ended { printed: printed.into(), told: String::new(), wall_ms: 12.0, peak_rss_bytes: Some(2e6) }
    }

    const OURS: &str = r#"{"prefill_tps":null,"decode_tps":75.8,"load_ms":29.4,"first_token_ms":78.3,
        "peak_rss_bytes":113541120,"weight_bytes_per_token":96577380,"carried_bytes_per_token":1566720,
        "limits":{"isa":"avx512-vnni","threads":1,"read_bytes_per_s":15304762060.05,"f32_ops_per_s":180336299020.1,
        "byte_ops_per_s":722238091711.5,"bf16_ops_per_s":null},"backend":"cpu","policy":"quantized",
        "device":"avx512-vnni, 1 thread"}"#;
    /// What `llama-bench -p 0 -n 8 -d 64` prints, shortened.
    const LLAMA: &str = r#"[{"build_commit": "0c1e570", "n_threads": 1, "n_prompt": 0, "n_gen": 8, "n_depth": 64,
        "avg_ns": 74080000, "stddev_ns": 0, "avg_ts": 107.9, "stddev_ts": 0.0, "samples_ts": [ 107.9 ]}]"#;

    #[test]
    fn what_is_there_is_read_and_what_is_not_is_none() {
        let ours = Measured::of_ours(&ended(OURS)).expect("it reads");
        assert_eq!((ours.prefill_tps, ours.decode_tps), (None, Some(75.8)));
        assert_eq!((ours.weight_bytes, ours.peak_rss_bytes), (Some(96_577_380.0), Some(113_541_120.0)));
        assert_eq!(ours.limits.map(|l| (l.read_bytes, l.f32_matmul_ops)), Some((15_304_762_060.05, None)));
        let llama = Measured::of_llama(&ended(LLAMA)).expect("it reads");
        assert_eq!((llama.prefill_tps, llama.decode_tps), (None, Some(107.9)));
        assert_eq!((llama.peak_rss_bytes, llama.note.as_str()), (Some(2e6), "llama.cpp 0c1e570"));
        let candle =
            Measured::of_candle(&ended(r#"{"prefill_tps": 83.0, "decode_tps": 0}"#)).expect("it reads");
        assert_eq!((candle.prefill_tps, candle.decode_tps), (Some(83.0), None));
    }

    #[test]
    fn odd_output_is_an_error() {
        for odd in ["", "warning: x\n[]", "[]", "3", "{\"a\":", "[[]"] {
            assert!(Measured::of_ours(&ended(odd)).is_err(), "{odd}");
            assert!(Measured::of_llama(&ended(odd)).is_err(), "{odd}");
            assert!(Measured::of_candle(&ended(odd)).is_err(), "{odd}");
        }
        let none = Measured::of_llama(&ended("[3, {\"n_gen\": \"x\"}]")).expect("a list");
        assert_eq!((none.prefill_tps, none.decode_tps), (None, None));
    }

    #[test]
    fn the_mark_is_read_from_a_status() {
        let status = "Name:\tllama-bench\nVmPeak:\t  812345 kB\nVmHWM:\t  201234 kB\nVmRSS:\t  1 kB\n";
        assert_eq!(high_water(status), Some(201_234.0 * 1024.0));
        assert_eq!((high_water("VmHWM: many kB"), high_water("")), (None, None));
    }

    #[test]
    fn a_build_is_named_by_its_cache() {
        let cache =
            "//Choose\nCMAKE_BUILD_TYPE:STRING=Release\nGGML_NATIVE:BOOL=ON\nGGML_NATIVE_X:BOOL=OFF\n";
        let compiler = "set(CMAKE_CXX_COMPILER_ID \"GNU\")\nset(CMAKE_CXX_COMPILER_VERSION \"12.2.0\")\n";
        assert_eq!(built_with(cache, compiler), "GNU 12.2.0, CMAKE_BUILD_TYPE=Release GGML_NATIVE=ON");
        assert_eq!(built_with("", ""), "a compiler , ");
    }
}
