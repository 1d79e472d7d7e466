//! The CPU backend: SIMD kernels over block-quantized weights in place, chosen at run time.
//!
//! A [`CpuBackend`] compiles typed programs into a flat list of kernel calls that all its threads run together. The
//! kernels can also be called by themselves, as methods of [`Cpu`]. How they work is in `docs/kernels-cpu.md`.
//!
//! ```
//! use std::sync::Arc;
//! use tranship_backend::{Backend, Chain, Input, MapWeights, Outputs, Segment};
//! use tranship_cpu::CpuBackend;
//! use tranship_ctx::{ComputeCtx, Device};
//! use tranship_dtype::DType;
//! use tranship_program::Program;
//! use tranship_tensor::Tensor;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = "program layer\n  x : [n, 32]\n  w : [1, 32] @ \"w\"\n  return linear(x, w)\n";
//! let graph = Program::parse(text)?.lift()?;
//! let mut weights = MapWeights::default();
//! weights.insert("w", Tensor::from_f32(&[1, 32], &[0.5; 32])?.cast(DType::Q8_0)?);
//!
//! let backend = CpuBackend::new(Some(2))?;
//! println!("{}", backend.caps().description); // avx512-vnni, 2 threads
//! let ctx = ComputeCtx::quantized(Device::cpu());
//! let typed = ctx.typed(&graph, &|_| Some(DType::Q8_0), &backend.caps().accepts)?;
//! let mut step = backend.compile(&Chain::new(vec![Arc::new(typed)], 8), &weights)?;
//!
//! let mut state = step.new_state()?;
//! let segment = Segment { state: state.as_mut(), position: 0, rows: 1, outputs: Outputs::All };
//! let mut out = Vec::new();
//! step.run(&mut [segment], Input::Rows(&[2.0; 32]), &mut out)?;
//! assert!((out[0] - 32.0).abs() < 0.05); // 32 products of 2 and a half, in 8-bit integers
//! # Ok(())
//! # }
//! ```

#[cfg(test)]
extern crate self as tranship_cpu;

mod arch;
mod backend;
mod compile;
mod cpu;
mod limits;
mod ops;
pub mod pool;
mod run;
mod scratch;
mod step;

pub use arch::Isa;
pub use backend::CpuBackend;
pub use cpu::{Cpu, CpuError};
pub use limits::Limits;
pub use ops::quantize::QuantizedRows;
pub use ops::{Epilogue, Weights};
