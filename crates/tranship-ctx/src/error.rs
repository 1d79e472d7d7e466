//! Why a policy cannot be applied.

use tranship_dtype::{DType, NoJoin};
use tranship_tensor::TensorError;

/// Why a policy cannot be applied to a tensor or a program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CtxError {
    /// Two operands have no common type.
    #[error(transparent)]
    NoJoin(#[from] NoJoin),
    /// A tensor could not be converted.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A weight of the program is not in the checkpoint.
    #[error("weight \"{0}\" is not in the checkpoint")]
    NoWeight(String),
    /// Operands of one operation have no common type.
    #[error("`{value}`: {source}")]
    Operands {
        /// The value that the operation makes.
        value: String,
        /// The types.
        source: NoJoin,
    },
    /// The device computes, stores or accumulates in no such type, and in no wider one.
    #[error("`{value}`: {device} has no {dtype} for {purpose}; it has {has}")]
    Unsupported {
        /// The value that needs the type.
        value: String,
        /// The device that lacks it.
        device: String,
        /// The type.
        dtype: DType,
        /// What for: `activations`, `kv`, `accum`, `state`, `weights`.
        purpose: &'static str,
        /// The types that it has for this.
        has: String,
    },
    /// A policy asks for a type that cannot do what it is asked to.
    #[error("a policy cannot {purpose} in {dtype}: wanted {}f16, bf16, f32 or f64", small(purpose))]
    NotAPolicy {
        /// The verb: `compute`, `cache`, `accumulate`, `remember`.
        purpose: &'static str,
        /// The type.
        dtype: DType,
    },
    /// A name is no policy.
    #[error("`{0}` is no policy; there are parity, ds4_parity, serving and quantized")]
    UnknownPolicy(String),
    /// A name is no device.
    #[error("`{0}` is no device; wanted a backend's name, with `:index` where there are several")]
    UnknownDevice(String),
}

/// The 8-bit floats, where they can do what is asked.
fn small(purpose: &str) -> &'static str {
    if purpose == "accumulate" { "" } else { "f8e4m3, f8e5m2, " }
}
