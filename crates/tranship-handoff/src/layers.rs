//! A model's programs, each lifted once: layers that are alike share theirs.
//!
//! A model of a hundred layers has a handful of kinds. Two layers with equal specifications are authored alike but for
//! the number in the names of what they carry and of their weights, so one of them stands for all.

use crate::digest::named;
use crate::{Axis, Carried, HandoffError};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tranship_ctx::ComputeCtx;
use tranship_model::{Cut, ModelError, ModelSpec};
use tranship_program::{Action, Graph, Role, Segments, ValueId, same_state};

/// The programs of a model's layers at a context.
pub(crate) struct Lifted {
    ctx: u64,
    /// For each layer the entry of `forms` that it is.
    layers: Vec<usize>,
    forms: Vec<Form>,
}

/// The programs of layers that are alike.
struct Form {
    /// The first such layer, which the graphs are of.
    layer: usize,
    prefill: Graph,
    decode: Graph,
    /// Where carried tensors may be cut, by their values in `decode`.
    segments: BTreeMap<ValueId, Segments>,
}

/// The digest of a model's programs at a context: over `tranship programs 1`, a line feed, and their canonical text, in
/// which neither names nor the context occur. Where the context changes what a layer computes (another stretch of its
/// rotary positions, say), the operations of that layer at the context follow.
///
/// # Errors
/// [`HandoffError::Model`] or [`HandoffError::Program`] when a program cannot be authored or lifted.
pub fn program_digest(spec: &ModelSpec, ctx: u64) -> Result<String, HandoffError> {
    Lifted::of(spec, ctx)?.digest(spec)
}

impl Lifted {
    /// Lifts the programs of all layers, and holds that they carry what a hand-off can hold.
    pub fn of(spec: &ModelSpec, ctx: u64) -> Result<Lifted, HandoffError> {
        for cut in [Cut::Embed, Cut::Head] {
            let graph = lift(spec, cut)?;
            let carried = graph.roles().carried().next();
            homeless(&graph, &cut.to_string(), carried.map(|c| c.name.as_str()))?;
        }
        let mut lifted = Lifted { ctx, layers: Vec::with_capacity(spec.layers.len()), forms: Vec::new() };
        for (layer, own) in spec.layers.iter().enumerate() {
            let alike = |form: &Form| spec.layers.get(form.layer) == Some(own) && form.names_follow();
            let form = match lifted.forms.iter().position(alike) {
                Some(form) => form,
                None => {
                    lifted.forms.push(Form::of(spec, layer, ctx)?);
                    lifted.forms.len() - 1
                }
            };
            lifted.layers.push(form);
        }
        Ok(lifted)
    }

    /// The carried tensors: layers in order, and in each the order of first touch.
    pub fn carried(&self, policy: &ComputeCtx) -> Vec<Carried> {
        let forms = self.layers.iter().map(|&form| &self.forms[form]).enumerate();
        let of_layer = |(layer, form): (usize, &Form)| {
            let one = |tensor: &tranship_program::Carried| Carried {
                name: form.renamed(&tensor.name, layer),
                layer: layer as u64,
                axes: tensor
                    .axes
                    .iter()
                    .map(|(name, size)| Axis { name: name.clone(), size: *size })
                    .collect(),
                dtype: policy.carried_dtype(Some(layer as u64), tensor),
                extent: tensor.extent,
                segments: form.segments.get(&tensor.value).cloned(),
            };
            form.decode.roles().carried().map(one).collect::<Vec<_>>()
        };
        forms.flat_map(of_layer).collect()
    }

