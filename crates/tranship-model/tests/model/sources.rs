//! The sources of weights: their grammar, what a checkpoint gives for them, and what is refused.

use super::common::fixture;
use std::fs;
use tranship_dtype::DType;
use tranship_model::{ModelError, ModelSpec, Names, Part, Source};
use tranship_weights::Checkpoint;

/// A tensor of a file: name, type as safetensors spells it, shape, bytes.
type Stored = (String, &'static str, Vec<usize>, Vec<u8>);

/// A safetensors file, as the format has it: header length, header, data.
fn file(tensors: &[Stored]) -> Vec<u8> {
    let mut offset = 0;
    let mut entry = |(name, dtype, shape, bytes): &Stored| {
        let (start, end) = (offset, offset + bytes.len());
        offset = end;
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#)
    };
    let header = format!("{{{}}}", tensors.iter().map(&mut entry).collect::<Vec<_>>().join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    tensors.iter().for_each(|(.., bytes)| file.extend(bytes));
    file
}

fn open(tensors: &[Stored]) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, file(tensors)).unwrap();
    Checkpoint::open(&path).unwrap()
}

/// F32 elements `first, first + 1, …`.
fn floats(name: &str, shape: &[usize], first: usize) -> Stored {
    let count = shape.iter().product::<usize>();
    let bytes = (first..first + count).flat_map(|v| (v as f32).to_le_bytes()).collect();
    (name.to_owned(), "F32", shape.to_vec(), bytes)
}

fn bytes(name: &str, shape: &[usize], bytes: Vec<u8>) -> Stored {
    (name.to_owned(), "U8", shape.to_vec(), bytes)
}

/// The shape of a source, how many pieces it lies in, and its F32 elements; pieces agree with what is assembled.
fn found(checkpoint: &Checkpoint, text: &str) -> (Vec<usize>, Option<usize>, Vec<f32>) {
    let found = Source::parse(text).unwrap().find(checkpoint).unwrap_or_else(|e| panic!("{e}"));
    let mut assembled = vec![0xaa; found.bytes_len()];
    found.assemble(&mut assembled);
    let pieces = found.pieces();
    if let Some(pieces) = &pieces {
        assert_eq!(pieces.iter().flat_map(|p| p.bytes()).copied().collect::<Vec<u8>>(), assembled, "{text}");
    }
    assert_eq!(found.dtype(), DType::F32);
    let values = assembled.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    (found.shape(), pieces.map(|p| p.len()), values)
}

#[test]
fn texts_are_read_and_printed_again() {
    for text in [
        "model.layers.0.mlp.up_proj.weight",
        "ünïcode/näme-with:colons",
        "w[0..4]",
        "w[:, 4..8]",
        "w[1::2]",
        "w[:, 0::3]",
        "w^T",
        "w^T[:, 0::2][3..4]^T",
        "w^M[2..4]",
        "beside(a.k^T, a.v)",
        "beside(a[0..2], b[:, 1..2]^T)",
        "beside",
        "layers.3.experts.{expert}.w1.weight",
        "e.{expert}[:, 64..128]",
        "mxfp4(a.blocks, a.scales)",
        "mxfp4(a.{expert}.blocks, a.{expert}.scales)[:, 1::2]",
        "mxfp4",
        "w[9223372036854775806..9223372036854775807]",
    ] {
        let source = Source::parse(text).unwrap();
        assert_eq!(source.to_string(), text);
        assert_eq!(Source::parse(&source.to_string()).unwrap(), source);
    }
    for (text, printed) in
        [("w[:,0..2]", "w[:, 0..2]"), ("w[007..8]", "w[7..8]"), ("mxfp4(a,b)", "mxfp4(a, b)")]
    {
        assert_eq!(Source::parse(text).unwrap().to_string(), printed);
    }
}

