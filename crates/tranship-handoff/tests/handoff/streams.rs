//! The stream form, and either form read tensor by tensor under a contract: what arrives is what was sent, and whatever
//! else comes is refused before it costs anything.

use crate::draft::{CTX, Draft, TOKENS, WEIGHTS, config, contract, good, parity, shortened};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use tranship_dtype::DType;
use tranship_handoff::{
    Carried, Contract, Expect, Handoff, HandoffError, HandoffTensor, Opening, Progress, Refusal,
    StreamWriter, write_file,
};
use tranship_model::ModelSpec;

fn ours() -> Contract {
    contract(CTX, &parity())
}

fn rows_of(handoff: &Handoff, layer: u64) -> Vec<Vec<u8>> {
    let row = |c: &Carried| handoff.tensor(&c.name).expect("it is there").bytes().to_vec();
    handoff.contract().of_layer(layer).map(row).collect()
}

/// A hand-off as a stream.
fn streamed(handoff: &Handoff) -> Vec<u8> {
    let progress = handoff.progress().expect("a digest");
    let mut stream = StreamWriter::open(Vec::new(), handoff.contract().clone(), progress).expect("it opens");
    let layers = handoff.contract().carried.iter().map(|c| c.layer).max().unwrap_or(0);
    for layer in 0..=layers {
        stream.layer(layer, &rows_of(handoff, layer)).expect("it is sent");
    }
    let (bytes, seal) = stream.close(handoff.next_token()).expect("it is closed");
    assert_eq!(Some(seal.as_str()), handoff.seal(), "one seal, whatever the form");
    bytes
}

/// Reads either form under a contract: its tensors by their places, and how far the sequence is.
fn taken(bytes: &[u8], ours: &Contract) -> Result<(Vec<(usize, HandoffTensor)>, Progress), Refusal> {
    let mut incoming = Opening::read(bytes)?.under(ours, Expect { vocab: Some(160), ..Expect::default() })?;
    let mut tensors = Vec::new();
    while let Some(tensor) = incoming.next_tensor()? {
        tensors.push(tensor);
    }
    let (rest, progress) = incoming.finish()?;
    assert!(rest.is_empty());
    Ok((tensors, progress))
}

/// Both forms arrive whole, tensor by tensor and at once, and are the same hand-off.
#[test]
fn round_trips() {
    let hybrid = config("families/qwen3_next/config.json");
    let hybrid = Contract::of(&ModelSpec::from_config(&hybrid).expect("a model"), 40, &parity(), None);
    let kinds = [DType::F16, DType::BF16, DType::F8E4M3].map(|kv| contract(CTX, &parity().with_kv(kv)));
    for ours in [ours(), hybrid.expect("a contract")].into_iter().chain(kinds) {
        let handoff = good(&ours);
        let stream = streamed(&handoff);
        let again = Handoff::from_bytes(stream.clone()).expect("it reads");
        ours.check(&again).expect("it fits");
        assert_eq!(again.to_bytes().expect("sealed"), handoff.to_bytes().expect("sealed"));
        let piped = Handoff::from_reader(&mut stream.as_slice()).expect("it reads");
        assert_eq!(piped.to_bytes().expect("sealed"), handoff.to_bytes().expect("sealed"));
        for bytes in [stream, handoff.to_bytes().expect("sealed")] {
            let (tensors, progress) = taken(&bytes, &ours).expect("it fits");
            assert_eq!(progress, handoff.progress().expect("a digest"));
            let places: Vec<usize> = tensors.iter().map(|(at, _)| *at).collect();
            assert_eq!(places, (0..ours.carried.len()).collect::<Vec<_>>());
            for ((_, found), wanted) in tensors.iter().zip(handoff.state()) {
                assert_eq!((&found.name, &found.shape), (&wanted.name, &wanted.shape));
                assert_eq!(found.bytes(), wanted.bytes());
            }
        }
    }
}

