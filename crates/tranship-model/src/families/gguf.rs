//! Reading GGUF metadata: the keys of one architecture, with errors that name key, wanted and found.

use super::{real, unsupported, value, whole};
use crate::{ModelError, Names, Part};
use std::ops::RangeInclusive;
use tranship_dtype::DType;
use tranship_weights::{Array, Checkpoint, Value, WeightsError};

/// The metadata of a GGUF file, under the prefix of its architecture.
pub(super) struct Gguf<'a> {
    pub checkpoint: &'a Checkpoint,
    pub architecture: &'a str,
}

impl<'a> Gguf<'a> {
    pub fn new(checkpoint: &'a Checkpoint, architecture: &'a str) -> Gguf<'a> {
        Gguf { checkpoint, architecture }
    }

    /// A key in full: `llama.block_count`.
    pub fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.checkpoint.metadata().get(&self.path(key))
    }

    pub fn whole_or(&self, key: &str, range: &RangeInclusive<u64>) -> Result<Option<u64>, ModelError> {
        let key = self.path(key);
        let found: Option<u64> = self.checkpoint.metadata().optional(&key)?;
        found.map(|v| whole(&key, v, range)).transpose()
    }

    pub fn whole(&self, key: &str, range: &RangeInclusive<u64>) -> Result<u64, ModelError> {
        let path = self.path(key);
        whole(&path, self.checkpoint.metadata().get_u64(&path)?, range)
    }

    /// One number for all layers, or an array with one for each.
    pub fn per_layer(
        &self,
        key: &str,
        layers: usize,
        range: &RangeInclusive<u64>,
    ) -> Result<Option<Vec<u64>>, ModelError> {
        let path = self.path(key);
        let Some(Value::Array(_)) = self.get(key) else {
            return Ok(self.whole_or(key, range)?.map(|v| vec![v; layers]));
        };
        let found: Vec<u64> = self.checkpoint.metadata().require(&path)?;
        if found.len() != layers {
            return Err(value(path, format!("one number, or one for each of {layers} layers"), found.len()));
        }
        found.into_iter().map(|v| whole(&path, v, range)).collect::<Result<_, _>>().map(Some)
    }

    /// A real number. An F32 is read as the shortest decimal that it is nearest to: what was meant by whoever
    /// wrote `1e-5`, and what the same model's `config.json` says.
    pub fn real_or(&self, key: &str, range: &RangeInclusive<f64>) -> Result<Option<f64>, ModelError> {
        let path = self.path(key);
        let Some(exact) = self.checkpoint.metadata().optional::<f64>(&path)? else { return Ok(None) };
        let meant = match self.get(key) {
            Some(Value::F32(v)) => meant(*v),
            _ => exact,
        };
        real(&path, meant, range).map(Some)
    }

    pub fn real(&self, key: &str, range: &RangeInclusive<f64>) -> Result<f64, ModelError> {
        match self.real_or(key, range)? {
            Some(found) => Ok(found),
            None => Ok(self.checkpoint.metadata().require(&self.path(key))?),
        }
    }

    /// One real number for all layers, or an array of F32 with one for each; read as [`Gguf::real_or`] does.
    pub fn reals_per_layer(
        &self,
        key: &str,
        layers: usize,
        range: &RangeInclusive<f64>,
    ) -> Result<Option<Vec<f64>>, ModelError> {
        let path = self.path(key);
        let Some(Value::Array(_)) = self.get(key) else {
            return Ok(self.real_or(key, range)?.map(|v| vec![v; layers]));
        };
        let found: &[f32] = self.checkpoint.metadata().require(&path)?;
        if found.len() != layers {
            return Err(value(path, format!("one number, or one for each of {layers} layers"), found.len()));
        }
        found.iter().map(|&v| real(&path, meant(v), range)).collect::<Result<_, _>>().map(Some)
    }

    pub fn text_or(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.checkpoint.metadata().optional(&self.path(key))?)
    }

    pub fn flag(&self, key: &str) -> Result<bool, ModelError> {
        Ok(self.checkpoint.metadata().require(&self.path(key))?)
    }

    pub fn flag_or(&self, key: &str, absent: bool) -> Result<bool, ModelError> {
        Ok(self.checkpoint.metadata().optional(&self.path(key))?.unwrap_or(absent))
    }

    /// Tokens: the architecture's key, or else the length of the tokenizer's list.
    pub fn vocab(&self, range: &RangeInclusive<u64>) -> Result<u64, ModelError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        if let Some(found) = self.whole_or("vocab_size", range)? {
            return Ok(found);
        }
        let list = match self.checkpoint.metadata().optional::<&Array>(TOKENS)? {
            Some(list) => list.len() as u64,
            None => return Err(self.absent("vocab_size", "an integer, or the list `tokenizer.ggml.tokens`")),
        };
        whole(TOKENS, list, range)
    }

    /// A size that every layer has the same, if only of as many layers as it is of.
    pub fn one_for_all(
        &self,
        key: &str,
        layers: usize,
        range: &RangeInclusive<u64>,
    ) -> Result<Option<u64>, ModelError> {
        let Some(found) = self.per_layer(key, layers, range)? else { return Ok(None) };
        match found.iter().find(|size| **size != found[0]) {
            Some(other) => {
                let wanted = format!("{} in all layers", found[0]);
                Err(value(self.path(key), wanted, other))
            }
            None => Ok(Some(found[0])),
        }
    }

    /// A number that is 0 where there is none.
    pub fn above_zero(&self, key: &str, range: &RangeInclusive<u64>) -> Result<Option<u64>, ModelError> {
        Ok(self.whole_or(key, &(0..=*range.end()))?.filter(|found| *found > 0))
    }

    /// Whether each layer is what the key says, by an array of bools, or of numbers that are not 0.
    pub fn flags_or(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
        let path = self.path(key);
        let found: Vec<bool> = match self.get(key) {
            Some(Value::Array(Array::Bool(flags))) => flags.to_vec(),
            Some(Value::Array(_)) => {
                let numbers: Vec<u64> = self.checkpoint.metadata().require(&path)?;
                numbers.into_iter().map(|number| number != 0).collect()
            }
            _ => return Ok(None),
        };
        if found.len() != layers {
            return Err(value(path, format!("one for each of {layers} layers"), found.len()));
        }
        Ok(Some(found))
    }

    /// Holds that a key, where it is written, says what a family computes without it.
    pub fn only(&self, key: &str, wanted: u64) -> Result<(), ModelError> {
        match self.whole_or(key, &(0..=u64::MAX))?.filter(|found| *found != wanted) {
            Some(found) => Err(unsupported(self.path(key), found, wanted.to_string())),
            None => Ok(()),
        }
    }

    /// Whether the file has a tensor.
    pub fn has(&self, tensor: &str) -> bool {
        self.checkpoint.get(tensor).is_some()
    }

    /// The numbers of a small F32 tensor, each as the shortest decimal that it is nearest to; `None` without it.
    pub fn reals_of(
        &self,
        tensor: &str,
        range: &RangeInclusive<f64>,
    ) -> Result<Option<Vec<f64>>, ModelError> {
        let Some(view) = self.checkpoint.get(tensor) else { return Ok(None) };
        if view.dtype() != DType::F32 || view.shape().len() != 1 {
            let found = format!("{} {:?}", view.dtype(), view.shape());
            return Err(value(tensor, "a tensor f32 [dims / 2]", found));
        }
        let in_range = |bytes: &[u8; 4]| real(tensor, meant(f32::from_le_bytes(*bytes)), range);
        view.bytes().as_chunks::<4>().0.iter().map(in_range).collect::<Result<_, _>>().map(Some)
    }

    /// Whether the file has a part's weight.
    pub fn has_weight(&self, part: Part) -> Result<bool, ModelError> {
        Ok(self.checkpoint.get(&Names::gguf().weight(part, 0)?).is_some())
    }

    /// Whether the file has a part's bias in a layer.
    pub fn has_bias(&self, part: Part, layer: usize) -> Result<bool, ModelError> {
        Ok(self.checkpoint.get(&Names::gguf().bias(part, layer)?).is_some())
    }

    /// The error of a key that is not there.
    pub fn absent(&self, key: &str, wanted: &'static str) -> ModelError {
        let file = self.checkpoint.path().to_owned();
        ModelError::Weights(WeightsError::MissingKey { file, key: self.path(key), wanted })
    }
}

/// The shortest decimal that an F32 is nearest to.
fn meant(stored: f32) -> f64 {
    stored.to_string().parse().unwrap_or(f64::from(stored))
}
