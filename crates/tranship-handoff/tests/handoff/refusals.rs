//! Every way in which a hand-off can fail to fit, with all the reasons that are given: one `check`, and cases.

use crate::draft::{CTX, Draft, Part, Sealing, TOKENS, config, contract, good, parity, shortened};
use serde_json::{Value, json};
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_handoff::{Contract, Conversion, Expect, Handoff, HandoffTensor, Progress};
use tranship_model::ModelSpec;
use tranship_tensor::Tensor;

/// The other end's context: it need not be the sender's.
const OTHER_CTX: u64 = 9;

/// What the receiver is: its contract, and what it expects.
struct End {
    ours: Contract,
    expect: Expect<'static>,
}

fn end() -> End {
    End { ours: contract(OTHER_CTX, &parity()), expect: Expect { vocab: Some(160), ..Expect::default() } }
}

fn converting() -> End {
    let End { ours, expect } = end();
    End { ours, expect: Expect { conversion: Conversion::Declared, ..expect } }
}

/// Holds a good hand-off, changed, to an end: the reasons are these and no others, in this order.
fn check_at(case: &str, end: &End, edit: impl FnOnce(&mut Draft), reasons: &[&str]) {
    let mut draft = Draft::of(&good(&contract(CTX, &parity())));
    edit(&mut draft);
    check_draft(case, end, &draft, reasons);
}

fn check_draft(case: &str, end: &End, draft: &Draft, reasons: &[&str]) {
    let handoff = Handoff::from_bytes(draft.bytes()).unwrap_or_else(|e| panic!("{case}: {e}"));
    let refusal = end.ours.check_for(&handoff, &end.expect).err();
    let found: Vec<String> =
        refusal.iter().flat_map(|r| &r.errors).map(|e| shortened(&e.to_string())).collect();
    assert_eq!(found, reasons, "{case}");
    if let Some(refusal) = refusal {
        assert_eq!(shortened(&refusal.to_string()), reasons.join("; "), "{case}");
    }
}

fn check(case: &str, edit: impl FnOnce(&mut Draft), reasons: &[&str]) {
    check_at(case, &end(), edit, reasons);
}

/// A draft made under another policy.
fn under(policy: &ComputeCtx) -> Draft {
    Draft::of(&good(&contract(CTX, policy)))
}

fn of_type(dtype: DType) -> ComputeCtx {
    parity().with_kv(dtype)
}

#[test]
fn what_fits_is_taken() {
    check("as it is", |_| {}, &[]);
    check("another order in the file", |d| d.parts.reverse(), &[]);
    check("keys that are not known", |d| d.manifest["note"] = json!("from elsewhere"), &[]);
    check("no next token", |d| d.manifest["next_token"] = Value::Null, &[]);
    let mut expecting = end();
    expecting.expect.tokens = Some(&TOKENS);
    check_at("the tokens expected", &expecting, |_| {}, &[]);
    let mut any_weights = end();
    any_weights.ours.identity.weights = None;
    check_at("an end that has no weights", &any_weights, |_| {}, &[]);
}

#[test]
fn tensors() {
    check("missing", |d| d.parts.retain(|p| p.name != "k1"), &["`k1` of layer 1 is missing"]);
    check(
        "unknown",
        |d| {
            let extra = Part { name: "k2".into(), ..d.parts[0].clone() };
            d.parts.push(extra);
        },
        &["`k2` is no carried tensor of this model"],
    );
    check(
        "renamed",
        |d| d.part("v0").name = "V0".into(),
        &["`v0` of layer 0 is missing", "`V0` is no carried tensor of this model"],
    );
    check(
        "none",
        |d| d.parts.clear(),
        &[
            "`k0` of layer 0 is missing",
            "`v0` of layer 0 is missing",
            "`k1` of layer 1 is missing",
            "`v1` of layer 1 is missing",
        ],
    );
    check(
        "not in its own manifest",
        |d| d.carried("v1")["name"] = json!("w1"),
        &[
            "`v1` is f32 [5, 3, 16] in the file and not listed in its manifest",
            "`w1` is no carried tensor of this model",
        ],
    );
}

