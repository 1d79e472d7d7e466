//! Ops against plain loops in F64, on every instruction set of this machine; and against themselves, where a law says
//! that bits must be the same.

#[path = "../../tests/common/mod.rs"]
pub(super) mod common;

use super::Out;
use super::attend::Attend;
use super::attend_row::{AttendRow, shared_floats};
use super::elementwise::{Each, Elementwise};
use super::exp::exp;
use super::rms_norm::RmsNorm;
use super::rope::Rope;
use super::rows::{Gather, Past, Slots, Store};
use super::{Weights, linear_f32::widen::widen_row};
use crate::arch::{Isa, Kernel, Simd};
use crate::pool::Pool;
use common::{Random, assert_close, assert_same, decode, isas, weights};
use tranship_dtype::{DType, Encoding};
use tranship_program::ops::RopeStyle;

struct Exp<'a>(&'a mut [f32]);

impl Kernel for Exp<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.0 {
            *x = s.reduce_max(exp(s, s.splat(*x)));
        }
    }
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    for isa in isas() {
        let inputs: Vec<f32> = (0..20_000).map(|i| -86.9 + i as f32 * 0.008_74).collect();
        let mut results = inputs.clone();
        isa.dispatch(Exp(&mut results));
        for (x, y) in inputs.into_iter().zip(results) {
            let wanted = f64::from(x).exp();
            let unit = f64::from(f32::from_bits((wanted as f32).to_bits() + 1)) - f64::from(wanted as f32);
            assert!((f64::from(y) - wanted).abs() <= 2.0 * unit, "{isa}: exp({x}) is {y}, not {wanted}");
        }
        let mut special = [0.0, -1000.0, f32::MIN, 88.0];
        isa.dispatch(Exp(&mut special));
        assert!(special[0] == 1.0 && special[1] < 2e-38 && special[2] < 2e-38 && special[3].is_finite());
    }
}

/// A model's attention, and the sequence that it is over.
#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    len: usize,
    dtype: DType,
}

/// Queries, keys and values of a whole sequence.
struct Sequence {
    shape: Shape,
    q: Vec<f32>,
    k: Vec<u8>,
    v: Vec<u8>,
}

impl Sequence {
    fn random(shape: Shape) -> Sequence {
        let random = &mut Random::new(shape.len as u64);
        let Shape { heads, kv_heads, dim, len, dtype } = shape;
        let q = random.floats(len * heads * dim, 4.0);
        let (k, v) =
            (weights(random, dtype, len * kv_heads * dim), weights(random, dtype, len * kv_heads * dim));
        Sequence { shape, q, k, v }
    }

    /// Rows `from .. to`, in one call.
    fn attend(&self, isa: Isa, threads: usize, from: usize, to: usize) -> Vec<f32> {
        let Shape { heads, dim, .. } = self.shape;
        let mut y = vec![f32::NAN; (to - from) * heads * dim];
        let op = self.op(from, to, Out::new(&mut y));
        Pool::new(threads).unwrap().run(|share| op.part(isa, share, 0));
        y
    }

    /// One row as in decoding, alone in its step or not, and seen through a window with a sink or not.
    fn attend_row(
        &self,
        isa: Isa,
        threads: usize,
        row: usize,
        alone: bool,
        window: Option<usize>,
    ) -> Vec<f32> {
        let Shape { heads, dim, len, .. } = self.shape;
        let mut y = vec![f32::NAN; heads * dim];
        let mut memory = vec![f32::NAN; shared_floats(heads, dim, len)];
        let sinks = vec![0.5; heads];
        let op = self.op(row, row + 1, Out::new(&mut y));
        let op = Attend { window, sinks: window.map(|_| &sinks[..]), ..op };
        let shared = alone.then_some(Out::new(&mut memory));
        let op = AttendRow::new(op, shared).expect("a row of caches in 16 bits");
        Pool::new(threads).unwrap().run(|share| op.part(isa, share, 0));
        y
    }