#[test]
fn texts_that_are_no_source_are_refused_at_their_place() {
    for (text, why) in [
        ("", "byte 0: wanted a tensor's name, found the end"),
        ("[0..1]", "byte 0: wanted a tensor's name, found `[0..1]`"),
        ("a b", "byte 1: wanted `[`, `^T`, `^M` or the end, found ` b`"),
        ("w[", "byte 2: wanted a whole number, found the end"),
        ("w[-1..2]", "byte 2: wanted a whole number, found `-1..2]`"),
        ("w[0.5..2]", "byte 3: wanted `..` or `::`, found `.5..2]`"),
        ("w[0..]", "byte 5: wanted a whole number, found `]`"),
        ("w[4..4]", "byte 5: wanted a number above 4, found `4]`"),
        ("w[5..4]", "byte 5: wanted a number above 5, found `4]`"),
        ("w[0::0]", "byte 5: wanted a step of at least 1, found `0]`"),
        ("w[0..2", "byte 6: wanted `]`, found the end"),
        ("w[:, :, 0..2]", "byte 5: wanted a whole number, found `:, 0..2]`"),
        ("w[0..9223372036854775808]", "byte 5: wanted a whole number, found `922337203685`"),
        ("w[0..99999999999999999999]", "byte 5: wanted a whole number, found `999999999999`"),
        ("w^t", "byte 1: wanted `[`, `^T`, `^M` or the end, found `^t`"),
        ("w^T^", "byte 3: wanted `[`, `^T`, `^M` or the end, found `^`"),
        ("w.{layer}", "byte 2: wanted `{expert}`, once in a name, or no brace, found `{layer}`"),
        ("w.{expert}.{expert}", "byte 11: wanted `{expert}`, once in a name, or no brace, found `{expert}`"),
        ("w}", "byte 1: wanted `{expert}`, once in a name, or no brace, found `}`"),
        ("mxfp4(a)", "byte 7: wanted `,`, found `)`"),
        ("mxfp4(a, b", "byte 10: wanted `)`, found the end"),
        ("mxfp4(, b)", "byte 6: wanted a tensor's name, found `, b)`"),
        ("beside(a)", "byte 8: wanted `[`, `^T`, `^M` or the end, found `)`"),
        ("beside(a, b", "byte 11: wanted `[`, `^T`, `^M` or the end, found the end"),
        ("beside(, b)", "byte 7: wanted a tensor's name, found `, b)`"),
        ("beside(a.{expert}, b)", "byte 7: wanted a tensor's name, of no bank, found `a.{expert}, `"),
        ("beside(a, b)^T", "byte 12: wanted the end, for nothing is picked of two sources, found `^T`"),
        ("q4_0(a, b)", "byte 4: wanted `[`, `^T`, `^M` or the end, found `(a, b)`"),
    ] {
        let error = Source::parse(text).unwrap_err();
        assert_eq!(error.to_string(), format!("`{text}`, {why}"));
        assert_eq!(error.name(), text);
    }
}