#[test]
fn axes() {
    check(
        "transposed in the file",
        |d| d.part("k0").shape = vec![5, 16, 3],
        &["`k0` has axes [5, 16, 3], wanted [position 5, kv_head 3, head_dim 16]"],
    );
    check(
        "heads first",
        |d| d.part("k0").shape = vec![3, 5, 16],
        &["`k0` has axes [3, 5, 16], wanted [position 5, kv_head 3, head_dim 16]"],
    );
    check(
        "flat",
        |d| d.part("v1").shape = vec![5, 48],
        &["`v1` has axes [5, 48], wanted [position 5, kv_head 3, head_dim 16]"],
    );
    check(
        "a scalar",
        |d| (d.part("v1").shape, d.part("v1").bytes) = (vec![], vec![0; 4]),
        &["`v1` has axes [], wanted [position 5, kv_head 3, head_dim 16]"],
    );
    check(
        "transposed by name",
        |d| {
            // Units of the axis that was the second one are none of the one that is.
            d.carried("v0").as_object_mut().expect("a map").remove("segments");
            d.carried("v0")["axes"].as_array_mut().expect("a list").swap(1, 2);
        },
        &["`v0` has axes [position 12, head_dim 16, kv_head 3] (append, layer 0), \
          wanted [position 9, kv_head 3, head_dim 16] (append, layer 0)"],
    );
    check(
        "of another layer",
        |d| d.carried("k1")["layer"] = json!(0),
        &["`k1` has axes [position 12, kv_head 3, head_dim 16] (append, layer 0), \
          wanted [position 9, kv_head 3, head_dim 16] (append, layer 1)"],
    );
    check(
        "of another extent",
        |d| d.carried("k1")["extent"] = json!("recurrent"),
        &["`k1` has axes [position 12, kv_head 3, head_dim 16] (recurrent, layer 1), \
          wanted [position 9, kv_head 3, head_dim 16] (append, layer 1)"],
    );
    check(
        "hidden rows",
        |d| d.manifest["contract"]["hidden"] = json!(96),
        &["hidden rows are 96 × 1, wanted 48 × 1 (width × streams)"],
    );
    check(
        "streams",
        |d| d.manifest["contract"]["streams"] = json!(4),
        &["hidden rows are 48 × 4, wanted 48 × 1 (width × streams)"],
    );
}

#[test]
fn lengths() {
    let wanted = |found: u64, wanted: u64| -> Vec<String> {
        let one = |t: &str| format!("`{t}` has {found} rows; {wanted} are valid after {wanted} tokens");
        ["k0", "v0", "k1", "v1"].map(one).to_vec()
    };
    let check_all = |case: &str, edit: &dyn Fn(&mut Draft), reasons: Vec<String>| {
        check(case, edit, &reasons.iter().map(String::as_str).collect::<Vec<_>>());
    };
    check_all("a position before", &|d| d.manifest["position"] = json!(4), wanted(5, 4));
    check_all("a position after", &|d| d.manifest["position"] = json!(8), wanted(5, 8));
    check_all("before the first token", &|d| d.manifest["position"] = json!(0), wanted(5, 0));
    check_all("rows cut", &|d| d.cut(3), wanted(3, 5));
    check_all("no rows", &|d| d.cut(0), wanted(0, 5));
    check(
        "one tensor behind",
        |d| {
            let part = d.part("v1");
            part.shape[0] = 4;
            part.bytes.truncate(4 * 48 * 4);
        },
        &["`v1` has 4 rows; 5 are valid after 5 tokens"],
    );
    // The sender's own context does not hold that many rows: what it calls all of its rows is not what is valid.
    check_all(
        "past the sender's context",
        &|d| {
            for name in ["k0", "v0", "k1", "v1"] {
                d.carried(name)["axes"][0]["size"] = json!(4);
            }
            d.manifest["contract"]["ctx"] = json!(4);
            d.cut(4);
        },
        wanted(4, 5),
    );
}

