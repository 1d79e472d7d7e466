//! Experts: routing, the experts of each row, and the part that all rows go to.

use super::gated::{self, Parts};
use super::sheet::{Sheet, attrs};
use crate::{Activation, Experts, ModelError, Part};
use tranship_program::Op;
use tranship_program::ops::{self, ExpertAct, RouteBias};

/// Writes the part over `x`, an expression of rows `[n, hidden]`; gives the expression of its output.
pub(super) fn write(spec: &Experts, x: &str, sheet: &mut Sheet<'_>) -> Result<String, ModelError> {
    let &Experts { experts, width, .. } = spec;
    let hidden = sheet.hidden();
    let top_k = spec.routing.route.top_k;
    sheet.title(format!("experts: {top_k} of {experts}, {width} wide"));
    let f = sheet.bind("f", x);
    let r = route(spec, &f, sheet)?;
    sheet.say(format!("r = {r}"));
    let input = spec.latent.unwrap_or(hidden);
    let rows = match spec.latent {
        Some(latent) => {
            let bias = spec.latent_biased.then_some("b_in");
            let down = sheet.linear(&f, "w_in", Part::ExpertsIn, [latent, hidden], bias)?;
            sheet.bind("l", &down)
        }
        None => f.clone(),
    };
    let mut operands = vec![rows, "r".to_owned()];
    if spec.gated {
        sheet.weight("w_gate", &[experts, width, input], Part::ExpertGate)?;
        operands.push("w_gate".into());
    }
    sheet.weight("w_up", &[experts, width, input], Part::ExpertUp)?;
    sheet.weight("w_down", &[experts, input, width], Part::ExpertDown)?;
    operands.extend(["w_up".to_owned(), "w_down".to_owned()]);
    if spec.biased {
        let biases = [
            ("b_gate", width, Part::ExpertGateBias),
            ("b_up", width, Part::ExpertUpBias),
            ("b_down", input, Part::ExpertDownBias),
        ];
        for (name, width, part) in biases {
            sheet.weight(name, &[experts, width], part)?;
            operands.push(name.into());
        }
    }
    let act = match spec.activation {
        Activation::Silu => ExpertAct::Silu,
        Activation::Gelu => ExpertAct::Gelu,
        Activation::GeluTanh => ExpertAct::GeluTanh,
        Activation::Relu2 => ExpertAct::Relu2,
        Activation::Swish { alpha } => ExpertAct::Swish { alpha },
    };
    let (limit, gated, biased) = (spec.limit, spec.gated, spec.biased);
    let op = attrs(&Op::Experts(ops::Experts { top_k, act, limit, gated, biased }));
    let mut out = format!("experts({}, {op})", operands.join(", "));
    if let Some(latent) = spec.latent {
        let bias = spec.latent_biased.then_some("b_out");
        out = sheet.linear(&out, "w_out", Part::ExpertsOut, [hidden, latent], bias)?;
    }
    let Some(shared) = &spec.shared else { return Ok(out) };
    sheet.say(format!("e = {out}"));
    let mut beside = gated::write(&shared.ffn, &f, &Parts::SHARED, sheet)?;
    if shared.gated {
        let gate = sheet.linear(&f, "shared_scale", Part::SharedScale, [1, hidden], None)?;
        beside = format!("{beside} * sigmoid({gate})");
    }
    sheet.say(format!("es = e + {beside}"));
    Ok("es".into())
}

/// The expression of the routing weights.
fn route(spec: &Experts, f: &str, sheet: &mut Sheet<'_>) -> Result<String, ModelError> {
    let (experts, route) = (spec.experts, &spec.routing.route);
    let hidden = sheet.hidden();
    sheet.weight("w_route", &[experts, hidden], Part::Router)?;
    if spec.routing.by_token {
        sheet.declare("tokens : index [n]", "step input");
        sheet.weight("table", &[sheet.vocab(), route.top_k], Part::RouterTable)?;
        let op = attrs(&Op::RouteByTable(route.clone()));
        return Ok(format!("route_by_table({f}, w_route, table, tokens, {op})"));
    }
    let op = attrs(&Op::Route(route.clone()));
    let bias = match route.bias {
        None => "",
        Some(RouteBias::Logits) => {
            sheet.bias("b_route", experts, Part::Router)?;
            ", b_route"
        }
        Some(RouteBias::Choice) => {
            sheet.weight("b_route", &[experts], Part::RouterBias)?;
            ", b_route"
        }
    };
    Ok(format!("route({f}, w_route{bias}, {op})"))
}
