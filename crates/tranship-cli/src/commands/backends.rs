//! `tranship backends`: devices, types, encodings and limits of each backend.

use crate::error::CliError;
use crate::out;
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use tranship::backends::{self as registry, BackendOptions};
use tranship::ctx::{Accepts, DTypeSet};
use tranship::dtype::DType;

/// Flags of `backends`.
#[derive(Args)]
pub struct Backends {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Threads of a backend on this machine's processor [default: all cores]
    #[arg(short = 't', long, value_name = "THREADS")]
    threads: Option<NonZeroUsize>,
}

/// Lists the backends.
pub fn run(command: &Backends) -> Result<(), CliError> {
    let mut list = Vec::new();
    let mut text = String::new();
    for name in registry::names() {
        let backend = registry::open(name, &BackendOptions { threads: command.threads })?;
        let (caps, policy) = (backend.caps(), registry::default_policy(name)?);
        let accepts = &caps.accepts;
        let default = name == registry::default_name();
        let encodings: Vec<&str> = accepts.weights.iter().filter(is_block).map(DType::name).collect();
        list.push(json!({
            "name": name,
            "default": default,
            "devices": [{ "index": 0, "description": caps.description, "memory_bytes": caps.memory_bytes }],
            "default_policy": policy,
            "types": types(accepts),
            "encodings": encodings,
            "limits": { "memory_bytes": caps.memory_bytes, "ctx": tranship::model::MAX_CTX },
            "reads_mapped": caps.reads_mapped,
        }));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}{}  {}", if default { " (default)" } else { "" }, caps.description);
        let memory = caps.memory_bytes.map_or("the host's".to_owned(), out::bytes);
        let weights = if caps.reads_mapped { "in place, from the mapped file" } else { "copied" };
        let lines = [
            ("policy", policy.to_owned()),
            ("memory", memory),
            ("weights", weights.to_owned()),
            ("computes", accepts.compute.to_string()),
            ("caches", accepts.kv.to_string()),
            ("sums", accepts.accum.to_string()),
            ("stored", wrapped(accepts.weights)),
            ("blocks", accepts.blocks.to_string()),
        ];
        for (key, value) in lines {
            let _ = writeln!(text, "  {key:9} {value}");
        }
    }
    if command.json { out::json(&json!({ "backends": list })) } else { out::print(text) }
}

fn is_block(dtype: &DType) -> bool {
    matches!(dtype, DType::Block(_))
}

fn types(accepts: &Accepts) -> Value {
    let names = |set: DTypeSet| set.iter().map(DType::name).collect::<Vec<_>>();
    json!({
        "compute": names(accepts.compute),
        "kv": names(accepts.kv),
        "accum": names(accepts.accum),
        "state": names(accepts.state),
        "weights": names(accepts.weights),
        "blocks": names(accepts.blocks),
    })
}

/// Many types, in lines that fit under their key.
fn wrapped(set: DTypeSet) -> String {
    let names: Vec<&str> = set.iter().map(DType::name).collect();
    names.chunks(12).map(|line| line.join(", ")).collect::<Vec<_>>().join(",\n            ")
}
