//! What GGUF files of all architectures have: widths, names and layers put together to a spec, heads, positions, dense
//! parts and experts.
//!
//! Defaults of absent keys, as the format's reader defines them: `nextn_predict_layers` is 0, and layers that it
//! counts, the last, predict further tokens and are no part of the spec; `attention.head_count_kv` is
//! `attention.head_count`, `attention.key_length` is `embedding_length / attention.head_count`,
//! `attention.value_length` and `rope.dimension_count` are `attention.key_length`; `expert_feed_forward_length` is
//! `feed_forward_length` shared by `expert_used_count`; `expert_weights_scale` is 1, as is 0; `expert_weights_norm` is
//! false where it is read, `expert_group_count` 1. The head is the embedding table where there is no `output.weight`.
//! A projection of attention has a bias where any layer of the file has it, and one of a dense part where its layer
//! does; Qwen 2 has those of queries, keys and values whatever the file has, and gpt-oss all.

use super::attention::Sizes;
use super::gguf::Gguf;
use super::{EPS, Heads, LAYERS, POSITIONS, VOCAB, WIDTH, even_share, rope, unsupported, value};
use crate::{
    Activation, AttentionBiases, Experts, Ffn, Gated, GatedBiases, LayerSpec, ModelError, ModelSpec, Names,
    Part, RopeSpec, Routing, SharedExpert,
};
use std::ops::RangeInclusive;
use tranship_program::ops::{Groups, RopeStyle, Route, RouteBias, Score};

const SCALE: RangeInclusive<f64> = 0.0..=1e9;

/// Names beside those that all architectures have.
const NAMES: &[(Part, &str)] = &[
    (Part::MixerPostNorm, "blk.{layer}.post_attention_norm.{}"),
    (Part::FfnPostNorm, "blk.{layer}.post_ffw_norm.{}"),
    (Part::Sinks, "blk.{layer}.attn_sinks.{}"),
    (Part::Router, "blk.{layer}.ffn_gate_inp.{}"),
    (Part::RouterBias, "blk.{layer}.exp_probs_b.bias"),
    (Part::ExpertGate, "blk.{layer}.ffn_gate_exps.{}"),
    (Part::ExpertUp, "blk.{layer}.ffn_up_exps.{}"),
    (Part::ExpertDown, "blk.{layer}.ffn_down_exps.{}"),
    (Part::ExpertGateBias, "blk.{layer}.ffn_gate_exps.bias"),
    (Part::ExpertUpBias, "blk.{layer}.ffn_up_exps.bias"),
    (Part::ExpertDownBias, "blk.{layer}.ffn_down_exps.bias"),
    (Part::ExpertsIn, "blk.{layer}.ffn_latent_down.{}"),
    (Part::ExpertsOut, "blk.{layer}.ffn_latent_up.{}"),
    (Part::SharedGate, "blk.{layer}.ffn_gate_shexp.{}"),
    (Part::SharedUp, "blk.{layer}.ffn_up_shexp.{}"),
    (Part::SharedDown, "blk.{layer}.ffn_down_shexp.{}"),
    (Part::SharedScale, "blk.{layer}.ffn_gate_inp_shexp.{}"),
];

/// The norm before the feed-forward part, of architectures that name it after the attention before it.
pub(super) const NORM_AFTER_ATTENTION: &[(Part, &str)] =
    &[(Part::FfnNorm, "blk.{layer}.post_attention_norm.{}")];

/// The names of tensors.
pub(super) fn names() -> Names {
    Names::gguf().with(NAMES)
}

/// How many layers there are, and how many of the file: the last may predict further tokens.
#[derive(Clone, Copy)]
pub(super) struct Count {
    /// Of the spec.
    pub layers: usize,
    /// As many entries as arrays have.
    all: usize,
}

impl Count {
    pub fn of(gguf: &Gguf<'_>) -> Result<Count, ModelError> {
        let all = gguf.whole("block_count", &LAYERS)?;
        let further = gguf.whole_or("nextn_predict_layers", &(0..=all - 1))?.unwrap_or(0);
        Ok(Count { layers: (all - further) as usize, all: all as usize })
    }

    /// A size that every layer has the same.
    pub fn size(self, gguf: &Gguf<'_>, key: &str) -> Result<u64, ModelError> {
        let found = gguf.one_for_all(key, self.all, &WIDTH)?;
        found.ok_or_else(|| gguf.absent(key, "an integer, or an array with one for each layer"))
    }

    /// A size of each layer, from 0 up: an array, or one number for all.
    pub fn sizes(self, gguf: &Gguf<'_>, key: &str) -> Result<Vec<u64>, ModelError> {
        let found = gguf.per_layer(key, self.all, &(0..=*WIDTH.end()))?;
        let found =
            found.ok_or_else(|| gguf.absent(key, "an integer, or an array with one for each layer"))?;
        Ok(found[..self.layers].to_vec())
    }

