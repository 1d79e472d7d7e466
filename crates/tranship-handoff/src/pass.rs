//! A tensor's bytes on their way in or out: their digest and their first NaN are found while they pass.
//!
//! Hashing has threads of its own, which work on the bytes that have come while the next ones are read, or on those that
//! are being written. So a hand-off is sealed in about the time that a plain copy of it takes, and every byte is looked
//! at once.

use crate::digest::add;
use blake3::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::sync::mpsc;
use std::thread;
use tranship_dtype::DType;

/// Bytes that are read at once, and of which hashing gets to know together.
const BLOCK: usize = 1 << 20;
/// Bytes below which a thread is not worth its start.
const FEW: usize = 1 << 20;
/// Bytes that memory is taken for before any of them has come, where nothing but the sender says how many there will be.
pub(crate) const AHEAD: usize = 64 << 20;

/// What a tensor's bytes were found to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Examined {
    /// Their BLAKE3 digest.
    pub digest: Hash,
    /// The first element that is NaN.
    pub nan: Option<u64>,
}

/// Examines bytes that come block by block. Blocks are whole elements.
struct Pass {
    dtype: DType,
    hasher: Hasher,
    /// Whether hashing has several threads: of two processors, one reads or writes meanwhile.
    several: bool,
    nan: Option<u64>,
    seen: u64,
}

impl Pass {
    fn new(dtype: DType) -> Pass {
        let several = thread::available_parallelism().is_ok_and(|count| count.get() > 2);
        Pass { dtype, hasher: Hasher::new(), several, nan: None, seen: 0 }
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.nan.is_none() {
            self.nan = first_nan(self.dtype, bytes).map(|at| self.seen + at as u64);
        }
        self.seen += (bytes.len() / self.dtype.row_bytes(1).unwrap_or(1).max(1)) as u64;
        if self.several {
            add(&mut self.hasher, bytes);
        } else {
            self.hasher.update(bytes);
        }
    }

    fn end(self) -> Examined {
        Examined { digest: self.hasher.finalize(), nan: self.nan }
    }
}

/// Examines bytes that are all there, while nothing else is done.
pub(crate) fn examine(dtype: DType, bytes: &[u8]) -> Examined {
    beside(Pass { several: true, ..Pass::new(dtype) }, bytes)
}

fn beside(mut pass: Pass, bytes: &[u8]) -> Examined {
    bytes.chunks(BLOCK).for_each(|block| pass.add(block));
    pass.end()
}

/// Writes bytes and examines them meanwhile.
///
/// # Errors
/// What the output says.
pub(crate) fn write(out: &mut impl Write, dtype: DType, bytes: &[u8]) -> io::Result<Examined> {
    if bytes.len() < FEW {
        out.write_all(bytes)?;
        return Ok(examine(dtype, bytes));
    }
    thread::scope(|scope| {
        let hashing = thread::Builder::new().spawn_scoped(scope, || beside(Pass::new(dtype), bytes))?;
        out.write_all(bytes)?;
        hashing.join().map_err(|_| io::Error::other("hashing ended early"))
    })
}

/// Reads `len` bytes and examines them as they come. Memory is taken for `ahead` of them at first, and then for as many
/// as have come: who announces more than it sends costs little more than it sent. `memory` is used again, as far as it goes.
///
/// # Errors
/// What the input says; [`io::ErrorKind::UnexpectedEof`] with the number of bytes that came where they end early, and
/// [`io::ErrorKind::OutOfMemory`].
pub(crate) fn read(
    input: &mut impl Read,
    dtype: DType,
    (len, ahead): (usize, usize),
    memory: Vec<u8>,
) -> io::Result<(Vec<u8>, Examined)> {
    let mut bytes = zeroed(len.min(ahead.max(1)), memory)?;
    if len < FEW && bytes.len() == len {
        fill(input, &mut bytes, 0)?;
        let examined = examine(dtype, &bytes);
        return Ok((bytes, examined));
    }
    let (mut pass, mut have) = (Pass::new(dtype), 0);
    while have < len {
        if have == bytes.len() {
            let more = have.min(len - have);
            bytes.try_reserve_exact(more).map_err(|_| io::ErrorKind::OutOfMemory)?;
            bytes.resize(have + more, 0);
        }
        pass = read_into(input, &mut bytes[have..], pass, have)?;
        have = bytes.len();
    }
    Ok((bytes, pass.end()))
}

/// Fills memory from an input; each block is examined while the next one is read.
fn read_into(input: &mut impl Read, memory: &mut [u8], mut pass: Pass, before: usize) -> io::Result<Pass> {
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel::<&[u8]>();
        let examining = thread::Builder::new().spawn_scoped(scope, move || {
            receive.iter().for_each(|block| pass.add(block));
            pass
        })?;
        let mut have = before;
        for block in memory.chunks_mut(BLOCK) {
            fill(input, block, have)?;
            have += block.len();
            // It is received until all have been sent.
            let _ = send.send(block);
        }
        drop(send);
        examining.join().map_err(|_| io::Error::other("hashing ended early"))
    })
}

