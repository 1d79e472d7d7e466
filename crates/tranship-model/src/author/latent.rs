//! Multi-head latent attention (DeepSeek-V2, 2024): the cache holds a compressed row and a key that all heads share.

use super::{sheet::Sheet, sheet::Turn};
use crate::{LatentAttention, ModelError, Part};

/// Writes the attention over `x`, an expression of rows `[n, hidden]`; gives the expression of its output.
pub(super) fn write(latent: &LatentAttention, x: &str, sheet: &mut Sheet<'_>) -> Result<String, ModelError> {
    let &LatentAttention { heads, latent: rank, key_dim, rope_dim, value_dim, scale, eps, biased, .. } =
        latent;
    let (hidden, ctx) = (sheet.hidden(), sheet.ctx());
    let bias = |name| biased.then_some(name);
    let q_width = heads.saturating_mul(key_dim.saturating_add(rope_dim));

    sheet.position();
    let c = sheet.carry("c", &[("position", ctx), ("latent", rank)], "a compressed row for each token");
    let r = sheet.carry("r", &[("position", ctx), ("rope_dim", rope_dim)], "the key that all heads share");
    sheet
        .title(format!("latent attention: {heads} heads of {key_dim}+{rope_dim}, rows of {rank}+{rope_dim}"));
    let h = sheet.bind("h", x);
    let q = match latent.query_rank {
        Some(query_rank) => {
            let down = sheet.linear(&h, "wq_down", Part::QueryDown, [query_rank, hidden], bias("bq_down"))?;
            sheet.weight("q_gain", &[query_rank], Part::QueryDownNorm)?;
            let normed = format!("rms_norm({down}, q_gain, eps: {eps})");
            sheet.linear(&normed, "wq_up", Part::QueryUp, [q_width, query_rank], None)?
        }
        None => sheet.linear(&h, "wq", Part::Query, [q_width, hidden], None)?,
    };
    let row = sheet.linear(&h, "wc", Part::Latent, [rank, hidden], bias("bc"))?;
    let key = sheet.linear(&h, "wr", Part::SharedKey, [rope_dim, hidden], bias("br"))?;
    sheet.weight("c_gain", &[rank], Part::LatentNorm)?;
    let expanded = heads.saturating_mul(key_dim.saturating_add(value_dim));
    sheet.weight("w_kv", &[expanded, rank], Part::LatentUp)?;
    let (q, key) = match &latent.rope {
        Some(rope) => {
            let turn = Turn { skip: key_dim, ..Turn::default() };
            (sheet.rope(&q, heads, rope, turn)?, sheet.rope(&key, 1, rope, Turn::default())?)
        }
        None => (q, key),
    };
    sheet.say(format!("q = {q}"));
    sheet.say(format!("{c}[pos .. pos+n] = rms_norm({row}, c_gain, eps: {eps})"));
    sheet.say(format!("{r}[pos .. pos+n] = {key}"));
    let rows = format!("{c}[.. pos+n], {r}[.. pos+n], w_kv");
    sheet.say(format!("a = latent_attend(q, {rows}, heads: {heads}, key_dim: {key_dim}, scale: {scale})"));
    sheet.linear("a", "wo", Part::Output, [hidden, heads.saturating_mul(value_dim)], bias("bo"))
}
