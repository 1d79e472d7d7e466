//! `check`: a hand-off told tensor by tensor, whether it fits, does not, or is a stream or a part.

mod common;

use common::{Scratch, fails, fixture, json, succeeds, tranship};
use safetensors::Dtype;
use serde_json::{Value, json as value};
use std::path::Path;
use tranship::handoff::{Handoff, StreamWriter};

const PARITY: [&str; 2] = ["--policy", "parity"];

/// A hybrid: memories and rings in layers 0, 1 and 3, a cache in layer 2.
fn hybrid() -> String {
    fixture("families/qwen3_next")
}

/// A hand-off of the hybrid after eight tokens.
fn prefilled(scratch: &Scratch) -> String {
    let file = scratch.path("h");
    let line = ["prefill", &hybrid(), "--tokens", "1,2,3,4,5,6,7,8", "--ctx", "64", "--out", &file];
    succeeds(&[&line[..], &PARITY].concat());
    file
}

fn check<'a>(model: &'a str, file: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    [&["check", model, "--handoff", file], &PARITY[..], extra].concat()
}

/// An output without what differs between machines and runs: paths, and all but the first digit of digests.
fn masked(text: &str, scratch: &Scratch) -> String {
    let text = text.replace(&scratch.folder().display().to_string(), "SCRATCH").replace(&hybrid(), "MODEL");
    let mut masked = String::new();
    for piece in text.split_inclusive(|c: char| !c.is_ascii_hexdigit()) {
        let digits = piece.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
        if digits.len() >= 16 {
            masked += &format!("<{}>{}", digits.len(), &piece[digits.len()..]);
        } else {
            masked += piece;
        }
    }
    masked
}

/// Holds an output to the one that is written down, and to a terminal of 100 columns where no path makes it wider.
fn assert_told(told: &str, wanted: &str, scratch: &Scratch) {
    let told = masked(told, scratch);
    assert_eq!(told, wanted, "\n{told}");
    assert!(told.lines().all(|line| line.chars().count() <= 100), "\n{told}");
}

/// A copy of a hand-off whose manifest and tensors someone has changed; its seal is another one's then.
fn forged(file: &str, out: &str, change: impl FnOnce(&mut Value, &mut Vec<Stored>)) {
    let bytes = std::fs::read(file).expect("the hand-off");
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).expect("safetensors");
    let mut metadata = header.metadata().clone().expect("metadata");
    let mut manifest: Value = serde_json::from_str(&metadata["tranship"]).expect("a manifest");
    let read = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut tensors: Vec<Stored> = (read.tensors().into_iter())
        .map(|(name, t)| Stored {
            name,
            dtype: t.dtype(),
            shape: t.shape().to_vec(),
            bytes: t.data().to_vec(),
        })
        .collect();
    change(&mut manifest, &mut tensors);
    metadata.insert("tranship".into(), manifest.to_string());
    let views = tensors.iter().map(|t| {
        let view = safetensors::tensor::TensorView::new(t.dtype, t.shape.clone(), &t.bytes);
        (t.name.clone(), view.expect("sizes that agree"))
    });
    std::fs::write(out, safetensors::serialize(views, Some(metadata)).expect("a file")).expect("written");
}

/// A tensor of a file.
struct Stored {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn stored<'a>(tensors: &'a mut [Stored], name: &str) -> &'a mut Stored {
    tensors.iter_mut().find(|t| t.name == name).expect("the tensor")
}

#[test]
fn one_that_fits() {
    let scratch = Scratch::new();
    let file = prefilled(&scratch);
    let told = succeeds(&check(&hybrid(), &file, &["--ctx", "64", "--tokens", "1,2,3,4,5,6,7,8"]));
    assert_told(&told, include_str!("told/fits.txt"), &scratch);
    // Layers that are alike are told once, unless all are asked for.
    let all = succeeds(&check(&hybrid(), &file, &["--ctx", "64", "--all"]));
    assert_told(&all, include_str!("told/all.txt"), &scratch);
    let found =
        json(&check(&hybrid(), &file, &["--ctx", "64"]).into_iter().chain(["--json"]).collect::<Vec<_>>());
    assert_eq!((&found["ok"], found["tensors"].as_array().map(Vec::len)), (&true.into(), Some(14)));
    let axis = |name: &str, size: u64| value!({ "name": name, "size": size });
    let cache = value!({
        "name": "k2", "layer": 2, "kind": "append", "rate": null, "keep": null,
        "rows": { "found": 8, "valid": 8, "of": 64 },
        "axes": [axis("position", 64), axis("kv_head", 2), axis("head_dim", 24)],
        "segments": { "axis": 1, "runs": [{ "count": 2, "size": 1 }] },
        "dtype": "f32", "shape": [8, 2, 24], "bytes": 1536, "faults": []
    });
    assert_eq!(found["tensors"][8], cache);
}

