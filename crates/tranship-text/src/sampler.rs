//! From a row of logits to the next token.
//!
//! The same logits, options and number of draws give the same token on every machine: the random numbers are a function of
//! seed and draw number, the exponential is written out here (libraries differ in its last bit), and every order is total.
//! So a generation can be suspended after `draws()` tokens and resumed elsewhere.

use crate::TextError;

/// How to choose. The stages apply in this order: repetition penalty, temperature, `top_k`, `top_p`, `min_p`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits; 0 takes the most probable token, the lowest id of equals. Default 0.
    pub temperature: f32,
    /// Keeps this many of the most probable tokens; 0 keeps all. Default 0.
    pub top_k: usize,
    /// Keeps the fewest most probable tokens that together have at least this probability; 1 keeps all. Default 1.
    pub top_p: f32,
    /// Keeps tokens of at least this fraction of the most probable one's probability; 0 keeps all. Default 0.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of tokens in the history (Keskar et al., 2019,
    /// arXiv:1909.05858); 1 leaves them. Default 1.
    pub repetition_penalty: f32,
    /// Chooses the sequence of random numbers. Default 0.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        SamplerOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub token: u32,
    /// Its probability among the candidates.
    pub probability: f64,
}

/// Chooses tokens. Its buffers grow to the vocabulary's size on the first use and stay.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplerOptions,
    draws: u64,
    scores: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler at its first draw.
    ///
    /// # Errors
    /// [`TextError::SamplerOption`] names an option out of its range.
    pub fn new(options: SamplerOptions) -> Result<Self, TextError> {
        Sampler::resume(options, 0)
    }

    /// A sampler that has drawn `draws` times already, as [`Sampler::draws`] told.
    ///
    /// # Errors
    /// [`TextError::SamplerOption`] names an option out of its range.
    pub fn resume(options: SamplerOptions, draws: u64) -> Result<Self, TextError> {
        let o = &options;
        let checks = [
            ("temperature", o.temperature, "0 or more", o.temperature >= 0.0),
            ("top_p", o.top_p, "above 0, at most 1", o.top_p > 0.0 && o.top_p <= 1.0),
            ("min_p", o.min_p, "from 0 to 1", (0.0..=1.0).contains(&o.min_p)),
            ("repetition_penalty", o.repetition_penalty, "above 0", o.repetition_penalty > 0.0),
        ];
        for (name, found, wanted, good) in checks {
            if !good || !found.is_finite() {
                return Err(TextError::SamplerOption { name, wanted, found });
            }
        }
        Ok(Sampler { options, draws, scores: vec![], candidates: vec![] })
    }

    /// How many random numbers have been used: one for each token chosen at a temperature above 0.
    pub fn draws(&self) -> u64 {
        self.draws
    }

    /// Chooses the next token from `logits`, one for each id; `history` are the ids that the repetition penalty applies to.
    ///
    /// # Errors
    /// A logit that is NaN or +inf, a row with nothing above -inf, a history id outside the row.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, TextError> {
        if self.options.temperature == 0.0 {
            self.score(logits, history)?;
            return Ok(argmax(&self.scores));
        }
        self.distribution(logits, history)?;
        let mut left = uniform(self.options.seed, self.draws);
        self.draws += 1;
        for candidate in &self.candidates {
            left -= candidate.probability;
            if left < 0.0 {
                return Ok(candidate.token);
            }
        }
        // Rounding left a sliver after the last: it belongs to the last that has any probability.
        let last = self.candidates.iter().rfind(|c| c.probability > 0.0);
        last.map(|c| c.token).ok_or(TextError::NoCandidate { count: logits.len() })
    }

    /// The tokens that [`Sampler::sample`] would draw from, and their probabilities, which sum to 1. Most probable first if
    /// `top_k` or `top_p` is set, else by id. At temperature 0 there is one.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn distribution(&mut self, logits: &[f32], history: &[u32]) -> Result<&[Candidate], TextError> {
        self.score(logits, history)?;
        let top = argmax(&self.scores);
        self.candidates.clear();
        if self.options.temperature == 0.0 {
            self.candidates.push(Candidate { token: top, probability: 1.0 });
            return Ok(&self.candidates);
        }
        let peak = f64::from(self.scores[top as usize]);
        let temperature = f64::from(self.options.temperature);
        self.candidates.extend((0u32..).zip(&self.scores).map(|(token, score)| Candidate {
            token,
            probability: exp_negative((f64::from(*score) - peak) / temperature),
        }));
        self.keep_top_k();
        self.keep_top_p();
        // The peak's own weight is exactly 1.
        let floor = f64::from(self.options.min_p);
        self.candidates.retain(|c| c.probability > 0.0 && c.probability >= floor);
        let total: f64 = self.candidates.iter().map(|c| c.probability).sum();
        self.candidates.iter_mut().for_each(|c| c.probability /= total);
        Ok(&self.candidates)
    }

    /// Checks the logits and applies the penalty.
    fn score(&mut self, logits: &[f32], history: &[u32]) -> Result<(), TextError> {
        let bad = |l: &&f32| l.is_nan() || **l == f32::INFINITY;
        if let Some(at) = logits.iter().position(|l| bad(&l)) {
            return Err(TextError::Logit { token: at as u32, value: logits[at] });
        }
        if logits.iter().all(|l| *l == f32::NEG_INFINITY) {
            return Err(TextError::NoCandidate { count: logits.len() });
        }
        self.scores.clear();
        self.scores.extend_from_slice(logits);
        let penalty = self.options.repetition_penalty;
        for id in history {
            let unknown = TextError::UnknownToken { id: *id, vocab_size: logits.len() };
            // From the logit, not from the score: a token that occurs twice is penalised once.
            let logit = *logits.get(*id as usize).ok_or(unknown)?;
            self.scores[*id as usize] = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
        Ok(())
    }

    fn keep_top_k(&mut self) {
        let k = self.options.top_k;
        if k > 0 && k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k - 1, by_rank);
            self.candidates.truncate(k);
        }
        if k > 0 {
            self.candidates.sort_unstable_by(by_rank);
        }
    }

    fn keep_top_p(&mut self) {
        let top_p = f64::from(self.options.top_p);
        if top_p >= 1.0 {
            return;
        }
        let total: f64 = self.candidates.iter().map(|c| c.probability).sum();
        // Tokens this improbable have less than 1 - top_p together, so the ones kept are among the rest: sort only those.
        let floor = total * (1.0 - top_p) / (self.candidates.len() as f64 + 1.0);
        self.candidates.retain(|c| c.probability >= floor);
        self.candidates.sort_unstable_by(by_rank);
        let mut sum = 0.0;
        let enough = self.candidates.iter().position(|c| {
            sum += c.probability;
            sum >= total * top_p
        });
        self.candidates.truncate(enough.map_or(usize::MAX, |last| last + 1));
    }
}

