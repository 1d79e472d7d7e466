//! Which tensors a model needs, read off its programs, and whether a checkpoint has them.

use crate::{Base, Cut, ModelError, ModelSpec, Pick, Source, SourceError, TensorFault};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use tranship_dtype::Class;
use tranship_program::{Decl, Dim, Expr, Item, Program, same_sizes};
use tranship_weights::Checkpoint;

/// The operation that reads expert numbers, and which of its operands holds them.
const READS_INTEGERS: (&str, usize) = ("route_by_table", 2);

/// A weight that programs name.
struct Wanted {
    /// Its source.
    name: String,
    shape: Vec<u64>,
    /// Whether its elements are integers.
    integers: bool,
}

impl ModelSpec {
    /// The weights that the model's programs name, each once, with their shapes (`[out, in]` of matrices): those of the
    /// embedding, of each layer, of the head. A name is the text of a [`Source`].
    ///
    /// # Errors
    /// As [`ModelSpec::program`].
    pub fn required(&self) -> Result<Vec<(String, Vec<u64>)>, ModelError> {
        Ok(self.wanted()?.into_iter().map(|wanted| (wanted.name, wanted.shape)).collect())
    }

    fn wanted(&self) -> Result<Vec<Wanted>, ModelError> {
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for cut in self.cuts(1).filter(|cut| !matches!(cut, Cut::DecodeLayer { .. })) {
            let program = self.program(cut)?;
            all.extend(weights(&program).filter(|wanted| seen.insert(wanted.name.clone())));
        }
        Ok(all)
    }

    /// Holds a checkpoint's tensors to the model: each that a program's [`Source`]s name is there, gives the shape that
    /// the programs want but for axes of size 1, and holds real numbers; one that is taken in parts is taken whole, each
    /// row once. Tensors that no program names are of no account;
    /// [`ModelSpec::unused`] lists them.
    ///
    /// # Errors
    /// [`ModelError::Tensors`] with everything that is wrong.
    pub fn check(&self, checkpoint: &Checkpoint) -> Result<(), ModelError> {
        let required = self.wanted()?;
        let wanted = required.len();
        let mut faults = uncovered(checkpoint, &required);
        faults.extend(required.into_iter().filter_map(|wanted| fault(checkpoint, wanted).err()));
        if faults.is_empty() { Ok(()) } else { Err(ModelError::Tensors { wanted, faults }) }
    }

    /// The tensors of a checkpoint that no program's source reads, in file order.
    ///
    /// # Errors
    /// As [`ModelSpec::program`].
    pub fn unused(&self, checkpoint: &Checkpoint) -> Result<Vec<String>, ModelError> {
        let sources = self.required()?.into_iter().filter_map(|(name, _)| Source::parse(&name).ok());
        let read: HashSet<String> = sources.flat_map(|source| source.tensors(checkpoint)).collect();
        let unused = checkpoint.tensors().filter(|view| !read.contains(view.name()));
        Ok(unused.map(|view| view.name().to_owned()).collect())
    }

    /// All programs, lifted at `ctx = 1` and freed of names: the text that identifies what a model computes.
    /// Its parts are the embedding, each layer's prefill and decode, and the head; of a model whose frequencies are
    /// other ones in long contexts, then all once more at the shortest of these. See the crate's page for what it tells
    /// apart.
    ///
    /// # Errors
    /// As [`ModelSpec::program`].
    pub fn canonical_programs(&self) -> Result<String, ModelError> {
        let mut text = String::new();
        let long = self.long_contexts().into_iter().map(|from| from.saturating_add(1).min(crate::MAX_CTX));
        for cut in std::iter::once(1).chain(long).flat_map(|ctx| self.cuts(ctx)) {
            let lifted = self.program(cut)?.lift();
            let graph = lifted.map_err(|source| ModelError::Program { cut, source })?;
            let _ = write!(text, "{cut}\n{}", graph.canonical());
        }
        Ok(text)
    }
}

/// The weights that a program declares.
fn weights(program: &Program) -> impl Iterator<Item = Wanted> {
    let items = || program.lines.iter().filter_map(|line| line.item.as_ref());
    let decls = items().filter_map(|item| if let Item::Decls(decls) = item { Some(decls) } else { None });
    let mut integers = HashSet::new();
    for item in items() {
        if let Item::Let(_, value)
        | Item::Write(_, _, value)
        | Item::Update(_, _, _, value)
        | Item::Return(_, value) = item
        {
            read_as_integers(value, &mut integers);
        }
    }
    decls.flatten().filter_map(move |decl| {
        let (name, integers) = (decl.weight.clone()?, integers.contains(decl.name.name.as_str()));
        Some(Wanted { name, shape: shape(decl), integers })
    })
}

/// The names whose elements an expression reads as integers.
fn read_as_integers<'p>(value: &'p Expr, names: &mut HashSet<&'p str>) {
    let Expr::Call(op, args, _) = value else { return };
    if let (true, Some(Expr::Name(name))) = (op.name == READS_INTEGERS.0, args.get(READS_INTEGERS.1)) {
        names.insert(name.name.as_str());
    }
    args.iter().for_each(|arg| read_as_integers(arg, names));
}

