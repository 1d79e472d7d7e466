//! Metadata values of GGUF: a type number, then the value.

use super::cursor::{Cursor, Of};
use crate::{Array, Strings, Value, WeightsError};

/// The value of `key`, from its type number on.
pub(super) fn value(c: &mut Cursor<'_>, key: &str) -> Result<Value, WeightsError> {
    let of = Of::Key(key);
    let at = c.at();
    let id = c.u32("a value type", of)?;
    let what = "a value";
    Ok(match id {
        0 => Value::U8(u8::from_le_bytes(c.fixed(what, of)?)),
        1 => Value::I8(i8::from_le_bytes(c.fixed(what, of)?)),
        2 => Value::U16(u16::from_le_bytes(c.fixed(what, of)?)),
        3 => Value::I16(i16::from_le_bytes(c.fixed(what, of)?)),
        4 => Value::U32(u32::from_le_bytes(c.fixed(what, of)?)),
        5 => Value::I32(i32::from_le_bytes(c.fixed(what, of)?)),
        6 => Value::F32(f32::from_le_bytes(c.fixed(what, of)?)),
        7 => Value::Bool(bools(c, 1, key)?[0]),
        8 => Value::Str(c.string("a string", of)?.to_owned()),
        9 => Value::Array(array(c, key)?),
        10 => Value::U64(u64::from_le_bytes(c.fixed(what, of)?)),
        11 => Value::I64(i64::from_le_bytes(c.fixed(what, of)?)),
        12 => Value::F64(f64::from_le_bytes(c.fixed(what, of)?)),
        _ => return Err(WeightsError::ValueType { at: c.place(of, at), id }),
    })
}

/// An array, from its element type number on.
fn array(c: &mut Cursor<'_>, key: &str) -> Result<Array, WeightsError> {
    let of = Of::Key(key);
    let at = c.at();
    let id = c.u32("an element type", of)?;
    let size = match id {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8, // a string has at least its length
        9 => return Err(WeightsError::NestedArray { at: c.place(of, at) }),
        _ => return Err(WeightsError::ValueType { at: c.place(of, at), id }),
    };
    let count = c.count(size, "array elements", of)?;
    match id {
        7 => return Ok(Array::Bool(bools(c, count, key)?)),
        8 => return Ok(Array::Str(strings(c, count, key)?)),
        _ => {}
    }
    // `count` was held against the rest of the header, so the product is small.
    let bytes = c.take(count * size, "array elements", of)?;
    Ok(match id {
        0 => Array::U8(bytes.to_vec()),
        1 => Array::I8(numbers(bytes, i8::from_le_bytes)),
        2 => Array::U16(numbers(bytes, u16::from_le_bytes)),
        3 => Array::I16(numbers(bytes, i16::from_le_bytes)),
        4 => Array::U32(numbers(bytes, u32::from_le_bytes)),
        5 => Array::I32(numbers(bytes, i32::from_le_bytes)),
        6 => Array::F32(numbers(bytes, f32::from_le_bytes)),
        10 => Array::U64(numbers(bytes, u64::from_le_bytes)),
        11 => Array::I64(numbers(bytes, i64::from_le_bytes)),
        _ => Array::F64(numbers(bytes, f64::from_le_bytes)),
    })
}

fn numbers<const N: usize, T>(bytes: &[u8], read: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| read(chunk)).collect()
}

fn bools(c: &mut Cursor<'_>, count: u64, key: &str) -> Result<Vec<bool>, WeightsError> {
    let at = c.at();
    let bytes = c.take(count, "a truth value", Of::Key(key))?;
    if let Some(i) = bytes.iter().position(|&b| b > 1) {
        return Err(WeightsError::Bool { at: c.place(Of::Key(key), at + i as u64), found: bytes[i] });
    }
    Ok(bytes.iter().map(|&b| b == 1).collect())
}

fn strings(c: &mut Cursor<'_>, count: u64, key: &str) -> Result<Strings, WeightsError> {
    let mut out = Strings::default();
    for _ in 0..count {
        // The header's cap is far below 4 GiB, so the text always has room.
        let fits = out.push(c.string("a string", Of::Key(key))?);
        debug_assert!(fits, "a header within its cap has less than 4 GiB of text");
    }
    Ok(out)
}
