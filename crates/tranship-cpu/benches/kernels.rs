//! Speed of the kernels, on one thread, as shares of what a core can do at most.
//!
//! After each kernel's times comes a line with its GB/s or its GFLOP/s or GOP/s, and the share that this is of the
//! measured limit ([`Limits`]): of bytes read once for `decode`, of products in registers for `prefill`. Limits are
//! measured when the first kernel is, and are printed then.
//!
//! `prefill` counts operations (two for each product), `decode` the bytes of the weights. `steps` are whole steps of
//! small programs, with the operation that each is named for as nearly all of their work: in operations, or in the
//! bytes of memories, of keys and values and of the weights of experts.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tranship_backend::{Backend, Chain, Input, MapWeights, Outputs, Segment};
use tranship_cpu::{Cpu, CpuBackend, Epilogue, Limits, QuantizedRows, Weights};
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::{DType, Encoding};
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

/// What a kernel is limited by, and how much of it one call takes.
#[derive(Clone, Copy)]
enum Work {
    /// Bytes that are read.
    Bytes(u64),
    /// Operations on F32.
    Floats(u64),
    /// Operations on bytes.
    Codes(u64),
}

impl Work {
    fn throughput(self) -> Throughput {
        match self {
            Work::Bytes(bytes) => Throughput::Bytes(bytes),
            Work::Floats(operations) | Work::Codes(operations) => Throughput::Elements(operations),
        }
    }

    /// What a call of so many seconds comes to, and its share of the limit.
    fn line(self, seconds: f64) -> String {
        let limits = limits();
        let (amount, unit, most) = match self {
            Work::Bytes(bytes) => (bytes, "GB/s", limits.read_bytes),
            Work::Floats(operations) => (operations, "GFLOP/s", limits.f32_ops),
            Work::Codes(operations) => (operations, "GOP/s", limits.byte_ops),
        };
        let rate = amount as f64 / seconds;
        format!("{:.1} {unit}, {:.0} % of {:.1}", rate / 1e9, 100.0 * rate / most, most / 1e9)
    }
}

/// The limits of one thread, measured once.
fn limits() -> &'static Limits {
    static LIMITS: OnceLock<Limits> = OnceLock::new();
    LIMITS.get_or_init(|| {
        let limits = Limits::measure(1).expect("one thread");
        println!(
            "limits of one thread, {}: {:.1} GB/s read, {:.1} GFLOP/s, {:.1} GOP/s of bytes",
            limits.isa,
            limits.read_bytes / 1e9,
            limits.f32_ops / 1e9,
            limits.byte_ops / 1e9
        );
        limits
    })
}

/// Has criterion measure a kernel, and prints the median of the same times as a share of the limit.
fn measure(group: &mut BenchmarkGroup<'_, WallTime>, id: BenchmarkId, work: Work, mut kernel: impl FnMut()) {
    let times = RefCell::new(Vec::new());
    group.throughput(work.throughput()).bench_function(id, |b| {
        limits();
        b.iter_custom(|count| {
            let start = Instant::now();
            (0..count).for_each(|_| kernel());
            let time = start.elapsed();
            times.borrow_mut().push(time.as_secs_f64() / count as f64);
            time
        });
    });
    let mut times = times.into_inner();
    times.sort_by(f64::total_cmp);
    // There are none where a filter leaves the kernel out.
    if let Some(median) = times.get(times.len() / 2) {
        println!("{:24}{}", "", work.line(*median));
    }
}

/// Scalars that weights may have, and all encodings, that divide a width.
fn stored(width: usize) -> impl Iterator<Item = DType> {
    let all = [DType::F32, DType::F16, DType::BF16].into_iter().chain(Encoding::ALL.map(DType::Block));
    all.filter(move |dtype| width.is_multiple_of(dtype.block_len()))
}

