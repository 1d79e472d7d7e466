//! The processor as a backend.

use crate::arch::Isa;
use crate::cpu::{Cpu, CpuError};
use crate::step::CpuStep;
use std::sync::Arc;
use tranship_backend::{Backend, BackendError, Caps, Chain, Step, Weights};
use tranship_ctx::{Accepts, DTypeSet};
use tranship_dtype::DType;

/// The CPU backend: kernels of the best instruction set that the machine has, on threads that stay.
pub struct CpuBackend {
    cpu: Arc<Cpu>,
    caps: Caps,
}

impl CpuBackend {
    /// The machine's best instruction set, on `threads` threads: as many as the machine has cores, if none are given.
    ///
    /// # Errors
    /// No threads, or threads that cannot be started.
    pub fn new(threads: Option<usize>) -> Result<CpuBackend, CpuError> {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        CpuBackend::with_isa(Isa::detect(), threads.unwrap_or(all))
    }

    /// A given instruction set, on `threads` threads.
    ///
    /// # Errors
    /// An instruction set that the machine lacks; no threads, or threads that cannot be started.
    pub fn with_isa(isa: Isa, threads: usize) -> Result<CpuBackend, CpuError> {
        const FLOATS: DTypeSet = DTypeSet::of(&[DType::F16, DType::BF16, DType::F32]);
        let accepts = Accepts {
            compute: FLOATS,
            kv: FLOATS,
            accum: DTypeSet::of(&[DType::F32]),
            state: DTypeSet::of(&[DType::F32]),
            weights: FLOATS.union(DTypeSet::blocks()),
            blocks: DTypeSet::of(&[DType::Q8_1]),
        };
        let plural = if threads == 1 { "" } else { "s" };
        let description = format!("{isa}, {threads} thread{plural}");
        let caps = Caps { description, accepts, memory_bytes: None, reads_mapped: true };
        Ok(CpuBackend { cpu: Arc::new(Cpu::with_isa(isa, threads)?), caps })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.cpu.isa()
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        "cpu"
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn compile(&self, chain: &Chain, weights: &dyn Weights) -> Result<Box<dyn Step>, BackendError> {
        Ok(Box::new(CpuStep::new(self.cpu.clone(), chain, weights)?))
    }
}
