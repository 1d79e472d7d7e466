//! What a checkpoint calls its tensors: one name for each part of a model.

use crate::ModelError;
use std::borrow::Cow;
use std::fmt;

/// Declares [`Part`], each with what it is and its shape.
macro_rules! parts {
    ($($(#[$doc:meta])* $part:ident,)*) => {
        /// What a tensor is to the programs, whatever its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Part { $($(#[$doc])* $part,)* }
    };
}

parts! {
    /// The embedding table, `[vocab, hidden]`.
    Table,
    /// The gain before the head, `[hidden]`.
    FinalNorm,
    /// The head's own matrix, `[vocab, hidden]`, where it is not the table.
    Head,
    /// Divisors of the RoPE frequencies, `[dims / 2]`, one tensor for all layers.
    RopeDivisors,
    /// The gain before the mixer, `[hidden]`.
    MixerNorm,
    /// The gain after the mixer, `[hidden]`.
    MixerPostNorm,
    /// Queries, `[heads · head_dim, hidden]`; with gates, each head's queries and then its gates.
    Query,
    /// Keys, `[kv_heads · head_dim, hidden]`.
    Key,
    /// Values, `[kv_heads · head_dim, hidden]`.
    Value,
    /// The gain of queries, `[head_dim]` or over all heads.
    QueryNorm,
    /// The gain of keys, `[head_dim]` or over all heads.
    KeyNorm,
    /// Scores of heads that have no value, `[heads]`.
    Sinks,
    /// An attention's output, `[hidden, width]`.
    Output,
    /// The first projection of an output in groups, `[groups · rank, width / groups]`.
    OutputDown,
    /// The first projection of the queries, `[rank, hidden]`.
    QueryDown,
    /// The gain between the two projections of the queries, `[rank]`.
    QueryDownNorm,
    /// The second projection of the queries, `[heads · dim, rank]`.
    QueryUp,
    /// Compressed rows of latent attention, `[latent, hidden]`.
    Latent,
    /// The gain of compressed rows, `[latent]`.
    LatentNorm,
    /// The key that all heads of latent attention share, `[rope_dim, hidden]`.
    SharedKey,
    /// What expands compressed rows, `[heads · (key_dim + value_dim), latent]`.
    LatentUp,
    /// Rows that are key and value in one, `[head_dim, hidden]`.
    Row,
    /// Their gain, `[head_dim]`.
    RowNorm,
    /// What is compressed, `[head_dim or twice that, hidden]`.
    CompressorRow,
    /// The gates of compression, as wide.
    CompressorGate,
    /// What is added to the gates by the place in the span, `[rate, width]`.
    CompressorBias,
    /// The gain of compressed rows, `[head_dim]`.
    CompressorNorm,
    /// What the indexer's rows are compressed from.
    IndexerRow,
    /// The gates of that compression.
    IndexerGate,
    /// What is added to these gates by the place in the span.
    IndexerBias,
    /// The gain of the indexer's rows.
    IndexerNorm,
    /// The indexer's queries, `[heads · dim, rank]`.
    IndexerQuery,
    /// The weights of the indexer's heads, `[heads, hidden]`.
    IndexerWeights,
    /// Queries, keys, values and gates of a delta rule by key head, `[key_heads · (…), hidden]`.
    DeltaMix,
    /// `beta` and decay of a delta rule by key head, `[2 · heads, hidden]`.
    DeltaGates,
    /// `beta` of a delta rule, `[heads, hidden]`.
    Beta,
    /// The decay of a delta rule, `[heads, hidden]`.
    Decay,
    /// The first projection of a decay by channel, `[rank, hidden]`.
    DecayDown,
    /// The second, `[heads · key_dim, rank]`.
    DecayUp,
    /// The rate of decay of each head, `[heads]`.
    DecayRate,
    /// What is added before the decay's softplus, `[heads]` or by channel.
    DecayBias,
    /// The convolution of queries, `[channels, taps]`.
    ConvQuery,
    /// The convolution of keys.
    ConvKey,
    /// The convolution of values.
    ConvValue,
    /// Queries of a memory, `[heads · key_dim, hidden]`.
    MemoryQuery,
    /// Keys of a memory.
    MemoryKey,
    /// Values of a memory, `[heads · value_dim, hidden]`.
    MemoryValue,
    /// The gain of what is read from a memory.
    MemoryNorm,
    /// The output of a mixer that has a memory or a convolution, `[hidden, width]`.
    MemoryOutput,
    /// The gate of a mixer's output, `[width, hidden]`.
    OutputGate,
    /// The first projection of a gate through a lower rank, `[rank, hidden]`.
    OutputGateDown,
    /// The second, `[width, rank]`.
    OutputGateUp,
    /// Queries, keys and values of decayed linear attention by head, `[heads · 3 · head_dim, hidden]`.
    LinearMix,
    /// The input of a state space, `[heads · head_dim, hidden]`.
    StateInput,
    /// The input vectors of a state space, `[groups · state, hidden]`.
    StateB,
    /// The output vectors of a state space, `[groups · state, hidden]`.
    StateC,
    /// The time steps of a state space, `[heads, hidden]`.
    StateStep,
    /// The part of a state space's input that goes past it, `[heads]`.
    StateSkip,
    /// The convolution of a state space's input, `[channels, taps]`.
    ConvInput,
    /// The convolution of its input vectors.
    ConvB,
    /// The convolution of its output vectors.
    ConvC,
    /// What a short convolution's input is gated by, `[hidden, hidden]`.
    ShortGate,
    /// What its output is gated by.
    ShortOutGate,
    /// Its input.
    ShortInput,
    /// A short convolution, `[hidden, taps]`.
    ShortConv,
    /// The gain before the feed-forward part, `[hidden]`.
    FfnNorm,
    /// The gain after the feed-forward part, `[hidden]`.
    FfnPostNorm,
    /// The gate, `[width, hidden]`.
    Gate,
    /// What is gated, `[width, hidden]`.
    Up,
    /// The way back, `[hidden, width]`.
    Down,
    /// The scores of experts, `[experts, hidden]`.
    Router,
    /// What is added to the scores, or for the choice, `[experts]`.
    RouterBias,
    /// The experts of each token, `[vocab, top_k]`.
    RouterTable,
    /// The experts' gates, `[experts, width, in]`.
    ExpertGate,
    /// What experts gate, `[experts, width, in]`.
    ExpertUp,
    /// The experts' way back, `[experts, out, width]`.
    ExpertDown,
    /// The biases of the experts' gates, `[experts, width]`.
    ExpertGateBias,
    /// The biases of what experts gate.
    ExpertUpBias,
    /// The biases of the experts' way back, `[experts, out]`.
    ExpertDownBias,
    /// What rows are projected by before experts, `[latent, hidden]`.
    ExpertsIn,
    /// And after them, `[hidden, latent]`.
    ExpertsOut,
    /// The gate of the part that all rows go to.
    SharedGate,
    /// What it gates.
    SharedUp,
    /// Its way back.
    SharedDown,
    /// The number that its output is weighted by, `[1, hidden]`.
    SharedScale,
    /// The projection of all streams before the mixer, `[(2 + streams) · streams, streams · hidden]`.
    MixerStreams,
    /// What is added to it.
    MixerStreamsBase,
    /// What its three parts are multiplied by, `[3]`.
    MixerStreamsScale,
    /// The projection of all streams before the feed-forward part.
    FfnStreams,
    /// What is added to it.
    FfnStreamsBase,
    /// What its three parts are multiplied by.
    FfnStreamsScale,
    /// The projection of all streams before the head, `[streams, streams · hidden]`.
    HeadStreams,
    /// What is added to it.
    HeadStreamsBase,
    /// What it is multiplied by, `[1]`.
    HeadStreamsScale,
}

/// The names of a checkpoint's tensors: for each part a pattern, which is the text of a [`crate::Source`] in which
/// `{layer}` stands for the layer's number and `{}` for `weight` or `bias`.
#[derive(Clone, PartialEq, Eq)]
pub struct Names(Vec<(Part, Cow<'static, str>)>);

impl Names {
    /// Of Hugging Face checkpoints of the Llama family and of those that took its names.
    pub fn hugging_face() -> Names {
        Names::of(&[
            (Part::Table, "model.embed_tokens.{}"),
            (Part::FinalNorm, "model.norm.{}"),
            (Part::Head, "lm_head.{}"),
            (Part::MixerNorm, "model.layers.{layer}.input_layernorm.{}"),
            (Part::Query, "model.layers.{layer}.self_attn.q_proj.{}"),
            (Part::Key, "model.layers.{layer}.self_attn.k_proj.{}"),
            (Part::Value, "model.layers.{layer}.self_attn.v_proj.{}"),
            (Part::QueryNorm, "model.layers.{layer}.self_attn.q_norm.{}"),
            (Part::KeyNorm, "model.layers.{layer}.self_attn.k_norm.{}"),
            (Part::Output, "model.layers.{layer}.self_attn.o_proj.{}"),
            (Part::FfnNorm, "model.layers.{layer}.post_attention_layernorm.{}"),
            (Part::Gate, "model.layers.{layer}.mlp.gate_proj.{}"),
            (Part::Up, "model.layers.{layer}.mlp.up_proj.{}"),
            (Part::Down, "model.layers.{layer}.mlp.down_proj.{}"),
        ])
    }

    /// Of GGUF files, whatever the architecture.
    pub fn gguf() -> Names {
        Names::of(&[
            (Part::Table, "token_embd.{}"),
            (Part::FinalNorm, "output_norm.{}"),
            (Part::Head, "output.{}"),
            (Part::RopeDivisors, "rope_freqs.{}"),
            (Part::MixerNorm, "blk.{layer}.attn_norm.{}"),
            (Part::Query, "blk.{layer}.attn_q.{}"),
            (Part::Key, "blk.{layer}.attn_k.{}"),
            (Part::Value, "blk.{layer}.attn_v.{}"),
            (Part::QueryNorm, "blk.{layer}.attn_q_norm.{}"),
            (Part::KeyNorm, "blk.{layer}.attn_k_norm.{}"),
            (Part::Output, "blk.{layer}.attn_output.{}"),
            (Part::FfnNorm, "blk.{layer}.ffn_norm.{}"),
            (Part::Gate, "blk.{layer}.ffn_gate.{}"),
            (Part::Up, "blk.{layer}.ffn_up.{}"),
            (Part::Down, "blk.{layer}.ffn_down.{}"),
        ])
    }

    /// Of a list of patterns.
    pub fn of(patterns: &[(Part, &'static str)]) -> Names {
        Names(patterns.iter().map(|(part, pattern)| (*part, Cow::Borrowed(*pattern))).collect())
    }

    /// These names, with those of a list in the place of any that they have for the same parts.
    #[must_use]
    pub fn with(mut self, patterns: &[(Part, &'static str)]) -> Names {
        for (part, pattern) in patterns {
            self.set(*part, *pattern);
        }
        self
    }

    /// Sets the pattern of a part.
    pub fn set(&mut self, part: Part, pattern: impl Into<Cow<'static, str>>) {
        self.0.retain(|(known, _)| *known != part);
        self.0.push((part, pattern.into()));
    }

    /// These names with `prefix` in the place of `of` wherever a pattern starts with it: `model.` by
    /// `model.language_model.`, say.
    #[must_use]
    pub fn under(mut self, of: &str, prefix: &str) -> Names {
        for (_, pattern) in &mut self.0 {
            if let Some(rest) = pattern.strip_prefix(of) {
                *pattern = Cow::Owned(format!("{prefix}{rest}"));
            }
        }
        self
    }

    /// The source of a part's weight; `layer` is of no account to a part that all layers share.
    ///
    /// # Errors
    /// [`ModelError::NoName`] of a part that these checkpoints do not have.
    pub fn weight(&self, part: Part, layer: usize) -> Result<String, ModelError> {
        self.name(part, layer, "weight")
    }

    /// The source of a part's bias.
    ///
    /// # Errors
    /// As [`Names::weight`].
    pub fn bias(&self, part: Part, layer: usize) -> Result<String, ModelError> {
        self.name(part, layer, "bias")
    }

    fn name(&self, part: Part, layer: usize, word: &str) -> Result<String, ModelError> {
        let found = self.0.iter().find(|(known, _)| *known == part).ok_or(ModelError::NoName { part })?;
        Ok(found.1.replace("{layer}", &layer.to_string()).replace("{}", word))
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Names({})", self.0.first().map_or("", |(_, pattern)| pattern))
    }
}
