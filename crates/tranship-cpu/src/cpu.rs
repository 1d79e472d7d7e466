//! The processor as a set of ops: an instruction set and a pool of threads.

use crate::arch::Isa;
use crate::ops::linear_f32::LinearF32;
use crate::ops::linear_quant::LinearQuant;
use crate::ops::quantize::{Quantize, QuantizedRows};
use crate::ops::{Epilogue, Out, Weights};
use crate::pool::Pool;
use thiserror::Error;

/// Why the processor cannot be used as asked.
#[derive(Debug, Error)]
pub enum CpuError {
    /// The machine lacks an instruction set.
    #[error("instruction set {isa} was asked for, but this machine lacks {missing}")]
    Isa {
        /// What was asked for.
        isa: Isa,
        /// What there is not.
        missing: &'static str,
    },
    /// No pool of that many threads.
    #[error("{threads} threads were asked for: {source}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

/// An instruction set and a pool of threads; its methods are the ops, each run on all threads.
pub struct Cpu {
    isa: Isa,
    pool: Pool,
}

impl Cpu {
    /// The best instruction set of this machine, on `threads` threads.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn new(threads: usize) -> Result<Cpu, CpuError> {
        Cpu::with_isa(Isa::detect(), threads)
    }

    /// The given instruction set, on `threads` threads.
    ///
    /// # Errors
    /// When the machine lacks the instruction set, or threads cannot be started.
    pub fn with_isa(isa: Isa, threads: usize) -> Result<Cpu, CpuError> {
        if let Some(missing) = isa.missing() {
            return Err(CpuError::Isa { isa, missing });
        }
        let pool = Pool::new(threads).map_err(|source| CpuError::Threads { threads, source })?;
        Ok(Cpu { isa, pool })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Rounds `x`, rows of `width` values, to 8-bit blocks.
    ///
    /// # Panics
    /// When `x` is not whole rows, or `width` is not a multiple of 32.
    pub fn quantize(&self, x: &[f32], width: usize, out: &mut QuantizedRows) {
        assert!(x.len().is_multiple_of(width), "{} values are not rows of {width}", x.len());
        out.reshape(x.len() / width, width);
        let op = Quantize { x, out: out.out() };
        self.pool.run(|share| op.part(self.isa, share));
    }

    /// `y = x · wᵀ` with block-encoded weights in integer arithmetic: `x` `[rows, width]`, `y` `[rows, outs]`.
    ///
    /// # Panics
    /// When sizes do not fit together, or the weights are not block-encoded.
    pub fn linear_quant(&self, x: &QuantizedRows, w: Weights<'_>, epilogue: Epilogue<'_>, y: &mut [f32]) {
        let op = LinearQuant::new(x, w, epilogue, Out::new(y));
        self.pool.run(|share| op.part(self.isa, share));
    }

    /// `y = x · wᵀ` in F32, weights widened exactly: `x` `[rows, width]`, `y` `[rows, outs]`. A row's results have the same
    /// bits whatever the other rows, and on any number of threads.
    ///
    /// # Panics
    /// When sizes do not fit together.
    pub fn linear(&self, x: &[f32], w: Weights<'_>, epilogue: Epilogue<'_>, y: &mut [f32]) {
        let op = LinearF32::new(x, w, epilogue, Out::new(y));
        self.pool.run(|share| op.part(self.isa, share));
    }

    /// As [`Cpu::linear`], where all of `x` are BF16 values: with BF16 weights the machine's BF16 dot product is used,
    /// where there is one, which rounds otherwise than F32.
    ///
    /// # Panics
    /// When sizes do not fit together.
    pub fn linear_bf16(&self, x: &[f32], w: Weights<'_>, epilogue: Epilogue<'_>, y: &mut [f32]) {
        let op = LinearF32::new(x, w, epilogue, Out::new(y)).of_bf16();
        self.pool.run(|share| op.part(self.isa, share));
    }
}
