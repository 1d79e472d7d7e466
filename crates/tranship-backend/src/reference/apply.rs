//! The one place where operations are told apart.

use super::attend::Seen;
use super::experts::Banks;
use super::run::Run;
use super::{
    attend, columns, compressed, conv, elementwise, experts, gather, latent_attend, linear, log_decay,
    rms_norm, rope, route, streams,
};
use crate::{BackendError, RopeTable};
use tranship_dtype::DType;
use tranship_program::ops::Experts;
use tranship_program::{Dim, Op, ValueId};

impl Run<'_> {
    /// What an operation gives, not yet rounded to its dtype. An operation that gives an index, or that advances a
    /// memory, is not for here and gives nothing.
    pub(super) fn apply(&self, op: &Op, args: &[ValueId], out: ValueId) -> Result<Vec<f32>, BackendError> {
        let arg = |i: usize| args.get(i).map_or(&[][..], |a| self.value(*a));
        let cols = |i: usize| args.get(i).map_or(0, |a| self.cols(*a));
        Ok(match op {
            Op::Gather => gather::run(arg(0), cols(0), self.index(args[1])),
            Op::RmsNorm(op) => rms_norm::rms(op, arg(0), args.get(1).map(|_| arg(1)), cols(0)),
            Op::L2Norm(op) => rms_norm::l2(op, arg(0), cols(0)),
            Op::Linear(op) => linear::run(arg(0), arg(1), arg(2), cols(0), op.groups as usize),
            Op::Rope(op) => {
                let table = RopeTable::new(op, args.get(2).map(|_| arg(2)));
                rope::run(op, &table, arg(0), cols(0), self.position)
            }
            Op::Attend(op) => {
                let (q, k, v, sinks) = (arg(0), arg(1), arg(2), arg(3));
                let operands = attend::Operands { q, k, v, sinks, k_cols: cols(1), v_cols: cols(2) };
                attend::run(op, &operands, &self.seen(args[1], op.window))
            }
            Op::LatentAttend(op) => {
                let sizes = latent_attend::Sizes { q: cols(0), latent: cols(1), rope: cols(2) };
                latent_attend::run(op, &sizes, [arg(0), arg(1), arg(2), arg(3)], self.position)
            }
            Op::Compress(op) => {
                compressed::compress(op, [arg(0), arg(1), arg(2)], cols(0), self.position, self.rows)
            }
            Op::CompressedAttend(op) => {
                let chosen = args.get(4).map(|a| (self.index(*a), self.cols(*a)));
                let seen = self.seen(args[1], Some(op.window));
                let on = [arg(0), arg(1), arg(2), arg(3)];
                compressed::attend(op, on, chosen, cols(1), &seen, self.position)
            }
            Op::Silu => elementwise::map(arg(0), elementwise::silu),
            Op::Unary(op) => elementwise::unary(*op, arg(0)),
            Op::Add => elementwise::zip(arg(0), arg(1), self.one_row(args), |a, b| a + b),
            Op::Mul => elementwise::zip(arg(0), arg(1), self.one_row(args), |a, b| a * b),
            Op::Slice(op) => columns::slice(op, arg(0), cols(0)),
            Op::Tile(times) => columns::tile(*times, arg(0), cols(0)),
            Op::Join => columns::join(arg(0), arg(1)),
            Op::Conv => conv::run(arg(0), arg(1), arg(2), cols(0)),
            Op::LogDecay(form) => log_decay::run(*form, arg(0), arg(1), arg(2)),
            Op::Route(op) => route::run(op, arg(0), arg(1), arg(2), cols(0)),
            Op::RouteByTable(op) => {
                route::by_table(op, [arg(0), arg(1), arg(2)], self.index(args[3]), cols(0))
            }
            Op::Experts(op) => experts::run(op, &self.banks(op, args, out), arg(0), arg(1))?,
            Op::StreamGates(op) => streams::gates(op, arg(0), arg(1), arg(2)),
            Op::StreamCollapse(count) => streams::collapse(*count as usize, arg(0), arg(1), cols(0), cols(1)),
            Op::StreamExpand(count) => streams::expand(*count as usize, arg(0), arg(1), arg(2), cols(0)),
            Op::Cast(_) => arg(0).to_vec(),
            Op::Choose(_) | Op::GatedDelta(_) | Op::DecayedLinear(_) | Op::StateSpace(_) => Vec::new(),
        })
    }

    /// Whether the second operand is one row that meets every row of the first.
    fn one_row(&self, args: &[ValueId]) -> bool {
        let shape = |i: usize| &self.part.typed.graph().value(args[i]).shape;
        shape(1).0.len() == 1 && shape(0).0.len() > 1
    }

    /// Which rows of `keys` the step's queries see.
    fn seen(&self, keys: ValueId, window: Option<u64>) -> Seen {
        let before = match self.part.typed.graph().value(keys).shape.rows() {
            Dim::After(before) => Some(before),
            _ => None,
        };
        Seen::new(before, self.position, window)
    }

    fn banks(&self, op: &Experts, args: &[ValueId], out: ValueId) -> Banks<'_> {
        let gated = usize::from(op.gated);
        let at = |i: usize| args.get(i).map_or(&[][..], |a| self.value(*a));
        let (input, size) = (self.cols(args[0]), self.cols(args[2 + gated]));
        Banks {
            gate: if op.gated { at(2) } else { &[] },
            up: at(2 + gated),
            down: at(3 + gated),
            biases: if op.biased { [at(5), at(6), at(7)] } else { [&[]; 3] },
            input,
            width: size / input,
            out: self.cols(out),
            blocks: self.part.typed.dtype(args[0]) == DType::Q8_1,
        }
    }
}
