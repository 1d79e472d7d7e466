//! A whole model on the reference interpreter: against the same written out as loops over F64, and
//! against itself, however its rows are split over steps and batches.

mod common;

use common::{Draw, Weights, bits, compile, parity, run};
use std::sync::Arc;
use tranship_backend::{Backend, Chain, Input, Outputs, Reference, Segment, Step};
use tranship_ctx::{Activations, ComputeCtx};
use tranship_dtype::DType;
use tranship_program::ValueId;

const EMBED: &str = "
program embed
  tokens : index [n]
  t : [17, 32] @ \"embed\"
  return gather(t, tokens)
";
const LAYER: &str = "
program decode layer=0 ctx=24
  x   : [n, 32]
  pos : index
  k0  : [position 24, kv_head 2, head_dim 16]
  v0  : [position 24, kv_head 2, head_dim 16]
  g   : [32] @ \"norm\"
  wq  : [64, 32] @ \"q\"
  bq  : [64] @ \"q.bias\"
  wk  : [32, 32] @ \"k\"
  wv  : [32, 32] @ \"v\"
  wo  : [32, 64] @ \"o\"
  f   : [32] @ \"norm2\"
  wg  : [96, 32] @ \"gate\"
  wu  : [96, 32] @ \"up\"
  wd  : [32, 96] @ \"down\"
  h = rms_norm(x, g, eps: 1e-5)
  q = rope(linear(h, wq, bq), pos, heads: 4, dims: 16, theta: 1e4, style: half)
  k0[pos .. pos+n] = rope(linear(h, wk), pos, heads: 2, dims: 16, theta: 1e4, style: half)
  v0[pos .. pos+n] = linear(h, wv)
  a = attend(q, k0[.. pos+n], v0[.. pos+n], heads: 4, kv_heads: 2, scale: 0.25)
  y = x + linear(a, wo)
  m = rms_norm(y, f, eps: 1e-5)
  return y + linear(silu(linear(m, wg)) * linear(m, wu), wd)
";
const HEAD: &str = "
program head
  x : [n, 32]
  g : [32] @ \"out_norm\"
  w : [17, 32] @ \"embed\"
  return linear(rms_norm(x, g, eps: 1e-5), w)
";
/// The layer twice: the same weights, and caches of its own each time.
const MODEL: [&str; 4] = [EMBED, LAYER, LAYER, HEAD];
const TOKENS: [u32; 10] = [3, 16, 0, 7, 7, 11, 1, 5, 9, 2];
const VOCAB: usize = 17;

fn weights() -> Weights {
    Weights::random(
        42,
        &[
            ("embed", &[17, 32]),
            ("norm", &[32]),
            ("q", &[64, 32]),
            ("q.bias", &[64]),
            ("k", &[32, 32]),
            ("v", &[32, 32]),
            ("o", &[32, 64]),
            ("norm2", &[32]),
            ("gate", &[96, 32]),
            ("up", &[96, 32]),
            ("down", &[32, 96]),
            ("out_norm", &[32]),
        ],
    )
}

type Row = Vec<f64>;

/// The model again, in F64 throughout and one token at a time.
struct Plain<'w> {
    weights: &'w Weights,
    /// Keys and values of each layer, a row for each token.
    caches: [(Vec<Row>, Vec<Row>); 2],
}