#[test]
fn rows_and_axes_are_those_of_the_tensor() {
    let checkpoint = open(&[floats("w", &[4, 16], 0), floats("b", &[2, 3, 16], 100), floats("v", &[6], 7)]);
    let rows = |rows: &[usize], first: usize| -> Vec<f32> {
        rows.iter().flat_map(|r| (0..16).map(move |c| (first + r * 16 + c) as f32)).collect()
    };
    let of = |text: &str| found(&checkpoint, text);
    assert_eq!(of("w"), (vec![4, 16], Some(1), rows(&[0, 1, 2, 3], 0)));
    assert_eq!(of("w[1..3]"), (vec![2, 16], Some(1), rows(&[1, 2], 0)));
    assert_eq!(of("w[1..3][1..2]"), (vec![1, 16], Some(1), rows(&[2], 0)));
    assert_eq!(of("w[1::2]"), (vec![2, 16], None, rows(&[1, 3], 0)));
    assert_eq!(of("w[0::3]"), (vec![2, 16], None, rows(&[0, 3], 0)));
    assert_eq!(of("w[0::9223372036854775807]"), (vec![1, 16], Some(1), rows(&[0], 0)));
    assert_eq!(of("w[:, 3..5]"), (vec![4, 2], None, vec![3.0, 4.0, 19.0, 20.0, 35.0, 36.0, 51.0, 52.0]));
    assert_eq!(of("b[1..2]"), (vec![1, 3, 16], Some(1), rows(&[3, 4, 5], 100)));
    assert_eq!(of("b[:, 1..3]"), (vec![2, 2, 16], Some(2), rows(&[1, 2, 4, 5], 100)));
    assert_eq!(of("b[:, 0::2]"), (vec![2, 2, 16], None, rows(&[0, 2, 3, 5], 100)));
    assert_eq!(of("b[:, 0..3]"), (vec![2, 3, 16], Some(1), rows(&[0, 1, 2, 3, 4, 5], 100)));
    assert_eq!(of("v[2..4]"), (vec![2], Some(1), vec![9.0, 10.0]));
    let transposed = |at: usize| -> Vec<f32> {
        (0..16).flat_map(|c| (0..3).map(move |r| (100 + at * 48 + r * 16 + c) as f32)).collect()
    };
    assert_eq!(of("b^T"), (vec![2, 16, 3], None, [transposed(0), transposed(1)].concat()));
    assert_eq!(of("b^T^T"), of("b"));
    assert_eq!(
        of("b^T[:, 1::5]").2,
        [1, 6, 11]
            .map(|c| transposed(0)[c * 3..][..3].to_vec())
            .concat()
            .into_iter()
            .chain([1, 6, 11].map(|c| transposed(1)[c * 3..][..3].to_vec()).concat())
            .collect::<Vec<_>>()
    );
    assert_eq!(of("w^T[3..4]"), (vec![1, 4], None, vec![3.0, 19.0, 35.0, 51.0]));
    assert_eq!(of("b^M"), (vec![6, 16], Some(1), rows(&[0, 1, 2, 3, 4, 5], 100)));
    assert_eq!(of("b^M[2..4]"), (vec![2, 16], Some(1), rows(&[2, 3], 100)));
    assert_eq!(of("w^M"), (vec![64], Some(1), rows(&[0, 1, 2, 3], 0)));
}

#[test]
fn two_sources_lie_beside_each_other_part_by_part() {
    let stored = [floats("k", &[2, 3, 4], 0), floats("v", &[2, 1, 3], 100), floats("w", &[2, 2, 3], 200)];
    let checkpoint = open(&stored);
    let of = |text: &str| found(&checkpoint, text);
    // Of part 0 the columns of `k[0]`, then the rows of `v[0]`; then so of part 1.
    let part = |at: usize| -> Vec<f32> {
        let columns = (0..4).flat_map(|c| (0..3).map(move |r| (at * 12 + r * 4 + c) as f32));
        columns.chain((0..3).map(|c| (100 + at * 3 + c) as f32)).collect()
    };
    assert_eq!(of("beside(k^T, v)"), (vec![10, 3], None, [part(0), part(1)].concat()));
    assert_eq!(of("beside(k^T[1..2], v[1..2])"), (vec![5, 3], None, part(1)));
    let (shape, pieces, values) = of("beside(v, w[:, 1..2])");
    assert_eq!((shape, pieces), (vec![4, 3], None));
    assert_eq!(values, [100, 101, 102, 203, 204, 205, 103, 104, 105, 209, 210, 211].map(|v| v as f32));
}

#[test]
fn a_bank_is_its_experts_side_by_side() {
    let expert = |e: usize| floats(&format!("x.{e}.w"), &[2, 16], e * 32);
    // Not in order in the file, and with one past a gap, which is no part of it.
    let checkpoint = open(&[expert(2), expert(0), expert(1), expert(4)]);
    let of = |text: &str| found(&checkpoint, text);
    let all: Vec<f32> = (0..96).map(|v| v as f32).collect();
    assert_eq!(of("x.{expert}.w"), (vec![3, 2, 16], Some(3), all.clone()));
    assert_eq!(of("x.{expert}.w[1..3]"), (vec![2, 2, 16], Some(2), all[32..].to_vec()));
    assert_eq!(of("x.{expert}.w[0::2]").2, [&all[..32], &all[64..]].concat());
    assert_eq!(
        of("x.{expert}.w[:, 1..2]"),
        (vec![3, 1, 16], Some(3), [1, 3, 5].map(|r| &all[r * 16..][..16]).concat())
    );
    let (shape, pieces, values) = of("x.{expert}.w^T");
    assert_eq!((shape, pieces, &values[32..36]), (vec![3, 16, 2], None, &[32.0, 48.0, 33.0, 49.0][..]));
    let source = Source::parse("x.{expert}.w").unwrap();
    assert_eq!(source.tensors(&checkpoint), ["x.0.w", "x.1.w", "x.2.w"]);
}