#[test]
fn positions() {
    let at = |ctx: u64| End { ours: contract(ctx, &parity()), ..end() };
    check_at("a row is left", &at(6), |_| {}, &[]);
    let no_row = "position 5 leaves no row for the next step in a context of 5";
    check_at("no row is left", &at(5), |_| {}, &[no_row]);
    check_at(
        "past the context",
        &at(2),
        |_| {},
        &["position 5 leaves no row for the next step in a context of 2"],
    );
    check(
        "past everything",
        |d| d.manifest["position"] = json!(u64::MAX),
        &[
            "position 18446744073709551615 leaves no row for the next step in a context of 9",
            "`k0` has 5 rows; 18446744073709551615 are valid after 18446744073709551615 tokens",
            "`v0` has 5 rows; 18446744073709551615 are valid after 18446744073709551615 tokens",
            "`k1` has 5 rows; 18446744073709551615 are valid after 18446744073709551615 tokens",
            "`v1` has 5 rows; 18446744073709551615 are valid after 18446744073709551615 tokens",
        ],
    );
}

#[test]
fn types() {
    for dtype in [DType::F16, DType::BF16, DType::F64, DType::F8E4M3, DType::F8E5M2] {
        let policy = format!(
            "policies differ: here compute=f32 kv=f32 accum=f32 state=f32 activations=float; in the hand-off \
             compute=f32 kv={dtype} accum=f32 state=f32 activations=float (a conversion must be declared)"
        );
        let mut reasons = vec![policy];
        let one = |t: &str| format!("`{t}` is {dtype}, wanted f32 (a conversion must be declared)");
        reasons.extend(["k0", "v0", "k1", "v1"].map(one));
        let reasons: Vec<&str> = reasons.iter().map(String::as_str).collect();
        let draft = under(&of_type(dtype));
        check_draft(&format!("{dtype} to f32"), &end(), &draft, &reasons);
        check_draft(&format!("{dtype} to f32, declared"), &converting(), &draft, &[]);
        // And the other way.
        let ours = contract(OTHER_CTX, &of_type(dtype));
        check_at(&format!("f32 to {dtype}, declared"), &End { ours, ..converting() }, |_| {}, &[]);
    }
    let bytes_of = |part: &mut Part, dtype: DType| {
        part.dtype = dtype;
        part.bytes.truncate(dtype.row_bytes(5 * 48).expect("whole"));
    };
    check(
        "not of its manifest",
        |d| bytes_of(d.part("k0"), DType::BF16),
        &[
            "`k0` is bf16 in the file and f32 in its manifest",
            "`k0` is bf16, wanted f32 (a conversion must be declared)",
        ],
    );
    check_at(
        "not of its manifest, declared",
        &converting(),
        |d| bytes_of(d.part("k0"), DType::BF16),
        &["`k0` is bf16 in the file and f32 in its manifest"],
    );
    for dtype in
        [DType::I32, DType::U32, DType::I64, DType::I8, DType::U8, DType::I16, DType::U16, DType::Bool]
    {
        let reason = format!("`k1` is {dtype}, wanted f32 (a conversion must be declared)");
        let edit = |d: &mut Draft| {
            d.carried("k1")["dtype"] = json!(dtype.name());
            let part = d.part("k1");
            part.dtype = dtype;
            part.bytes.resize(dtype.row_bytes(5 * 48).expect("whole"), 1);
        };
        check(&format!("{dtype}"), edit, &[&reason]);
        check_at(&format!("{dtype}, declared"), &converting(), edit, &[&reason]);
    }
    let blocks = |d: &mut Draft| {
        d.carried("k1")["dtype"] = json!("q8_0");
        d.carried("k1")["axes"][2]["size"] = json!(32);
    };
    check(
        "blocks in the manifest",
        blocks,
        &[
            "`k1` is f32 in the file and q8_0 in its manifest",
            "`k1` has axes [position 12, kv_head 3, head_dim 32] (append, layer 1), \
          wanted [position 9, kv_head 3, head_dim 16] (append, layer 1)",
        ],
    );
}

