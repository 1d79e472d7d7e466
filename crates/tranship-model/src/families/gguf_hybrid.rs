//! GGUF files of state spaces, short convolutions and memories that decay: LFM2, Granite 4, Nemotron-H and
//! MiniMax-Text-01 (`minimax-01`).
//!
//! Defaults of absent keys beside those of all architectures, as the format's reader defines them: of `granitehybrid`,
//! `attention.scale` is one over the root of a head's size, `embedding_scale`, `residual_scale` and `logit_scale` are
//! 1, as is 0, `rope.scaling.finetuned`, which says whether there are positions, is true; of `nemotron_h`,
//! `attention.layer_norm_rms_epsilon` is `attention.layer_norm_epsilon`, and `expert_weights_norm` false. Layers
//! without key and value heads have a short convolution, or a state space; of Nemotron-H only those that
//! `feed_forward_length` gives no width either. Of `minimax-01`, without `attention.recurrent_layers`, all but the last
//! of each `full_attention_interval` (8) have memories.
//!
//! Decays are stored as negative rates, gains of groups as `[groups, width / groups]`. LFM2's last gain is called
//! after the embedding. Queries and keys of Granite are permuted to interleaved pairs, as Llama's are. Logits of
//! Granite are divided by `logit_scale`. Time steps are not bounded. MiniMax's `residual_scale` is of what stays in the
//! stream, which goes on normalized; slopes are computed, and what is read from a memory is normalized with an epsilon
//! of 1e-6, as in the family's own configurations, for which the format has no key.

use super::attention::Sizes;
use super::gguf::Gguf;
use super::gguf_layers::{
    self, Count, biases, dense, eps, expert_width, names, rope, silu, spec, windowless,
};
use super::{EPS, POSITIVE, TAPS, WIDTH, hybrid, unsupported, value};
use crate::{
    Activation, Attention, Experts, Ffn, Gated, LayerSpec, Mixer, ModelError, ModelSpec, Names, Part, QkNorm,
    Residual, SharedExpert, ShortConv, StateSpace,
};
use tranship_program::ops::{DecayForm, RopeStyle};

/// `general.architecture: "lfm2"`
pub(super) fn lfm2(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    windowless(gguf)?;
    let (sizes, key_heads) =
        (Sizes::of_gguf(gguf)?, Count::of(gguf)?.sizes(gguf, "attention.head_count_kv")?);
    let rope = rope(gguf, sizes.head_dim, RopeStyle::Half)?;
    let attention = Attention { qk_norm: QkNorm::Head, ..sizes.attention(Some(rope)) };
    let conv = ShortConv { taps: gguf.whole("shortconv.l_cache", &TAPS)?, biased: false };
    let hidden = gguf.whole("embedding_length", &WIDTH)?;
    let mut names = names().with(&[
        (Part::FinalNorm, "token_embd_norm.{}"),
        (Part::ShortConv, "blk.{layer}.shortconv.conv.{}"),
        (Part::MemoryOutput, "blk.{layer}.shortconv.out_proj.{}"),
    ]);
    for (i, part) in [Part::ShortGate, Part::ShortOutGate, Part::ShortInput].into_iter().enumerate() {
        let (from, to) = (i as u64 * hidden, (i as u64 + 1) * hidden);
        names.set(part, format!("blk.{{layer}}.shortconv.in_proj.{{}}[{from}..{to}]"));
    }
    let biases = biases(gguf)?;
    spec(gguf, names, |layer| {
        let mixer = match key_heads[layer] {
            0 => {
                for part in ["in_proj", "conv", "out_proj"] {
                    let bias = format!("blk.{layer}.shortconv.{part}.bias");
                    if gguf.has(&bias) {
                        return Err(unsupported(bias, "a bias", "convolutions without biases"));
                    }
                }
                Mixer::ShortConv(conv.clone())
            }
            _ => Mixer::Attention(Attention { biases, ..attention.clone() }),
        };
        Ok(LayerSpec::new(mixer, silu(gguf, layer)?))
    })
}