/// The shape of a weight: no axis of one is symbolic.
fn shape(decl: &Decl) -> Vec<u64> {
    let size = |dim| if let Dim::Fixed(size) = dim { size } else { 0 };
    decl.axes.iter().map(|axis| size(axis.size)).collect()
}

fn fault(checkpoint: &Checkpoint, wanted: Wanted) -> Result<(), TensorFault> {
    let Wanted { name, shape: wanted, integers } = wanted;
    let source = Source::parse(&name).map_err(TensorFault::Source)?;
    if let Some(tensor) = missing(&source, checkpoint, &wanted) {
        // Without picks, the tensor is the weight, or of a bank all but its first axis.
        let bank = source.names().any(|name| name.is_bank());
        return Err(match (&source.base, source.picks.as_slice()) {
            (Base::Tensor(_), []) => {
                TensorFault::Missing { name: tensor, wanted: wanted[usize::from(bank)..].to_vec() }
            }
            _ => TensorFault::Source(SourceError::Missing { tensor, source_text: name }),
        });
    }
    let found = source.find(checkpoint).map_err(TensorFault::Source)?;
    let sizes: Vec<u64> = found.shape().iter().map(|&size| size as u64).collect();
    if !same_sizes(&sizes, &wanted) {
        return Err(match &source.base {
            Base::Tensor(bank)
                if bank.is_bank() && source.picks.is_empty() && sizes.first() == wanted.first() =>
            {
                TensorFault::Shape {
                    name: bank.of(0),
                    wanted: wanted[1..].to_vec(),
                    found: sizes[1..].to_vec(),
                }
            }
            _ => TensorFault::Shape { name, wanted, found: sizes },
        });
    }
    let fits = match found.dtype() {
        dtype if integers => dtype.class() == Class::Int,
        dtype => dtype.is_real(),
    };
    if fits { Ok(()) } else { Err(TensorFault::Elements { name, found: found.dtype(), integers }) }
}

/// Tensors that are taken in parts, and whose parts leave rows over or take some twice: they are of another shape than
/// the model's sizes say.
fn uncovered(checkpoint: &Checkpoint, required: &[Wanted]) -> Vec<TensorFault> {
    let mut parts: BTreeMap<(String, usize), Vec<(u64, u64)>> = BTreeMap::new();
    for wanted in required {
        let Ok(source) = Source::parse(&wanted.name) else { continue };
        let Some(&Pick::Rows { axis, from, to }) = source.picks.first() else { continue };
        for tensor in source.tensors(checkpoint) {
            // Of a bank the first axis is that of the experts, which are tensors each.
            let bank = source.names().any(|name| name.is_bank());
            let Some(axis) = axis.checked_sub(usize::from(bank)) else { continue };
            parts.entry((tensor, axis)).or_default().push((from, to));
        }
    }
    let fault = |((name, axis), mut spans): ((String, usize), Vec<(u64, u64)>)| {
        spans.sort_unstable();
        spans.dedup();
        let tiled = spans.iter().try_fold(0, |end, (from, to)| (*from == end).then_some(*to));
        let rows = *checkpoint.get(&name)?.shape().get(axis)? as u64;
        let wanted = spans.iter().map(|(_, to)| *to).max().unwrap_or(0);
        (tiled != Some(rows)).then_some(TensorFault::Rows { name, axis, wanted, found: rows })
    };
    parts.into_iter().filter_map(fault).collect()
}

/// The first tensor of a source that is not there, of as many experts as a weight of that shape takes.
fn missing(source: &Source, checkpoint: &Checkpoint, wanted: &[u64]) -> Option<String> {
    let experts = source.experts(wanted.first().copied().unwrap_or(1));
    let tensors = |name: &'_ crate::Name| {
        let count = experts.min(name.most());
        (0..count).map(|e| name.of(e)).find(|tensor| checkpoint.get(tensor).is_none())
    };
    source.names().find_map(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_experts_is_of_integers_and_nothing_else_is() {
        let text = "program p\n  x : [n, 4]\n  ids : index [n]\n  w : [8, 4] @ \"w\"\n  t : [9, 2] @ \"t\"\n  \
                    return route_by_table(silu(x), w, t, ids, top_k: 2)\n";
        let program = Program::parse(text).expect("it parses");
        let found: Vec<_> = weights(&program).map(|w| (w.name, w.shape, w.integers)).collect();
        assert_eq!(found, [("w".to_owned(), vec![8, 4], false), ("t".to_owned(), vec![9, 2], true)]);
        let inner = text
            .replace("return route", "y = silu(route")
            .replace("top_k: 2)", "top_k: 2))\n  return silu(y)");
        let program = Program::parse(&inner).expect("it parses");
        assert_eq!(weights(&program).filter(|w| w.integers).count(), 1, "inside an expression too");
    }
}