/// A stream in a file is read from it; what follows the close of one stays in a socket for whoever is next.
#[test]
fn in_files_and_sockets() {
    let (ours, folder) = (ours(), tempfile::tempdir().expect("a folder"));
    let stream = streamed(&good(&ours));
    let path = folder.path().join("stream");
    std::fs::write(&path, &stream).expect("it is written");
    ours.check(&Handoff::read(&path).expect("it reads")).expect("it fits");
    std::fs::write(&path, [stream.as_slice(), b"x"].concat()).expect("it is written");
    let error = Handoff::read(&path).expect_err("more follows").to_string();
    assert_eq!(error, "this is no hand-off: bytes follow its end");
    let two = [stream.clone(), stream].concat();
    let mut input = two.as_slice();
    for _ in 0..2 {
        let incoming =
            Opening::read(&mut input).expect("a manifest").under(&ours, Expect::default()).expect("it opens");
        incoming.finish().expect("it is whole");
    }
    assert!(input.is_empty());
}

/// Written tensor by tensor, a file is byte for byte what is written at once; nothing is left of one that fails.
#[test]
fn written_tensor_by_tensor() {
    let (ours, folder) = (ours(), tempfile::tempdir().expect("a folder"));
    let (handoff, path) = (good(&ours), folder.path().join("state.safetensors"));
    let progress = handoff.progress().expect("a digest");
    let rows = |_: usize, c: &Carried| {
        Ok::<_, Refusal>(Cow::Borrowed(handoff.tensor(&c.name).expect("there").bytes()))
    };
    let seal = write_file(&path, &ours, progress, rows).expect("it is written");
    assert_eq!(Some(seal.as_str()), handoff.seal());
    assert_eq!(std::fs::read(&path).expect("it is there"), handoff.to_bytes().expect("sealed"));

    std::fs::remove_file(&path).expect("it is there");
    let nan = |_: usize, c: &Carried| {
        let mut bytes = rows(0, c)?.into_owned();
        if c.name == "v1" {
            bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        Ok::<_, Refusal>(Cow::Owned(bytes))
    };
    let error = write_file(&path, &ours, progress, nan).expect_err("NaN").to_string();
    assert_eq!(error, "`v1` holds NaN in row 0");
    let short = |i: usize, c: &Carried| rows(i, c).map(|bytes| Cow::Owned(bytes[4..].to_vec()));
    let error = write_file(&path, &ours, progress, short).expect_err("short").to_string();
    assert_eq!(error, "`k0` has 956 bytes; its shape takes 960");
    let far = Progress { position: CTX, ..progress };
    let error = write_file(&path, &ours, far, rows).expect_err("no room").to_string();
    assert_eq!(error, "position 12 leaves no row for the next step in a context of 12");
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 0);
}

/// A writer that is given another layer, other rows or too few layers says which.
#[test]
fn a_writer_keeps_the_order() {
    let handoff = good(&ours());
    let open = || {
        let progress = handoff.progress().expect("a digest");
        StreamWriter::open(Vec::new(), handoff.contract().clone(), progress).expect("it opens")
    };
    let of_layer = |layer| rows_of(&handoff, layer);
    let error = open().layer(1, &of_layer(1)).expect_err("layer 0 is first").to_string();
    assert_eq!(error, "this is no hand-off: 2 tensors of layer 1 are given; layer 0 is next");
    let error = open().layer(0, &of_layer(0)[..1]).expect_err("one is missing").to_string();
    assert_eq!(error, "this is no hand-off: 1 tensors of layer 0 are given; layer 0 is next");
    let error = open().layer(0, &[[], []]).expect_err("no rows").to_string();
    assert_eq!(error, "`k0` has 0 bytes; its shape takes 960");
    let mut stream = open();
    stream.layer(0, &of_layer(0)).expect("it is sent");
    stream.layer(7, &[] as &[&[u8]]).expect("a layer that carries nothing");
    let error = stream.close(None).expect_err("layer 1 is missing").to_string();
    assert_eq!(error, "`k1` of layer 1 is missing; `v1` of layer 1 is missing");
}