/// The values of E2M1, by code.
const FP4: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The element of a block as `DType::MXFP4` has it.
fn element(block: &[u8], index: usize) -> f32 {
    let half = block[1 + index % 16] >> (index / 16 * 4) & 15;
    FP4[usize::from(half)] * 2f32.powi(i32::from(block[0]) - 127)
}

#[test]
fn mxfp4_in_two_tensors_becomes_blocks() {
    let quants: Vec<u8> = (0..2 * 3 * 2 * 16).map(|i| (i * 37 + 11) as u8).collect();
    let scales: Vec<u8> = (0..12).map(|i| 121 + i as u8).collect();
    let split = |e: usize| {
        [
            bytes(&format!("x.{e}.q"), &[3, 2, 16], quants[e * 96..][..96].to_vec()),
            bytes(&format!("x.{e}.s"), &[3, 2], scales[e * 6..][..6].to_vec()),
        ]
    };
    let merged = [bytes("q", &[2, 3, 2, 16], quants.clone()), bytes("s", &[2, 3, 2], scales.clone())];
    let checkpoint = open(&[merged.to_vec(), split(0).to_vec(), split(1).to_vec()].concat());
    let of = |text: &str| {
        let found = Source::parse(text).unwrap().find(&checkpoint).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((found.dtype(), found.pieces().is_none()), (DType::MXFP4, true));
        let mut out = vec![0; found.bytes_len()];
        found.assemble(&mut out);
        (found.shape(), out)
    };
    let (shape, all) = of("mxfp4(q, s)");
    assert_eq!((shape, all.len()), (vec![2, 3, 64], 12 * 17));
    for (b, block) in all.chunks(17).enumerate() {
        for i in 0..32 {
            let code = quants[b * 16 + i / 2] >> (i % 2 * 4) & 15;
            let wanted = FP4[usize::from(code)] * 2f32.powi(i32::from(scales[b]) - 127);
            assert_eq!(element(block, i), wanted, "block {b}, element {i}");
        }
    }
    let rows = |rows: &[usize]| rows.iter().flat_map(|r| all[r * 34..][..34].to_vec()).collect::<Vec<u8>>();
    assert_eq!(of("mxfp4(q, s)[1..2]"), (vec![1, 3, 64], rows(&[3, 4, 5])));
    assert_eq!(of("mxfp4(q, s)[:, 0::2]"), (vec![2, 2, 64], rows(&[0, 2, 3, 5])));
    assert_eq!(of("mxfp4(q, s)[:, 1..2]"), (vec![2, 1, 64], rows(&[1, 4])));
    assert_eq!(of("mxfp4(x.{expert}.q, x.{expert}.s)[:, 1..3]"), (vec![2, 2, 64], rows(&[1, 2, 4, 5])));
    let source = Source::parse("mxfp4(q, s)").unwrap();
    assert_eq!(
        (source.dtype(), source.tensors(&checkpoint)),
        (Some(DType::MXFP4), vec!["q".into(), "s".into()])
    );
}

