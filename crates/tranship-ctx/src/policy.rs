//! The policy: which types a model computes, caches, accumulates and remembers in.

use crate::{CtxError, Device};
use std::collections::BTreeMap;
use tranship_dtype::{DType, NoJoin};
use tranship_program::{Carried, Extent};
use tranship_residency::Residency;

/// The presets by name.
pub const PRESETS: [&str; 3] = ["parity", "serving", "quantized"];

/// In which form activations meet block-encoded weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activations {
    /// As floats, of the compute type.
    Float,
    /// As 8-bit blocks of 32 (`q8_1`), multiplied in integer arithmetic. Against weights that are stored as
    /// floats they stay floats.
    Blocks,
}

/// One numeric policy for a whole model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeCtx {
    /// The type of activations.
    pub compute: DType,
    /// The type of key/value caches.
    pub kv: DType,
    /// The type that sums, norms, rotations and softmaxes are computed in. It is joined with the operands' types,
    /// so it never narrows them.
    pub accum: DType,
    /// The type of recurrent memories.
    pub state: DType,
    /// The form of activations against block-encoded weights.
    pub activations: Activations,
    /// Where weights live.
    pub residency: Residency,
    /// What computes.
    pub device: Device,
    /// Exceptions, by layer.
    pub layers: BTreeMap<u64, LayerPolicy>,
}

/// What one layer does otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerPolicy {
    /// The type of this layer's key/value caches.
    pub kv: Option<DType>,
    /// The type of this layer's recurrent memories.
    pub state: Option<DType>,
    /// The form of this layer's activations.
    pub activations: Option<Activations>,
}

impl ComputeCtx {
    /// Computes and caches in `compute`, accumulates and remembers in F32, places weights automatically.
    pub fn new(compute: DType, device: Device) -> ComputeCtx {
        ComputeCtx {
            compute,
            kv: compute,
            accum: DType::F32,
            state: DType::F32,
            activations: Activations::Float,
            residency: Residency::Auto,
            device,
            layers: BTreeMap::new(),
        }
    }

    /// Everything in F32: the reference that all else is held to.
    pub fn parity(device: Device) -> ComputeCtx {
        ComputeCtx::new(DType::F32, device)
    }

    /// Another name of [`ComputeCtx::parity`].
    pub fn ds4_parity(device: Device) -> ComputeCtx {
        ComputeCtx::parity(device)
    }

    /// BF16 activations, F32 caches and accumulation: the default of accelerators.
    pub fn serving(device: Device) -> ComputeCtx {
        ComputeCtx::new(DType::BF16, device).with_kv(DType::F32)
    }

    /// F32 activations that meet block-encoded weights as 8-bit blocks, F16 caches: the default of the CPU.
    pub fn quantized(device: Device) -> ComputeCtx {
        ComputeCtx::new(DType::F32, device).with_kv(DType::F16).with_activations(Activations::Blocks)
    }

    /// A preset by name.
    ///
    /// # Errors
    /// [`CtxError::UnknownPolicy`].
    pub fn preset(name: &str, device: Device) -> Result<ComputeCtx, CtxError> {
        match name {
            "parity" | "ds4_parity" => Ok(ComputeCtx::parity(device)),
            "serving" => Ok(ComputeCtx::serving(device)),
            "quantized" => Ok(ComputeCtx::quantized(device)),
            other => Err(CtxError::UnknownPolicy(other.to_owned())),
        }
    }

    /// Computes in another type; caches and the rest stay.
    pub fn with_compute(mut self, compute: DType) -> ComputeCtx {
        self.compute = compute;
        self
    }

    /// Caches in another type.
    pub fn with_kv(mut self, kv: DType) -> ComputeCtx {
        self.kv = kv;
        self
    }

    /// Accumulates in another type.
    pub fn with_accum(mut self, accum: DType) -> ComputeCtx {
        self.accum = accum;
        self
    }

    /// Keeps recurrent memories in another type.
    pub fn with_state(mut self, state: DType) -> ComputeCtx {
        self.state = state;
        self
    }

