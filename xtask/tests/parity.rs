//! Parity on fixtures with the reference interpreter, and with backends that are wrong on purpose: each fault must be
//! seen, and be found where it is.

use std::path::Path;
use std::sync::Arc;
use tranship_backend::{
    Backend, BackendError, Caps, Chain, Input, Reference, Segment, State, Step, Weight, Weights,
};
use tranship_ctx::PRESETS;
use tranship_tensor::Tensor;
use xtask::parity::cases::{self, Case, End, What};
use xtask::parity::{Subject, models, page, report, trace};

fn subjects(names: &[&str]) -> Vec<Subject> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    models::fixtures(&root, &names).expect("the fixtures are there")
}

fn ends(backend: Arc<dyn Backend>, policies: &[&str]) -> Vec<End> {
    policies.iter().map(|p| End { backend: backend.clone(), policy: (*p).to_owned() }).collect()
}

/// A fault that a backend has.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// One value of this weight is off by so much.
    Weight(&'static str, f32),
    /// Chains that carry this tensor give rows that are off wherever a step has one row.
    SingleRows(&'static str),
    /// The same, by one bit.
    LastBit(&'static str),
}

/// The reference interpreter with a fault.
struct Wrong {
    inner: Reference,
    fault: Fault,
}

struct WrongStep {
    inner: Box<dyn Step>,
    /// What single rows are off by: a factor for one of their values.
    single: Option<f32>,
}

struct WrongWeights<'a> {
    inner: &'a dyn Weights,
    name: &'static str,
    off: f32,
}

impl Weights for WrongWeights<'_> {
    fn weight(&self, name: &str) -> Option<Weight> {
        let weight = self.inner.weight(name)?;
        if name != self.name {
            return Some(weight);
        }
        let mut values = weight.values().ok()?;
        values[0] += self.off;
        let tensor = Tensor::from_f32(&weight.shape, &values).and_then(|t| t.cast(weight.dtype)).ok()?;
        Some(Weight::whole(tensor.dtype(), weight.shape, Arc::new(tensor)))
    }
}

impl Backend for Wrong {
    fn name(&self) -> &str {
        "wrong"
    }

    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn compile(&self, chain: &Chain, weights: &dyn Weights) -> Result<Box<dyn Step>, BackendError> {
        let carries = |name: &str| chain.carried().iter().any(|c| c.name == name);
        let (inner, single) = match self.fault {
            Fault::Weight(name, off) => {
                (self.inner.compile(chain, &WrongWeights { inner: weights, name, off })?, None)
            }
            Fault::SingleRows(name) => (self.inner.compile(chain, weights)?, carries(name).then_some(1.5)),
            Fault::LastBit(name) => {
                (self.inner.compile(chain, weights)?, carries(name).then_some(1.0 + f32::EPSILON))
            }
        };
        Ok(Box::new(WrongStep { inner, single }))
    }
}

impl Step for WrongStep {
    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        self.inner.new_state()
    }

    fn run(
        &mut self,
        batch: &mut [Segment<'_>],
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (start, rows) = (out.len(), batch.iter().map(|s| s.rows).sum::<usize>());
        self.inner.run(batch, input, out)?;
        if let (Some(factor), 1, true) = (self.single, rows, out.len() > start) {
            for value in &mut out[start..] {
                *value *= factor;
            }
        }
        Ok(())
    }
}

fn missed(cases: &[Case]) -> Vec<&Case> {
    cases.iter().filter(|c| !c.pass()).collect()
}

#[test]
fn the_reference_is_within_its_bounds() {
    let names = ["llama_base", "gguf_q4_1", "gguf_split"];
    let ends = ends(Arc::new(Reference::new()), &PRESETS);
    for subject in subjects(&names) {
        let cases = cases::all(&subject, &ends).expect("it runs");
        // Three whole runs, four splits of each, three cut between layers, six ordered pairs of policies, one golden.
        assert_eq!(cases.len(), 3 + 12 + 3 + 6 + 1, "{}", subject.name);
        let text = report::lines(&cases, report::Detail::Every);
        assert!(missed(&cases).is_empty(), "\n{text}");
        // Nothing to compare would also be within the bounds.
        let split = |c: &&Case| matches!(c.what, What::Split(_)) && c.from.1 == "parity";
        assert!(cases.iter().filter(split).all(|c| c.identical == Some(true)));
        let cut = |c: &&Case| matches!(c.what, What::Layers(_));
        assert!(cases.iter().filter(cut).all(|c| c.identical == Some(true)));
        let rounds = |c: &&Case| c.what == What::Whole && c.from.1 != "parity";
        assert!(
            cases.iter().filter(rounds).all(|c| c.figures.as_ref().is_ok_and(|f| f.rms > 1e-5)),
            "\n{text}"
        );
    }
}

