//! How far logits are from the reference's.

/// The distance of rows of logits from the reference's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// The largest absolute difference, in standard deviations of the reference's logits.
    pub max: f64,
    /// The root of the mean squared difference, in the same unit.
    pub rms: f64,
    /// The root of the mean squared difference within a row, in the same unit: that of the median row.
    pub median: f64,
    /// The same of the row that three quarters of the rows do not exceed.
    pub quartile: f64,
    /// The mean over the rows of KL(reference ‖ ours), in nats.
    pub kl: f64,
    /// The first row whose largest logit is another.
    pub first_divergent: Option<usize>,
    /// The part of the rows whose largest logit is the same.
    pub argmax_equal: f64,
}

impl Figures {
    /// Compares `ours` with `reference`, both `[rows, width]`. A value that is not finite, and rows that are missing,
    /// are infinitely far away.
    pub fn of(reference: &[f32], ours: &[f32], width: usize) -> Figures {
        if reference.len() != ours.len() || !ours.iter().all(|v| v.is_finite()) {
            return Figures::lost();
        }
        let deviation = deviation(reference).max(f64::MIN_POSITIVE);
        let differences = reference.iter().zip(ours).map(|(r, o)| (f64::from(*r) - f64::from(*o)).abs());
        let (max, squares) = differences.fold((0.0, 0.0), |(m, s): (f64, f64), d| (m.max(d), s + d * d));
        let rows = (reference.len() / width.max(1)).max(1);
        let pairs = || reference.chunks(width.max(1)).zip(ours.chunks(width.max(1)));
        let equal: Vec<bool> = pairs().map(|(r, o)| largest(r) == largest(o)).collect();
        let mut by_row: Vec<f64> = pairs().map(|(r, o)| root_mean_square(r, o) / deviation).collect();
        by_row.sort_by(f64::total_cmp);
        Figures {
            max: max / deviation,
            median: by_row.get(by_row.len() / 2).copied().unwrap_or(0.0),
            quartile: by_row.get(by_row.len() * 3 / 4).copied().unwrap_or(0.0),
            rms: (squares / reference.len().max(1) as f64).sqrt() / deviation,
            kl: pairs().map(|(r, o)| divergence(r, o)).sum::<f64>() / rows as f64,
            first_divergent: equal.iter().position(|e| !e),
            argmax_equal: equal.iter().filter(|e| **e).count() as f64 / rows as f64,
        }
    }

    fn lost() -> Figures {
        let far = f64::INFINITY;
        let (max, rms, median, quartile, kl) = (far, far, far, far, far);
        Figures { max, rms, median, quartile, kl, first_divergent: Some(0), argmax_equal: 0.0 }
    }
}

/// The standard deviation of all values.
pub fn deviation(values: &[f32]) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
    (values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / count).sqrt()
}

/// The root of the mean squared difference of two rows.
fn root_mean_square(reference: &[f32], ours: &[f32]) -> f64 {
    let squares = reference.iter().zip(ours).map(|(r, o)| (f64::from(*r) - f64::from(*o)).powi(2));
    (squares.sum::<f64>() / reference.len().max(1) as f64).sqrt()
}

/// The index of the first of the largest values.
fn largest(row: &[f32]) -> usize {
    tranship_session::argmax(row) as usize
}

/// KL(p ‖ q) of the distributions that two rows of logits mean, in nats.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p_norm, q_norm) = (log_sum(p), log_sum(q));
    let term = |(p, q): (&f32, &f32)| {
        let (p, q) = (f64::from(*p) - p_norm, f64::from(*q) - q_norm);
        p.exp() * (p - q)
    };
    p.iter().zip(q).map(term).sum::<f64>().max(0.0)
}

fn log_sum(row: &[f32]) -> f64 {
    let top = row.iter().fold(f64::NEG_INFINITY, |m, v| m.max(f64::from(*v)));
    top + row.iter().map(|v| (f64::from(*v) - top).exp()).sum::<f64>().ln()
}

/// Whether two slices hold the same bits.
pub fn identical(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_what_they_say() {
        // Two rows of two; the deviation of 1, -1, 1, -1 is 1.
        let reference = [1.0, -1.0, 1.0, -1.0];
        let same = Figures::of(&reference, &reference, 2);
        assert_eq!(same, Figures { argmax_equal: 1.0, ..Figures::default() });
        let ours = [1.0, -1.0, 1.0, 3.0];
        let found = Figures::of(&reference, &ours, 2);
        assert_eq!((found.max, found.rms, found.first_divergent), (4.0, 2.0, Some(1)));
        // Of two rows, the worse: its root mean square is 4 / √2.
        assert!((found.median - 8f64.sqrt()).abs() < 1e-12, "{}", found.median);
        // KL of softmax(1, -1) from softmax(1, 3), halved: p ln(p / (1 - p)) + (1 - p) ln((1 - p) / p).
        let p = 1.0 / (1.0 + (-2.0f64).exp());
        let wanted = (2.0 * p - 1.0) * (p / (1.0 - p)).ln() / 2.0;
        assert!((found.kl - wanted).abs() < 1e-12, "{} and {wanted}", found.kl);
        assert_eq!(found.argmax_equal, 0.5);
    }

    #[test]
    fn what_is_no_number_is_far_away() {
        for ours in [&[1.0, f32::NAN][..], &[1.0, f32::INFINITY], &[1.0]] {
            assert_eq!(Figures::of(&[1.0, 2.0], ours, 2).max, f64::INFINITY);
        }
    }
}
