//! Where a weight's elements come from: the text in a declaration's quotes, which is a tensor's name, or says how the
//! weight is put together from tensors.
//!
//! ```
//! use tranship_model::{Base, Pick, Source};
//!
//! let source = Source::parse("blk.0.experts.{expert}.w13.weight[:, 64..128]")?;
//! assert_eq!(source.picks, [Pick::Rows { axis: 1, from: 64, to: 128 }]);
//! assert_eq!(source.to_string(), "blk.0.experts.{expert}.w13.weight[:, 64..128]");
//! let Base::Tensor(name) = &source.base else { panic!("not a tensor") };
//! assert_eq!(name.of(7), "blk.0.experts.7.w13.weight");
//!
//! let error = Source::parse("w[4..4]").unwrap_err();
//! assert_eq!(error.to_string(), "`w[4..4]`, byte 5: wanted a number above 4, found `4]`");
//! # Ok::<(), tranship_model::SourceError>(())
//! ```
//!
//! Grammar and meaning are in `docs/program-language.md`. [`Source::find`] looks a source up in a checkpoint.

use std::fmt;
use tranship_dtype::{DType, Encoding};
use tranship_weights::Checkpoint;

/// What stands for an expert's number in a name.
const EXPERT: &str = "{expert}";

/// Where a weight's elements come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The tensors.
    pub base: Base,
    /// What is taken of them, in order.
    pub picks: Vec<Pick>,
}

/// The tensors of a source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// A tensor, or a bank of them.
    Tensor(Name),
    /// MXFP4 as two tensors of bytes: quants `[.., rows, in/32, 16]` and scales `[.., rows, in/32]`.
    Mxfp4 {
        /// Byte `j` of a block has element `2j` in its low half, and `2j + 1` in its high half.
        blocks: Name,
        /// The power of two of each block, 127 for 1.
        scales: Name,
    },
    /// Of two sources `[parts, rows, in]`, for each of the parts the rows of the first and then those of the second,
    /// all as one matrix.
    Beside(Box<[Source; 2]>),
}

/// The name of a tensor; with `{expert}` in it, of a bank: one tensor for each expert.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(String);

/// What is taken of a tensor. Axes are those of the stored tensor, and a bank's experts its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pick {
    /// `[from..to]`, `[:, from..to]`: these of axis 0 or 1.
    Rows {
        /// 0 or 1.
        axis: usize,
        /// The first.
        from: u64,
        /// One past the last.
        to: u64,
    },
    /// `[from::step]`, `[:, from::step]`: every so many of axis 0 or 1.
    Every {
        /// 0 or 1.
        axis: usize,
        /// The first.
        from: u64,
        /// From each to the next; at least 1.
        step: u64,
    },
    /// `^T`: the last two axes exchanged.
    Transposed,
    /// `^M`: the first two axes as one.
    Merged,
}

/// Why a source is none, or is not to be had from a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The text is not of the grammar.
    #[error("`{text}`, byte {at}: wanted {wanted}, found {}", rest(text, *at))]
    Syntax {
        /// The text.
        text: String,
        /// The byte at which it goes wrong.
        at: usize,
        /// What should be there.
        wanted: String,
    },
    /// A tensor is not there.
    #[error("`{tensor}` is missing, wanted for `{source_text}`")]
    Missing {
        /// The tensor.
        tensor: String,
        /// The source that names it.
        source_text: String,
    },
    /// A tensor is of another type or shape than its part in the source asks for.
    #[error("`{tensor}` is {found}, wanted {wanted} for `{source_text}`")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// Its type and shape.
        found: String,
        /// What they should be.
        wanted: String,
        /// The source that names it.
        source_text: String,
    },
    /// There is nothing of that to take.
    #[error("`{source_text}`: {pick} of {found}: wanted {wanted}")]
    Pick {
        /// The source.
        source_text: String,
        /// What is to be taken.
        pick: Pick,
        /// Type and shape of what it is to be taken of.
        found: String,
        /// What the type or shape should be.
        wanted: String,
    },
}

