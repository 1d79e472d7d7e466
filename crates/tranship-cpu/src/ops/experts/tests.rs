//! Experts against plain loops in F64, and against themselves: a row's bits are its own.

use super::{Bank, Biases, Experts, ExpertsMemory, ExpertsSizes, X};
use crate::arch::Isa;
use crate::ops::quantize::{Quantize, QuantizedRows};
use crate::ops::tests::common::{Random, assert_same, decode, isas, weights};
use crate::ops::{Out, Weights};
use crate::pool::Pool;
use tranship_dtype::{DType, Encoding};
use tranship_program::ops::{self, ExpertAct};

/// A model's experts, and rows that are routed to them.
struct Case {
    op: ops::Experts,
    experts: usize,
    input: usize,
    width: usize,
    outs: usize,
    /// The types of `gate` and `up`, and of `down`.
    dtypes: [DType; 2],
    banks: [Vec<u8>; 3],
    biases: [Vec<f32>; 3],
    x: Vec<f32>,
    r: Vec<f32>,
    rows: usize,
}

impl Bank for Case {
    fn gate(&self, expert: usize) -> Option<Weights<'_>> {
        self.op.gated.then(|| self.expert(0, expert, self.dtypes[0], self.width, self.input))
    }
    fn up(&self, expert: usize) -> Weights<'_> {
        self.expert(1, expert, self.dtypes[0], self.width, self.input)
    }
    fn down(&self, expert: usize) -> Weights<'_> {
        self.expert(2, expert, self.dtypes[1], self.outs, self.width)
    }
}

impl Case {
    fn random(
        experts: usize,
        top_k: u64,
        [input, width, outs]: [usize; 3],
        dtypes: [DType; 2],
        rows: usize,
    ) -> Case {
        let random = &mut Random::new((experts * input + rows) as u64);
        let op = ops::Experts { top_k, act: ExpertAct::Silu, limit: None, gated: true, biased: false };
        let mut r = vec![0.0; rows * experts];
        for row in r.chunks_exact_mut(experts) {
            for _ in 0..top_k {
                // Sometimes the same twice: then the row has fewer.
                row[random.bits() as usize % experts] = random.float() * 0.5 + 0.6;
            }
        }
        Case {
            banks: [(dtypes[0], width * input), (dtypes[0], width * input), (dtypes[1], outs * width)]
                .map(|(dtype, n)| weights(random, dtype, experts * n)),
            biases: [width, width, outs].map(|n| random.floats(experts * n, 0.5)),
            x: random.floats(rows * input, 1.0),
            op,
            experts,
            input,
            width,
            outs,
            dtypes,
            r,
            rows,
        }
    }