/// `general.architecture: "granitehybrid"`
pub(super) fn granitehybrid(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    windowless(gguf)?;
    let factor = |key| Ok::<_, ModelError>(factor(gguf, key)?.unwrap_or(1.0));
    let (sizes, key_heads) =
        (Sizes::of_gguf(gguf)?, Count::of(gguf)?.sizes(gguf, "attention.head_count_kv")?);
    let rope = match gguf.flag_or("rope.scaling.finetuned", true)? {
        true => Some(rope(gguf, sizes.head_dim, RopeStyle::Interleaved)?),
        false => None,
    };
    let attention = sizes.attention(rope);
    let scale = self::factor(gguf, "attention.scale")?.unwrap_or(attention.scale);
    let (mut names, eps) = (names(), eps(gguf)?);
    let state_space = state_space(gguf, eps, &mut names)?;
    let experts = granite_experts(gguf)?;
    let residual = Residual { scale: factor("residual_scale")?, ..Residual::default() };
    let biases = biases(gguf)?;
    let spec = spec(gguf, names, |layer| {
        let mixer = match key_heads[layer] {
            0 => Mixer::StateSpace(state_space.clone()),
            _ => Mixer::Attention(Attention { scale, biases, ..attention.clone() }),
        };
        let ffn = match &experts {
            Some(experts) => Ffn::Experts(experts.clone()),
            None => silu(gguf, layer)?,
        };
        let layer = LayerSpec::new(mixer, ffn);
        Ok(LayerSpec { mixer_residual: residual, ffn_residual: residual, ..layer })
    })?;
    let (embed_scale, logit_scale) = (factor("embedding_scale")?, factor("logit_scale")?.recip());
    Ok(ModelSpec { embed_scale, logit_scale, ..spec })
}

/// `general.architecture: "minimax-01"`
pub(super) fn minimax_01(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    windowless(gguf)?;
    let (count, sizes) = (Count::of(gguf)?, Sizes::of_gguf(gguf)?);
    let recurrent = count.recurrent(gguf, 8)?;
    let rope = rope(gguf, sizes.head_dim, RopeStyle::Half)?;
    let attention = Attention { biases: biases(gguf)?, ..sizes.attention(Some(rope)) };
    let width = count.size(gguf, "feed_forward_length")?;
    let experts = gguf_layers::experts(gguf, width, gguf_layers::softmax(gguf)?)?;
    let keep = gguf.real("residual_scale", &POSITIVE)?;
    let residual = Residual { keep, from_norm: true, ..Residual::default() };
    let names = names().with(&[
        (Part::LinearMix, "blk.{layer}.attn_qkv.{}"),
        (Part::OutputGate, "blk.{layer}.attn_gate.{}"),
        (Part::MemoryNorm, "blk.{layer}.attn_norm_2.{}"),
        (Part::MemoryOutput, "blk.{layer}.attn_output.{}"),
    ]);
    spec(gguf, names, |layer| {
        let mixer = match recurrent[layer] {
            true => Mixer::DecayedLinear(hybrid::decayed(sizes.heads, sizes.head_dim, layer, count.layers)),
            false => Mixer::Attention(attention.clone()),
        };
        let layer = LayerSpec::new(mixer, Ffn::Experts(experts.clone()));
        Ok(LayerSpec { mixer_residual: residual, ffn_residual: residual, ..layer })
    })
}

/// A factor, none of 0.
fn factor(gguf: &Gguf<'_>, key: &str) -> Result<Option<f64>, ModelError> {
    Ok(gguf.real_or(key, &(0.0..=*POSITIVE.end()))?.filter(|factor| *factor != 0.0))
}

/// Granite's experts, of models that have them; all rows go to a part beside them, if the file has one.
fn granite_experts(gguf: &Gguf<'_>) -> Result<Option<Experts>, ModelError> {
    if gguf.above_zero("expert_count", &WIDTH)?.is_none() {
        return Ok(None);
    }
    let width = Count::of(gguf)?.size(gguf, "feed_forward_length")?;
    let experts = gguf_layers::experts(gguf, width, gguf_layers::softmax(gguf)?)?;
    let width = gguf.above_zero("expert_shared_feed_forward_length", &WIDTH)?.unwrap_or(0);
    Ok(Some(Experts { shared: gguf_layers::shared(width, &experts, false), ..experts }))
}