#[test]
fn identities() {
    check(
        "weights",
        |d| d.manifest["contract"]["identity"]["weights"] = json!("b".repeat(64)),
        &["weights differ: this model has #, the hand-off was made with #"],
    );
    check(
        "no weights",
        |d| d.manifest["contract"]["identity"]["weights"] = Value::Null,
        &["weights differ: this model has #, the hand-off was made with none"],
    );
    let mut edited = config("models/llama_base/config.json");
    for (key, value) in [
        ("rope_theta", json!(20000.0)),
        ("rms_norm_eps", json!(1e-6)),
        ("num_attention_heads", json!(3)),
        ("intermediate_size", json!(81)),
    ] {
        let before = edited[key].clone();
        edited[key] = value;
        let spec = ModelSpec::from_config(&edited).expect("a model");
        let weights = end().ours.identity.weights;
        let ours = Contract::of(&spec, OTHER_CTX, &parity(), weights).expect("a contract");
        check_at(
            key,
            &End { ours, ..end() },
            |_| {},
            &["programs differ: this model has #, the hand-off was made with #"],
        );
        edited[key] = before;
    }
    // The same caches, other numbers.
    let other = parity().with_compute(DType::BF16);
    let draft = under(&other);
    check_draft(
        "policy",
        &end(),
        &draft,
        &["policies differ: here compute=f32 kv=f32 accum=f32 state=f32 activations=float; in the hand-off \
         compute=bf16 kv=f32 accum=f32 state=f32 activations=float (a conversion must be declared)"],
    );
    check_draft("policy, declared", &converting(), &draft, &[]);
    let elsewhere = parity().with_device(Device::of("cuda"));
    check_draft("another device", &end(), &under(&elsewhere), &[]);
}

#[test]
fn tokens() {
    let expecting = |tokens: &'static [u32]| {
        let End { ours, expect } = end();
        End { ours, expect: Expect { tokens: Some(tokens), ..expect } }
    };
    let other = "tokens differ: the expected 5 have digest #, the hand-off's 5 have #";
    check_at("another prompt", &expecting(&[7, 1, 0, 159, 43]), |_| {}, &[other]);
    check_at("another order", &expecting(&[1, 7, 0, 159, 42]), |_| {}, &[other]);
    check_at(
        "fewer",
        &expecting(&[7, 1, 0, 159]),
        |_| {},
        &["tokens differ: the expected 4 have digest #, the hand-off's 5 have #"],
    );
    let digest = Progress::of(&TOKENS).digest.to_hex().to_string();
    check_at(
        "one digest, another number",
        &expecting(&TOKENS),
        |d| {
            d.manifest["position"] = json!(4);
            d.cut(4);
        },
        &["tokens differ: the expected 5 have digest #, the hand-off's 4 have #"],
    );
    check("a digest", |d| d.manifest["tokens"] = json!(digest), &[]);
    check(
        "no digest",
        |d| d.manifest["tokens"] = json!("abc"),
        &["this is no hand-off: `abc` is no digest of tokens"],
    );
    check("the last token", |d| d.manifest["next_token"] = json!(159), &[]);
    check(
        "past the vocabulary",
        |d| d.manifest["next_token"] = json!(160),
        &["the next token, 160, is outside the vocabulary of 160"],
    );
}

/// Nothing that a hand-off holds can end a line, or move the cursor of a terminal.
#[test]
fn what_is_displayed_stays_on_its_line() {
    let forged = "x\nok\u{1b}[2J\u{202e}\u{9b}\r";
    let escaped = "x\\nok\\u{1b}[2J\\u{202e}\\u{9b}\\r";
    let is = |text: String| move |d: &mut Draft| d.sealing = Sealing::Is(text);
    let broken = format!("the seal is broken: it is {escaped}, and the content has #");
    check("the seal", is(forged.into()), &[&broken]);
    let identity =
        |key: &'static str| move |d: &mut Draft| d.manifest["contract"]["identity"][key] = json!(forged);
    let other = |what: &str| format!("{what} differ: this model has #, the hand-off was made with {escaped}");
    check("the weights", identity("weights"), &[&other("weights")]);
    check("the programs", identity("programs"), &[&other("programs")]);
    let policy = format!(
        "policies differ: here compute=f32 kv=f32 accum=f32 state=f32 activations=float; in the hand-off \
         {escaped} (a conversion must be declared)"
    );
    check("the policy", identity("policy"), &[&policy]);
    let digest = format!("this is no hand-off: `{escaped}` is no digest of tokens");
    check("the tokens", |d| d.manifest["tokens"] = json!(forged), &[&digest]);
    let reasons = ["`v0` of layer 0 is missing", &format!("`{escaped}` is no carried tensor of this model")];
    check("a name", |d| d.part("v0").name = forged.into(), &reasons);
    let axes = format!(
        "`k1` has axes [{escaped} 12, kv_head 3, head_dim 16] (append, layer 1), \
         wanted [position 9, kv_head 3, head_dim 16] (append, layer 1)"
    );
    check("an axis", |d| d.carried("k1")["axes"][0]["name"] = json!(forged), &[&axes]);
}