impl SourceError {
    /// The tensor that is at fault, or the whole source.
    pub fn name(&self) -> &str {
        match self {
            SourceError::Syntax { text, .. } => text,
            SourceError::Missing { tensor, .. } | SourceError::Tensor { tensor, .. } => tensor,
            SourceError::Pick { source_text, .. } => source_text,
        }
    }
}

impl Source {
    /// Reads a source.
    ///
    /// # Errors
    /// [`SourceError::Syntax`], with the byte and what was wanted there.
    pub fn parse(text: &str) -> Result<Source, SourceError> {
        let mut parser = Parser { text, at: 0 };
        let base = match parser.has("beside(") {
            true => parser.beside()?,
            false => parser.base()?,
        };
        let mut picks = Vec::new();
        while parser.at < text.len() {
            if matches!(base, Base::Beside(_)) {
                return parser.wanted("the end, for nothing is picked of two sources");
            }
            picks.push(parser.pick()?);
        }
        Ok(Source { base, picks })
    }

    /// The names that the source is put together from.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        let names = match &self.base {
            Base::Beside(sources) => [sources[0].base.names(), sources[1].base.names()],
            base => [base.names(), [None, None]],
        };
        names.into_iter().flatten().flatten()
    }

    /// The tensors of a checkpoint that the source reads, as far as they are there.
    pub fn tensors(&self, checkpoint: &Checkpoint) -> Vec<String> {
        let there = |name: &Name| -> Vec<String> {
            (0..name.most()).map(|e| name.of(e)).take_while(|n| checkpoint.get(n).is_some()).collect()
        };
        self.names().flat_map(there).collect()
    }

    /// The type that the source has whatever its tensors are, where that is so.
    pub fn dtype(&self) -> Option<DType> {
        match self.base {
            Base::Tensor(_) | Base::Beside(_) => None,
            Base::Mxfp4 { .. } => Some(DType::Block(Encoding::MXFP4)),
        }
    }

    /// The fewest experts that a bank has of which the source takes `first` of the first axis.
    pub(crate) fn experts(&self, first: u64) -> u64 {
        self.picks.iter().rev().fold(first, |count, pick| match *pick {
            Pick::Rows { axis: 0, to, .. } => to,
            Pick::Every { axis: 0, from, step } => {
                count.saturating_sub(1).saturating_mul(step).saturating_add(from).saturating_add(1)
            }
            _ => count,
        })
    }
}

impl Base {
    /// The names of one source.
    fn names(&self) -> [Option<&Name>; 2] {
        match self {
            Base::Tensor(name) => [Some(name), None],
            Base::Mxfp4 { blocks, scales } => [Some(blocks), Some(scales)],
            Base::Beside(_) => [None, None],
        }
    }
}

impl Name {
    /// Whether it is the name of a bank.
    pub fn is_bank(&self) -> bool {
        self.0.contains(EXPERT)
    }

    /// The name of one expert's tensor; what is no bank has one name.
    pub fn of(&self, expert: u64) -> String {
        self.0.replacen(EXPERT, &expert.to_string(), 1)
    }

    /// How many tensors there may be.
    pub(crate) fn most(&self) -> u64 {
        if self.is_bank() { u64::MAX } else { 1 }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.base {
            Base::Tensor(name) => write!(f, "{name}")?,
            Base::Mxfp4 { blocks, scales } => write!(f, "mxfp4({blocks}, {scales})")?,
            Base::Beside(sources) => write!(f, "beside({}, {})", sources[0], sources[1])?,
        }
        self.picks.iter().try_for_each(|pick| write!(f, "{pick}"))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Pick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |axis: &usize| if *axis == 0 { "" } else { ":, " };
        match self {
            Pick::Rows { axis, from, to } => write!(f, "[{}{from}..{to}]", all(axis)),
            Pick::Every { axis, from, step } => write!(f, "[{}{from}::{step}]", all(axis)),
            Pick::Transposed => f.write_str("^T"),
            Pick::Merged => f.write_str("^M"),
        }
    }
}

