//! `linear` in F32, held to F64 and to its own bits.

mod common;

use common::{Random, assert_close, assert_same, decode, isas, linear_f64, weights};
use tranship_cpu::{Cpu, Epilogue, Weights};
use tranship_dtype::{DType, Encoding};

/// Against the sum of absolute products: a lane adds up to 64 products in a row here.
const TOLERANCE: f64 = 4e-6;

fn dtypes() -> impl Iterator<Item = DType> {
    [DType::F32, DType::F16, DType::BF16].into_iter().chain(Encoding::ALL.map(DType::from))
}

/// One product; checks it, and gives it for comparisons.
fn check(cpu: &Cpu, dtype: DType, rows: usize, outs: usize, width: usize) -> Vec<f32> {
    let random = &mut Random::new((outs * width) as u64);
    let w = weights(random, dtype, outs * width);
    let x = random.floats(rows * width, 3.0);
    let mut y = vec![f32::NAN; rows * outs];
    cpu.linear(&x, Weights::new(dtype, &w, outs, width), Epilogue::default(), &mut y);
    let wanted = linear_f64(&x, &decode(dtype, &w, outs * width), width);
    assert_close(&format!("{dtype} [{outs}, {width}], {rows} rows, {}", cpu.isa()), &y, &wanted, TOLERANCE);
    y
}

#[test]
fn every_type_on_every_instruction_set() {
    for isa in isas() {
        let cpu = Cpu::with_isa(isa, 2).unwrap();
        for dtype in dtypes() {
            let widths = match dtype.block_len() {
                1 => [1, 7, 50],
                32 => [32, 96, 576],
                _ => [256, 512, 1024],
            };
            for width in widths {
                for (rows, outs) in [(1, 1), (1, 37), (2, 17), (3, 5), (4, 16), (5, 49), (17, 100)] {
                    check(&cpu, dtype, rows, outs, width);
                }
            }
        }
    }
}

#[test]
fn long_widths_are_cut() {
    for isa in isas() {
        let cpu = Cpu::with_isa(isa, 1).unwrap();
        for width in [767, 768, 769, 1536, 1600, 2501] {
            for rows in [1, 4, 6, 7] {
                check(&cpu, DType::F32, rows, 53, width);
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    let (rows, outs) = (64, 61);
    for isa in isas() {
        for (dtype, width) in [(DType::F32, 77), (DType::F32, 1700), (DType::BF16, 50), (DType::Q4_K, 1024)] {
            let cpu = Cpu::with_isa(isa, 1).unwrap();
            let all = check(&cpu, dtype, rows, outs, width);
            // The generator's first rows are the same, whatever their number.
            let random = &mut Random::new((outs * width) as u64);
            let w = weights(random, dtype, outs * width);
            let x = random.floats(rows * width, 3.0);
            for threads in [1, 2, 3] {
                let cpu = Cpu::with_isa(isa, threads).unwrap();
                for (first, n) in [(0, 1), (5, 1), (63, 1), (1, 2), (7, 3), (3, 5), (10, 17), (0, 64)] {
                    let mut y = vec![0.0; n * outs];
                    let x = &x[first * width..(first + n) * width];
                    cpu.linear(x, Weights::new(dtype, &w, outs, width), Epilogue::default(), &mut y);
                    let what = format!("{dtype}, {isa}, {threads} threads, rows {first} + {n}");
                    assert_same(&what, &y, &all[first * outs..(first + n) * outs]);
                }
            }
        }
    }
}

#[test]
fn weights_need_no_alignment() {
    let (rows, outs, width) = (5, 20, 64);
    for isa in isas() {
        let cpu = Cpu::with_isa(isa, 1).unwrap();
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q6_K] {
            let width = width.max(dtype.block_len());
            let wanted = check(&cpu, dtype, rows, outs, width);
            let random = &mut Random::new((outs * width) as u64);
            let w = weights(random, dtype, outs * width);
            let x = random.floats(rows * width, 3.0);
            let shifted: Vec<u8> = std::iter::once(0).chain(w).collect();
            let mut y = vec![0.0; rows * outs];
            cpu.linear(&x, Weights::new(dtype, &shifted[1..], outs, width), Epilogue::default(), &mut y);
            assert_same(&format!("{dtype} one byte off, {isa}"), &y, &wanted);
        }
    }
}

#[test]
fn bias_and_residual() {
    let (outs, width) = (21, 40);
    for isa in isas() {
        let cpu = Cpu::with_isa(isa, 2).unwrap();
        for rows in [1, 9] {
            let plain = check(&cpu, DType::F32, rows, outs, width);
            let random = &mut Random::new((outs * width) as u64);
            let w = weights(random, DType::F32, outs * width);
            let x = random.floats(rows * width, 3.0);
            let (bias, mut y) = (random.floats(outs, 1.0), random.floats(rows * outs, 1.0));
            let wanted: Vec<f32> = (0..y.len()).map(|i| y[i] + (plain[i] + bias[i % outs])).collect();
            let epilogue = Epilogue { bias: Some(&bias), add: true };
            cpu.linear(&x, Weights::new(DType::F32, &w, outs, width), epilogue, &mut y);
            assert_same("bias, then residual", &y, &wanted);
        }
    }
}

#[test]
fn bf16_activations() {
    for isa in isas() {
        let cpu = Cpu::with_isa(isa, 2).unwrap();
        for (rows, outs, width) in [(1, 20, 64), (4, 50, 33), (9, 97, 576), (6, 7, 1701)] {
            let random = &mut Random::new(5);
            let w = weights(random, DType::BF16, outs * width);
            let x: Vec<f32> = random
                .floats(rows * width, 3.0)
                .into_iter()
                .map(|x| half::bf16::from_f32(x).to_f32())
                .collect();
            let mut y = vec![0.0; rows * outs];
            cpu.linear_bf16(&x, Weights::new(DType::BF16, &w, outs, width), Epilogue::default(), &mut y);
            let wanted = linear_f64(&x, &decode(DType::BF16, &w, outs * width), width);
            assert_close(&format!("[{outs}, {width}], {rows} rows, {isa}"), &y, &wanted, TOLERANCE);
        }
    }
}