#[test]
fn what_a_checkpoint_cannot_give_is_refused_by_name() {
    let checkpoint = open(&[
        floats("w", &[4, 16], 0),
        floats("v", &[6], 0),
        floats("d", &[1, 2, 3], 0),
        ("i".into(), "I32", vec![1, 2, 3], vec![0; 24]),
        floats("x.0.w", &[2, 16], 0),
        floats("x.1.w", &[16, 2], 0),
        floats("y.0.b", &[2], 0),
        floats("y.1.b", &[2], 0),
        ("z.0".into(), "F32", vec![1], vec![0; 4]),
        ("z.1".into(), "I32", vec![1], vec![0; 4]),
        bytes("q", &[3, 2, 16], vec![0; 96]),
        bytes("s", &[3, 2], vec![0; 6]),
        bytes("t", &[2, 3], vec![0; 6]),
        bytes("short", &[3, 2, 15], vec![0; 90]),
        bytes("e.0.q", &[1, 1, 16], vec![0; 16]),
        bytes("e.1.q", &[1, 1, 16], vec![0; 16]),
        bytes("e.0.s", &[1, 1], vec![0; 1]),
        bytes("empty", &[0, 288230376151711743, 16], vec![]),
        bytes("empty_s", &[0, 288230376151711743], vec![]),
        bytes("huge", &[0, 864691128455135231, 16], vec![]),
        bytes("huge_s", &[0, 864691128455135231], vec![]),
    ]);
    for (text, why) in [
        ("no.such", "`no.such` is missing, wanted for `no.such`"),
        ("no.{expert}", "`no.0` is missing, wanted for `no.{expert}`"),
        ("x.{expert}.w", "`x.1.w` is f32 [16, 2], wanted f32 [2, 16] like `x.0.w` for `x.{expert}.w`"),
        ("z.{expert}", "`z.1` is i32 [1], wanted f32 [1] like `z.0` for `z.{expert}`"),
        ("w[2..5]", "`w[2..5]`: [2..5] of f32 [4, 16]: wanted at least 5 in axis 0"),
        ("w[4::2]", "`w[4::2]`: [4::2] of f32 [4, 16]: wanted at least 5 in axis 0"),
        ("w[1..3][1..3]", "`w[1..3][1..3]`: [1..3] of f32 [2, 16]: wanted at least 3 in axis 0"),
        ("w[:, 0..17]", "`w[:, 0..17]`: [:, 0..17] of f32 [4, 16]: wanted at least 17 in axis 1"),
        ("v[:, 0..1]", "`v[:, 0..1]`: [:, 0..1] of f32 [6]: wanted an axis 1"),
        ("v^T", "`v^T`: ^T of f32 [6]: wanted two axes in each tensor, of elements that are bytes or more"),
        ("v^M", "`v^M`: ^M of f32 [6]: wanted two axes of one tensor that lie one in the other"),
        ("w^T^M", "`w^T^M`: ^M of f32 [16, 4]: wanted two axes of one tensor that lie one in the other"),
        ("x.{expert}.w^M", "`x.1.w` is f32 [16, 2], wanted f32 [2, 16] like `x.0.w` for `x.{expert}.w^M`"),
        ("beside(w, no)", "`no` is missing, wanted for `no`"),
        (
            "beside(w, w)",
            "`w` is f32 [4, 16], wanted two sources [parts, rows, in], and the first is f32 [4, 16] for `beside(w, w)`",
        ),
        ("beside(d, d^T)", "`d^T` is f32 [1, 3, 2], wanted f32 [1, rows, 3] for `beside(d, d^T)`"),
        ("beside(d, i)", "`i` is i32 [1, 2, 3], wanted f32 [1, rows, 3] for `beside(d, i)`"),
        (
            "y.{expert}.b^T",
            "`y.{expert}.b^T`: ^T of f32 [2, 2]: wanted two axes in each tensor, of elements that are bytes or more",
        ),
        ("mxfp4(q, s)^T", "`mxfp4(q, s)^T`: ^T of mxfp4 [3, 64]: wanted elements that are not in blocks"),
        (
            "mxfp4(q, s)[:, 0..32]",
            "`mxfp4(q, s)[:, 0..32]`: [:, 0..32] of mxfp4 [3, 64]: wanted axis 1 not to be that of the blocks",
        ),
        ("mxfp4(q, t)", "`t` is u8 [2, 3], wanted u8 [3, 2] for `mxfp4(q, t)`"),
        ("mxfp4(q, no)", "`no` is missing, wanted for `mxfp4(q, no)`"),
        ("mxfp4(short, s)", "`short` is u8 [3, 2, 15], wanted u8 [.., in/32, 16] for `mxfp4(short, s)`"),
        ("mxfp4(w, s)", "`w` is f32 [4, 16], wanted u8 [.., in/32, 16] for `mxfp4(w, s)`"),
        (
            "mxfp4(e.{expert}.q, e.{expert}.s)",
            "`e.1.s` is missing, wanted for `mxfp4(e.{expert}.q, e.{expert}.s)`",
        ),
        (
            "mxfp4(huge, huge_s)",
            "`huge` is u8 [0, 864691128455135231, 16], wanted a row that can be counted for `mxfp4(huge, huge_s)`",
        ),
    ] {
        let error = Source::parse(text).unwrap().find(&checkpoint).map(|f| f.shape()).unwrap_err();
        assert_eq!(error.to_string(), why, "{text}");
    }
    // A hostile shape of no elements takes no bytes.
    let empty = Source::parse("mxfp4(empty, empty_s)").unwrap().find(&checkpoint).unwrap();
    assert_eq!(empty.bytes_len(), 0);
    empty.assemble(&mut []);
}