    fn expert(&self, bank: usize, expert: usize, dtype: DType, outs: usize, width: usize) -> Weights<'_> {
        let size = outs * dtype.row_bytes(width).unwrap();
        Weights::new(dtype, &self.banks[bank][expert * size..(expert + 1) * size], outs, width)
    }

    /// Runs rows `from .. to`, in memory for as many.
    fn run(&self, isa: Isa, threads: usize, blocks: bool, from: usize, to: usize) -> Vec<f32> {
        let pool = Pool::new(threads).unwrap();
        let mut memory = ExpertsMemory::new(to - from);
        let sizes = ExpertsSizes {
            experts: self.experts,
            top_k: self.op.top_k as usize,
            input: self.input,
            width: self.width,
            outs: self.outs,
            blocks,
        };
        // Another operation's sizes leave room that is cut otherwise.
        memory.add(&ExpertsSizes { input: self.input * 3, width: self.width * 2, ..sizes });
        memory.add(&sizes);
        let x = &self.x[from * self.input..to * self.input];
        let mut q = QuantizedRows::new();
        if blocks {
            q.reshape(to - from, self.input);
            let out = q.out();
            pool.run(|share| Quantize { x, out }.part(isa, share));
        }
        let mut y = vec![f32::NAN; (to - from) * self.outs];
        let [gate, up, down] = self.biases.each_ref().map(Vec::as_slice);
        let op = Experts {
            x: if blocks { X::Blocks(&q) } else { X::Floats(x) },
            r: &self.r[from * self.experts..to * self.experts],
            experts: self.experts,
            op: &self.op,
            bank: self,
            biases: self.op.biased.then_some(Biases { gate, up, down }),
            room: memory.room(),
            y: Out::new(&mut y),
        };
        pool.run(|share| {
            op.part(isa, share);
            share.barrier();
        });
        y
    }

    /// The definition; with `blocks`, of the values that rows of blocks stand for, hidden ones too.
    fn wanted(&self, blocks: bool) -> Vec<f64> {
        let [gate, up, down] = [0, 1, 2].map(|bank| {
            let n = self.experts * self.width * if bank == 2 { self.outs } else { self.input };
            decode(self.dtypes[usize::from(bank == 2)], &self.banks[bank], n)
        });
        let mut y = vec![0.0; self.rows * self.outs];
        for row in 0..self.rows {
            let x = rounded(&self.x[row * self.input..(row + 1) * self.input], blocks);
            for expert in 0..self.experts {
                let weight = f64::from(self.r[row * self.experts + expert]);
                if weight == 0.0 {
                    continue;
                }
                let project = |bank: &[f32], bias: &[f32], i: usize| {
                    let w = &bank[(expert * self.width + i) * self.input..][..self.input];
                    let bias = if self.op.biased { f64::from(bias[expert * self.width + i]) } else { 0.0 };
                    w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() + bias
                };
                let hidden: Vec<f32> = (0..self.width)
                    .map(|i| {
                        let g = if self.op.gated { project(&gate, &self.biases[0], i) } else { 0.0 };
                        self.act(g, project(&up, &self.biases[1], i)) as f32
                    })
                    .collect();
                let hidden = rounded(&hidden, blocks && self.width.is_multiple_of(32));
                for o in 0..self.outs {
                    let w = &down[(expert * self.outs + o) * self.width..][..self.width];
                    let sum: f64 = w.iter().zip(&hidden).map(|(w, h)| f64::from(*w) * f64::from(*h)).sum();
                    let bias =
                        if self.op.biased { f64::from(self.biases[2][expert * self.outs + o]) } else { 0.0 };
                    y[row * self.outs + o] += weight * (sum + bias);
                }
            }
        }
        y
    }

    fn act(&self, g: f64, u: f64) -> f64 {
        let limit = self.op.limit.unwrap_or(f64::INFINITY);
        let (g, u) = (g.min(limit), u.clamp(-limit, limit));
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match self.op.act {
            ExpertAct::Silu => g * sigmoid(g) * u,
            // Of tanh, not of the error function: the two differ by less than a thousandth.
            ExpertAct::Gelu | ExpertAct::GeluTanh => {
                g * sigmoid(1.595_769_121_6 * (g + 0.044_715 * g.powi(3))) * u
            }
            ExpertAct::Relu2 => u.max(0.0).powi(2),
            ExpertAct::Swish { alpha } => g * sigmoid(alpha * g) * (u + 1.0),
        }
    }
}

fn rounded(x: &[f32], blocks: bool) -> Vec<f32> {
    if !blocks {
        return x.to_vec();
    }
    let mut q = QuantizedRows::new();
    q.reshape(1, x.len());
    let out = q.out();
    Pool::new(1).unwrap().run(|share| Quantize { x, out }.part(Isa::Scalar, share));
    let mut y = vec![0.0; x.len()];
    q.decode_row(0, &mut y);
    y
}

/// Holds the results to the definition, by their root mean square.
fn assert_near(what: &str, got: &[f32], wanted: &[f64], tolerance: f64) {
    assert_eq!(got.len(), wanted.len());
    let scale = (wanted.iter().map(|w| w * w).sum::<f64>() / wanted.len().max(1) as f64).sqrt();
    assert!(wanted.is_empty() || scale > 1e-3, "{what}: nothing to be held to");
    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!(
            (f64::from(*got) - wanted).abs() <= tolerance * scale,
            "{what}: value {i} is {got}, not {wanted}"
        );
    }
}

