//! Memories against plain loops in F64, and against themselves for every split of the rows.

use super::{DecayedLinear, GatedDelta, LogDecay, StateSpace, negative_rates};
use crate::arch::Isa;
use crate::ops::Out;
use crate::ops::elementwise::round_bf16;
use crate::ops::tests::common::{Random, assert_close, assert_same, isas};
use crate::pool::Pool;
use tranship_dtype::DType;
use tranship_program::ops::DecayForm;

/// Rows of a model's operation.
trait Case {
    /// Floats of the memory, and of a row of results.
    fn sizes(&self) -> (usize, usize);
    fn rows(&self) -> usize;
    /// Runs rows `from .. to`.
    fn run(&self, isa: Isa, pool: &Pool, dtype: DType, rows: [usize; 2], state: &mut [f32], y: &mut [f32]);
    /// One row of the definition, with what it adds up: results and the memory.
    fn wanted(&self, row: usize, state: &mut [f64]) -> Vec<f64>;
}

/// What a case gives, in steps of so many rows.
fn in_steps(case: &dyn Case, isa: Isa, threads: usize, dtype: DType, step: usize) -> (Vec<f32>, Vec<f32>) {
    let (size, width) = case.sizes();
    let pool = Pool::new(threads).unwrap();
    let mut state = Random::new(5).floats(size, 0.5);
    if dtype == DType::BF16 {
        state.iter_mut().for_each(|v| *v = round_bf16(*v));
    }
    let mut y = Vec::new();
    for from in (0..case.rows()).step_by(step) {
        let to = (from + step).min(case.rows());
        let mut rows = vec![f32::NAN; (to - from) * width];
        case.run(isa, &pool, dtype, [from, to], &mut state, &mut rows);
        y.extend(rows);
    }
    (y, state)
}

/// Holds a case to its definition, and to the same bits for every split and number of threads.
fn check(what: &str, case: &dyn Case) {
    let (size, _) = case.sizes();
    let mut state: Vec<f64> = Random::new(5).floats(size, 0.5).into_iter().map(f64::from).collect();
    let before = state.clone();
    let y: Vec<f64> = (0..case.rows()).flat_map(|row| case.wanted(row, &mut state)).collect();
    assert!(
        case.rows() == 0 || state.iter().zip(&before).any(|(a, b)| (a - b).abs() > 1e-3),
        "{what} stands still"
    );
    let scaled = |values: &[f64]| -> Vec<(f64, f64)> {
        let most = values.iter().fold(0f64, |a, b| a.max(b.abs()));
        values.iter().map(|v| (*v, most)).collect()
    };
    for isa in isas() {
        let (got, memory) = in_steps(case, isa, 1, DType::F32, case.rows().max(1));
        assert_close(&format!("{what}, {isa}"), &got, &scaled(&y), 3e-6);
        assert_close(&format!("{what}, memory, {isa}"), &memory, &scaled(&state), 3e-6);
        for (threads, step) in [(1, 1), (2, 1), (2, 3), (2, 5), (3, case.rows().max(1))] {
            let (y, state) = in_steps(case, isa, threads, DType::F32, step);
            assert_same(&format!("{what}, {isa}, steps of {step}"), &y, &got);
            assert_same(&format!("{what}, memory, {isa}, steps of {step}"), &state, &memory);
        }
        // A narrower memory is rounded after each row, and no other than that.
        let (got, memory) = in_steps(case, isa, 2, DType::BF16, case.rows().max(1));
        assert_close(&format!("{what} in BF16, {isa}"), &got, &scaled(&y), 0.03);
        assert!(memory.iter().all(|v| round_bf16(*v) == *v), "{what}, {isa}: a memory of BF16 numbers");
        let (again, narrow) = in_steps(case, isa, 2, DType::BF16, 1);
        assert_same(&format!("{what} in BF16, {isa}"), &again, &got);
        assert_same(&format!("{what} in BF16, memory, {isa}"), &narrow, &memory);
    }
}

/// Keys and values, gates and factors of a rule.
struct Rule {
    rows: usize,
    heads: usize,
    key_heads: usize,
    keys: usize,
    values: usize,
    /// Gates by channel, by head, or a decay for each head.
    gates: Gates,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    g: Vec<f32>,
    beta: Vec<f32>,
}

#[derive(Clone, Copy, PartialEq)]
enum Gates {
    Channels,
    Heads,
    Fixed,
}

impl Rule {
    fn random(rows: usize, [heads, key_heads]: [usize; 2], [keys, values]: [usize; 2], gates: Gates) -> Rule {
        let random = &mut Random::new((rows * keys * values) as u64);
        let range = (3.0 / keys as f32).sqrt();
        let g = match gates {
            Gates::Channels => rows * heads * keys,
            Gates::Heads => rows * heads,
            Gates::Fixed => heads,
        };
        let g =
            random.floats(g, 1.0).into_iter().map(|g| if gates == Gates::Fixed { g.abs() } else { -g.abs() });
        Rule {
            rows,
            heads,
            key_heads,
            keys,
            values,
            gates,
            g: g.collect(),
            q: random.floats(rows * key_heads * keys, range),
            k: random.floats(rows * key_heads * keys, range),
            v: random.floats(rows * heads * values, 1.0),
            beta: random.floats(rows * heads, 1.0).into_iter().map(f32::abs).collect(),
        }
    }
}

