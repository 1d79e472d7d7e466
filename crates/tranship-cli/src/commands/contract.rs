//! `tranship contract`: the manifest of what a decode step carries, as JSON.

use crate::args::{Compute, ModelArg};
use crate::error::CliError;
use crate::{out, setup};
use clap::Args;

/// Flags of `contract`.
#[derive(Args)]
pub struct ContractOf {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    compute: Compute,
}

/// Prints the contract, with the digest of the weights where there are any.
pub fn run(command: &ContractOf) -> Result<(), CliError> {
    let model = setup::model(&command.model.model)?;
    let chip = command.compute.chip()?;
    let ctx = command.compute.ctx_for(&model, 0);
    out::print(format_args!("{}\n", model.contract(ctx, &chip.policy)?.to_json()))
}
