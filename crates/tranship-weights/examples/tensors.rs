//! Lists what a checkpoint holds: its keys, then each tensor with type, shape, place and a sum of its bytes.
//!
//! `cargo run -p tranship-weights --example tensors -- MODEL`

use std::{path::Path, process::ExitCode, time::Instant};
use tranship_weights::Checkpoint;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: tensors MODEL");
        return ExitCode::from(2);
    };
    let start = Instant::now();
    let checkpoint = match Checkpoint::open(Path::new(&path)) {
        Ok(checkpoint) => checkpoint,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::FAILURE;
        }
    };
    eprintln!("{checkpoint:?}, opened in {:?}", start.elapsed());
    for (key, value) in checkpoint.metadata().iter() {
        println!("{key} = {}", value.describe());
    }
    for view in checkpoint.tensors() {
        let sum: u64 = view.bytes().iter().map(|&b| u64::from(b)).sum();
        println!("{} {} {:?} {} {sum}", view.name(), view.dtype(), view.shape(), view.source().offset);
    }
    ExitCode::SUCCESS
}
