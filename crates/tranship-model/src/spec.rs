//! A model as data: sizes, and what each layer is made of. No tensor, no policy, no device.

use crate::{ModelError, Names, families};
use std::collections::BTreeSet;
use std::fmt;
use tranship_dtype::DType;
use tranship_program::ops::{DecayForm, RopeStyle, Route, Scaling};
use tranship_weights::{Checkpoint, Format};

/// What a model is. Sizes count elements.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The name that the checkpoint gives its architecture: `llama`.
    pub architecture: String,
    /// The width of a residual stream.
    pub hidden: u64,
    /// Residual streams that pass a cut between layers; 1 but for models with hyper-connections.
    pub streams: u64,
    /// How several streams are mixed; of models with more than one.
    pub hyper: Option<HyperConnections>,
    /// Tokens of the vocabulary: rows of the embedding table, and logits.
    pub vocab: u64,
    /// Positions that the model was made for. A session may be given fewer.
    pub max_positions: u64,
    /// Added to the mean square in every normalization.
    pub norm_eps: f64,
    /// Added to the gains of the hidden width and of attention heads: 1 where checkpoints hold their distance from 1.
    pub gain_offset: f64,
    /// What the embedding is multiplied by.
    pub embed_scale: f64,
    /// What logits are multiplied by.
    pub logit_scale: f64,
    /// The bound that logits are squeezed into: `cap · tanh(logit / cap)`.
    pub logit_softcap: Option<f64>,
    /// Whether the head multiplies with the embedding table.
    pub tied_head: bool,
    /// The layers, from the embedding to the head.
    pub layers: Vec<LayerSpec>,
    /// What the checkpoint calls its tensors.
    pub names: Names,
    /// The element type that the configuration declares for weights, where it declares one.
    pub dtype: Option<DType>,
}

/// One layer: a residual update by its mixer, then one by its feed-forward part; a layer may lack either.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// What moves information between positions.
    pub mixer: Option<Mixer>,
    /// How the mixer's output joins the stream.
    pub mixer_residual: Residual,
    /// What transforms each position on its own.
    pub ffn: Option<Ffn>,
    /// How the feed-forward part's output joins the stream.
    pub ffn_residual: Residual,
}

/// How a part joins the residual stream: `keep · x + scale · norm(part(norm(x)))`, with or without either norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// Whether the part takes the stream normalized.
    pub pre_norm: bool,
    /// Whether its output is normalized.
    pub post_norm: bool,
    /// What its output is multiplied by.
    pub scale: f64,
    /// What the stream is multiplied by.
    pub keep: f64,
    /// Whether it is the normalized stream that goes on (MiniMax-01).
    pub from_norm: bool,
}

/// `x + part(norm(x))`
impl Default for Residual {
    fn default() -> Residual {
        Residual { pre_norm: true, post_norm: false, scale: 1.0, keep: 1.0, from_norm: false }
    }
}

/// Several residual streams, mixed around each part (manifold-constrained hyper-connections).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HyperConnections {
    /// Rounds of normalization of the mixing matrix.
    pub iterations: u64,
    /// Added to gates and sums.
    pub eps: f64,
}

/// The part of a layer that moves information between positions, and so has a state.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mixer {
    /// Softmax attention over all positions so far, or the last ones.
    Attention(Attention),
    /// Softmax attention over compressed rows that weights expand (multi-head latent attention).
    Latent(LatentAttention),
    /// Softmax attention over a sliding window and compressed rows (DeepSeek-V4).
    Compressed(CompressedAttention),
    /// The gated delta rule, after short convolutions.
    GatedDelta(GatedDeltaNet),
    /// Linear attention with a fixed decay for each head.
    DecayedLinear(DecayedLinearAttention),
    /// The state-space step of Mamba-2, after a short convolution.
    StateSpace(StateSpace),
    /// A gated short convolution.
    ShortConv(ShortConv),
}

/// The part of a layer that transforms each position on its own.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ffn {
    /// `down(act(gate(x)) * up(x))`, or `down(act(up(x)))`
    Gated(Gated),
    /// Experts that each row is routed to, beside ones that all rows go to.
    Experts(Experts),
}

/// The kinds of a layer's two parts, for listings: `attention + gated`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerKind {
    /// The kind of the mixer.
    pub mixer: &'static str,
    /// The kind of the feed-forward part.
    pub ffn: &'static str,
}