#[test]
fn experts_are_their_definition() {
    let (q8, q4, q4k) = (Encoding::Q8_0.into(), Encoding::Q4_0.into(), Encoding::Q4_K.into());
    let cases = [
        (4, 2, [7, 5, 9], [DType::F32; 2], 1),
        (8, 3, [33, 20, 33], [DType::F32, DType::BF16], 23),
        (5, 2, [48, 64, 48], [DType::F16, q8], 40),
        (6, 2, [64, 96, 50], [q4, q8], 1),
        (6, 2, [64, 96, 50], [q4, q8], 37),
        (3, 1, [256, 256, 40], [q4k, q4k], 70),
        (3, 2, [64, 40, 24], [q8, DType::F32], 9),
        (3, 2, [64, 64, 24], [q8, DType::F16], 9),
    ];
    for (experts, top_k, sizes, dtypes, rows) in cases {
        let case = Case::random(experts, top_k, sizes, dtypes, rows);
        for blocks in [false, true] {
            if blocks && !matches!(dtypes[0], DType::Block(_)) {
                continue;
            }
            let wanted = case.wanted(blocks);
            for isa in isas() {
                for threads in [1, 2] {
                    let got = case.run(isa, threads, blocks, 0, rows);
                    let what = format!("{sizes:?} of {dtypes:?}, {rows} rows, blocks: {blocks}, {isa}");
                    // A hidden value at the border of two codes may fall to either side.
                    assert_near(&what, &got, &wanted, if blocks { 2e-2 } else { 2e-5 });
                }
            }
        }
    }
}

#[test]
fn blocks_that_meet_plain_weights() {
    let case = Case::random(4, 2, [64, 64, 24], [DType::F32, Encoding::Q8_0.into()], 6);
    let wanted = case.wanted(true);
    for isa in isas() {
        for (from, to) in [(0, 6), (0, 1)] {
            let got = case.run(isa, 2, true, from, to);
            assert_near(&format!("{isa}"), &got, &wanted[from * 24..to * 24], 2e-2);
        }
    }
}

#[test]
fn every_activation_with_biases_and_limits() {
    let acts = [
        ExpertAct::Silu,
        ExpertAct::Gelu,
        ExpertAct::GeluTanh,
        ExpertAct::Relu2,
        ExpertAct::Swish { alpha: 1.702 },
    ];
    for act in acts {
        for (biased, limit) in [(false, None), (true, None), (true, Some(0.75))] {
            let mut case = Case::random(5, 2, [19, 37, 21], [DType::F32; 2], 11);
            let gated = act != ExpertAct::Relu2;
            case.op = ops::Experts { act, limit, biased, gated, ..case.op };
            let wanted = case.wanted(false);
            for isa in isas() {
                let tolerance = if act == ExpertAct::Gelu { 3e-3 } else { 2e-5 };
                assert_near(&format!("{act:?}, {isa}"), &case.run(isa, 2, false, 0, 11), &wanted, tolerance);
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_whatever_the_others() {
    for dtype in [DType::F32, DType::BF16, Encoding::Q8_0.into()] {
        let case = Case::random(7, 3, [64, 32, 40], [dtype; 2], 50);
        for isa in isas() {
            let whole = case.run(isa, 1, false, 0, 50);
            for (threads, step) in [(1, 1), (2, 4), (2, 33), (3, 50)] {
                for from in (0..50).step_by(step) {
                    let to = (from + step).min(50);
                    let part = case.run(isa, threads, false, from, to);
                    assert_same(&format!("{dtype}, {isa}, {from}..{to}"), &part, &whole[from * 40..to * 40]);
                }
            }
        }
    }
}

#[test]
fn more_pairs_than_there_is_room_for() {
    // 600 rows with 4 experts each are 2400 pairs in memory for 1024: several batches, with the same bits.
    let case = Case::random(9, 4, [8, 6, 10], [DType::F32; 2], 600);
    let whole = case.run(Isa::detect(), 2, false, 0, 600);
    assert_near("batches", &whole, &case.wanted(false), 2e-5);
    for row in [0, 299, 599] {
        let alone = case.run(Isa::detect(), 1, false, row, row + 1);
        assert_same(&format!("row {row}"), &alone, &whole[row * 10..(row + 1) * 10]);
    }
}

#[test]
fn rows_that_go_nowhere_are_zeros() {
    let mut case = Case::random(3, 1, [8, 8, 8], [DType::F32; 2], 4);
    case.r[3..9].fill(0.0);
    let y = case.run(Isa::detect(), 2, false, 0, 4);
    assert!(y[8..24].iter().all(|v| *v == 0.0) && y[..8].iter().any(|v| *v != 0.0));
    assert_eq!(case.run(Isa::detect(), 2, false, 1, 3), [0.0; 16]);
    // A weight that is lost is not taken for one that is none.
    case.r[4] = f32::NAN;
    assert!(case.run(Isa::detect(), 2, false, 1, 2).iter().all(|v| v.is_nan()));
}
