//! What the suite's rounds come to: for each row medians, ranges and the ratio, whether its target is met, and a table.

use super::kl::Divergence;
use super::measure::Measured;
use super::rows::{Plan, Quantity, Row, Target};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One round of a run: of ours, of llama.cpp, and of candle. `None` where it did not run.
pub type Round = [Option<Measured>; 3];

/// The median and the range of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub low: f64,
    /// The greatest.
    pub high: f64,
}

impl Spread {
    /// Of values, if there is one.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let (a, b) = ((values.len() - 1) / 2, values.len() / 2);
        Some(Spread { median: (values[a] + values[b]) / 2.0, low, high })
    }

    fn json(self) -> Value {
        json!({ "median": self.median, "low": self.low, "high": self.high })
    }
}

/// A row with its figures.
#[derive(Clone, Debug)]
pub struct Figures {
    row: Row,
    /// Of ours, of llama.cpp, of candle.
    sides: [Option<Spread>; 3],
    /// Our median over llama.cpp's.
    ratio: Option<f64>,
    /// The median share of the machine's limit.
    share: Option<f64>,
    /// Whether each target is met; `None` where a figure for it is missing.
    met: Vec<Option<bool>>,
}

impl Figures {
    /// Of the rounds of all runs.
    fn of(row: &Row, rounds: &[Vec<Round>]) -> Figures {
        let values = |side: usize| {
            let all = rounds[row.run].iter().enumerate().filter_map(move |(at, round)| {
                let value = row.quantity.of(round[side].as_ref()?)?;
                let Some(over) = row.over else { return Some(value) };
                Some(value / row.quantity.of(rounds[over].get(at)?[side].as_ref()?)?)
            });
            Spread::of(all)
        };
        let sides = [values(0), values(1), values(2)];
        let ratio = sides[0].zip(sides[1]).map(|(ours, peer)| ours.median / peer.median);
        let shares = rounds[row.run].iter().filter_map(|round| row.quantity.share(round[0].as_ref()?));
        let share = if row.over.is_none() { Spread::of(shares).map(|s| s.median) } else { None };
        let met = row.targets.iter().map(|target| match target {
            Target::Ratio(least) => ratio.map(|r| r >= *least),
            Target::RatioAtMost(most) => ratio.map(|r| r <= *most),
            Target::AtMost(most) => sides[0].map(|s| s.median <= *most),
            Target::Times(least) => sides[0].map(|s| s.median >= *least),
            Target::Share(least) => share.map(|s| s >= *least),
        });
        Figures { row: row.clone(), sides, ratio, share, met: met.collect() }
    }

    fn shown(&self, value: f64) -> String {
        if self.row.over.is_some() { format!("{value:.2}×") } else { self.row.quantity.shown(value) }
    }

    fn cell(&self, side: usize) -> String {
        let Some(s) = self.sides[side] else { return "-".into() };
        // Of one round there is no range.
        if s.low == s.high {
            return self.shown(s.median);
        }
        format!("{} ({} to {})", self.shown(s.median), self.shown(s.low), self.shown(s.high))
    }

    fn target(&self) -> String {
        let targets = self.row.targets.iter().map(|target| match target {
            Target::Ratio(r) => format!("ratio ≥ {r}"),
            Target::RatioAtMost(r) => format!("ratio ≤ {r}"),
            Target::AtMost(most) => format!("≤ {}", self.row.quantity.shown(*most)),
            Target::Times(times) => format!("≥ {times}×"),
            Target::Share(share) => format!("share ≥ {:.0} %", share * 100.0),
        });
        targets.collect::<Vec<_>>().join(", ")
    }

    /// Of several targets each its own word.
    fn met(&self) -> String {
        let word = |met: &Option<bool>| match met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "?",
        };
        self.met.iter().map(word).collect::<Vec<_>>().join(", ")
    }

    fn json(&self) -> Value {
        let side = |at: usize| self.sides[at].map(Spread::json);
        json!({
            "title": self.row.title,
            "unit": if self.row.over.is_some() { "times" } else { unit(self.row.quantity) },
            "tranship": side(0), "llama_cpp": side(1), "candle": side(2),
            "ratio": self.ratio, "share_of_limit": self.share,
            "target": self.target(), "met": self.met,
        })
    }
}

fn unit(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Prefill | Quantity::Decode | Quantity::DecodeAll => "tokens/s",
        Quantity::FirstToken | Quantity::Wall => "ms",
        Quantity::Memory => "bytes",
        Quantity::Matmul => "operations/s",
    }
}

