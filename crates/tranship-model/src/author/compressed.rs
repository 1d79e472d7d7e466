//! Attention over a sliding window of rows that are key and value in one, with compressed rows of what lies further back
//! (DeepSeek-V4, 2026).

use super::{sheet::Sheet, sheet::Turn};
use crate::{CompressedAttention, Compressor, Indexer, ModelError, Part, RopeSpec};

/// Writes the attention over `x`, an expression of rows `[n, hidden]`; gives the expression of its output.
pub(super) fn write(
    mixer: &CompressedAttention,
    x: &str,
    sheet: &mut Sheet<'_>,
) -> Result<String, ModelError> {
    let &CompressedAttention { heads, head_dim, query_rank, window, scale, ref rope, .. } = mixer;
    let (hidden, eps) = (sheet.hidden(), sheet.eps());
    let rows = window.min(sheet.ctx());
    let width = heads.saturating_mul(head_dim);
    let turn = Turn { skip: head_dim.saturating_sub(rope.dims), ..Turn::default() };

    sheet.position();
    let axes = [("position", rows), ("head_dim", head_dim)];
    let kv = sheet.carry("kv", &axes, "the last rows before the position: keys, and values");
    sheet.title(format!("shared-row attention: {heads} heads of {head_dim}, a window of {window}"));
    let h = sheet.bind("h", x);
    let down = sheet.linear(&h, "wq_down", Part::QueryDown, [query_rank, hidden], None)?;
    sheet.weight("q_gain", &[query_rank], Part::QueryDownNorm)?;
    sheet.say(format!("qd = rms_norm({down}, q_gain, eps: {eps})"));
    let q = sheet.linear("qd", "wq_up", Part::QueryUp, [width, query_rank], None)?;
    let q = sheet.rope(&format!("rms_norm({q}, eps: {eps}, heads: {heads})"), heads, rope, turn)?;
    sheet.say(format!("q = {q}"));
    let row = sheet.linear(&h, "w_row", Part::Row, [head_dim, hidden], None)?;
    sheet.weight("row_gain", &[head_dim], Part::RowNorm)?;
    let row = sheet.rope(&format!("rms_norm({row}, row_gain, eps: {eps})"), 1, rope, turn)?;
    sheet.say(format!("row = {row}"));
    sheet.weight("sinks", &[heads], Part::Sinks)?;
    let joined = format!("join({kv}[pos-{rows} .. pos], row)");
    match &mixer.compressor {
        None => {
            sheet.say(format!("w = {joined}"));
            let attrs = format!("heads: {heads}, kv_heads: 1, scale: {scale}, window: {window}");
            sheet.say(format!("a = attend(q, w, w, sinks, {attrs})"));
        }
        Some(compressor) => {
            let rate = compressor.rate;
            let parts = CompressorParts::MAIN;
            let c = compress(compressor, head_dim, rope, &h, &parts, sheet)?;
            let chosen = match &compressor.indexer {
                Some(indexer) => choose(mixer, compressor, indexer, &h, sheet)?,
                None => "",
            };
            let rows = format!("{joined}, {c}[.. (pos+n)/{rate}], sinks{chosen}");
            let attrs = format!("heads: {heads}, scale: {scale}, window: {window}, rate: {rate}");
            sheet.say(format!("a = compressed_attend(q, {rows}, {attrs})"));
        }
    }
    sheet.keep("kv", rows, "row");
    let back = sheet.rope("a", heads, rope, Turn { inverse: true, ..turn })?;
    let (groups, rank) = (mixer.output_groups, mixer.output_rank);
    let inner = groups.saturating_mul(rank);
    sheet.weight("wo_down", &[inner, width / groups.max(1)], Part::OutputDown)?;
    sheet.linear(
        &format!("linear({back}, wo_down, groups: {groups})"),
        "wo",
        Part::Output,
        [hidden, inner],
        None,
    )
}

/// The names and parts of one compressor.
struct CompressorParts {
    /// What the compressed rows are called, and starts the other names.
    name: &'static str,
    row: Part,
    gate: Part,
    bias: Part,
    norm: Part,
}

