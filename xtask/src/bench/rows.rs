//! What the suite measures: the files, the runs of both programs, and the rows of the table with their targets.

use super::measure::Measured;

/// One run of each program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The file, by its name in the suite's folder.
    pub file: String,
    /// Tokens that are prefilled.
    pub prompt: u32,
    /// Tokens that are decoded.
    pub tokens: u32,
    /// Tokens in the context before.
    pub depth: u32,
    /// Sequences that are decoded together. Others than 1 are our program's alone: `llama-bench` has one.
    pub sequences: u32,
    /// Threads.
    pub threads: u32,
    /// Whether candle runs it too.
    pub candle: bool,
    /// Whether the machine's limits are measured after ours.
    pub limits: bool,
}

/// What is read off a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Prefilled tokens a second.
    Prefill,
    /// Decoded tokens a second, with the share that their weights' bytes are of what the machine reads.
    Decode,
    /// The same, with the bytes of what is carried too.
    DecodeAll,
    /// Milliseconds to the first logits: of ours from its start; of the peer those of its smallest run.
    FirstToken,
    /// Milliseconds of the whole run.
    Wall,
    /// The most memory.
    Memory,
    /// Operations in a second of an F32 product of matrices, with their share of the machine's.
    Matmul,
}

impl Quantity {
    /// The value of a run of ours or of a peer.
    pub fn of(self, run: &Measured) -> Option<f64> {
        match self {
            Quantity::Prefill => run.prefill_tps,
            Quantity::Decode | Quantity::DecodeAll => run.decode_tps,
            Quantity::FirstToken => Some(run.first_token_ms.unwrap_or(run.wall_ms)),
            Quantity::Wall => Some(run.wall_ms),
            Quantity::Memory => run.peak_rss_bytes,
            Quantity::Matmul => run.limits.and_then(|l| l.f32_matmul_ops),
        }
    }

    /// The share of the machine's limit that a run of ours comes to.
    pub fn share(self, run: &Measured) -> Option<f64> {
        let limits = run.limits?;
        match self {
            Quantity::Decode => Some(run.weight_bytes? * run.decode_tps? / limits.read_bytes),
            Quantity::DecodeAll => {
                Some((run.weight_bytes? + run.carried_bytes?) * run.decode_tps? / limits.read_bytes)
            }
            Quantity::Matmul => Some(limits.f32_matmul_ops? / limits.f32_ops),
            _ => None,
        }
    }

    /// A value for a person.
    pub fn shown(self, value: f64) -> String {
        match self {
            Quantity::Prefill | Quantity::Decode | Quantity::DecodeAll => format!("{value:.1}"),
            Quantity::FirstToken | Quantity::Wall => format!("{value:.0} ms"),
            Quantity::Memory => format!("{:.0} MB", value / 1e6),
            Quantity::Matmul => format!("{:.0} GFLOP/s", value / 1e9),
        }
    }
}

/// What must be true of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Ours over the peer's is at least this.
    Ratio(f64),
    /// Ours over the peer's is at most this: of what should be little.
    RatioAtMost(f64),
    /// Ours is at most this.
    AtMost(f64),
    /// Ours is at least this many times that of the run that the row is set beside.
    Times(f64),
    /// The share of the machine's limit is at least this.
    Share(f64),
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is.
    pub title: String,
    /// The run that it is read off.
    pub run: usize,
    /// The run that it is divided by, for rows that say how many times one is the other.
    pub over: Option<usize>,
    /// What is read.
    pub quantity: Quantity,
    /// What must be true, all of it.
    pub targets: Vec<Target>,
}

/// Sizes that the whole suite takes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Tokens that are prefilled.
    pub prompt: u32,
    /// Tokens that are decoded.
    pub tokens: u32,
    /// Tokens of a long context.
    pub long: u32,
    /// Threads.
    pub threads: u32,
}

/// All runs and rows.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The runs, none twice.
    pub runs: Vec<Run>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// The file that most single figures are of: the only real one.
pub const REAL: &str = "smollm2-Q4_1";

/// A file, and how many times as fast as the peer it must be prefilled and decoded.
struct Wanted {
    file: &'static str,
    prefill: Option<f64>,
    decode: Option<f64>,
    share: Option<f64>,
}

const fn wanted(file: &'static str, prefill: f64, decode: f64) -> Wanted {
    Wanted { file, prefill: Some(prefill), decode: Some(decode), share: None }
}

const fn close(file: &'static str, prefill: f64, decode: f64) -> Wanted {
    Wanted { file, prefill: Some(prefill), decode: Some(decode), share: Some(0.8) }
}

const fn decoded(file: &'static str, decode: f64) -> Wanted {
    Wanted { file, prefill: None, decode: Some(decode), share: None }
}

