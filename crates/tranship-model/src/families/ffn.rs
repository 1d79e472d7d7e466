//! Feed-forward parts as most families write them: dense ones, experts, and the choice among these.

use super::config::Config;
use super::{WIDTH, unsupported, value};
use crate::{Activation, Experts, Ffn, Gated, GatedBiases, ModelError, Part, Routing, SharedExpert};
use std::ops::RangeInclusive;
use tranship_program::ops::{Groups, Route, RouteBias, Score};

const SCALE: RangeInclusive<f64> = 1e-9..=1e9;

/// Where Qwen's families keep experts, and most that came after.
pub(super) const UNDER_MLP: &[(Part, &str)] = &[
    (Part::Router, "model.layers.{layer}.mlp.gate.{}"),
    (Part::RouterBias, "model.layers.{layer}.mlp.gate.e_score_correction_bias"),
    (Part::ExpertGate, "model.layers.{layer}.mlp.experts.{expert}.gate_proj.{}"),
    (Part::ExpertUp, "model.layers.{layer}.mlp.experts.{expert}.up_proj.{}"),
    (Part::ExpertDown, "model.layers.{layer}.mlp.experts.{expert}.down_proj.{}"),
    (Part::SharedGate, "model.layers.{layer}.mlp.shared_experts.gate_proj.{}"),
    (Part::SharedUp, "model.layers.{layer}.mlp.shared_experts.up_proj.{}"),
    (Part::SharedDown, "model.layers.{layer}.mlp.shared_experts.down_proj.{}"),
];

/// Where Mixtral keeps experts, and MiniMax after it.
pub(super) const UNDER_BLOCK: &[(Part, &str)] = &[
    (Part::Router, "model.layers.{layer}.block_sparse_moe.gate.{}"),
    (Part::RouterBias, "model.layers.{layer}.block_sparse_moe.e_score_correction_bias"),
    (Part::ExpertGate, "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.{}"),
    (Part::ExpertUp, "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.{}"),
    (Part::ExpertDown, "model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.{}"),
];

/// The activation under a key, by its name in transformers.
pub(super) fn activation(config: &Config<'_>, key: &str) -> Result<Activation, ModelError> {
    match config.text(key)? {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        "relu2" => Ok(Activation::Relu2),
        other => {
            Err(unsupported(config.path(key), format!("{other:?}"), "silu, gelu, gelu_pytorch_tanh, relu2"))
        }
    }
}

/// The gated part whose width is under `width_key`, and its activation under `act_key`; without biases.
pub(super) fn gated(config: &Config<'_>, width_key: &str, act_key: &str) -> Result<Gated, ModelError> {
    let activation = activation(config, act_key)?;
    let width = config.whole(width_key, &WIDTH)?;
    Ok(Gated { width, activation, gated: true, biases: GatedBiases::default(), limit: None })
}

/// [`gated`] with the widths and activation of most: `intermediate_size`, `hidden_act`.
pub(super) fn dense(config: &Config<'_>) -> Result<Ffn, ModelError> {
    gated(config, "intermediate_size", "hidden_act").map(Ffn::Gated)
}

/// [`dense`] with biases of all three projections, by `mlp_bias`.
pub(super) fn dense_with_biases(config: &Config<'_>) -> Result<Ffn, ModelError> {
    let bias = config.flag_or("mlp_bias", false)?;
    let gated = gated(config, "intermediate_size", "hidden_act")?;
    Ok(Ffn::Gated(Gated { biases: GatedBiases { gate: bias, up: bias, down: bias }, ..gated }))
}

