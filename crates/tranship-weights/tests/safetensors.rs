//! safetensors: what is read, and each refusal as data.

mod common;

use common::{Folder, refused, safetensors, views_are_sound};
use tranship_dtype::DType;
use tranship_weights::{Checkpoint, Format};

const TWO: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[2],"data_offsets":[3,7]},"a":{"dtype":"U8","shape":[1,3],"data_offsets":[0,3]}}"#;

#[test]
fn reads_unaligned_tensors_in_data_order() {
    let folder = Folder::new();
    let c = folder.open("m.safetensors", safetensors(TWO, &[1, 2, 3, 4, 5, 6, 7])).unwrap();
    assert_eq!(c.format(), Format::Safetensors);
    views_are_sound(&c);
    assert_eq!(c.tensors().map(|v| v.name().to_owned()).collect::<Vec<_>>(), ["a", "b"]);
    let b = c.get("b").unwrap();
    assert_eq!((b.dtype(), b.shape(), b.bytes()), (DType::F16, &[2][..], &[4, 5, 6, 7][..]));
    assert_eq!(b.source().offset as usize, 8 + TWO.len() + 3);
    assert_eq!(c.metadata().get_str("format").unwrap(), "pt");
    assert!(c.config().is_none());
}

#[test]
fn every_element_type() {
    let table = [
        ("BOOL", "bool"),
        ("U8", "u8"),
        ("U16", "u16"),
        ("U32", "u32"),
        ("U64", "u64"),
        ("I8", "i8"),
        ("I16", "i16"),
        ("I32", "i32"),
        ("I64", "i64"),
        ("F4", "f4e2m1"),
        ("F6_E2M3", "f6e2m3"),
        ("F6_E3M2", "f6e3m2"),
        ("F8_E4M3", "f8e4m3"),
        ("F8_E5M2", "f8e5m2"),
        ("F8_E8M0", "f8e8m0"),
        ("F16", "f16"),
        ("BF16", "bf16"),
        ("F32", "f32"),
        ("F64", "f64"),
    ];
    let folder = Folder::new();
    for (theirs, ours) in table {
        let dtype: DType = ours.parse().unwrap();
        let bytes = 3 * dtype.row_bytes(4).unwrap();
        let header = format!(r#"{{"t":{{"dtype":"{theirs}","shape":[3,4],"data_offsets":[0,{bytes}]}}}}"#);
        let file = safetensors(&header, &vec![0; bytes]);
        // The independent reader takes the same file, so the size is the format's.
        assert!(::safetensors::SafeTensors::deserialize(&file).is_ok(), "{theirs}");
        let c = folder.open("m.safetensors", file).unwrap();
        assert_eq!(c.get("t").unwrap().dtype(), dtype, "{theirs}");
        views_are_sound(&c);
    }
}

fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

/// The member of a header for the bytes `from` to `to`.
fn u8(name: &str, from: u64, to: u64) -> String {
    format!(r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{from},{to}]}}"#, to - from)
}

/// A file with 8 bytes of data.
fn file(header: &str) -> Vec<u8> {
    safetensors(header, &[0; 8])
}

fn all_refused(cases: Vec<(&str, Vec<u8>, &str)>) {
    let folder = Folder::new();
    for (case, bytes, wanted) in cases {
        refused(case, folder.open("bad.safetensors", bytes), "bad.safetensors", wanted);
    }
}