/// The files in the order of the table.
const FILES: [Wanted; 30] = [
    close(REAL, 3.5, 1.6),
    close("smollm2-Q4_0", 1.8, 1.35),
    close("smollm2-Q8_0", 1.8, 1.2),
    close("smollm2-Q4_K_M", 2.4, 1.7),
    close("smollm2-BF16", 1.3, 1.0),
    close("smollm2-F16", 1.3, 1.0),
    Wanted { file: "smollm2-F32", prefill: None, decode: None, share: None },
    wanted("smollm2-Q5_K_M", 1.0, 1.0),
    wanted("smollm2-Q6_K", 1.0, 1.0),
    wanted("smollm2-Q3_K_M", 1.0, 1.0),
    wanted("smollm2-Q2_K", 1.0, 1.0),
    wanted("smollm2-Q5_0", 1.0, 1.0),
    wanted("smollm2-Q5_1", 1.0, 1.0),
    wanted("smollm2-IQ4_NL", 1.0, 1.0),
    wanted("smollm2-IQ4_XS", 1.0, 1.0),
    wanted("smollm2-MXFP4", 1.0, 1.0),
    wanted("dense-Q4_K", 1.0, 1.0),
    wanted("dense-Q5_K", 1.0, 1.0),
    wanted("dense-Q6_K", 1.0, 1.0),
    wanted("dense-Q3_K", 1.0, 1.0),
    wanted("dense-Q2_K", 1.0, 1.0),
    wanted("dense-IQ4_XS", 1.0, 1.0),
    wanted("dense-MXFP4", 1.0, 1.0),
    decoded("experts-Q4_K_M", 1.2),
    decoded("experts-Q8_0", 1.2),
    decoded("experts-BF16", 1.2),
    decoded("delta-Q4_K_M", 1.2),
    decoded("delta-Q8_0", 1.2),
    decoded("memories-Q4_K_M", 1.5),
    decoded("memories-Q8_0", 1.5),
];

/// Sequences of a batch.
const BATCH: u32 = 8;

impl Plan {
    /// The suite, of rows whose title contains one of the words, or of all where there are none.
    pub fn of(sizes: Sizes, only: &[String]) -> Plan {
        let mut plan = Plan::default();
        for wanted in &FILES {
            plan.file(sizes, wanted);
        }
        plan.long(sizes);
        plan.scaling(sizes);
        plan.first(sizes);
        if !only.is_empty() {
            plan.rows.retain(|row| only.iter().any(|word| row.title.contains(word.as_str())));
        }
        plan.without_unread_runs()
    }

    /// The number of a run, which is added where it is not there.
    fn run(&mut self, run: Run) -> usize {
        if let Some(at) = self.runs.iter().position(|r| *r == run) {
            return at;
        }
        self.runs.push(run);
        self.runs.len() - 1
    }

    fn row(&mut self, title: String, run: usize, quantity: Quantity, targets: Vec<Target>) {
        self.rows.push(Row { title, run, over: None, quantity, targets });
    }

    fn file(&mut self, sizes: Sizes, wanted: &Wanted) {
        let run = self.run(plain(wanted.file, sizes));
        let ratio = |times: Option<f64>| times.map(Target::Ratio);
        let targets: Vec<Target> = ratio(wanted.prefill).into_iter().collect();
        self.row(format!("{} prefill {}", wanted.file, sizes.prompt), run, Quantity::Prefill, targets);
        let targets = ratio(wanted.decode).into_iter().chain(wanted.share.map(Target::Share)).collect();
        // Of the delta rule, what is carried is no small part of what a token reads and writes.
        let recurrent = ["delta-", "memories-"].iter().any(|of| wanted.file.starts_with(of));
        let decode = if recurrent { Quantity::DecodeAll } else { Quantity::Decode };
        self.row(format!("{} decode {}", wanted.file, sizes.tokens), run, decode, targets);
    }

    /// A long context: what its bytes cost is 1 / 1.3 of the time at least.
    fn long(&mut self, sizes: Sizes) {
        let plain = Run { candle: false, ..plain(REAL, sizes) };
        let depth = sizes.long.saturating_sub(sizes.tokens);
        let run = self.run(Run { prompt: 0, depth, ..plain.clone() });
        let title = format!("{REAL} decode {} after {depth}", sizes.tokens);
        self.row(title, run, Quantity::DecodeAll, vec![Target::Share(1.0 / 1.3)]);
        let run = self.run(Run { prompt: sizes.long, tokens: 0, limits: false, ..plain });
        self.row(format!("{REAL} prefill {}", sizes.long), run, Quantity::Prefill, vec![Target::Ratio(1.0)]);
    }

