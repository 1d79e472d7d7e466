//! The cast ledger: every change of dtype in a typed program, with its reason, for a person to read.

use std::fmt;
use tranship_dtype::DType;
use tranship_program::Shape;

/// Why a value is cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Activations are of the compute type.
    Compute,
    /// Rows go into a key/value cache.
    Kv,
    /// A recurrent memory is written.
    State,
    /// The other operand is of a wider type.
    Join,
    /// 8-bit activation blocks meet block-encoded weights.
    Activations,
    /// The device does not take the weight's type, so it is widened once, when it is loaded.
    Widen,
}

impl Reason {
    /// The reason as a phrase.
    pub fn phrase(self) -> &'static str {
        match self {
            Reason::Compute => "to the compute type",
            Reason::Kv => "into the key/value cache",
            Reason::State => "into the recurrent memory",
            Reason::Join => "to join the other operand",
            Reason::Activations => "as 8-bit blocks, against block-encoded weights",
            Reason::Widen => "widened: the device does not take the stored type",
        }
    }
}

/// One cast.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast {
    /// The value that is cast, by name.
    pub value: String,
    /// Its symbolic shape.
    pub shape: Shape,
    /// From this type.
    pub from: DType,
    /// To this type.
    pub to: DType,
    /// Why.
    pub reason: Reason,
    /// The node of the typed graph.
    pub node: usize,
}

/// Every cast of a typed program, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CastLedger {
    pub(crate) casts: Vec<Cast>,
}

impl CastLedger {
    /// The casts, in the order of the program.
    pub fn iter(&self) -> impl Iterator<Item = &Cast> {
        self.casts.iter()
    }

    /// How many casts there are.
    pub fn len(&self) -> usize {
        self.casts.len()
    }

    /// Whether nothing is cast.
    pub fn is_empty(&self) -> bool {
        self.casts.is_empty()
    }
}

impl fmt::Display for CastLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.casts.len() {
            0 => return writeln!(f, "cast ledger: no casts"),
            1 => writeln!(f, "cast ledger: 1 cast")?,
            len => writeln!(f, "cast ledger: {len} casts")?,
        }
        let width = self.casts.iter().map(|c| c.value.len()).max().unwrap_or(0);
        for cast in &self.casts {
            let change = format!("{} -> {}", cast.from, cast.to);
            let shape = cast.shape.to_string();
            writeln!(f, "  {:width$}  {change:14}  {shape:12}  {}", cast.value, cast.reason.phrase())?;
        }
        Ok(())
    }
}