    fn op<'a>(&'a self, from: usize, to: usize, y: Out<'a>) -> Attend<'a> {
        let Shape { heads, kv_heads, dim, dtype, .. } = self.shape;
        let width = kv_heads * dim;
        let bytes = to * width * dtype.block_bytes();
        let past = |kept| Past { kept, dtype, width, slots: to, turn: 0, new: None };
        Attend {
            q: &self.q[from * heads * dim..to * heads * dim],
            position: from,
            heads,
            kv_heads,
            keys: past(&self.k[..bytes]),
            values: Some(past(&self.v[..bytes])),
            scale: 0.3,
            window: None,
            softcap: None,
            sinks: None,
            compressed: None,
            y,
        }
    }

    /// The definition, in F64; with each value the greatest value that went into it.
    fn wanted(&self) -> Vec<(f64, f64)> {
        let Shape { heads, kv_heads, dim, len, dtype } = self.shape;
        let (k, v) =
            (decode(dtype, &self.k, len * kv_heads * dim), decode(dtype, &self.v, len * kv_heads * dim));
        let mut out = Vec::new();
        for row in 0..len {
            for head in 0..heads {
                let q = &self.q[(row * heads + head) * dim..][..dim];
                let at = |key: usize| (key * kv_heads + head / (heads / kv_heads)) * dim;
                let score = |key: usize| {
                    let k = &k[at(key)..][..dim];
                    q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * 0.3
                };
                let scores: Vec<f64> = (0..=row).map(score).collect();
                let most = scores.iter().fold(f64::MIN, |a, b| a.max(*b));
                let total: f64 = scores.iter().map(|s| (s - most).exp()).sum();
                for d in 0..dim {
                    let value = |key: usize| f64::from(v[at(key) + d]);
                    let sum: f64 =
                        scores.iter().enumerate().map(|(key, s)| (s - most).exp() * value(key)).sum();
                    out.push((sum / total, 1.0));
                }
            }
        }
        out
    }
}

#[test]
fn one_row_is_attended_to_in_parts() {
    for shape in shapes().into_iter().filter(|shape| shape.dtype != DType::F32) {
        let len = 150 + 3 * shape.len;
        let sequence = Sequence::random(Shape { len, ..shape });
        let width = shape.heads * shape.dim;
        let wanted = sequence.wanted();
        for isa in isas() {
            for row in [0, 1, 127, 128, len - 1] {
                let what = format!("{} heads of {}, row {row}, {isa}", shape.heads, shape.dim);
                let y = sequence.attend_row(isa, 1, row, true, None);
                assert_close(&what, &y, &wanted[row * width..(row + 1) * width], 2e-5);
                for (threads, alone) in [(2, true), (3, true), (1, false), (2, false)] {
                    let other = sequence.attend_row(isa, threads, row, alone, None);
                    assert_eq!(other, y, "{what}, {threads} threads, alone: {alone}");
                }
                // Through a window and with sinks: what the kernel of a prompt's rows gives.
                let mut prompt = vec![f32::NAN; width];
                let sinks = vec![0.5; shape.heads];
                let op = sequence.op(row, row + 1, Out::new(&mut prompt));
                let op = Attend { window: Some(140), sinks: Some(&sinks), ..op };
                Pool::new(1).unwrap().run(|share| op.part(isa, share, 0));
                let prompt: Vec<(f64, f64)> = prompt.iter().map(|y| (f64::from(*y), 1.0)).collect();
                for (threads, alone) in [(1, true), (3, true), (2, false)] {
                    let y = sequence.attend_row(isa, threads, row, alone, Some(140));
                    assert_close(&format!("{what}, a window"), &y, &prompt, 2e-5);
                }
            }
        }
    }
}

