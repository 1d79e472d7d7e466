//! `candle-peer MODEL PROMPT TOKENS`: prefill and decode of a quantized Llama file by candle, as one JSON object.
//!
//! A prompt is run in one go, and tokens one at a time after an empty context, each with its logits; once before
//! without a clock. Threads are the environment's `RAYON_NUM_THREADS`.
#![forbid(unsafe_code)]

use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use std::error::Error;
use std::fs::File;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match measure(&arguments) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("candle-peer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &[String]) -> Result<String, Box<dyn Error>> {
    let [path, prompt, tokens] = arguments else { return Err("wanted MODEL PROMPT TOKENS".into()) };
    let (prompt, tokens): (usize, usize) = (prompt.parse()?, tokens.parse()?);
    let mut file = File::open(path)?;
    let content = Content::read(&mut file)?;
    let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    speed(&mut model, &[8])?;
    let prefill = if prompt > 0 { Some(speed(&mut model, &[prompt])?) } else { None };
    let decode = if tokens > 0 { Some(speed(&mut model, &vec![1; tokens])?) } else { None };
    let figure = |value: Option<f64>| value.map_or("null".to_owned(), |v| v.to_string());
    let note = "candle 0.11.1, target-cpu=native";
    Ok(format!(
        "{{\"prefill_tps\": {}, \"decode_tps\": {}, \"note\": \"{note}\"}}",
        figure(prefill),
        figure(decode)
    ))
}

/// Tokens a second over steps of so many tokens each, from an empty context.
fn speed(model: &mut ModelWeights, steps: &[usize]) -> Result<f64, Box<dyn Error>> {
    let mut position = 0;
    let start = Instant::now();
    for count in steps {
        // Any tokens of any vocabulary.
        let ids: Vec<u32> = (position..position + count).map(|i| (i * 7 % 251) as u32).collect();
        let logits = model.forward(&Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?, position)?;
        logits.flatten_all()?.get(0)?.to_scalar::<f32>()?;
        position += count;
    }
    Ok(position as f64 / start.elapsed().as_secs_f64())
}
