//! Every form of state and every operation that reads the past, against the reference interpreter: steps of all lengths,
//! several sequences in a batch at different positions, batches longer than the buffers; and the law that under `parity`
//! no split, batch or number of threads changes a bit.

mod common;

use common::isas;
use std::sync::Arc;
use tranship_backend::{
    Backend, CarriedSpec, Chain, Input, MapWeights, Outputs, Reference, Segment, State, Step,
};
use tranship_cpu::CpuBackend;
use tranship_ctx::{ComputeCtx, Device, PRESETS};
use tranship_dtype::DType;
use tranship_program::{Dim, Origin, Program};
use tranship_tensor::{Tensor, decode};

/// Numbers without a pattern, from -1 to 1.
fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let next = |i: u64| {
        let mut x = (seed << 32 | i).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    (0..len as u64).map(|i| (next(i) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// A compiled chain, and what its input rows are.
struct Compiled {
    step: Box<dyn Step>,
    carried: Vec<CarriedSpec>,
    /// The width of input rows; 0 for tokens.
    width: usize,
}

/// Compiles a chain. Weights named `Q…` are stored in `q8_0`, `T…` are tables of 4 experts, others are F32.
fn compile(backend: &dyn Backend, texts: &[&str], policy: &str, max_rows: usize) -> Compiled {
    let mut weights = MapWeights::default();
    let stored = |name: &str| Some(if name.starts_with('Q') { DType::Q8_0 } else { DType::F32 });
    let ctx = ComputeCtx::preset(policy, Device::of(backend.name())).expect("a preset");
    let mut parts = Vec::new();
    for text in texts {
        let graph = Program::parse(text).and_then(|p| p.lift()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        for (_, value) in graph.declared() {
            let Origin::Weight(name) = &value.origin else { continue };
            let sizes = value.shape.0.iter().map(|a| if let Dim::Fixed(s) = a.size { s as usize } else { 1 });
            let shape: Vec<usize> = sizes.collect();
            let seed = name.bytes().fold(0u64, |seed, b| seed * 31 + u64::from(b)) % 1_000_003;
            let mut values = numbers(seed, shape.iter().product());
            if name.starts_with('T') {
                values.iter_mut().for_each(|v| *v = ((*v + 1.0) * 2.0).floor().clamp(0.0, 3.0));
            }
            let tensor = Tensor::from_f32(&shape, &values).expect("it fits");
            weights.insert(name.clone(), tensor.cast(stored(name).expect("a type")).expect("it converts"));
        }
        parts.push(Arc::new(ctx.typed(&graph, &stored, &backend.caps().accepts).expect("it types")));
    }
    let chain = Chain::new(parts, max_rows);
    let step = backend.compile(&chain, &weights).unwrap_or_else(|e| panic!("{e}\n{}", texts[0]));
    Compiled { step, carried: chain.carried(), width: chain.width_in().unwrap_or(0) }
}

/// What sequences gave, each with all its rows; and the valid rows of their states at the end.
type Results = (Vec<Vec<f32>>, Vec<Vec<f32>>);

/// Runs batches of `(sequence, rows)`, each sequence over its own endless input.
fn run(compiled: &mut Compiled, batches: &[&[(usize, usize)]]) -> Results {
    let sequences = 1 + batches.iter().flat_map(|b| b.iter()).map(|s| s.0).max().unwrap_or(0);
    let new = |_| compiled.step.new_state().expect("memory");
    let mut states: Vec<Box<dyn State>> = (0..sequences).map(new).collect();
    let (mut at, mut found) = (vec![0; sequences], vec![Vec::new(); sequences]);
    for batch in batches {
        let (mut rows, mut tokens) = (Vec::new(), Vec::new());
        let mut order: Vec<Option<&mut Box<dyn State>>> = states.iter_mut().map(Some).collect();
        let mut segments = Vec::new();
        for &(sequence, n) in *batch {
            let position = at[sequence];
            let width = compiled.width.max(1);
            let input = numbers(7 + sequence as u64, (position + n) * width);
            rows.extend_from_slice(&input[position * width..]);
            tokens.extend(input[position * width..].iter().map(|v| ((v + 1.0) * 4.0) as u32 % 8));
            let state = order[sequence].take().expect("a sequence is once in a batch").as_mut();
            segments.push(Segment { state, position, rows: n, outputs: Outputs::All });
            at[sequence] += n;
        }
        let input = if compiled.width == 0 { Input::Tokens(&tokens) } else { Input::Rows(&rows) };
        let mut out = Vec::new();
        compiled.step.run(&mut segments, input, &mut out).expect("it runs");
        let width = out.len() / batch.iter().map(|s| s.1).sum::<usize>();
        let mut from = 0;
        for &(sequence, n) in *batch {
            found[sequence].extend_from_slice(&out[from..from + n * width]);
            from += n * width;
        }
    }
    let mut kept = Vec::new();
    for (state, position) in states.iter().zip(&at) {
        for (tensor, spec) in compiled.carried.iter().enumerate() {
            let rows = spec.extent.valid(*position as u64, spec.rows as u64);
            let rows = rows.start as usize..rows.end as usize;
            let bytes = state.read(tensor, rows.clone()).expect("valid rows");
            let mut values = vec![0.0; rows.len() * spec.cols];
            decode(spec.dtype, &bytes, &mut values).expect("real numbers");
            kept.push(values);
        }
    }
    (found, kept)
}

/// Lengths below, at and past the rings and rates of the programs; sequences that start late, stop and go on.
const BATCHES: [&[(usize, usize)]; 10] = [
    &[(0, 5)],
    &[(0, 1), (1, 3)],
    &[(1, 1), (0, 1)],
    &[(0, 13), (2, 1)],
    &[(2, 9), (1, 4), (0, 2)],
    &[(0, 1), (1, 1), (2, 1)],
    &[(1, 17)],
    &[(0, 8), (2, 6)],
    &[(2, 1)],
    &[(1, 1), (0, 1)],
];

/// Lengths past several blocks of keys.
const LONG: [&[(usize, usize)]; 6] =
    [&[(0, 90)], &[(0, 1)], &[(0, 70), (1, 65)], &[(1, 1), (0, 1)], &[(1, 100)], &[(0, 3), (1, 2)]];

/// The most that a value may be off, of the greatest that there are: sums in F32 in another order; 8-bit blocks and
/// half-precision caches, and BF16, where a value at a tie falls to either side.
fn bound(policy: &str) -> f32 {
    match policy {
        "parity" => 1e-5,
        "quantized" => 1e-2,
        _ => 4e-2,
    }
}

fn near(what: &str, wanted: &[Vec<f32>], found: &[Vec<f32>], bound: f32) {
    assert_eq!(wanted.len(), found.len(), "{what}");
    for (wanted, found) in wanted.iter().zip(found) {
        assert_eq!(wanted.len(), found.len(), "{what}");
        let most = wanted.iter().fold(1e-3f32, |most, w| most.max(w.abs()));
        for (i, (w, f)) in wanted.iter().zip(found).enumerate() {
            assert!((w - f).abs() <= bound * most, "{what}: {f} at {i} of {}, wanted {w}", wanted.len());
        }
    }
}

fn check(texts: &[&str]) {
    check_over(texts, &BATCHES);
}

/// Holds a chain to the reference under every policy, and its bits to themselves under `parity`.
fn check_over(texts: &[&str], batches: &[&[(usize, usize)]]) {
    for policy in PRESETS {
        let wanted = run(&mut compile(&Reference::new(), texts, policy, 64), batches);
        assert!(wanted.0.iter().flatten().any(|v| v.abs() > 1e-3), "results are not all zeros: {}", texts[0]);
        for isa in isas() {
            for (threads, max_rows) in [(1, 64), (3, 4)] {
                let backend = CpuBackend::with_isa(isa, threads).expect("it is available");
                let found = run(&mut compile(&backend, texts, policy, max_rows), batches);
                let what = format!("{policy}, {isa}, {threads} threads, {max_rows} rows: {}", texts[0]);
                near(&what, &wanted.0, &found.0, bound(policy));
                near(&format!("state, {what}"), &wanted.1, &found.1, bound(policy));
            }
        }
    }
    splits(texts, batches);
}

/// Holds that rows have the same bits in whatever steps, batches and threads.
fn splits(texts: &[&str], batches: &[&[(usize, usize)]]) {
    let all = || batches.iter().flat_map(|batch| batch.iter());
    let sequences = 1 + all().map(|s| s.0).max().unwrap_or(0);
    let rows = |s| all().filter(|p| p.0 == s).map(|p| p.1).sum();
    let rows: Vec<usize> = (0..sequences).map(rows).collect();
    let whole: Vec<Vec<(usize, usize)>> = rows.iter().enumerate().map(|(s, n)| vec![(s, *n)]).collect();
    let whole: Vec<&[(usize, usize)]> = whole.iter().map(Vec::as_slice).collect();
    for isa in isas() {
        let compiled = |threads, max_rows| {
            let backend = CpuBackend::with_isa(isa, threads).expect("it is available");
            compile(&backend, texts, "parity", max_rows)
        };
        let wanted = run(&mut compiled(1, 64), &whole);
        for (threads, max_rows) in [(1, 64), (2, 5), (3, 1)] {
            let found = run(&mut compiled(threads, max_rows), batches);
            let bits =
                |r: &Results| -> Vec<u32> { r.0.iter().chain(&r.1).flatten().map(|v| v.to_bits()).collect() };
            assert!(bits(&found) == bits(&wanted), "{isa}, {threads} threads, {max_rows} rows: {}", texts[0]);
        }
    }
}

#[test]
fn attention_over_all_positions() {
    check(&["program layer ctx=40
  x : [n, 32]
  pos : index
  wq : [24, 32] @ \"wq\"
  wk : [12, 32] @ \"Qk\"
  wv : [10, 32] @ \"wv\"
  sinks : [4] @ \"sinks\"
  kc : [40, 12]
  vc : [40, 10]
  kc[pos .. pos+n] = linear(x, wk)
  vc[pos .. pos+n] = linear(x, wv)
  q = linear(x, wq)
  a = attend(q, kc[.. pos+n], vc[.. pos+n], heads: 4, kv_heads: 2, scale: 0.9)
  b = attend(q, kc[.. pos+n], vc[.. pos+n], sinks, heads: 4, kv_heads: 2, scale: 0.9, window: 6, softcap: 1.5)
  return a + b * a
"]);
}

#[test]
fn attention_past_blocks_of_keys() {
    let text = |window: usize| {
        let back = window - 1;
        format!(
            "program layer ctx=300
  x : [n, 24]
  pos : index
  sinks : [6] @ \"sinks\"
  kc : [{back}, 8]
  vc : [{back}, 20]
  all : [300, 8]
  k = slice(x, from: 0, to: 8)
  v = slice(x, from: 4, to: 24)
  all[pos .. pos+n] = k
  a = attend(x, join(kc[pos-{back} .. pos], k), join(vc[pos-{back} .. pos], v), sinks, heads: 6, kv_heads: 2, scale: 0.8, window: {window})
  b = attend(x, all[.. pos+n], all[.. pos+n], heads: 6, kv_heads: 2, scale: 2.5, window: {window}, softcap: 3)
  kc[pos+n-{back} .. pos+n] = k
  vc[pos+n-{back} .. pos+n] = v
  return slice(a, to: 24) + b
"
        )
    };
    for window in [2, 64, 150] {
        check_over(&[&text(window)], &LONG);
    }
}

#[test]
fn attention_over_rings() {
    check(&["program layer ctx=512
  x : [n, 32]
  pos : index
  wq : [24, 32] @ \"Qq\"
  wk : [12, 32] @ \"wk\"
  wv : [10, 32] @ \"wv\"
  sinks : [4] @ \"sinks\"
  kc : [7, 12]
  vc : [7, 10]
  k = rope(linear(x, wk), pos, heads: 2, dims: 4, theta: 10000, skip: 2)
  v = linear(x, wv)
  q = rope(linear(x, wq), pos, heads: 4, dims: 4, theta: 10000, skip: 2)
  kw = join(kc[pos-7 .. pos], k)
  vw = join(vc[pos-7 .. pos], v)
  a = attend(q, kw, vw, heads: 4, kv_heads: 2, scale: 0.7, window: 8)
  b = attend(q, kw, vw, sinks, heads: 4, kv_heads: 2, scale: 0.7, window: 3, softcap: 2)
  kc[pos+n-7 .. pos+n] = k
  vc[pos+n-7 .. pos+n] = v
  return a + b
"]);
}

/// A window of a cache of another type than F32 is put into a buffer for a convolution; so are rows that are read back.
#[test]
fn windows_and_rows_that_are_put_in_buffers() {
    check(&["program layer ctx=512
  x : [n, 12]
  pos : index
  w : [12, 5] @ \"w\"
  kc : [4, 12]
  all : [512, 12]
  kw = join(kc[pos-4 .. pos], x)
  all[pos .. pos+n] = silu(x)
  near = all[pos .. pos+n]
  a = attend(x, kw, kw, heads: 3, kv_heads: 3, scale: 0.7, window: 5)
  b = attend(near, all[.. pos+n], all[.. pos+n], heads: 3, kv_heads: 3, scale: 0.7)
  c = conv(kw, w)
  kc[pos+n-4 .. pos+n] = x
  return a * near + b + c
"]);
}

#[test]
fn latent_attention() {
    check(&["program layer ctx=512
  x : [n, 32]
  pos : index
  wq : [35, 32] @ \"wq\"
  wc : [32, 32] @ \"Qc\"
  wr : [3, 32] @ \"wr\"
  w : [45, 32] @ \"w\"
  wb : [45, 32] @ \"Qw\"
  cc : [512, 32]
  rc : [512, 3]
  cc[pos .. pos+n] = linear(x, wc)
  rc[pos .. pos+n] = linear(x, wr)
  q = linear(x, wq)
  a = latent_attend(q, cc[.. pos+n], rc[.. pos+n], w, heads: 5, key_dim: 4, scale: 0.3)
  b = latent_attend(q, cc[.. pos+n], rc[.. pos+n], wb, heads: 5, key_dim: 4, scale: 0.3)
  return a + silu(b)
"]);
}

#[test]
fn convolutions() {
    for bias in ["", ", b"] {
        let declared = if bias.is_empty() { "" } else { "  b : [70] @ \"b\"\n" };
        check(&[&format!(
            "program layer\n  x : [n, 70]\n  pos : index\n  w : [70, 4] @ \"w\"\n{declared}  ring : [3, 70]
  y = silu(conv(join(ring[pos-3 .. pos], x), w{bias}))\n  ring[pos+n-3 .. pos+n] = x\n  return y * x\n"
        )]);
    }
}

/// Attention over compressed rows, all or chosen ones, of spans that overlap or do not.
fn compressed(rate: usize, overlap: bool, chosen: bool) -> String {
    let before = if overlap { 2 * rate - 1 } else { rate - 1 };
    let (wide, yes) = if overlap { (16, ", overlap: yes") } else { (8, "") };
    let rows = 512 / rate;
    let choose = match chosen {
        true => format!(
            "  top = choose(linear(x, wi), c[.. (pos+n)/{rate}], slice(x, to: 2), heads: 2, top_k: 3, rate: {rate}, scale: 0.5)\n"
        ),
        false => String::new(),
    };
    let (index, top) = if chosen { ("  wi : [16, 32] @ \"wi\"\n", ", top") } else { ("", "") };
    format!(
            "program layer ctx=512
  x : [n, 32]
  pos : index
  wq : [40, 32] @ \"wq\"
  wk : [8, 32] @ \"wk\"
  wv : [{wide}, 32] @ \"Qv\"
  wg : [{wide}, 32] @ \"wg\"
  bias : [{rate}, {wide}] @ \"bias\"
  g : [8] @ \"g\"
  sinks : [5] @ \"sinks\"
{index}  near : [6, 8]
  vr : [{before}, {wide}]
  gr : [{before}, {wide}]
  c : [{rows}, 8]
  k = linear(x, wk)
  v = linear(x, wv)
  gate = linear(x, wg)
  made = compress(join(vr[pos-{before} .. pos], v), join(gr[pos-{before} .. pos], gate), bias, rate: {rate}{yes})
  c[pos/{rate} .. (pos+n)/{rate}] = rope(rms_norm(made, g, eps: 1e-5), pos, heads: 1, dims: 4, theta: 100, back: {back})
{choose}  y = compressed_attend(linear(x, wq), join(near[pos-6 .. pos], k), c[.. (pos+n)/{rate}], sinks{top}, heads: 5, scale: 0.6, window: 7, rate: {rate})
  near[pos+n-6 .. pos+n] = k
  vr[pos+n-{before} .. pos+n] = v
  gr[pos+n-{before} .. pos+n] = gate
  return y
",
            back = rate - 1,
        )
}

#[test]
fn compressed_rows() {
    for (rate, chosen) in [(4, false), (2, true)] {
        check(&[&compressed(rate, true, chosen)]);
    }
}

#[test]
fn compressed_rows_of_spans_apart() {
    for (rate, chosen) in [(3, false), (2, true)] {
        check(&[&compressed(rate, false, chosen)]);
    }
}

#[test]
fn compressed_rows_past_a_block() {
    check_over(&[&compressed(2, true, false)], &LONG);
}

#[test]
fn chosen_rows_past_a_block() {
    check_over(&[&compressed(2, false, true).replace("top_k: 3", "top_k: 70")], &LONG);
}

#[test]
fn memories() {
    check(&["program layer
  x : [n, 48]
  a : [4] @ \"a\"
  d : [4] @ \"d\"
  bias : [4] @ \"bias\"
  wide : [24] @ \"wide\"
  m1 : [4, 6, 5]
  m2 : [4, 6, 12]
  m3 : [4, 3, 7]
  m4 : [4, 6, 5]
  q = l2_norm(slice(x, from: 0, to: 12), eps: 1e-6, heads: 2)
  k = l2_norm(slice(x, from: 12, to: 24), eps: 1e-6, heads: 2)
  v = slice(x, from: 24, to: 44)
  beta = sigmoid(slice(x, from: 44, to: 48))
  g = log_decay(slice(x, from: 4, to: 8), a, bias)
  y1, m1[..] = gated_delta(m1[..], q, k, v, g, beta, heads: 4, key_heads: 2, scale: 0.4)
  by = log_decay(slice(x, from: 4, to: 28), a, wide)
  y4, m4[..] = gated_delta(m4[..], q, k, v, by, beta, heads: 4, key_heads: 2, scale: 0.4)
  y2, m2[..] = decayed_linear(m2[..], slice(x, to: 24), slice(x, from: 24, to: 48), x, heads: 4, rate: 1.5)
  y3, m3[..] = state_space(m3[..], slice(x, to: 12), slice(x, from: 12, to: 26), slice(x, from: 26, to: 40), softplus(slice(x, from: 40, to: 44)), a, d, heads: 4, groups: 2)
  return y2 + tile(slice(y1 + y4, to: 12) + y3, times: 4)
"]);
}

/// Scratch, and tensors that are rewritten as a whole: neither is split, since a step means once.
#[test]
fn scratch_and_whole_tensors() {
    let text = "program layer ctx=512
  x : [n, 8]
  pos : index
  w : [3, 8] @ \"w\"
  g : [8] @ \"g\"
  left : [512, 8]
  again : [n, 8]
  whole : [3, 8]
  s : [3, 8]
  bias : [8]
  left[pos .. pos+n] = silu(x)
  again[..] = left[pos .. pos+n] + x
  old = s[..]
  whole[..] = old * w
  b = bias[..]
  y = again[..] * left[pos .. pos+n] + b
  s[..] = rms_norm(whole[..] + w, g, eps: 1e-5)
  bias[..] = silu(b + g)
  return y + x
";
    for policy in PRESETS {
        let wanted = run(&mut compile(&Reference::new(), &[text], policy, 64), &BATCHES);
        for isa in isas() {
            for (threads, max_rows) in [(1, 64), (3, 17)] {
                let backend = CpuBackend::with_isa(isa, threads).expect("it is available");
                let found = run(&mut compile(&backend, &[text], policy, max_rows), &BATCHES);
                let what = format!("{policy}, {isa}, {threads} threads");
                near(&what, &wanted.0, &found.0, bound(policy));
                near(&what, &wanted.1, &found.1, bound(policy));
            }
        }
    }
    let backend = CpuBackend::new(Some(1)).expect("threads");
    let mut compiled = compile(&backend, &[text], "parity", 4);
    let mut state = compiled.step.new_state().expect("memory");
    let segment = Segment { state: state.as_mut(), position: 0, rows: 5, outputs: Outputs::All };
    let refused = compiled.step.run(&mut [segment], Input::Rows(&[0.0; 40]), &mut Vec::new());
    let message = refused.expect_err("5 rows do not fit").to_string();
    assert!(message.contains("5 rows") && message.contains("at most 4"), "{message}");
}

#[test]
fn tokens_in_any_part_and_experts() {
    check(&[
        "program embed
  ids : index [n]
  t : [8, 32] @ \"t\"
  return gather(t, ids)
",
        "program layer
  x : [n, 32]
  ids : index [n]
  router : [4, 32] @ \"router\"
  bias : [4] @ \"bias\"
  table : [8, 2] @ \"Table\"
  gate : [4, 64, 32] @ \"Qgate\"
  up : [4, 64, 32] @ \"Qup\"
  down : [4, 32, 64] @ \"Qdown\"
  fgate : [4, 5, 32] @ \"gate\"
  fup : [4, 5, 32] @ \"up\"
  fdown : [4, 32, 5] @ \"down\"
  a = experts(x, route(x, router, bias, top_k: 2, score: sigmoid, bias: choice, normalize: yes), gate, up, down, top_k: 2)
  b = experts(x, route_by_table(x, router, table, ids, top_k: 2, score: softmax), fgate, fup, fdown, top_k: 2, act: gelu)
  return x + a + b
",
    ]);
}

#[test]
fn streams_groups_and_parts() {
    check(&["program layer
  x : [n, 128]
  base : [8] @ \"base\"
  scale : [3] @ \"scale\"
  wh : [8, 128] @ \"wh\"
  w : [64, 32] @ \"Qw\"
  wf : [6, 32] @ \"wf\"
  wp : [4, 64] @ \"wp\"
  gates = stream_gates(linear(x, wh), base, scale, streams: 2, iterations: 3, eps: 1e-6)
  y = stream_collapse(x, gates, streams: 2)
  z = linear(y, w, groups: 2)
  u = z * linear(y, wp) + linear(y, wp)
  t = tile(sigmoid(linear(y, wf, groups: 2)), times: 2)
  v = gelu_tanh(u) * y
  return stream_expand(x, v + tile(slice(t, to: 8), times: 8), gates, streams: 2)
"]);
}

#[test]
fn what_is_not_run_is_refused_by_name() {
    let backend = CpuBackend::new(Some(1)).expect("threads");
    let lifted = |text: &str| Program::parse(text).and_then(|p| p.lift()).expect("it lifts");
    let parity = ComputeCtx::parity(Device::cpu());
    let stored = |_: &str| Some(DType::F32);

    let computed = lifted(
        "program layer ctx=9\n  x : [n, 4]\n  pos : index\n  w : [4, 4] @ \"w\"\n  c : [9, 4]\n  c[pos .. pos+n] = x\n  \
         k = linear(c[.. pos+n], w)\n  return attend(x, k, k, heads: 1, kv_heads: 1, scale: 1)\n",
    );
    let typed = parity.typed(&computed, &stored, &backend.caps().accepts).expect("it types");
    let mut weights = MapWeights::default();
    weights.insert("w", Tensor::from_f32(&[4, 4], &[0.0; 16]).expect("it fits"));
    let refused = backend.compile(&Chain::new(vec![Arc::new(typed)], 4), &weights);
    let message = refused.err().expect("no kernel computes rows of the past").to_string();
    assert!(message.starts_with("cpu cannot run `rows of the past (`k`)`: only attention"), "{message}");

    let memory = lifted(
        "program layer\n  x : [n, 4]\n  s : [1, 4, 4]\n  y, s[..] = decayed_linear(s[..], x, x, x, heads: 1, rate: 1)\n  \
         return y\n",
    );
    let half = parity.clone().with_state(DType::F16);
    let refused = half.typed(&memory, &stored, &backend.caps().accepts);
    let message = refused.expect_err("memories are F32").to_string();
    assert!(message.starts_with("`s`: cpu has no f16 for state"), "{message}");
}
