//! What is between the projections of an expert.

use crate::arch::{Kernel, Simd};
use crate::ops::functions::{gelu, gelu_tanh, sigmoid, silu};
use tranship_program::ops::{ExpertAct, Experts};

/// The activation, written where the gates are.
pub(super) struct Act<'a> {
    pub(super) op: &'a Experts,
    /// Gates; not read where there are none.
    pub(super) gate: &'a mut [f32],
    pub(super) up: &'a [f32],
}

impl Kernel for Act<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Act { op, gate, up } = self;
        match op.act {
            ExpertAct::Silu => each(s, op, gate, up, |g, u| s.mul(silu(s, g), u)),
            ExpertAct::Gelu => each(s, op, gate, up, |g, u| s.mul(gelu(s, g), u)),
            ExpertAct::GeluTanh => each(s, op, gate, up, |g, u| s.mul(gelu_tanh(s, g), u)),
            ExpertAct::Relu2 => {
                let relu = |u| s.max(s.splat(0.0), u);
                each(s, op, gate, up, |_, u| s.mul(relu(u), relu(u)));
            }
            ExpertAct::Swish { alpha } => {
                let alpha = s.splat(alpha as f32);
                each(s, op, gate, up, |g, u| {
                    s.mul(s.mul(g, sigmoid(s, s.mul(alpha, g))), s.add(u, s.splat(1.0)))
                });
            }
        }
    }
}

/// Runs `f` on every pair of a gate and what it gates, within the limit.
#[inline(always)]
fn each<S: Simd>(s: S, op: &Experts, gate: &mut [f32], up: &[f32], f: impl Fn(S::F, S::F) -> S::F) {
    assert_eq!(gate.len(), up.len(), "a gate for each value");
    let limit = s.splat(op.limit.map_or(f32::INFINITY, |limit| limit as f32));
    let least = s.sub(s.splat(0.0), limit);
    for at in (0..gate.len()).step_by(S::LANES) {
        let n = S::LANES.min(gate.len() - at);
        // SAFETY: `n` values from `at` on are within both.
        unsafe {
            let p = gate.as_mut_ptr().add(at);
            let g = if op.gated { s.load_part(p, n) } else { s.splat(0.0) };
            let u = s.load_part(up.as_ptr().add(at), n);
            // The second operand is what comes of NaN.
            let (g, u) = (s.min(limit, g), s.min(limit, s.max(least, u)));
            s.store_part(p, f(g, u), n);
        }
    }
}
