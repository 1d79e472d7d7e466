//! Typed key/value metadata, and reading it with errors that name key, wanted and found.

use crate::{Place, WeightsError};
use std::path::{Path, PathBuf};

/// A metadata value, in the type that the file gives it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(String),
    Array(Array),
}

/// A metadata array, in its element type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Str(Strings),
}

/// Many strings as one text and their ends: 4 bytes of overhead for each, where a `Vec<String>` takes 24 and an
/// allocation. A vocabulary has hundreds of thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    ends: Vec<u32>,
}

impl Strings {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(&self.text[start..end])
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }

    /// Adds one; `false` (and nothing added) where the text would pass 4 GiB.
    pub(crate) fn push(&mut self, s: &str) -> bool {
        let Ok(end) = u32::try_from(self.text.len() + s.len()) else { return false };
        self.text.push_str(s);
        self.ends.push(end);
        true
    }
}

impl Array {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        use Array::*;
        match self {
            U8(v) => v.len(),
            I8(v) => v.len(),
            U16(v) => v.len(),
            I16(v) => v.len(),
            U32(v) => v.len(),
            I32(v) => v.len(),
            U64(v) => v.len(),
            I64(v) => v.len(),
            F32(v) => v.len(),
            F64(v) => v.len(),
            Bool(v) => v.len(),
            Str(v) => v.len(),
        }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of its element type: `u32`, `string`.
    pub fn element_type(&self) -> &'static str {
        use Array::*;
        match self {
            U8(_) => "u8",
            I8(_) => "i8",
            U16(_) => "u16",
            I16(_) => "i16",
            U32(_) => "u32",
            I32(_) => "i32",
            U64(_) => "u64",
            I64(_) => "i64",
            F32(_) => "f32",
            F64(_) => "f64",
            Bool(_) => "bool",
            Str(_) => "string",
        }
    }

    /// Its elements as wide integers; `None` where they are not integers.
    pub fn integers(&self) -> Option<Vec<i128>> {
        fn wide<T: Copy + Into<i128>>(v: &[T]) -> Option<Vec<i128>> {
            Some(v.iter().map(|&x| x.into()).collect())
        }
        use Array::*;
        match self {
            U8(v) => wide(v),
            I8(v) => wide(v),
            U16(v) => wide(v),
            I16(v) => wide(v),
            U32(v) => wide(v),
            I32(v) => wide(v),
            U64(v) => wide(v),
            I64(v) => wide(v),
            F32(_) | F64(_) | Bool(_) | Str(_) => None,
        }
    }
}

impl Value {
    /// The value as a wide integer; `None` where it is not an integer.
    pub fn integer(&self) -> Option<i128> {
        use Value::*;
        Some(match *self {
            U8(v) => v.into(),
            I8(v) => v.into(),
            U16(v) => v.into(),
            I16(v) => v.into(),
            U32(v) => v.into(),
            I32(v) => v.into(),
            U64(v) => v.into(),
            I64(v) => v.into(),
            F32(_) | F64(_) | Bool(_) | Str(_) | Array(_) => return None,
        })
    }

    /// Type and value in short, for errors and listings: `u32 7`, `string "llama"`, `[f32; 64]`.
    pub fn describe(&self) -> String {
        use Value::*;
        match self {
            U8(v) => format!("u8 {v}"),
            I8(v) => format!("i8 {v}"),
            U16(v) => format!("u16 {v}"),
            I16(v) => format!("i16 {v}"),
            U32(v) => format!("u32 {v}"),
            I32(v) => format!("i32 {v}"),
            U64(v) => format!("u64 {v}"),
            I64(v) => format!("i64 {v}"),
            F32(v) => format!("f32 {v}"),
            F64(v) => format!("f64 {v}"),
            Bool(v) => format!("bool {v}"),
            Array(a) => format!("[{}; {}]", a.element_type(), a.len()),
            Str(s) => match s.char_indices().nth(48) {
                Some((end, _)) => format!("string {:?}… of {} bytes", &s[..end], s.len()),
                None => format!("string {s:?}"),
            },
        }
    }
}

/// A Rust type that a metadata value can be read as, without loss.
pub trait FromValue<'a>: Sized {
    /// What is wanted, for the error.
    const WANTED: &'static str;
    /// The value as this type; `None` where it has another type or does not fit.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! from_integer {
    ($($t:ty: $one:literal, $many:literal;)*) => {$(
        impl FromValue<'_> for $t {
            const WANTED: &'static str = $one;
            fn from_value(value: &Value) -> Option<$t> {
                value.integer()?.try_into().ok()
            }
        }
        impl FromValue<'_> for Vec<$t> {
            const WANTED: &'static str = $many;
            fn from_value(value: &Value) -> Option<Vec<$t>> {
                let Value::Array(array) = value else { return None };
                array.integers()?.into_iter().map(|i| i.try_into().ok()).collect()
            }
        }
    )*};
}

