//! Functions, norms of heads, convolution, routing, streams and grouped products against plain loops in F64.

use super::columns::{Slice, Tile};
use super::conv::Conv;
use super::elementwise::{Each, Elementwise};
use super::quantize::{Quantize, QuantizedRows};
use super::rms_norm::{L2Norm, RmsNorm};
use super::rope::Rope;
use super::route::{Route, Table};
use super::rows::Window;
use super::streams::{StreamCollapse, StreamExpand, StreamGates};
use super::tests::common::{Random, assert_close, assert_same, decode, isas, linear_f64, weights};
use super::{Epilogue, Out, Weights, linear_f32, linear_quant};
use crate::arch::Isa;
use crate::pool::Pool;
use tranship_dtype::{DType, Encoding};
use tranship_program::ops::{self, Groups, RopeStyle, RouteBias, Score, Unary};

/// `erf(x)` by its series and, far out, by its continued fraction.
fn erf(x: f64) -> f64 {
    let size = x.abs();
    let value = if size < 3.0 {
        let (mut term, mut sum, mut n) = (size, size, 0.0);
        while term.abs() > 1e-18 {
            n += 1.0;
            term *= -size * size / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        1.0 - erfc_far(size)
    };
    value.copysign(x)
}

/// `1 − erf(x)` for `x` from 3 up: Laplace's continued fraction.
fn erfc_far(x: f64) -> f64 {
    let fraction = (1..=60).rev().fold(x, |below, n| x + f64::from(n) / 2.0 / below);
    (-x * x).exp() / fraction / std::f64::consts::PI.sqrt()
}

/// `x/2 · (1 + erf(x/√2))`, of which little is left far down.
fn gelu(x: f64) -> f64 {
    let t = x / std::f64::consts::SQRT_2;
    x / 2.0 * if t < -3.0 { erfc_far(-t) } else { 1.0 + erf(t) }
}

#[test]
fn functions_are_their_definitions() {
    type Definition = fn(f64) -> f64;
    let functions: [(Unary, Definition); 9] = [
        (Unary::Gelu, gelu),
        (Unary::GeluTanh, |x| x / (1.0 + (-1.595_769_121_605_731 * (x + 0.044_715 * x.powi(3))).exp())),
        (Unary::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (Unary::Softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
        (Unary::Relu2, |x| x.max(0.0).powi(2)),
        (Unary::Softcap(30.0), |x| 30.0 * (x / 30.0).tanh()),
        (Unary::Softcap(0.5), |x| 0.5 * (x / 0.5).tanh()),
        (Unary::Scale(-0.75), |x| -0.75 * x),
        (Unary::Clamp { min: Some(-1.5), max: Some(7.0) }, |x| x.clamp(-1.5, 7.0)),
    ];
    // From far out to very small, of both signs; then whatever a partial vector needs.
    let mut x: Vec<f32> = (0..2_003).map(|i| (i as f32 - 1_001.0) * 0.012).collect();
    x.extend((0..200).map(|i| 1.1f32.powi(-i) * if i % 2 == 0 { 1.0 } else { -1.0 }));
    x.extend([60.0, -60.0, 0.0]);
    let other = Random::new(2).floats(x.len(), 2.0);
    for isa in isas() {
        for (f, definition) in functions {
            let wanted: Vec<(f64, f64)> = x
                .iter()
                .map(|x| {
                    let (x, y) = (f64::from(*x), definition(f64::from(*x)));
                    // What falls off to the left is an exponential, of up to a cube: the farther out, the more its
                    // rounding is. It ends at 1e-38.
                    let exponent = (-x).max(0.0).powi(3) / 16.0;
                    (y, y.abs() * (1.0 + exponent) + 1e-30)
                })
                .collect();
            let run = |each: Each<'_>| {
                let mut y = x.clone();
                let op = Elementwise { x: Out::new(&mut y), each };
                Pool::new(2).unwrap().run(|share| op.part(isa, share));
                y
            };
            let y = run(Each::Unary(f));
            assert_close(&format!("{f:?}, {isa}"), &y, &wanted, 6e-7);
            let times: Vec<f32> = y.iter().zip(&other).map(|(y, o)| y * o).collect();
            assert_same(&format!("{f:?} times, {isa}"), &run(Each::UnaryMul(f, &other)), &times);
            let mut lost = [f32::NAN];
            let op = Elementwise { x: Out::new(&mut lost), each: Each::Unary(f) };
            Pool::new(1).unwrap().run(|share| op.part(isa, share));
            assert!(lost[0].is_nan(), "{f:?}, {isa}: NaN became {}", lost[0]);
            let mut great = [1e20, -1e20];
            let op = Elementwise { x: Out::new(&mut great), each: Each::Unary(f) };
            Pool::new(1).unwrap().run(|share| op.part(isa, share));
            assert!(great.iter().all(|v| !v.is_nan()), "{f:?}, {isa}: a great number became {great:?}");
        }
    }
}

#[test]
fn numbers_for_parts_of_rows() {
    for isa in isas() {
        for (rows, parts, len) in [(1, 1, 1), (3, 5, 7), (2, 4, 64), (5, 3, 33)] {
            let random = &mut Random::new(len as u64);
            let (x, other) = (random.floats(rows * parts * len, 1.0), random.floats(rows * parts, 1.0));
            for (add, each) in [
                (true, Each::AddParts { other: &other, len }),
                (false, Each::MulParts { other: &other, len }),
            ] {
                let mut y = x.clone();
                let op = Elementwise { x: Out::new(&mut y), each };
                Pool::new(2).unwrap().run(|share| op.part(isa, share));
                let of = |i: usize| if add { x[i] + other[i / len] } else { x[i] * other[i / len] };
                let wanted: Vec<f32> = (0..x.len()).map(of).collect();
                assert_same(&format!("{parts} parts of {len}, {isa}"), &y, &wanted);
            }
        }
    }
}

#[test]
fn norms_of_parts() {
    for isa in isas() {
        for (rows, heads, dim) in [(1, 1, 5), (3, 4, 7), (2, 3, 64), (4, 2, 129)] {
            let (random, width) = (&mut Random::new(dim as u64), heads * dim);
            let (x, gain) = (random.floats(rows * width, 3.0), random.floats(width, 1.0));
            for (gain, offset) in
                [(None, 0.0), (Some(&gain[..]), 0.0), (Some(&gain[..dim]), 1.0), (Some(&gain[..]), 1.0)]
            {
                for mean in [true, false] {
                    let mut y = vec![0.0; x.len()];
                    let (out, eps) = (Out::new(&mut y), 1e-3);
                    Pool::new(2).unwrap().run(|share| match mean {
                        true => {
                            RmsNorm { x: &x, width, heads, gain, offset, eps, y: out }.part(isa, share);
                        }
                        false => L2Norm { x: &x, width, heads, eps, y: out }.part(isa, share),
                    });
                    let wanted: Vec<(f64, f64)> = (0..x.len())
                        .map(|i| {
                            let part = &x[i / dim * dim..][..dim];
                            let sum: f64 = part.iter().map(|x| f64::from(*x).powi(2)).sum();
                            let over = if mean { dim as f64 } else { 1.0 };
                            let y = f64::from(x[i]) / (sum / over + f64::from(eps)).sqrt();
                            let gain = gain.filter(|_| mean).map(|gain| gain[i % gain.len()]);
                            let y = y * gain.map_or(1.0, |gain| f64::from(gain) + f64::from(offset));
                            (y, y.abs() + 1e-3)
                        })
                        .collect();
                    assert_close(&format!("{heads} heads of {dim}, mean: {mean}, {isa}"), &y, &wanted, 1e-6);
                }
            }
        }
    }
}

#[test]
fn rope_skips_and_turns_back() {
    for isa in isas() {
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            for (heads, dim, pairs, skip) in [(1, 5, 1, 3), (3, 80, 19, 40), (2, 64, 16, 32)] {
                let (rows, width) = (3, heads * dim);
                let random = &mut Random::new(dim as u64);
                let x = random.floats(rows * width, 2.0);
                let angles = random.floats(rows * pairs, 3.0);
                let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
                let turn = |x: &[f32], skip: usize, inverse: bool| {
                    let mut y = x.to_vec();
                    let (cos, sin) = (&cos, &sin);
                    let op =
                        Rope { x: Out::new(&mut y), width, heads, style, cos, sin, pairs, skip, inverse };
                    Pool::new(2).unwrap().run(|share| op.part(isa, share));
                    y
                };
                let there = turn(&x, skip, false);
                // As the end of each head by itself.
                let ends = |x: &[f32]| -> Vec<f32> {
                    x.chunks_exact(dim).flat_map(|head| head[skip..skip + 2 * pairs].to_vec()).collect()
                };
                let mut alone = ends(&x);
                let op = Rope {
                    x: Out::new(&mut alone),
                    width: heads * 2 * pairs,
                    heads,
                    style,
                    cos: &cos,
                    sin: &sin,
                    pairs,
                    skip: 0,
                    inverse: false,
                };
                Pool::new(1).unwrap().run(|share| op.part(isa, share));
                assert_same(&format!("{style:?}, {isa}"), &ends(&there), &alone);
                let back: Vec<(f64, f64)> = x.iter().map(|x| (f64::from(*x), 4.0)).collect();
                assert_close(&format!("back, {style:?}, {isa}"), &turn(&there, skip, true), &back, 2e-7);
                for (head, before) in there.chunks_exact(dim).zip(x.chunks_exact(dim)) {
                    assert_same("what is skipped", &head[..skip], &before[..skip]);
                    assert!(head[skip..skip + 2 * pairs] != before[skip..skip + 2 * pairs]);
                }
            }
        }
    }
}

#[test]
fn columns_are_moved() {
    let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let pool = Pool::new(2).unwrap();
    let mut y = [0.0; 8];
    let op = Slice { x: &x, width: 12, heads: 2, from: 3, to: 5, y: Out::new(&mut y) };
    pool.run(|share| op.part(share));
    assert_eq!(y, [3.0, 4.0, 9.0, 10.0, 15.0, 16.0, 21.0, 22.0]);
    let mut y = [0.0; 18];
    let op = Tile { x: &x[..6], width: 2, times: 3, y: Out::new(&mut y) };
    pool.run(|share| op.part(share));
    let wanted = [0., 1., 0., 1., 0., 1., 2., 3., 2., 3., 2., 3., 4., 5., 4., 5., 4., 5.];
    assert_eq!(y, wanted);
}

#[test]
fn convolution_over_a_ring() {
    for isa in isas() {
        for (channels, taps, slots, len) in [(1, 2, 1, 5), (70, 4, 3, 9), (129, 3, 4, 12), (64, 5, 7, 3)] {
            let random = &mut Random::new(channels as u64);
            let (x, w) = (random.floats(len * channels, 1.0), random.floats(channels * taps, 1.0));
            let bias = random.floats(channels, 1.0);
            for bias in [None, Some(&bias[..])] {
                let wanted: Vec<(f64, f64)> = (0..len * channels)
                    .map(|i| {
                        let (row, c) = (i / channels, i % channels);
                        let at = |tap: usize| {
                            (row + tap + 1).checked_sub(taps).map_or(0.0, |r| x[r * channels + c])
                        };
                        let sum =
                            (0..taps).map(|j| f64::from(w[c * taps + j]) * f64::from(at(j))).sum::<f64>();
                        (sum + bias.map_or(0.0, |bias| f64::from(bias[c])), taps as f64)
                    })
                    .collect();
                let mut first = None;
                for (threads, step) in [(1, len), (2, 1), (2, 2), (3, 5)] {
                    // Slots that nothing was put in must not be read.
                    let (mut ring, mut y) = (vec![f32::NAN; slots * channels], Vec::new());
                    for from in (0..len).step_by(step) {
                        let new = &x[from * channels..(from + step).min(len) * channels];
                        let mut rows = vec![f32::NAN; new.len()];
                        let op = Conv {
                            x: Window {
                                kept: &ring,
                                slots,
                                turn: 0,
                                before: taps - 1,
                                position: from,
                                new,
                                width: channels,
                            },
                            taps,
                            w: &w,
                            bias,
                            y: Out::new(&mut rows),
                        };
                        Pool::new(threads).unwrap().run(|share| op.part(isa, share, 1));
                        y.extend(rows);
                        for (i, row) in new.chunks_exact(channels).enumerate() {
                            let slot = (from + i) % slots;
                            ring[slot * channels..(slot + 1) * channels].copy_from_slice(row);
                        }
                    }
                    assert_close(&format!("{channels} channels, {taps} taps, {isa}"), &y, &wanted, 2e-7);
                    let first = first.get_or_insert_with(|| y.clone());
                    assert_same(&format!("{channels} channels, steps of {step}, {isa}"), &y, first);
                }
            }
        }
    }
}

/// The experts that a row goes to, and their weights, from logits in F64.
fn routed(op: &ops::Route, logits: &[f64], bias: &[f32], listed: Option<&[f32]>) -> Vec<f64> {
    let bias = |kind: RouteBias, e: usize| if op.bias == Some(kind) { f64::from(bias[e]) } else { 0.0 };
    let logits: Vec<f64> = logits.iter().enumerate().map(|(e, l)| l + bias(RouteBias::Logits, e)).collect();
    let total: f64 = logits.iter().map(|l| l.exp()).sum();
    let p: Vec<f64> = logits
        .iter()
        .map(|l| match op.score {
            Score::Softmax => l.exp() / total,
            Score::Sigmoid => 1.0 / (1.0 + (-l).exp()),
            Score::SqrtSoftplus => l.exp().ln_1p().sqrt(),
        })
        .collect();
    let choice: Vec<f64> = p.iter().enumerate().map(|(e, p)| p + bias(RouteBias::Choice, e)).collect();
    let ranked = |scores: Vec<(usize, f64)>, k: usize| -> Vec<usize> {
        let mut scores = scores;
        scores.sort_by(|a, b| b.1.total_cmp(&a.1));
        scores.truncate(k);
        scores.into_iter().map(|(i, _)| i).collect()
    };
    let mut open: Vec<(usize, f64)> = choice.iter().copied().enumerate().collect();
    if let Some(Groups { groups, top_groups, by_max }) = op.groups {
        let size = p.len() / groups as usize;
        let scores = choice.chunks_exact(size).map(|group| {
            let best = ranked(group.iter().copied().enumerate().collect(), if by_max { 1 } else { 2 });
            best.into_iter().map(|e| group[e]).sum()
        });
        let best = ranked(scores.enumerate().collect(), top_groups as usize);
        open.retain(|(e, _)| best.contains(&(e / size)));
    }
    let chosen: Vec<usize> = match listed {
        Some(listed) => listed.iter().map(|e| *e as usize).collect(),
        None => ranked(open, op.top_k as usize),
    };
    let sum: f64 = chosen.iter().map(|e| p[*e]).sum();
    let divisor = if op.normalize { sum + op.eps } else { 1.0 };
    (0..p.len()).map(|e| if chosen.contains(&e) { p[e] / divisor * op.scale } else { 0.0 }).collect()
}

/// Runs a route, for rows `from .. to` of `x`.
fn route(op: &Route<'_>, isa: Isa, threads: usize, [from, to]: [usize; 2]) -> Vec<f32> {
    let (width, experts) = (op.w.width(), op.w.outs());
    let mut y = vec![f32::NAN; (to - from) * experts];
    let table = op.table.map(|table| Table { tokens: &table.tokens[from..to], ..table });
    let op = Route { x: &op.x[from * width..to * width], table, y: Out::new(&mut y), ..*op };
    Pool::new(threads).unwrap().run(|share| op.part(isa, share));
    y
}

#[test]
fn routes_are_their_definition() {
    let plain = ops::Route {
        top_k: 3,
        score: Score::Softmax,
        bias: None,
        normalize: false,
        eps: 0.0,
        scale: 1.0,
        groups: None,
    };
    let groups = |groups, top_groups, by_max| Some(Groups { groups, top_groups, by_max });
    let routes = [
        (9, plain.clone()),
        (9, ops::Route { normalize: true, bias: Some(RouteBias::Logits), ..plain.clone() }),
        (
            20,
            ops::Route { score: Score::Sigmoid, bias: Some(RouteBias::Choice), scale: 2.5, ..plain.clone() },
        ),
        (
            24,
            ops::Route {
                score: Score::Sigmoid,
                normalize: true,
                eps: 1e-2,
                groups: groups(6, 2, false),
                ..plain.clone()
            },
        ),
        (24, ops::Route { bias: Some(RouteBias::Choice), groups: groups(4, 3, true), ..plain.clone() }),
        (5, ops::Route { score: Score::SqrtSoftplus, top_k: 5, normalize: true, ..plain.clone() }),
        (6, ops::Route { groups: groups(6, 4, false), ..plain.clone() }),
    ];
    for isa in isas() {
        for (experts, op) in &routes {
            for listed in [false, true] {
                let (rows, width, experts) = (13, 37, *experts);
                let random = &mut Random::new(experts as u64);
                let (x, bias) = (random.floats(rows * width, 1.0), random.floats(experts, 1.0));
                let w = weights(random, DType::F32, experts * width);
                let k = op.top_k as usize;
                // Of each token, `k` different experts.
                let table: Vec<f32> = (0..7 * k).map(|i| ((i / k * 2 + i % k) % experts) as f32).collect();
                let tokens: Vec<u32> = (0..rows as u32).map(|row| row * 3 % 7).collect();
                let all = Route {
                    x: &x,
                    w: Weights::new(DType::F32, &w, experts, width),
                    bias: op.bias.filter(|_| !listed).map(|_| &bias[..]),
                    route: &if listed { ops::Route { bias: None, ..op.clone() } } else { op.clone() },
                    table: listed.then_some(Table { experts: &table, tokens: &tokens }),
                    y: Out::new(&mut []),
                };
                let y = route(&all, isa, 2, [0, rows]);
                let logits = linear_f64(&x, &decode(DType::F32, &w, experts * width), width);
                let mut wanted = Vec::new();
                for (row, logits) in logits.chunks_exact(experts).enumerate() {
                    let logits: Vec<f64> = logits.iter().map(|l| l.0).collect();
                    let listed = listed.then(|| &table[tokens[row] as usize * k..][..k]);
                    wanted
                        .extend(routed(all.route, &logits, &bias, listed).into_iter().map(|v| (v, op.scale)));
                }
                assert_close(&format!("{op:?}, listed: {listed}, {isa}"), &y, &wanted, 2e-6);
                for row in [0, 5, rows - 1] {
                    let alone = route(&all, isa, 1, [row, row + 1]);
                    assert_same("a row alone", &alone, &y[row * experts..(row + 1) * experts]);
                }
            }
        }
    }
}

#[test]
fn of_equal_scores_the_earlier() {
    let x = [1.0, 1.0];
    let values = [1.0f32, 2.0, 2.0, 0.0, 2.0];
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let op = ops::Route {
        top_k: 2,
        score: Score::Sigmoid,
        bias: None,
        normalize: true,
        eps: 0.0,
        scale: 1.0,
        groups: None,
    };
    for isa in isas() {
        let w = Weights::new(DType::F32, &bytes, 5, 1);
        let all = Route { x: &x, w, bias: None, route: &op, table: None, y: Out::new(&mut []) };
        let half = [0.0, 0.5, 0.5, 0.0, 0.0];
        assert_eq!(route(&all, isa, 1, [0, 2]), [half, half].concat());
    }
}

#[test]
fn streams_are_gated() {
    for isa in isas() {
        for (streams, hidden, iterations) in [(1, 3, 1), (4, 33, 20), (3, 64, 2)] {
            let (rows, cols, eps) = (5, (2 + streams) * streams, 1e-3);
            let random = &mut Random::new(hidden as u64);
            let (h, base) = (random.floats(rows * cols, 3.0), random.floats(cols, 1.0));
            let (scale, pool) = ([0.7, 1.3, 0.9], Pool::new(2).unwrap());
            let mut gates = h.clone();
            let y = Out::new(&mut gates);
            let op = StreamGates { h: &h, base: &base, scale: &scale, streams, iterations, eps, y };
            pool.run(|share| op.part(share));
            let logit = |row: usize, i: usize, kind: usize| {
                f64::from(scale[kind]) * f64::from(h[row * cols + i]) + f64::from(base[i])
            };
            let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
            let mut wanted = Vec::new();
            for row in 0..rows {
                wanted.extend((0..streams).map(|i| sigmoid(logit(row, i, 0)) + eps));
                wanted.extend((streams..2 * streams).map(|i| 2.0 * sigmoid(logit(row, i, 1))));
                let mut mix: Vec<Vec<f64>> = (0..streams)
                    .map(|t| {
                        let row: Vec<f64> =
                            (0..streams).map(|s| logit(row, (2 + t) * streams + s, 2).exp()).collect();
                        row.iter().map(|v| v / row.iter().sum::<f64>() + eps).collect()
                    })
                    .collect();
                for round in 0..2 * iterations - 1 {
                    let before = mix.clone();
                    for (t, s) in (0..streams * streams).map(|i| (i / streams, i % streams)) {
                        let sum: f64 = match round % 2 {
                            0 => before.iter().map(|row| row[s]).sum(),
                            _ => before[t].iter().sum(),
                        };
                        mix[t][s] = before[t][s] / (sum + eps);
                    }
                }
                wanted.extend(mix.concat());
            }
            let scaled: Vec<(f64, f64)> = wanted.iter().map(|v| (*v, v.abs())).collect();
            assert_close(&format!("gates of {streams}"), &gates, &scaled, 1e-7);
            let mut narrow = h[..rows * streams].to_vec();
            let (base, y) = (&base[..streams], Out::new(&mut narrow));
            let op =
                StreamGates { h: &h[..rows * streams], base, scale: &[0.7], streams, iterations, eps, y };
            pool.run(|share| op.part(share));
            for (i, gate) in narrow.iter().enumerate() {
                let wanted =
                    sigmoid(f64::from(0.7f32) * f64::from(h[i]) + f64::from(base[i % streams])) + eps;
                assert!((f64::from(*gate) - wanted).abs() < 1e-7);
            }
            let (x, part) = (random.floats(rows * streams * hidden, 1.0), random.floats(rows * hidden, 1.0));
            let mut one = vec![f32::NAN; rows * hidden];
            let (g, y) = (&gates, Out::new(&mut one));
            let op = StreamCollapse { x: &x, gates: g, gate_cols: cols, streams, y };
            pool.run(|share| op.part(isa, share));
            let mut all = vec![f32::NAN; rows * streams * hidden];
            let op = StreamExpand { x: &x, y: &part, gates: g, streams, out: Out::new(&mut all) };
            pool.run(|share| op.part(isa, share));
            let gate = |row: usize, i: usize| f64::from(gates[row * cols + i]);
            let stream = |row: usize, s: usize, i: usize| f64::from(x[(row * streams + s) * hidden + i]);
            let (mut collapsed, mut expanded) = (Vec::new(), Vec::new());
            for row in 0..rows {
                let sum = |i: usize| (0..streams).map(|s| gate(row, s) * stream(row, s, i)).sum::<f64>();
                collapsed.extend((0..hidden).map(|i| (sum(i), streams as f64)));
                for s in 0..streams {
                    expanded.extend((0..hidden).map(|i| {
                        let mixed = |t: usize| gate(row, (2 + t) * streams + s) * stream(row, t, i);
                        let own = gate(row, streams + s) * f64::from(part[row * hidden + i]);
                        (own + (0..streams).map(mixed).sum::<f64>(), streams as f64)
                    }));
                }
            }
            assert_close(&format!("collapse of {streams}, {isa}"), &one, &collapsed, 2e-7);
            assert_close(&format!("expansion to {streams}, {isa}"), &all, &expanded, 2e-7);
        }
    }
}

#[test]
fn grouped_products() {
    let q4k = Encoding::Q4_K.into();
    for (dtype, groups, width, outs, rows) in [
        (DType::F32, 3, 5, 21, 9),
        (DType::BF16, 2, 33, 50, 2),
        (Encoding::Q8_0.into(), 4, 64, 132, 20),
        (Encoding::Q4_0.into(), 2, 96, 34, 3),
        (q4k, 2, 256, 96, 37),
        (q4k, 3, 256, 48, 1),
    ] {
        let random = &mut Random::new((groups * width) as u64);
        let (x, bias) = (random.floats(rows * groups * width, 1.0), random.floats(outs, 1.0));
        let w = weights(random, dtype, outs * width);
        let values = decode(dtype, &w, outs * width);
        let wanted = |x: &[f32]| -> Vec<(f64, f64)> {
            let one = |i: usize| {
                let (row, out) = (i / outs, i % outs);
                let x = &x[(row * groups + out / (outs / groups)) * width..][..width];
                let (sum, scale) = linear_f64(x, &values[out * width..(out + 1) * width], width)[0];
                (sum + f64::from(bias[out]), scale + 1.0)
            };
            (0..rows * outs).map(one).collect()
        };
        for isa in isas() {
            for threads in [1, 2] {
                let (pool, w) = (Pool::new(threads).unwrap(), Weights::new(dtype, &w, outs, width));
                let epilogue = Epilogue { bias: Some(&bias), add: false };
                let what = format!("{groups} groups of {dtype}, {rows} rows, {isa}");
                let mut y = vec![f32::NAN; rows * outs];
                let op = linear_f32::Grouped { x: &x, w, groups, epilogue, y: Out::new(&mut y) };
                pool.run(|share| op.part(isa, share));
                assert_close(&what, &y, &wanted(&x), 2e-6);
                if !matches!(dtype, DType::Block(_)) {
                    continue;
                }
                let mut q = QuantizedRows::new();
                q.reshape(rows * groups, width);
                let out = q.out();
                pool.run(|share| Quantize { x: &x, out }.part(isa, share));
                let mut stored = x.clone();
                stored.chunks_exact_mut(width).enumerate().for_each(|(row, x)| q.decode_row(row, x));
                let mut y = vec![f32::NAN; rows * outs];
                let op = linear_quant::Grouped { x: &q, w, groups, epilogue, y: Out::new(&mut y) };
                pool.run(|share| op.part(isa, share));
                assert_close(&format!("{what}, blocks"), &y, &wanted(&stored), 2e-6);
            }
        }
    }
}
