//! JSON in which no object has a key twice: readers differ in which of the two they take.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// Any JSON value whose objects, at every depth, have each key once. The value itself is dropped.
pub(crate) struct Unique;

/// Holds a text of JSON to [`Unique`].
///
/// # Errors
/// What is no JSON, and a key that is there twice.
pub(crate) fn unique(json: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice(json).map(|Unique| ())
}

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Unique, D::Error> {
        d.deserialize_any(AnyValue)
    }
}

struct AnyValue;

macro_rules! scalars {
    ($($visit:ident: $type:ty),*) => {$(
        fn $visit<E: Error>(self, _: $type) -> Result<Unique, E> {
            Ok(Unique)
        }
    )*};
}

impl<'de> Visitor<'de> for AnyValue {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E: Error>(self) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Unique, A::Error> {
        while seq.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value::<Unique>()?;
            if let Some(key) = keys.replace(key) {
                return Err(A::Error::custom(format!("the key `{key}` is there twice")));
            }
        }
        Ok(Unique)
    }
}
