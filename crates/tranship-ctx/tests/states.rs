//! The typing of rings, compressed rows, memories, experts and choices: which type each state has, what is cast on
//! its way there, and what no policy touches.

mod common;

use common::{lift, named, nodes, policy, typed};
use tranship_ctx::{Accepts, Cast, ComputeCtx, LayerPolicy, PRESETS, Typed};
use tranship_dtype::DType;
use tranship_program::ops::Precision;
use tranship_program::{Action, Op};

/// A ring that attention reads, with one key and value head, in BF16 with F16 caches.
const RING: &str = "program decode layer=1 ctx=32
  x : [n, 8]
  pos : index
  k : [3, 8]
  w : [8, 8] @ \"w\"
  row = linear(x, w)
  j = join(k[pos-3 .. pos], row)
  a = attend(x, j, j, heads: 1, kv_heads: 1, scale: 1, window: 4)
  k[pos+n-3 .. pos+n] = row
  return a
";

/// A ring that a convolution reads.
const CONV: &str = "program decode layer=1 ctx=32
  x : [n, 8]
  pos : index
  r : [3, 8]
  taps : [8, 4] @ \"taps\"
  row = silu(x)
  y = conv(join(r[pos-3 .. pos], row), taps)
  r[pos+n-3 .. pos+n] = row
  return y
";

/// Frontiers, compressed rows that some are chosen of, and a window.
const COMPRESSED: &str = "program decode layer=1 ctx=16
  x : [n, 8]
  pos : index
  ck : [3, 8]   cg : [3, 8]   c : [8, 4]   near : [1, 4]
  wn : [4, 8] @ \"near\"   wi : [2, 8] @ \"weights\"
  bias : [2, 8] @ \"bias\"   sinks : [2] @ \"sinks\"
  c[pos/2 .. (pos+n)/2] = compress(join(ck[pos-3 .. pos], x), join(cg[pos-3 .. pos], x), bias, rate: 2, overlap: yes)
  ck[pos+n-3 .. pos+n] = x
  cg[pos+n-3 .. pos+n] = x
  top = choose(x, c[.. (pos+n)/2], linear(x, wi), heads: 2, top_k: 3, rate: 2, scale: 1)
  row = linear(x, wn)
  a = compressed_attend(x, join(near[pos-1 .. pos], row), c[.. (pos+n)/2], sinks, top, heads: 2, scale: 1, window: 2, rate: 2)
  near[pos+n-1 .. pos+n] = row
  return a
";

const MEMORY: &str = "program decode layer=1
  x : [n, 8]
  s : [2, 4, 4]
  w : [2, 8] @ \"w\"
  g = linear(x, w)
  y, s[..] = gated_delta(s[..], x, x, x, g, sigmoid(g), heads: 2, key_heads: 2, scale: 1)
  return y
";

fn mixed() -> ComputeCtx {
    policy("parity").with_compute(DType::BF16).with_kv(DType::F16)
}

fn ledger(typed: &Typed) -> Vec<String> {
    let line = |c: &Cast| format!("{} {}->{} {:?}", c.value, c.from, c.to, c.reason);
    typed.ledger().iter().map(line).collect()
}

fn dtypes<const N: usize>(typed: &Typed, names: [&str; N]) -> [DType; N] {
    names.map(|name| typed.dtype(named(typed, name)))
}

#[test]
fn a_ring_that_attention_reads_is_a_cache() {
    let typed = typed(RING, &mixed(), DType::BF16);
    // The step's rows are cast once: for the join, and for the write.
    assert_eq!(ledger(&typed), ["row bf16->f16 Kv"]);
    assert_eq!(dtypes(&typed, ["k", "j.1", "j", "a"]), [DType::F16, DType::F16, DType::F16, DType::BF16]);
    let cast = named(&typed, "row~f16");
    let (_, args, _) = nodes(&typed, "join").remove(0);
    assert_eq!(args[1], cast);
    let writes = typed.graph().nodes.iter().filter_map(|n| match n.action {
        Action::Write { value, .. } => Some(value),
        _ => None,
    });
    assert_eq!(writes.collect::<Vec<_>>(), [cast]);
    let (attend, ..) = nodes(&typed, "attend").remove(0);
    assert_eq!(typed.accum(attend), Some(DType::F32));
    // An exception of the layer is of its caches, so of this ring.
    let own = LayerPolicy { kv: Some(DType::F8E4M3), state: Some(DType::F64), ..LayerPolicy::default() };
    let excepted = common::typed(RING, &mixed().with_layer(1, own), DType::BF16);
    assert_eq!(dtypes(&excepted, ["k", "j"]), [DType::F8E4M3; 2]);
}