/// Gated experts, as many as under `count_key`, each as wide as under `width_key`, with `hidden_act`; without biases,
/// and alone.
pub(super) fn experts(
    config: &Config<'_>,
    count_key: &str,
    width_key: &str,
    route: impl FnOnce(u64) -> Result<Route, ModelError>,
) -> Result<Experts, ModelError> {
    let experts = config.whole(count_key, &WIDTH)?;
    let activation = match activation(config, "hidden_act")? {
        Activation::Relu2 => {
            return Err(unsupported(config.path("hidden_act"), "\"relu2\" of gated experts", "silu, gelu"));
        }
        activation => activation,
    };
    Ok(Experts {
        experts,
        width: config.whole(width_key, &WIDTH)?,
        activation,
        gated: true,
        biased: false,
        limit: None,
        routing: Routing { route: route(experts)?, by_token: false },
        shared: None,
        latent: None,
        latent_biased: false,
    })
}

/// Routing to as many of `experts` as under `top_k_key`, by softmax over all, the weights as they are.
pub(super) fn softmax(config: &Config<'_>, top_k_key: &str, experts: u64) -> Result<Route, ModelError> {
    let top_k = config.whole(top_k_key, &(1..=experts))?;
    Ok(Route {
        top_k,
        score: Score::Softmax,
        bias: None,
        normalize: false,
        eps: 0.0,
        scale: 1.0,
        groups: None,
    })
}

/// Routing by the sigmoid of each score, chosen with a bias that is in no weight.
pub(super) fn sigmoid(config: &Config<'_>, top_k_key: &str, experts: u64) -> Result<Route, ModelError> {
    let route = softmax(config, top_k_key, experts)?;
    Ok(Route { score: Score::Sigmoid, bias: Some(RouteBias::Choice), ..route })
}

/// DeepSeek-V3's routing: [`sigmoid`], among experts of the best groups, with weights that are normalized if `normalize`
/// and then scaled by `routed_scaling_factor`. `group_keys` say how many groups there are, and how many are open.
pub(super) fn grouped(
    config: &Config<'_>,
    top_k_key: &str,
    group_keys: (&str, &str),
    normalize: bool,
    experts: u64,
) -> Result<Route, ModelError> {
    let route = sigmoid(config, top_k_key, experts)?;
    let scale = config.real("routed_scaling_factor", &SCALE)?;
    let groups = groups(config, group_keys, route.top_k, experts)?;
    Ok(Route { normalize, eps: if normalize { 1e-20 } else { 0.0 }, scale, groups, ..route })
}

fn groups(
    config: &Config<'_>,
    (groups_key, open_key): (&str, &str),
    top_k: u64,
    experts: u64,
) -> Result<Option<Groups>, ModelError> {
    let groups = config.whole(groups_key, &(1..=experts))?;
    let top_groups = config.whole(open_key, &(1..=groups))?;
    if groups == 1 {
        return Ok(None);
    }
    let each = experts / groups;
    if !experts.is_multiple_of(groups) || each < 2 {
        let wanted = format!("a divisor of the {experts} experts, for groups of two or more");
        return Err(value(config.path(groups_key), wanted, groups));
    }
    if each * top_groups < top_k {
        let wanted = format!("groups with {top_k} experts or more, of {each} each");
        return Err(value(config.path(open_key), wanted, top_groups));
    }
    Ok(Some(Groups { groups, top_groups, by_max: false }))
}

/// The part that all rows go to: as wide as so many experts as under `key`; none of 0.
pub(super) fn shared(
    config: &Config<'_>,
    key: &str,
    of: &Experts,
) -> Result<Option<SharedExpert>, ModelError> {
    let count = config.whole(key, &(0..=1 << 20))?;
    let (width, activation) = (count.saturating_mul(of.width), of.activation);
    if count == 0 {
        return Ok(None);
    }
    if !WIDTH.contains(&width) {
        return Err(value(
            config.path(key),
            format!("at most {} elements, {} each", WIDTH.end(), of.width),
            count,
        ));
    }
    let ffn = Gated { width, activation, gated: true, biases: GatedBiases::default(), limit: None };
    Ok(Some(SharedExpert { ffn, gated: false }))
}
