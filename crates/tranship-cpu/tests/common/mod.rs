//! What the tests of kernels share: random numbers, random blocks, and every instruction set of the machine.
#![allow(dead_code)]

use half::f16;
use tranship_cpu::Isa;
use tranship_dtype::{DType, Encoding};

/// A small generator of random numbers (xorshift), the same on every machine.
pub struct Random(u64);

impl Random {
    /// One for each seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A float from -1 to 1.
    pub fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// Floats from `-range` to `range`.
    pub fn floats(&mut self, n: usize, range: f32) -> Vec<f32> {
        (0..n).map(|_| self.float() * range).collect()
    }

    /// Random bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.bits() >> 33) as u8).collect()
    }
}

/// What to test: every instruction set of this machine; says which are skipped, and why. Where `TRANSHIP_ISAS` names some,
/// those alone, none of which may be missing.
pub fn isas() -> Vec<Isa> {
    if let Ok(names) = std::env::var("TRANSHIP_ISAS") {
        return names.split_whitespace().map(required).collect();
    }
    for isa in Isa::ALL {
        if let Some(missing) = isa.missing() {
            println!("skipped: {isa}, for this machine lacks {missing}");
        }
    }
    Isa::available()
}

/// The instruction set of that name, which must be there.
fn required(name: &str) -> Isa {
    let isa = Isa::ALL.into_iter().find(|isa| isa.name() == name);
    let isa = isa.unwrap_or_else(|| panic!("TRANSHIP_ISAS: no instruction set is called {name}"));
    assert_eq!(isa.missing(), None, "{isa} was to be tested, and this machine lacks a part of it");
    isa
}

/// `n` values in `dtype`: floats, or blocks of random bytes whose scales are small finite numbers.
pub fn weights(random: &mut Random, dtype: DType, n: usize) -> Vec<u8> {
    let mut bytes = random.bytes(dtype.row_bytes(n).expect("whole blocks"));
    let DType::Block(encoding) = dtype else {
        let values = random.floats(n, 1.0);
        tranship_tensor::encode(dtype, &values, &mut bytes).expect("a float type");
        return bytes;
    };
    for block in bytes.chunks_exact_mut(encoding.block_bytes()) {
        for at in half_scales(encoding) {
            let half = f16::from_f32(random.float() * 0.02).to_le_bytes();
            block[*at..at + 2].copy_from_slice(&half);
        }
        match encoding {
            Encoding::Q8_K => block[..4].copy_from_slice(&(random.float() * 0.02).to_le_bytes()),
            Encoding::MXFP4 => block[0] = 118 + (random.bits() >> 60) as u8 % 8,
            _ => {}
        }
    }
    bytes
}

/// Where an encoding's half-precision scales lie in a block.
fn half_scales(encoding: Encoding) -> &'static [usize] {
    use Encoding::*;
    match encoding {
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q8_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        Q8_K | MXFP4 => &[],
    }
}

/// The values of `bytes`, by the tensor crate.
pub fn decode(dtype: DType, bytes: &[u8], n: usize) -> Vec<f32> {
    let mut out = vec![0.0; n];
    tranship_tensor::decode(dtype, bytes, &mut out).expect("a real type");
    out
}

/// `x · wᵀ` in F64, and for each sum the sum of the absolute products: what rounding errors are measured by.
pub fn linear_f64(x: &[f32], w: &[f32], width: usize) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for x in x.chunks_exact(width) {
        for w in w.chunks_exact(width) {
            let products = || x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b));
            out.push((products().sum(), products().map(f64::abs).sum()));
        }
    }
    out
}

/// Asserts that each value is within `tolerance` times its scale of what it should be.
pub fn assert_close(what: &str, got: &[f32], wanted: &[(f64, f64)], tolerance: f64) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (i, (got, (wanted, scale))) in got.iter().zip(wanted).enumerate() {
        let error = (f64::from(*got) - wanted).abs();
        assert!(error <= tolerance * scale, "{what}: value {i} is {got}, not {wanted} (scale {scale})");
    }
}

/// Asserts that two results are the same to the bit.
pub fn assert_same(what: &str, got: &[f32], wanted: &[f32]) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!(got.to_bits() == wanted.to_bits(), "{what}: value {i} is {got}, not {wanted}");
    }
}
