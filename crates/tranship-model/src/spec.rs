//! A model as data: sizes, and what each layer is made of. No tensor, no policy, no device.

use crate::{ModelError, Names, families};
use std::fmt;
use tranship_dtype::DType;
use tranship_program::ops::{RopeStyle, Scaling};
use tranship_weights::{Checkpoint, Format};

/// What a model is. Sizes count elements.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The name that the checkpoint gives its architecture: `llama`.
    pub architecture: String,
    /// The width of the residual stream.
    pub hidden: u64,
    /// Residual streams that pass a cut between layers; 1 but for models with hyper-connections.
    pub streams: u64,
    /// Tokens of the vocabulary: rows of the embedding table, and logits.
    pub vocab: u64,
    /// Positions that the model was made for. A session may be given fewer.
    pub max_positions: u64,
    /// Added to the mean square in every normalization.
    pub norm_eps: f64,
    /// Whether the head multiplies with the embedding table.
    pub tied_head: bool,
    /// The layers, from the embedding to the head.
    pub layers: Vec<LayerSpec>,
    /// What the checkpoint calls its tensors.
    pub names: Names,
    /// The element type that the configuration declares for weights, where it declares one.
    pub dtype: Option<DType>,
}

/// One layer: two residual updates, `x + mixer(norm(x))` and then `x + ffn(norm(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// What moves information between positions.
    pub mixer: Mixer,
    /// What transforms each position on its own.
    pub ffn: Ffn,
}

/// The part of a layer that moves information between positions, and so has a state.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mixer {
    /// Softmax attention over all positions so far.
    Attention(Attention),
}

/// The part of a layer that transforms each position on its own.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ffn {
    /// `down(act(gate(x)) * up(x))`
    Gated(Gated),
}

/// The kinds of a layer's two parts, for listings: `attention + gated`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerKind {
    /// The kind of the mixer.
    pub mixer: &'static str,
    /// The kind of the feed-forward part.
    pub ffn: &'static str,
}

/// Grouped-query attention with rotary positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Elements of a head; `heads · head_dim` need not be the hidden width.
    pub head_dim: u64,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// The position embedding of queries and keys.
    pub rope: RopeSpec,
    /// Which projections have a bias.
    pub biases: AttentionBiases,
}

/// Rotary position embedding, the heads apart.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Rotated elements of each head; even.
    pub dims: u64,
    /// The base of the frequencies.
    pub theta: f64,
    /// Which elements make a pair.
    pub style: RopeStyle,
    /// How frequencies are stretched.
    pub scaling: Scaling,
    /// Whether the checkpoint holds divisors of the frequencies ([`crate::Part::RopeDivisors`]).
    pub divisors: bool,
}

/// Which projections of an attention have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct AttentionBiases {
    /// Of the queries.
    pub q: bool,
    /// Of the keys.
    pub k: bool,
    /// Of the values.
    pub v: bool,
    /// Of the output.
    pub o: bool,
}

/// A dense gated feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    /// The width between the projections.
    pub width: u64,
    /// What the gate goes through.
    pub activation: Activation,
    /// Which projections have a bias.
    pub biases: GatedBiases,
}

/// What a gate goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// `x · sigmoid(x)`
    Silu,
}

/// Which projections of a gated feed-forward part have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct GatedBiases {
    /// Of the gate.
    pub gate: bool,
    /// Of what is gated.
    pub up: bool,
    /// Of the way back.
    pub down: bool,
}

impl ModelSpec {
    /// The spec of a checkpoint: from its metadata if it is GGUF, from its `config.json` else. Tensors are not
    /// looked at, but for which optional ones a GGUF file has; [`ModelSpec::check`] holds them to the spec.
    ///
    /// # Errors
    /// Of the key that is missing, malformed, out of range or not supported; [`ModelError::NoConfig`] of safetensors
    /// without a `config.json`.
    pub fn of(checkpoint: &Checkpoint) -> Result<ModelSpec, ModelError> {
        match (checkpoint.format(), checkpoint.config()) {
            (Format::Gguf, _) => families::from_gguf(checkpoint),
            (_, Some(config)) => ModelSpec::from_config(config),
            (_, None) => Err(ModelError::NoConfig { path: checkpoint.path().to_owned() }),
        }
    }

    /// The spec of a Hugging Face `config.json`.
    ///
    /// # Errors
    /// Of the key that is missing, malformed, out of range or not supported.
    pub fn from_config(config: &serde_json::Value) -> Result<ModelSpec, ModelError> {
        families::from_config(config)
    }

    /// The element type of weights where no checkpoint says it: the one that the configuration declares, else F32.
    pub fn default_dtype(&self) -> DType {
        self.dtype.unwrap_or(DType::F32)
    }
}

impl LayerSpec {
    /// The kinds of the layer's parts.
    pub fn kind(&self) -> LayerKind {
        let mixer = match self.mixer {
            Mixer::Attention(_) => "attention",
        };
        let ffn = match self.ffn {
            Ffn::Gated(_) => "gated",
        };
        LayerKind { mixer, ffn }
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} + {}", self.mixer, self.ffn)
    }
}
