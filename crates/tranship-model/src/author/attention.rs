//! Attention: projections, normalization and rotary positions of queries and keys, caches that grow by a row for each
//! token, or rings of the last ones.

use super::{sheet::Sheet, sheet::Turn};
use crate::{Attention, ModelError, Part, QkNorm};

/// Writes the attention over `x`, an expression of rows `[n, hidden]`; gives the expression of its output.
pub(super) fn write(attention: &Attention, x: &str, sheet: &mut Sheet<'_>) -> Result<String, ModelError> {
    let &Attention { heads, kv_heads, head_dim, biases, window, gated, .. } = attention;
    let hidden = sheet.hidden();
    let (q_width, kv_width) = (heads.saturating_mul(head_dim), kv_heads.saturating_mul(head_dim));
    let rows = window.map_or(sheet.ctx(), |window| window.min(sheet.ctx()));
    let bias = |given: bool, name| given.then_some(name);

    sheet.position();
    let axes = [("position", rows), ("kv_head", kv_heads), ("head_dim", head_dim)];
    let comment = if window.is_some() { "the last rows before the position" } else { "a row for each token" };
    let caches = ["k", "v"].map(|cache| sheet.carry(cache, &axes, comment));
    let kind = if window.is_some() { "sliding attention" } else { "attention" };
    sheet.title(format!("{kind}: {heads} heads of {head_dim}, {kv_heads} of keys and values"));
    let h = sheet.bind("h", x);
    let projected = if gated { q_width.saturating_mul(2) } else { q_width };
    let q = sheet.linear(&h, "wq", Part::Query, [projected, hidden], bias(biases.q, "bq"))?;
    let k = sheet.linear(&h, "wk", Part::Key, [kv_width, hidden], bias(biases.k, "bk"))?;
    let v = sheet.linear(&h, "wv", Part::Value, [kv_width, hidden], bias(biases.v, "bv"))?;
    let (q, gate) = if gated {
        sheet.say(format!("qg = {q}"));
        let part = |from, to| format!("slice(qg, heads: {heads}, from: {from}, to: {to})");
        (part(0, head_dim), Some(part(head_dim, head_dim.saturating_mul(2))))
    } else {
        (q, None)
    };
    let q = placed(attention, q, heads, ("q_gain", Part::QueryNorm), sheet)?;
    let k = placed(attention, k, kv_heads, ("k_gain", Part::KeyNorm), sheet)?;
    if attention.sinks {
        sheet.weight("sinks", &[heads], Part::Sinks)?;
    }
    sheet.say(format!("q = {q}"));
    let attend = |k: &str, v: &str| {
        let sinks = if attention.sinks { ", sinks" } else { "" };
        let mut text = format!(
            "attend(q, {k}, {v}{sinks}, heads: {heads}, kv_heads: {kv_heads}, scale: {}",
            attention.scale
        );
        if let Some(window) = window {
            text += &format!(", window: {window}");
        }
        if let Some(cap) = attention.softcap {
            text += &format!(", softcap: {cap}");
        }
        text + ")"
    };
    let [kc, vc] = &caches;
    if window.is_some() {
        sheet.say(format!("k = {k}"));
        sheet.say(format!("v = {v}"));
        let [kw, vw] =
            [(kc, "k"), (vc, "v")].map(|(cache, new)| format!("join({cache}[pos-{rows} .. pos], {new})"));
        sheet.say(format!("a = {}", attend(&kw, &vw)));
        sheet.keep("k", rows, "k");
        sheet.keep("v", rows, "v");
    } else {
        sheet.say(format!("{kc}[pos .. pos+n] = {k}"));
        sheet.say(format!("{vc}[pos .. pos+n] = {v}"));
        sheet.say(format!("a = {}", attend(&format!("{kc}[.. pos+n]"), &format!("{vc}[.. pos+n]"))));
    }
    let gated = gate.map(|gate| format!("a * sigmoid({gate})"));
    let a = gated.unwrap_or_else(|| "a".into());
    sheet.linear(&a, "wo", Part::Output, [hidden, q_width], bias(biases.o, "bo"))
}

/// Queries or keys, normalized and turned by their position as the attention says.
fn placed(
    attention: &Attention,
    x: String,
    heads: u64,
    gain: (&str, Part),
    sheet: &mut Sheet<'_>,
) -> Result<String, ModelError> {
    let dim = attention.head_dim;
    let (eps, offset) = (sheet.eps(), sheet.offset());
    let (name, part) = gain;
    let x = match attention.qk_norm {
        QkNorm::None => x,
        QkNorm::Head => {
            sheet.weight(name, &[dim], part)?;
            format!("rms_norm({x}, {name}, eps: {eps}, heads: {heads}{offset})")
        }
        QkNorm::Whole => {
            sheet.weight(name, &[heads.saturating_mul(dim)], part)?;
            format!("rms_norm({x}, {name}, eps: {eps}{offset})")
        }
    };
    match &attention.rope {
        Some(rope) => sheet.rope(&x, heads, rope, Turn::default()),
        None => Ok(x),
    }
}
