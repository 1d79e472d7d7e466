//! Prints every program of a model, and how long it took to write, parse and lift them all:
//! `cargo run --release -p tranship-model --example programs -- MODEL [CTX]`

use std::{env, error::Error, path::Path, process::ExitCode, time::Instant};
use tranship_model::{Cut, ModelSpec};
use tranship_weights::{Checkpoint, Format};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let path = args.next().ok_or("usage: programs MODEL [CTX]")?;
    let ctx = args.next().map_or(Ok(2048), |text| text.parse())?;
    let checkpoint = Checkpoint::open(Path::new(&path))?;
    let spec = ModelSpec::of(&checkpoint)?;
    if checkpoint.format() != Format::ConfigOnly {
        spec.check(&checkpoint)?;
    }
    let cuts: Vec<Cut> = spec.cuts(ctx).collect();
    let start = Instant::now();
    let programs = cuts.iter().map(|&cut| spec.program(cut)).collect::<Result<Vec<_>, _>>()?;
    programs.iter().try_for_each(|program| program.lift().map(drop))?;
    let spent = start.elapsed();
    programs.iter().for_each(|program| println!("{program}"));
    eprintln!("{} programs written, parsed and lifted in {spent:.2?}", programs.len());
    Ok(())
}
