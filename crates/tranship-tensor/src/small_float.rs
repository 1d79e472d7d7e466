//! The 4-, 6- and 8-bit floats: one decoder and one encoder, parameterised by the layout of the bits.
//!
//! A format is a sign bit (unless unsigned), `exp` exponent bits and `man` mantissa bits. The layouts are those of
//! the OCP 8-bit floating point and microscaling (MX) specifications. F8E8M0 fits the same scheme as an
//! exponent without sign, mantissa, zero or subnormals.

/// What the highest magnitudes of a format stand for.
#[derive(Clone, Copy, PartialEq)]
enum Top {
    /// Exponent all ones: infinity for mantissa 0, NaN otherwise.
    InfinityAndNan,
    /// Exponent and mantissa all ones: NaN.
    Nan,
    /// Every code is a finite number.
    Finite,
}

/// The layout of a small float.
#[derive(Clone, Copy)]
pub(crate) struct SmallFloat {
    exp: u32,
    man: u32,
    bias: i32,
    signed: bool,
    /// Whether exponent field 0 holds zero and the subnormals.
    subnormals: bool,
    top: Top,
}

const fn signed(exp: u32, man: u32, bias: i32, top: Top) -> SmallFloat {
    SmallFloat { exp, man, bias, signed: true, subnormals: true, top }
}

pub(crate) const F8E4M3: SmallFloat = signed(4, 3, 7, Top::Nan);
pub(crate) const F8E5M2: SmallFloat = signed(5, 2, 15, Top::InfinityAndNan);
pub(crate) const F6E2M3: SmallFloat = signed(2, 3, 1, Top::Finite);
pub(crate) const F6E3M2: SmallFloat = signed(3, 2, 3, Top::Finite);
pub(crate) const F4E2M1: SmallFloat = signed(2, 1, 1, Top::Finite);
pub(crate) const F8E8M0: SmallFloat =
    SmallFloat { exp: 8, man: 0, bias: 127, signed: false, subnormals: false, top: Top::Nan };

impl SmallFloat {
    /// The values of the first `N` codes.
    pub(crate) const fn table<const N: usize>(self) -> [f32; N] {
        let mut table = [0.0; N];
        let mut code = 0;
        while code < N {
            table[code] = self.value(code as u32);
            code += 1;
        }
        table
    }

    /// The value of a code; bits above the format's width are ignored.
    const fn value(self, code: u32) -> f32 {
        let width = self.exp + self.man;
        let magnitude = code & ((1 << width) - 1);
        let negative = self.signed && (code >> width) & 1 == 1;
        let (field, mantissa) = (magnitude >> self.man, magnitude & ((1 << self.man) - 1));
        let all_ones = field == (1 << self.exp) - 1;
        let value = match self.top {
            Top::InfinityAndNan if all_ones && mantissa == 0 => f32::INFINITY,
            Top::InfinityAndNan if all_ones => f32::NAN,
            Top::Nan if all_ones && mantissa == (1 << self.man) - 1 => f32::NAN,
            _ if field == 0 && self.subnormals => scaled(mantissa, 1 - self.bias - self.man as i32),
            _ => scaled(mantissa | 1 << self.man, field as i32 - self.bias - self.man as i32),
        };
        if negative { -value } else { value }
    }

    /// The largest magnitude code that is a finite number.
    const fn max_finite(self) -> u32 {
        match self.top {
            Top::InfinityAndNan => (((1 << self.exp) - 1) << self.man) - 1,
            Top::Nan => (1 << (self.exp + self.man)) - 2,
            Top::Finite => (1 << (self.exp + self.man)) - 1,
        }
    }

    /// The canonical NaN, quiet where the format tells quiet from signalling.
    const fn nan(self) -> Option<u8> {
        match self.top {
            Top::InfinityAndNan => Some(((((1 << self.exp) - 1) << self.man) | 1 << (self.man - 1)) as u8),
            Top::Nan => Some(((1 << (self.exp + self.man)) - 1) as u8),
            Top::Finite => None,
        }
    }

    /// The code nearest to `x`, ties to the even mantissa; `None` for NaN where the format has none.
    ///
    /// Past the largest finite value: infinity where the format has it, that value otherwise. Negative numbers
    /// are NaN for an unsigned format; zero and what is below its smallest value become that value.
    #[inline(always)]
    pub(crate) fn encode(self, x: f32) -> Option<u8> {
        let bits = x.to_bits();
        let (sign, magnitude) = (bits >> 31, bits & 0x7fff_ffff);
        if magnitude > 0x7f80_0000 || (!self.signed && sign == 1 && magnitude != 0) {
            return self.nan();
        }
        // |x| = mantissa · 2^(exponent - 23), mantissa in [2^23, 2^24) unless x is 0.
        let (exponent, mantissa) = if magnitude < 0x0080_0000 {
            let shift = (magnitude | 1).leading_zeros() - 8;
            (-126 - shift as i32, magnitude << shift)
        } else {
            ((magnitude >> 23) as i32 - 127, magnitude & 0x007f_ffff | 0x0080_0000)
        };
        let lowest = self.subnormals as i32 - self.bias;
        let mut code = if exponent >= lowest {
            // The exponent field and the mantissa round as one number: a carry out of the mantissa is the next
            // power of two.
            let field = ((exponent + self.bias) as u32) << 23;
            let bits = field | mantissa & 0x007f_ffff;
            // Without mantissa bits the leading one is the last bit kept, and it is odd: ties go up.
            round_off(bits, 23 - self.man, if self.man == 0 { 1 } else { bits >> (23 - self.man) & 1 })
        } else if self.subnormals {
            let drop = (23 - self.man + (lowest - exponent).min(25) as u32).min(31);
            round_off(mantissa, drop, mantissa >> drop & 1)
        } else {
            0
        };
        if code > self.max_finite() {
            code = self.max_finite() + (self.top == Top::InfinityAndNan) as u32;
        }
        let sign = if self.signed { sign << (self.exp + self.man) } else { 0 };
        Some((sign | code) as u8)
    }
}

/// `m · 2^k`, exact in F32 for every format here.
const fn scaled(m: u32, k: i32) -> f32 {
    (m as f64 * f64::from_bits(((1023 + k) as u64) << 52)) as f32
}

/// `x / 2^drop` to the nearest integer, ties going up if `odd` is 1 and down if it is 0; `x` is below 2^31.
#[inline(always)]
fn round_off(x: u32, drop: u32, odd: u32) -> u32 {
    (x + (1 << (drop - 1)) - 1 + odd) >> drop
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips() {
        let formats = [(F8E4M3, 256), (F8E5M2, 256), (F6E2M3, 64), (F6E3M2, 64), (F4E2M1, 16), (F8E8M0, 256)];
        for (format, codes) in formats {
            for code in 0..codes {
                let value = format.value(code);
                let back = format.encode(value);
                if value.is_nan() {
                    assert_eq!(back, format.nan());
                } else {
                    assert_eq!(back, Some(code as u8), "{value}");
                }
            }
        }
    }
}