impl Case for Rule {
    fn sizes(&self) -> (usize, usize) {
        (self.heads * self.keys * self.values, self.heads * self.values)
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn run(&self, isa: Isa, pool: &Pool, dtype: DType, rows: [usize; 2], state: &mut [f32], y: &mut [f32]) {
        let Rule { heads, key_heads, keys: key_dim, values: value_dim, .. } = *self;
        let cut = |all: &[f32], width: usize| all[rows[0] * width..rows[1] * width].to_vec();
        let (q, k) = (cut(&self.q, key_heads * key_dim), cut(&self.k, key_heads * key_dim));
        let v = cut(&self.v, heads * value_dim);
        let (state, y) = (Out::new(state), Out::new(y));
        if self.gates == Gates::Fixed {
            let (q, k, v, decay) = (&q, &k, &v, &self.g);
            let op = DecayedLinear { state, dtype, decay, key_dim, value_dim, q, k, v, y };
            return pool.run(|share| op.part(isa, share, 3));
        }
        let g = cut(&self.g, if self.gates == Gates::Heads { heads } else { heads * key_dim });
        let beta = cut(&self.beta, heads);
        let (q, k, v, g, beta, scale) = (&q, &k, &v, &g, &beta, 0.5);
        let op =
            GatedDelta { state, dtype, heads, key_heads, key_dim, value_dim, scale, q, k, v, g, beta, y };
        pool.run(|share| op.part(isa, share, 3));
    }

    fn wanted(&self, row: usize, state: &mut [f64]) -> Vec<f64> {
        let Rule { heads, key_heads, keys, values, .. } = *self;
        let mut y = Vec::new();
        for (head, s) in state.chunks_exact_mut(keys * values).enumerate() {
            let of = |all: &[f32], key: usize| {
                f64::from(all[(row * key_heads + head / (heads / key_heads)) * keys + key])
            };
            let decay = |key: usize| match self.gates {
                Gates::Channels => f64::from(self.g[(row * heads + head) * keys + key]).exp(),
                Gates::Heads => f64::from(self.g[row * heads + head]).exp(),
                Gates::Fixed => f64::from(self.g[head]),
            };
            for value in 0..values {
                (0..keys).for_each(|key| s[key * values + value] *= decay(key));
                let held: f64 = (0..keys).map(|key| s[key * values + value] * of(&self.k, key)).sum();
                let v = f64::from(self.v[(row * heads + head) * values + value]);
                let fixed = self.gates == Gates::Fixed;
                let new = if fixed { v } else { f64::from(self.beta[row * heads + head]) * (v - held) };
                (0..keys).for_each(|key| s[key * values + value] += of(&self.k, key) * new);
                let sum: f64 = (0..keys).map(|key| s[key * values + value] * of(&self.q, key)).sum();
                y.push(if fixed { sum } else { sum * 0.5 });
            }
        }
        y
    }
}

#[test]
fn rules_of_keys_and_values() {
    for gates in [Gates::Heads, Gates::Channels, Gates::Fixed] {
        for (rows, heads, key_heads, dims) in [
            (1, 1, 1, [1, 1]),
            (11, 4, 2, [5, 7]),
            (9, 6, 3, [16, 32]),
            (7, 2, 2, [24, 150]),
            (13, 3, 1, [33, 64]),
        ] {
            let key_heads = if gates == Gates::Fixed { heads } else { key_heads };
            let case = Rule::random(rows, [heads, key_heads], dims, gates);
            check(&format!("{rows} rows, {heads} heads over {key_heads}, {dims:?}"), &case);
        }
    }
}

#[test]
fn keys_are_the_rows_of_a_memory() {
    // One key with one element, one value with one: the memory gets one number, in the key's row and the value's column.
    let (mut state, mut y) = (vec![0.0; 9], vec![0.0; 3]);
    let (k, v) = ([0.0, 0.0, 1.0], [5.0, 0.0, 0.0]);
    let op = DecayedLinear {
        state: Out::new(&mut state),
        dtype: DType::F32,
        decay: &[1.0],
        key_dim: 3,
        value_dim: 3,
        q: &k,
        k: &k,
        v: &v,
        y: Out::new(&mut y),
    };
    Pool::new(1).unwrap().run(|share| op.part(Isa::Scalar, share, 0));
    assert_eq!(state, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0]);
    assert_eq!(y, [5.0, 0.0, 0.0]);
}