#[test]
fn every_fault_at_once() {
    let scratch = Scratch::new();
    let (file, out) = (prefilled(&scratch), scratch.path("forged"));
    forged(&file, &out, |manifest, tensors| {
        manifest["next_token"] = value!(100_000);
        manifest["contract"]["hidden"] = value!(7);
        manifest["contract"]["share"] = value!({ "index": 1, "of": 2 });
        manifest["contract"]["identity"]["weights"] = value!("other\u{1b}[2J weights");
        manifest["contract"]["identity"]["programs"] = value!("0".repeat(64));
        manifest["contract"]["identity"]["policy"] = value!("compute=f64");
        let carried = manifest["contract"]["carried"].as_array_mut().expect("a list");
        let listed = |name: &str| carried.iter().position(|c| c["name"] == name).expect("it is listed");
        let (k, conv) = (listed("k2"), listed("conv_q1"));
        // Another type than the file's and the model's, axes in another order, and one that is not listed at all.
        carried[k]["dtype"] = value!("f16");
        carried[conv]["axes"].as_array_mut().expect("axes").swap(1, 2);
        carried[conv].as_object_mut().expect("an object").shift_remove("segments");
        let mut extra = carried[k].clone();
        extra["name"] = value!("w\n7");
        extra["layer"] = value!(7);
        carried.push(extra);
        carried.retain(|c| c["name"] != "conv_k0");
        // A value that is none, rows that were cut, a tensor that is gone, and one more.
        let memory = stored(tensors, "s0");
        let at = memory.bytes.len() / 2;
        memory.bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        let cache = stored(tensors, "k2");
        cache.bytes.truncate(cache.bytes.len() / 8 * 5);
        cache.shape[0] = 5;
        let (dtype, shape, bytes) = (cache.dtype, cache.shape.clone(), cache.bytes.clone());
        tensors.retain(|t| t.name != "v2");
        tensors.push(Stored { name: "w\n7".into(), dtype, shape, bytes });
        let gate = stored(tensors, "s1");
        gate.dtype = Dtype::F16;
        gate.bytes = vec![0; gate.bytes.len() / 2];
    });
    let model = hybrid();
    let line = check(&model, &out, &["--ctx", "8", "--tokens", "1,2,3"]);
    let ran = fails(&line, &["seal is broken", "`v2` of layer 2 is missing", "tokens differ"]);
    assert_told(&ran.stdout, include_str!("told/faults.txt"), &scratch);
    let found: Value =
        serde_json::from_str(&tranship(&[&line[..], &["--json"]].concat()).stdout).expect("one object");
    let texts = |list: &Value| -> Vec<String> {
        list.as_array().expect("a list").iter().map(|v| v.as_str().expect("a text").to_owned()).collect()
    };
    let tensors = found["tensors"].as_array().expect("a list");
    let one = |name: &str| tensors.iter().find(|t| t["name"] == name).expect("it is listed");
    assert_eq!((&found["ok"], found["reasons"].as_array().map(Vec::len)), (&false.into(), Some(18)));
    assert_eq!(texts(&one("s0")["faults"]), ["`s0` holds NaN in row 2"]);
    assert_eq!(one("k2")["rows"], value!({ "found": 5, "valid": 8, "of": 8 }));
    assert_eq!(texts(&one("k2")["faults"]).len(), 2);
    let (gone, more) = (one("v2"), one("w\n7"));
    assert_eq!([&gone["shape"], &gone["dtype"], &gone["rows"]["found"]], [&Value::Null; 3]);
    assert_eq!(texts(&gone["faults"]), ["`v2` of layer 2 is missing"]);
    assert_eq!((&more["layer"], &more["kind"]), (&7.into(), &"append".into()));
    // Each reason is in one place: with its tensor, or beside them all.
    let of_tensors: Vec<String> = tensors.iter().flat_map(|t| texts(&t["faults"])).collect();
    let reasons = texts(&found["reasons"]);
    assert!(of_tensors.len() == 9 && of_tensors.iter().all(|fault| reasons.contains(fault)));
}