#[test]
fn refusals_of_the_header() {
    all_refused(vec![
        ("empty", vec![], "the file is empty, byte 0"),
        ("five bytes", vec![0; 5], "byte 0: truncated: the length of the header takes 8 bytes, 5 remain"),
        (
            "header beyond",
            file(TWO)[..60].to_vec(),
            "byte 8: truncated: the header takes 139 bytes, 52 remain",
        ),
        ("header absurd", vec![0xff; 32], "byte 0: the header takes 18446744073709551615 bytes or more"),
        ("no header", vec![0; 8], "header, byte 8: EOF while parsing"),
        (
            "not UTF-8",
            [&3u64.to_le_bytes()[..], b"{\"\xff"].concat(),
            "byte 10: JSON text is not valid UTF-8",
        ),
        ("not JSON", file("{\"a\":}"), "header, byte 13: expected value"),
        ("not an object", file("[1]"), "header, byte 8: invalid type: sequence, expected an object"),
        ("deep", file(&format!("{{\"a\":{}", "[".repeat(100_000))), "header, byte"),
        (
            "no dtype",
            file(r#"{"t":{"shape":[8],"data_offsets":[0,8]}}"#),
            "tensor `t`, byte 46: missing field `dtype`",
        ),
        (
            "dtype twice",
            file(r#"{"t":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#),
            "duplicate field `dtype`",
        ),
        ("negative size", file(&one("U8", "[-8]", "[0,8]")), "tensor `t`, byte"),
        ("fractional offset", file(&one("U8", "[8]", "[0,8.5]")), "tensor `t`, byte"),
        ("three offsets", file(&one("U8", "[8]", "[0,8,9]")), "tensor `t`, byte"),
    ]);
}

#[test]
fn refusals_of_a_tensor() {
    all_refused(vec![
        (
            "unknown dtype",
            file(&one("F7", "[8]", "[0,8]")),
            "tensor `t`, byte 13: unsupported element type `F7`",
        ),
        ("complex", file(&one("C64", "[1]", "[0,8]")), "unsupported element type `C64`"),
        (
            "too many dims",
            file(&one("U8", "[1,1,1,1,1,1,1,1,8]", "[0,8]")),
            "tensor `t`, byte 13: 9 dimensions, the most accepted is 8",
        ),
        (
            "dims overflow",
            file(&one("U8", "[4294967296,4294967296]", "[0,8]")),
            "tensor `t`, byte 13: the size of u8 [4294967296, 4294967296] overflows",
        ),
        ("bytes overflow", file(&one("F64", "[2305843009213693952]", "[0,8]")), "overflows"),
        (
            "half a byte",
            file(&one("F4", "[5]", "[0,3]")),
            "rows of 5 elements are not whole f4e2m1 blocks of 2",
        ),
        (
            "backwards",
            file(&one("U8", "[8]", "[8,0]")),
            "tensor `t`, byte 13: data offsets 8 to 0 run backwards",
        ),
        (
            "too short",
            file(&one("U8", "[9]", "[0,8]")),
            "tensor `t`, byte 13: u8 [9] takes 9 bytes, its data offsets give 8",
        ),
        ("too long", file(&one("F32", "[1]", "[0,8]")), "f32 [1] takes 4 bytes, its data offsets give 8"),
        (
            "truncated data",
            file(&one("U8", "[9]", "[0,9]")),
            "tensor `t`, byte 13: data at bytes 61 to 70, but the file has 69 bytes",
        ),
        (
            "offset overflows",
            file(&one("U8", "[0]", "[18446744073709551615,18446744073709551615]")),
            "but the file has",
        ),
    ]);
}

#[test]
fn refusals_of_the_layout() {
    all_refused(vec![
        (
            "overlap",
            file(&format!("{{{},{}}}", u8("a", 0, 5), u8("b", 4, 8))),
            "tensor `b`, byte 65: data at byte 117 overlaps that of `a`, which ends at 118",
        ),
        (
            "nothing inside something",
            file(&format!("{{{},{}}}", u8("a", 0, 8), u8("b", 4, 4))),
            "overlaps that of `a`",
        ),
        ("gap at the front", file(&format!("{{{}}}", u8("a", 1, 8))), "bytes 61 to 62 belong to no tensor"),
        (
            "gap in the middle",
            file(&format!("{{{},{}}}", u8("a", 0, 3), u8("b", 4, 8))),
            "belong to no tensor",
        ),
        ("left over", file(&format!("{{{}}}", u8("a", 0, 7))), "bytes 68 to 69 belong to no tensor"),
        (
            "duplicate name",
            file(&format!("{{{},{}}}", u8("a", 0, 4), u8("a", 4, 8))),
            "tensor `a`, byte 65: duplicate tensor name, first in",
        ),
        (
            "escaped duplicate",
            file(&format!("{{{},{}}}", u8("a", 0, 4), u8("\\u0061", 4, 8))),
            "tensor `a`, byte 70: duplicate tensor name",
        ),
        (
            "metadata twice",
            file(r#"{"__metadata__":{},"__metadata__":{}}"#),
            "key `__metadata__`, byte 42: duplicate key, first at byte 24",
        ),
        (
            "metadata of numbers",
            file(r#"{"__metadata__":{"k":1}}"#),
            "key `k`, byte 29: invalid type: integer",
        ),
        (
            "metadata key twice",
            file(r#"{"__metadata__":{"k":"1","k":"2"}}"#),
            "key `k`, byte 37: duplicate key, first at byte 29",
        ),
    ]);
}

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// A shard with one byte for each name.
fn shard(names: &[&str]) -> Vec<u8> {
    let entry = |(i, n): (usize, &&str)| {
        format!(r#""{n}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{}]}}"#, i + 1)
    };
    let members: Vec<_> = names.iter().enumerate().map(entry).collect();
    safetensors(&format!("{{{}}}", members.join(",")), &vec![7; names.len()])
}

fn index(places: &[(&str, &str)]) -> String {
    let members: Vec<_> = places.iter().map(|(t, s)| format!(r#""{t}":"{s}""#)).collect();
    format!(r#"{{"metadata":{{"total_size":2}},"weight_map":{{{}}}}}"#, members.join(","))
}

fn sharded(places: &[(&str, &str)], shards: &[(&str, Vec<u8>)]) -> Folder {
    let folder = Folder::new();
    folder.write("model.safetensors.index.json", index(places));
    for (name, bytes) in shards {
        folder.write(name, bytes);
    }
    folder
}

#[test]
fn shards_are_one_checkpoint() {
    let [one, two] = SHARDS;
    let folder =
        sharded(&[("z", one), ("a", two), ("b", two)], &[(one, shard(&["z"])), (two, shard(&["b", "a"]))]);
    folder.write("config.json", r#"{"hidden_size": 4}"#);
    for path in [folder.path().to_owned(), folder.path().join("model.safetensors.index.json")] {
        let c = Checkpoint::open(&path).unwrap();
        views_are_sound(&c);
        assert_eq!(c.tensors().map(|v| v.name().to_owned()).collect::<Vec<_>>(), ["z", "b", "a"]);
        assert_eq!(c.tensors_by_name().map(|v| v.name().to_owned()).collect::<Vec<_>>(), ["a", "b", "z"]);
        assert_eq!(c.config().unwrap()["hidden_size"], 4);
        assert_eq!(c.config_path(), Some(&*folder.path().join("config.json")));
        assert_eq!(c.get("a").unwrap().source().file, folder.path().join(two));
    }
}

#[test]
fn shard_refusals() {
    let [one, two] = SHARDS;
    let both = [(one, shard(&["z"])), (two, shard(&["a"]))];
    let index_file = "model.safetensors.index.json";
    let places = [("z", one), ("a", two)];
    type Refusal<'a> = (&'a str, Folder, &'a str, &'a str);
    let cases: Vec<Refusal<'_>> = vec![
        (
            "missing shard",
            sharded(&places, &both[..1]),
            index_file,
            "tensor `a`, byte 86: shard `model-00002-of-00002.safetensors` does not exist",
        ),
        (
            "shard lacks it",
            sharded(&[("z", one), ("a", two), ("c", two)], &both),
            index_file,
            "lacks this tensor",
        ),
        (
            "in the other shard",
            sharded(&[("z", one), ("a", one)], &[(one, shard(&["z"])), (two, shard(&["a"]))]),
            index_file,
            "tensor `a`, byte 86: shard",
        ),
        (
            "extra",
            sharded(&places, &[(one, shard(&["z", "y"])), (two, shard(&["a"]))]),
            one,
            "tensor `y`, byte 65: ",
        ),
        (
            "duplicate across shards",
            sharded(&places, &[(one, shard(&["z", "a"])), (two, shard(&["a"]))]),
            two,
            "tensor `a`, byte 13: duplicate tensor name, first in",
        ),
        (
            "twice in the index",
            sharded(&[("z", one), ("z", one)], &both),
            index_file,
            "tensor `z`, byte 86: duplicate tensor name",
        ),
        (
            "leaves the folder",
            sharded(&[("z", "../m.safetensors")], &both),
            index_file,
            "`../m.safetensors` is not a plain file name",
        ),
        ("absolute", sharded(&[("z", "/m.safetensors")], &both), index_file, "is not a plain file name"),
        ("no tensors", sharded(&[], &both), index_file, "`weight_map` places no tensor"),
        ("empty shard", sharded(&places, &[(one, vec![]), (two, shard(&["a"]))]), one, "the file is empty"),
    ];
    for (case, folder, file, wanted) in cases {
        refused(case, Checkpoint::open(folder.path()), file, wanted);
    }
    for (case, text, wanted) in [
        ("no map", r#"{"metadata":{}}"#, "missing field `weight_map`"),
        ("map of numbers", r#"{"weight_map":{"z":1}}"#, "tensor `z`, byte 19: invalid type"),
        ("map is a list", r#"{"weight_map":[]}"#, "header, byte 14: invalid type"),
        ("not JSON", "weight", "header, byte 0: expected value"),
    ] {
        let folder = Folder::new();
        folder.write(index_file, text);
        refused(case, Checkpoint::open(folder.path()), index_file, wanted);
    }
}
