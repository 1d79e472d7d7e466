//! Casts between element types: reals through F32, integers through their values.

use crate::{TensorError, decode, encode, scalar};
use tranship_dtype::{Class, DType};

/// Elements converted at a time: a whole number of blocks of every type.
const CHUNK: usize = 4096;

/// Converts whole rows of `from` into `to`; the two slices hold the same number of elements.
pub(crate) fn cast(from: DType, bytes: &[u8], to: DType, out: &mut [u8]) -> Result<(), TensorError> {
    match (from.is_real(), to.is_real()) {
        (true, true) => cast_real(from, bytes, to, out),
        (false, false) => cast_integer(from, bytes, to, out),
        _ => Err(TensorError::NoCast { from, to }),
    }
}

fn cast_real(from: DType, bytes: &[u8], to: DType, out: &mut [u8]) -> Result<(), TensorError> {
    let chunk_bytes = |d: DType| CHUNK / d.block_len() * d.block_bytes();
    // From F64 to a float below F32 goes by way of F32 without being rounded twice.
    let to_odd = from == DType::F64 && to.class() == Class::Float && to != DType::F32;
    let mut values = vec![0.0; CHUNK];
    let chunks = bytes.chunks(chunk_bytes(from)).zip(out.chunks_mut(chunk_bytes(to)));
    for (chunk, (bytes, out)) in chunks.enumerate() {
        let values = &mut values[..bytes.len() / from.block_bytes() * from.block_len()];
        if to_odd {
            scalar::decode_f64_to_odd(bytes, values);
        } else {
            decode(from, bytes, values)?;
        }
        encode(to, values, out).map_err(|e| e.offset(chunk * CHUNK))?;
    }
    Ok(())
}

/// An integer as it is stored.
trait Integer: TryFrom<i128> + Into<i128> + Copy {
    const BYTES: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Integer for $t {
            const BYTES: usize = size_of::<$t>();
            fn read(bytes: &[u8]) -> $t {
                let mut buffer = [0; size_of::<$t>()];
                buffer.copy_from_slice(bytes);
                <$t>::from_le_bytes(buffer)
            }
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, i8, i16, i32, i64);

/// A truth value: a byte that is 0 or not.
#[derive(Clone, Copy)]
struct Truth(bool);

impl TryFrom<i128> for Truth {
    type Error = ();

    fn try_from(value: i128) -> Result<Truth, ()> {
        match value {
            0 | 1 => Ok(Truth(value == 1)),
            _ => Err(()),
        }
    }
}

impl From<Truth> for i128 {
    fn from(truth: Truth) -> i128 {
        truth.0.into()
    }
}

impl Integer for Truth {
    const BYTES: usize = 1;

    fn read(bytes: &[u8]) -> Truth {
        Truth(bytes[0] != 0)
    }