#[test]
fn one_row_reads_a_ring_and_the_steps_own_row_as_it_reads_rows_that_lie_in_order() {
    let (dtype, len, turn) = (DType::F16, 301, 77);
    let shape = Shape { heads: 6, kv_heads: 2, dim: 20, len, dtype };
    let sequence = Sequence::random(shape);
    let width = shape.kv_heads * shape.dim;
    // All rows but the last, turned; the last as the step has it.
    let ring = |bytes: &[u8]| {
        let mut ring = bytes[..(len - 1) * width * 2].to_vec();
        ring.rotate_right(turn * width * 2);
        (ring, decode(dtype, &bytes[(len - 1) * width * 2..], width))
    };
    let ((k, new_k), (v, new_v)) = (ring(&sequence.k), ring(&sequence.v));
    let past = |kept, new| Past { kept, dtype, width, slots: len - 1, turn, new: Some((len - 1, new)) };
    for isa in isas() {
        for softcap in [None, Some(2.0)] {
            let row = |turned: bool| {
                let mut y = vec![f32::NAN; shape.heads * shape.dim];
                let mut memory = vec![f32::NAN; shared_floats(shape.heads, shape.dim, len)];
                let mut op = Attend { softcap, ..sequence.op(len - 1, len, Out::new(&mut y)) };
                if turned {
                    (op.keys, op.values) = (past(&k, &new_k), Some(past(&v, &new_v)));
                }
                let op = AttendRow::new(op, Some(Out::new(&mut memory))).expect("a row of caches in 16 bits");
                Pool::new(2).unwrap().run(|share| op.part(isa, share, 0));
                y
            };
            let y = row(false);
            assert_same(&format!("{isa}, a ring"), &row(true), &y);
            let mut prompt = vec![f32::NAN; y.len()];
            let op = Attend { softcap, ..sequence.op(len - 1, len, Out::new(&mut prompt)) };
            Pool::new(1).unwrap().run(|share| op.part(isa, share, 0));
            let prompt: Vec<(f64, f64)> = prompt.iter().map(|y| (f64::from(*y), 1.0)).collect();
            assert_close(&format!("{isa}, softcap {softcap:?}"), &y, &prompt, 2e-5);
        }
    }
}

#[test]
fn values_that_are_not_numbers_are_not_lost_in_parts() {
    let shape = Shape { heads: 2, kv_heads: 1, dim: 16, len: 300, dtype: DType::F16 };
    let mut sequence = Sequence::random(shape);
    sequence.k[200 * 32..200 * 32 + 2].copy_from_slice(&half::f16::NAN.to_le_bytes());
    for isa in isas() {
        assert!(sequence.attend_row(isa, 2, 299, true, None).iter().all(|y| y.is_nan()), "{isa}");
        assert!(sequence.attend_row(isa, 1, 199, true, None).iter().all(|y| y.is_finite()), "{isa}");
    }
}

fn shapes() -> Vec<Shape> {
    let shape = |heads, kv_heads, dim, len, dtype| Shape { heads, kv_heads, dim, len, dtype };
    vec![
        shape(1, 1, 1, 1, DType::F32),
        shape(9, 3, 64, 150, DType::F32),
        shape(9, 3, 64, 70, DType::F16),
        shape(4, 4, 20, 130, DType::F32),
        shape(8, 1, 80, 66, DType::BF16),
        shape(2, 1, 7, 200, DType::F16),
        shape(14, 2, 128, 40, DType::F32),
    ]
}

#[test]
fn attention_is_its_definition() {
    for isa in isas() {
        for shape in shapes() {
            let sequence = Sequence::random(shape);
            let Shape { heads, kv_heads, dim, len, dtype } = shape;
            let what = format!("{heads} over {kv_heads} heads of {dim}, {len} rows of {dtype}, {isa}");
            assert_close(&what, &sequence.attend(isa, 2, 0, len), &sequence.wanted(), 1e-5);
        }
    }
}

