//! Reading JSON so that order, duplicates and the byte of a fault survive.

use crate::{Item, Place, WeightsError};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};
use std::{borrow::Cow, fmt, marker::PhantomData, path::Path};

/// The members of a JSON object in their order, duplicates included.
pub(crate) struct Pairs<'a, V>(pub(crate) Vec<(Cow<'a, str>, V)>);

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for Pairs<'a, V> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Members<'a, V>(PhantomData<(&'a (), V)>);
        impl<'de: 'a, 'a, V: Deserialize<'de>> Visitor<'de> for Members<'a, V> {
            type Value = Pairs<'a, V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    pairs.push((name, map.next_value()?));
                }
                Ok(Pairs(pairs))
            }
        }
        d.deserialize_map(Members(PhantomData))
    }
}

/// A string that is borrowed where it has no escapes.
#[derive(Deserialize)]
pub(crate) struct Name<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// A text that JSON is read from, for turning places in it into bytes of the file.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    pub(crate) file: &'a Path,
    pub(crate) text: &'a str,
    /// The byte of the file at which `text` begins.
    pub(crate) base: u64,
}

impl<'a> Text<'a> {
    /// The text of `bytes`.
    ///
    /// # Errors
    /// [`WeightsError::Utf8`].
    pub(crate) fn new(file: &'a Path, bytes: &'a [u8], base: u64) -> Result<Text<'a>, WeightsError> {
        let text = std::str::from_utf8(bytes).map_err(|e| WeightsError::Utf8 {
            at: Place::header(file, base + e.valid_up_to() as u64),
            what: "JSON text",
        })?;
        Ok(Text { file, text, base })
    }

    /// The text as a `T`.
    ///
    /// # Errors
    /// [`WeightsError::Json`] at the byte where it stopped being one.
    pub(crate) fn read<T: Deserialize<'a>>(self) -> Result<T, WeightsError> {
        serde_json::from_str(self.text).map_err(|e| self.fault(&e, Item::Header))
    }

    /// The text as an object, in which numbers that JSON has none for may be written as Python writes them. Each is
    /// given as newer files have it: `Infinity` as `{"__float__": "Infinity"}`.
    ///
    /// # Errors
    /// As [`Text::read`].
    pub(crate) fn read_with_infinities(self) -> Result<Map<String, Value>, WeightsError> {
        self.read().or_else(|fault| serde_json::from_str(&tagged(self.text)).map_err(|_| fault))
    }

    /// A member of the object in this text: where it is, and reading it.
    pub(crate) fn member(self, raw: &'a RawValue) -> Text<'a> {
        // A raw value borrows from the text that it was read from, so this is its position there.
        let start = (raw.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        Text { text: raw.get(), base: self.base + start as u64, ..self }
    }

    /// [`Text::read`] of what is said of one tensor.
    pub(crate) fn read_of<T: Deserialize<'a>>(self, tensor: &str) -> Result<T, WeightsError> {
        serde_json::from_str(self.text).map_err(|e| self.fault(&e, Item::Tensor(tensor.to_owned())))
    }

    /// [`Text::read`] of the value of one key.
    pub(crate) fn read_key<T: Deserialize<'a>>(self, key: &str) -> Result<T, WeightsError> {
        serde_json::from_str(self.text).map_err(|e| self.fault(&e, Item::Key(key.to_owned())))
    }

    fn fault(self, e: &serde_json::Error, item: Item) -> WeightsError {
        let line: usize =
            self.text.split_inclusive('\n').take(e.line().saturating_sub(1)).map(str::len).sum();
        let byte = self.base + (line + e.column().saturating_sub(1)).min(self.text.len()) as u64;
        let at = Box::new(Place { file: self.file.to_owned(), item, byte });
        // serde_json ends its message with the line and column, which the byte already says.
        let message = e.to_string();
        let reason = message.rsplit_once(" at line ").map_or(message.as_str(), |(reason, _)| reason);
        WeightsError::Json { at, reason: reason.to_owned() }
    }
}

/// A text with `Infinity`, `-Infinity` and `NaN` outside strings as objects.
fn tagged(text: &str) -> String {
    let (mut tagged, mut rest) = (String::with_capacity(text.len()), text);
    let (mut quoted, mut escaped) = (false, false);
    while let Some(next) = rest.chars().next() {
        let word = ["Infinity", "-Infinity", "NaN"].into_iter().find(|word| rest.starts_with(word));
        let taken = match word.filter(|_| !quoted) {
            Some(word) => {
                tagged += &format!("{{\"__float__\": \"{word}\"}}");
                word.len()
            }
            None => {
                tagged.push(next);
                next.len_utf8()
            }
        };
        quoted ^= next == '"' && !escaped;
        escaped = quoted && next == '\\' && !escaped;
        rest = &rest[taken..];
    }
    tagged
}