/// Grouped-query attention.
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
    /// The position embedding of queries and keys; none of layers that have no positions.
    pub rope: Option<RopeSpec>,
    /// Which projections have a bias.
    pub biases: AttentionBiases,
    /// The normalization of queries and keys, before their position embedding.
    pub qk_norm: QkNorm,
    /// Positions that a query sees, its own included; all where there is none. The cache is a ring of so many rows.
    pub window: Option<u64>,
    /// The bound that scores are squeezed into.
    pub softcap: Option<f64>,
    /// Whether each head has a score that takes part in the softmax and has no value.
    pub sinks: bool,
    /// Whether the query projection also gives, after each head's query, a gate of its output, through a sigmoid.
    pub gated: bool,
}

/// How queries and keys are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum QkNorm {
    /// Not at all.
    #[default]
    None,
    /// Each head on its own, with one gain `[head_dim]` for all.
    Head,
    /// All heads together, with a gain over all.
    Whole,
}

/// Multi-head latent attention: the cache holds a compressed row and a rotated key for all heads.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// Query heads.
    pub heads: u64,
    /// The width between the two projections of the queries; they are one projection where there is none.
    pub query_rank: Option<u64>,
    /// Elements of a compressed row.
    pub latent: u64,
    /// Elements of a head's key that come from the compressed row.
    pub key_dim: u64,
    /// Elements of the key that all heads share.
    pub rope_dim: u64,
    /// Elements of a head's value.
    pub value_dim: u64,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// The position embedding of the shared key and of its part in the queries, if it has one.
    pub rope: Option<RopeSpec>,
    /// Added to the mean square in the normalization of compressed rows and queries.
    pub eps: f64,
    /// Whether the projections down, and the one back to the hidden width, have biases.
    pub biased: bool,
}

/// Attention over a sliding window of rows that are key and value in one, with compressed rows beside them.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedAttention {
    /// Query heads.
    pub heads: u64,
    /// Elements of a head, and of a row.
    pub head_dim: u64,
    /// The width between the two projections of the queries.
    pub query_rank: u64,
    /// Positions that a query sees in full, its own included.
    pub window: u64,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// The position embedding, of the last `dims` elements of each head.
    pub rope: RopeSpec,
    /// Groups of heads that are projected each on its own.
    pub output_groups: u64,
    /// The width that each group is projected to.
    pub output_rank: u64,
    /// The compressed rows, of layers that have them.
    pub compressor: Option<Compressor>,
}

/// How compressed rows are made, and chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Compressor {
    /// Tokens for a row.
    pub rate: u64,
    /// Whether a row takes in the tokens of the row before it.
    pub overlap: bool,
    /// What chooses among them; all are read where there is none.
    pub indexer: Option<Indexer>,
}

/// What chooses among compressed rows: rows of its own, and a score for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Indexer {
    /// Query heads.
    pub heads: u64,
    /// Elements of a head, and of a row.
    pub head_dim: u64,
    /// Rows that are chosen at the most.
    pub top_k: u64,
}

/// The gated delta rule with its projections, convolutions and gates.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDeltaNet {
    /// Heads of queries and keys; divides `heads`.
    pub key_heads: u64,
    /// Heads of values.
    pub heads: u64,
    /// Elements of a key.
    pub key_dim: u64,
    /// Elements of a value.
    pub value_dim: u64,
    /// Taps of the convolutions.
    pub taps: u64,
    /// How the projections lie in the checkpoint.
    pub projections: DeltaProjections,
    /// How memories decay.
    pub decay: DeltaDecay,
    /// How the output is gated.
    pub gate: DeltaGate,
    /// What the rate of decay is given as.
    pub form: DecayForm,
    /// Added to the mean square in the normalization of the output.
    pub eps: f64,
}

/// How the projections of a gated delta rule lie in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeltaProjections {
    /// Each on its own, or as rows of a tensor that all have in common.
    Apart,
    /// For each key head its query, its key, the values and the gates of its value heads; and for each key head the
    /// `beta` and the decay of its value heads (Qwen3-Next).
    ByKeyHead,
    /// Each on its own, but for `beta` and the decay, which lie together by key head (Qwen3-Next in GGUF).
    GatesByKeyHead,
    /// Each on its own, and value heads in turns: `h` is of key head `h mod key_heads` (Qwen3.5 in GGUF).
    InTurns,
}

/// How memories of a gated delta rule decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeltaDecay {
    /// By a number for each head.
    Head,
    /// By a number for each channel of the keys, from a projection through a lower rank.
    Channel {
        /// The rank.
        rank: u64,
    },
}

/// How the output of a gated delta rule is gated, after its normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeltaGate {
    /// By `silu` of a projection.
    Silu,
    /// By `sigmoid` of a projection through a lower rank.
    Sigmoid {
        /// The rank.
        rank: u64,
    },
}

