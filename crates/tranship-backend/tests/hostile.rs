//! What lifting accepts, no backend panics on: programs with every operation and every form of rows, changed at random in
//! their numbers and names, are compiled and run where they still lift. What is computed for a row must not depend on
//! how the rows are split into steps, whatever the program.

mod common;

use common::{Draw, bits, parity};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tranship_backend::{
    Backend, BackendError, Chain, Input, MapWeights, Outputs, Reference, Segment, State, Step,
};
use tranship_dtype::DType;
use tranship_program::{Action, Graph, Origin, Program, Rows};
use tranship_tensor::Tensor;

const ATTEND: &str = "
program decode layer=0 ctx=8
  x   : [n, 8]
  pos : index
  k   : [8, 4]
  v   : [3, 4]
  r   : [3, 4]
  s   : [4] @ \"s\"
  g   : [2] @ \"g\"
  w   : [16, 4] @ \"w\"
  q = rope(rms_norm(x, g, eps: 0, heads: 4, offset: 1), pos, heads: 4, dims: 2, theta: 10, style: half, back: 2)
  k[pos .. pos+n] = slice(l2_norm(x, heads: 2, eps: 1), heads: 2, from: 1, to: 3)
  a = attend(q, k[.. pos+n], k[.. pos+n], s, heads: 4, kv_heads: 2, scale: 1, window: 4)
  vv = join(v[pos-3 .. pos], slice(x, to: 4))
  rr = join(r[pos-3 .. pos], slice(x, from: 4, to: 8))
  v[pos+n-3 .. pos+n] = slice(x, to: 4)
  r[pos+n-3 .. pos+n] = slice(x, from: 4, to: 8)
  b = attend(x, rr, vv, heads: 4, kv_heads: 2, scale: 1, window: 4, softcap: 2)
  c = latent_attend(tile(x, times: 2), k[.. pos+n], k[.. pos+n], w, heads: 2, key_dim: 4, scale: 1)
  return c + a + b * tile(slice(sigmoid(a), to: 2), times: 4)
";

const MEMORIES: &str = "
program decode layer=0
  x   : [n, 8]
  pos : index
  h   : [3, 8]
  s   : [2, 2, 2]
  t   : [2, 2, 2]
  u   : [2, 2, 2]
  w   : [8, 4] @ \"w\"
  a   : [2] @ \"a\"
  b   : [4] @ \"b\"
  z   : [8] @ \"z\"
  hh = join(h[pos-3 .. pos], x)
  h[pos+n-3 .. pos+n] = x
  y = silu(conv(hh, w, z))
  k = slice(y, to: 4)
  v = slice(y, from: 4, to: 8)
  g = log_decay(k, a, b)
  d, s[..] = gated_delta(s[..], k, k, v, g, sigmoid(slice(x, to: 2)), heads: 2, key_heads: 2, scale: 1)
  e, t[..] = decayed_linear(t[..], k, d, v, heads: 2, rate: 1)
  f, u[..] = state_space(u[..], e, k, v, softplus(slice(x, to: 2)), a, a, heads: 2, groups: 2)
  return f * gelu(e) + clamp(d, min: -2, max: 2)
";

const EXPERTS: &str = "
program decode layer=0
  x  : [n, 4]
  w  : [6, 4] @ \"w\"
  b  : [6] @ \"b\"
  g  : [6, 3, 4] @ \"g\"
  u  : [6, 3, 4] @ \"u\"
  d  : [6, 4, 3] @ \"d\"
  l  : [8, 4] @ \"l\"
  e  : [8] @ \"e\"
  k  : [3] @ \"k\"
  r = route(x, w, b, top_k: 2, score: sigmoid, bias: choice, groups: 3, top_groups: 2, normalize: yes)
  y = experts(x, r, g, u, d, top_k: 2, act: silu, limit: 1)
  m = stream_gates(linear(x, l), e, k, streams: 2, iterations: 2, eps: 0.1)
  z = stream_expand(tile(x, times: 2), y, m, streams: 2)
  return stream_collapse(z, m, streams: 2)