/// Families that choose, in which rounding moves some rows far away, on every backend.
#[test]
fn families_are_within_their_bounds() {
    let ends: Vec<End> = xtask::backends::names()
        .into_iter()
        .flat_map(|name| ends(xtask::backends::open(name, None).expect("it opens"), &PRESETS))
        .collect();
    let names = ["deepseek_v4_topk", "granitemoehybrid", "kimi_linear", "mixtral", "qwen3_5_text"];
    for subject in subjects(&names) {
        let cases = cases::all(&subject, &ends).expect("it runs");
        // Six whole runs and one split of each, thirty ordered pairs of ends, under each of three policies layers of both
        // parts on either backend, a golden on each backend.
        assert_eq!(cases.len(), 6 + 6 + 30 + 12 + 2, "{}", subject.name);
        let text = report::lines(&cases, report::Detail::Every);
        assert!(missed(&cases).is_empty(), "\n{text}");
        let by_row = |c: &&Case| c.bound.median.is_finite();
        let rounding = |c: &Case| c.from.1 != "parity" || c.to.1 != "parity";
        let wanted =
            if subject.name == "qwen3_5_text" { 0 } else { cases.iter().filter(|c| rounding(c)).count() };
        assert_eq!(cases.iter().filter(by_row).count(), wanted, "{}", subject.name);
    }
}

/// A fault in a model that chooses is seen under policies whose rounding alone moves rows far away.
#[test]
fn a_wrong_weight_is_seen_where_rows_choose() {
    let [subject] = &subjects(&["mixtral"])[..] else { panic!("one fixture") };
    let weight = "model.layers.1.self_attn.v_proj.weight";
    for (policy, off) in [("parity", 0.25), ("serving", 8.0), ("quantized", 8.0)] {
        let backend = Arc::new(Wrong { inner: Reference::new(), fault: Fault::Weight(weight, off) });
        let end = End { backend, policy: policy.into() };
        let cases = cases::all(subject, std::slice::from_ref(&end)).expect("it runs");
        assert!(missed(&cases).iter().any(|c| c.what == What::Whole), "not seen under {policy}");
    }
}

#[test]
fn a_wrong_weight_is_seen_and_found() {
    let [subject] = &subjects(&["llama_base"])[..] else { panic!("one fixture") };
    let names = [
        ("model.layers.1.mlp.up_proj.weight", "layer 1", "linear"),
        ("model.layers.0.self_attn.k_proj.weight", "layer 0", "linear"),
        ("model.layers.1.post_attention_layernorm.weight", "layer 1", "rms_norm"),
        ("model.norm.weight", "head", "rms_norm"),
    ];
    for (weight, cut, op) in names {
        // What a policy rounds hides what is smaller.
        for (policy, off) in [("parity", 0.25), ("quantized", 4.0), ("serving", 8.0)] {
            let backend = Arc::new(Wrong { inner: Reference::new(), fault: Fault::Weight(weight, off) });
            let end = End { backend, policy: policy.into() };
            let cases = cases::all(subject, std::slice::from_ref(&end)).expect("it runs");
            let seen = missed(&cases).iter().any(|c| c.what == What::Whole);
            assert!(seen, "{weight} was not seen under {policy}");
            let found = trace::trace(subject, &end, What::Whole).expect("it is traced");
            let place = found.place.clone().unwrap_or_else(|| panic!("{weight}: nothing found\n{found}"));
            let named = place.op.clone().unwrap_or_default();
            assert_eq!(place.cut, cut, "{weight}\n{found}");
            assert!(named.contains(weight) && named.contains(&format!("= {op}(")), "{weight}: {named}");
        }
    }
}