fn prefill(c: &mut Criterion) {
    let cpu = Cpu::new(1).expect("one thread");
    let mut group = c.benchmark_group("prefill");
    group.sample_size(20);
    for (outs, width) in SHAPES {
        let x = activations(ROWS, width);
        let mut y = vec![0.0; ROWS * outs];
        let operations = 2 * (ROWS * outs * width) as u64;
        let mut q = QuantizedRows::new();
        cpu.quantize(&x, width, &mut q);
        for dtype in stored(width) {
            let w = weights(dtype, outs, width);
            let w = Weights::new(dtype, &w, outs, width);
            let size = format!("{width}x{outs}");
            match dtype {
                DType::Block(_) => {
                    let id = BenchmarkId::new(format!("q8 by {dtype}"), size);
                    measure(&mut group, id, Work::Codes(operations), || {
                        cpu.linear_quant(&q, w, Epilogue::default(), &mut y);
                    });
                }
                _ => {
                    let id = BenchmarkId::new(format!("f32 by {dtype}"), size);
                    measure(&mut group, id, Work::Floats(operations), || {
                        cpu.linear(&x, w, Epilogue::default(), &mut y);
                    });
                }
            }
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
        for dtype in stored(width) {
            let one = weights(dtype, outs, width).len();
            let copies = DECODE_BYTES / one;
            let all = weights(dtype, outs * copies, width);
            let mut turn = 0;
            let id = BenchmarkId::new(dtype.name(), format!("{width}x{outs}"));
            measure(&mut group, id, Work::Bytes(one as u64), || {
                turn = (turn + 1) % copies;
                let w = Weights::new(dtype, &all[turn * one..(turn + 1) * one], outs, width);
                match dtype {
                    DType::Block(_) => cpu.linear_quant(&q, w, Epilogue::default(), &mut y),
                    _ => cpu.linear(&x, w, Epilogue::default(), &mut y),
                }
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
    work: Work,
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
        group.sample_size(10);
        let id = BenchmarkId::from_parameter(self.name);
        measure(&mut group, id, self.work, || {
            turn = (turn + 1) % copies;
            out.clear();
            let state = states[turn].as_mut();
            let (position, rows) = (self.position, self.rows);
            let segment = Segment { state, position, rows, outputs: Outputs::All };
            step.run(&mut [segment], Input::Rows(&x), &mut out).expect("it runs");
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

/// 9 heads of 64 over 3 of keys, as SmolLM2 has them.
const ATTEND: &str = "program layer ctx=8192
  x : [n, 960]
  pos : index
  kc : [8192, 192]
  vc : [8192, 192]
  kc[pos .. pos+n] = slice(x, from: 576, to: 768)
  vc[pos .. pos+n] = slice(x, from: 768, to: 960)
  return attend(slice(x, to: 576), kc[.. pos+n], vc[.. pos+n], heads: 9, kv_heads: 3, scale: 0.125)
";

fn steps(c: &mut Criterion) {
    let memory = |floats: u64| Work::Bytes(2 * 4 * floats);
    let of =
        |name, text, rows, position, work| StepOf { name, text, policy: "quantized", rows, position, work };
    of("gated_delta, 1 row", GATED_DELTA, 1, 0, memory(32 * 128 * 128)).bench(c);
    of("state_space, 1 row", STATE_SPACE, 1, 0, memory(128 * 64 * 128)).bench(c);
    of("experts, 1 row", EXPERTS, 1, 0, Work::Bytes(8 * 3 * 512 * 1024 * 2)).bench(c);
    // Keys and values are F16 under this policy.
    of("attend, 1 row at 8191", ATTEND, 1, 8191, Work::Bytes(8192 * 2 * 192 * 2)).bench(c);
    let seen = 512 * 7680 + 512 * 513 / 2;
    of("attend, 512 rows at 7680", ATTEND, 512, 7680, Work::Floats(2 * 9 * seen * 2 * 64)).bench(c);
    // Operations of the absorbed form, whichever is run, so that the two can be compared.
    let latent = |rows: u64, position: u64| {
        let seen = rows * position + rows * (rows + 1) / 2;
        Work::Floats(2 * 16 * (rows * 256 * 512 + seen * (2 * 512 + 64)))
    };
    of("latent_attend, 1 row at 4000", LATENT, 1, 4000, latent(1, 4000)).bench(c);
    of("latent_attend, 512 rows", LATENT, 512, 0, latent(512, 0)).bench(c);
    let exact = of("latent_attend, 512 rows, absorbed", LATENT, 512, 0, latent(512, 0));
    StepOf { policy: "parity", ..exact }.bench(c);
}

criterion_group!(benches, prefill, decode, steps);
criterion_main!(benches);
