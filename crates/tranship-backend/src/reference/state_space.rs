//! `state_space`: the step of Mamba-2.

use tranship_program::ops::StateSpace;

/// One row of the operands: `x` `[heads · head_dim]`, `b` and `c` `[groups · state]`, `dt`, and `a` and `d`, `[heads]`.
pub(super) struct Row<'a> {
    pub(super) x: &'a [f32],
    pub(super) b: &'a [f32],
    pub(super) c: &'a [f32],
    pub(super) dt: &'a [f32],
    pub(super) a: &'a [f32],
    pub(super) d: &'a [f32],
}

/// Takes one row into `s` `[heads, head_dim, state]`.
pub(super) fn advance(op: &StateSpace, s: &mut [f32], row: &Row<'_>) {
    let heads = op.heads as usize;
    let (head_dim, state) = (row.x.len() / heads, row.b.len() / op.groups as usize);
    for (h, s) in s.chunks_exact_mut(head_dim * state).enumerate() {
        let dt = f64::from(row.dt[h]);
        let decay = (-op.form.rate(f64::from(row.a[h])) * dt).exp();
        let b = &row.b[group(op, h) * state..][..state];
        for (p, s) in s.chunks_exact_mut(state).enumerate() {
            let x = f64::from(row.x[h * head_dim + p]);
            for (s, &b) in s.iter_mut().zip(b) {
                *s = (decay * f64::from(*s) + dt * x * f64::from(b)) as f32;
            }
        }
    }
}

/// What one row reads of the memory: `[heads · head_dim]`.
pub(super) fn read(op: &StateSpace, s: &[f32], row: &Row<'_>) -> Vec<f32> {
    let heads = op.heads as usize;
    let (head_dim, state) = (row.x.len() / heads, row.c.len() / op.groups as usize);
    let one = |(i, s): (usize, &[f32])| {
        let h = i / head_dim;
        let c = &row.c[group(op, h) * state..][..state];
        let sum: f64 = s.iter().zip(c).map(|(&s, &c)| f64::from(s) * f64::from(c)).sum();
        (sum + f64::from(row.d[h]) * f64::from(row.x[i])) as f32
    };
    s.chunks_exact(state).enumerate().map(one).collect()
}

/// The group of a head.
fn group(op: &StateSpace, head: usize) -> usize {
    head / (op.heads / op.groups) as usize
}
