//! The CPU backend: SIMD kernels over block-quantized weights in place, chosen at run time.

#[cfg(test)]
extern crate self as tranship_cpu;

mod arch;
mod backend;
mod compile;
mod cpu;
mod ops;
pub mod pool;
mod run;
mod scratch;
mod step;

pub use arch::Isa;
pub use backend::CpuBackend;
pub use cpu::{Cpu, CpuError};
pub use ops::quantize::QuantizedRows;
pub use ops::{Epilogue, Weights};
