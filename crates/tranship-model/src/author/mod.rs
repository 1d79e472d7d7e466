//! The author: one function for each kind of part, each writing lines of program text.
//!
//! A program is declarations, then statements. Author functions write both onto one [`Sheet`] as they go; the text is
//! then read by the language's own parser, so that what is authored is what a person can read.

mod attention;
mod gated;
mod sheet;

use crate::{Ffn, LayerSpec, Mixer, ModelError, ModelSpec, Part};
use sheet::Sheet;
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
                let site = Site { spec: self, cut, layer, ctx };
                layer_text(self.layers.get(layer).ok_or(missing)?, &site)
            }
        }
    }
}

/// Where a part stands: what an author function may ask beside the part itself.
struct Site<'a> {
    spec: &'a ModelSpec,
    cut: Cut,
    layer: usize,
    ctx: u64,
}

fn embed(spec: &ModelSpec) -> Result<String, ModelError> {
    let mut sheet = Sheet::new(spec, 0);
    sheet.declare("tokens : index [n]", "step input");
    sheet.weight("table", &[spec.vocab, spec.hidden], Part::Table)?;
    sheet.say("return gather(table, tokens)");
    Ok(sheet.text(Cut::Embed))
}

fn head(spec: &ModelSpec) -> Result<String, ModelError> {
    let mut sheet = Sheet::new(spec, 0);
    sheet.declare(format!("x : [n, {}]", spec.hidden), "step input");
    let h = sheet.norm("x", "g", Part::FinalNorm)?;
    let part = if spec.tied_head { Part::Table } else { Part::Head };
    let logits = sheet.linear(&h, "head", part, [spec.vocab, spec.hidden], None)?;
    sheet.say(format!("return {logits}"));
    Ok(sheet.text(Cut::Head))
}

/// A layer: two residual updates, each of a normalized row.
fn layer_text(layer: &LayerSpec, site: &Site<'_>) -> Result<String, ModelError> {
    let mut sheet = Sheet::new(site.spec, site.layer);
    let rows = if matches!(site.cut, Cut::DecodeLayer { .. }) { "step input, n = 1" } else { "step input" };
    sheet.declare(format!("x : [n, {}]", site.spec.hidden), rows);

    let norm = sheet.norm("x", "g_mix", Part::MixerNorm)?;
    let mixed = match &layer.mixer {
        Mixer::Attention(attention) => attention::write(attention, &norm, site, &mut sheet)?,
    };
    sheet.say(format!("m = x + {mixed}"));

    let norm = sheet.norm("m", "g_ffn", Part::FfnNorm)?;
    let out = match &layer.ffn {
        Ffn::Gated(gated) => gated::write(gated, &norm, &mut sheet)?,
    };
    sheet.say(format!("return m + {out}"));
    Ok(sheet.text(site.cut))
}