/// Most probable first, the lowest id of equals first.
fn by_rank(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.probability.total_cmp(&a.probability).then(a.token.cmp(&b.token))
}

/// The lowest id of those with the highest score.
fn argmax(scores: &[f32]) -> u32 {
    let mut best = 0;
    for (i, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = i;
        }
    }
    best as u32
}

/// A number in [0, 1) that depends on nothing but its arguments: SplitMix64 (Steele, Lea and Flood, 2014) as a counter.
fn uniform(seed: u64, draw: u64) -> f64 {
    const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
    // Mixing the seed first keeps the sequences of neighbouring seeds apart.
    let start = mix(seed.wrapping_add(GAMMA));
    let bits = mix(start.wrapping_add(draw.wrapping_add(1).wrapping_mul(GAMMA)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// eˣ for x ≤ 0, within 2 ULP, 0 below -700: only additions, multiplications and a power of two, in one order.
fn exp_negative(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    // ln 2 in two parts, the first with enough zero bits at its end for k · high to be exact.
    const HIGH: f64 = 0.693_147_180_369_123_8;
    const LOW: f64 = 1.908_214_929_270_587_7e-10;
    let k = (x * std::f64::consts::LOG2_E).round();
    let r = (x - k * HIGH) - k * LOW;
    // |r| ≤ 0.35: the terms left out are below 2⁻⁵³.
    let mut sum = 1.0;
    for n in (1..=14).rev() {
        sum = 1.0 + r / f64::from(n) * sum;
    }
    sum * f64::from_bits(((1023 + k as i64) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_close_and_exact_where_it_must_be() {
        assert_eq!(exp_negative(0.0), 1.0);
        assert_eq!(exp_negative(-1e9), 0.0);
        assert_eq!(exp_negative(f64::NEG_INFINITY), 0.0);
        for i in 0..7000 {
            let x = -0.1 * f64::from(i) - 1e-3 * f64::from(i % 97);
            let (ours, theirs) = (exp_negative(x), x.exp());
            if x >= -700.0 {
                assert!((ours - theirs).abs() <= 4.5e-16 * theirs, "exp({x}): wanted {theirs}, found {ours}");
            }
        }
    }

    #[test]
    fn mixing_gives_the_published_sequence() {
        // SplitMix64 from state 1234567: the first values of the reference implementation.
        let mut state = 1_234_567u64;
        for wanted in [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423] {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            assert_eq!(mix(state), wanted);
        }
    }

    #[test]
    fn uniform_numbers_are_spread() {
        let mut bins = [0u32; 16];
        for draw in 0..16_000 {
            bins[(uniform(7, draw) * 16.0) as usize] += 1;
        }
        // Chi-squared with 15 degrees of freedom: 37.7 is exceeded once in a thousand.
        let chi: f64 = bins.iter().map(|b| (f64::from(*b) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 37.7, "chi-squared {chi}, bins {bins:?}");
    }
}