#[test]
fn the_inputs_of_a_convolution_and_a_frontier_are_memories() {
    let conv = typed(CONV, &mixed(), DType::BF16);
    assert_eq!(ledger(&conv), ["row bf16->f32 State"]);
    assert_eq!(dtypes(&conv, ["r", "y.1", "y.2", "y"]), [DType::F32, DType::F32, DType::F32, DType::BF16]);
    let all = typed(COMPRESSED, &mixed(), DType::BF16);
    assert_eq!(dtypes(&all, ["ck", "cg", "c", "near"]), [DType::F32, DType::F32, DType::F16, DType::F16]);
    // Both frontiers take the same rows, cast once; the compressed row and the window's are cached.
    assert_eq!(ledger(&all), ["x bf16->f32 State", "c.5 bf16->f16 Kv", "row bf16->f16 Kv"]);
    let own = LayerPolicy { state: Some(DType::F64), ..LayerPolicy::default() };
    let excepted = typed(CONV, &mixed().with_layer(1, own), DType::BF16);
    assert_eq!(dtypes(&excepted, ["r", "y.2"]), [DType::F64; 2]);
    let (conv, ..) = nodes(&excepted, "conv").remove(0);
    assert_eq!(excepted.accum(conv), Some(DType::F64), "never below what is read");
}

#[test]
fn a_choice_is_an_index_that_no_policy_touches() {
    for name in PRESETS {
        let typed = typed(COMPRESSED, &policy(name), DType::Q8_0);
        let (choose, _, top) = nodes(&typed, "choose").remove(0);
        assert_eq!(typed.dtype(top), DType::U32, "{name}");
        assert!(typed.accum(choose).is_some(), "its scores are computed");
        let (attend, args, _) = nodes(&typed, "compressed_attend").remove(0);
        assert_eq!(args[4], top, "{name}");
        assert_eq!(typed.accum(attend), Some(DType::F32), "an index takes no part in the join");
    }
}

#[test]
fn memories_are_in_the_state_type_under_every_preset() {
    for name in PRESETS {
        let typed = typed(MEMORY, &policy(name), DType::F16);
        assert_eq!(dtypes(&typed, ["s"]), [DType::F32], "{name}");
        assert_eq!(typed.dtype(named(&typed, "y")), policy(name).compute, "{name}");
        // The memory is read and written where it is: no cast, and nothing that could be thrown away.
        assert!(typed.ledger().is_empty(), "{typed}");
        let update = typed.graph().nodes.iter().find_map(|n| match &n.action {
            Action::Update { tensor, .. } => Some(*tensor),
            _ => None,
        });
        assert_eq!(update, Some(named(&typed, "s")));
    }
    let own = LayerPolicy { state: Some(DType::F64), ..LayerPolicy::default() };
    let typed = typed(MEMORY, &policy("serving").with_layer(1, own), DType::F16);
    let (update, ..) = nodes(&typed, "gated_delta").remove(0);
    assert_eq!(
        (dtypes(&typed, ["s", "y"]), typed.accum(update)),
        ([DType::F64, DType::BF16], Some(DType::F64))
    );
    let few = Accepts { state: tranship_ctx::DTypeSet::of(&[DType::F16]), ..Accepts::default() };
    let error = common::try_typed(MEMORY, &policy("serving"), DType::F16, &few).unwrap_err();
    assert_eq!(error.to_string(), "`s`: cpu has no f32 for state; it has f16");
}

const EXPERTS: &str = "program layer
  x : [n, 64]
  tokens : index [n]
  w : [4, 64] @ \"route\"
  table : [9, 2] @ \"table\"
  g : [4, 32, 64] @ \"gate\"
  u : [4, 32, 64] @ \"up\"
  d : [4, 64, 32] @ \"down\"
  r = route_by_table(x, w, table, tokens, top_k: 2)
  p = route(x, w, top_k: 2)
  return experts(x, r, g, u, d, top_k: 2) + experts(x, p, u, d, top_k: 2, act: relu2)
";

#[test]
fn experts_meet_blocks_where_all_that_the_row_meets_is_encoded() {
    let with = |gate: DType, up: DType| {
        let graph = lift(EXPERTS);
        let stored = move |name: &str| {
            Some(match name {
                "gate" => gate,
                "up" => up,
                "down" => DType::Q6_K,
                "table" => DType::I32,
                _ => DType::F32,
            })
        };
        let typed = policy("quantized").typed(&graph, &stored, &Accepts::default()).unwrap();
        let experts = nodes(&typed, "experts");
        [0, 1].map(|i| typed.dtype(experts[i].1[0]) == DType::Q8_1)
    };
    assert_eq!(with(DType::Q4_0, DType::Q8_0), [true, true]);
    assert_eq!(with(DType::F16, DType::Q8_0), [false, true]);
    assert_eq!(with(DType::Q4_0, DType::BF16), [false, false]);
}

