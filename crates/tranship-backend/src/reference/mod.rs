//! The reference interpreter: the plain meaning of every operation, and the truth that backends are held to.
//!
//! It walks the typed graph node by node (`run.rs`), keeps every value as F32 rounded to the value's dtype, sums in F64
//! and rounds once. Segments run one after the other, and what is computed for a row does not depend on how many rows
//! the step has, so neither batching nor splitting can change a result. It is not fast, and does not try to be.

mod apply;
mod attend;
mod columns;
mod compressed;
mod conv;
mod decayed_linear;
mod elementwise;
mod erf;
mod experts;
mod gated_delta;
mod gather;
mod latent_attend;
mod linear;
mod log_decay;
mod rms_norm;
mod rope;
mod route;
mod run;
mod softmax;
mod state_space;
mod streams;

use self::run::{Part, Run};
use crate::table::values;
use crate::{
    Backend, BackendError, Caps, CarriedSpec, Chain, Input, Limits, Outputs, RowState, Segment, State, Step,
    Weights, check_batch,
};
use std::sync::Arc;
use tranship_ctx::{Accepts, DTypeSet};
use tranship_dtype::DType;
use tranship_program::ValueId;

/// The reference backend.
pub struct Reference {
    caps: Caps,
}

impl Reference {
    /// The interpreter; it is always there.
    pub fn new() -> Reference {
        const FLOATS: DTypeSet =
            DTypeSet::of(&[DType::F8E4M3, DType::F8E5M2, DType::F16, DType::BF16, DType::F32]);
        let accepts = Accepts { compute: FLOATS, kv: FLOATS, state: FLOATS, ..Accepts::default() };
        let description = "plain loops, sums in F64, one thread".into();
        Reference { caps: Caps { description, accepts, memory_bytes: None, reads_mapped: true } }
    }
}

impl Default for Reference {
    fn default() -> Reference {
        Reference::new()
    }
}

impl Backend for Reference {
    fn name(&self) -> &str {
        "reference"
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn compile(&self, chain: &Chain, weights: &dyn Weights) -> Result<Box<dyn Step>, BackendError> {
        chain.check()?;
        let mut parts = Vec::new();
        for (typed, bound) in chain.parts.iter().zip(chain.bind(weights)?) {
            let mut held = Vec::new();
            for (id, weight) in bound.into_iter().enumerate() {
                let Some(weight) = weight else {
                    held.push(None);
                    continue;
                };
                let values = values(&weight).map_err(|source| BackendError::Convert {
                    value: typed.graph().value(ValueId(id)).name.clone(),
                    dtype: DType::F32,
                    source,
                })?;
                held.push(Some(Arc::new(values)));
            }
            parts.push(Part { typed: typed.clone(), weights: held });
        }
        let carried = chain.carried();
        Ok(Box::new(ReferenceStep { limits: chain.limits(), parts, carried }))
    }
}

struct ReferenceStep {
    limits: Limits,
    parts: Vec<Part>,
    carried: Vec<CarriedSpec>,
}

impl Step for ReferenceStep {
    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        Ok(Box::new(RowState::new(self.carried.clone())?))
    }

    fn run(
        &mut self,
        batch: &mut [Segment<'_>],
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        check_batch(&self.limits, batch, input)?;
        RowState::check(batch, &self.carried)?;
        let mut first = 0;
        for segment in batch {
            let Some(state) = segment.state.as_any().downcast_mut::<RowState>() else { continue };
            let (rows, position) = (segment.rows, segment.position);
            let own = first..first + rows;
            let tokens = input.tokens().and_then(|all| all.get(own.clone())).unwrap_or_default();
            let width = self.limits.width_in.unwrap_or(0);
            let mut x =
                input.rows().map_or(Vec::new(), |all| all[own.start * width..own.end * width].to_vec());
            first += rows;
            let mut carried = 0;
            for part in &self.parts {
                let count = part.typed.carried().count();
                x = Run::new(part, state, carried, position, rows, tokens).all(x)?;
                carried += count;
            }
            let width = x.len() / rows;
            if segment.outputs != Outputs::None {
                out.extend_from_slice(&x[segment.outputs.first(rows) * width..]);
            }
        }
        Ok(())
    }
}
