//! `linear` with 8-bit activation blocks, held to plain loops over what the blocks stand for.

mod common;

use common::{Random, assert_close, assert_same, decode, isas, linear_f64, weights};
use tranship_cpu::{Cpu, Epilogue, Isa, QuantizedRows, Weights};
use tranship_dtype::{DType, Encoding};

/// Errors against the sum of absolute products: the integers are exact, so only the additions of groups round.
const TOLERANCE: f64 = 2e-6;

/// One product of `rows` rows; gives it for comparisons.
fn check(cpu: &Cpu, dtype: DType, rows: usize, outs: usize, width: usize) -> Vec<f32> {
    let random = &mut Random::new((outs * width) as u64);
    let w = weights(random, dtype, outs * width);
    let x = random.floats(rows * width, 3.0);
    let mut q = QuantizedRows::new();
    cpu.quantize(&x, width, &mut q);
    let mut x_stored = vec![0.0; rows * width];
    for row in 0..rows {
        q.decode_row(row, &mut x_stored[row * width..(row + 1) * width]);
    }
    let mut y = vec![f32::NAN; rows * outs];
    cpu.linear_quant(&q, Weights::new(dtype, &w, outs, width), Epilogue::default(), &mut y);
    let wanted = linear_f64(&x_stored, &decode(dtype, &w, outs * width), width);
    let what =
        format!("{dtype} [{outs}, {width}], {rows} rows, {}, {} threads", cpu.isa(), cpu.pool().threads());
    assert_close(&what, &y, &wanted, TOLERANCE);
    y
}

#[test]
fn every_encoding_on_every_instruction_set() {
    for isa in isas() {
        let cpu = Cpu::with_isa(isa, 2).unwrap();
        for encoding in Encoding::ALL {
            let widths: &[usize] = if encoding.block_len() == 32 { &[32, 96, 576] } else { &[256, 768] };
            for width in widths {
                for (rows, outs) in [(1, 1), (1, 37), (2, 17), (3, 5), (4, 16), (5, 33), (17, 50), (40, 32)] {
                    check(&cpu, encoding.into(), rows, outs, *width);
                }
            }
        }
    }
}