/// Rows of a state space.
struct Space {
    rows: usize,
    heads: usize,
    groups: usize,
    head_dim: usize,
    state_dim: usize,
    x: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    dt: Vec<f32>,
    a: Vec<f32>,
    d: Vec<f32>,
}

impl Space {
    fn random(rows: usize, [heads, groups]: [usize; 2], [head_dim, state_dim]: [usize; 2]) -> Space {
        let random = &mut Random::new((rows * head_dim * state_dim) as u64);
        Space {
            rows,
            heads,
            groups,
            head_dim,
            state_dim,
            x: random.floats(rows * heads * head_dim, 1.0),
            b: random.floats(rows * groups * state_dim, 1.0),
            c: random.floats(rows * groups * state_dim, 1.0),
            dt: random.floats(rows * heads, 0.5).into_iter().map(f32::abs).collect(),
            a: random.floats(heads, 1.0),
            d: random.floats(heads, 1.0),
        }
    }
}

impl Case for Space {
    fn sizes(&self) -> (usize, usize) {
        (self.heads * self.head_dim * self.state_dim, self.heads * self.head_dim)
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn run(&self, isa: Isa, pool: &Pool, dtype: DType, rows: [usize; 2], state: &mut [f32], y: &mut [f32]) {
        let Space { heads, groups, head_dim, state_dim, .. } = *self;
        let rate = negative_rates(&self.a, DecayForm::Log, heads);
        let op = StateSpace {
            state: Out::new(state),
            dtype,
            heads,
            groups,
            head_dim,
            state_dim,
            x: &self.x[rows[0] * heads * head_dim..rows[1] * heads * head_dim],
            b: &self.b[rows[0] * groups * state_dim..rows[1] * groups * state_dim],
            c: &self.c[rows[0] * groups * state_dim..rows[1] * groups * state_dim],
            dt: &self.dt[rows[0] * heads..rows[1] * heads],
            rate: &rate,
            d: &self.d,
            y: Out::new(y),
        };
        pool.run(|share| op.part(isa, share, 1));
    }

    fn wanted(&self, row: usize, state: &mut [f64]) -> Vec<f64> {
        let Space { heads, groups, head_dim, state_dim, .. } = *self;
        let mut y = Vec::new();
        for (i, s) in state.chunks_exact_mut(state_dim).enumerate() {
            let head = i / head_dim;
            let group = (row * groups + head / (heads / groups)) * state_dim;
            let dt = f64::from(self.dt[row * heads + head]);
            let decay = (-f64::from(self.a[head]).exp() * dt).exp();
            let x = f64::from(self.x[row * heads * head_dim + i]);
            let mut sum = f64::from(self.d[head]) * x;
            for (j, s) in s.iter_mut().enumerate() {
                *s = decay * *s + dt * x * f64::from(self.b[group + j]);
                sum += *s * f64::from(self.c[group + j]);
            }
            y.push(sum);
        }
        y
    }
}

#[test]
fn state_spaces() {
    for (rows, heads, groups, dims) in
        [(1, 1, 1, [1, 1]), (9, 4, 2, [5, 7]), (7, 6, 1, [16, 32]), (8, 2, 2, [37, 50]), (5, 3, 3, [64, 128])]
    {
        let case = Space::random(rows, [heads, groups], dims);
        check(&format!("{rows} rows, {heads} heads in {groups} groups, {dims:?}"), &case);
    }
}

#[test]
fn logarithms_of_decays() {
    for isa in isas() {
        for form in [DecayForm::Log, DecayForm::Negative] {
            for (rows, heads, dim) in [(1, 1, 1), (3, 5, 1), (4, 3, 7), (2, 2, 32)] {
                let (random, width) = (&mut Random::new(9), heads * dim);
                let (x, bias) = (random.floats(rows * width, 12.0), random.floats(width, 2.0));
                let mut a = random.floats(heads, 1.5);
                if form == DecayForm::Negative {
                    a.iter_mut().for_each(|a| *a = -a.abs());
                }
                let rate = negative_rates(&a, form, width);
                let mut y = x.clone();
                let op = LogDecay { x: &x, rate: &rate, bias: &bias, y: Out::new(&mut y) };
                Pool::new(2).unwrap().run(|share| op.part(isa, share));
                let wanted: Vec<(f64, f64)> = (0..x.len())
                    .map(|i| {
                        let a = f64::from(a[i % width / dim]);
                        let rate = if form == DecayForm::Log { a.exp() } else { -a };
                        let inner = f64::from(x[i]) + f64::from(bias[i % width]);
                        let y = -rate * inner.exp().ln_1p();
                        // The sum of `x` and the bias is rounded before the exponential.
                        (y, y.abs() * (1.0 + inner.abs() / 4.0))
                    })
                    .collect();
                assert_close(&format!("{heads} heads of {dim}, {isa}"), &y, &wanted, 5e-7);
            }
        }
    }
}
