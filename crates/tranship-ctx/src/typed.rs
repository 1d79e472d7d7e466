//! A typed program: the graph with its casts, the dtype of every value, and the accumulators.

use crate::CastLedger;
use std::fmt;
use tranship_dtype::DType;
use tranship_program::{Action, Carried, Graph, Kind, ValueId};

/// A program after the typing pass. No operation of it can fail on a dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct Typed {
    pub(crate) graph: Graph,
    pub(crate) dtypes: Vec<DType>,
    pub(crate) accums: Vec<Option<DType>>,
    pub(crate) ledger: CastLedger,
}

impl Typed {
    /// The graph, casts included.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The dtype of a value; `u32` for an index.
    pub fn dtype(&self, id: ValueId) -> DType {
        self.dtypes[id.0]
    }

    /// The accumulator of a node, if its operation has one.
    pub fn accum(&self, node: usize) -> Option<DType> {
        self.accums[node]
    }

    /// Every cast, in order.
    pub fn ledger(&self) -> &CastLedger {
        &self.ledger
    }

    /// The carried tensors with their dtypes, in the order in which they are first touched.
    pub fn carried(&self) -> impl Iterator<Item = (&Carried, DType)> {
        self.graph.roles().carried().map(|c| (c, self.dtype(c.value)))
    }

    /// The program up to and with the action that makes `value`, which it then returns. Comparing such prefixes
    /// on two backends finds the first operation in which they differ.
    pub fn until(&self, value: ValueId) -> Typed {
        let made = self.graph.nodes.iter().position(|n| n.action.out() == Some(value));
        let mut typed = self.clone();
        typed.graph.nodes.truncate(made.map_or(0, |m| m + 1));
        typed.accums.truncate(typed.graph.nodes.len());
        typed.ledger.casts.retain(|c| c.node < typed.graph.nodes.len());
        typed.graph.result = value;
        typed
    }

    /// The program without names, with its dtypes: equal texts can share one compiled step.
    pub fn canonical(&self) -> String {
        let dtypes: Vec<&str> = self.dtypes.iter().map(|d| d.name()).collect();
        let accums: Vec<&str> = self.accums.iter().map(|a| a.map_or("-", DType::name)).collect();
        format!("{}dtypes {}\naccums {}\n", self.graph.canonical(), dtypes.join(" "), accums.join(" "))
    }

    fn note(&self, id: ValueId) -> String {
        match self.graph.value(id).kind {
            Kind::Index => String::new(),
            Kind::Float => format!("{} ", self.dtype(id)),
        }
    }

    fn tail(&self, node: usize) -> String {
        let reason =
            self.ledger.iter().find(|c| c.node == node).map(|c| format!("  # {}", c.reason.phrase()));
        match (&self.graph.nodes[node].action, self.accums[node]) {
            (Action::Apply { .. } | Action::Update { .. }, Some(accum)) => format!("  in {accum}"),
            _ => reason.unwrap_or_default(),
        }
    }
}

impl fmt::Display for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.graph.render(&|id| self.note(id), &|node| self.tail(node)))?;
        writeln!(f)?;
        self.ledger.fmt(f)
    }
}
