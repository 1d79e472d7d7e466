//! Programs as text, run on a backend over weights that a test gives.

use std::sync::Arc;
use tranship::backend::{Chain, Input, MapWeights, Segment, State, Step};
use tranship::prelude::*;

/// A weight: its name, its sizes, its values.
pub type Given = (&'static str, Vec<usize>, Vec<f32>);

/// Compiles programs under `parity` as one chain.
pub fn try_compile(
    backend: &Arc<dyn Backend>,
    texts: &[&str],
    given: &[Given],
) -> Result<Box<dyn Step>, Error> {
    let mut weights = MapWeights::default();
    for (name, shape, values) in given {
        weights.insert(*name, Tensor::from_f32(shape, values).expect("a tensor"));
    }
    let policy = ComputeCtx::parity(Device::of(backend.name()));
    let mut parts = Vec::new();
    for text in texts {
        let graph = Program::parse(text)?.lift()?;
        parts.push(Arc::new(policy.typed(&graph, &|_| Some(DType::F32), &backend.caps().accepts)?));
    }
    Ok(backend.compile(&Chain::new(parts, 8), &weights)?)
}

/// The same, of programs that compile.
pub fn compile(backend: &Arc<dyn Backend>, texts: &[&str], given: &[Given]) -> Box<dyn Step> {
    try_compile(backend, texts, given)
        .unwrap_or_else(|e| panic!("{}: {e}\n{}", backend.name(), texts.join("\n")))
}

/// Runs rows at a position, and gives the program's.
pub fn run(
    step: &mut dyn Step,
    state: &mut dyn State,
    position: usize,
    rows: &[f32],
    width: usize,
) -> Vec<f32> {
    let segment = Segment { state, position, rows: rows.len() / width, outputs: Outputs::All };
    let mut out = Vec::new();
    step.run(&mut [segment], Input::Rows(rows), &mut out).expect("it runs");
    out
}

/// Bytes as the values that they are in F32.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect()
}