/// A frame of a stream taken apart.
#[derive(Clone)]
struct Frame {
    header: Value,
    data: Vec<u8>,
}

fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let len = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + len]).expect("JSON");
        let ends = header.as_object().expect("a map").values().filter_map(|i| i["data_offsets"][1].as_u64());
        let data = ends.max().unwrap_or(0) as usize;
        frames.push(Frame { header, data: bytes[8 + len..8 + len + data].to_vec() });
        bytes = &bytes[8 + len + data..];
    }
    frames
}

fn joined(frames: &[Frame]) -> Vec<u8> {
    let one = |f: &Frame| {
        let header = f.header.to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &f.data].concat()
    };
    frames.iter().flat_map(one).collect()
}

/// What is wrong with a stream's frames is said by name, whether it is read at once or under a contract.
#[test]
fn frames_out_of_order() {
    let ours = ours();
    let good = frames(&streamed(&good(&ours)));
    assert_eq!(good.len(), 4);
    let form = |what: &str| format!("this is no hand-off: {what}");
    let check = |case: &str, change: &dyn Fn(&mut Vec<Frame>), wanted: &str| {
        let mut frames = good.clone();
        change(&mut frames);
        let bytes = joined(&frames);
        let error = Handoff::from_bytes(bytes.clone()).err().unwrap_or_else(|| panic!("{case} was read"));
        assert_eq!(shortened(&error.to_string()), wanted, "{case}");
        let piped = Handoff::from_reader(&mut bytes.as_slice()).err();
        assert_eq!(shortened(&piped.expect("an error").to_string()), wanted, "{case}");
        let error = taken(&bytes, &ours).err().unwrap_or_else(|| panic!("{case} was taken"));
        assert_eq!(shortened(&error.to_string()), wanted, "{case}");
    };
    let meta = |f: &mut Frame, key: &str, value: Value| f.header["__metadata__"][key] = value;
    check("swapped", &|f| f.swap(1, 2), &form("the frame of layer 0 follows that of layer 1"));
    check("doubled", &|f| f.insert(1, f[1].clone()), &form("the frame of layer 0 follows that of layer 0"));
    check("no opening", &|f| drop(f.remove(0)), &form("it begins with a frame `layer`"));
    check("opened twice", &|f| f.insert(1, f[0].clone()), &form("there is a frame `open` in it"));
    check("not closed", &|f| drop(f.pop()), "the hand-off ends early: after layer 1, before it is closed");
    check("opened alone", &|f| f.truncate(1), "the hand-off ends early: before its first layer");
    check("an unknown frame", &|f| meta(&mut f[1], "frame", json!("x")), &form("there is a frame `x` in it"));
    check(
        "no kind",
        &|f| drop(f[1].header["__metadata__"].as_object_mut().map(|m| m.remove("frame"))),
        &form("there is a frame in it that does not say which"),
    );
    check("a sign", &|f| meta(&mut f[1], "layer", json!("+0")), &form("a frame of a layer has no `layer`"));
    let empty = |f: &mut Vec<Frame>| {
        let header = json!({ "__metadata__": { "frame": "layer", "layer": "9" } });
        f.insert(3, Frame { header, data: vec![] });
    };
    check("a layer that carries nothing", &empty, &form("the frame of layer 9 has no tensors"));
    check("no layer", &|f| meta(&mut f[1], "layer", json!("-1")), &form("a frame of a layer has no `layer`"));
    check(
        "in another layer",
        &|f| meta(&mut f[2], "layer", json!("5")),
        &form("`k1` is in the frame of layer 5, and listed elsewhere"),
    );
    check(
        "an opening with tensors",
        &|f| {
            let layer = f.remove(1);
            let manifest = f[0].header["__metadata__"]["tranship"].clone();
            f[0] = layer;
            meta(&mut f[0], "frame", json!("open"));
            meta(&mut f[0], "tranship", manifest);
        },
        &form("the frame that opens it has tensors"),
    );
    let edit = |f: &mut Frame, edit: &dyn Fn(&mut Value)| {
        let line = f.header["__metadata__"]["tranship"].as_str().expect("a manifest").to_owned();
        let mut manifest: Value = serde_json::from_str(&line).expect("JSON");
        edit(&mut manifest);
        meta(f, "tranship", json!(manifest.to_string()));
    };
    check(
        "a next token at once",
        &|f| edit(&mut f[0], &|m| m["next_token"] = json!(3)),
        &form("the frame that opens it names the next token, which its close is to name"),
    );
    check(
        "another position at the close",
        &|f| edit(&mut f[3], &|m| m["position"] = json!(6)),
        &form("the manifests of its opening and its close differ"),
    );
    check(
        "a close without a manifest",
        &|f| drop(f[3].header["__metadata__"].as_object_mut().map(|m| m.remove("tranship"))),
        &form("the metadata of its close has no `tranship`"),
    );
}

