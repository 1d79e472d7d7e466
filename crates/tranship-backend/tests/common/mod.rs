//! Programs run on the reference interpreter, in as few words as the tests need.
#![allow(dead_code)]

use std::sync::Arc;
use tranship_backend::{
    Backend, BackendError, Chain, Input, MapWeights, Outputs, Reference, Segment, State, Step,
};
use tranship_ctx::{ComputeCtx, Device, Typed};
use tranship_dtype::DType;
use tranship_program::Program;
use tranship_tensor::Tensor;

/// All in F32, on the reference.
pub fn parity() -> ComputeCtx {
    ComputeCtx::parity(Device::of("reference"))
}

/// Weights by name.
pub struct Weights(pub Vec<(&'static str, Tensor)>);

impl Weights {
    /// F32 weights of these shapes, filled with values drawn from a seed.
    pub fn random(seed: u64, shapes: &[(&'static str, &[usize])]) -> Weights {
        let mut draw = Draw(seed);
        let tensor = |shape: &[usize], draw: &mut Draw| {
            let values = draw.values(shape.iter().product());
            Tensor::from_f32(shape, &values).unwrap()
        };
        Weights(shapes.iter().map(|(name, shape)| (*name, tensor(shape, &mut draw))).collect())
    }

    /// F32 weights of these values.
    pub fn of(weights: &[(&'static str, &[usize], &[f32])]) -> Weights {
        let tensor = |(name, shape, values): &(&'static str, &[usize], &[f32])| {
            (*name, Tensor::from_f32(shape, values).unwrap())
        };
        Weights(weights.iter().map(tensor).collect())
    }

    /// The same weights, matrices stored in `dtype`.
    pub fn stored(mut self, dtype: DType) -> Weights {
        for (_, tensor) in self.0.iter_mut().filter(|(_, t)| t.shape().rank() > 1) {
            *tensor = tensor.cast(dtype).unwrap();
        }
        self
    }

    /// The values of one, in F32.
    pub fn values(&self, name: &str) -> Vec<f32> {
        self.0.iter().find(|(n, _)| *n == name).unwrap().1.to_f32().unwrap()
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, t)| t.dtype())
    }

    /// The weights as a backend takes them.
    pub fn map(&self) -> MapWeights {
        let mut map = MapWeights::default();
        for (name, tensor) in &self.0 {
            map.insert(*name, tensor.clone());
        }
        map
    }
}

/// Numbers in ±1 from a multiplicative congruence: the same on every run.
pub struct Draw(pub u64);

impl Draw {
    pub fn values(&mut self, count: usize) -> Vec<f32> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 40) as f32 / (1 << 23) as f32) - 1.0
        };
        (0..count).map(|_| next()).collect()
    }
}

/// A program's text, typed.
pub fn typed(text: &str, weights: &Weights, ctx: &ComputeCtx) -> Arc<Typed> {
    let graph = Program::parse(text).and_then(|p| p.lift()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let accepts = &Reference::new().caps().accepts.clone();
    Arc::new(ctx.typed(&graph, &|name| weights.dtype(name), accepts).unwrap())
}

/// Programs as one chain.
pub fn chain(texts: &[&str], weights: &Weights, ctx: &ComputeCtx) -> Chain {
    Chain::new(texts.iter().map(|t| typed(t, weights, ctx)).collect(), 16)
}

/// The compiled chain of programs.
pub fn compile(texts: &[&str], weights: &Weights, ctx: &ComputeCtx) -> Box<dyn Step> {
    try_compile(texts, weights, ctx).unwrap_or_else(|e| panic!("{e}"))
}

pub fn try_compile(
    texts: &[&str],
    weights: &Weights,
    ctx: &ComputeCtx,
) -> Result<Box<dyn Step>, BackendError> {
    Reference::new().compile(&chain(texts, weights, ctx), &weights.map())
}

/// Runs one segment and gives all its rows.
pub fn run(
    step: &mut dyn Step,
    state: &mut dyn State,
    position: usize,
    rows: usize,
    input: Input,
) -> Vec<f32> {
    let mut out = Vec::new();
    let segment = Segment { state, position, rows, outputs: Outputs::All };
    step.run(&mut [segment], input, &mut out).unwrap_or_else(|e| panic!("{e}"));
    out
}

/// One program over rows from `position` on, with a fresh state.
pub fn once(text: &str, weights: &Weights, position: usize, rows: usize, x: &[f32]) -> Vec<f32> {
    let mut step = compile(&[text], weights, &parity());
    let mut state = step.new_state().unwrap();
    run(step.as_mut(), state.as_mut(), position, rows, Input::Rows(x))
}

/// Holds that values are equal to within a relative error of F32's rounding.
pub fn close(found: &[f32], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        let bound = 4e-7 * w.abs().max(0.1);
        assert!((f64::from(*f) - w).abs() <= bound, "value {i}: wanted {w}, found {f}");
    }
}

/// The bits of values, to compare them exactly.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