#[test]
fn more_rows_than_tiles() {
    let cpu = Cpu::new(1).unwrap();
    for encoding in Encoding::ALL {
        for rows in [6, 7, 8, 9, 10, 11, 16, 17, 31, 64] {
            check(&cpu, encoding.into(), rows, 70, 512);
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for isa in isas() {
        for rows in [1, 3, 20, 35] {
            let one = check(&Cpu::with_isa(isa, 1).unwrap(), DType::Q4_K, rows, 133, 512);
            for threads in [2, 3, 5] {
                let many = check(&Cpu::with_isa(isa, threads).unwrap(), DType::Q4_K, rows, 133, 512);
                assert_same(&format!("{isa}, {threads} threads"), &many, &one);
            }
        }
    }
}

#[test]
fn extreme_codes_do_not_saturate() {
    let width = 256;
    for isa in isas() {
        let cpu = Cpu::with_isa(isa, 1).unwrap();
        for encoding in Encoding::ALL {
            for fill in [0u8, 0x7f, 0x80, 0xff] {
                let random = &mut Random::new(7);
                let dtype = DType::from(encoding);
                let scales = weights(random, dtype, 20 * width);
                // Scales of the generator, codes all the same: both ends of what products can add up to.
                let mut w = vec![fill; scales.len()];
                keep_scales(encoding, &mut w, &scales);
                for rows in [1, 6, 16] {
                    let x: Vec<f32> =
                        (0..rows * width).map(|i| if i % 64 < 32 { 1.0 } else { -1.0 }).collect();
                    let mut q = QuantizedRows::new();
                    cpu.quantize(&x, width, &mut q);
                    let mut x_stored = vec![0.0; rows * width];
                    (0..rows).for_each(|r| q.decode_row(r, &mut x_stored[r * width..(r + 1) * width]));
                    let mut y = vec![0.0; rows * 20];
                    cpu.linear_quant(&q, Weights::new(dtype, &w, 20, width), Epilogue::default(), &mut y);
                    let mut wanted = linear_f64(&x_stored, &decode(dtype, &w, 20 * width), width);
                    // Codes that stand for 0 are still far from code 0, and rounded with their zero point.
                    wanted.iter_mut().for_each(|(_, scale)| *scale = scale.max(100.0));
                    assert_close(&format!("{dtype} of {fill:#x}, {isa}"), &y, &wanted, TOLERANCE);
                }
            }
        }
    }
}

/// Copies the scale bytes of the generator's blocks.
fn keep_scales(encoding: Encoding, w: &mut [u8], scales: &[u8]) {
    use Encoding::*;
    let kept: &[(usize, usize)] = match encoding {
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL => &[(0, 2)],
        Q4_1 | Q5_1 | Q8_1 | Q8_K => &[(0, 4)],
        Q4_K | Q5_K => &[(0, 16)],
        IQ4_XS => &[(0, 8)],
        Q2_K => &[(0, 16), (80, 84)],
        Q3_K => &[(96, 110)],
        Q6_K => &[(192, 210)],
        MXFP4 => &[(0, 1)],
    };
    let size = encoding.block_bytes();
    for (w, scales) in w.chunks_exact_mut(size).zip(scales.chunks_exact(size)) {
        kept.iter().for_each(|&(from, to)| w[from..to].copy_from_slice(&scales[from..to]));
    }
}

#[test]
fn bias_and_residual() {
    let (rows, outs, width) = (9, 21, 64);
    for isa in isas() {
        let cpu = Cpu::with_isa(isa, 2).unwrap();
        for rows in [1, rows, 16, 23] {
            let plain = check(&cpu, DType::Q8_0, rows, outs, width);
            let random = &mut Random::new((outs * width) as u64);
            let w = weights(random, DType::Q8_0, outs * width);
            let x = random.floats(rows * width, 3.0);
            let (bias, mut y) = (random.floats(outs, 1.0), random.floats(rows * outs, 1.0));
            let wanted: Vec<f32> = (0..y.len()).map(|i| y[i] + (plain[i] + bias[i % outs])).collect();
            let mut q = QuantizedRows::new();
            cpu.quantize(&x, width, &mut q);
            let epilogue = Epilogue { bias: Some(&bias), add: true };
            cpu.linear_quant(&q, Weights::new(DType::Q8_0, &w, outs, width), epilogue, &mut y);
            assert_same("bias, then residual", &y, &wanted);
        }
    }
}

#[test]
fn quantization_is_within_half_a_step() {
    let width = 96;
    for isa in isas() {
        let cpu = Cpu::with_isa(isa, 2).unwrap();
        for range in [0.0, 1e-30, 1e-3, 1.0, 5e4] {
            let x = Random::new(3).floats(5 * width, range);
            let mut q = QuantizedRows::new();
            cpu.quantize(&x, width, &mut q);
            let mut back = vec![0.0; width];
            for row in 0..5 {
                q.decode_row(row, &mut back);
                let x = &x[row * width..(row + 1) * width];
                for block in 0..width / 32 {
                    let block = block * 32..(block + 1) * 32;
                    let max = x[block.clone()].iter().fold(0f32, |a, b| a.max(b.abs()));
                    // Half a step, and 127 times what rounding does to the scale: codes are of the exact one.
                    let exact = max / 127.0;
                    let step = half::f16::from_f32(exact).to_f32();
                    let allowed = exact * 0.50001 + 127.01 * (step - exact).abs();
                    for (x, back) in x[block.clone()].iter().zip(&back[block]) {
                        assert!((x - back).abs() <= allowed, "{isa}: {x} became {back}, step {step}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_same_additions_give_the_same_bits() {
    let pairs = [(Isa::Avx512Vnni, Isa::Amx), (Isa::Neon, Isa::NeonDot), (Isa::Neon, Isa::NeonI8mm)];
    for (plain, better) in pairs {
        if let Some(missing) = better.missing() {
            println!("skipped: {better}, for this machine lacks {missing}");
            continue;
        }
        let (plain, better) = (Cpu::with_isa(plain, 1).unwrap(), Cpu::with_isa(better, 1).unwrap());
        for encoding in Encoding::ALL {
            for rows in [1, 3, 6, 37] {
                let wanted = check(&plain, encoding.into(), rows, 75, 768);
                let got = check(&better, encoding.into(), rows, 75, 768);
                assert_same(&format!("{encoding}, {rows} rows, {}", better.isa()), &got, &wanted);
            }
        }
    }
}