    /// Meets block-encoded weights in another form.
    pub fn with_activations(mut self, activations: Activations) -> ComputeCtx {
        self.activations = activations;
        self
    }

    /// Places weights otherwise.
    pub fn with_residency(mut self, residency: Residency) -> ComputeCtx {
        self.residency = residency;
        self
    }

    /// Computes elsewhere.
    pub fn with_device(mut self, device: Device) -> ComputeCtx {
        self.device = device;
        self
    }

    /// Makes an exception for one layer.
    pub fn with_layer(mut self, layer: u64, policy: LayerPolicy) -> ComputeCtx {
        self.layers.insert(layer, policy);
        self
    }

    /// The join of `dtype` with the compute type.
    ///
    /// # Errors
    /// [`NoJoin`] if there is none, as for an index.
    pub fn promote(&self, dtype: DType) -> Result<DType, NoJoin> {
        self.compute.join(dtype)
    }

    /// The type of a carried tensor of a layer: what attention reads and rows that are appended are cached, all else
    /// is remembered.
    pub fn carried_dtype(&self, layer: Option<u64>, carried: &Carried) -> DType {
        if is_cache(carried) { self.kv_of(layer) } else { self.state_of(layer) }
    }

    /// The type of a layer's key/value caches.
    pub fn kv_of(&self, layer: Option<u64>) -> DType {
        self.of_layer(layer).kv.unwrap_or(self.kv)
    }

    /// The type of a layer's recurrent memories.
    pub fn state_of(&self, layer: Option<u64>) -> DType {
        self.of_layer(layer).state.unwrap_or(self.state)
    }

    /// The form of a layer's activations against block-encoded weights.
    pub fn activations_of(&self, layer: Option<u64>) -> Activations {
        self.of_layer(layer).activations.unwrap_or(self.activations)
    }

    fn of_layer(&self, layer: Option<u64>) -> LayerPolicy {
        layer.and_then(|l| self.layers.get(&l).copied()).unwrap_or_default()
    }

    /// Holds that every type of the policy can do what it is asked to.
    ///
    /// # Errors
    /// [`CtxError::NotAPolicy`].
    pub fn check(&self) -> Result<(), CtxError> {
        let of_layers = |f: fn(&LayerPolicy) -> Option<DType>| self.layers.values().filter_map(f);
        let kv = of_layers(|l| l.kv).map(|d| ("cache", d));
        let state = of_layers(|l| l.state).map(|d| ("remember", d));
        let own = [
            ("compute", self.compute),
            ("cache", self.kv),
            ("accumulate", self.accum),
            ("remember", self.state),
        ];
        for (purpose, dtype) in own.into_iter().chain(kv).chain(state) {
            let can = match dtype {
                DType::F16 | DType::BF16 | DType::F32 | DType::F64 => true,
                DType::F8E4M3 | DType::F8E5M2 => purpose != "accumulate",
                _ => false,
            };
            if !can {
                return Err(CtxError::NotAPolicy { purpose, dtype });
            }
        }
        Ok(())
    }

    /// The numbers of the policy in one line, without residency and device: what a hand-off records.
    pub fn numerics(&self) -> String {
        let activations = |a| match a {
            Activations::Float => "float",
            Activations::Blocks => "q8_1",
        };
        let mut text = format!(
            "compute={} kv={} accum={} state={} activations={}",
            self.compute,
            self.kv,
            self.accum,
            self.state,
            activations(self.activations)
        );
        for (layer, own) in &self.layers {
            for (key, dtype) in [("kv", own.kv), ("state", own.state)] {
                if let Some(dtype) = dtype {
                    text.push_str(&format!(" layer.{layer}.{key}={dtype}"));
                }
            }
            if let Some(form) = own.activations {
                text.push_str(&format!(" layer.{layer}.activations={}", activations(form)));
            }
        }
        text
    }
}

/// Whether a carried tensor is a cache of rows, and not a memory.
pub(crate) fn is_cache(carried: &Carried) -> bool {
    carried.cache || matches!(carried.extent, Extent::Append | Extent::Compressed { .. })
}