#[test]
fn attention_has_the_same_bits_for_every_split() {
    for isa in isas() {
        for shape in shapes() {
            let sequence = Sequence::random(shape);
            let width = shape.heads * shape.dim;
            let whole = sequence.attend(isa, 1, 0, shape.len);
            for (threads, step) in [(1, 1), (2, 7), (3, 33), (2, 64), (3, shape.len)] {
                for from in (0..shape.len).step_by(step) {
                    let to = (from + step).min(shape.len);
                    let part = sequence.attend(isa, threads, from, to);
                    assert_same(
                        &format!("{isa}, rows {from}..{to}"),
                        &part,
                        &whole[from * width..to * width],
                    );
                }
            }
        }
    }
}

#[test]
fn rms_norm_is_its_definition() {
    for isa in isas() {
        for (rows, width) in [(1, 1), (3, 7), (5, 64), (2, 576), (4, 577)] {
            let random = &mut Random::new(width as u64);
            let (x, gain) = (random.floats(rows * width, 5.0), random.floats(width, 2.0));
            let mut y = vec![0.0; x.len()];
            let y_out = Out::new(&mut y);
            let op = RmsNorm { x: &x, width, heads: 1, gain: Some(&gain), offset: 0.0, eps: 1e-5, y: y_out };
            Pool::new(2).unwrap().run(|share| op.part(isa, share));
            let mut wanted = Vec::new();
            for x in x.chunks_exact(width) {
                let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
                let scale = 1.0 / (mean + f64::from(1e-5f32)).sqrt();
                wanted.extend(x.iter().zip(&gain).map(|(x, g)| {
                    let y = f64::from(*x) * scale * f64::from(*g);
                    (y, y.abs())
                }));
            }
            assert_close(&format!("[{rows}, {width}], {isa}"), &y, &wanted, 1e-6);
        }
    }
}

#[test]
fn rope_turns_pairs() {
    for isa in isas() {
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            for (heads, dim, pairs) in [(1, 2, 1), (3, 64, 32), (2, 50, 11), (4, 80, 40)] {
                let (rows, width) = (3, heads * dim);
                let random = &mut Random::new(dim as u64);
                let x = random.floats(rows * width, 2.0);
                let (cos, sin) = (random.floats(rows * pairs, 1.0), random.floats(rows * pairs, 1.0));
                let mut y = x.clone();
                let (x_out, cos, sin) = (Out::new(&mut y), &cos, &sin);
                let op = Rope { x: x_out, width, heads, style, cos, sin, pairs, skip: 0, inverse: false };
                Pool::new(2).unwrap().run(|share| op.part(isa, share));
                let mut wanted: Vec<(f64, f64)> = x.iter().map(|x| (f64::from(*x), 4.0)).collect();
                for row in 0..rows {
                    for head in 0..heads {
                        for j in 0..pairs {
                            let start = row * width + head * dim;
                            let (a, b) = match style {
                                RopeStyle::Half => (start + j, start + j + pairs),
                                RopeStyle::Interleaved => (start + 2 * j, start + 2 * j + 1),
                            };
                            let (u, v) = (f64::from(x[a]), f64::from(x[b]));
                            let (c, d) = (f64::from(cos[row * pairs + j]), f64::from(sin[row * pairs + j]));
                            wanted[a].0 = u * c - v * d;
                            wanted[b].0 = u * d + v * c;
                        }
                    }
                }
                assert_close(&format!("{style:?}, {heads} heads of {dim}, {isa}"), &y, &wanted, 1e-7);
            }
        }
    }
}