/// Linear attention with a fixed decay for each head (MiniMax-01).
#[derive(Clone, Debug, PartialEq)]
pub struct DecayedLinearAttention {
    /// Heads.
    pub heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// The factor of the slopes of this layer.
    pub rate: f64,
    /// Added to the mean square in the normalization of the output.
    pub eps: f64,
}

/// The state-space step of Mamba-2 with its projections, convolution and gate.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpace {
    /// Heads.
    pub heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Groups of heads that share their input and output vectors.
    pub groups: u64,
    /// Elements of these vectors.
    pub state: u64,
    /// Taps of the convolution.
    pub taps: u64,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projections have biases.
    pub proj_bias: bool,
    /// The least and the greatest time step, where they are bounded.
    pub dt_limits: (Option<f64>, Option<f64>),
    /// What the rate of decay is given as.
    pub form: DecayForm,
    /// Equal parts in which the gated output is normalized.
    pub norm_groups: u64,
    /// Added to the mean square there.
    pub eps: f64,
}

/// A gated short convolution (LFM2): `out(c · conv(b · x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    /// Taps of the convolution.
    pub taps: u64,
    /// Whether the projections and the convolution have biases.
    pub biased: bool,
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
    /// How they are stretched in contexts longer than a number of positions, where that differs. It is the context that
    /// a session is opened with which counts, from its first position on: a cache is of one kind.
    pub long: Option<(u64, Scaling)>,
    /// Whether the checkpoint holds divisors of the frequencies ([`crate::Part::RopeDivisors`]).
    pub divisors: bool,
}

impl RopeSpec {
    /// How frequencies are stretched in a context of `ctx` positions.
    pub fn scaling_at(&self, ctx: u64) -> &Scaling {
        match &self.long {
            Some((from, scaling)) if ctx > *from => scaling,
            _ => &self.scaling,
        }
    }
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

/// A dense feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    /// The width between the projections.
    pub width: u64,
    /// What is between them.
    pub activation: Activation,
    /// Whether there is a gate that the activation is of; else it is of the one projection.
    pub gated: bool,
    /// Which projections have a bias.
    pub biases: GatedBiases,
    /// The bound of the gate from above, and of what is gated from both sides.
    pub limit: Option<f64>,
}

/// What is between the projections of a feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Activation {
    /// `x · sigmoid(x)`
    Silu,
    /// `x/2 · (1 + erf(x/√2))`
    Gelu,
    /// Its form with tanh.
    GeluTanh,
    /// `max(x, 0)²`
    Relu2,
    /// `g · sigmoid(alpha · g) · (u + 1)`, of experts alone
    Swish {
        /// What the gate is multiplied by inside the sigmoid.
        alpha: f64,
    },
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

/// Experts that each row is routed to.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Experts.
    pub experts: u64,
    /// The width between an expert's projections.
    pub width: u64,
    /// What is between them.
    pub activation: Activation,
    /// Whether experts have a gate.
    pub gated: bool,
    /// Whether experts have biases.
    pub biased: bool,
    /// The bound of the gate from above, and of what is gated from both sides.
    pub limit: Option<f64>,
    /// Which experts a row goes to.
    pub routing: Routing,
    /// The part that all rows go to beside their experts.
    pub shared: Option<SharedExpert>,
    /// The width that rows are projected to before the experts, and from it after, where they are (Nemotron-H).
    pub latent: Option<u64>,
    /// Whether these projections have biases.
    pub latent_biased: bool,
}

/// Which experts a row goes to, and with what weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// The choice by scores.
    pub route: Route,
    /// Whether the experts of a row are listed for its token, and scores weight them alone.
    pub by_token: bool,
}

/// A feed-forward part that all rows go to.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedExpert {
    /// The part.
    pub ffn: Gated,
    /// Whether its output is multiplied by the sigmoid of a number for each row.
    pub gated: bool,
}

