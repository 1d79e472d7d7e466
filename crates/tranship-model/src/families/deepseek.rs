//! DeepSeek-V3 and DeepSeek-V4.
//!
//! Defaults of absent keys, as `transformers` defines them: `q_lora_rank`, `rope_scaling` and `topk_method` may be
//! absent; `rope_interleave` is true; `moe_layer_freq` is 1; `attention_bias` and `tie_word_embeddings` are false; of V4,
//! `layer_types` is read off `compress_ratios`, `mlp_layer_types` off `num_hash_layers`, and `compress_rates` is 4 and
//! 128. The normalization of V3's compressed rows and queries has an epsilon of its own, 1e-6, whatever `rms_norm_eps`
//! says. Layers after the last, which predict further tokens, are left out.
//!
//! Names of V4 are those of its released files, which have neither `model.` nor `self_attn` in them.

use super::config::Config;
use super::{EPS, LAYERS, WIDTH, ffn, layers, rope, unsupported, value};
use crate::{
    CompressedAttention, Compressor, Experts, Ffn, HyperConnections, Indexer, LatentAttention, LayerSpec,
    Mixer, ModelError, ModelSpec, Names, Part, Residual, RopeSpec, Routing,
};
use std::ops::RangeInclusive;
use tranship_program::ops::{RopeStyle, Route, RouteBias, Scaling, Score};

/// Of the normalizations within latent attention.
const LATENT_EPS: f64 = 1e-6;

const RATE: RangeInclusive<u64> = 2..=1 << 20;
const SCALE: RangeInclusive<f64> = 1e-9..=1e9;

/// `model_type: "deepseek_v3"`
pub(super) fn v3(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    config.only("topk_method", "noaux_tc")?;
    config.only("scoring_func", "sigmoid")?;
    config.only("moe_layer_freq", 1)?;
    let dense = config.whole("first_k_dense_replace", &(0..=*LAYERS.end()))? as usize;
    let latent = latent(config, true)?;
    let names = latent_names(&latent, Names::hugging_face()).with(ffn::UNDER_MLP);
    layers::spec(config, "rms_norm_eps", names, |layer| {
        let part = if layer < dense { ffn::dense(config)? } else { Ffn::Experts(v3_experts(config)?) };
        Ok(LayerSpec::new(Mixer::Latent(latent.clone()), part))
    })
}

fn v3_experts(config: &Config<'_>) -> Result<Experts, ModelError> {
    let normalize = config.flag_or("norm_topk_prob", true)?;
    let route =
        |experts| ffn::grouped(config, "num_experts_per_tok", ("n_group", "topk_group"), normalize, experts);
    let experts = ffn::experts(config, "n_routed_experts", "moe_intermediate_size", route)?;
    Ok(Experts { shared: ffn::shared(config, "n_shared_experts", &experts)?, ..experts })
}

/// Latent attention by DeepSeek-V3's keys; `turned` says whether the shared key is rotated.
pub(super) fn latent(config: &Config<'_>, turned: bool) -> Result<LatentAttention, ModelError> {
    let heads = config.whole("num_attention_heads", &WIDTH)?;
    let size = |key| config.whole(key, &WIDTH);
    let (key_dim, rope_dim) = (size("qk_nope_head_dim")?, size("qk_rope_head_dim")?);
    let (scaling, rope) = if turned {
        let style = match config.flag_or("rope_interleave", true)? {
            true => RopeStyle::Interleaved,
            false => RopeStyle::Half,
        };
        rope::even("qk_rope_head_dim", rope_dim)?;
        let (theta, scaling) = rope::from_config(config, rope::DEFAULT_THETA)?;
        let spec = RopeSpec { style, ..rope::halves(rope_dim, theta, scaling.clone()) };
        (scaling, Some(spec))
    } else {
        (Scaling::None, None)
    };
    Ok(LatentAttention {
        heads,
        query_rank: config.whole_or("q_lora_rank", &WIDTH)?,
        latent: size("kv_lora_rank")?,
        key_dim,
        rope_dim,
        value_dim: size("v_head_dim")?,
        scale: ((key_dim + rope_dim) as f64).sqrt().recip() * score_factor(config, &scaling)?,
        rope,
        eps: LATENT_EPS,
        biased: config.flag_or("attention_bias", false)?,
    })
}