impl Plain<'_> {
    fn weight(&self, name: &str) -> Row {
        self.weights.values(name).into_iter().map(f64::from).collect()
    }

    fn times(&self, name: &str, x: &[f64]) -> Row {
        let w = self.weight(name);
        let rows = w.len() / x.len();
        (0..rows).map(|o| (0..x.len()).map(|k| w[o * x.len() + k] * x[k]).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Row {
        let length = (x.iter().map(|v| v.powi(2)).sum::<f64>() / x.len() as f64 + 1e-5).sqrt();
        self.weight(name).iter().zip(x).map(|(g, v)| g * v / length).collect()
    }

    fn rotated(x: Row, position: usize) -> Row {
        let mut y = x.clone();
        for (i, value) in y.iter_mut().enumerate() {
            let (head, within) = (i / 16 * 16, i % 16);
            let angle = position as f64 * 1e4f64.powf(-((within % 8) as f64) / 8.0);
            let (own, other) = (x[i], x[head + (within + 8) % 16]);
            let sign = if within < 8 { -1.0 } else { 1.0 };
            *value = own * angle.cos() + sign * other * angle.sin();
        }
        y
    }

    fn token(&mut self, token: u32) -> Row {
        let x = self.weight("embed")[token as usize * 32..][..32].to_vec();
        let z = (0..2).fold(x, |x, layer| self.layer(layer, &x));
        self.times("embed", &self.norm("out_norm", &z))
    }

    fn layer(&mut self, layer: usize, x: &[f64]) -> Row {
        let position = self.caches[layer].0.len();
        let h = self.norm("norm", x);
        let q: Row = self.times("q", &h).iter().zip(self.weight("q.bias")).map(|(q, b)| q + b).collect();
        let q = Self::rotated(q, position);
        let (key, value) = (Self::rotated(self.times("k", &h), position), self.times("v", &h));
        let (keys, values) = &mut self.caches[layer];
        keys.push(key);
        values.push(value);
        let mut attended = vec![0.0; 64];
        for head in 0..4 {
            let key_head = head / 2 * 16;
            let query = &q[head * 16..][..16];
            let dot = |k: &Row| query.iter().zip(&k[key_head..]).map(|(a, b)| a * b).sum::<f64>() / 4.0;
            let scores: Row = keys.iter().map(dot).collect();
            // Each key's share, as one over the sum of its odds against all.
            let odds = |s: &f64| 1.0 / scores.iter().map(|other| (other - s).exp()).sum::<f64>();
            for (share, value) in scores.iter().map(odds).zip(&*values) {
                for d in 0..16 {
                    attended[head * 16 + d] += share * value[key_head + d];
                }
            }
        }
        let y: Row = x.iter().zip(self.times("o", &attended)).map(|(x, o)| x + o).collect();
        let m = self.norm("norm2", &y);
        let up = self.times("up", &m);
        let gated: Row =
            self.times("gate", &m).iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        y.iter().zip(self.times("down", &gated)).map(|(y, d)| y + d).collect()
    }
}

/// ‖found − wanted‖ / ‖wanted‖.
fn distance(found: &[f32], wanted: &[f64]) -> f64 {
    assert_eq!(found.len(), wanted.len());
    let error: f64 = found.iter().zip(wanted).map(|(f, w)| (f64::from(*f) - w).powi(2)).sum();
    (error / wanted.iter().map(|w| w * w).sum::<f64>()).sqrt()
}

fn logits(step: &mut dyn Step, tokens: &[u32]) -> Vec<f32> {
    let mut state = step.new_state().unwrap();
    run(step, state.as_mut(), 0, tokens.len(), Input::Tokens(tokens))
}

fn truth(weights: &Weights) -> Row {
    let mut plain = Plain { weights, caches: Default::default() };
    TOKENS.iter().flat_map(|t| plain.token(*t)).collect()
}

#[test]
fn a_model_is_what_its_loops_say() {
    let weights = weights();
    let found = logits(compile(&MODEL, &weights, &parity()).as_mut(), &TOKENS);
    let distance = distance(&found, &truth(&weights));
    assert!(distance < 1e-6, "F32 values, each rounded once: {distance}");
}

#[test]
fn narrower_policies_stay_near_and_are_not_the_same() {
    let weights = weights();
    let truth = truth(&weights);
    let exact = logits(compile(&MODEL, &weights, &parity()).as_mut(), &TOKENS);
    // BF16 keeps 8 bits of each activation, F16 caches 11, F8 caches 4; errors of a few roundings.
    for (ctx, bound) in [
        (parity().with_kv(DType::F16), 2e-3),
        (parity().with_compute(DType::BF16), 5e-2),
        (parity().with_kv(DType::F8E4M3), 2e-1),
    ] {
        let found = logits(compile(&MODEL, &weights, &ctx).as_mut(), &TOKENS);
        let distance = distance(&found, &truth);
        assert!(distance < bound, "{}: {distance}", ctx.numerics());
        assert_ne!(bits(&found), bits(&exact), "{}", ctx.numerics());
    }
}

/// The policies that splitting must not change anything under.
fn policies() -> [ComputeCtx; 4] {
    let blocks = parity().with_kv(DType::F16).with_activations(Activations::Blocks);
    [parity(), parity().with_compute(DType::BF16), parity().with_kv(DType::F8E5M2), blocks]
}

#[test]
fn however_the_rows_are_split_the_bits_are_the_same() {
    let weights = weights().stored(DType::Q8_0);
    for ctx in policies() {
        let mut step = compile(&MODEL, &weights, &ctx);
        let whole = logits(step.as_mut(), &TOKENS);
        for splits in [&[1, 9][..], &[7, 3], &[9, 1], &[1; 10], &[3, 3, 4]] {
            let mut state = step.new_state().unwrap();
            let (mut found, mut position) = (Vec::new(), 0);
            for rows in splits {
                let tokens = Input::Tokens(&TOKENS[position..position + rows]);
                found.extend(run(step.as_mut(), state.as_mut(), position, *rows, tokens));
                position += rows;
            }
            assert_eq!(bits(&found), bits(&whole), "{splits:?} under {}", ctx.numerics());
        }
    }
}

#[test]
fn sequences_of_one_batch_are_each_as_alone() {
    let weights = weights();
    let (a, b) = (&TOKENS[..6], &TOKENS[4..]);
    for ctx in policies() {
        let mut step = compile(&MODEL, &weights, &ctx);
        let (alone_a, alone_b) = (logits(step.as_mut(), a), logits(step.as_mut(), b));
        let (mut one, mut two) = (step.new_state().unwrap(), step.new_state().unwrap());
        // First a prefill of 5 and one of 2, then a decode beside the rest of the prefill.
        let mut found = (Vec::new(), Vec::new());
        for (from, to) in [((0, 0), (5, 2)), ((5, 2), (6, 6))] {
            let tokens = [&a[from.0..to.0], &b[from.1..to.1]].concat();
            let mut segments = [
                Segment { state: one.as_mut(), position: from.0, rows: to.0 - from.0, outputs: Outputs::All },
                Segment { state: two.as_mut(), position: from.1, rows: to.1 - from.1, outputs: Outputs::All },
            ];
            let mut out = Vec::new();
            step.run(&mut segments, Input::Tokens(&tokens), &mut out).unwrap();
            let (first, second) = out.split_at((to.0 - from.0) * VOCAB);
            found.0.extend_from_slice(first);
            found.1.extend_from_slice(second);
        }
        assert_eq!(bits(&found.0), bits(&alone_a), "{}", ctx.numerics());
        assert_eq!(bits(&found.1), bits(&alone_b), "{}", ctx.numerics());
    }
}

#[test]
fn outputs_are_none_the_last_row_or_all() {
    let mut step = compile(&MODEL, &weights(), &parity());
    let all = logits(step.as_mut(), &TOKENS);
    for (outputs, wanted) in
        [(Outputs::None, &[][..]), (Outputs::Last, &all[9 * VOCAB..]), (Outputs::All, &all)]
    {
        let mut state = step.new_state().unwrap();
        let mut out = vec![0.5];
        let segment = Segment { state: state.as_mut(), position: 0, rows: 10, outputs };
        step.run(&mut [segment], Input::Tokens(&TOKENS), &mut out).unwrap();
        assert_eq!(out[0], 0.5, "what was there stays");
        assert_eq!(bits(&out[1..]), bits(wanted), "{outputs:?}");
        // The state advanced in each case: the next row is the same.
        let next = run(step.as_mut(), state.as_mut(), 10, 1, Input::Tokens(&[4]));
        let mut other = step.new_state().unwrap();
        run(step.as_mut(), other.as_mut(), 0, 10, Input::Tokens(&TOKENS));
        assert_eq!(bits(&next), bits(&run(step.as_mut(), other.as_mut(), 10, 1, Input::Tokens(&[4]))));
    }
}

#[test]
fn rows_of_a_state_carry_a_sequence_into_another_step() {
    // What a hand-off does: the valid rows alone, read and written at the logical edge, and a decode program that
    // declares its tensors in another order.
    let weights = weights();
    let gain = "  g   : [32] @ \"norm\"\n";
    let reordered = LAYER.replace(gain, "").replace("  x   :", &format!("{gain}  x   :"));
    assert_ne!(reordered, LAYER);
    let mut prefill = compile(&MODEL, &weights, &parity());
    let mut decode = compile(&[EMBED, &reordered, &reordered, HEAD], &weights, &parity());
    let mut source = prefill.new_state().unwrap();
    run(prefill.as_mut(), source.as_mut(), 0, 9, Input::Tokens(&TOKENS[..9]));
    let mut target = decode.new_state().unwrap();
    for tensor in 0..4 {
        target.write(tensor, 0, &source.read(tensor, 0..9).unwrap()).unwrap();
    }
    let whole = logits(prefill.as_mut(), &TOKENS);
    let found = run(decode.as_mut(), target.as_mut(), 9, 1, Input::Tokens(&TOKENS[9..]));
    assert_eq!(bits(&found), bits(&whole[9 * VOCAB..]));
    // And the prefill's own state serves the decode step.
    let found = run(decode.as_mut(), source.as_mut(), 9, 1, Input::Tokens(&TOKENS[9..]));
    assert_eq!(bits(&found), bits(&whole[9 * VOCAB..]));
}

#[test]
fn a_prefix_of_a_program_gives_its_value() {
    let weights = weights();
    let layer = common::typed(LAYER, &weights, &parity());
    let y = layer.graph().values.iter().position(|v| v.name == "y").unwrap();
    let prefix = Chain::new(vec![Arc::new(layer.until(ValueId(y)))], 4);
    let mut step = Reference::new().compile(&prefix, &weights.map()).unwrap();
    let mut state = step.new_state().unwrap();
    let x = Draw(1).values(64);
    let found = run(step.as_mut(), state.as_mut(), 0, 2, Input::Rows(&x));
    // The same, authored: without the lines of the feed-forward part.
    let after = ["  f   :", "  wg  :", "  wu  :", "  wd  :", "  m = ", "  return"];
    let lines = LAYER.lines().filter(|l| !after.iter().any(|a| l.starts_with(a)));
    let text: String = lines.map(|l| l.replace("  y = ", "  return ") + "\n").collect();
    assert_eq!(found.len(), 64);
    assert_eq!(bits(&found), bits(&common::once(&text, &weights, 0, 2, &x)));
}