/// What the form allows and the contract does not: refused under the contract, every reason of a frame at once.
#[test]
fn refused_under_a_contract() {
    let ours = ours();
    let good = frames(&streamed(&good(&ours)));
    let refused = |case: &str, change: &dyn Fn(&mut Vec<Frame>)| {
        let mut frames = good.clone();
        change(&mut frames);
        let bytes = joined(&frames);
        let whole = Handoff::from_bytes(bytes.clone()).ok().and_then(|h| ours.check(&h).err());
        assert!(whole.is_some(), "{case} was accepted at once");
        shortened(&taken(&bytes, &ours).err().unwrap_or_else(|| panic!("{case} was taken")).to_string())
    };
    let seal = refused("a byte", &|f| f[2].data[5] ^= 1);
    assert!(seal.starts_with("the seal is broken: "), "{seal}");
    let unsealed = refused("no seal", &|f| {
        drop(f[3].header["__metadata__"].as_object_mut().map(|m| m.remove("seal")));
    });
    assert_eq!(unsealed, "the hand-off is not sealed");
    let missing = refused("a layer is left out", &|f| drop(f.remove(1)));
    assert!(
        missing.starts_with("`k0` of layer 0 is missing; `v0` of layer 0 is missing; the seal"),
        "{missing}"
    );
    let nan = refused("NaN", &|f| f[1].data[8..12].copy_from_slice(&f32::NAN.to_le_bytes()));
    assert_eq!(nan, "`k0` holds NaN in row 0");
    let named = refused("another name", &|f| {
        let header = f[1].header.as_object_mut().expect("a map");
        let tensor = header.remove("k0").expect("there");
        header.insert("zz".into(), tensor);
    });
    assert_eq!(named, "`zz` is no carried tensor of this model");
}

/// After a tensor that was refused nothing is given any more, whatever its sender sealed.
#[test]
fn nothing_comes_after_a_refusal() {
    let ours = ours();
    for streams in [false, true] {
        let mut draft = Draft::of(&good(&ours));
        draft.part("v0").bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        let bytes = draft.bytes();
        let bytes = if streams { restreamed(&bytes) } else { bytes };
        let mut incoming = Opening::read(bytes.as_slice())
            .expect("a manifest")
            .under(&ours, Expect::default())
            .expect("it fits");
        let mut given = 0;
        while let Ok(Some(_)) = incoming.next_tensor() {
            given += 1;
        }
        assert_eq!(given, 1);
        let error = incoming.next_tensor().expect_err("it was refused").to_string();
        assert_eq!(error, "this is no hand-off: it was refused before");
        assert!(incoming.finish().is_err());
    }
}

