//! A layer program and the helpers that the tests of this crate share.
#![allow(dead_code)]

use tranship_ctx::{Accepts, ComputeCtx, CtxError, Device, Typed};
use tranship_dtype::DType;
use tranship_program::{Action, Graph, Op, Program, ValueId};

/// A layer with everything that the policy treats differently: norms, biases in and outside of a matrix product,
/// rotation, caches, a residual sum, a gated product.
pub const LAYER: &str = r#"
program decode layer=3 ctx=32
  x   : [n, 64]
  pos : index
  k3  : [position 32, kv_head 1, head_dim 32]
  v3  : [position 32, kv_head 1, head_dim 32]
  g   : [64] @ "attn_norm"
  wq  : [64, 64] @ "q"
  bq  : [64] @ "q.bias"
  wk  : [32, 64] @ "k"
  wv  : [32, 64] @ "v"
  wo  : [64, 64] @ "o"
  bo  : [64] @ "o.bias"
  f   : [64] @ "ffn_norm"
  wg  : [96, 64] @ "gate"
  wu  : [96, 64] @ "up"
  wd  : [64, 96] @ "down"
  h = rms_norm(x, g, eps: 1e-5)
  q = rope(linear(h, wq, bq), pos, heads: 2, dims: 32, theta: 1e4, style: half)
  k3[pos .. pos+n] = rope(linear(h, wk), pos, heads: 1, dims: 32, theta: 1e4, style: half)
  v3[pos .. pos+n] = linear(h, wv)
  a = attend(q, k3[.. pos+n], v3[.. pos+n], heads: 2, kv_heads: 1, scale: 0.125)
  o = linear(a, wo) + bo
  y = x + o
  m = rms_norm(y, f, eps: 1e-5)
  return y + linear(silu(linear(m, wg)) * linear(m, wu), wd)
"#;

/// The graph of a program's text.
pub fn lift(text: &str) -> Graph {
    Program::parse(text).and_then(|p| p.lift()).expect("the test's program is a program")
}

/// A policy for the processor, by name.
pub fn policy(name: &str) -> ComputeCtx {
    ComputeCtx::preset(name, Device::cpu()).expect("a preset")
}

/// Weights as files store them: matrices in `matrix`, vectors in F32.
pub fn stored(graph: &Graph, matrix: DType) -> impl Fn(&str) -> Option<DType> {
    let weights: Vec<(String, DType)> = graph
        .declared()
        .filter_map(|(_, v)| match &v.origin {
            tranship_program::Origin::Weight(w) => {
                Some((w.clone(), if v.shape.0.len() > 1 { matrix } else { DType::F32 }))
            }
            _ => None,
        })
        .collect();
    move |name| weights.iter().find(|(w, _)| w == name).map(|(_, d)| *d)
}

/// A text typed under a policy, with its matrices stored in one type, on a device that takes everything.
pub fn typed(text: &str, ctx: &ComputeCtx, matrix: DType) -> Typed {
    try_typed(text, ctx, matrix, &Accepts::default()).expect("a program that the policy can type")
}

/// As [`typed`], on a device that takes `accepts`.
pub fn try_typed(text: &str, ctx: &ComputeCtx, matrix: DType, accepts: &Accepts) -> Result<Typed, CtxError> {
    let graph = lift(text);
    ctx.typed(&graph, &stored(&graph, matrix), accepts)
}

/// The value of a name.
pub fn named(typed: &Typed, name: &str) -> ValueId {
    let found = typed.graph().values.iter().position(|v| v.name == name);
    ValueId(found.unwrap_or_else(|| panic!("no value `{name}` in\n{typed}")))
}

/// The nodes of an operation by name: index, operands but for a memory that it advances, result.
pub fn nodes(typed: &Typed, op: &str) -> Vec<(usize, Vec<ValueId>, ValueId)> {
    let nodes = typed.graph().nodes.iter().enumerate();
    let of_op = nodes.filter_map(|(i, node)| match &node.action {
        Action::Apply { op: found, args, out } | Action::Update { op: found, args, out, .. }
            if found.name() == op =>
        {
            Some((i, args.clone(), *out))
        }
        _ => None,
    });
    of_op.collect()
}

/// Whether an action is a cast.
pub fn is_cast(action: &Action) -> bool {
    matches!(action, Action::Apply { op: Op::Cast(_), .. })
}
