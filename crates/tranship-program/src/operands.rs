//! Where operands come from, for operations that rely on more than shapes: without these rules a program could make a
//! backend read rows that are not there, or depend on what rows before the first position hold.

use crate::error::{ProgramError, Rule, fault};
use crate::graph::{Action, Node, Origin, Rows, Value, ValueId};
use crate::syntax::Named;
use crate::{Dim, Op};

/// Holds that operands of `op`, which the text gives as `call`, come from where they may. `args` are all of them, the
/// memory of one that advances a state included.
pub(crate) fn hold(
    values: &[Value],
    nodes: &[Node],
    (op, call): (&Op, &Named),
    args: &[ValueId],
) -> Result<(), ProgramError> {
    let refused = |rule, message: String| Err(fault(rule, call.span, message));
    for (i, arg) in args.iter().enumerate() {
        if i == 0 && *op == Op::Join {
            continue;
        }
        before_the_step(values, nodes, *arg, call)?;
        if matches!(values[arg.0].shape.rows(), Dim::After(_)) && !op.reaches_back() {
            let name = &values[arg.0].name;
            let message = format!(
                "`{}` of `{name}`, whose first rows may stand before the start: only conv, attend, compress and \
                 compressed_attend leave those out",
                call.name
            );
            return refused(Rule::ShapeMismatch, message);
        }
    }
    match op {
        Op::Join if ring_read(nodes, args[0]).is_none() => {
            let name = &values[args[0].0].name;
            let message = format!("`join` takes rows [pos-K .. pos] of a tensor first, found `{name}`");
            refused(Rule::RowRange, message)
        }
        Op::Experts(experts) => match maker(nodes, args[1]) {
            Some(Op::Route(route) | Op::RouteByTable(route)) if route.top_k == experts.top_k => Ok(()),
            _ => {
                let (name, top_k) = (&values[args[1].0].name, experts.top_k);
                let message = format!(
                    "`experts`: `{name}` in the place of r is no result of a route with top_k {top_k}"
                );
                refused(Rule::OperandKind, message)
            }
        },
        Op::RouteByTable(_) if !matches!(values[args[2].0].origin, Origin::Weight(_)) => {
            let name = &values[args[2].0].name;
            let message = format!("`{}`: `{name}` in the place of table is no weight", call.name);
            refused(Rule::OperandKind, message)
        }
        Op::CompressedAttend(attend) => match args.get(4).map(|chosen| (chosen, maker(nodes, *chosen))) {
            None => Ok(()),
            Some((_, Some(Op::Choose(choose)))) if choose.rate == attend.rate => Ok(()),
            Some((chosen, _)) => {
                let (name, rate) = (&values[chosen.0].name, attend.rate);
                let message = format!(
                    "`{}`: `{name}` in the place of chosen is no choice among rows of rate {rate}",
                    call.name
                );
                refused(Rule::OperandKind, message)
            }
        },
        _ => Ok(()),
    }
}

/// Holds that a value is not rows from before the step as they were read: those are joined with the step's own, which
/// says where each stands.
pub(crate) fn before_the_step(
    values: &[Value],
    nodes: &[Node],
    id: ValueId,
    at: &Named,
) -> Result<(), ProgramError> {
    // Such rows are of a fixed number: all else need not be looked for.
    if values[id.0].origin != Origin::Computed || values[id.0].shape.fixed_rows().is_none() {
        return Ok(());
    }
    match ring_read(nodes, id) {
        Some((tensor, rows)) => {
            let name = &values[tensor.0].name;
            let message = format!("`{name}{rows}` goes into `join` alone, and `{}` is none", at.name);
            Err(fault(Rule::RowRange, at.span, message))
        }
        None => Ok(()),
    }
}

/// The tensor and rows of a read of rows from before the step.
fn ring_read(nodes: &[Node], id: ValueId) -> Option<(ValueId, Rows)> {
    nodes.iter().rev().find_map(|node| match node.action {
        Action::Read { tensor, rows: rows @ Rows::Before(_), out } if out == id => Some((tensor, rows)),
        _ => None,
    })
}

/// The operation that makes a value.
fn maker(nodes: &[Node], id: ValueId) -> Option<&Op> {
    nodes.iter().rev().find_map(|node| match &node.action {
        Action::Apply { op, out, .. } if *out == id => Some(op),
        _ => None,
    })
}
