//! Attention: projections, rotary positions, caches that grow by a row for each token.

use super::{Site, sheet::Sheet};
use crate::{Attention, ModelError, Part};
use tranship_program::Op;
use tranship_program::ops::Rope;

/// Writes the attention over `x`, an expression of rows `[n, hidden]`; gives the expression of its output.
pub(super) fn write(
    attention: &Attention,
    x: &str,
    site: &Site<'_>,
    sheet: &mut Sheet<'_>,
) -> Result<String, ModelError> {
    let &Attention { heads, kv_heads, head_dim, scale, ref rope, biases } = attention;
    let (hidden, layer, ctx) = (site.spec.hidden, site.layer, site.ctx);
    let (q_width, kv_width) = (heads.saturating_mul(head_dim), kv_heads.saturating_mul(head_dim));
    let bias = |given: bool, name| given.then_some(name);

    sheet.declare("pos : index", "rows already in the caches");
    for cache in ["k", "v"] {
        let axes = format!("[position {ctx}, kv_head {kv_heads}, head_dim {head_dim}]");
        sheet.declare(format!("{cache}{layer} : {axes}"), "a row for each token");
    }
    sheet.title(format!("attention: {heads} heads of {head_dim}, {kv_heads} of keys and values"));
    sheet.say(format!("h = {x}"));
    let q = sheet.linear("h", "wq", Part::Query, [q_width, hidden], bias(biases.q, "bq"))?;
    let k = sheet.linear("h", "wk", Part::Key, [kv_width, hidden], bias(biases.k, "bk"))?;
    let v = sheet.linear("h", "wv", Part::Value, [kv_width, hidden], bias(biases.v, "bv"))?;
    let out = sheet.linear("a", "wo", Part::Output, [hidden, q_width], bias(biases.o, "bo"))?;
    let mut operands = "pos".to_owned();
    if rope.divisors {
        sheet.weight("divisors", &[rope.dims / 2], Part::RopeDivisors)?;
        operands += ", divisors";
    }
    let rotate = |x: &str, heads: u64| {
        let (dims, theta, style) = (rope.dims, rope.theta, rope.style);
        let op = Op::Rope(Rope { heads, dims, theta, style, scaling: rope.scaling.clone() });
        let attrs: Vec<String> = op.attrs().iter().map(|(key, value)| format!("{key}: {value}")).collect();
        format!("rope({x}, {operands}, {})", attrs.join(", "))
    };
    sheet.say(format!("q = {}", rotate(&q, heads)));
    sheet.say(format!("k{layer}[pos .. pos+n] = {}", rotate(&k, kv_heads)));
    sheet.say(format!("v{layer}[pos .. pos+n] = {v}"));
    let rows = format!("k{layer}[.. pos+n], v{layer}[.. pos+n]");
    sheet.say(format!("a = attend(q, {rows}, heads: {heads}, kv_heads: {kv_heads}, scale: {scale})"));
    Ok(out)
}
