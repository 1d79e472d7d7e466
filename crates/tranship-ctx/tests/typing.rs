//! The typing pass, fact by fact: what is cast, what is not, and what is refused by name.

mod common;

use common::{LAYER, named, nodes, policy, stored, try_typed, typed};
use tranship_ctx::{Accepts, Activations, CtxError, DTypeSet, LayerPolicy, Reason};
use tranship_dtype::DType;
use tranship_program::Action;

/// Casts as `value from->to reason`, in order.
fn ledger(typed: &tranship_ctx::Typed) -> Vec<String> {
    let line = |c: &tranship_ctx::Cast| format!("{} {}->{} {:?}", c.value, c.from, c.to, c.reason);
    typed.ledger().iter().map(line).collect()
}

#[test]
fn nothing_is_cast_in_an_f32_model_under_parity() {
    let parity = typed(LAYER, &policy("parity"), DType::F32);
    assert!(parity.ledger().is_empty(), "{parity}");
    assert!(parity.to_string().ends_with("cast ledger: no casts\n"));
    let values = parity.graph().values.len();
    let float = |i: usize| parity.graph().values[i].kind == tranship_program::Kind::Float;
    for i in (0..values).filter(|&i| float(i)) {
        assert_eq!(parity.dtype(tranship_program::ValueId(i)), DType::F32);
    }
    let accums: Vec<_> = (0..parity.graph().nodes.len()).filter_map(|i| parity.accum(i)).collect();
    assert_eq!(accums, [DType::F32; 13]);
    // Weights are read as they are stored: encodings and 16-bit floats cost no node either.
    for matrix in [DType::Q4_0, DType::Q6_K, DType::F16, DType::BF16, DType::F8E4M3] {
        assert!(typed(LAYER, &policy("parity"), matrix).ledger().is_empty(), "{matrix}");
    }
}

#[test]
fn a_mask_takes_part_like_any_operand() {
    let text = "program p\n  x : [n, 8]\n  m : [8] @ \"mask\"\n  return silu(x) + m\n";
    let graph = common::lift(text);
    let scores = policy("parity").typed(&graph, &|_| Some(DType::F16), &Accepts::default()).unwrap();
    assert_eq!(ledger(&scores), ["m f16->f32 Join"]);
    let (_, args, out) = nodes(&scores, "add").remove(0);
    assert_eq!([args[0], args[1], out].map(|v| scores.dtype(v)), [DType::F32; 3]);
    // The other way round, the scores are what is cast, and the sum comes back.
    let ctx = policy("parity").with_compute(DType::F16);
    let wide = ctx.typed(&graph, &|_| Some(DType::F32), &Accepts::default()).unwrap();
    assert_eq!(ledger(&wide), ["return.1 f16->f32 Join", "return.2 f32->f16 Compute"]);
    assert_eq!(wide.dtype(wide.graph().result), DType::F16);
}

#[test]
fn an_f32_bias_is_not_narrowed_to_a_bf16_product() {
    let text = "program p\n  x : [n, 8]\n  w : [4, 8] @ \"w\"\n  b : [4] @ \"b\"\n";
    let outside = typed(&format!("{text}  return linear(x, w) + b\n"), &policy("serving"), DType::BF16);
    assert_eq!(ledger(&outside), ["return.1 bf16->f32 Join", "return.2 f32->bf16 Compute"]);
    let (_, args, _) = nodes(&outside, "add").remove(0);
    assert_eq!(args[1], named(&outside, "b"), "the bias reaches the sum as it is stored");
    let inside = typed(&format!("{text}  return linear(x, w, b)\n"), &policy("serving"), DType::BF16);
    assert!(inside.ledger().is_empty(), "{inside}");
    let (node, args, out) = nodes(&inside, "linear").remove(0);
    assert_eq!(args[2], named(&inside, "b"));
    assert_eq!((inside.accum(node), inside.dtype(out)), (Some(DType::F32), DType::BF16));
    // A bias in F64 lifts the accumulator.
    let graph = common::lift(&format!("{text}  return linear(x, w, b)\n"));
    let stored = |name: &str| Some(if name == "b" { DType::F64 } else { DType::BF16 });
    let wide = policy("serving").typed(&graph, &stored, &Accepts::default()).unwrap();
    assert_eq!(wide.accum(0), Some(DType::F64));
}