/// What stretched frequencies multiply scores by in DeepSeek's models: `m²` with `m = 0.1 · mscale_all_dim · ln(factor) + 1`.
fn score_factor(config: &Config<'_>, scaling: &Scaling) -> Result<f64, ModelError> {
    let (Scaling::Yarn { factor, .. } | Scaling::Linear { factor } | Scaling::Llama3 { factor, .. }) =
        scaling
    else {
        return Ok(1.0);
    };
    let mut all_dim = None;
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(inner) = config.inner(key)? {
            all_dim = all_dim.or(inner.real_or("mscale_all_dim", &(0.0..=1e6))?);
        }
    }
    let m = all_dim.filter(|m| *m != 0.0 && *factor > 1.0).map_or(1.0, |m| 0.1 * m * factor.ln() + 1.0);
    Ok(m * m)
}

/// The names of latent attention: its two projections down are rows of one tensor.
pub(super) fn latent_names(latent: &LatentAttention, mut names: Names) -> Names {
    let (rank, all) = (latent.latent, latent.latent + latent.rope_dim);
    let down = "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.{}";
    names.set(Part::Latent, format!("{down}[0..{rank}]"));
    names.set(Part::SharedKey, format!("{down}[{rank}..{all}]"));
    names.with(&[
        (Part::QueryDown, "model.layers.{layer}.self_attn.q_a_proj.{}"),
        (Part::QueryDownNorm, "model.layers.{layer}.self_attn.q_a_layernorm.{}"),
        (Part::QueryUp, "model.layers.{layer}.self_attn.q_b_proj.{}"),
        (Part::LatentNorm, "model.layers.{layer}.self_attn.kv_a_layernorm.{}"),
        (Part::LatentUp, "model.layers.{layer}.self_attn.kv_b_proj.{}"),
    ])
}

/// The kinds of attention of DeepSeek-V4.
#[derive(Clone, Copy, PartialEq)]
enum Attends {
    Window,
    /// With overlap, and an indexer.
    Sparse,
    /// At a high rate.
    Heavy,
}

const SPARSE: &str = "compressed_sparse_attention";
const HEAVY: &str = "heavily_compressed_attention";

/// `model_type: "deepseek_v4"`
pub(super) fn v4(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    config.only("attention_bias", false)?;
    config.only("num_key_value_heads", 1)?;
    config.only("scoring_func", "sqrtsoftplus")?;
    config.only("topk_method", "noaux_tc")?;
    config.only("norm_topk_prob", true)?;
    let (kinds, rates) = (kinds(config)?, rates(config)?);
    let hashed = hashed(config)?;
    let streams = config.whole("hc_mult", &(2..=64))?;
    let hyper = HyperConnections {
        iterations: config.whole("hc_sinkhorn_iters", &(1..=1000))?,
        eps: config.real("hc_eps", &EPS)?,
    };
    let spec = layers::spec(config, "rms_norm_eps", Names::of(V4_NAMES), |layer| {
        let mixer = Mixer::Compressed(shared_rows(config, kinds[layer], rates)?);
        let mut experts = v4_experts(config)?;
        experts.routing.by_token = hashed[layer];
        if hashed[layer] {
            experts.routing.route.bias = None;
        }
        let residual = Residual::default();
        let (mixer, ffn) = (Some(mixer), Some(Ffn::Experts(experts)));
        Ok(LayerSpec { mixer, mixer_residual: residual, ffn, ffn_residual: residual })
    })?;
    Ok(ModelSpec { streams, hyper: Some(hyper), ..spec })
}

/// What each layer's attention is: by its name, or by its rate.
fn kinds(config: &Config<'_>) -> Result<Vec<Attends>, ModelError> {
    let of_name = |name: &&str| match *name {
        SPARSE => Attends::Sparse,
        HEAVY => Attends::Heavy,
        _ => Attends::Window,
    };
    if let Some(types) = layers::types(config, &["sliding_attention", SPARSE, HEAVY])? {
        return Ok(types.iter().map(of_name).collect());
    }
    let key = "compress_ratios";
    let Some(ratios) = config.wholes_or(key, &(0..=*RATE.end()))? else {
        let wanted = "what each layer is, or `compress_ratios`".into();
        return Err(ModelError::MissingKey { key: config.path("layer_types"), wanted });
    };
    let count = layers::count(config)? as usize;
    if ratios.len() < count {
        return Err(value(config.path(key), format!("a rate for each of {count} layers"), ratios.len()));
    }
    let of_rate = |(layer, rate): (usize, &u64)| match rate {
        0 => Ok(Attends::Window),
        4 => Ok(Attends::Sparse),
        128 => Ok(Attends::Heavy),
        other => Err(unsupported(format!("{}[{layer}]", config.path(key)), other, "0, 4, 128")),
    };
    ratios.iter().take(count).enumerate().map(of_rate).collect()
}