    /// What an array of flags says of each layer.
    pub fn flags(self, gguf: &Gguf<'_>, key: &str) -> Result<Option<Vec<bool>>, ModelError> {
        Ok(gguf.flags_or(key, self.all)?.map(|flags| flags[..self.layers].to_vec()))
    }

    /// Which layers have a memory in the place of attention: as an array says, or all but the last of each so many,
    /// `interval` where no number is written.
    pub fn recurrent(self, gguf: &Gguf<'_>, interval: u64) -> Result<Vec<bool>, ModelError> {
        if let Some(flags) = self.flags(gguf, "attention.recurrent_layers")? {
            return Ok(flags);
        }
        let interval = gguf.whole_or("full_attention_interval", &LAYERS)?.unwrap_or(interval);
        Ok((1..=self.layers as u64).map(|layer| !layer.is_multiple_of(interval)).collect())
    }

    /// A real number of each layer: an array, or one for all; `None` without the key.
    pub fn reals(
        self,
        gguf: &Gguf<'_>,
        key: &str,
        range: &RangeInclusive<f64>,
    ) -> Result<Option<Vec<f64>>, ModelError> {
        let found = gguf.reals_per_layer(key, self.all, range)?;
        Ok(found.map(|found| found[..self.layers].to_vec()))
    }

    /// Which layers slide: as an array says, or all but the last of each so many, `pattern` where no number is
    /// written.
    pub fn slides(self, gguf: &Gguf<'_>, pattern: u64) -> Result<Vec<bool>, ModelError> {
        const KEY: &str = "attention.sliding_window_pattern";
        if let Some(flags) = self.flags(gguf, KEY)? {
            return Ok(flags);
        }
        let pattern = gguf.whole_or(KEY, &LAYERS)?.unwrap_or(pattern);
        Ok((1..=self.layers as u64).map(|layer| !layer.is_multiple_of(pattern)).collect())
    }
}

/// The spec of a file with layers that `layer` gives by their number.
pub(super) fn spec(
    gguf: &Gguf<'_>,
    names: Names,
    layer: impl FnMut(usize) -> Result<LayerSpec, ModelError>,
) -> Result<ModelSpec, ModelError> {
    spec_with(gguf, eps(gguf)?, names, layer)
}

/// [`spec`] with an epsilon that is found otherwise.
pub(super) fn spec_with(
    gguf: &Gguf<'_>,
    norm_eps: f64,
    names: Names,
    mut layer: impl FnMut(usize) -> Result<LayerSpec, ModelError>,
) -> Result<ModelSpec, ModelError> {
    if !gguf.flag_or("attention.causal", true)? {
        return Err(unsupported(gguf.path("attention.causal"), "false", "true"));
    }
    let layers = (0..Count::of(gguf)?.layers).map(&mut layer).collect::<Result<Vec<_>, _>>()?;
    Ok(ModelSpec {
        architecture: gguf.architecture.to_owned(),
        hidden: gguf.whole("embedding_length", &WIDTH)?,
        streams: 1,
        hyper: None,
        vocab: gguf.vocab(&VOCAB)?,
        max_positions: gguf.whole("context_length", &POSITIONS)?,
        norm_eps,
        gain_offset: 0.0,
        embed_scale: 1.0,
        logit_scale: 1.0,
        logit_softcap: None,
        tied_head: !gguf.has_weight(Part::Head)?,
        names: merged(gguf, names, &layers),
        layers,
        dtype: None,
    })
}

/// Added to the mean square in normalizations.
pub(super) fn eps(gguf: &Gguf<'_>) -> Result<f64, ModelError> {
    gguf.real("attention.layer_norm_rms_epsilon", &EPS)
}

/// The names of a file whose converter was told to put experts' gates and what they gate into one tensor.
fn merged(gguf: &Gguf<'_>, mut names: Names, layers: &[LayerSpec]) -> Names {
    let width = layers.iter().find_map(|layer| match &layer.ffn {
        Some(Ffn::Experts(experts)) => Some(experts.width),
        _ => None,
    });
    let Some(width) = width else { return names };
    if (0..layers.len()).any(|layer| gguf.has(&format!("blk.{layer}.ffn_gate_up_exps.weight"))) {
        let both = width.saturating_mul(2);
        names.set(Part::ExpertGate, format!("blk.{{layer}}.ffn_gate_up_exps.{{}}[:, 0..{width}]"));
        names.set(Part::ExpertUp, format!("blk.{{layer}}.ffn_gate_up_exps.{{}}[:, {width}..{both}]"));
    }
    names
}