/// What is at a byte of a text, for an error.
fn rest(text: &str, at: usize) -> String {
    match text.get(at..) {
        None | Some("") => "the end".into(),
        Some(rest) => format!("`{}`", rest.chars().take(12).collect::<String>()),
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn wanted<T>(&self, wanted: impl Into<String>) -> Result<T, SourceError> {
        Err(SourceError::Syntax { text: self.text.to_owned(), at: self.at, wanted: wanted.into() })
    }

    /// Passes `sign`, if it is next.
    fn has(&mut self, sign: &str) -> bool {
        let found = self.rest().starts_with(sign);
        self.at += if found { sign.len() } else { 0 };
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), SourceError> {
        if self.has(sign) { Ok(()) } else { self.wanted(format!("`{sign}`")) }
    }

    fn base(&mut self) -> Result<Base, SourceError> {
        if !self.has("mxfp4(") {
            return Ok(Base::Tensor(self.name()?));
        }
        let blocks = self.name()?;
        self.expect(",")?;
        self.has(" ");
        let scales = self.name()?;
        self.expect(")")?;
        Ok(Base::Mxfp4 { blocks, scales })
    }

    /// Two sources, after `beside(`: of tensors, and none of them a bank.
    fn beside(&mut self) -> Result<Base, SourceError> {
        let first = self.inner(",")?;
        self.has(" ");
        let second = self.inner(")")?;
        Ok(Base::Beside(Box::new([first, second])))
    }

    /// A source of one tensor, up to `end`.
    fn inner(&mut self, end: &str) -> Result<Source, SourceError> {
        let start = self.at;
        let name = self.name()?;
        if name.is_bank() {
            self.at = start;
            return self.wanted("a tensor's name, of no bank");
        }
        let mut picks = Vec::new();
        while !self.has(end) {
            picks.push(self.pick()?);
        }
        Ok(Source { base: Base::Tensor(name), picks })
    }

    /// A name: of any characters but spaces and those that sources are written with, and `{expert}` once.
    fn name(&mut self) -> Result<Name, SourceError> {
        let start = self.at;
        let mut banks = 0;
        while let Some(next) = self.rest().chars().next() {
            if self.rest().starts_with(EXPERT) && banks == 0 {
                banks += 1;
                self.at += EXPERT.len();
            } else if next.is_whitespace() || next.is_control() || "[](){},^".contains(next) {
                break;
            } else {
                self.at += next.len_utf8();
            }
        }
        if self.rest().starts_with(['{', '}']) {
            return self.wanted("`{expert}`, once in a name, or no brace");
        }
        if self.at == start {
            return self.wanted("a tensor's name");
        }
        Ok(Name(self.text[start..self.at].to_owned()))
    }

    fn pick(&mut self) -> Result<Pick, SourceError> {
        if self.has("^T") {
            return Ok(Pick::Transposed);
        }
        if self.has("^M") {
            return Ok(Pick::Merged);
        }
        if !self.has("[") {
            return self.wanted("`[`, `^T`, `^M` or the end");
        }
        let axis = usize::from(self.has(":,"));
        if axis == 1 {
            self.has(" ");
        }
        let from = self.whole()?;
        let pick = if self.has("::") {
            let start = self.at;
            let step = self.whole()?;
            if step == 0 {
                self.at = start;
                return self.wanted("a step of at least 1");
            }
            Pick::Every { axis, from, step }
        } else if self.has("..") {
            let start = self.at;
            let to = self.whole()?;
            if to <= from {
                self.at = start;
                return self.wanted(format!("a number above {from}"));
            }
            Pick::Rows { axis, from, to }
        } else {
            return self.wanted("`..` or `::`");
        };
        self.expect("]")?;
        Ok(pick)
    }

    /// A whole number below 2^63, in decimal digits.
    fn whole(&mut self) -> Result<u64, SourceError> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        match self.rest()[..digits].parse::<u64>() {
            Ok(whole) if whole < 1 << 63 => {
                self.at += digits;
                Ok(whole)
            }
            _ => self.wanted("a whole number"),
        }
    }
}
