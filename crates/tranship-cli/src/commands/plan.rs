//! `tranship plan`: the memory that a model takes, by pool, and where each weight lives.

use crate::args::{Compute, ModelArg};
use crate::error::CliError;
use crate::{out, setup};
use clap::Args;
use serde_json::json;
use std::fmt::Write as _;
use tranship::plan::{Load, demands, pools};
use tranship::residency::{Home, Kind, Ledger, Plan, Residency, plan};

/// Flags of `plan`.
#[derive(Args)]
pub struct PlanOf {
    #[command(flatten)]
    model: ModelArg,
    /// Memory pools and their sizes, the one that computes first: host=8GiB,gpu=512MB [default: this machine's memory
    /// as host, a sixteenth of it reserved]
    #[arg(long, value_name = "POOL=SIZE,…")]
    budget: Option<String>,
    /// Where weights should live: device, mmap, or auto for device if they fit
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    residency: Residency,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: Compute,
}

/// Plans the model.
pub fn run(command: &PlanOf) -> Result<(), CliError> {
    let model = setup::model(&command.model.model)?;
    let chip = command.compute.chip()?;
    let ctx = command.compute.ctx_for(&model, 0);
    let demands = demands(&model, &chip.policy, &chip.backend.caps().accepts, &Load::new(ctx))?;
    let pools = pools(command.budget.as_deref())?;
    let plan = plan(&demands, &pools, command.residency)?;
    if !command.json {
        let path = model.checkpoint().path().display();
        let title = format!("{path} at ctx {ctx}, {} on {}\n", chip.policy_name, chip.backend.name());
        return out::print(title + &ledgers(&plan) + &placements(&plan));
    }
    out::json(&json!({
        "ctx": ctx,
        "policy": chip.policy_name,
        "backend": chip.backend.name(),
        "residency": plan.residency,
        "mapped_bytes": plan.mapped_bytes,
        "ledgers": plan.ledgers,
        "demands": demands.iter().filter(|d| d.what != Kind::Weights).collect::<Vec<_>>(),
        "placements": plan.placements,
    }))
}

/// The ledger of each pool, with a bar for each kind.
pub fn ledgers(plan: &Plan) -> String {
    let mut text = String::new();
    for ledger in &plan.ledgers {
        let capacity = ledger.capacity_bytes();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "pool {}: {}", ledger.pool(), out::bytes(capacity));
        let mut line = |name: &str, bytes: u64| {
            let percent = 100.0 * bytes as f64 / capacity.max(1) as f64;
            let bar = out::bar(bytes, capacity, 40);
            let _ = writeln!(text, "  {name:12} {bar} {:>11} {percent:5.1} %", out::bytes(bytes));
        };
        shown(ledger).into_iter().for_each(|kind| line(kind.name(), ledger.bytes_of(kind)));
        line("free", ledger.headroom_bytes());
    }
    if plan.mapped_bytes > 0 {
        let _ = writeln!(text, "mapped from the file: {}", out::bytes(plan.mapped_bytes));
    }
    text
}

/// The kinds that a ledger holds anything of.
fn shown(ledger: &Ledger) -> Vec<Kind> {
    Kind::ALL.into_iter().filter(|kind| ledger.bytes_of(*kind) > 0).collect()
}

/// The home of each weight.
fn placements(plan: &Plan) -> String {
    let home = |home: &Home| match home {
        Home::Pool(name) => name.clone(),
        Home::Mapped => "mapped".to_owned(),
    };
    let mut text = format!("placement ({} of weights):\n", plan.residency);
    for placement in &plan.placements {
        let bytes = out::bytes(placement.bytes);
        let _ = writeln!(text, "  {:10} {bytes:>11}  {}", home(&placement.home), placement.name);
    }
    text
}
