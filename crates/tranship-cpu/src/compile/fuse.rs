//! What one kernel can do of two nodes: found before buffers are assigned, so that lifetimes are those of the fused
//! list.

use tranship_ctx::Typed;
use tranship_dtype::DType;
use tranship_program::ops::Unary;
use tranship_program::{Action, Dim, Op, ValueId};

/// A node of the fused list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fused {
    /// The node as it is, by index.
    Plain(usize),
    /// A linear whose sums are added to `onto`; the linear's and the sum's node.
    LinearOnto { linear: usize, onto: ValueId, out: ValueId },
    /// `silu(gate) · up`, or another function of the gate.
    ActMul { function: Option<Unary>, gate: ValueId, up: ValueId, out: ValueId },
}

/// The graph's nodes, with those that one kernel does together made one.
pub(crate) fn fuse(typed: &Typed) -> Vec<Fused> {
    let graph = typed.graph();
    let mut uses = vec![0usize; graph.values.len()];
    uses[graph.result.0] += 1;
    for node in &graph.nodes {
        node.action.inputs().iter().for_each(|id| uses[id.0] += 1);
    }
    let made_by = |id: ValueId| graph.nodes.iter().position(|n| n.action.out() == Some(id));
    // A value that is rounded, or read by others too, must be there on its own.
    let inner = |id: ValueId| uses[id.0] == 1 && typed.dtype(id) == DType::F32;
    let op_of = |id: ValueId| made_by(id).map(|n| (n, &graph.nodes[n].action));

    let mut gone = vec![false; graph.nodes.len()];
    let mut fused: Vec<Option<Fused>> = vec![None; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        let Action::Apply { op, args, out } = &node.action else { continue };
        // Rows of the step alone: others may be views of what is written before the place that a node is moved to.
        let of_step = graph.value(*out).shape.rows() == Dim::N;
        let rows = |id: ValueId| of_step && graph.value(id).shape == graph.value(*out).shape;
        match op {
            Op::Add if typed.dtype(*out) == DType::F32 => {
                for (side, onto) in [(args[1], args[0]), (args[0], args[1])] {
                    let Some((linear, Action::Apply { op: Op::Linear(_), args: own, .. })) = op_of(side)
                    else {
                        continue;
                    };
                    // In place of what it reads itself, a linear would read its own sums.
                    if inner(side)
                        && !own.contains(&onto)
                        && side != onto
                        && rows(onto)
                        && rows(side)
                        && fused[i].is_none()
                    {
                        gone[linear] = true;
                        fused[i] = Some(Fused::LinearOnto { linear, onto, out: *out });
                    }
                }
            }
            Op::Mul => {
                for (side, up) in [(args[0], args[1]), (args[1], args[0])] {
                    let Some((act, Action::Apply { op, args, .. })) = op_of(side) else { continue };
                    let function = match op {
                        Op::Silu => None,
                        Op::Unary(function) => Some(*function),
                        _ => continue,
                    };
                    if inner(side)
                        && side != up
                        && args[0] != up
                        && rows(up)
                        && rows(side)
                        && fused[i].is_none()
                    {
                        gone[act] = true;
                        fused[i] = Some(Fused::ActMul { function, gate: args[0], up, out: *out });
                    }
                }
            }
            _ => {}
        }
    }
    let node = |i: usize| if gone[i] { None } else { Some(fused[i].clone().unwrap_or(Fused::Plain(i))) };
    (0..graph.nodes.len()).filter_map(node).collect()
}

impl Fused {
    /// The values that the node reads.
    pub fn inputs(&self, typed: &Typed) -> Vec<ValueId> {
        let graph = typed.graph();
        match self {
            Fused::Plain(i) => graph.nodes[*i].action.inputs(),
            Fused::LinearOnto { linear, onto, .. } => {
                let mut inputs = graph.nodes[*linear].action.inputs();
                inputs.push(*onto);
                inputs
            }
            Fused::ActMul { gate, up, .. } => vec![*gate, *up],
        }
    }
}
