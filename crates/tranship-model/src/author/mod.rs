//! The author: one function for each kind of part, each writing lines of program text.
//!
//! A program is declarations, then statements. Author functions write both onto one [`Sheet`] as they go; the text is
//! then read by the language's own parser, so that what is authored is what a person can read.

mod attention;
mod compressed;
mod decayed_linear;
mod delta;
mod experts;
mod gated;
mod latent;
mod sheet;
mod short_conv;
mod state_space;
mod streams;

use crate::{Ffn, LayerSpec, Mixer, ModelError, ModelSpec, Part, Residual};
use sheet::{Sheet, scaled};
use std::fmt;
use tranship_program::Program;

/// The longest context that programs are written for: positions fit 31 bits on every device.
pub const MAX_CTX: u64 = 1 << 31;

/// A place to cut a model: what one program computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Tokens to rows.
    Embed,
    /// One layer, any number of rows.
    PrefillLayer {
        /// The layer, from 0.
        layer: usize,
        /// Rows of its caches.
        ctx: u64,
    },
    /// One layer, one row.
    DecodeLayer {
        /// The layer, from 0.
        layer: usize,
        /// Rows of its caches.
        ctx: u64,
    },
    /// Rows to logits.
    Head,
}

/// The cut as a program's header says it: `prefill layer=3 ctx=2048`.
impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Embed => f.write_str("embed"),
            Cut::PrefillLayer { layer, ctx } => write!(f, "prefill layer={layer} ctx={ctx}"),
            Cut::DecodeLayer { layer, ctx } => write!(f, "decode layer={layer} ctx={ctx}"),
            Cut::Head => f.write_str("head"),
        }
    }
}

impl ModelSpec {
    /// Writes the program of a cut and parses it.
    ///
    /// The programs take and give rows `[n, hidden]`, but for the embedding, which takes `tokens` (`index [n]`), and
    /// the head, which gives logits `[n, vocab]`. What layer `L` carries is named after it: `kL`, `vL`.
    ///
    /// # Errors
    /// [`ModelError::NoLayer`] and [`ModelError::Ctx`] of a cut that the model does not have, [`ModelError::NoName`]
    /// of a part that its names lack, [`ModelError::Program`] of a spec whose text does not parse.
    pub fn program(&self, cut: Cut) -> Result<Program, ModelError> {
        let text = self.text(cut)?;
        Program::parse(&text).map_err(|source| ModelError::Program { cut, source })
    }

    /// All cuts of the model, in the order of a step; each layer's prefill before its decode.
    pub fn cuts(&self, ctx: u64) -> impl Iterator<Item = Cut> + use<> {
        let layers = (0..self.layers.len())
            .flat_map(move |layer| [Cut::PrefillLayer { layer, ctx }, Cut::DecodeLayer { layer, ctx }]);
        [Cut::Embed].into_iter().chain(layers).chain([Cut::Head])
    }

    fn text(&self, cut: Cut) -> Result<String, ModelError> {
        match cut {
            Cut::Embed => embed(self),
            Cut::Head => head(self),
            Cut::PrefillLayer { layer, ctx } | Cut::DecodeLayer { layer, ctx } => {
                if ctx == 0 || ctx > MAX_CTX {
                    return Err(ModelError::Ctx { ctx });
                }
                let missing = ModelError::NoLayer { layer, layers: self.layers.len() };
                let mut sheet = Sheet::new(self, layer, ctx);
                layer_text(self.layers.get(layer).ok_or(missing)?, cut, &mut sheet)?;
                Ok(sheet.text(cut))
            }
        }
    }
}

fn embed(spec: &ModelSpec) -> Result<String, ModelError> {
    let mut sheet = Sheet::new(spec, 0, 1);
    sheet.declare("tokens : index [n]", "step input");
    sheet.weight("table", &[spec.vocab, spec.hidden], Part::Table)?;
    let row = scaled("gather(table, tokens)".into(), spec.embed_scale);
    let row = if spec.streams > 1 { format!("tile({row}, times: {})", spec.streams) } else { row };
    sheet.say(format!("return {row}"));
    Ok(sheet.text(Cut::Embed))
}

