//! Tables that route tokens to experts: whole numbers among the weights.

use crate::{BackendError, Weight};
use tranship_dtype::DType;
use tranship_program::{Action, Graph, Op, Origin, ValueId};
use tranship_tensor::TensorError;

/// The experts that a table of a `route_by_table` lists, row after row: whole numbers below `experts`, of an integer
/// or a real type.
///
/// # Errors
/// [`BackendError::Table`] naming the weight and the first row that lists something else.
pub fn experts_of(name: &str, table: &Weight, experts: u64) -> Result<Vec<u32>, BackendError> {
    let convert = |source| BackendError::Convert { value: name.to_owned(), dtype: DType::U32, source };
    let width = table.shape.last().copied().unwrap_or(1).max(1);
    let fault = |i: usize, found: String| BackendError::Table {
        name: name.to_owned(),
        row: i / width,
        found,
        last: experts.saturating_sub(1),
    };
    if let Some(values) = whole_numbers(table) {
        let expert = |(i, v): (usize, &i128)| match u32::try_from(*v) {
            Ok(expert) if u64::from(expert) < experts => Ok(expert),
            _ => Err(fault(i, v.to_string())),
        };
        return values.iter().enumerate().map(expert).collect();
    }
    let values = table.values().map_err(convert)?;
    let expert = |(i, v): (usize, &f32)| {
        let whole = *v >= 0.0 && v.fract() == 0.0 && f64::from(*v) < experts as f64;
        if whole { Ok(*v as u32) } else { Err(fault(i, v.to_string())) }
    };
    values.iter().enumerate().map(expert).collect()
}

/// The elements of a weight as F32, integers included.
///
/// # Errors
/// Truth values, and bytes that are not those of the shape.
pub(crate) fn values(weight: &Weight) -> Result<Vec<f32>, TensorError> {
    match whole_numbers(weight) {
        Some(numbers) => Ok(numbers.into_iter().map(|v| v as f32).collect()),
        None => weight.values(),
    }
}

/// The elements of a weight of an integer type.
fn whole_numbers(weight: &Weight) -> Option<Vec<i128>> {
    fn of<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> i128) -> Vec<i128> {
        bytes.as_chunks::<N>().0.iter().map(|b| read(*b)).collect()
    }
    let bytes = &weight.joined();
    Some(match weight.dtype {
        DType::I8 => of(bytes, |b| i8::from_le_bytes(b).into()),
        DType::I16 => of(bytes, |b| i16::from_le_bytes(b).into()),
        DType::I32 => of(bytes, |b| i32::from_le_bytes(b).into()),
        DType::I64 => of(bytes, |b| i64::from_le_bytes(b).into()),
        DType::U8 => of(bytes, |b| u8::from_le_bytes(b).into()),
        DType::U16 => of(bytes, |b| u16::from_le_bytes(b).into()),
        DType::U32 => of(bytes, |b| u32::from_le_bytes(b).into()),
        DType::U64 => of(bytes, |b| u64::from_le_bytes(b).into()),
        _ => return None,
    })
}

/// The tables that a program routes by: the weight with its name, and the experts. The verifier holds that a table is a
/// weight.
pub(crate) fn routed_tables(graph: &Graph) -> impl Iterator<Item = (ValueId, &str, u64)> {
    graph.nodes.iter().filter_map(|node| match &node.action {
        Action::Apply { op: Op::RouteByTable(_), args, out } => {
            let (id, name) = weight_of(graph, args[2])?;
            Some((id, name, graph.value(*out).shape.cols()))
        }
        _ => None,
    })
}

/// The weight that a value is, itself or cast.
fn weight_of(graph: &Graph, id: ValueId) -> Option<(ValueId, &str)> {
    let cast = graph.nodes.iter().find_map(|node| match &node.action {
        Action::Apply { op: Op::Cast(_), args, out } if *out == id => Some(args[0]),
        _ => None,
    });
    let id = cast.unwrap_or(id);
    match &graph.value(id).origin {
        Origin::Weight(name) => Some((id, name)),
        _ => None,
    }
}