// An integer of any stored type is read as any other that holds its value: writers differ in the width they choose.
from_integer! {
    u32: "an integer from 0 to 4294967295", "an array of integers from 0 to 4294967295";
    i32: "a 32-bit integer", "an array of 32-bit integers";
    u64: "an integer that is not negative", "an array of integers that are not negative";
    i64: "a 64-bit integer", "an array of 64-bit integers";
    usize: "a size", "an array of sizes";
}

macro_rules! from_variant {
    ($($t:ty: $wanted:literal, $pattern:pat => $out:expr;)*) => {$(
        impl<'a> FromValue<'a> for $t {
            const WANTED: &'static str = $wanted;
            fn from_value(value: &'a Value) -> Option<$t> {
                match value {
                    $pattern => Some($out),
                    _ => None,
                }
            }
        }
    )*};
}

from_variant! {
    f32: "an f32", Value::F32(v) => *v;
    bool: "a bool", Value::Bool(v) => *v;
    &'a str: "a string", Value::Str(v) => v;
    &'a Array: "an array", Value::Array(v) => v;
    &'a Strings: "an array of strings", Value::Array(Array::Str(v)) => v;
    &'a [f32]: "an array of f32", Value::Array(Array::F32(v)) => v;
    &'a [i32]: "an array of i32", Value::Array(Array::I32(v)) => v;
    &'a [bool]: "an array of bools", Value::Array(Array::Bool(v)) => v;
}

impl FromValue<'_> for f64 {
    const WANTED: &'static str = "an f32 or f64";
    fn from_value(value: &Value) -> Option<f64> {
        match *value {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }
}

/// The metadata of a checkpoint: GGUF's keys, or the strings of a safetensors file's `__metadata__`.
#[derive(Clone, Debug)]
pub struct Metadata {
    file: PathBuf,
    entries: Vec<Entry>,
    /// Positions in `entries`, in the byte order of the keys.
    order: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) byte: u64,
}

impl Metadata {
    /// # Errors
    /// [`WeightsError::DuplicateKey`].
    pub(crate) fn new(file: &Path, entries: Vec<Entry>) -> Result<Metadata, WeightsError> {
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by(|&a, &b| entries[a].key.cmp(&entries[b].key));
        for pair in order.windows(2) {
            let (first, second) = (&entries[pair[0]], &entries[pair[1]]);
            if first.key == second.key {
                let at = Place::key(file, &second.key, second.byte);
                return Err(WeightsError::DuplicateKey { at, first: first.byte });
            }
        }
        Ok(Metadata { file: file.to_owned(), entries, order })
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys and values, in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|e| (e.key.as_str(), &e.value))
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entry(key).map(|e| &e.value)
    }

    /// The value under `key` as a `T`, or `None` where there is no such key.
    ///
    /// # Errors
    /// [`WeightsError::WrongType`] where it is not a `T`.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, WeightsError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        let wrong = || WeightsError::WrongType {
            at: Place::key(&self.file, key, entry.byte),
            wanted: T::WANTED,
            found: entry.value.describe(),
        };
        T::from_value(&entry.value).map(Some).ok_or_else(wrong)
    }

    /// The value under `key` as a `T`.
    ///
    /// # Errors
    /// [`WeightsError::MissingKey`] or [`WeightsError::WrongType`].
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, WeightsError> {
        self.optional(key)?.ok_or_else(|| WeightsError::MissingKey {
            file: self.file.clone(),
            key: key.to_owned(),
            wanted: T::WANTED,
        })
    }

    /// [`Metadata::require`] of an integer that is not negative, of any width.
    ///
    /// # Errors
    /// As [`Metadata::require`].
    pub fn get_u64(&self, key: &str) -> Result<u64, WeightsError> {
        self.require(key)
    }

    /// [`Metadata::require`] of an `f32`.
    ///
    /// # Errors
    /// As [`Metadata::require`].
    pub fn get_f32(&self, key: &str) -> Result<f32, WeightsError> {
        self.require(key)
    }

    /// [`Metadata::require`] of a bool.
    ///
    /// # Errors
    /// As [`Metadata::require`].
    pub fn get_bool(&self, key: &str) -> Result<bool, WeightsError> {
        self.require(key)
    }

    /// [`Metadata::require`] of a string.
    ///
    /// # Errors
    /// As [`Metadata::require`].
    pub fn get_str(&self, key: &str) -> Result<&str, WeightsError> {
        self.require(key)
    }

    /// [`Metadata::require`] of an array of any element type.
    ///
    /// # Errors
    /// As [`Metadata::require`].
    pub fn get_array(&self, key: &str) -> Result<&Array, WeightsError> {
        self.require(key)
    }

    /// [`Metadata::require`] of an array of strings.
    ///
    /// # Errors
    /// As [`Metadata::require`].
    pub fn get_strings(&self, key: &str) -> Result<&Strings, WeightsError> {
        self.require(key)
    }

    /// The byte of the file at which the value of `key` begins (0 where there is no such key).
    pub(crate) fn byte_of(&self, key: &str) -> u64 {
        self.entry(key).map_or(0, |e| e.byte)
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        let found = self.order.binary_search_by(|&i| self.entries[i].key.as_str().cmp(key)).ok()?;
        Some(&self.entries[self.order[found]])
    }
}
