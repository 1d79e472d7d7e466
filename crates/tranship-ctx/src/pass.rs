//! The typing pass. It walks a lifted graph once and gives each value its dtype:
//!
//! - a weight is read as it is stored, and widened inside the operation that reads it; only a type that the
//!   device does not take is widened by a cast node of its own, when it is loaded; a table of experts may be of any
//!   type of whole numbers;
//! - activations are of the compute type; caches and memories of theirs, and what is written to them is cast;
//! - an operation of class `Accum` computes in the join of the accumulation type with all its operands' types and
//!   gives back the compute type; one of class `Join` computes in the join of its operands, the lower of them
//!   cast up, and is cast back to the compute type where the join is another;
//! - rows that are joined with those of a cache or a memory are of its type, as if they had been written to it;
//! - what the head returns stays in its accumulator, through functions of each element: logits go to a softmax, not into another operation.

use crate::policy::is_cache;
use crate::{Accepts, Activations, Cast, CastLedger, ComputeCtx, CtxError, DTypeSet, Reason, Typed};
use std::collections::HashMap;
use tranship_dtype::DType;
use tranship_program::ops::Precision;
use tranship_program::{Action, Carried, Graph, Kind, Node, Op, Origin, Rows, Span, Value, ValueId};

/// The type that indices are in.
const INDEX: DType = DType::U32;

impl ComputeCtx {
    /// Types a program: a dtype for every value, an accumulator for every operation that has one, a node for every
    /// cast.
    ///
    /// `stored` gives the type that the checkpoint stores a weight in; `accepts` is what the device takes.
    ///
    /// # Errors
    /// A policy that cannot be, a weight that is not there, operands without a join, a type that the device lacks.
    pub fn typed(
        &self,
        graph: &Graph,
        stored: &dyn Fn(&str) -> Option<DType>,
        accepts: &Accepts,
    ) -> Result<Typed, CtxError> {
        self.check()?;
        let mut pass = Pass {
            ctx: self,
            accepts,
            layer: graph.param("layer"),
            graph: without_nodes(graph),
            dtypes: vec![INDEX; graph.values.len()],
            accums: Vec::new(),
            casts: Vec::new(),
            cast_of: HashMap::new(),
            renamed: (0..graph.values.len()).map(ValueId).collect(),
        };
        for (id, value) in graph.declared() {
            pass.declare(graph, id, value, stored)?;
        }
        for node in &graph.nodes {
            pass.node(graph, node)?;
        }
        let result = pass.renamed[graph.result.0];
        pass.graph.result = result;
        Ok(Typed {
            graph: pass.graph,
            dtypes: pass.dtypes,
            accums: pass.accums,
            ledger: CastLedger { casts: pass.casts },
        })
    }
}

struct Pass<'a> {
    ctx: &'a ComputeCtx,
    accepts: &'a Accepts,
    layer: Option<u64>,
    graph: Graph,
    dtypes: Vec<DType>,
    accums: Vec<Option<DType>>,
    casts: Vec<Cast>,
    /// Casts already made, by value and type: one value is cast to one type once.
    cast_of: HashMap<(ValueId, DType), ValueId>,
    /// What stands for each value of the untyped graph.
    renamed: Vec<ValueId>,
}