/// The whole of a suite's results.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The rounds that there were.
    pub rounds: usize,
    /// The rows.
    pub rows: Vec<Figures>,
    /// Accuracy.
    pub divergences: Vec<Divergence>,
    /// What a reader must know: builds, files, failures.
    pub notes: Vec<String>,
    /// Whether there is a column for candle.
    pub candle: bool,
    /// The machine's limits, in the words of the table.
    limits: Vec<(u32, [Option<Spread>; 3])>,
}

impl Summary {
    /// Of the rounds of each run of a plan.
    pub fn of(plan: &Plan, rounds: &[Vec<Round>]) -> Summary {
        let mut threads: Vec<u32> = plan.runs.iter().filter(|r| r.limits).map(|r| r.threads).collect();
        threads.sort_unstable();
        threads.dedup();
        let of_threads = |threads: u32| {
            let runs = plan.runs.iter().zip(rounds).filter(move |(run, _)| run.threads == threads);
            let all = runs.flat_map(|(_, rounds)| rounds).filter_map(|r| r[0].as_ref()?.limits);
            let all: Vec<_> = all.collect();
            let of = |read: fn(&super::measure::Limits) -> f64| Spread::of(all.iter().map(read));
            (threads, [of(|l| l.read_bytes), of(|l| l.f32_ops), of(|l| l.byte_ops)])
        };
        Summary {
            rounds: rounds.iter().map(Vec::len).max().unwrap_or(0),
            rows: plan.rows.iter().map(|row| Figures::of(row, rounds)).collect(),
            candle: rounds.iter().flatten().any(|round| round[2].is_some()),
            limits: threads.into_iter().map(of_threads).collect(),
            ..Summary::default()
        }
    }

    /// Targets that are met, and those that there are figures for.
    pub fn score(&self) -> (usize, usize) {
        let known = self.rows.iter().flat_map(|row| &row.met).flatten();
        let accuracy = self.divergences.iter().filter_map(Divergence::met);
        let all: Vec<bool> = known.copied().chain(accuracy).collect();
        (all.iter().filter(|met| **met).count(), all.len())
    }

    /// The table in Markdown, and what a reader must know.
    pub fn text(&self) -> String {
        let (met, of) = self.score();
        let mut text = format!("{met} of {of} targets met");
        if self.rows.is_empty() {
            text.push('\n');
        } else {
            text += &self.speeds();
        }
        if !self.divergences.is_empty() {
            text += "\n| mean KL divergence from the same file in F32 | tranship | llama.cpp | met |\n";
            text += "|---|---|---|---|\n";
            self.divergences.iter().for_each(|d| text += &d.line());
        }
        text.push('\n');
        for (threads, limits) in &self.limits {
            let [read, floats, bytes] = limits.map(|l| l.map_or(0.0, |s| s.median / 1e9));
            let note = format!(
                "The machine at most, {threads} threads: {read:.1} GB/s read, {floats:.0} GFLOP/s in F32, {bytes:.0} \
                 GOP/s of 8-bit products."
            );
            text += &item(&note);
        }
        self.notes.iter().for_each(|note| text += &item(note));
        text
    }

    /// The rows.
    fn speeds(&self) -> String {
        let mut text = format!(
            "; medians of {} rounds by turns (least to most), tokens a second unless it says otherwise\n\n",
            self.rounds
        );
        let candle = |cell: &str| if self.candle { format!(" {cell} |") } else { String::new() };
        let _ = writeln!(
            text,
            "| | tranship | llama.cpp |{} ratio | share of limit | target | met |\n|---|---|---|{}---|---|---|---|",
            candle("candle"),
            if self.candle { "---|" } else { "" }
        );
        for row in &self.rows {
            let _ = writeln!(
                text,
                "| {} | {} | {} |{} {} | {} | {} | {} |",
                row.row.title,
                row.cell(0),
                row.cell(1),
                candle(&row.cell(2)),
                row.ratio.map_or("-".into(), |r| format!("{r:.2}")),
                row.share.map_or("-".into(), |s| format!("{:.0} %", s * 100.0)),
                row.target(),
                row.met(),
            );
        }
        text
    }