#[test]
fn rope_divisors_take_part_in_the_promotion() {
    let text = r#"
program p
  x   : [n, 8]
  pos : index
  d   : [2] @ "divisors"
  return rope(x, pos, d, heads: 2, dims: 4, theta: 5e5, style: half)
"#;
    let graph = common::lift(text);
    for (stored, accum) in [(DType::F32, DType::F32), (DType::F16, DType::F32), (DType::F64, DType::F64)] {
        let typed = policy("serving").typed(&graph, &|_| Some(stored), &Accepts::default()).unwrap();
        assert_eq!(typed.accum(0), Some(accum), "{stored}");
    }
    let accepts = Accepts { accum: DTypeSet::of(&[DType::F32]), ..Accepts::default() };
    let error = policy("serving").typed(&graph, &|_| Some(DType::F64), &accepts).unwrap_err();
    assert_eq!(error.to_string(), "`return.1`: cpu has no f64 for accum; it has f32");
}

#[test]
fn what_a_device_lacks_is_widened_visibly() {
    let few = DTypeSet::of(&[DType::F16, DType::BF16, DType::F32]);
    let accepts = Accepts { weights: few, ..Accepts::default() };
    let text = "program p\n  x : [n, 256]\n  w : [4, 256] @ \"w\"\n  return linear(x, w)\n";
    for (matrix, to) in [(DType::Q4_0, DType::F32), (DType::Q6_K, DType::F32), (DType::F8E4M3, DType::F16)] {
        for name in ["parity", "quantized"] {
            let typed = try_typed(text, &policy(name), matrix, &accepts).unwrap();
            assert_eq!(ledger(&typed), [format!("w {matrix}->{to} Widen")], "{name}");
            assert_eq!(typed.dtype(named(&typed, "w")), matrix, "bound as it is stored");
            let (_, args, _) = nodes(&typed, "linear").remove(0);
            assert_eq!(typed.dtype(args[1]), to);
        }
    }
    let error = try_typed(text, &policy("parity"), DType::F64, &accepts).unwrap_err();
    assert_eq!(error.to_string(), "`w`: cpu has no f64 for weights; it has f16, bf16, f32");
    assert_eq!(
        try_typed(text, &policy("parity"), DType::I32, &Accepts::default()).unwrap_err().to_string(),
        "`w`: cpu has no i32 for weights; it has f8e4m3, f8e5m2, f8e8m0, f6e2m3, f6e3m2, f4e2m1, f16, bf16, f32, \
         f64, q4_0, q4_1, q5_0, q5_1, q8_0, q8_1, q2_k, q3_k, q4_k, q5_k, q6_k, q8_k, iq4_nl, iq4_xs, mxfp4"
    );
    let graph = common::lift(text);
    let error = policy("parity").typed(&graph, &|_| None, &Accepts::default()).unwrap_err();
    assert_eq!(error.to_string(), "weight \"w\" is not in the checkpoint");
}

#[test]
fn a_type_that_the_device_lacks_is_refused_wherever_a_value_has_it() {
    const LAYER_ERRORS: DTypeSet = DTypeSet::of(&[DType::BF16, DType::F32]);
    let lacks = |purpose: &str| {
        let mut accepts = Accepts::default();
        match purpose {
            "compute" => accepts.compute = LAYER_ERRORS,
            "kv" => accepts.kv = LAYER_ERRORS,
            "state" => accepts.state = LAYER_ERRORS,
            _ => accepts.accum = LAYER_ERRORS,
        }
        accepts
    };
    let embed = "program embed\n  tokens : index [n]\n  t : [9, 8] @ \"t\"\n  return gather(t, tokens)\n";
    let memory = "program decode layer=1\n  x : [n, 4]\n  s : [4, 4]\n  s[..] = silu(s[..])\n  return linear(x, s[..])\n";
    let bias = "program p\n  x : [n, 8]\n  b : [8] @ \"b\"\n  return silu(x) * b\n";
    let f16 = |what: &str| match what {
        "compute" => policy("parity").with_compute(DType::F16),
        "kv" => policy("parity").with_kv(DType::F16),
        "state" => policy("parity").with_state(DType::F16),
        _ => policy("parity").with_accum(DType::F64),
    };
    for (text, what, wanted) in [
        (LAYER, "compute", "`x`: cpu has no f16 for activations; it has bf16, f32"),
        (embed, "compute", "`return.1`: cpu has no f16 for activations; it has bf16, f32"),
        (LAYER, "kv", "`k3`: cpu has no f16 for kv; it has bf16, f32"),
        (memory, "state", "`s`: cpu has no f16 for state; it has bf16, f32"),
        (LAYER, "accum", "`h`: cpu has no f64 for accum; it has bf16, f32"),
    ] {
        let error = try_typed(text, &f16(what), DType::F32, &lacks(what)).unwrap_err();
        assert_eq!(error.to_string(), wanted);
        try_typed(text, &f16(what), DType::F32, &Accepts::default()).unwrap();
    }
    // A join above the compute type is a type that the device computes in, too.
    let graph = common::lift(bias);
    let error = policy("parity").typed(&graph, &|_| Some(DType::F64), &lacks("compute")).unwrap_err();
    assert_eq!(error.to_string(), "`return.2`: cpu has no f64 for activations; it has bf16, f32");
}