#[test]
fn seals() {
    check("unsealed", |d| d.sealing = Sealing::Absent, &["the hand-off is not sealed"]);
    check(
        "empty",
        |d| d.sealing = Sealing::Is(String::new()),
        &["the seal is broken: it is , and the content has #"],
    );
    let old = |d: &mut Draft| d.sealing = Sealing::Is(d.seal());
    let broken = "the seal is broken: it is #, and the content has #";
    check(
        "two tensors of one shape change names",
        |d| {
            old(d);
            (d.parts[0].name, d.parts[1].name) = ("v0".into(), "k0".into());
        },
        &[broken],
    );
    check(
        "another token",
        |d| {
            old(d);
            d.manifest["next_token"] = json!(4);
        },
        &[broken],
    );
    check(
        "one bit",
        |d| {
            old(d);
            d.part("v1").bytes[77] ^= 1;
        },
        &[broken],
    );
}

#[test]
fn not_a_number() {
    let kinds: [(DType, &[u8], &[u8]); 6] = [
        (DType::F64, &f64::NAN.to_le_bytes(), &f64::INFINITY.to_le_bytes()),
        (DType::F32, &0xffc0_0001u32.to_le_bytes(), &f32::NEG_INFINITY.to_le_bytes()),
        (DType::F16, &0x7c01u16.to_le_bytes(), &0xfc00u16.to_le_bytes()),
        (DType::BF16, &0xff81u16.to_le_bytes(), &0x7f80u16.to_le_bytes()),
        (DType::F8E4M3, &[0xff], &[0xfe]),
        (DType::F8E5M2, &[0x7d], &[0x7c]),
    ];
    for (dtype, nan, infinite) in kinds {
        let held = End { ours: contract(OTHER_CTX, &of_type(dtype)), ..end() };
        let mut draft = under(&of_type(dtype));
        let row = 48 * nan.len();
        let place = 3 * row + 17 * nan.len();
        draft.part("v0").bytes[place..place + infinite.len()].copy_from_slice(infinite);
        check_draft(&format!("{dtype}, the largest that is none"), &held, &draft, &[]);
        draft.part("v0").bytes[place..place + nan.len()].copy_from_slice(nan);
        draft.part("v0").bytes[4 * row..4 * row + nan.len()].copy_from_slice(nan);
        check_draft(&format!("{dtype}"), &held, &draft, &["`v0` holds NaN in row 3"]);
    }
}

#[test]
fn everything_at_once() {
    let mut end = End { ours: contract(OTHER_CTX, &of_type(DType::F16)), ..end() };
    end.expect.tokens = Some(&[1]);
    check_at(
        "many faults",
        &end,
        |d| {
            d.sealing = Sealing::Is("f".repeat(64));
            d.manifest["position"] = json!(9);
            d.manifest["next_token"] = json!(1000);
            d.manifest["contract"]["identity"]["weights"] = json!("b");
            d.manifest["contract"]["identity"]["programs"] = json!("p");
            d.manifest["contract"]["hidden"] = json!(47);
            d.part("k0").shape = vec![5, 16, 3];
            d.part("v0").bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
            d.part("k1").name = "k7".into();
        },
        &[
            "the seal is broken: it is #, and the content has #",
            "hidden rows are 47 × 1, wanted 48 × 1 (width × streams)",
            "weights differ: this model has #, the hand-off was made with b",
            "programs differ: this model has #, the hand-off was made with p",
            "policies differ: here compute=f32 kv=f16 accum=f32 state=f32 activations=float; in the hand-off \
         compute=f32 kv=f32 accum=f32 state=f32 activations=float (a conversion must be declared)",
            "position 9 leaves no row for the next step in a context of 9",
            "tokens differ: the expected 1 have digest #, the hand-off's 9 have #",
            "the next token, 1000, is outside the vocabulary of 160",
            "`k0` has axes [5, 16, 3], wanted [position 9, kv_head 3, head_dim 16]",
            "`k0` is f32, wanted f16 (a conversion must be declared)",
            "`v0` has 5 rows; 9 are valid after 9 tokens",
            "`v0` is f32, wanted f16 (a conversion must be declared)",
            "`v0` holds NaN in row 0",
            "`k1` of layer 1 is missing",
            "`v1` has 5 rows; 9 are valid after 9 tokens",
            "`v1` is f32, wanted f16 (a conversion must be declared)",
            "`k7` is no carried tensor of this model",
        ],
    );
}

