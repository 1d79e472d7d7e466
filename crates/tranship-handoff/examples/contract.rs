//! Prints the contract of a model at a context length under `parity`, as those need it who write hand-offs elsewhere:
//! `contract MODEL CTX`.

use std::path::Path;
use tranship_ctx::{ComputeCtx, Device};
use tranship_handoff::{Contract, weights_digest};
use tranship_model::ModelSpec;
use tranship_weights::{Checkpoint, Format, View};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(ctx), None) = (args.next(), args.next(), args.next()) else {
        return Err("usage: contract MODEL CTX".into());
    };
    let checkpoint = Checkpoint::open(Path::new(&model))?;
    let digest = || {
        let views: Vec<View> = checkpoint.tensors_by_name().collect();
        weights_digest(views.iter().map(|v| (v.name(), v.dtype(), v.shape(), v.bytes())))
    };
    let weights = (checkpoint.format() != Format::ConfigOnly).then(digest);
    let policy = ComputeCtx::parity(Device::of("reference"));
    println!("{}", Contract::of(&ModelSpec::of(&checkpoint)?, ctx.parse()?, &policy, weights)?.to_json());
    Ok(())
}