#[test]
fn operands_without_a_join_are_named() {
    let text = "program p\n  x : [n, 8]\n  b : [8] @ \"b\"\n  return silu(x) + b\n";
    let ints = Accepts { weights: DTypeSet::of(&[DType::I32]), ..Accepts::default() };
    let error = policy("parity").typed(&common::lift(text), &|_| Some(DType::I32), &ints).unwrap_err();
    assert!(matches!(error, CtxError::Operands { .. }));
    assert_eq!(error.to_string(), "`return.2`: no element type holds every value of both f32 and i32");
}

#[test]
fn one_value_is_cast_to_one_type_once() {
    let quantized = typed(LAYER, &policy("quantized"), DType::Q4_0);
    let blocks: Vec<String> = ledger(&quantized).into_iter().filter(|l| l.ends_with("Activations")).collect();
    assert_eq!(
        blocks,
        [
            "h f32->q8_1 Activations",
            "a f32->q8_1 Activations",
            "m f32->q8_1 Activations",
            "return.4 f32->q8_1 Activations"
        ]
    );
    let linears = nodes(&quantized, "linear");
    let shared = named(&quantized, "h~q8_1");
    let sharing = linears.iter().filter(|(_, args, _)| args[0] == shared).count();
    assert_eq!(sharing, 3, "queries, keys and values share one cast:\n{quantized}");
    let shared = named(&quantized, "m~q8_1");
    assert_eq!(linears.iter().filter(|(_, args, _)| args[0] == shared).count(), 2);
    assert_eq!(quantized.dtype(named(&quantized, "k3")), DType::F16);
    // Norms, rotations and attention never meet blocks.
    for op in ["rms_norm", "rope", "attend", "silu"] {
        for (_, args, _) in nodes(&quantized, op) {
            assert_ne!(quantized.dtype(args[0]), DType::Q8_1, "{op}");
        }
    }
}

#[test]
fn blocks_meet_only_encoded_weights_on_devices_that_take_them() {
    let reasons = |typed: tranship_ctx::Typed| typed.ledger().iter().any(|c| c.reason == Reason::Activations);
    assert!(reasons(typed(LAYER, &policy("quantized"), DType::Q8_0)));
    assert!(!reasons(typed(LAYER, &policy("quantized"), DType::F16)));
    assert!(!reasons(typed(LAYER, &policy("parity"), DType::Q8_0)));
    let float = LayerPolicy { activations: Some(Activations::Float), ..LayerPolicy::default() };
    assert!(!reasons(typed(LAYER, &policy("quantized").with_layer(3, float), DType::Q8_0)));
    let none = Accepts { blocks: DTypeSet::of(&[]), ..Accepts::default() };
    assert!(!reasons(try_typed(LAYER, &policy("quantized"), DType::Q8_0, &none).unwrap()));
}

#[test]
fn an_exception_of_a_layer_leaves_the_others_alone() {
    let own = LayerPolicy { kv: Some(DType::F8E4M3), ..LayerPolicy::default() };
    let other = LAYER.replace("layer=3", "layer=2");
    let (plain, excepted) = (policy("serving"), policy("serving").with_layer(3, own));
    assert_eq!(typed(&other, &excepted, DType::F32), typed(&other, &plain, DType::F32));
    let layer = typed(LAYER, &excepted, DType::F32);
    for name in ["k3", "v3"] {
        assert_eq!(layer.dtype(named(&layer, name)), DType::F8E4M3);
        assert_eq!(typed(LAYER, &plain, DType::F32).dtype(named(&layer, name)), DType::F32);
    }
    let kv: Vec<_> = layer.carried().map(|(c, dtype)| (c.name.clone(), dtype)).collect();
    assert_eq!(kv, [("k3".into(), DType::F8E4M3), ("v3".into(), DType::F8E4M3)]);
}