/// Tokens for a compressed row of a sparse layer, and of a heavy one.
fn rates(config: &Config<'_>) -> Result<[u64; 2], ModelError> {
    let Some(inner) = config.inner("compress_rates")? else { return Ok([4, 128]) };
    Ok([inner.whole(SPARSE, &RATE)?, inner.whole(HEAVY, &RATE)?])
}

/// Whether each layer's experts are those of the token.
fn hashed(config: &Config<'_>) -> Result<Vec<bool>, ModelError> {
    let count = layers::count(config)? as usize;
    let key = "mlp_layer_types";
    let Some(types) = config.texts_or(key)? else {
        let hashed = config.whole("num_hash_layers", &(0..=*LAYERS.end()))? as usize;
        return Ok((0..count).map(|layer| layer < hashed).collect());
    };
    layers::one_each(config, key, types.len())?;
    let of_name = |(layer, name): (usize, &&str)| match *name {
        "hash_moe" => Ok(true),
        "moe" => Ok(false),
        other => {
            Err(value(format!("{}[{layer}]", config.path(key)), "hash_moe or moe", format!("{other:?}")))
        }
    };
    types.iter().enumerate().map(of_name).collect()
}

fn shared_rows(
    config: &Config<'_>,
    kind: Attends,
    [sparse, heavy]: [u64; 2],
) -> Result<CompressedAttention, ModelError> {
    let size = |key| config.whole(key, &WIDTH);
    let (heads, head_dim) = (size("num_attention_heads")?, size("head_dim")?);
    let dims = config.whole("qk_rope_head_dim", &(2..=head_dim))?;
    rope::even("qk_rope_head_dim", dims)?;
    let output_groups = config.whole("o_groups", &(1..=heads))?;
    if !heads.is_multiple_of(output_groups) {
        return Err(value("o_groups", format!("a divisor of the {heads} heads"), output_groups));
    }
    let (theta, compressed_theta) = ("rope_theta", "compress_rope_theta");
    let (theta, scaling) = match kind {
        // Layers that only slide are not stretched, whatever `rope_scaling` says.
        Attends::Window => {
            let before = (theta, config.real(theta, &super::THETA)?);
            rope::of_layer_type(config, "main", before, None)?
        }
        _ => {
            let before = (compressed_theta, config.real(compressed_theta, &super::THETA)?);
            let (theta, scaling) = rope::of_layer_type(config, "compress", before, Some("rope_scaling"))?;
            (theta, plain_yarn(scaling))
        }
    };
    let indexer = match kind {
        Attends::Sparse => Some(Indexer {
            heads: size("index_n_heads")?,
            head_dim: config.whole("index_head_dim", &(dims..=*WIDTH.end()))?,
            top_k: config.whole("index_topk", &(1..=1 << 16))?,
        }),
        _ => None,
    };
    let compressor = match kind {
        Attends::Window => None,
        Attends::Sparse => Some(Compressor { rate: sparse, overlap: true, indexer }),
        Attends::Heavy => Some(Compressor { rate: heavy, overlap: false, indexer }),
    };
    Ok(CompressedAttention {
        heads,
        head_dim,
        query_rank: size("q_lora_rank")?,
        window: config.whole("sliding_window", &(1..=1 << 31))?,
        scale: (head_dim as f64).sqrt().recip(),
        rope: RopeSpec { style: RopeStyle::Interleaved, ..rope::halves(dims, theta, scaling) },
        output_groups,
        output_rank: size("o_lora_rank")?,
        compressor,
    })
}

/// DeepSeek-V4 stretches frequencies as YaRN does, and multiplies cosine and sine by nothing.
pub(super) fn plain_yarn(scaling: Scaling) -> Scaling {
    match scaling {
        Scaling::Yarn { factor, original, beta_fast, beta_slow, whole, .. } => {
            Scaling::Yarn { factor, original, beta_fast, beta_slow, magnitude: 1.0, whole }
        }
        other => other,
    }
}

