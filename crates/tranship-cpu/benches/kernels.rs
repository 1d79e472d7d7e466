//! Speed of the kernels, on one thread, beside the limits of the machine they run on.
//!
//! `prefill` counts operations (two for each product): 1 Gelem/s is 1 GFLOP/s or GOP/s. `decode` counts the bytes of the
//! weights: GiB/s. `limits` are what a core can do at most: products in registers alone, and bytes read once.
//! `steps` are whole steps of small programs, with the operation that each is named for as nearly all of their work: in
//! operations, or in the bytes of memories and of the weights of experts.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use tranship_backend::{Backend, Chain, Input, MapWeights, Outputs, Segment};
use tranship_cpu::{Cpu, CpuBackend, Epilogue, QuantizedRows, Weights};
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_program::{Dim, Origin, Program};
use tranship_tensor::Tensor;

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

/// A step of a program under a policy, of `rows` rows at `position`.
struct StepOf<'a> {
    name: &'a str,
    text: &'a str,
    policy: &'a str,
    rows: usize,
    position: usize,
    throughput: Throughput,
}

impl StepOf<'_> {
    /// Runs it over as many states in turn as do not stay in the caches close to a core.
    fn bench(self, c: &mut Criterion) {
        let backend = CpuBackend::new(Some(1)).expect("one thread");
        let graph = Program::parse(self.text).and_then(|p| p.lift()).expect("a program");
        let mut weights = MapWeights::default();
        for (_, value) in graph.declared() {
            let Origin::Weight(name) = &value.origin else { continue };
            let axes = value.shape.0.iter();
            let sizes = axes.map(|a| if let Dim::Fixed(size) = a.size { size as usize } else { 1 });
            let shape: Vec<usize> = sizes.collect();
            let values = activations(1, shape.iter().product());
            let tensor = Tensor::from_f32(&shape, &values).and_then(|t| t.cast(DType::BF16));
            weights.insert(name.clone(), tensor.expect("it fits"));
        }
        let ctx = ComputeCtx::preset(self.policy, Device::cpu()).expect("a preset");
        let typed = ctx.typed(&graph, &|_| Some(DType::BF16), &backend.caps().accepts).expect("it types");
        let chain = Chain::new(vec![Arc::new(typed)], self.rows);
        let bytes = chain.carried().iter().map(|c| c.rows * c.cols * c.dtype.block_bytes()).sum::<usize>();
        let copies = (DECODE_BYTES / bytes.max(DECODE_BYTES / 64)).max(1);
        let mut step = backend.compile(&chain, &weights).expect("it compiles");
        let mut states: Vec<_> = (0..copies).map(|_| step.new_state().expect("memory")).collect();
        let x = activations(self.rows, chain.width_in().unwrap_or(0));
        let (mut out, mut turn) = (Vec::new(), 0);
        let mut group = c.benchmark_group("steps");
        group.sample_size(10).throughput(self.throughput);
        group.bench_function(self.name, |b| {
            b.iter(|| {
                turn = (turn + 1) % copies;
                out.clear();
                let state = states[turn].as_mut();
                let (position, rows) = (self.position, self.rows);
                let segment = Segment { state, position, rows, outputs: Outputs::All };
                step.run(&mut [segment], Input::Rows(&x), &mut out).expect("it runs");
            });
        });
    }
}

/// 32 heads of 128 by 128.
const GATED_DELTA: &str = "program layer
  x : [n, 8256]
  m : [32, 128, 128]
  g = slice(x, from: 8192, to: 8224)
  beta = sigmoid(slice(x, from: 8224, to: 8256))
  q = slice(x, from: 0, to: 2048)
  k = slice(x, from: 2048, to: 4096)
  v = slice(x, from: 4096, to: 8192)
  y, m[..] = gated_delta(m[..], q, k, v, g, beta, heads: 32, key_heads: 16, scale: 0.1)
  return y
";

/// 128 heads of 64, with a state of 128.
const STATE_SPACE: &str = "program layer
  x : [n, 10368]
  a : [128] @ \"a\"
  d : [128] @ \"d\"
  m : [128, 64, 128]
  b = slice(x, from: 8192, to: 9216)
  c = slice(x, from: 9216, to: 10240)
  dt = softplus(slice(x, from: 10240, to: 10368))
  y, m[..] = state_space(m[..], slice(x, to: 8192), b, c, dt, a, d, heads: 128, groups: 8)
  return y
";

/// 8 of 64 experts, 1024 by 512.
const EXPERTS: &str = "program layer
  x : [n, 1024]
  router : [64, 1024] @ \"router\"
  gate : [64, 512, 1024] @ \"gate\"
  up : [64, 512, 1024] @ \"up\"
  down : [64, 1024, 512] @ \"down\"
  return experts(x, route(x, router, top_k: 8, score: softmax), gate, up, down, top_k: 8)
";

/// The sizes of DeepSeek-V3, with 16 of its heads.
const LATENT: &str = "program layer ctx=4096
  x : [n, 3072]
  pos : index
  w : [4096, 512] @ \"w\"
  cc : [4096, 512]
  rc : [4096, 64]
  cc[pos .. pos+n] = slice(x, to: 512)
  rc[pos .. pos+n] = slice(x, to: 64)
  return latent_attend(x, cc[.. pos+n], rc[.. pos+n], w, heads: 16, key_dim: 128, scale: 0.07)
";

fn steps(c: &mut Criterion) {
    let memory = |floats: u64| Throughput::Bytes(2 * 4 * floats);
    let of = |name, text, rows, position, throughput| StepOf {
        name,
        text,
        policy: "quantized",
        rows,
        position,
        throughput,
    };
    of("gated_delta, 1 row", GATED_DELTA, 1, 0, memory(32 * 128 * 128)).bench(c);
    of("state_space, 1 row", STATE_SPACE, 1, 0, memory(128 * 64 * 128)).bench(c);
    of("experts, 1 row", EXPERTS, 1, 0, Throughput::Bytes(8 * 3 * 512 * 1024 * 2)).bench(c);
    // Operations of the absorbed form, whichever is run, so that the two can be compared.
    let latent = |rows: u64, position: u64| {
        let seen = rows * position + rows * (rows + 1) / 2;
        Throughput::Elements(2 * 16 * (rows * 256 * 512 + seen * (2 * 512 + 64)))
    };
    of("latent_attend, 1 row at 4000", LATENT, 1, 4000, latent(1, 4000)).bench(c);
    of("latent_attend, 512 rows", LATENT, 512, 0, latent(512, 0)).bench(c);
    let exact = of("latent_attend, 512 rows, absorbed", LATENT, 512, 0, latent(512, 0));
    StepOf { policy: "parity", ..exact }.bench(c);
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

criterion_group!(benches, limits, prefill, decode, steps);
criterion_main!(benches);