/// A file as a stream whose seal leaves out the tensors with NaN, as a hostile sender could make it.
fn restreamed(file: &[u8]) -> Vec<u8> {
    let file = &frames(file)[0];
    let manifest: Value =
        serde_json::from_str(file.header["__metadata__"]["tranship"].as_str().expect("a manifest"))
            .expect("JSON");
    let mut opening = manifest.clone();
    opening["next_token"] = Value::Null;
    let frame = |metadata: Value| Frame { header: json!({ "__metadata__": metadata }), data: vec![] };
    let mut all = vec![frame(json!({ "frame": "open", "tranship": opening.to_string() }))];
    let mut sealed = format!("tranship handoff 1\n{manifest}\n");
    for layer in ["0", "1"] {
        let mut one = frame(json!({ "frame": "layer", "layer": layer }));
        for name in [format!("k{layer}"), format!("v{layer}")] {
            let mut info = file.header[&name].clone();
            let at = |i: usize| info["data_offsets"][i].as_u64().expect("an offset") as usize;
            let bytes = &file.data[at(0)..at(1)];
            if name != "v0" {
                let sizes =
                    info["shape"].as_array().expect("sizes").iter().map(Value::to_string).collect::<Vec<_>>();
                sealed += &format!("{name} f32 [{}] {}\n", sizes.join(", "), blake3::hash(bytes).to_hex());
            }
            let start = one.data.len();
            one.data.extend_from_slice(bytes);
            info["data_offsets"] = json!([start, one.data.len()]);
            one.header[&name] = info;
        }
        all.push(one);
    }
    let seal = blake3::hash(sealed.as_bytes()).to_hex().to_string();
    all.push(frame(json!({ "frame": "close", "tranship": manifest.to_string(), "seal": seal })));
    joined(&all)
}

/// What a manifest alone shows is refused before a tensor is read, every reason at once.
#[test]
fn refused_by_the_manifest_alone() {
    let other = contract(CTX, &parity().with_kv(DType::F16));
    let mut there = good(&contract(CTX, &parity())).contract().clone();
    there.identity.weights = Some(WEIGHTS.replace('a', "b"));
    there.carried.pop();
    (there.carried[0].axes[1].size, there.carried[0].segments) = (5, None);
    let progress = Progress::of(&TOKENS);
    // The opening's bytes alone, from a stream that would go on.
    let mut stream = StreamWriter::open(Vec::new(), there.clone(), progress).expect("it opens");
    let rows: Vec<Vec<u8>> =
        there.of_layer(0).map(|c| vec![0; c.bytes(5).expect("countable") as usize]).collect();
    stream.layer(0, &rows).expect("it is sent");
    let rows: Vec<Vec<u8>> =
        there.of_layer(1).map(|c| vec![0; c.bytes(5).expect("countable") as usize]).collect();
    stream.layer(1, &rows).expect("it is sent");
    let (bytes, _) = stream.close(None).expect("it is closed");
    let opening = frames(&bytes).into_iter().take(1).collect::<Vec<_>>();
    let error = Opening::read(joined(&opening).as_slice())
        .expect("a manifest")
        .under(&other, Expect::default())
        .err();
    let Refusal { errors } = error.expect("it does not fit");
    let kinds: Vec<String> =
        errors.iter().map(|e| format!("{e:?}").split([' ', '{']).next().unwrap_or("").into()).collect();
    assert_eq!(
        kinds,
        ["Weights", "Policy", "Axes", "Axes", "Dtype", "Dtype", "Dtype", "Missing"],
        "{errors:?}"
    );
}

/// Bytes that were asked for at once, at most.
struct Watched<'a> {
    bytes: &'a [u8],
    most: &'a AtomicUsize,
}

impl Read for Watched<'_> {
    fn read(&mut self, memory: &mut [u8]) -> std::io::Result<usize> {
        self.most.fetch_max(memory.len(), Ordering::Relaxed);
        self.bytes.read(memory)
    }
}