impl CompressorParts {
    const MAIN: CompressorParts = CompressorParts {
        name: "c",
        row: Part::CompressorRow,
        gate: Part::CompressorGate,
        bias: Part::CompressorBias,
        norm: Part::CompressorNorm,
    };
    const INDEXER: CompressorParts = CompressorParts {
        name: "i",
        row: Part::IndexerRow,
        gate: Part::IndexerGate,
        bias: Part::IndexerBias,
        norm: Part::IndexerNorm,
    };
}

/// Compresses the step's rows with those that their spans reach back to; gives the name of the carried rows.
fn compress(
    compressor: &Compressor,
    head_dim: u64,
    rope: &RopeSpec,
    h: &str,
    parts: &CompressorParts,
    sheet: &mut Sheet<'_>,
) -> Result<String, ModelError> {
    let &Compressor { rate, overlap, .. } = compressor;
    let (hidden, ctx, eps) = (sheet.hidden(), sheet.ctx(), sheet.eps());
    let width = if overlap { head_dim.saturating_mul(2) } else { head_dim };
    let before = if overlap { rate.saturating_mul(2) - 1 } else { rate - 1 };
    let name = parts.name;
    let named = |what: &str| format!("{name}_{what}");
    let (row, gate, bias, gain) = (named("row"), named("gate"), named("bias"), named("gain"));
    let axes = [("span", (ctx / rate).max(1)), ("head_dim", head_dim)];
    let rows = sheet.carry(name, &axes, &format!("a row for every {rate} tokens"));
    let x = sheet.linear(h, &named("w"), parts.row, [width, hidden], None)?;
    sheet.say(format!("{row} = {x}"));
    let x = sheet.linear(h, &named("wg"), parts.gate, [width, hidden], None)?;
    sheet.say(format!("{gate} = {x}"));
    let mut joined = Vec::new();
    for part in [&row, &gate] {
        let axes = [("position", before), ("width", width)];
        joined.push(sheet.window(part, &axes, part, "tokens of the next compressed row"));
    }
    sheet.weight(&bias, &[rate, width], parts.bias)?;
    sheet.weight(&gain, &[head_dim], parts.norm)?;
    let attrs = format!("rate: {rate}, overlap: {}", if overlap { "yes" } else { "no" });
    let made = format!("compress({}, {bias}, {attrs})", joined.join(", "));
    // A compressed row stands at the first position of its span.
    let turn = Turn { skip: head_dim.saturating_sub(rope.dims), back: rate - 1, ..Turn::default() };
    let made = sheet.rope(&format!("rms_norm({made}, {gain}, eps: {eps})"), 1, rope, turn)?;
    sheet.say(format!("{rows}[pos/{rate} .. (pos+n)/{rate}] = {made}"));
    for part in [&row, &gate] {
        sheet.keep(part, before, part);
    }
    Ok(rows)
}

/// Chooses compressed rows for each query; gives the operand that says which.
fn choose(
    mixer: &CompressedAttention,
    compressor: &Compressor,
    indexer: &Indexer,
    h: &str,
    sheet: &mut Sheet<'_>,
) -> Result<&'static str, ModelError> {
    let &Indexer { heads, head_dim, top_k } = indexer;
    let (rope, rate) = (&mixer.rope, compressor.rate);
    let rows = compress(compressor, head_dim, rope, h, &CompressorParts::INDEXER, sheet)?;
    let hidden = sheet.hidden();
    sheet.weight("i_wq", &[heads.saturating_mul(head_dim), mixer.query_rank], Part::IndexerQuery)?;
    let turn = Turn { skip: head_dim.saturating_sub(rope.dims), ..Turn::default() };
    let q = sheet.rope("linear(qd, i_wq)", heads, rope, turn)?;
    let weights = sheet.linear(h, "i_ww", Part::IndexerWeights, [heads, hidden], None)?;
    let scale = (head_dim as f64).sqrt().recip() * (heads as f64).sqrt().recip();
    sheet.say(format!("i_q = {q}"));
    let attrs = format!("heads: {heads}, top_k: {top_k}, rate: {rate}, scale: {scale}");
    sheet.say(format!("chosen = choose(i_q, {rows}[.. (pos+n)/{rate}], {weights}, {attrs})"));
    Ok(", chosen")
}