#[test]
fn a_grouped_linear_meets_blocks_as_any() {
    let text = "program p\n  x : [n, 64]\n  w : [4, 32] @ \"w\"\n  return linear(x, w, groups: 2)\n";
    assert_eq!(ledger(&typed(text, &policy("quantized"), DType::Q4_0)), ["x f32->q8_1 Activations"]);
    assert!(typed(text, &policy("quantized"), DType::F16).ledger().is_empty());
}

#[test]
fn a_table_of_experts_is_read_as_it_is_stored() {
    let graph = lift(EXPERTS);
    let few = Accepts { weights: tranship_ctx::DTypeSet::of(&[DType::F32]), ..Accepts::default() };
    for table in [DType::I32, DType::I64, DType::U8, DType::F32] {
        let stored = |name: &str| Some(if name == "table" { table } else { DType::F32 });
        let typed = policy("parity").typed(&graph, &stored, &few).unwrap();
        assert!(typed.ledger().is_empty(), "{typed}");
        assert_eq!(dtypes(&typed, ["table"]), [table]);
        let (route, args, out) = nodes(&typed, "route_by_table").remove(0);
        assert_eq!(args[2], named(&typed, "table"));
        assert_eq!((typed.accum(route), typed.dtype(out)), (Some(DType::F32), DType::F32), "{table}");
    }
    // Anywhere else whole numbers are no weights.
    let stored = |name: &str| Some(if name == "route" { DType::I32 } else { DType::F32 });
    let error = policy("parity").typed(&graph, &stored, &few).unwrap_err();
    assert_eq!(error.to_string(), "`route`: cpu has no i32 for weights; it has f32");
}

#[test]
fn the_last_functions_of_logits_are_in_the_accumulator() {
    let head = |tail: &str| {
        format!(
            "program head\n  x : [n, 8]\n  w : [5, 8] @ \"w\"\n  y = linear(x, w)\n  z = scale(y, by: 0.5)\n  return {tail}\n"
        )
    };
    for (tail, results) in [
        ("softcap(z, cap: 30)", [DType::F64; 3]),
        ("clamp(softcap(z, cap: 30), max: 1)", [DType::F64; 3]),
        // What goes on into another operation is an activation.
        ("z + scale(y, by: 2)", [DType::BF16; 3]),
        ("rms_norm(z, eps: 0)", [DType::BF16, DType::BF16, DType::F64]),
    ] {
        let ctx = policy("serving").with_accum(DType::F64);
        let typed = typed(&head(tail), &ctx, DType::BF16);
        let result = typed.dtype(typed.graph().result);
        let [y, z] = dtypes(&typed, ["y", "z"]);
        assert_eq!([y, z, result], results, "{tail}\n{typed}");
        let other = common::typed(&head(tail).replace("head", "layer"), &ctx, DType::BF16);
        assert_eq!(dtypes(&other, ["y", "z"]), [DType::BF16; 2], "{tail}");
        assert_eq!(other.dtype(other.graph().result), DType::BF16, "{tail}");
    }
}

#[test]
fn classes_of_the_operations() {
    let texts = [RING, CONV, COMPRESSED, MEMORY, EXPERTS, common::LAYER];
    let mut accum: Vec<&str> = Vec::new();
    for text in texts {
        let graph = lift(text);
        for node in &graph.nodes {
            let (Action::Apply { op, .. } | Action::Update { op, .. }) = &node.action else { continue };
            let wanted = match op {
                Op::Add | Op::Mul => Precision::Join,
                Op::Join | Op::Gather | Op::Slice(_) | Op::Tile(_) => Precision::Move,
                _ => Precision::Accum,
            };
            assert_eq!(op.precision(), wanted, "{}", op.name());
            if wanted == Precision::Accum {
                accum.push(op.name());
            }
        }
    }
    for name in
        ["conv", "gated_delta", "compress", "choose", "compressed_attend", "experts", "route_by_table"]
    {
        assert!(accum.contains(&name), "{name}");
    }
}

#[test]
fn slices_are_moved_and_come_back_in_the_compute_type() {
    let text = "program p\n  x : [n, 8]\n  w : [8, 8] @ \"w\"\n  return linear(x, slice(w, to: 8)) + tile(slice(x, to: 4), times: 2)\n";
    let typed = typed(text, &policy("serving"), DType::F16);
    assert_eq!(ledger(&typed), ["return.1 f16->bf16 Compute"]);
    let slices = nodes(&typed, "slice");
    assert_eq!(
        slices.iter().map(|(_, _, out)| typed.dtype(*out)).collect::<Vec<_>>(),
        [DType::F16, DType::BF16]
    );
}
