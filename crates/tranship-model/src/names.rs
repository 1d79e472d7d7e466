//! What a checkpoint calls its tensors: one name for each part of a model.

use crate::ModelError;
use std::fmt;

/// What a tensor is to the programs, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Part {
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
    /// Queries, `[heads · head_dim, hidden]`.
    Query,
    /// Keys, `[kv_heads · head_dim, hidden]`.
    Key,
    /// Values, `[kv_heads · head_dim, hidden]`.
    Value,
    /// The attention's output, `[hidden, heads · head_dim]`.
    Output,
    /// The gain before the feed-forward part, `[hidden]`.
    FfnNorm,
    /// The gate, `[width, hidden]`.
    Gate,
    /// What is gated, `[width, hidden]`.
    Up,
    /// The way back, `[hidden, width]`.
    Down,
}

/// The names of a checkpoint's tensors: for each part a pattern in which `{layer}` stands for the layer's number.
/// `.weight` or `.bias` follows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Names(
    /// Parts and their patterns.
    pub &'static [(Part, &'static str)],
);

impl Names {
    /// Of Hugging Face checkpoints of the Llama family and of those that took its names.
    pub const HUGGING_FACE: Names = Names(&[
        (Part::Table, "model.embed_tokens"),
        (Part::FinalNorm, "model.norm"),
        (Part::Head, "lm_head"),
        (Part::MixerNorm, "model.layers.{layer}.input_layernorm"),
        (Part::Query, "model.layers.{layer}.self_attn.q_proj"),
        (Part::Key, "model.layers.{layer}.self_attn.k_proj"),
        (Part::Value, "model.layers.{layer}.self_attn.v_proj"),
        (Part::Output, "model.layers.{layer}.self_attn.o_proj"),
        (Part::FfnNorm, "model.layers.{layer}.post_attention_layernorm"),
        (Part::Gate, "model.layers.{layer}.mlp.gate_proj"),
        (Part::Up, "model.layers.{layer}.mlp.up_proj"),
        (Part::Down, "model.layers.{layer}.mlp.down_proj"),
    ]);

    /// Of GGUF files, whatever the architecture.
    pub const GGUF: Names = Names(&[
        (Part::Table, "token_embd"),
        (Part::FinalNorm, "output_norm"),
        (Part::Head, "output"),
        (Part::RopeDivisors, "rope_freqs"),
        (Part::MixerNorm, "blk.{layer}.attn_norm"),
        (Part::Query, "blk.{layer}.attn_q"),
        (Part::Key, "blk.{layer}.attn_k"),
        (Part::Value, "blk.{layer}.attn_v"),
        (Part::Output, "blk.{layer}.attn_output"),
        (Part::FfnNorm, "blk.{layer}.ffn_norm"),
        (Part::Gate, "blk.{layer}.ffn_gate"),
        (Part::Up, "blk.{layer}.ffn_up"),
        (Part::Down, "blk.{layer}.ffn_down"),
    ]);

    /// The name of a part's weight; `layer` is of no account to a part that all layers share.
    ///
    /// # Errors
    /// [`ModelError::NoName`] of a part that these checkpoints do not have.
    pub fn weight(&self, part: Part, layer: usize) -> Result<String, ModelError> {
        Ok(self.stem(part, layer)? + ".weight")
    }

    /// The name of a part's bias.
    ///
    /// # Errors
    /// As [`Names::weight`].
    pub fn bias(&self, part: Part, layer: usize) -> Result<String, ModelError> {
        Ok(self.stem(part, layer)? + ".bias")
    }

    fn stem(&self, part: Part, layer: usize) -> Result<String, ModelError> {
        let found = self.0.iter().find(|(p, _)| *p == part).ok_or(ModelError::NoName { part })?;
        Ok(found.1.replace("{layer}", &layer.to_string()))
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Names({})", self.0.first().map_or("", |(_, pattern)| pattern))
    }
}
