//! Speed of the linear kernels, on one thread, beside the limits of the machine they run on.
//!
//! `prefill` counts operations (two for each product): 1 Gelem/s is 1 GFLOP/s or GOP/s. `decode` counts the bytes of the
//! weights: GiB/s. `limits` are what a core can do at most: products in registers alone, and bytes read once.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use tranship_cpu::{Cpu, Epilogue, QuantizedRows, Weights};
use tranship_dtype::DType;

/// `[outs, width]` of the matrices.
const SHAPES: [(usize, usize); 2] = [(1536, 576), (2048, 2048)];
/// Rows of a prefill.
const ROWS: usize = 512;
/// Matrices that a decode goes through in turn: more bytes than the caches close to a core hold.
const DECODE_BYTES: usize = 64 << 20;

/// Bytes whose half-precision scales are ordinary numbers, whatever the encoding.
fn weights(dtype: DType, outs: usize, width: usize) -> Vec<u8> {
    let bytes = dtype.row_bytes(width).expect("whole blocks") * outs;
    (0..bytes).map(|i| (i * 7 % 16 + 0x28) as u8).collect()
}

fn activations(rows: usize, width: usize) -> Vec<f32> {
    (0..rows * width).map(|i| (i % 97) as f32 * 0.02 - 0.95).collect()
}

fn prefill(c: &mut Criterion) {
    let cpu = Cpu::new(1).expect("one thread");
    let mut group = c.benchmark_group("prefill");
    group.sample_size(20);
    for (outs, width) in SHAPES {
        let x = activations(ROWS, width);
        let mut y = vec![0.0; ROWS * outs];
        group.throughput(Throughput::Elements(2 * (ROWS * outs * width) as u64));
        for dtype in [DType::F32, DType::BF16] {
            let w = weights(dtype, outs, width);
            let id = BenchmarkId::new(format!("f32 by {dtype}"), format!("{width}x{outs}"));
            group.bench_function(id, |b| {
                b.iter(|| cpu.linear(&x, Weights::new(dtype, &w, outs, width), Epilogue::default(), &mut y));
            });
        }
        let mut q = QuantizedRows::new();
        cpu.quantize(&x, width, &mut q);
        for dtype in [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::Q6_K] {
            if !width.is_multiple_of(dtype.block_len()) {
                continue;
            }
            let w = weights(dtype, outs, width);
            let id = BenchmarkId::new(format!("q8 by {dtype}"), format!("{width}x{outs}"));
            group.bench_function(id, |b| {
                b.iter(|| {
                    cpu.linear_quant(&q, Weights::new(dtype, &w, outs, width), Epilogue::default(), &mut y)
                });
            });
        }
    }
}

fn decode(c: &mut Criterion) {
    let cpu = Cpu::new(1).expect("one thread");
    let mut group = c.benchmark_group("decode");
    for (outs, width) in SHAPES {
        let x = activations(1, width);
        let mut q = QuantizedRows::new();
        cpu.quantize(&x, width, &mut q);
        let mut y = vec![0.0; outs];
        for dtype in
            [DType::F32, DType::BF16, DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::Q6_K]
        {
            if !width.is_multiple_of(dtype.block_len()) {
                continue;
            }
            let one = weights(dtype, outs, width).len();
            let copies = DECODE_BYTES / one;
            let all = weights(dtype, outs * copies, width);
            group.throughput(Throughput::Bytes(one as u64));
            let mut turn = 0;
            group.bench_function(BenchmarkId::new(dtype.name(), format!("{width}x{outs}")), |b| {
                b.iter(|| {
                    turn = (turn + 1) % copies;
                    let w = Weights::new(dtype, &all[turn * one..(turn + 1) * one], outs, width);
                    match dtype {
                        DType::Block(_) => cpu.linear_quant(&q, w, Epilogue::default(), &mut y),
                        _ => cpu.linear(&x, w, Epilogue::default(), &mut y),
                    }
                });
            });
        }
    }
}

/// Sums in flight: enough to hide the latency of a product.
const CHAINS: usize = 16;
/// Products of each sum.
const STEPS: usize = 10_000;

#[cfg(target_arch = "x86_64")]
mod products {
    use super::{CHAINS, STEPS};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub fn floats(x: f32) -> f32 {
        let x = _mm512_set1_ps(x);
        let mut sums = [x; CHAINS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(x, x, *sum);
            }
        }
        sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn bytes(x: i32) -> i32 {
        let x = _mm512_set1_epi32(x);
        let mut sums = [x; CHAINS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, x);
            }
        }
        sums.into_iter().fold(0, |a, sum| a ^ _mm512_reduce_add_epi32(sum))
    }
}

fn limits(c: &mut Criterion) {
    let mut group = c.benchmark_group("limits");
    let memory = vec![1u64; DECODE_BYTES / 8];
    group.throughput(Throughput::Bytes(DECODE_BYTES as u64));
    group.bench_function("read", |b| {
        b.iter(|| black_box(&memory).iter().fold(0u64, |a, x| a.wrapping_add(*x)));
    });
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512vnni") {
        group.throughput(Throughput::Elements((CHAINS * STEPS * 32) as u64));
        // SAFETY: the feature has just been detected.
        group.bench_function("f32 products", |b| b.iter(|| unsafe { products::floats(black_box(1e-9)) }));
        group.throughput(Throughput::Elements((CHAINS * STEPS * 128) as u64));
        group.bench_function("8-bit products", |b| {
            // SAFETY: as above.
            b.iter(|| unsafe { products::bytes(black_box(0x0101_0101)) });
        });
    }
}

criterion_group!(benches, limits, prefill, decode);
criterion_main!(benches);
