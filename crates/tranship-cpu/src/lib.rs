//! The CPU backend: SIMD kernels over block-quantized weights in place, chosen at run time.

mod arch;
mod cpu;
mod ops;
pub mod pool;
mod scratch;

pub use arch::Isa;
pub use cpu::{Cpu, CpuError};
pub use ops::quantize::QuantizedRows;
pub use ops::{Epilogue, Weights};
