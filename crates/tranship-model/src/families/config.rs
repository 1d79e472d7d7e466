//! Reading a Hugging Face `config.json`: keys by type, with errors that name key, wanted and found.

use super::{real, unsupported, value, whole};
use crate::ModelError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use tranship_dtype::DType;

/// An object of a configuration. `null` reads as an absent key, as it does in Python.
pub(super) struct Config<'a> {
    object: &'a Map<String, Value>,
    /// The keys that the object lies under, each with a point after it.
    prefix: String,
}

impl<'a> Config<'a> {
    /// # Errors
    /// [`ModelError::NotAnObject`].
    pub fn new(config: &'a Value) -> Result<Config<'a>, ModelError> {
        match config {
            Value::Object(object) => Ok(Config { object, prefix: String::new() }),
            other => Err(ModelError::NotAnObject { found: kind(other) }),
        }
    }

    /// The object under `key`.
    pub fn inner(&self, key: &str) -> Result<Option<Config<'a>>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Config { object, prefix: self.path(key) + "." })),
            Some(other) => Err(value(self.path(key), "an object", kind(other))),
        }
    }

    pub fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|v| !v.is_null())
    }

    /// Whether the key is written, `null` included.
    pub fn is_written(&self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    /// The first key with a value that is none of `known`.
    pub fn other_than(&self, known: &[&str]) -> Option<&'a str> {
        let other =
            self.object.iter().find(|(key, value)| !value.is_null() && !known.contains(&key.as_str()));
        other.map(|(key, _)| key.as_str())
    }

    pub fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    fn typed<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let Some(found) = self.get(key) else { return Ok(None) };
        read(found).map(Some).ok_or_else(|| value(self.path(key), wanted, kind(found)))
    }

    fn needed<T>(&self, key: &str, wanted: &str, found: Option<T>) -> Result<T, ModelError> {
        found.ok_or_else(|| ModelError::MissingKey { key: self.path(key), wanted: wanted.into() })
    }

    pub fn whole_or(&self, key: &str, range: &RangeInclusive<u64>) -> Result<Option<u64>, ModelError> {
        let found = self.typed(key, "a whole number", Value::as_u64)?;
        found.map(|v| whole(&self.path(key), v, range)).transpose()
    }

    pub fn whole(&self, key: &str, range: &RangeInclusive<u64>) -> Result<u64, ModelError> {
        self.needed(key, "a whole number", self.whole_or(key, range)?)
    }

    pub fn real_or(&self, key: &str, range: &RangeInclusive<f64>) -> Result<Option<f64>, ModelError> {
        let found = self.typed(key, "a number", Value::as_f64)?;
        found.map(|v| real(&self.path(key), v, range)).transpose()
    }

    pub fn real(&self, key: &str, range: &RangeInclusive<f64>) -> Result<f64, ModelError> {
        self.needed(key, "a number", self.real_or(key, range)?)
    }

    pub fn text_or(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        self.typed(key, "a text", Value::as_str)
    }

    pub fn text(&self, key: &str) -> Result<&'a str, ModelError> {
        self.needed(key, "a text", self.text_or(key)?)
    }

    pub fn flag_or(&self, key: &str, absent: bool) -> Result<bool, ModelError> {
        Ok(self.typed(key, "true or false", Value::as_bool)?.unwrap_or(absent))
    }

    /// The elements of a list, each read by `read`.
    fn list<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&str, &'a Value) -> Result<T, ModelError>,
    ) -> Result<Option<Vec<T>>, ModelError> {
        let Some(items) = self.typed(key, wanted, Value::as_array)? else { return Ok(None) };
        let read = |(i, item)| read(&format!("{}[{i}]", self.path(key)), item);
        items.iter().enumerate().map(read).collect::<Result<_, _>>().map(Some)
    }

    pub fn wholes_or(&self, key: &str, range: &RangeInclusive<u64>) -> Result<Option<Vec<u64>>, ModelError> {
        self.list(key, "a list of whole numbers", |key, item| {
            let found = item.as_u64().ok_or_else(|| value(key, "a whole number", kind(item)))?;
            whole(key, found, range)
        })
    }

    pub fn reals(&self, key: &str, range: &RangeInclusive<f64>) -> Result<Vec<f64>, ModelError> {
        let found = self.list(key, "a list of numbers", |key, item| {
            let found = item.as_f64().ok_or_else(|| value(key, "a number", kind(item)))?;
            real(key, found, range)
        });
        self.needed(key, "a list of numbers", found?)
    }

    /// A least and a greatest value. What has no bound above may be `null`, or infinite as `transformers` writes it
    /// where JSON has no number for it: `{"__float__": "Infinity"}`.
    pub fn limits(
        &self,
        key: &str,
        range: &RangeInclusive<f64>,
    ) -> Result<Option<[Option<f64>; 2]>, ModelError> {
        let limits = self.list(key, "a list of two numbers", |key, item| match item {
            Value::Null => Ok(None),
            Value::Object(tag) if tag.get("__float__").and_then(Value::as_str) == Some("Infinity") => {
                Ok(None)
            }
            other => {
                let found = other.as_f64().ok_or_else(|| value(key, "a number", kind(other)))?;
                real(key, found, range).map(Some)
            }
        })?;
        let Some(limits) = limits else { return Ok(None) };
        let wrong = |found| value(self.path(key), "a least and a greatest number", found);
        let [least, most] = limits[..] else { return Err(wrong(format!("{} of them", limits.len()))) };
        match (least, most) {
            (Some(least), Some(most)) if least > most => Err(wrong(format!("{least:?} and {most:?}"))),
            _ => Ok(Some([least, most])),
        }
    }

    pub fn texts_or(&self, key: &str) -> Result<Option<Vec<&'a str>>, ModelError> {
        let text = |key: &str, item: &'a Value| item.as_str().ok_or_else(|| value(key, "a text", kind(item)));
        self.list(key, "a list of texts", text)
    }

    /// The one of two keys for the same thing that is written, the first where neither is; both must say the same.
    pub fn either<'k>(&self, [key, other]: [&'k str; 2]) -> Result<&'k str, ModelError> {
        match (self.get(key), self.get(other)) {
            (Some(a), Some(b)) if a != b => {
                Err(value(self.path(other), format!("{}, as `{key}`", kind(a)), kind(b)))
            }
            (None, Some(_)) => Ok(other),
            _ => Ok(key),
        }
    }

    /// Holds that the key is written, if only as `null`: of keys for which an absent one means something else.
    pub fn stated(&self, key: &str, wanted: &str) -> Result<(), ModelError> {
        self.needed(key, wanted, self.is_written(key).then_some(()))
    }

    /// Holds that the key is absent, or has the one value that programs are written for.
    pub fn only(&self, key: &str, supported: impl Into<Value>) -> Result<(), ModelError> {
        let supported = supported.into();
        match self.get(key) {
            Some(found)
                if *found != supported && found.as_f64().is_none_or(|f| Some(f) != supported.as_f64()) =>
            {
                Err(unsupported(self.path(key), kind(found), kind(&supported)))
            }
            _ => Ok(()),
        }
    }

    /// The declared type of weights: `dtype`, or `torch_dtype` before transformers 5.
    pub fn dtype(&self) -> Result<Option<DType>, ModelError> {
        for key in ["dtype", "torch_dtype"] {
            let Some(name) = self.text_or(key)? else { continue };
            return match name {
                "float64" => Ok(Some(DType::F64)),
                "float32" => Ok(Some(DType::F32)),
                "float16" => Ok(Some(DType::F16)),
                "bfloat16" => Ok(Some(DType::BF16)),
                other => {
                    Err(value(self.path(key), "float64, float32, float16 or bfloat16", format!("{other:?}")))
                }
            };
        }
        Ok(None)
    }
}

/// A value in short: what type it is, and a scalar's text.
fn kind(found: &Value) -> String {
    match found {
        Value::Null => "null".into(),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".into(),
        scalar => scalar.to_string(),
    }
}
