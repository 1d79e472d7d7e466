//! The complementary error function in F64.

use std::f64::consts::PI;

/// `1 − erf(x)`, to within a relative error of about 1e-14: by the series of `erf` near 0, by the continued fraction
/// of `erfc` elsewhere (Abramowitz and Stegun, 7.1.6 and 7.1.14).
pub(super) fn erfc(x: f64) -> f64 {
    const TERMS: usize = 120;
    if x.is_nan() {
        return x;
    }
    if x < -2.0 {
        return 2.0 - erfc(-x);
    }
    let gauss = (-x * x).exp();
    if x <= 2.0 {
        // 2/√π · e^(−x²) · Σ 2^k x^(2k+1) / (1 · 3 · … · (2k+1))
        let (mut term, mut sum) = (x, x);
        for k in 1..TERMS {
            term *= 2.0 * x * x / (2 * k + 1) as f64;
            sum += term;
        }
        return 1.0 - 2.0 / PI.sqrt() * gauss * sum;
    }
    // e^(−x²)/√π · 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + …))))
    let tail = (1..TERMS).rev().fold(x, |tail, k| x + k as f64 / 2.0 / tail);
    gauss / PI.sqrt() / tail
}

#[cfg(test)]
mod tests {
    use super::erfc;

    #[test]
    fn known_values() {
        // Tables of the function, to 16 digits.
        for (x, wanted) in [
            (0.0, 1.0),
            (0.5, 0.479_500_122_186_953_5),
            (1.0, 0.157_299_207_050_285_13),
            (2.0, 0.004_677_734_981_047_266),
            (2.5, 4.069_520_174_449_589e-4),
            (4.0, 1.541_725_790_028_002e-8),
            (-1.0, 1.842_700_792_949_715),
            (-3.0, 1.999_977_909_503_001_4),
        ] {
            assert!((erfc(x) / wanted - 1.0).abs() < 1e-12, "{x}: {} for {wanted}", erfc(x));
        }
        assert_eq!((erfc(f64::INFINITY), erfc(f64::NEG_INFINITY)), (0.0, 2.0));
        assert!(erfc(f64::NAN).is_nan());
    }
}