impl Pass<'_> {
    fn declare(
        &mut self,
        graph: &Graph,
        id: ValueId,
        value: &Value,
        stored: &dyn Fn(&str) -> Option<DType>,
    ) -> Result<(), CtxError> {
        if value.kind == Kind::Index {
            return Ok(());
        }
        if let Origin::Weight(name) = &value.origin {
            let dtype = stored(name).ok_or_else(|| CtxError::NoWeight(name.clone()))?;
            self.dtypes[id.0] = dtype;
            if !dtype.is_real() && is_table(graph, id) {
                return Ok(());
            }
            let taken = self.accepts.weights.widened(dtype);
            let taken =
                taken.ok_or_else(|| self.unsupported(name, dtype, "weights", self.accepts.weights))?;
            self.renamed[id.0] = self.cast(id, taken, Reason::Widen, Span::default());
            return Ok(());
        }
        let (dtype, purpose, has) = match carried(graph, id) {
            Some(carried) if is_cache(carried) => {
                (self.ctx.carried_dtype(self.layer, carried), "kv", self.accepts.kv)
            }
            Some(carried) => (self.ctx.carried_dtype(self.layer, carried), "state", self.accepts.state),
            None => (self.ctx.compute, "activations", self.accepts.compute),
        };
        if !has.has(dtype) {
            return Err(self.unsupported(&value.name, dtype, purpose, has));
        }
        self.dtypes[id.0] = dtype;
        Ok(())
    }

    fn unsupported(&self, value: &str, dtype: DType, purpose: &'static str, has: DTypeSet) -> CtxError {
        let device = self.ctx.device.to_string();
        CtxError::Unsupported { value: value.to_owned(), device, dtype, purpose, has: has.to_string() }
    }

    fn node(&mut self, graph: &Graph, node: &Node) -> Result<(), CtxError> {
        match &node.action {
            Action::Read { tensor, rows, out } => {
                self.dtypes[out.0] = self.dtypes[tensor.0];
                self.push(Action::Read { tensor: *tensor, rows: *rows, out: *out }, node.span, None);
                // A row of a cache is read by attention as it is; a memory read whole is an activation.
                if *rows == Rows::All {
                    self.renamed[out.0] = self.cast(*out, self.ctx.compute, Reason::Compute, node.span);
                }
                Ok(())
            }
            Action::Write { tensor, rows, value } => {
                let reason = reason(graph, *tensor);
                let value = self.cast(self.renamed[value.0], self.dtypes[tensor.0], reason, node.span);
                self.push(Action::Write { tensor: *tensor, rows: *rows, value }, node.span, None);
                Ok(())
            }
            Action::Update { op, tensor, args, out } => {
                let args: Vec<ValueId> = args.iter().map(|a| self.renamed[a.0]).collect();
                let name = graph.value(*out).name.clone();
                self.hold_compute(&name, self.ctx.compute)?;
                let all: Vec<ValueId> = [*tensor].into_iter().chain(args.iter().copied()).collect();
                let accum = self.accum_of(op, &all, &name)?;
                self.dtypes[out.0] = self.ctx.compute;
                let action = Action::Update { op: op.clone(), tensor: *tensor, args, out: *out };
                self.push(action, node.span, Some(accum));
                Ok(())
            }
            Action::Apply { op: Op::Join, args, out } => {
                let rows = self.renamed[args[0].0];
                let reason = read_by(graph, args[0]).map_or(Reason::Compute, |tensor| reason(graph, tensor));
                let dtype = self.dtypes[rows.0];
                let new = self.cast(self.renamed[args[1].0], dtype, reason, node.span);
                self.dtypes[out.0] = dtype;
                let action = Action::Apply { op: Op::Join, args: vec![rows, new], out: *out };
                self.push(action, node.span, None);
                Ok(())
            }
            Action::Apply { op, args, out } => self.apply(graph, op, args, *out, node.span),
        }
    }

    fn apply(
        &mut self,
        graph: &Graph,
        op: &Op,
        args: &[ValueId],
        out: ValueId,
        span: Span,
    ) -> Result<(), CtxError> {
        let mut args: Vec<ValueId> = args.iter().map(|a| self.renamed[a.0]).collect();
        let name = graph.value(out).name.clone();
        let logits = op.precision() == Precision::Accum && is_logits(graph, out);
        if !logits {
            self.hold_compute(&name, self.ctx.compute)?;
        }
        match op.precision() {
            Precision::Move => {
                self.dtypes[out.0] = self.dtypes[args[0].0].decoded();
                self.push(Action::Apply { op: op.clone(), args, out }, span, None);
                self.renamed[out.0] = self.cast(out, self.ctx.compute, Reason::Compute, span);
            }
            Precision::Join => {
                let dtype = self.join_all(op, &args, &name)?;
                self.hold_compute(&name, dtype)?;
                for arg in &mut args {
                    *arg = self.cast(*arg, dtype, Reason::Join, span);
                }
                self.dtypes[out.0] = dtype;
                self.push(Action::Apply { op: op.clone(), args, out }, span, None);
                self.renamed[out.0] = self.cast(out, self.ctx.compute, Reason::Compute, span);
            }
            Precision::Accum => {
                let accum = self.accum_of(op, &args, &name)?;
                let matrices: Vec<ValueId> = op.blocks_against().iter().map(|w| args[*w]).collect();
                args[0] = self.meet_blocks(args[0], &matrices, span);
                self.dtypes[out.0] = match op.kind() {
                    Kind::Index => INDEX,
                    Kind::Float if logits => accum,
                    Kind::Float => self.ctx.compute,
                };
                self.push(Action::Apply { op: op.clone(), args, out }, span, Some(accum));
            }
        }
        Ok(())
    }

    /// Holds that the device computes activations in `dtype`.
    fn hold_compute(&self, name: &str, dtype: DType) -> Result<(), CtxError> {
        let has = self.accepts.compute;
        if has.has(dtype) { Ok(()) } else { Err(self.unsupported(name, dtype, "activations", has)) }
    }

    /// What an operation of class `Accum` computes in.
    fn accum_of(&self, op: &Op, args: &[ValueId], name: &str) -> Result<DType, CtxError> {
        let operands = self.join_all(op, args, name)?;
        let accum = operands.join(self.ctx.accum);
        let accum = accum.map_err(|source| CtxError::Operands { value: name.to_owned(), source })?;
        if !self.accepts.accum.has(accum) {
            return Err(self.unsupported(name, accum, "accum", self.accepts.accum));
        }
        Ok(accum)
    }

    /// The join of the types of all operands that take part in promotion, out of their block encodings.
    fn join_all(&self, op: &Op, args: &[ValueId], name: &str) -> Result<DType, CtxError> {
        let real = args.iter().enumerate();
        let real = real.filter(|(i, a)| self.graph.value(**a).kind == Kind::Float && op.promotes(*i));
        let mut dtypes = real.map(|(_, a)| self.dtypes[a.0].decoded());
        let first = dtypes.next().unwrap_or(self.ctx.compute);
        dtypes
            .try_fold(first, DType::join)
            .map_err(|source| CtxError::Operands { value: name.to_owned(), source })
    }

    /// The activations that meet matrices, as 8-bit blocks where the policy and the matrices' encodings ask for it.
    fn meet_blocks(&mut self, x: ValueId, matrices: &[ValueId], span: Span) -> ValueId {
        let block = |w: &ValueId| matches!(self.dtypes[w.0], DType::Block(_));
        let encoded = !matrices.is_empty() && matrices.iter().all(block);
        let blocks = self.ctx.activations_of(self.layer) == Activations::Blocks;
        if encoded && blocks && self.accepts.blocks.has(DType::Q8_1) {
            return self.cast(x, DType::Q8_1, Reason::Activations, span);
        }
        x
    }

    /// The value at `to`, by a cast node unless it is there or has been cast before.
    fn cast(&mut self, value: ValueId, to: DType, reason: Reason, span: Span) -> ValueId {
        let from = self.dtypes[value.0];
        if from == to || self.graph.value(value).kind == Kind::Index {
            return value;
        }
        if let Some(&cast) = self.cast_of.get(&(value, to)) {
            return cast;
        }
        let Value { name, kind, shape, .. } = self.graph.value(value).clone();
        let cast =
            Value { name: format!("{name}~{to}"), kind, shape: shape.clone(), origin: Origin::Computed };
        self.graph.values.push(cast);
        self.dtypes.push(to);
        let out = ValueId(self.graph.values.len() - 1);
        self.casts.push(Cast { value: name, shape, from, to, reason, node: self.graph.nodes.len() });
        self.push(Action::Apply { op: Op::Cast(to), args: vec![value], out }, span, None);
        self.cast_of.insert((value, to), out);
        out
    }

    fn push(&mut self, action: Action, span: Span, accum: Option<DType>) {
        self.graph.nodes.push(Node { action, span });
        self.accums.push(accum);
    }
}