fn head(spec: &ModelSpec) -> Result<String, ModelError> {
    let mut sheet = Sheet::new(spec, 0, 1);
    sheet.declare(format!("x : [n, {}]", spec.hidden.saturating_mul(spec.streams)), "step input");
    let row = match &spec.hyper {
        Some(hyper) => streams::collapse(hyper, streams::HEAD, "x", &mut sheet)?,
        None => "x".into(),
    };
    let h = sheet.norm(&row, "g", Part::FinalNorm)?;
    let part = if spec.tied_head { Part::Table } else { Part::Head };
    let logits = sheet.linear(&h, "head", part, [spec.vocab, spec.hidden], None)?;
    let logits = scaled(logits, spec.logit_scale);
    let logits = match spec.logit_softcap {
        Some(cap) => format!("softcap({logits}, cap: {cap})"),
        None => logits,
    };
    sheet.say(format!("return {logits}"));
    Ok(sheet.text(Cut::Head))
}

/// A layer: a residual update for each of its parts.
fn layer_text(layer: &LayerSpec, cut: Cut, sheet: &mut Sheet<'_>) -> Result<(), ModelError> {
    let rows = if matches!(cut, Cut::DecodeLayer { .. }) { "step input, n = 1" } else { "step input" };
    sheet.declare(format!("x : [n, {}]", sheet.row()), rows);
    let Some(mixer) = &layer.mixer else {
        let out = match &layer.ffn {
            Some(part) => update(&layer.ffn_residual, FFN, "x", sheet, |x, sheet| ffn(part, x, sheet))?,
            None => return Err(ModelError::NoParts { layer: sheet.layer() }),
        };
        sheet.say(format!("return {out}"));
        return Ok(());
    };
    let mixed = update(&layer.mixer_residual, MIXER, "x", sheet, |x, sheet| mix(mixer, x, sheet))?;
    let Some(part) = &layer.ffn else {
        sheet.say(format!("return {mixed}"));
        return Ok(());
    };
    sheet.say(format!("m = {mixed}"));
    let out = update(&layer.ffn_residual, FFN, "m", sheet, |x, sheet| ffn(part, x, sheet))?;
    sheet.say(format!("return {out}"));
    Ok(())
}

fn mix(mixer: &Mixer, x: &str, sheet: &mut Sheet<'_>) -> Result<String, ModelError> {
    match mixer {
        Mixer::Attention(mixer) => attention::write(mixer, x, sheet),
        Mixer::Latent(mixer) => latent::write(mixer, x, sheet),
        Mixer::Compressed(mixer) => compressed::write(mixer, x, sheet),
        Mixer::GatedDelta(mixer) => delta::write(mixer, x, sheet),
        Mixer::DecayedLinear(mixer) => decayed_linear::write(mixer, x, sheet),
        Mixer::StateSpace(mixer) => state_space::write(mixer, x, sheet),
        Mixer::ShortConv(mixer) => short_conv::write(mixer, x, sheet),
    }
}

fn ffn(part: &Ffn, x: &str, sheet: &mut Sheet<'_>) -> Result<String, ModelError> {
    match part {
        Ffn::Gated(part) => gated::write(part, x, &gated::Parts::OWN, sheet),
        Ffn::Experts(part) => experts::write(part, x, sheet),
    }
}

/// What surrounds a part: names in the program, and parts of the checkpoint.
struct Around {
    gain: &'static str,
    norm: Part,
    post_gain: &'static str,
    post_norm: Part,
    streams: streams::Parts,
}

const MIXER: Around = Around {
    gain: "g_mix",
    norm: Part::MixerNorm,
    post_gain: "g_mix_post",
    post_norm: Part::MixerPostNorm,
    streams: streams::MIXER,
};

const FFN: Around = Around {
    gain: "g_ffn",
    norm: Part::FfnNorm,
    post_gain: "g_ffn_post",
    post_norm: Part::FfnPostNorm,
    streams: streams::FFN,
};

/// The expression of the stream `x` after a part has joined it.
fn update(
    residual: &Residual,
    around: Around,
    x: &str,
    sheet: &mut Sheet<'_>,
    part: impl FnOnce(&str, &mut Sheet<'_>) -> Result<String, ModelError>,
) -> Result<String, ModelError> {
    let hyper = sheet.hyper();
    let row = match &hyper {
        Some(hyper) => streams::collapse(hyper, around.streams, x, sheet)?,
        None => x.to_owned(),
    };
    let normed = if residual.pre_norm { sheet.norm(&row, around.gain, around.norm)? } else { row };
    let (normed, stream) = if residual.from_norm {
        let name = sheet.bind(around.streams.row, &normed);
        (name.clone(), name)
    } else {
        (normed, x.to_owned())
    };
    let out = part(&normed, sheet)?;
    let out = if residual.post_norm { sheet.norm(&out, around.post_gain, around.post_norm)? } else { out };
    if hyper.is_some() {
        return streams::expand(around.streams, x, &out, sheet);
    }
    Ok(format!("{} + {}", scaled(stream, residual.keep), scaled(out, residual.scale)))
}
