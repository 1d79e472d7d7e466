//! What sealing costs: a hand-off of 1 GiB written and read, beside a plain copy of the same bytes.
//!
//! Ways alternate in each round; the figures are medians, and only their ratios count. All files are in the page cache.
//! `cargo bench -p tranship-handoff --bench throughput [-- DIRECTORY]`

use std::alloc::{GlobalAlloc, Layout, System};
use std::borrow::Cow;
use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tranship_ctx::{ComputeCtx, Device};
use tranship_handoff::{
    Carried, Contract, Expect, Handoff, Opening, Progress, Refusal, StreamWriter, write_file,
};
use tranship_model::ModelSpec;

const ROUNDS: usize = 5;
const POSITION: u64 = 32768;

/// Counts bytes that are held, and the most that were.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn held(size: usize) {
    MOST.fetch_max(HELD.fetch_add(size, Ordering::Relaxed) + size, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        held(layout.size());
        // SAFETY: the caller's own obligations.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        held(layout.size());
        // SAFETY: the caller's own obligations.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's own obligations.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Outcome = Result<(), Box<dyn Error>>;

/// A way to move the bytes, and what it took.
struct Way<'a> {
    name: &'static str,
    run: Box<dyn Fn() -> Outcome + 'a>,
    seconds: Vec<f64>,
    most: usize,
}

/// 1 GiB: 16 layers of 8 key heads of 64 in F32, as a model of a billion parameters has them, at 32,768 tokens, and
/// caches in F16.
fn contract() -> Result<Contract, Box<dyn Error>> {
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "rms_norm_eps": 1e-5,
        "vocab_size": 128_256, "hidden_act": "silu", "max_position_embeddings": 131_072,
        "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false, "rope_theta": 500_000.0
    });
    let policy = ComputeCtx::parity(Device::of("reference")).with_kv(tranship_dtype::DType::F16);
    Ok(Contract::of(&ModelSpec::from_config(&config)?, POSITION + 1, &policy, None)?)
}

/// Rows of a tensor: F16 numbers, none of them NaN.
fn rows(carried: &Carried) -> Vec<u8> {
    let bytes = carried.bytes(carried.valid_rows(POSITION)).unwrap_or(0) as usize;
    let mut state = carried.layer as u32 + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as u16 & 0xbbff
    };
    let pattern: Vec<u8> = (0..1 << 15).flat_map(|_| next().to_le_bytes()).collect();
    pattern.iter().copied().cycle().take(bytes).collect()
}

fn streamed(handoff: &Handoff, out: impl Write) -> Result<(), Refusal> {
    let mut stream = StreamWriter::open(out, handoff.contract().clone(), handoff.progress()?)?;
    for layer in 0..16 {
        let tensors = handoff.contract().of_layer(layer);
        let rows: Vec<&[u8]> = tensors.filter_map(|c| handoff.tensor(&c.name)).map(|t| t.bytes()).collect();
        stream.layer(layer, &rows)?;
    }
    stream.close(None).map(|_| ())
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let folder = arguments.first().map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = folder.join(format!("tranship-throughput-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let measured = measure(&folder);
    fs::remove_dir_all(&folder)?;
    measured
}

fn measure(folder: &Path) -> Outcome {
    let contract = contract()?;
    let progress = Progress { position: POSITION, ..Progress::start() };
    let path = |name: &str| folder.join(name);
    write_file(&path("there"), &contract, progress, |_, c| Ok::<_, Refusal>(Cow::Owned(rows(c))))?;
    let handoff = Handoff::read(&path("there"))?;
    let plain: Vec<&[u8]> = handoff.state().iter().map(|t| t.bytes()).collect();
    let bytes = handoff.bytes();
    println!("a hand-off of {:.2} GiB in {} tensors", bytes as f64 / f64::from(1 << 30), plain.len());

    let copied = || -> Outcome { Ok(fs::copy(path("there"), path("copy")).map(drop)?) };
    let written_plain = || -> Outcome {
        let mut file = fs::File::create(path("plain"))?;
        Ok(plain.iter().try_for_each(|part| file.write_all(part))?)
    };
    let written = || -> Outcome {
        let of = |at: usize| handoff.state()[at].bytes();
        Ok(write_file(&path("sealed"), &contract, progress, |at, _| Ok::<_, Refusal>(Cow::Borrowed(of(at))))
            .map(drop)?)
    };
    let read_plain = || -> Outcome {
        black_box(fs::read(path("there"))?);
        Ok(())
    };
    let read = || -> Outcome {
        let read = Handoff::read(&path("there"))?;
        Ok(contract.check(black_box(&read))?)
    };
    let received = || -> Outcome {
        let mut incoming =
            Opening::read(fs::File::open(path("there"))?)?.under(&contract, Expect::default())?;
        while let Some(tensor) = incoming.next_tensor()? {
            black_box(&tensor);
            incoming.recycle(tensor.1);
        }
        Ok(incoming.finish().map(drop)?)
    };
    let parts = &plain;
    let piped_plain = || -> Outcome {
        let (mut input, mut output) = std::io::pipe()?;
        std::thread::scope(|scope| -> Outcome {
            let sending = scope.spawn(move || parts.iter().try_for_each(|part| output.write_all(part)));
            let mut block = vec![0; 4 << 20];
            while input.read(&mut block)? > 0 {
                black_box(&block);
            }
            Ok(sending.join().map_err(|_| "the sender ended early")??)
        })
    };
    let piped = || -> Outcome {
        let (input, output) = std::io::pipe()?;
        std::thread::scope(|scope| -> Outcome {
            let sending = scope.spawn(|| streamed(&handoff, output));
            let mut incoming = Opening::read(input)?.under(&contract, Expect::default())?;
            while let Some(tensor) = incoming.next_tensor()? {
                black_box(&tensor);
                incoming.recycle(tensor.1);
            }
            incoming.finish()?;
            Ok(sending.join().map_err(|_| "the sender ended early")??)
        })
    };
    let way = |name, run| Way { name, run, seconds: Vec::new(), most: 0 };
    let mut ways = [
        way("copied, by the system", Box::new(copied) as Box<dyn Fn() -> Outcome>),
        way("written, plain", Box::new(written_plain)),
        way("written and sealed", Box::new(written)),
        way("read, plain", Box::new(read_plain)),
        way("read, seal and values held", Box::new(read)),
        way("read by tensors, held", Box::new(received)),
        way("through a pipe, plain", Box::new(piped_plain)),
        way("streamed through a pipe, held", Box::new(piped)),
    ];
    for _ in 0..ROUNDS {
        for way in &mut ways {
            // Each writes a file that is not there: what a file system does about one that is replaced is not what is asked.
            for name in ["copy", "plain", "sealed"] {
                let _ = fs::remove_file(path(name));
            }
            let before = HELD.load(Ordering::Relaxed);
            MOST.store(before, Ordering::Relaxed);
            let start = Instant::now();
            (way.run)()?;
            way.seconds.push(start.elapsed().as_secs_f64());
            way.most = way.most.max(MOST.load(Ordering::Relaxed) - before);
        }
    }
    println!("{:30} {:>9} {:>9} {:>14}", "", "seconds", "GiB/s", "memory, GiB");
    for way in &mut ways {
        way.seconds.sort_by(f64::total_cmp);
        let (median, gib) = (way.seconds[ROUNDS / 2], f64::from(1 << 30));
        let rate = bytes as f64 / gib / median;
        println!("{:30} {median:>9.3} {rate:>9.2} {:>14.3}", way.name, way.most as f64 / gib);
    }
    Ok(())
}