";

const COMPRESSED: &str = "
program decode layer=0 ctx=9
  x   : [n, 8]
  pos : index
  f   : [3, 4]
  g   : [3, 4]
  c   : [4, 2]
  v   : [2, 2]
  b   : [2, 4] @ \"b\"
  s   : [4] @ \"s\"
  kv = slice(x, to: 4)
  ff = join(f[pos-3 .. pos], kv)
  gg = join(g[pos-3 .. pos], slice(x, from: 4, to: 8))
  vv = join(v[pos-2 .. pos], slice(x, to: 2))
  f[pos+n-3 .. pos+n] = kv
  g[pos+n-3 .. pos+n] = slice(x, from: 4, to: 8)
  v[pos+n-2 .. pos+n] = slice(x, to: 2)
  c[pos/2 .. (pos+n)/2] = compress(ff, gg, b, rate: 2, overlap: yes)
  p = choose(x, c[.. (pos+n)/2], kv, heads: 4, top_k: 2, rate: 2, scale: 1)
  return compressed_attend(x, vv, c[.. (pos+n)/2], s, p, heads: 4, scale: 1, window: 3, rate: 2)
";

/// A text in pieces of one word or number, or of what is between: every second piece may be changed.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        quoted ^= c == '"';
        let word = !quoted && (c.is_ascii_alphanumeric() || c == '_');
        if word != pieces.len().is_multiple_of(2) {
            pieces.push(String::new());
        }
        pieces.last_mut().unwrap().push(c);
    }
    pieces
}

/// The text with one to three of its words and numbers in the place of another.
fn changed(text: &str, draw: &mut Draw) -> String {
    let mut below = |n: usize| ((draw.values(1)[0] + 1.0) / 2.0 * n as f32) as usize % n;
    let mut pieces = pieces(text);
    for _ in 0..1 + below(3) {
        let number = |p: &str| p.parse::<u64>().is_ok();
        let at = below(pieces.len() / 2) * 2 + 1;
        let of: Vec<String> =
            pieces.iter().skip(1).step_by(2).filter(|p| number(p) == number(&pieces[at])).cloned().collect();
        let same = pieces[at].clone();
        let to = if number(&same) {
            ["1", "2", "3", "4", "6", "8"][below(6)].to_owned()
        } else {
            of[below(of.len())].clone()
        };
        // Half of the time every place of the same word or number goes with it, so that shapes still fit.
        let all = below(2) == 0;
        for (i, piece) in pieces.iter_mut().enumerate() {
            if i == at || (all && i % 2 == 1 && *piece == same) {
                *piece = to.clone();
            }
        }
    }
    pieces.concat()
}

/// Weights of the shapes that the program says.
fn weights(graph: &Graph) -> MapWeights {
    let mut map = MapWeights::default();
    for (_, value) in graph.declared() {
        if let Origin::Weight(name) = &value.origin {
            let sizes: Vec<usize> = std::iter::once(value.shape.fixed_rows().unwrap() as usize)
                .chain((value.shape.0.len() > 1).then(|| value.shape.cols() as usize))
                .collect();
            let values = Draw(7).values(sizes.iter().product());
            let shape: Vec<usize> = match value.shape.0.len() {
                3 => value
                    .shape
                    .to_string()
                    .trim_matches(['[', ']'])
                    .split(", ")
                    .map(|s| s.parse().unwrap())
                    .collect(),
                _ => sizes,
            };
            map.insert(name.clone(), Tensor::from_f32(&shape, &values).unwrap());
        }
    }
    map
}

fn step(
    step: &mut dyn Step,
    state: &mut dyn State,
    position: usize,
    x: &[f32],
    width: usize,
) -> Result<Vec<f32>, BackendError> {
    let mut out = Vec::new();
    let segment = Segment { state, position, rows: x.len() / width, outputs: Outputs::All };
    step.run(&mut [segment], Input::Rows(x), &mut out)?;
    Ok(out)
}