fn v4_experts(config: &Config<'_>) -> Result<Experts, ModelError> {
    let scale = config.real("routed_scaling_factor", &SCALE)?;
    let route = |experts| {
        let top_k = config.whole("num_experts_per_tok", &(1..=experts))?;
        let (score, bias) = (Score::SqrtSoftplus, Some(RouteBias::Choice));
        Ok(Route { top_k, score, bias, normalize: true, eps: 1e-20, scale, groups: None })
    };
    let limit = Some(config.real("swiglu_limit", &(1e-6..=1e9))?);
    let experts = ffn::experts(config, "n_routed_experts", "moe_intermediate_size", route)?;
    let mut shared = ffn::shared(config, "n_shared_experts", &experts)?;
    if let Some(shared) = &mut shared {
        shared.ffn.limit = limit;
    }
    let routing = Routing { by_token: false, ..experts.routing };
    Ok(Experts { limit, shared, routing, ..experts })
}

/// Of released files.
const V4_NAMES: &[(Part, &str)] = &[
    (Part::Table, "embed.{}"),
    (Part::FinalNorm, "norm.{}"),
    (Part::Head, "head.{}"),
    (Part::HeadStreams, "hc_head_fn"),
    (Part::HeadStreamsBase, "hc_head_base"),
    (Part::HeadStreamsScale, "hc_head_scale"),
    (Part::MixerNorm, "layers.{layer}.attn_norm.{}"),
    (Part::MixerStreams, "layers.{layer}.hc_attn_fn"),
    (Part::MixerStreamsBase, "layers.{layer}.hc_attn_base"),
    (Part::MixerStreamsScale, "layers.{layer}.hc_attn_scale"),
    (Part::QueryDown, "layers.{layer}.attn.wq_a.{}"),
    (Part::QueryDownNorm, "layers.{layer}.attn.q_norm.{}"),
    (Part::QueryUp, "layers.{layer}.attn.wq_b.{}"),
    (Part::Row, "layers.{layer}.attn.wkv.{}"),
    (Part::RowNorm, "layers.{layer}.attn.kv_norm.{}"),
    (Part::Sinks, "layers.{layer}.attn.attn_sink"),
    (Part::OutputDown, "layers.{layer}.attn.wo_a.{}"),
    (Part::Output, "layers.{layer}.attn.wo_b.{}"),
    (Part::CompressorRow, "layers.{layer}.attn.compressor.wkv.{}"),
    (Part::CompressorGate, "layers.{layer}.attn.compressor.wgate.{}"),
    (Part::CompressorBias, "layers.{layer}.attn.compressor.ape"),
    (Part::CompressorNorm, "layers.{layer}.attn.compressor.norm.{}"),
    (Part::IndexerRow, "layers.{layer}.attn.indexer.compressor.wkv.{}"),
    (Part::IndexerGate, "layers.{layer}.attn.indexer.compressor.wgate.{}"),
    (Part::IndexerBias, "layers.{layer}.attn.indexer.compressor.ape"),
    (Part::IndexerNorm, "layers.{layer}.attn.indexer.compressor.norm.{}"),
    (Part::IndexerQuery, "layers.{layer}.attn.indexer.wq_b.{}"),
    (Part::IndexerWeights, "layers.{layer}.attn.indexer.weights_proj.{}"),
    (Part::FfnNorm, "layers.{layer}.ffn_norm.{}"),
    (Part::FfnStreams, "layers.{layer}.hc_ffn_fn"),
    (Part::FfnStreamsBase, "layers.{layer}.hc_ffn_base"),
    (Part::FfnStreamsScale, "layers.{layer}.hc_ffn_scale"),
    (Part::Router, "layers.{layer}.ffn.gate.{}"),
    (Part::RouterBias, "layers.{layer}.ffn.gate.bias"),
    (Part::RouterTable, "layers.{layer}.ffn.gate.tid2eid"),
    (Part::ExpertGate, "layers.{layer}.ffn.experts.{expert}.w1.{}"),
    (Part::ExpertUp, "layers.{layer}.ffn.experts.{expert}.w3.{}"),
    (Part::ExpertDown, "layers.{layer}.ffn.experts.{expert}.w2.{}"),
    (Part::SharedGate, "layers.{layer}.ffn.shared_experts.w1.{}"),
    (Part::SharedUp, "layers.{layer}.ffn.shared_experts.w3.{}"),
    (Part::SharedDown, "layers.{layer}.ffn.shared_experts.w2.{}"),
];