/// Refuses a window in an architecture that has none.
pub(super) fn windowless(gguf: &Gguf<'_>) -> Result<(), ModelError> {
    match gguf.above_zero("attention.sliding_window", &(0..=u64::MAX))? {
        Some(found) => {
            let supported = "0: attention over all positions";
            Err(unsupported(gguf.path("attention.sliding_window"), found, supported))
        }
        None => Ok(()),
    }
}

impl Sizes {
    /// As the keys say, which every layer with attention has the same; layers of 0 key and value heads have none.
    pub fn of_gguf(gguf: &Gguf<'_>) -> Result<Sizes, ModelError> {
        let (heads_key, kv_key, dim_key) =
            ("attention.head_count", "attention.head_count_kv", "attention.key_length");
        let count = Count::of(gguf)?;
        let heads = count.size(gguf, heads_key)?;
        let kv_heads = match gguf.get(kv_key) {
            Some(_) => {
                let of_layers = count.sizes(gguf, kv_key)?;
                let attend: Vec<u64> = of_layers.into_iter().filter(|heads| *heads > 0).collect();
                match attend.iter().find(|other| **other != attend[0]) {
                    Some(other) => {
                        let wanted = format!("{} in all layers with attention", attend[0]);
                        return Err(value(gguf.path(kv_key), wanted, other));
                    }
                    None => attend.first().copied().unwrap_or(heads),
                }
            }
            None => heads,
        };
        let head_dim = match gguf.whole_or(dim_key, &WIDTH)? {
            Some(given) => given,
            None => even_share(&gguf.path(heads_key), heads, gguf.whole("embedding_length", &WIDTH)?)?,
        };
        if let Some(found) = gguf.whole_or("attention.value_length", &WIDTH)?.filter(|v| *v != head_dim) {
            return Err(value(
                gguf.path("attention.value_length"),
                format!("the size of a head, {head_dim}"),
                found,
            ));
        }
        let (kv_path, dim_path) = (gguf.path(kv_key), gguf.path(dim_key));
        Heads { heads, kv_heads: (&kv_path, kv_heads), head_dim: (&dim_path, head_dim) }.hold()?;
        Ok(Sizes { heads, kv_heads, head_dim })
    }
}

/// Which projections of attention have biases: in all layers those that have one in any.
pub(super) fn biases(gguf: &Gguf<'_>) -> Result<AttentionBiases, ModelError> {
    let layers = Count::of(gguf)?.layers;
    let bias = |part| {
        (0..layers).try_fold(false, |any, layer| Ok::<_, ModelError>(any || gguf.has_bias(part, layer)?))
    };
    Ok(AttentionBiases {
        q: bias(Part::Query)?,
        k: bias(Part::Key)?,
        v: bias(Part::Value)?,
        o: bias(Part::Output)?,
    })
}

/// Positions that turn as many elements of each head as `rope.dimension_count` says.
pub(super) fn rope(gguf: &Gguf<'_>, head_dim: u64, style: RopeStyle) -> Result<RopeSpec, ModelError> {
    const KEY: &str = "rope.dimension_count";
    let dims = gguf.whole_or(KEY, &(1..=head_dim))?.unwrap_or(head_dim);
    rope::even(&gguf.path(KEY), dims)?;
    let (theta, scaling) = rope::from_gguf(gguf)?;
    let divisors = gguf.has_weight(Part::RopeDivisors)?;
    Ok(RopeSpec { style, divisors, ..rope::halves(dims, theta, scaling) })
}

/// A dense part of so many elements, with the biases that the file has in a layer.
pub(super) fn dense(
    gguf: &Gguf<'_>,
    width: u64,
    activation: Activation,
    layer: usize,
) -> Result<Gated, ModelError> {
    let bias = |part| gguf.has_bias(part, layer);
    let biases = GatedBiases { gate: bias(Part::Gate)?, up: bias(Part::Up)?, down: bias(Part::Down)? };
    Ok(Gated { width, activation, gated: true, biases, limit: None })
}

/// A dense part as wide as `feed_forward_length` says of a layer, with SiLU.
pub(super) fn silu(gguf: &Gguf<'_>, layer: usize) -> Result<Ffn, ModelError> {
    let (key, widths) = ("feed_forward_length", Count::of(gguf)?.sizes(gguf, "feed_forward_length")?);
    let width = super::whole(&gguf.path(key), widths[layer], &WIDTH)?;
    dense(gguf, width, Activation::Silu, layer).map(Ffn::Gated)
}