    /// Everything as one JSON object.
    pub fn json(&self) -> Value {
        let (met, of) = self.score();
        let limits = self.limits.iter().map(|(threads, [read, floats, bytes])| {
            let json = |s: &Option<Spread>| s.map(Spread::json);
            json!({ "threads": threads, "read_bytes_per_s": json(read), "f32_ops_per_s": json(floats),
                    "byte_ops_per_s": json(bytes) })
        });
        json!({
            "rounds": self.rounds,
            "targets_met": met,
            "targets": of,
            "rows": self.rows.iter().map(Figures::json).collect::<Vec<_>>(),
            "kl": self.divergences.iter().map(Divergence::json).collect::<Vec<_>>(),
            "limits": limits.collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

/// Columns of a document.
const COLUMNS: usize = 120;

/// A note as an item of a list, in lines of a document's width.
fn item(note: &str) -> String {
    let (mut text, mut line) = (String::new(), String::from("-"));
    for word in note.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS {
            text += &line;
            text.push('\n');
            line = String::from(" ");
        }
        line.push(' ');
        line += word;
    }
    text + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::measure::Limits;
    use super::super::rows::Run;
    use super::*;

    fn speed(tps: f64) -> Option<Measured> {
        let limits = Limits { read_bytes: 1e9, f32_ops: 1e9, byte_ops: 1e9, f32_matmul_ops: None };
        let weight_bytes = Some(1e6);
        Some(Measured { decode_tps: Some(tps), weight_bytes, limits: Some(limits), ..Measured::default() })
    }

    fn plan() -> Plan {
        let run = |sequences| Run {
            file: "m".into(),
            prompt: 0,
            tokens: 128,
            depth: 0,
            sequences,
            threads: 2,
            candle: false,
            limits: true,
        };
        let row = |title: &str, run, over, targets| Row {
            title: title.into(),
            run,
            over,
            quantity: Quantity::Decode,
            targets,
        };
        Plan {
            runs: vec![run(1), run(8)],
            rows: vec![
                row("m decode", 0, None, vec![Target::Ratio(2.5), Target::Share(0.8)]),
                row("m decode, 8 over one", 1, Some(0), vec![Target::Times(4.0)]),
            ],
        }
    }

    #[test]
    fn rows_have_medians_ratios_shares_and_targets() {
        let one = vec![
            [speed(300.0), speed(100.0), None],
            [speed(200.0), speed(100.0), None],
            [speed(900.0), speed(110.0), None],
        ];
        let eight = [600.0, 900.0, 4500.0].map(|tps| [speed(tps), None, None]).to_vec();
        let summary = Summary::of(&plan(), &[one, eight]);
        let text = summary.text();
        assert!(
            text.contains(
                "| m decode | 300.0 (200.0 to 900.0) | 100.0 (100.0 to 110.0) | 3.00 | 30 % | ratio ≥ 2.5, \
                 share ≥ 80 % | yes, **no** |"
            ),
            "{text}"
        );
        // 2, 4.5 and 5 times, each in its round.
        assert!(
            text.contains("| m decode, 8 over one | 4.50× (2.00× to 5.00×) | - | - | - | ≥ 4× | yes |"),
            "{text}"
        );
        assert_eq!(summary.score(), (2, 3));
        let json = summary.json();
        assert_eq!((&json["rows"][0]["ratio"], &json["rows"][0]["met"][1]), (&json!(3.0), &json!(false)));
        assert_eq!(json["limits"][0]["read_bytes_per_s"]["median"], 1e9);
    }

    #[test]
    fn what_did_not_run_has_no_figure_and_meets_nothing() {
        let none = vec![[None, speed(100.0), None]];
        let summary = Summary::of(&plan(), &[none, vec![]]);
        let text = summary.text();
        assert!(
            text.contains("| m decode | - | 100.0 | - | - | ratio ≥ 2.5, share ≥ 80 % | ?, ? |"),
            "{text}"
        );
        assert_eq!(summary.score(), (0, 0));
    }

    #[test]
    fn notes_are_items_of_whole_words() {
        assert_eq!(item("one  word\n"), "- one word\n");
        let text = item(&"four ".repeat(50));
        assert!(text.lines().all(|l| l.len() <= COLUMNS) && text.lines().count() == 3, "{text}");
        assert!(text.lines().skip(1).all(|l| l.starts_with("  four")), "{text}");
    }

    #[test]
    fn candle_has_a_column_where_it_ran() {
        let rounds = vec![[speed(100.0), None, speed(50.0)]];
        let text = Summary::of(&plan(), &[rounds, vec![]]).text();
        assert!(text.contains("| tranship | llama.cpp | candle | ratio |"), "{text}");
        assert!(text.contains("| m decode | 100.0 | - | 50.0 | - |"), "{text}");
    }
}
