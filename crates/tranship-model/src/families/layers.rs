//! What all families have: widths, names and layers put together to a spec, and lists with an entry for each layer.

use super::config::Config;
use super::{EPS, LAYERS, POSITIONS, VOCAB, WIDTH, value, whole};
use crate::{LayerSpec, ModelError, ModelSpec, Names};

/// The keys that families call by names of their own.
pub(super) struct Keys {
    /// Of what is added to the mean square.
    pub eps: &'static str,
    /// Of the positions that the model was made for.
    pub positions: &'static str,
}

/// The spec of a model with the keys that nearly all families write alike, and layers that `layer` gives by their
/// number. The head is its own unless `tie_word_embeddings` says else, the epsilon that under `eps_key`.
pub(super) fn spec(
    config: &Config<'_>,
    eps_key: &'static str,
    names: Names,
    layer: impl FnMut(usize) -> Result<LayerSpec, ModelError>,
) -> Result<ModelSpec, ModelError> {
    spec_by(config, Keys { eps: eps_key, positions: "max_position_embeddings" }, names, layer)
}

/// [`spec`] by other keys.
pub(super) fn spec_by(
    config: &Config<'_>,
    keys: Keys,
    names: Names,
    layer: impl FnMut(usize) -> Result<LayerSpec, ModelError>,
) -> Result<ModelSpec, ModelError> {
    let layers = (0..count(config)? as usize).map(layer).collect::<Result<_, _>>()?;
    Ok(ModelSpec {
        architecture: config.text("model_type")?.to_owned(),
        hidden: config.whole("hidden_size", &WIDTH)?,
        streams: 1,
        hyper: None,
        vocab: config.whole("vocab_size", &VOCAB)?,
        max_positions: config.whole(keys.positions, &POSITIONS)?,
        norm_eps: config.real(keys.eps, &EPS)?,
        gain_offset: 0.0,
        embed_scale: 1.0,
        logit_scale: 1.0,
        logit_softcap: None,
        tied_head: config.flag_or("tie_word_embeddings", false)?,
        layers,
        names,
        dtype: config.dtype()?,
    })
}

/// A spec whose head is the embedding table unless `tie_word_embeddings` says else.
pub(super) fn tied(config: &Config<'_>, spec: ModelSpec) -> Result<ModelSpec, ModelError> {
    Ok(ModelSpec { tied_head: config.flag_or("tie_word_embeddings", true)?, ..spec })
}

/// How many layers there are: as many as `num_hidden_layers` says, or where it is not written, as `layers_block_type`
/// lists, which Nemotron-H's class writes alone.
pub(super) fn count(config: &Config<'_>) -> Result<u64, ModelError> {
    let (key, list) = ("num_hidden_layers", "layers_block_type");
    match config.texts_or(list)? {
        Some(types) if !config.is_written(key) => whole(&config.path(list), types.len() as u64, &LAYERS),
        _ => config.whole(key, &LAYERS),
    }
}

/// `layer_types`: one of `known` for each layer.
pub(super) fn types<'a>(config: &Config<'a>, known: &[&str]) -> Result<Option<Vec<&'a str>>, ModelError> {
    let key = "layer_types";
    let Some(types) = config.texts_or(key)? else { return Ok(None) };
    one_each(config, key, types.len())?;
    if let Some((layer, other)) = types.iter().enumerate().find(|(_, found)| !known.contains(found)) {
        let key = format!("{}[{layer}]", config.path(key));
        return Err(value(key, known.join(" or "), format!("{other:?}")));
    }
    Ok(Some(types))
}

/// Holds that a list has an entry for each layer.
pub(super) fn one_each(config: &Config<'_>, key: &str, found: usize) -> Result<(), ModelError> {
    let layers = count(config)?;
    if found as u64 == layers {
        return Ok(());
    }
    Err(value(config.path(key), format!("an entry for each of {layers} layers"), found))
}