/// Compiles and runs a program, whole and split; whether it ran.
fn exercise(graph: &Graph, kv: DType) -> bool {
    let backend = Reference::new();
    let ctx = parity().with_kv(kv).with_state(kv);
    let Ok(typed) = ctx.typed(graph, &|_| Some(DType::F32), &backend.caps().accepts) else { return false };
    let chain = Chain::new(vec![Arc::new(typed)], 8);
    let Ok(mut compiled) = backend.compile(&chain, &weights(graph)) else { return false };
    let limits = chain.limits();
    let (rows, width) = (limits.ctx.unwrap_or(9).min(9), limits.width_in.unwrap_or(1));
    let x = Draw(11).values(rows * width);
    let mut state = compiled.new_state().unwrap();
    let Ok(whole) = step(compiled.as_mut(), state.as_mut(), 0, &x, width) else { return false };
    assert_eq!(whole.len(), rows * limits.width_out);
    // A memory that is written as a whole advances by steps, not by rows.
    let by_steps = |n: &tranship_program::Node| matches!(n.action, Action::Write { rows: Rows::All, .. });
    let by_rows = !graph.nodes.iter().any(by_steps);
    for split in 1..rows {
        let mut state = compiled.new_state().unwrap();
        let mut found = step(compiled.as_mut(), state.as_mut(), 0, &x[..split * width], width).unwrap();
        found.extend(step(compiled.as_mut(), state.as_mut(), split, &x[split * width..], width).unwrap());
        assert!(!by_rows || bits(&found) == bits(&whole), "split at {split} of {rows}");
    }
    // A state that is not of its position, as after a hand-off gone wrong, gives numbers without meaning.
    for position in [rows - 1, 1 << 40, usize::MAX - 1] {
        let _ = step(compiled.as_mut(), state.as_mut(), position, &x[..width], width);
    }
    true
}

#[test]
fn a_value_without_memory_is_an_error() {
    let text = "
program p
  x : [n, 1]
  return slice(tile(tile(x, times: 4294967296), times: 1073741824), to: 1)
";
    let graph = Program::parse(text).unwrap().lift().unwrap();
    let backend = Reference::new();
    let typed = parity().typed(&graph, &|_| None, &backend.caps().accepts).unwrap();
    let mut compiled =
        backend.compile(&Chain::new(vec![Arc::new(typed)], 1), &MapWeights::default()).unwrap();
    let mut state = compiled.new_state().unwrap();
    let error = step(compiled.as_mut(), state.as_mut(), 0, &[1.0], 1).unwrap_err();
    let wanted = "reference: no memory for `return.2` [n, 4611686018427387904] at 1 rows";
    assert_eq!(error.to_string(), wanted);
}

#[test]
fn what_lifts_does_not_panic_and_does_not_depend_on_splits() {
    for text in [ATTEND, MEMORIES, EXPERTS, COMPRESSED] {
        let graph = Program::parse(text).unwrap().lift().unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert!(exercise(&graph, DType::F32), "{text}");
        let (mut draw, mut lifted, mut ran) = (Draw(1), 0, 0);
        for _ in 0..2500 {
            let text = changed(text, &mut draw);
            let Ok(graph) = Program::parse(&text).and_then(|p| p.lift()) else { continue };
            lifted += 1;
            let kv = if lifted % 2 == 0 { DType::F32 } else { DType::F16 };
            match catch_unwind(AssertUnwindSafe(|| exercise(&graph, kv))) {
                Ok(done) => ran += usize::from(done),
                Err(_) => panic!("a panic on\n{text}"),
            }
        }
        println!("{lifted} lifted, {ran} ran");
        assert!(ran >= 100, "only {ran} of {lifted} programs that lift are run");
    }
}
