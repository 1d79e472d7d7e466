//! The chain of a model: its programs, lifted and typed, in the order in which they run.

use crate::{Model, SessionError};
use std::ops::Range;
use std::sync::Arc;
use tranship_backend::Chain;
use tranship_ctx::{Accepts, ComputeCtx, Typed};
use tranship_model::Cut;

/// Which of a layer's two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Any number of rows.
    Prefill,
    /// One row.
    Decode,
}

/// A run of a model's cuts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Whether it starts with the embedding: its input is tokens then, and rows otherwise.
    pub embed: bool,
    /// The layers.
    pub layers: Range<usize>,
    /// Whether it ends in the head: its output is logits then, and rows otherwise.
    pub head: bool,
}

impl Section {
    /// The whole model.
    pub fn whole(model: &Model) -> Section {
        Section { embed: true, layers: 0..model.spec().layers.len(), head: true }
    }
}

/// The typed programs of a section of a model, as one chain.
///
/// # Errors
/// When a program cannot be authored, lifted or typed.
pub fn chain(
    model: &Model,
    policy: &ComputeCtx,
    accepts: &Accepts,
    (section, phase): (&Section, Phase),
    (ctx, max_rows): (u64, usize),
) -> Result<Chain, SessionError> {
    let mut cuts = Vec::new();
    if section.embed {
        cuts.push(Cut::Embed);
    }
    cuts.extend(section.layers.clone().map(|layer| match phase {
        Phase::Prefill => Cut::PrefillLayer { layer, ctx },
        Phase::Decode => Cut::DecodeLayer { layer, ctx },
    }));
    if section.head {
        cuts.push(Cut::Head);
    }
    let typed = |cut: Cut| -> Result<Arc<Typed>, SessionError> {
        let graph = model.spec().program(cut)?.lift()?;
        Ok(Arc::new(policy.typed(&graph, &|name| model.stored(name), accepts)?))
    };
    Ok(Chain::new(cuts.into_iter().map(typed).collect::<Result<_, _>>()?, max_rows))
}