/// A model whose final gain is a bank, and whose tensors are otherwise those of a fixture.
fn spec_of_bank() -> ModelSpec {
    let names = Names::of(&[(Part::Table, "table.{}"), (Part::FinalNorm, "gain.{expert}.{}")]);
    let checkpoint = Checkpoint::open(&fixture("models/llama_base")).unwrap();
    let mut spec = ModelSpec::of(&checkpoint).unwrap();
    spec.layers.clear();
    spec.names = names;
    spec
}

#[test]
fn models_are_held_to_their_sources() {
    let table = || floats("table.weight", &[160, 1, 48], 0);
    let gains = |n: usize, shape: &[usize]| -> Vec<Stored> {
        (0..n).map(|e| floats(&format!("gain.{e}.weight"), shape, e)).collect()
    };
    let spec = spec_of_bank();
    let checked = |tensors: Vec<Stored>| {
        let checkpoint = open(&tensors);
        (spec.check(&checkpoint), spec.unused(&checkpoint).unwrap())
    };
    let (ok, unused) = checked([gains(48, &[1, 1]), vec![table(), floats("other", &[1], 0)]].concat());
    ok.unwrap();
    assert_eq!(unused, ["other"], "each of a bank's tensors is read");
    let refused = |tensors: Vec<Stored>| match checked(tensors).0 {
        Err(ModelError::Tensors { faults, .. }) => {
            faults.iter().map(|f| (f.name().to_owned(), f.to_string())).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let one = |name: &str, why: &str| vec![(name.to_owned(), why.to_owned())];
    let mut holes = gains(48, &[1]);
    holes.remove(31);
    assert_eq!(
        refused([holes, vec![table()]].concat()),
        one("gain.31.weight", "`gain.31.weight` is missing, wanted []")
    );
    let mixed = [gains(1, &[1, 1]), gains(48, &[1])[1..].to_vec(), vec![table()]].concat();
    assert_eq!(
        refused(mixed),
        one(
            "gain.1.weight",
            "`gain.1.weight` is f32 [1], wanted f32 [1, 1] like `gain.0.weight` for `gain.{expert}.weight`"
        )
    );
    assert_eq!(
        refused([gains(48, &[2]), vec![table()]].concat()),
        one("gain.0.weight", "`gain.0.weight` is [2], wanted []")
    );
    assert_eq!(
        refused([gains(49, &[1]), vec![table()]].concat()),
        one("gain.{expert}.weight", "`gain.{expert}.weight` is [49, 1], wanted [48]")
    );
    let flat = floats("table.weight", &[160 * 48], 0);
    assert_eq!(
        refused([gains(48, &[1]), vec![flat]].concat()),
        one("table.weight", "`table.weight` is [7680], wanted [160, 48]")
    );
    let wrong = ModelSpec {
        names: Names::of(&[(Part::Table, "table.{}"), (Part::FinalNorm, "gain[0..4].{}")]),
        ..spec.clone()
    };
    let error = wrong.check(&open(&[table()])).unwrap_err().to_string();
    assert!(
        error.ends_with("`gain[0..4].weight`, byte 10: wanted `[`, `^T`, `^M` or the end, found `.weight`"),
        "{error}"
    );
}
