//! The time to read and to lift the programs of a model of 100 layers, prefill and decode, and to hold each pair to
//! the same state: `cargo run --release -p tranship-program --example lift_100_layers`.

use std::time::{Duration, Instant};
use tranship_program::{Graph, Program, ProgramError, same_state};

const LAYERS: usize = 100;
const RUNS: usize = 21;

/// A layer of the Llama family, of the sizes of an 8-billion-parameter model.
fn layer(phase: &str, k: usize) -> String {
    format!(
        r#"program {phase} layer={k} ctx=8192
  x         : [n, 4096]  # step input
  pos       : index
  k{k}      : [position 8192, kv_head 8, head_dim 128]
  v{k}      : [position 8192, kv_head 8, head_dim 128]
  attn_norm : [4096] @ "blk.{k}.attn_norm.weight"
  wq        : [4096, 4096] @ "blk.{k}.attn_q.weight"
  wk        : [1024, 4096] @ "blk.{k}.attn_k.weight"
  wv        : [1024, 4096] @ "blk.{k}.attn_v.weight"
  wo        : [4096, 4096] @ "blk.{k}.attn_output.weight"
  ffn_norm  : [4096] @ "blk.{k}.ffn_norm.weight"
  gate      : [14336, 4096] @ "blk.{k}.ffn_gate.weight"
  up        : [14336, 4096] @ "blk.{k}.ffn_up.weight"
  down      : [4096, 14336] @ "blk.{k}.ffn_down.weight"

  h = rms_norm(x, attn_norm, eps: 1e-5)
  q = rope(linear(h, wq), pos, heads: 32, dims: 128, theta: 5e5, scaling: llama3, factor: 8, low: 1, high: 4, original: 8192)
  k{k}[pos .. pos+n] = rope(linear(h, wk), pos, heads: 8, dims: 128, theta: 5e5, scaling: llama3, factor: 8, low: 1, high: 4, original: 8192)
  v{k}[pos .. pos+n] = linear(h, wv)
  a = attend(q, k{k}[.. pos+n], v{k}[.. pos+n], heads: 32, kv_heads: 8, scale: 0.08838834764831845)
  y = x + linear(a, wo)
  f = rms_norm(y, ffn_norm, eps: 1e-5)
  return y + linear(silu(linear(f, gate)) * linear(f, up), down)
"#
    )
}

/// The median and the least, in milliseconds.
fn summary(mut times: Vec<Duration>) -> String {
    times.sort();
    let [median, least] = [times[times.len() / 2], times[0]].map(|time| time.as_secs_f64() * 1e3);
    format!("{median:8.3} ms, at best {least:.3} ms")
}

fn main() -> Result<(), ProgramError> {
    let texts: Vec<(String, String)> =
        (0..LAYERS).map(|k| (layer("prefill", k), layer("decode", k))).collect();
    let (mut parse, mut lift) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let start = Instant::now();
        let read = |(a, b): &(String, String)| Ok((Program::parse(a)?, Program::parse(b)?));
        let programs = texts.iter().map(read).collect::<Result<Vec<_>, ProgramError>>()?;
        parse.push(start.elapsed());
        let start = Instant::now();
        let lifted = |(a, b): &(Program, Program)| Ok((a.lift()?, b.lift()?));
        let graphs = programs.iter().map(lifted).collect::<Result<Vec<(Graph, Graph)>, ProgramError>>()?;
        graphs.iter().try_for_each(|(prefill, decode)| same_state(prefill, decode))?;
        lift.push(start.elapsed());
    }
    let bytes: usize = texts.iter().map(|(a, b)| a.len() + b.len()).sum();
    println!("{LAYERS} layers, prefill and decode, {bytes} bytes; the median of {RUNS} runs");
    println!("parse {}", summary(parse));
    println!("lift  {}", summary(lift));
    Ok(())
}
