//! `conv`: causal convolution over positions, each channel on its own.

/// `x` is `[taps − 1 + n, channels]`, `w` `[channels, taps]`, `b` `[channels]` or empty; the result `[n, channels]`.
pub(super) fn run(x: &[f32], w: &[f32], b: &[f32], channels: usize) -> Vec<f32> {
    let taps = w.len() / channels;
    let rows = (x.len() / channels).saturating_sub(taps - 1);
    let mut y = Vec::with_capacity(rows * channels);
    for i in 0..rows {
        for (c, w) in w.chunks_exact(taps).enumerate() {
            let at = |j: usize| f64::from(w[j]) * f64::from(x[(i + j) * channels + c]);
            let sum: f64 = (0..taps).map(at).sum();
            y.push((sum + b.get(c).map_or(0.0, |&b| f64::from(b))) as f32);
        }
    }
    y
}