/// Whether a value is what the head returns, or what its last element-wise functions are of.
fn is_logits(graph: &Graph, out: ValueId) -> bool {
    let mut last = graph.result;
    for node in graph.nodes.iter().rev() {
        match &node.action {
            Action::Apply { op: Op::Unary(_), args, out: made } if *made == last && last != out => {
                last = args[0]
            }
            _ => {}
        }
    }
    graph.name == "head" && last == out
}

/// Whether a value is a table of experts: whole numbers, which no policy touches and a backend checks.
fn is_table(graph: &Graph, id: ValueId) -> bool {
    graph.nodes.iter().any(|node| match &node.action {
        Action::Apply { op: Op::RouteByTable(_), args, .. } => args[2] == id,
        _ => false,
    })
}

/// The carried tensor that a declared value is, if it is one.
fn carried(graph: &Graph, id: ValueId) -> Option<&Carried> {
    graph.roles().carried().find(|c| c.value == id)
}

/// Why a value that goes into a declared tensor is cast.
fn reason(graph: &Graph, tensor: ValueId) -> Reason {
    match carried(graph, tensor) {
        Some(carried) if is_cache(carried) => Reason::Kv,
        Some(_) => Reason::State,
        None => Reason::Compute,
    }
}

/// The declared tensor whose rows a value is, as they were read.
fn read_by(graph: &Graph, value: ValueId) -> Option<ValueId> {
    graph.nodes.iter().find_map(|node| match node.action {
        Action::Read { tensor, out, .. } if out == value => Some(tensor),
        _ => None,
    })
}

/// The graph with its values and none of its actions.
fn without_nodes(graph: &Graph) -> Graph {
    let mut empty = graph.clone();
    empty.nodes.clear();
    empty
}