/// Who announces more than it sends gets no memory for it: a header or a tensor of terabytes.
#[test]
fn announced_and_not_sent() {
    let ours = ours();
    let mut draft = Draft::of(&good(&ours));
    let rows = 1u64 << 40;
    draft.manifest["contract"]["ctx"] = json!(rows);
    draft.manifest["position"] = json!(rows - 1);
    for part in &mut draft.parts {
        draft.manifest["contract"]["carried"].as_array_mut().expect("a list").iter_mut().for_each(|c| {
            c["axes"][0]["size"] = json!(rows);
        });
        part.shape[0] = rows - 1;
    }
    let (mut at, mut header) = (0u64, serde_json::Map::new());
    header.insert("__metadata__".into(), json!({ "tranship": draft.manifest.to_string(), "seal": WEIGHTS }));
    for part in &draft.parts {
        let end = at + (rows - 1) * 192;
        let info = json!({ "dtype": "F32", "shape": part.shape, "data_offsets": [at, end] });
        header.insert(part.name.clone(), info);
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&[0; 4096]);
    let most = AtomicUsize::new(0);
    let error = Handoff::from_reader(&mut Watched { bytes: &bytes, most: &most }).expect_err("it ends early");
    assert_eq!(
        error.to_string(),
        format!("the hand-off ends early: after 4096 of {} bytes of `k0`", (rows - 1) * 192)
    );
    assert!(most.load(Ordering::Relaxed) <= 64 << 20);
    // Under a contract it is refused before any of it is read.
    let most = AtomicUsize::new(0);
    let error = Opening::read(Watched { bytes: &bytes, most: &most })
        .expect("a manifest")
        .under(&ours, Expect::default())
        .err();
    let error = error.expect("no room").to_string();
    assert!(error.starts_with("position 1099511627775 leaves no row"), "{error}");
    assert!(most.load(Ordering::Relaxed) < 1 << 20);

    let mut huge = u64::MAX.to_le_bytes().to_vec();
    huge.extend_from_slice(b"{}");
    let error = Handoff::from_reader(&mut huge.as_slice()).expect_err("a header past all bounds").to_string();
    assert!(error.contains("a header of 18446744073709551615 bytes: 4194304 are read at most"), "{error}");
    let long = [&4_000_000u64.to_le_bytes()[..], b"{}"].concat();
    let error =
        Handoff::from_reader(&mut long.as_slice()).expect_err("a header that does not come").to_string();
    assert!(error.contains("a header of 4000000 bytes, and 2 are there"), "{error}");
}

#[test]
fn cut_anywhere() {
    let ours = ours();
    let stream = streamed(&good(&ours));
    for end in 0..stream.len() {
        assert!(Handoff::from_bytes(stream[..end].to_vec()).is_err(), "{end} of {} bytes", stream.len());
        assert!(Handoff::from_reader(&mut &stream[..end]).is_err(), "{end} of {} bytes", stream.len());
        assert!(taken(&stream[..end], &ours).is_err(), "{end} of {} bytes", stream.len());
    }
    let whole = good(&ours).to_bytes().expect("sealed");
    for end in 0..whole.len() {
        assert!(taken(&whole[..end], &ours).is_err(), "{end} of {} bytes", whole.len());
    }
    let error = taken(&[whole.as_slice(), b"x"].concat(), &ours).expect_err("more follows").to_string();
    assert_eq!(error, "this is no hand-off: bytes follow its end");
}

proptest! {
    /// A changed byte is never taken: of a header it changes the form or the seal, of a tensor the seal. What changes
    /// nothing that is read, as a space of the padding does not, leaves the same hand-off.
    #[test]
    fn any_byte_of_a_stream(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let ours = ours();
        let handoff = good(&ours);
        let mut bytes = streamed(&handoff);
        let at = at.index(bytes.len());
        bytes[at] = to;
        match taken(&bytes, &ours) {
            Err(_) => {}
            Ok((tensors, progress)) => {
                prop_assert_eq!(progress, handoff.progress()?);
                for ((_, found), wanted) in tensors.iter().zip(handoff.state()) {
                    prop_assert_eq!(found.bytes(), wanted.bytes());
                }
            }
        }
        let _: Result<Handoff, HandoffError> = Handoff::from_bytes(bytes);
    }
}