impl ModelSpec {
    /// The spec of a checkpoint: from its metadata if it is GGUF, from its `config.json` else. Tensors are not
    /// looked at, but for which optional ones a GGUF file has, and for LongRoPE's two lists of divisors, which are tensors
    /// there; [`ModelSpec::check`] holds them to the spec.
    ///
    /// # Errors
    /// Of the key that is missing, malformed, out of range or not supported; [`ModelError::NoConfig`] of safetensors
    /// without a `config.json`.
    pub fn of(checkpoint: &Checkpoint) -> Result<ModelSpec, ModelError> {
        match (checkpoint.format(), checkpoint.config()) {
            (Format::Gguf, _) => families::from_gguf(checkpoint),
            (_, Some(config)) => {
                if checkpoint.format() != Format::ConfigOnly {
                    families::readable(config)?;
                }
                let spec = ModelSpec::from_config(config)?;
                let spec = families::within(spec, |name| checkpoint.get(name).is_some())?;
                // A head that is there is the head, whatever the configuration says of tied ones.
                let own = spec.names.weight(crate::Part::Head, 0).ok();
                let own = own.is_some_and(|name| checkpoint.get(&name).is_some());
                Ok(ModelSpec { tied_head: spec.tied_head && !own, ..spec })
            }
            (_, None) => Err(ModelError::NoConfig { path: checkpoint.path().to_owned() }),
        }
    }

    /// The spec of a Hugging Face `config.json`. Matrices may be declared to be in FP8 with scales, which
    /// [`ModelSpec::of`] refuses: the model is the same, and can be planned for.
    ///
    /// # Errors
    /// Of the key that is missing, malformed, out of range or not supported.
    pub fn from_config(config: &serde_json::Value) -> Result<ModelSpec, ModelError> {
        families::from_config(config)
    }

    /// What tells sessions of the same programs apart whose contexts are of `ctx` positions: `rope=short` or
    /// `rope=long`, of models whose frequencies are other ones in long contexts ([`RopeSpec::long`]). A cache that was
    /// filled under one is nothing to the other.
    pub fn identity_note(&self, ctx: u64) -> Option<&'static str> {
        let from = self.long_contexts().into_iter().next()?;
        Some(if ctx > from { "rope=long" } else { "rope=short" })
    }

    /// The lengths of context beyond which frequencies of some layer are other ones.
    pub(crate) fn long_contexts(&self) -> BTreeSet<u64> {
        let from = |layer: &LayerSpec| match &layer.mixer {
            Some(Mixer::Attention(Attention { rope: Some(rope), .. })) => rope.long.as_ref().map(|l| l.0),
            _ => None,
        };
        self.layers.iter().filter_map(from).collect()
    }

    /// The element type of weights where no checkpoint says it: the one that the configuration declares, else F32.
    pub fn default_dtype(&self) -> DType {
        self.dtype.unwrap_or(DType::F32)
    }
}

impl LayerSpec {
    /// A layer of two parts, each joining the stream as `x + part(norm(x))`.
    pub fn new(mixer: Mixer, ffn: Ffn) -> LayerSpec {
        let residual = Residual::default();
        LayerSpec { mixer: Some(mixer), mixer_residual: residual, ffn: Some(ffn), ffn_residual: residual }
    }

    /// The kinds of the layer's parts.
    pub fn kind(&self) -> LayerKind {
        LayerKind {
            mixer: self.mixer.as_ref().map_or("none", Mixer::kind),
            ffn: self.ffn.as_ref().map_or("none", Ffn::kind),
        }
    }
}

impl Mixer {
    /// The kind's name.
    pub fn kind(&self) -> &'static str {
        match self {
            Mixer::Attention(Attention { window: Some(_), .. }) => "sliding attention",
            Mixer::Attention(_) => "attention",
            Mixer::Latent(_) => "latent attention",
            Mixer::Compressed(CompressedAttention { compressor: None, .. }) => "sliding shared attention",
            Mixer::Compressed(CompressedAttention { compressor: Some(c), .. }) if c.indexer.is_some() => {
                "compressed sparse attention"
            }
            Mixer::Compressed(_) => "compressed attention",
            Mixer::GatedDelta(GatedDeltaNet { decay: DeltaDecay::Channel { .. }, .. }) => {
                "channel delta rule"
            }
            Mixer::GatedDelta(_) => "gated delta rule",
            Mixer::DecayedLinear(_) => "decayed linear attention",
            Mixer::StateSpace(_) => "state space",
            Mixer::ShortConv(_) => "short convolution",
        }
    }
}

impl Ffn {
    /// The kind's name.
    pub fn kind(&self) -> &'static str {
        match self {
            Ffn::Gated(Gated { gated: true, .. }) => "gated",
            Ffn::Gated(_) => "plain",
            Ffn::Experts(Experts { routing: Routing { by_token: true, .. }, .. }) => "hash experts",
            Ffn::Experts(_) => "experts",
        }
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.mixer, self.ffn) {
            (mixer, "none") => f.write_str(mixer),
            ("none", ffn) => f.write_str(ffn),
            (mixer, ffn) => write!(f, "{mixer} + {ffn}"),
        }
    }
}
