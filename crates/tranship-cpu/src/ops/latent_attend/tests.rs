//! Expanded and absorbed latent attention against plain loops in F64, and against each other.

use super::LatentAttend;
use crate::arch::Isa;
use crate::ops::rows::Past;
use crate::ops::tests::common::{Random, decode, isas, weights};
use crate::ops::{Out, Weights};
use crate::pool::Pool;
use tranship_dtype::{DType, Encoding};

/// The sizes of an operation, and its rows.
#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: usize,
    key_dim: usize,
    value_dim: usize,
    rope: usize,
    latent: usize,
    position: usize,
    rows: usize,
    cache: DType,
    w: DType,
}

/// Everything that a shape's operation reads.
struct Case {
    shape: Shape,
    q: Vec<f32>,
    latent: Vec<u8>,
    rope: Vec<u8>,
    w: Vec<u8>,
}

impl Case {
    fn random(shape: Shape) -> Case {
        let random = &mut Random::new((shape.rows * 31 + shape.position) as u64);
        let Shape { heads, key_dim, value_dim, rope, latent, position, rows, cache, w } = shape;
        let len = position + rows;
        Case {
            shape,
            q: random.floats(rows * heads * (key_dim + rope), 1.0),
            latent: weights(random, cache, len * latent),
            rope: weights(random, cache, len * rope),
            w: weights(random, w, heads * (key_dim + value_dim) * latent),
        }
    }

    /// The results; whether they were expanded, on so many threads.
    fn run(&self, isa: Isa, threads: usize, exact: bool) -> (Vec<f32>, bool) {
        let Shape { heads, key_dim, value_dim, rope, latent, position, rows, cache, w } = self.shape;
        let mut y = vec![f32::NAN; rows * heads * value_dim];
        let past =
            |kept, width| Past { kept, dtype: cache, width, slots: position + rows, turn: 0, new: None };
        let op = LatentAttend {
            q: &self.q,
            position,
            heads,
            key_dim,
            latent: past(&self.latent, latent),
            rope: past(&self.rope, rope),
            w: Weights::new(w, &self.w, heads * (key_dim + value_dim), latent),
            scale: 0.2,
            exact,
            y: Out::new(&mut y),
        };
        let expanded = op.expands(threads);
        Pool::new(threads).unwrap().run(|share| op.part(isa, share, 1));
        (y, expanded)
    }

    /// The definition, in F64.
    fn wanted(&self) -> Vec<f64> {
        let Shape { heads, key_dim, value_dim, rope, latent, position, rows, cache, w } = self.shape;
        let (c, r) = (
            decode(cache, &self.latent, (position + rows) * latent),
            decode(cache, &self.rope, (position + rows) * rope),
        );
        let w = decode(w, &self.w, heads * (key_dim + value_dim) * latent);
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let (mut out, dim) = (vec![0.0; rows * heads * value_dim], key_dim + rope);
        for head in 0..heads {
            let own = &w[head * (key_dim + value_dim) * latent..][..(key_dim + value_dim) * latent];
            let made: Vec<Vec<f64>> = c
                .chunks_exact(latent)
                .map(|c| own.chunks_exact(latent).map(|w| dot(w, c)).collect())
                .collect();
            for row in 0..rows {
                let q = &self.q[(row * heads + head) * dim..][..dim];
                let score = |j: usize| {
                    let keys: f64 = q[..key_dim].iter().zip(&made[j]).map(|(q, k)| f64::from(*q) * k).sum();
                    0.2 * (keys + dot(&q[key_dim..], &r[j * rope..(j + 1) * rope]))
                };
                let scores: Vec<f64> = (0..=position + row).map(score).collect();
                let most = scores.iter().fold(f64::MIN, |m, s| m.max(*s));
                let total: f64 = scores.iter().map(|s| (s - most).exp()).sum();
                for v in 0..value_dim {
                    let sum = |(j, s): (usize, &f64)| (s - most).exp() / total * made[j][key_dim + v];
                    out[(row * heads + head) * value_dim + v] = scores.iter().enumerate().map(sum).sum();
                }
            }
        }
        out
    }
}

const DENSE: Shape = Shape {
    heads: 3,
    key_dim: 20,
    value_dim: 12,
    rope: 6,
    latent: 160,
    position: 0,
    rows: 150,
    cache: DType::F32,
    w: DType::F32,
};

/// Shapes that are expanded: more rows than a block of keys, key and value of other sizes than whole vectors and tiles,
/// latent rows longer than one cut, positions within a block and past it.
fn shapes() -> Vec<Shape> {
    let half = DType::Block(Encoding::Q8_0);
    vec![
        DENSE,
        Shape { position: 37, rows: 191, cache: DType::F16, ..DENSE },
        Shape { position: 128, rows: 300, cache: DType::BF16, w: DType::BF16, heads: 1, ..DENSE },
        Shape { key_dim: 33, value_dim: 5, rope: 17, position: 64, rows: 129, w: half, heads: 2, ..DENSE },
        Shape { key_dim: 3, value_dim: 50, rope: 1, latent: 40, rows: 100, w: DType::F16, ..DENSE },
    ]
}

#[test]
fn both_forms_are_the_definition() {
    for shape in shapes() {
        let case = Case::random(shape);
        let wanted = case.wanted();
        let most = wanted.iter().fold(0.0f64, |most, w| most.max(w.abs()));
        assert!(most > 1e-3, "{shape:?}: results are not all zeros");
        for isa in isas() {
            for threads in [1, 3] {
                for exact in [false, true] {
                    let (found, expanded) = case.run(isa, threads, exact);
                    assert_eq!(expanded, !exact, "{shape:?} on {threads} threads");
                    for (i, (w, f)) in wanted.iter().zip(&found).enumerate() {
                        let off = (w - f64::from(*f)).abs() / most;
                        assert!(
                            off <= 2e-5,
                            "{isa}, {threads} threads, exact {exact}, {shape:?}: {f} at {i}, wanted {w}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn few_rows_and_exact_ones_are_absorbed() {
    for (rows, position) in [(1, 0), (1, 500), (4, 60), (8, 1000)] {
        let case = Case::random(Shape { rows, position, ..DENSE });
        assert!(!case.run(Isa::detect(), 2, false).1, "{rows} rows at {position}");
    }
    let (bits, case) = (|y: &[f32]| y.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), Case::random(DENSE));
    let (whole, dim) = (case.run(Isa::detect(), 1, true).0, DENSE.heads * DENSE.value_dim);
    for from in [1, 63, 149] {
        let mut part = Case::random(DENSE);
        part.q.drain(..from * DENSE.heads * (DENSE.key_dim + DENSE.rope));
        (part.shape.position, part.shape.rows) = (from, DENSE.rows - from);
        assert_eq!(bits(&part.run(Isa::detect(), 2, true).0), bits(&whole[from * dim..]), "from row {from}");
    }
}
