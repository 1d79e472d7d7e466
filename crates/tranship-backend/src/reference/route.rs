//! `route` and `route_by_table`: the experts of each row, and their weights.

use super::elementwise::{sigmoid, softplus};
use super::softmax::dot;
use tranship_program::ops::{Groups, Route, RouteBias, Score};

/// `x` is `[n, width]`, `w` `[experts, width]`, `bias` `[experts]` or empty; the result `[n, experts]`.
pub(super) fn run(op: &Route, x: &[f32], w: &[f32], bias: &[f32], width: usize) -> Vec<f32> {
    let bias = |e: usize| bias.get(e).map_or(0.0, |&b| f64::from(b));
    let mut y = Vec::new();
    for row in x.chunks_exact(width) {
        let mut logits: Vec<f64> = w.chunks_exact(width).map(|w| dot(row, w)).collect();
        if op.bias == Some(RouteBias::Logits) {
            logits.iter_mut().enumerate().for_each(|(e, l)| *l += bias(e));
        }
        let p = scores(op.score, &logits);
        let mut choice = p.clone();
        if op.bias == Some(RouteBias::Choice) {
            choice.iter_mut().enumerate().for_each(|(e, c)| *c += bias(e));
        }
        let open = open_experts(op.groups, &choice);
        let best = top(op.top_k as usize, open.into_iter().map(|e| (e, choice[e])));
        y.extend(weights(op, &p, &best));
    }
    y
}

/// As [`run`], with the experts that `table` `[vocab, top_k]` lists for each of `tokens`.
pub(super) fn by_table(op: &Route, [x, w, table]: [&[f32]; 3], tokens: &[u32], width: usize) -> Vec<f32> {
    let top_k = op.top_k as usize;
    let mut y = Vec::new();
    for (row, &token) in x.chunks_exact(width).zip(tokens) {
        let logits: Vec<f64> = w.chunks_exact(width).map(|w| dot(row, w)).collect();
        let p = scores(op.score, &logits);
        let listed = &table[token as usize * top_k..][..top_k];
        let listed: Vec<usize> = listed.iter().map(|&e| e as usize).filter(|e| *e < p.len()).collect();
        y.extend(weights(op, &p, &listed));
    }
    y
}

/// Of numbered scores the `k` highest, in the order of their numbers; of equal ones the earlier.
pub(super) fn top(k: usize, scores: impl Iterator<Item = (usize, f64)>) -> Vec<usize> {
    // Adding 0 makes −0 equal to it.
    let mut ranked: Vec<(usize, f64)> = scores.map(|(i, s)| (i, s + 0.0)).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(k);
    let mut best: Vec<usize> = ranked.into_iter().map(|(i, _)| i).collect();
    best.sort_unstable();
    best
}

fn scores(score: Score, logits: &[f64]) -> Vec<f64> {
    match score {
        Score::Sigmoid => logits.iter().map(|&l| sigmoid(l)).collect(),
        Score::SqrtSoftplus => logits.iter().map(|&l| softplus(l).sqrt()).collect(),
        Score::Softmax => {
            let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = logits.iter().map(|l| (l - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            weights.into_iter().map(|w| w / total).collect()
        }
    }
}

/// The experts of the groups that are open.
fn open_experts(groups: Option<Groups>, choice: &[f64]) -> Vec<usize> {
    let Some(Groups { groups, top_groups, by_max }) = groups else { return (0..choice.len()).collect() };
    let size = choice.len() / groups as usize;
    let score = |group: &[f64]| -> f64 {
        let best = top(if by_max { 1 } else { 2 }, group.iter().copied().enumerate());
        best.into_iter().map(|e| group[e]).sum()
    };
    let open = top(top_groups as usize, choice.chunks_exact(size).map(score).enumerate());
    open.into_iter().flat_map(|group| group * size..(group + 1) * size).collect()
}

/// The weight of each expert: of those chosen what the attributes make of their scores, as often as each is chosen; 0 of
/// all others.
fn weights(op: &Route, p: &[f64], chosen: &[usize]) -> Vec<f32> {
    let total: f64 = chosen.iter().map(|&e| p[e]).sum();
    let divisor = if op.normalize { total + op.eps } else { 1.0 };
    let mut times = vec![0.0; p.len()];
    chosen.iter().for_each(|&e| times[e] += 1.0);
    times.iter().zip(p).map(|(times, p)| (times * p / divisor * op.scale) as f32).collect()
}