/// The width of experts.
pub(super) fn expert_width(gguf: &Gguf<'_>) -> Result<u64, ModelError> {
    let count = Count::of(gguf)?;
    match gguf.get("expert_feed_forward_length") {
        Some(_) => count.size(gguf, "expert_feed_forward_length"),
        None => {
            let all = count.size(gguf, "feed_forward_length")?;
            even_share(&gguf.path("expert_used_count"), gguf.whole("expert_used_count", &WIDTH)?, all)
        }
    }
}

/// Gated experts with SiLU and their routing, without biases and alone.
pub(super) fn experts(gguf: &Gguf<'_>, width: u64, route: Route) -> Result<Experts, ModelError> {
    Ok(Experts {
        experts: gguf.whole("expert_count", &WIDTH)?,
        width,
        activation: Activation::Silu,
        gated: true,
        biased: false,
        limit: None,
        routing: Routing { route, by_token: false },
        shared: None,
        latent: None,
        latent_biased: false,
    })
}

/// Routing by softmax over all experts, with weights that add to 1.
pub(super) fn softmax(gguf: &Gguf<'_>) -> Result<Route, ModelError> {
    let experts = gguf.whole("expert_count", &WIDTH)?;
    let scale = gguf.real_or("expert_weights_scale", &SCALE)?.filter(|scale| *scale != 0.0);
    Ok(Route {
        top_k: gguf.whole("expert_used_count", &(1..=experts))?,
        score: Score::Softmax,
        bias: None,
        normalize: true,
        eps: 0.0,
        scale: scale.unwrap_or(1.0),
        groups: None,
    })
}

/// Routing by the sigmoid of each score, chosen with a bias that is in no weight, and weights that add to the scale.
/// `absent` says whether it is what files mean that do not name the function.
pub(super) fn sigmoid(gguf: &Gguf<'_>, absent: bool) -> Result<Route, ModelError> {
    /// Its number in the format.
    const SIGMOID: u64 = 2;
    let key = "expert_gating_func";
    match gguf.above_zero(key, &(0..=u64::MAX))? {
        Some(SIGMOID) => {}
        None if absent => {}
        None => return Err(gguf.absent(key, "2: the sigmoid of scores")),
        Some(other) => return Err(unsupported(gguf.path(key), other, "2: the sigmoid of scores")),
    }
    Ok(Route { score: Score::Sigmoid, bias: Some(RouteBias::Choice), ..softmax(gguf)? })
}

/// DeepSeek-V3's routing: [`sigmoid`] among experts of the best groups; `normalize` says whether weights add to the
/// scale.
pub(super) fn grouped(gguf: &Gguf<'_>, absent: bool, normalize: bool) -> Result<Route, ModelError> {
    let (route, experts) = (sigmoid(gguf, absent)?, gguf.whole("expert_count", &WIDTH)?);
    let (groups_key, open_key) = ("expert_group_count", "expert_group_used_count");
    let route = Route { normalize, eps: if normalize { 1e-20 } else { 0.0 }, ..route };
    let Some(groups) = gguf.above_zero(groups_key, &(1..=experts))?.filter(|groups| *groups > 1) else {
        return Ok(route);
    };
    let top_groups = gguf.whole(open_key, &(1..=groups))?;
    let each = experts / groups;
    if !experts.is_multiple_of(groups) || each < 2 {
        let wanted = format!("a divisor of the {experts} experts, for groups of two or more");
        return Err(value(gguf.path(groups_key), wanted, groups));
    }
    if each * top_groups < route.top_k {
        let wanted = format!("groups with {} experts or more, of {each} each", route.top_k);
        return Err(value(gguf.path(open_key), wanted, top_groups));
    }
    Ok(Route { groups: Some(Groups { groups, top_groups, by_max: false }), ..route })
}

/// The part that all rows go to, so many elements wide, beside experts like it.
pub(super) fn shared(width: u64, of: &Experts, gated: bool) -> Option<SharedExpert> {
    let (activation, biases) = (of.activation, GatedBiases::default());
    (width > 0).then_some(SharedExpert {
        ffn: Gated { width, activation, gated: of.gated, biases, limit: None },
        gated,
    })
}

/// The part that all rows go to, as wide as so many experts as `expert_shared_count` says.
pub(super) fn shared_count(gguf: &Gguf<'_>, of: &Experts) -> Result<Option<SharedExpert>, ModelError> {
    let key = "expert_shared_count";
    let count = gguf.whole(key, &(0..=1 << 20))?;
    let width = count.saturating_mul(of.width);
    if width > *WIDTH.end() {
        return Err(value(
            gguf.path(key),
            format!("at most {} elements, {} each", WIDTH.end(), of.width),
            count,
        ));
    }
    Ok(shared(width, of, false))
}