/// A memory that is rewritten in each step has all of its rows, whatever the position, and their number is no context.
#[test]
fn recurrent_memories() {
    let memory = |rows: u64| {
        let mut contract = contract(CTX, &parity());
        contract.carried.truncate(1);
        contract.carried[0].extent = tranship_program::Extent::Recurrent;
        contract.carried[0].axes[0].size = rows;
        contract
    };
    let draft = Draft::of(&good(&memory(4)));
    assert_eq!(draft.parts[0].shape, [4, 3, 16]);
    check_draft("as many rows", &End { ours: memory(4), ..end() }, &draft, &[]);
    let axes = |rows: u64| format!("[position {rows}, kv_head 3, head_dim 16] (recurrent, layer 0)");
    for rows in [3, 6] {
        let reason = format!("`k0` has axes {}, wanted {}", axes(4), axes(rows));
        check_draft("other rows", &End { ours: memory(rows), ..end() }, &draft, &[&reason]);
    }
    // What its own manifest does not say.
    let mut cut = draft.clone();
    cut.cut(3);
    let reason = "`k0` has 3 rows; 4 are valid after 5 tokens";
    check_draft("rows cut", &End { ours: memory(4), ..end() }, &cut, &[reason]);
}

/// What is taken in memory is held to the same, and to what a file cannot do at all.
#[test]
fn taking() {
    let ours = contract(CTX, &parity());
    let good = good(&ours);
    let rows =
        |name: &str, bytes: usize| HandoffTensor::new(name, DType::F32, vec![5, 3, 16], vec![0; bytes]);
    let take = |tensors: Vec<HandoffTensor>| -> Vec<String> {
        let refusal = ours.take(Progress::of(&TOKENS), tensors).expect_err("it does not fit");
        refusal.errors.iter().map(ToString::to_string).collect()
    };
    let with = |tensor: HandoffTensor| {
        let mut all: Vec<HandoffTensor> =
            good.state().iter().filter(|t| t.name != tensor.name).cloned().collect();
        all.push(tensor);
        all
    };
    assert_eq!(take(with(rows("v0", 956))), ["`v0` has 956 bytes; its shape takes 960"]);
    let mut absurd = rows("v0", 960);
    absurd.shape = vec![5, u64::MAX, 16];
    assert_eq!(
        take(with(absurd)),
        [
            "`v0` has axes [5, 18446744073709551615, 16], wanted [position 5, kv_head 3, head_dim 16]",
            "`v0` has 960 bytes; its shape takes more than can be counted",
        ]
    );
    let mut twice = good.state().to_vec();
    twice.push(rows("k1", 960));
    assert_eq!(take(twice), ["`k1` is there twice"]);
    let values = Tensor::from_f32(&[1], &[1.0]).expect("a tensor");
    assert_eq!(
        take(with(HandoffTensor::new("k0", DType::F32, vec![1], values.bytes().to_vec()))),
        ["`k0` has axes [1], wanted [position 5, kv_head 3, head_dim 16]",]
    );
    let full: Vec<u32> = (0..CTX as u32).collect();
    let tensors = ours.carried.iter().map(|c| {
        let bytes = c.bytes(CTX).expect("countable") as usize;
        HandoffTensor::new(&c.name, c.dtype, c.valid_shape(CTX), vec![0; bytes])
    });
    let refusal = ours.take(Progress::of(&full), tensors.collect()).expect_err("there is no row left");
    assert_eq!(refusal.to_string(), "position 12 leaves no row for the next step in a context of 12");
}