#[test]
fn logits_stay_in_their_accumulator() {
    let head = "program head\n  x : [n, 8]\n  g : [8] @ \"g\"\n  w : [5, 8] @ \"w\"\n  return linear(rms_norm(x, g, eps: 1e-5), w)\n";
    for (accum, name) in [(DType::F32, "head"), (DType::F64, "head"), (DType::BF16, "layer")] {
        let ctx = policy("serving").with_accum(if name == "head" { accum } else { DType::F32 });
        let typed = typed(&head.replace("head", name), &ctx, DType::BF16);
        assert_eq!(typed.dtype(typed.graph().result), accum, "{name}");
        assert_eq!(typed.dtype(named(&typed, "return.1")), DType::BF16);
    }
}

#[test]
fn memories_are_kept_in_the_state_type() {
    let text = "program decode layer=1\n  x : [n, 4]\n  s : [key 4, value 4]\n  g : [4] @ \"decay\"\n  s[..] = silu(s[..] * g)\n  return linear(x, s[..])\n";
    let typed = typed(text, &policy("serving"), DType::BF16);
    assert_eq!(typed.dtype(named(&typed, "s")), DType::F32);
    assert!(ledger(&typed).contains(&"s.3 bf16->f32 State".to_string()), "{typed}");
    for node in &typed.graph().nodes {
        if let Action::Write { tensor, value, .. } = node.action {
            assert_eq!(typed.dtype(tensor), typed.dtype(value));
        }
    }
}

#[test]
fn a_prefix_ends_with_the_value_it_is_asked_for() {
    let whole = typed(LAYER, &policy("quantized"), DType::Q4_0);
    let q = named(&whole, "q");
    let prefix = whole.until(q);
    assert_eq!(prefix.graph().result, q);
    let nodes = &prefix.graph().nodes;
    assert_eq!(nodes.last().and_then(|n| n.action.out()), Some(q));
    assert_eq!(nodes[..], whole.graph().nodes[..nodes.len()]);
    assert!(nodes.len() < whole.graph().nodes.len());
    assert_eq!(ledger(&prefix), ["h f32->q8_1 Activations"]);
    assert_eq!(prefix.dtype(q), whole.dtype(q));
    assert!(prefix.to_string().contains("  return q\n"), "{prefix}");
    let all = whole.until(whole.graph().result);
    assert_eq!(all, whole);
    let casts = nodes.iter().filter(|n| common::is_cast(&n.action)).count();
    assert_eq!(casts, prefix.ledger().len());
}

#[test]
fn equal_layers_are_one_canonical_text() {
    let canonical = |text: &str, ctx: &str, matrix| typed(text, &policy(ctx), matrix).canonical();
    let renamed = LAYER
        .replace("layer=3", "layer=7")
        .replace("k3", "keys")
        .replace("v3", "values")
        .replace("@ \"q\"", "@ \"another\"")
        .replace("wq", "weight_of_q");
    let own = canonical(LAYER, "quantized", DType::Q4_0);
    assert_ne!(LAYER, renamed);
    assert_eq!(canonical(&renamed, "quantized", DType::Q4_0), own);
    for (what, other) in [
        ("encoding", canonical(LAYER, "quantized", DType::Q8_0)),
        ("policy", canonical(LAYER, "parity", DType::Q4_0)),
        ("attribute", canonical(&LAYER.replace("scale: 0.125", "scale: 0.25"), "quantized", DType::Q4_0)),
        (
            "operand",
            canonical(
                &LAYER.replace("linear(m, wu)", "linear(m, wg)").replace("linear(m, wg))", "linear(m, wu))"),
                "quantized",
                DType::Q4_0,
            ),
        ),
    ] {
        assert_ne!(other, own, "{what}");
    }
    let accum = policy("quantized").with_accum(DType::F64);
    assert_ne!(typed(LAYER, &accum, DType::Q4_0).canonical(), own, "accumulator");
    let kv = policy("quantized").with_kv(DType::BF16);
    assert_ne!(typed(LAYER, &kv, DType::Q4_0).canonical(), own, "cache");
}

#[test]
fn a_policy_that_cannot_be_types_nothing() {
    let graph = common::lift(LAYER);
    let error = policy("parity").with_accum(DType::F8E5M2);
    let error = error.typed(&graph, &stored(&graph, DType::F32), &Accepts::default()).unwrap_err();
    assert_eq!(error, CtxError::NotAPolicy { purpose: "accumulate", dtype: DType::F8E5M2 });
}