fn fill(input: &mut impl Read, mut memory: &mut [u8], before: usize) -> io::Result<()> {
    let mut have = before;
    while !memory.is_empty() {
        match input.read(memory) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, have.to_string())),
            Ok(count) => {
                memory = &mut memory[count..];
                have += count;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// So many bytes: of `memory` where it has them, which costs nothing; else as the system gives them, zeroed.
fn zeroed(len: usize, mut memory: Vec<u8>) -> io::Result<Vec<u8>> {
    if memory.len() >= len {
        memory.truncate(len);
        return Ok(memory);
    }
    drop(memory);
    // Asked for on trial first: `vec!` ends the process when there is no memory.
    Vec::<u8>::new().try_reserve_exact(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    Ok(vec![0; len])
}

/// The first element that is NaN, judged by its bits.
fn first_nan(dtype: DType, bytes: &[u8]) -> Option<usize> {
    match dtype {
        DType::F64 => first(bytes, |b: [u8; 8]| u64::from_le_bytes(b) << 1 > 0x7ff0_0000_0000_0000 << 1),
        DType::F32 => first(bytes, |b: [u8; 4]| u32::from_le_bytes(b) << 1 > 0x7f80_0000 << 1),
        DType::F16 => first(bytes, |b: [u8; 2]| u16::from_le_bytes(b) << 1 > 0x7c00 << 1),
        DType::BF16 => first(bytes, |b: [u8; 2]| u16::from_le_bytes(b) << 1 > 0x7f80 << 1),
        DType::F8E4M3 => first(bytes, |[b]: [u8; 1]| b & 0x7f == 0x7f),
        DType::F8E5M2 => first(bytes, |[b]: [u8; 1]| b & 0x7f > 0x7c),
        _ => None,
    }
}

/// The first element that `is` holds of: whole stretches are looked at without a branch first.
fn first<const N: usize>(bytes: &[u8], is: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let (elements, _) = bytes.as_chunks::<N>();
    let stretch = 1024;
    let hit = |many: &[[u8; N]]| many.iter().fold(false, |found, &b| found | is(b));
    let at = elements.chunks(stretch).position(hit)?;
    let within = elements.iter().skip(at * stretch).position(|&b| is(b))?;
    Some(at * stretch + within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(dtype: DType, values: &[f32]) -> Vec<u8> {
        let sizes = [values.len()];
        let tensor = tranship_tensor::Tensor::from_f32(&sizes, values).and_then(|t| t.cast(dtype));
        tensor.expect("floats").bytes().to_vec()
    }

    /// NaN of both signs is found where it is, and nothing else is taken for it.
    #[test]
    fn nan_is_found_by_its_bits() {
        let floats = [DType::F64, DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];
        for dtype in floats {
            let most = if dtype == DType::F8E4M3 { 448.0 } else { f32::INFINITY };
            let plain: Vec<f32> = [0.0, -0.0, 1.5, -1.5, most, -most].repeat(700);
            assert_eq!(first_nan(dtype, &bits(dtype, &plain)), None, "{dtype}");
            for at in [0, 1, 1023, 1024, 4199] {
                for nan in [f32::NAN, -f32::NAN] {
                    let mut values = plain.clone();
                    values[at] = nan;
                    assert_eq!(first_nan(dtype, &bits(dtype, &values)), Some(at), "{dtype}");
                }
            }
        }
        assert_eq!(first_nan(DType::I32, &[0xff; 64]), None);
    }

    /// The ways in, out and in memory find the same, whatever the length, and change no byte.
    #[test]
    fn every_way_finds_the_same() {
        for len in [0, 4, FEW - 4, FEW, FEW + 8, BLOCK + 4, 3 * BLOCK, AHEAD + BLOCK + 12] {
            let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8 & 0x3f).collect();
            if len > 2 * BLOCK {
                bytes[BLOCK + 8..BLOCK + 12].copy_from_slice(&f32::NAN.to_le_bytes());
            }
            let wanted = examine(DType::F32, &bytes);
            assert_eq!(wanted.digest, blake3::hash(&bytes));
            assert_eq!(wanted.nan, (len > 2 * BLOCK).then_some(BLOCK as u64 / 4 + 2));
            let mut out = Vec::new();
            assert_eq!(write(&mut out, DType::F32, &bytes).expect("a vector takes all"), wanted);
            assert!(out == bytes, "{len} bytes out");
            let (found, examined) =
                read(&mut bytes.as_slice(), DType::F32, (len, AHEAD), Vec::new()).expect("they are there");
            assert!(found == bytes, "{len} bytes in");
            assert_eq!(examined, wanted);
            let error = read(&mut bytes.as_slice(), DType::F32, (len + 8, AHEAD), vec![9; 5000])
                .expect_err("they are not there");
            assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::UnexpectedEof, len.to_string()));
        }
    }

    proptest! {
        /// However an input hands its bytes out, they are put together.
        #[test]
        fn inputs_of_small_pieces(lens in prop::collection::vec(1usize..70_000, 1..60)) {
            struct Pieces<'a>(&'a [u8], std::vec::IntoIter<usize>);
            impl Read for Pieces<'_> {
                fn read(&mut self, memory: &mut [u8]) -> io::Result<usize> {
                    let count = self.1.next().unwrap_or(1 << 20).min(self.0.len()).min(memory.len());
                    memory[..count].copy_from_slice(&self.0[..count]);
                    self.0 = &self.0[count..];
                    Ok(count)
                }
            }
            let bytes: Vec<u8> = (0..FEW + 8).map(|i| (i % 127) as u8).collect();
            let (found, _) = read(&mut Pieces(&bytes, lens.into_iter()), DType::BF16, (bytes.len(), 1000), Vec::new())?;
            prop_assert!(found == bytes);
        }
    }
}