    /// The digest of the programs.
    pub fn digest(&self, spec: &ModelSpec) -> Result<String, HandoffError> {
        let mut texts = Vec::with_capacity(self.forms.len());
        for form in &self.forms {
            texts.push(form.canonical(spec, self.ctx)?);
        }
        let part = |cut: Cut, text: &str| format!("{cut}\n{text}");
        let mut hasher = named("tranship programs 1");
        hasher.update(part(Cut::Embed, &lift(spec, Cut::Embed)?.canonical()).as_bytes());
        for (layer, &form) in self.layers.iter().enumerate() {
            let Canonical { prefill, decode, .. } = &texts[form];
            hasher.update(part(Cut::PrefillLayer { layer, ctx: 1 }, prefill).as_bytes());
            hasher.update(part(Cut::DecodeLayer { layer, ctx: 1 }, decode).as_bytes());
        }
        hasher.update(part(Cut::Head, &lift(spec, Cut::Head)?.canonical()).as_bytes());
        for (layer, &form) in self.layers.iter().enumerate() {
            if let Some(changed) = &texts[form].at_ctx {
                hasher.update(format!("layer {layer} at the context\n{changed}").as_bytes());
            }
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

/// A form's programs without names: at a context of 1, and what is other at the model's.
struct Canonical {
    prefill: String,
    decode: String,
    at_ctx: Option<String>,
}

impl Form {
    fn of(spec: &ModelSpec, layer: usize, ctx: u64) -> Result<Form, HandoffError> {
        let decode = lift(spec, Cut::DecodeLayer { layer, ctx })?;
        let prefill = lift(spec, Cut::PrefillLayer { layer, ctx })?;
        same_state(&prefill, &decode)?;
        homeless(&prefill, &format!("layer {layer}, prefill"), None)?;
        homeless(&decode, &format!("layer {layer}, decode"), None)?;
        let segments = segments(&prefill, &decode);
        Ok(Form { layer, prefill, decode, segments })
    }

    /// Whether every carried tensor's name ends in the layer's number, so that those of other layers follow.
    fn names_follow(&self) -> bool {
        let number = self.layer.to_string();
        self.decode.roles().carried().all(|c| c.name.ends_with(&number))
    }

    /// What a carried tensor of this form's own layer is called in another.
    fn renamed(&self, name: &str, layer: usize) -> String {
        match name.strip_suffix(&self.layer.to_string()) {
            Some(stem) if layer != self.layer => format!("{stem}{layer}"),
            _ => name.to_owned(),
        }
    }

    fn canonical(&self, spec: &ModelSpec, ctx: u64) -> Result<Canonical, HandoffError> {
        let layer = self.layer;
        let at_one = |cut: Cut, at_ctx: &Graph| -> Result<(String, Option<String>), HandoffError> {
            let graph = if ctx == 1 { None } else { Some(lift(spec, cut)?) };
            let graph = graph.as_ref().unwrap_or(at_ctx);
            let (here, one) = (operations(at_ctx), operations(graph));
            Ok((graph.canonical(), (here != one).then_some(here)))
        };
        let (prefill, prefill_at) = at_one(Cut::PrefillLayer { layer, ctx: 1 }, &self.prefill)?;
        let (decode, decode_at) = at_one(Cut::DecodeLayer { layer, ctx: 1 }, &self.decode)?;
        let at_ctx = match (prefill_at, decode_at) {
            (None, None) => None,
            (prefill, decode) => Some(prefill.unwrap_or_default() + &decode.unwrap_or_default()),
        };
        Ok(Canonical { prefill, decode, at_ctx })
    }
}

/// Where both programs of a layer let its carried tensors be cut. Where they do not agree on one, its holders have all of
/// them whole: what one is made of may be another.
fn segments(prefill: &Graph, decode: &Graph) -> BTreeMap<ValueId, Segments> {
    let (before, found) = (prefill.segments(), decode.segments());
    let pairs = prefill.roles().carried().zip(decode.roles().carried());
    let agree = pairs.into_iter().all(|(a, b)| before.get(&a.value) == found.get(&b.value));
    if agree { found } else { BTreeMap::new() }
}

fn lift(spec: &ModelSpec, cut: Cut) -> Result<Graph, HandoffError> {
    let lifted = spec.program(cut)?.lift();
    Ok(lifted.map_err(|source| ModelError::Program { cut, source })?)
}

/// The operations of a graph with their attributes, one a line: what it computes, whatever the rows.
fn operations(graph: &Graph) -> String {
    let mut text = String::new();
    for node in &graph.nodes {
        let (Action::Apply { op, .. } | Action::Update { op, .. }) = &node.action else { continue };
        text.push_str(op.name());
        for (key, value) in op.attrs() {
            let _ = write!(text, " {key}: {value}");
        }
        text.push('\n');
    }
    text
}

/// Holds that a program reads nothing that nothing gives it, and carries nothing for which `carried` names a tensor.
fn homeless(graph: &Graph, program: &str, carried: Option<&str>) -> Result<(), HandoffError> {
    for (id, value) in graph.declared() {
        let Some(role) = graph.roles().of(id) else { continue };
        if role == Role::Frozen || carried == Some(value.name.as_str()) {
            let (name, program) = (value.name.clone(), program.to_owned());
            return Err(HandoffError::Homeless { name, program, role });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tranship_program::Program;

    /// Whatever is read and neither given nor carried is refused by its name, as is what no layer carries.
    #[test]
    fn what_no_hand_off_would_hold() {
        let lift = |text: &str| Program::parse(text).expect("it parses").lift().expect("it lifts");
        let frozen = lift("program decode layer=0\n  x : [n, 2]\n  f : [2, 2]\n  return linear(x, f)\n");
        let error = homeless(&frozen, "layer 0, decode", None).expect_err("frozen").to_string();
        let wanted = "is frozen: it is no layer's carried tensor, and no hand-off would hold it";
        assert_eq!(error, format!("`f` of layer 0, decode {wanted}"));
        let text = "program head\n  x : [n, 2]\n  s : [2, 2]\n  y = linear(x, s[..])\n  s[..] = s[..] + s[..]\n  return y\n";
        let memory = lift(text);
        assert!(homeless(&memory, "layer 0, decode", None).is_ok(), "a layer may carry it");
        let error = homeless(&memory, "head", Some("s")).expect_err("carried").to_string();
        assert!(error.starts_with("`s` of head is carried, recurrent: "), "{error}");
    }
}