#[test]
fn elementwise_is_its_definition() {
    for isa in isas() {
        for n in [1, 5, 16, 100, 1000] {
            let random = &mut Random::new(n as u64);
            let (x, other) = (random.floats(n, 20.0), random.floats(n, 2.0));
            let silu = |x: f32| f64::from(x) / (1.0 + (-f64::from(x)).exp());
            type Definition<'a> = Box<dyn Fn(usize) -> f64 + 'a>;
            let cases: Vec<(Each<'_>, Definition<'_>)> = vec![
                (Each::Silu, Box::new(|i| silu(x[i]))),
                (Each::SiluMul(&other), Box::new(|i| silu(x[i]) * f64::from(other[i]))),
                (Each::Add(&other), Box::new(|i| f64::from(x[i]) + f64::from(other[i]))),
                (Each::Mul(&other), Box::new(|i| f64::from(x[i]) * f64::from(other[i]))),
                (Each::Mul(&other[..1]), Box::new(|i| f64::from(x[i]) * f64::from(other[0]))),
                (Each::Copy(&other), Box::new(|i| f64::from(other[i]))),
                (Each::Round(DType::F16), Box::new(|i| half::f16::from_f32(x[i]).to_f64())),
                (Each::Round(DType::BF16), Box::new(|i| half::bf16::from_f32(x[i]).to_f64())),
            ];
            for (each, definition) in cases {
                let mut y = x.clone();
                let op = Elementwise { x: Out::new(&mut y), each };
                Pool::new(2).unwrap().run(|share| op.part(isa, share));
                let wanted: Vec<(f64, f64)> = (0..n).map(|i| (definition(i), definition(i).abs())).collect();
                assert_close(
                    &format!("{each:?} of {n}, {isa}").chars().take(80).collect::<String>(),
                    &y,
                    &wanted,
                    5e-7,
                );
            }
        }
    }
}

#[test]
fn rows_of_tables_and_caches() {
    let dtypes = [DType::F32, DType::F16, DType::BF16].into_iter().chain(Encoding::ALL.map(DType::from));
    for dtype in dtypes {
        let (rows, width) = (9, dtype.block_len() * 3);
        let random = &mut Random::new(width as u64);
        let table = weights(random, dtype, rows * width);
        let values = decode(dtype, &table, rows * width);
        let w = Weights::new(dtype, &table, rows, width);
        for isa in isas() {
            let mut row = vec![f32::NAN; width + 5];
            for r in 0..rows {
                widen_row(isa, &w, r, &mut row);
                assert_same(&format!("{dtype}, {isa}"), &row[..width], &values[r * width..(r + 1) * width]);
                assert_eq!(row[width..], [0.0; 5]);
            }
        }
        let ids = [3, 0, 8, 8];
        let mut y = vec![0.0; ids.len() * width];
        let op = Gather { table: w, ids: &ids, y: Out::new(&mut y) };
        Pool::new(2).unwrap().run(|share| op.part(share));
        for (y, id) in y.chunks_exact(width).zip(ids) {
            assert_same(&format!("gather of {dtype}"), y, &values[id as usize * width..][..width]);
        }
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let (rows, width) = (5, 33);
        let mut x = Random::new(1).floats(rows * width, 100.0);
        let mut stored = x.clone();
        // Finite values stay finite, others stay what they are.
        let special =
            [(70_000.0, 65_504.0), (-1e30, -65_504.0), (f32::INFINITY, f32::INFINITY), (f32::NAN, f32::NAN)];
        for at in [4, rows * width - 5] {
            for (i, (value, in_f16)) in special.into_iter().enumerate() {
                x[at + i] = value;
                stored[at + i] = if dtype == DType::F16 { in_f16 } else { value };
            }
        }
        let mut wanted = vec![0u8; rows * width * dtype.block_bytes()];
        tranship_tensor::encode(dtype, &stored, &mut wanted).expect("a float type");
        for isa in isas() {
            let mut cache = vec![0u8; wanted.len()];
            let kept = Out::new(&mut cache);
            let op = Store { x: &x, width, dtype, slots: Slots::From(0), kept };
            Pool::new(2).unwrap().run(|share| op.part(isa, share));
            let (got, wanted) = (decode(dtype, &cache, x.len()), decode(dtype, &wanted, x.len()));
            for (i, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                assert!(
                    got == wanted || got.is_nan() && wanted.is_nan(),
                    "{dtype}, {isa}: {} became {got}",
                    x[i]
                );
            }
        }
    }
}
