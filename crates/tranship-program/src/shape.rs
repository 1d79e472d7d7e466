//! Symbolic shapes: fixed sizes, the rows of a step (`n`), and the rows known after it (`pos+n`).

use std::fmt;

/// One size of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A size known when the program is authored.
    Fixed(u64),
    /// The rows of this step.
    N,
    /// The rows before this step and of it: `pos+n`.
    PosN,
    /// As many rows from before this step, and those of it: `7+n`. Row `r` stands at the position `pos - 7 + r`.
    After(u64),
    /// A row for every so many positions before this step and of it: `(pos+n)/4`.
    Per(u64),
}

/// A size with the name of what it counts, where the program gives one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// What the axis counts, as `kv_head` or `position`.
    pub name: Option<String>,
    /// How many.
    pub size: Dim,
}

/// What a value holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Real numbers; the numeric policy gives their dtype.
    Float,
    /// Whole numbers that address rows: tokens, positions. No policy touches them.
    Index,
}

/// A symbolic shape: rows first. A scalar has no axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Shape(
    /// The axes, outermost first.
    pub Vec<Axis>,
);

impl Shape {
    /// `[rows, cols]` without names.
    pub fn matrix(rows: Dim, cols: u64) -> Shape {
        Shape(vec![Axis { name: None, size: rows }, Axis { name: None, size: Dim::Fixed(cols) }])
    }

    /// The size of the first axis, or 1 of a scalar.
    pub fn rows(&self) -> Dim {
        self.0.first().map_or(Dim::Fixed(1), |a| a.size)
    }

    /// Elements of one row: the product of all axes but the first. Symbolic sizes occur only in the first
    /// axis, which the verifier holds, and products are checked there to stay under 2^63.
    pub fn cols(&self) -> u64 {
        self.0.iter().skip(1).map(|a| if let Dim::Fixed(s) = a.size { s } else { 1 }).product()
    }

    /// Elements with `rows` in the place of symbolic rows, or `None` from 2^63 on.
    pub(crate) fn elements(&self, rows: u64) -> Option<u64> {
        let size = |axis: &Axis| match axis.size {
            Dim::Fixed(size) => Some(size),
            Dim::After(before) => before.checked_add(rows),
            Dim::N | Dim::PosN | Dim::Per(_) => Some(rows),
        };
        let product = self.0.iter().try_fold(1u64, |product, axis| product.checked_mul(size(axis)?));
        product.filter(|&elements| elements < 1 << 63)
    }

    /// The fixed size of the first axis.
    pub fn fixed_rows(&self) -> Option<u64> {
        match self.rows() {
            Dim::Fixed(rows) => Some(rows),
            _ => None,
        }
    }

    /// The same columns under other rows.
    pub fn with_rows(&self, rows: Dim) -> Shape {
        let mut axes = self.0.clone();
        if let Some(first) = axes.first_mut() {
            first.size = rows;
        }
        Shape(axes)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(size) => write!(f, "{size}"),
            Dim::N => f.write_str("n"),
            Dim::PosN => f.write_str("pos+n"),
            Dim::After(rows) => write!(f, "{rows}+n"),
            Dim::Per(rate) => write!(f, "(pos+n)/{rate}"),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, axis) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            if let Some(name) = &axis.name {
                write!(f, "{name} ")?;
            }
            write!(f, "{}", axis.size)?;
        }
        f.write_str("]")
    }
}