/// The state space of all layers that have one, and the names of its tensors: its gate, inputs, vectors and time steps
/// are rows of one projection, and all but the gate and the steps are channels of one convolution.
fn state_space(gguf: &Gguf<'_>, eps: f64, names: &mut Names) -> Result<StateSpace, ModelError> {
    let size = |key| gguf.whole(key, &WIDTH);
    let (heads_key, groups_key, width_key) = ("ssm.time_step_rank", "ssm.group_count", "ssm.inner_size");
    let (heads, groups, width) = (size(heads_key)?, size(groups_key)?, size(width_key)?);
    let state = size("ssm.state_size")?;
    if !width.is_multiple_of(heads) {
        return Err(value(gguf.path(width_key), format!("a multiple of the {heads} heads"), width));
    }
    if !heads.is_multiple_of(groups) {
        return Err(value(gguf.path(groups_key), format!("a divisor of the {heads} heads"), groups));
    }
    let shared = groups.saturating_mul(state);
    let ends = [0, width, width, shared, shared, heads];
    let ends = ends.iter().scan(0u64, |end, rows| {
        *end = end.saturating_add(*rows);
        Some(*end)
    });
    let ends: Vec<u64> = ends.collect();
    let parts = [Part::OutputGate, Part::StateInput, Part::StateB, Part::StateC, Part::StateStep];
    for (part, ends) in parts.into_iter().zip(ends.windows(2)) {
        names.set(part, format!("blk.{{layer}}.ssm_in.{{}}[{}..{}]", ends[0], ends[1]));
    }
    for (part, ends) in [Part::ConvInput, Part::ConvB, Part::ConvC].into_iter().zip(ends[1..].windows(2)) {
        let (from, to) = (ends[0] - width, ends[1] - width);
        names.set(part, format!("blk.{{layer}}.ssm_conv1d.{{}}[{from}..{to}]"));
    }
    names.set(Part::DecayRate, "blk.{layer}.ssm_a");
    names.set(Part::DecayBias, "blk.{layer}.ssm_dt.bias");
    names.set(Part::StateSkip, "blk.{layer}.ssm_d");
    names.set(Part::MemoryNorm, "blk.{layer}.ssm_norm.{}^M");
    names.set(Part::MemoryOutput, "blk.{layer}.ssm_out.{}");
    let in_some = |tensor: &str| {
        let layers = Count::of(gguf)?.layers;
        Ok::<_, ModelError>((0..layers).any(|layer| gguf.has(&format!("blk.{layer}.{tensor}"))))
    };
    Ok(StateSpace {
        heads,
        head_dim: width / heads,
        groups,
        state,
        taps: gguf.whole("ssm.conv_kernel", &TAPS)?,
        conv_bias: in_some("ssm_conv1d.bias")?,
        proj_bias: in_some("ssm_in.bias")?,
        dt_limits: (None, None),
        form: DecayForm::Negative,
        norm_groups: groups,
        eps,
    })
}

/// `general.architecture: "nemotron_h"`: one part in each layer.
pub(super) fn nemotron_h(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    nemotron(gguf, |width, layer| {
        let width = super::whole(&gguf.path("feed_forward_length"), width, &WIDTH)?;
        Ok(Ffn::Gated(Gated { gated: false, ..dense(gguf, width, Activation::Relu2, layer)? }))
    })
}

/// `general.architecture: "nemotron_h_moe"`: the same, and feed-forward parts are experts.
pub(super) fn nemotron_h_moe(gguf: &Gguf<'_>) -> Result<ModelSpec, ModelError> {
    let route = gguf_layers::grouped(gguf, true, gguf.flag_or("expert_weights_norm", false)?)?;
    let experts = gguf_layers::experts(gguf, expert_width(gguf)?, route)?;
    let experts = Experts { gated: false, activation: Activation::Relu2, ..experts };
    gguf.only("expert_shared_count", 1)?;
    let width = gguf.whole("expert_shared_feed_forward_length", &WIDTH)?;
    let latent = gguf.above_zero("moe_latent_size", &WIDTH)?;
    let shared: Option<SharedExpert> = gguf_layers::shared(width, &experts, false);
    let experts = Ffn::Experts(Experts { shared, latent, ..experts });
    nemotron(gguf, |_, _| Ok(experts.clone()))
}

fn nemotron(
    gguf: &Gguf<'_>,
    ffn: impl Fn(u64, usize) -> Result<Ffn, ModelError>,
) -> Result<ModelSpec, ModelError> {
    windowless(gguf)?;
    let count = Count::of(gguf)?;
    let key_heads = count.sizes(gguf, "attention.head_count_kv")?;
    let widths = count.sizes(gguf, "feed_forward_length")?;
    let attention = Sizes::of_gguf(gguf)?.attention(None);
    let mut names = names().with(&[(Part::FfnNorm, "blk.{layer}.attn_norm.{}")]);
    let eps = match gguf.real_or("attention.layer_norm_rms_epsilon", &EPS)? {
        Some(eps) => eps,
        None => gguf.real("attention.layer_norm_epsilon", &EPS)?,
    };
    let state_space = state_space(gguf, eps, &mut names)?;
    let residual = Residual::default();
    let biases = biases(gguf)?;
    let spec = gguf_layers::spec_with(gguf, eps, names, |layer| {
        let (mixer, ffn) = match (key_heads[layer], widths[layer]) {
            (0, 0) => (Some(Mixer::StateSpace(state_space.clone())), None),
            (0, width) => (None, Some(ffn(width, layer)?)),
            _ => {
                let attention = Attention { biases, ..attention.clone() };
                (Some(Mixer::Attention(attention)), None)
            }
        };
        Ok(LayerSpec { mixer, mixer_residual: residual, ffn, ffn_residual: residual })
    })?;
    Ok(spec)
}
