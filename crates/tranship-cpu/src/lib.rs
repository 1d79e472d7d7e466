//! The CPU backend: SIMD kernels over block-quantized weights in place, chosen at run time.