#[test]
fn what_only_a_split_shows_is_seen_and_found() {
    let [subject] = &subjects(&["llama_base"])[..] else { panic!("one fixture") };
    for fault in [Fault::SingleRows("k1"), Fault::LastBit("k1")] {
        let backend = Arc::new(Wrong { inner: Reference::new(), fault });
        let [end] = &ends(backend, &["parity"])[..] else { panic!("one end") };
        let cases = cases::all(subject, std::slice::from_ref(end)).expect("it runs");
        let missed = missed(&cases);
        assert!(missed.iter().all(|c| matches!(c.what, What::Split(_))) && missed.len() == 4);
        // A whole model's chain is off at its end, a single layer's at its own, and only layer 1 carries `k1`.
        let found = trace::trace(subject, end, missed[0].what).expect("it is traced");
        let place = found.place.clone().unwrap_or_else(|| panic!("nothing found\n{found}"));
        assert_eq!(place.cut, "layer 1", "{found}");
        assert!(place.op.is_some(), "{found}");
    }
    let backend = Arc::new(Wrong { inner: Reference::new(), fault: Fault::SingleRows("k1") });
    for end in ends(backend, &["serving", "quantized"]) {
        let cases = cases::all(subject, std::slice::from_ref(&end)).expect("it runs");
        assert_eq!(missed(&cases).len(), 4, "{}", end.policy);
    }
    let [end] = &ends(Arc::new(Reference::new()), &["parity"])[..] else { panic!("one end") };
    let found = trace::trace(subject, end, What::Split(7)).expect("it is traced");
    assert_eq!(found.place, None, "{found}");
}

/// A trained model makes of a page what it makes of it elsewhere, and a fault that leaves it readable is seen.
#[test]
fn a_page_surprises_a_trained_model_as_much_as_it_should() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let [subject] = &subjects(&["demo"])[..] else { panic!("one fixture") };
    let cpu = xtask::backends::open("cpu", None).expect("it opens");
    let fault = Fault::Weight("model.norm.weight", 1.0);
    let wrong = Arc::new(Wrong { inner: Reference::new(), fault });
    let ends = [ends(cpu, &PRESETS), ends(wrong, &["parity"])].concat();
    let readings = page::all(&root, subject, &ends).expect("they are read");
    let text = page::lines(&readings);
    let [parity, serving, quantized, wrong] = &readings[..] else { panic!("\n{text}") };
    for reading in [parity, serving, quantized] {
        assert!(reading.pass() && reading.tokens > 1000, "\n{text}");
    }
    // A model that knew nothing would have the size of the vocabulary, 2048.
    assert!(parity.golden < 200.0, "\n{text}");
    assert!(serving.apart()[0].abs() > parity.apart()[0].abs(), "policies round\n{text}");
    assert!(!wrong.pass() && text.contains("MISS\n    at most 1.0e-4"), "\n{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 110), "\n{text}");
    let json = report::json(&[], &readings);
    assert_eq!((&json["pass"], &json["missed"]), (&false.into(), &1.into()));
    assert_eq!(json["pages"][3]["pass"], false);
    assert!(json["pages"][0]["perplexity"].as_f64().is_some_and(|found| found > 1.0), "{json}");
    // Models without a figure of another implementation have none here.
    let [untrained] = &subjects(&["llama_base"])[..] else { panic!("one fixture") };
    assert!(page::all(&root, untrained, &ends).expect("nothing to read").is_empty());
    assert_eq!(page::lines(&[]), "");
}

#[test]
fn the_report_tells_a_miss_in_both_forms() {
    let [subject] = &subjects(&["llama_base"])[..] else { panic!("one fixture") };
    let fault = Fault::Weight("model.layers.1.mlp.up_proj.weight", 0.25);
    let ends = ends(Arc::new(Wrong { inner: Reference::new(), fault }), &["parity"]);
    let cases = cases::all(subject, &ends).expect("it runs");
    let json = report::json(&cases, &[]);
    assert_eq!(json["pass"], false);
    assert_eq!(json["missed"], json["cases"].as_array().map_or(0, Vec::len));
    let text = report::lines(&cases, report::Detail::Summary);
    assert!(text.contains("MISS") && text.contains("at most 2.0e-4"), "{text}");
    assert!(text.lines().next().is_some_and(|l| l.chars().count() <= 120), "{text}");
    assert!(
        models::fixtures(Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent"), &["x".into()])
            .is_err_and(|e| e.to_string().starts_with("model `x` is unknown: there are "))
    );
}