    fn write(self, bytes: &mut [u8]) {
        bytes[0] = self.0.into();
    }
}

fn cast_integer(from: DType, bytes: &[u8], to: DType, out: &mut [u8]) -> Result<(), TensorError> {
    match from {
        DType::Bool => cast_from::<Truth>(from, bytes, to, out),
        DType::U8 => cast_from::<u8>(from, bytes, to, out),
        DType::U16 => cast_from::<u16>(from, bytes, to, out),
        DType::U32 => cast_from::<u32>(from, bytes, to, out),
        DType::U64 => cast_from::<u64>(from, bytes, to, out),
        DType::I8 => cast_from::<i8>(from, bytes, to, out),
        DType::I16 => cast_from::<i16>(from, bytes, to, out),
        DType::I32 => cast_from::<i32>(from, bytes, to, out),
        DType::I64 => cast_from::<i64>(from, bytes, to, out),
        _ => Err(TensorError::NoCast { from, to }),
    }
}

fn cast_from<S: Integer>(from: DType, bytes: &[u8], to: DType, out: &mut [u8]) -> Result<(), TensorError> {
    match to {
        DType::Bool => cast_each::<S, Truth>(bytes, to, out),
        DType::U8 => cast_each::<S, u8>(bytes, to, out),
        DType::U16 => cast_each::<S, u16>(bytes, to, out),
        DType::U32 => cast_each::<S, u32>(bytes, to, out),
        DType::U64 => cast_each::<S, u64>(bytes, to, out),
        DType::I8 => cast_each::<S, i8>(bytes, to, out),
        DType::I16 => cast_each::<S, i16>(bytes, to, out),
        DType::I32 => cast_each::<S, i32>(bytes, to, out),
        DType::I64 => cast_each::<S, i64>(bytes, to, out),
        _ => Err(TensorError::NoCast { from, to }),
    }
}

fn cast_each<S: Integer, D: Integer>(bytes: &[u8], to: DType, out: &mut [u8]) -> Result<(), TensorError> {
    let elements = bytes.chunks_exact(S::BYTES).zip(out.chunks_exact_mut(D::BYTES));
    for (index, (source, target)) in elements.enumerate() {
        let value: i128 = S::read(source).into();
        D::try_from(value).map_err(|_| TensorError::Range { to, index, value })?.write(target);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{Tensor, TensorError};
    use tranship_dtype::DType;

    #[test]
    fn integers_are_checked() {
        let t = Tensor::from_slice(&[3], &[0i64, 1, 255]).unwrap();
        assert_eq!(t.cast(DType::U8).unwrap().bytes(), [0, 1, 255]);
        assert_eq!(t.cast(DType::U32).unwrap().as_slice::<u32>().unwrap(), [0, 1, 255]);
        assert_eq!(t.cast(DType::I8), Err(TensorError::Range { to: DType::I8, index: 2, value: 255 }));
        assert_eq!(t.cast(DType::Bool).unwrap_err().to_string(), "element 2 is 255, which bool cannot hold");
        let low = Tensor::from_slice(&[1], &[-1i8]).unwrap();
        assert_eq!(low.cast(DType::I64).unwrap().as_slice::<i64>().unwrap(), [-1]);
        assert!(low.cast(DType::U64).is_err());
        let truths = Tensor::new(DType::Bool, &[2], &[0, 7]).unwrap();
        assert_eq!(truths.cast(DType::I16).unwrap().as_slice::<i16>().unwrap(), [0, 1]);
    }

    #[test]
    fn reals_and_integers_do_not_mix() {
        let t = Tensor::from_slice(&[1], &[1i32]).unwrap();
        assert_eq!(t.cast(DType::F32), Err(TensorError::NoCast { from: DType::I32, to: DType::F32 }));
        let t = Tensor::from_f32(&[1], &[1.0]).unwrap();
        assert_eq!(t.cast(DType::I32), Err(TensorError::NoCast { from: DType::F32, to: DType::I32 }));
    }

    #[test]
    fn wide_floats_are_rounded_once() {
        // Just above a tie: rounded to F32 first it would be the tie, which goes down to even.
        for (x, to, wanted) in [
            (1.0 + 2f64.powi(-11) + 2f64.powi(-40), DType::F16, 1.0 + 2f32.powi(-10)),
            (1.0 + 2f64.powi(-8) + 2f64.powi(-50), DType::BF16, 1.0 + 2f32.powi(-7)),
            (-(17.0 + 2f64.powi(-40)), DType::F8E4M3, -18.0),
            (1e300, DType::F16, f32::INFINITY),
            (1e300, DType::F8E4M3, 448.0),
            (1e-300, DType::BF16, 0.0),
            (0.1, DType::F32, 0.1f32),
        ] {
            let t = Tensor::from_slice(&[1], &[x]).unwrap();
            assert_eq!(t.cast(to).unwrap().to_f32().unwrap(), [wanted], "{x} to {to}");
        }
    }

    #[test]
    fn errors_count_elements_over_chunks() {
        let mut values = vec![0.5; 10_000];
        values[9_001] = f32::NAN;
        let t = Tensor::from_f32(&[2, 5_000], &values).unwrap();
        assert_eq!(t.cast(DType::F4E2M1), Err(TensorError::NoNan { to: DType::F4E2M1, index: 9_001 }));
        assert!(t.cast(DType::F16).unwrap().to_f32().unwrap()[9_001].is_nan());
    }

    #[test]
    fn blocks_cast_through_their_values() {
        let values: Vec<f32> = (0..512).map(|i| (i as f32 - 200.0) / 8.0).collect();
        let t = Tensor::encoded(DType::Q8_0, &[2, 256], &values).unwrap();
        let wide = t.cast(DType::F64).unwrap();
        let exact: Vec<f64> = t.to_f32().unwrap().into_iter().map(f64::from).collect();
        assert_eq!(wide.as_slice::<f64>().unwrap(), exact);
        let again = Tensor::encoded(DType::Q4_1, &[2, 256], &t.to_f32().unwrap()).unwrap();
        assert_eq!(t.cast(DType::Q4_1).unwrap().bytes(), again.bytes());
        assert_eq!(t.cast(DType::Q4_K), Err(TensorError::NoEncoder(DType::Q4_K)));
        let narrow = Tensor::from_f32(&[2, 16], &[0.0; 32]).unwrap();
        assert!(matches!(narrow.cast(DType::Q8_0), Err(TensorError::Blocks { .. })));
    }
}