/// What ends early is no hand-off of which anything could be said.
#[test]
fn one_that_is_cut_short() {
    let scratch = Scratch::new();
    let (file, out) = (prefilled(&scratch), scratch.path("cut"));
    let whole = std::fs::read(&file).expect("the hand-off");
    std::fs::write(&out, &whole[..whole.len() - 8]).expect("a file");
    let ran = fails(&check(&hybrid(), &out, &[]), &[]);
    let says = "tranship: SCRATCH/cut: this is no hand-off: not a safetensors file (13248 bytes of tensors, and 13240 are there)\n";
    assert_eq!((masked(&ran.stderr, &scratch).as_str(), ran.stdout.as_str()), (says, ""));
}

/// The hand-off of a file as a stream.
fn streamed(file: &str) -> Vec<u8> {
    let handoff = Handoff::read(Path::new(file)).expect("a hand-off");
    let progress = handoff.progress().expect("a digest");
    let contract = handoff.contract().clone();
    let mut out = StreamWriter::open(Vec::new(), contract.clone(), progress).expect("it opens");
    for layer in 0..4 {
        let rows =
            contract.of_layer(layer).map(|c| handoff.tensor(&c.name).expect("it is there").bytes().to_vec());
        out.layer(layer, &rows.collect::<Vec<_>>()).expect("it is sent");
    }
    out.close(handoff.next_token()).expect("it closes").0
}

#[test]
fn a_stream_is_told_as_its_file_is() {
    let scratch = Scratch::new();
    let (file, out) = (prefilled(&scratch), scratch.path("stream"));
    let bytes = streamed(&file);
    std::fs::write(&out, &bytes).expect("a file");
    let [of_file, of_stream] =
        [&file, &out].map(|file| masked(&succeeds(&check(&hybrid(), file, &["--ctx", "64"])), &scratch));
    assert_eq!(of_stream, of_file.replace("SCRATCH/h", "SCRATCH/stream").replace("a file,", "a stream,"));
    let form = |file: &str| json(&check(&hybrid(), file, &["--json"]))["form"].clone();
    assert_eq!([form(&file), form(&out)], [value!("file"), value!("stream")]);
    let close = br#"{"__metadata__":{"frame":"close""#;
    let at = bytes.windows(close.len()).position(|w| w == close).expect("a close") - 8;
    std::fs::write(&out, &bytes[..at]).expect("a file");
    let ran = fails(&check(&hybrid(), &out, &[]), &[]);
    let says = "tranship: SCRATCH/stream: the hand-off ends early: after layer 3, before it is closed\n";
    assert_eq!((masked(&ran.stderr, &scratch).as_str(), ran.stdout.as_str()), (says, ""));
}

#[test]
fn a_share_is_held_to_its_part_where_that_is_asked_for() {
    let scratch = Scratch::new();
    let (file, out) = (prefilled(&scratch), scratch.path("share"));
    let handoff = Handoff::read(Path::new(&file)).expect("a hand-off");
    let shares = handoff.split(2).expect("two can share it");
    let part = shares[1].layers(1..3).expect("the layers are there");
    part.write(Path::new(&out)).expect("written");
    let told = succeeds(&check(&hybrid(), &out, &["--ctx", "64", "--part"]));
    assert_told(&told, include_str!("told/share.txt"), &scratch);
    // A decode takes none, so that it fits no whole model.
    let ran = fails(
        &check(&hybrid(), &out, &["--ctx", "64"]),
        &["share 1 of 2, layers 1..3 of the state, wanted the whole"],
    );
    assert_told(&ran.stdout, include_str!("told/share_as_whole.txt"), &scratch);
    let found = json(&check(&hybrid(), &out, &["--part", "--json"]));
    assert_eq!(found["share"], value!({ "index": 1, "of": 2 }));
    assert_eq!((&found["ok"], &found["layers"]), (&true.into(), &value!({ "from": 1, "to": 3 })));
}
