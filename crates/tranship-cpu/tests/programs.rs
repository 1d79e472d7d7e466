//! Programs that no model has: operands that meet themselves, results that are read again, one part alone. What the
//! verifier accepts runs as on the reference interpreter, and says NaN where that does.

mod common;

use common::isas;
use std::sync::Arc;
use tranship_backend::{Backend, Chain, Input, MapWeights, Outputs, Reference, Segment};
use tranship_cpu::CpuBackend;
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_program::{Origin, Program};
use tranship_tensor::Tensor;

/// Numbers without a pattern, from -1 to 1.
fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let next = |i: u64| {
        (seed + i).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).wrapping_mul(0xd6e8_feb8_6659_fd93)
    };
    (0..len as u64).map(|i| (next(i) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Runs a chain of programs on a backend; `Q` weights are stored in `q8_0`, all others in F32.
fn run(backend: &dyn Backend, texts: &[&str], input: Input<'_>, rows: usize, outputs: Outputs) -> Vec<f32> {
    let mut weights = MapWeights::default();
    let stored = |name: &str| Some(if name.starts_with('Q') { DType::Q8_0 } else { DType::F32 });
    let ctx = ComputeCtx::quantized(Device::of(backend.name())).with_kv(DType::F32);
    let mut parts = Vec::new();
    for text in texts {
        let graph = Program::parse(text).and_then(|p| p.lift()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        for (_, value) in graph.declared() {
            let Origin::Weight(name) = &value.origin else { continue };
            let rows = value.shape.fixed_rows().expect("weights are of fixed size") as usize;
            let shape: Vec<usize> =
                if value.shape.0.len() == 1 { vec![rows] } else { vec![rows, value.shape.cols() as usize] };
            let seed = name.bytes().map(u64::from).sum();
            let tensor = Tensor::from_f32(&shape, &numbers(seed, shape.iter().product())).expect("it fits");
            weights.insert(name.clone(), tensor.cast(stored(name).expect("a type")).expect("it converts"));
        }
        parts.push(Arc::new(ctx.typed(&graph, &stored, &backend.caps().accepts).expect("it types")));
    }
    let mut step = backend.compile(&Chain::new(parts, 4), &weights).expect("it compiles");
    let mut state = step.new_state().expect("memory");
    let mut out = Vec::new();
    let segment = Segment { state: state.as_mut(), position: 0, rows, outputs };
    step.run(&mut [segment], input, &mut out).expect("it runs");
    out
}

/// Holds every instruction set and several threads to the reference, for all rows and for the last.
fn check(texts: &[&str], input: Input<'_>, rows: usize) {
    for outputs in [Outputs::All, Outputs::Last, Outputs::None] {
        let wanted = run(&Reference::new(), texts, input, rows, outputs);
        for isa in isas() {
            for threads in [1, 3] {
                let backend = CpuBackend::with_isa(isa, threads).expect("it is available");
                let found = run(&backend, texts, input, rows, outputs);
                assert_eq!(wanted.len(), found.len(), "{isa}: {}", texts[0]);
                for (i, (w, f)) in wanted.iter().zip(&found).enumerate() {
                    let near = (w - f).abs() <= 2e-2 * w.abs().max(1.0);
                    assert!(
                        near || (w.is_nan() && f.is_nan()),
                        "{isa}, {threads}: {f} at {i}, wanted {w}: {}",
                        texts[0]
                    );
                }
            }
        }
    }
}

const ODD: [&str; 12] = [
    "y = x * x\n  return y + linear(y, w)",
    "y = x * x\n  return linear(y, w) + y",
    "y = x + x\n  return y + linear(y, q)",
    "y = silu(x)\n  return y + y",
    "y = silu(x)\n  return y * y",
    "return silu(x) * x",
    "y = linear(x, w)\n  return silu(y) * y",
    "return linear(x, w) + linear(x, w)",
    "return linear(x, w) + linear(x, q)",
    "y = linear(x, q)\n  z = y * x\n  return z + y + x + z",
    "y = rms_norm(x, g, eps: 1e-5)\n  return (x + y) * (y + linear(y, q, g)) + g",
    "y = linear(rms_norm(x, g, eps: 1e-5), q)\n  z = linear(silu(y) * linear(x, q), w)\n  return z + linear(z, q)",
];

fn program(body: &str) -> String {
    let weights = ["w : [64, 64] @ \"w\"", "q : [64, 64] @ \"Q\"", "g : [64] @ \"g\""];
    let used =
        |w: &&str| body.split(|c: char| !c.is_alphanumeric()).any(|word| w.starts_with(&format!("{word} :")));
    let weights: Vec<&str> = weights.into_iter().filter(used).collect();
    format!("program p\n  x : [n, 64]\n  {}\n  {body}\n", weights.join("\n  "))
}

#[test]
fn operands_may_meet_themselves() {
    for body in ODD {
        let text = program(body);
        for rows in [1, 3, 9] {
            let x = numbers(7, rows * 64);
            check(&[&text], Input::Rows(&x), rows);
            check(&[&text, &text], Input::Rows(&x), rows);
        }
    }
}

#[test]
fn one_part_alone_gives_the_rows_that_are_wanted() {
    let texts = [
        "program p\n  ids : index [n]\n  t : [9, 64] @ \"t\"\n  return gather(t, ids)\n",
        "program p\n  ids : index [n]\n  t : [9, 64] @ \"Qt\"\n  g : [64] @ \"g\"\n  return rms_norm(gather(t, ids), g, eps: 1e-5)\n",
        "program p\n  ids : index [n]\n  t : [9, 64] @ \"t\"\n  w : [7, 64] @ \"Q\"\n  return linear(gather(t, ids), w)\n",
    ];
    let ids = [3, 8, 0, 5, 5, 1];
    for text in texts {
        check(&[text], Input::Tokens(&ids), ids.len());
        check(&[text], Input::Tokens(&ids[..2]), 2);
    }
}

#[test]
fn what_is_not_finite_is_not_hidden() {
    let attend = "program decode ctx=4\n  x : [n, 64]\n  pos : index\n  k : [4, 64]\n  v : [4, 64]\n  \
                  k[pos .. pos+n] = x\n  v[pos .. pos+n] = silu(x)\n  \
                  return attend(x, k[.. pos+n], v[.. pos+n], heads: 2, kv_heads: 2, scale: 0.5)\n";
    for lost in [f32::NAN, f32::INFINITY] {
        let mut x = numbers(3, 64);
        x[5] = lost;
        for text in [&program("return linear(x, q)"), &program("return linear(x, w)"), attend] {
            for isa in isas() {
                let backend = CpuBackend::with_isa(isa, 1).expect("it is available");
                let found = run(&backend, &[text], Input::Rows(&x), 1, Outputs::All);
                assert!(found.iter().any(|f| !f.is_finite()), "{isa}: {lost} is hidden by {text}");
            }
        }
    }
}