    /// Sequences and threads.
    fn scaling(&mut self, sizes: Sizes) {
        for file in [REAL, "smollm2-Q4_K_M"] {
            let plain = Run { candle: false, limits: false, ..plain(file, sizes) };
            let one = self.run(Run { prompt: 0, ..plain.clone() });
            let run = self.run(Run { prompt: 0, sequences: BATCH, ..plain.clone() });
            self.rows.push(Row {
                title: format!("{file} decode, {BATCH} sequences over one"),
                run,
                over: Some(one),
                quantity: Quantity::Decode,
                targets: vec![Target::Times(4.0)],
            });
            if sizes.threads < 2 {
                continue;
            }
            let prompts = |threads| Run { tokens: 0, threads, ..plain.clone() };
            let (one, all) = (self.run(prompts(1)), self.run(prompts(sizes.threads)));
            self.rows.push(Row {
                title: format!("{file} prefill, {} threads over one", sizes.threads),
                run: all,
                over: Some(one),
                quantity: Quantity::Prefill,
                // Of two threads 0.9 of what they could be; of more as much.
                targets: vec![Target::Times(0.9 * f64::from(sizes.threads))],
            });
        }
    }

    /// Starting, and memory.
    fn first(&mut self, sizes: Sizes) {
        let plain = plain(REAL, sizes);
        let whole = self.run(plain.clone());
        let title = format!("{REAL} peak memory, prefill {} and decode {}", sizes.prompt, sizes.tokens);
        self.row(title, whole, Quantity::Memory, vec![Target::RatioAtMost(1.0)]);
        let short = Run { prompt: 8, tokens: 0, candle: false, limits: false, ..plain };
        let run = self.run(short);
        self.row(
            format!("{REAL} load to first token"),
            run,
            Quantity::FirstToken,
            vec![Target::AtMost(300.0)],
        );
        self.row(format!("{REAL} smallest run, whole"), run, Quantity::Wall, vec![]);
        self.row("parity, F32 product 2048 wide".into(), whole, Quantity::Matmul, vec![Target::Share(0.8)]);
    }

    /// Without the runs that no row reads.
    fn without_unread_runs(self) -> Plan {
        let mut kept = Plan::default();
        for row in &self.rows {
            let run = kept.run(self.runs[row.run].clone());
            let over = row.over.map(|at| kept.run(self.runs[at].clone()));
            kept.rows.push(Row { run, over, ..row.clone() });
        }
        kept
    }
}

/// A run of a file in the suite's sizes.
fn plain(file: &str, sizes: Sizes) -> Run {
    Run {
        file: file.into(),
        prompt: sizes.prompt,
        tokens: sizes.tokens,
        depth: 0,
        sequences: 1,
        threads: sizes.threads,
        candle: true,
        limits: true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::Limits;
    use super::*;

    const SIZES: Sizes = Sizes { prompt: 512, tokens: 128, long: 8192, threads: 2 };

    #[test]
    fn runs_are_shared_and_rows_are_chosen_by_word() {
        let plan = Plan::of(SIZES, &[]);
        for (i, run) in plan.runs.iter().enumerate() {
            assert_eq!(plan.runs.iter().position(|r| r == run), Some(i));
            assert!(plan.rows.iter().any(|row| row.run == i || row.over == Some(i)), "{run:?}");
        }
        assert!(plan.rows.len() > 2 * FILES.len() && plan.runs.len() < plan.rows.len());
        let long: Vec<&Run> = plan.runs.iter().filter(|r| r.depth > 0 || r.prompt > 512).collect();
        assert!(long.iter().all(|r| r.depth + r.prompt.max(r.tokens) == 8192), "{long:?}");
        let few = Plan::of(SIZES, &["Q8_0 decode".into(), "sequences".into()]);
        let files: Vec<&str> = few.runs.iter().map(|r| r.file.as_str()).collect();
        assert_eq!(
            files[..4],
            ["smollm2-Q8_0", "experts-Q8_0", "delta-Q8_0", "memories-Q8_0"],
            "in the order of the table"
        );
        assert_eq!((few.rows.len(), few.rows[4].over), (6, Some(5)));
    }

    #[test]
    fn shares_are_of_the_bytes_of_the_row() {
        let limits = Limits { read_bytes: 20e9, f32_ops: 200e9, byte_ops: 0.0, f32_matmul_ops: Some(150e9) };
        let run = Measured {
            decode_tps: Some(100.0),
            weight_bytes: Some(100e6),
            carried_bytes: Some(60e6),
            limits: Some(limits),
            ..Measured::default()
        };
        let shares = [Quantity::Decode, Quantity::DecodeAll, Quantity::Matmul].map(|q| q.share(&run));
        assert_eq!(shares, [Some(0.5), Some(0.8), Some(0.75)]);
        assert_eq!(Quantity::Decode.share(&Measured { limits: None, ..run.clone() }), None);
        assert_eq!(Quantity::Prefill.share(&run), None);
    }
}
