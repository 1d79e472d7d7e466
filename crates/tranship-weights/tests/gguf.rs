//! GGUF, whole files: what is read, and each refusal as data.

mod common;

use common::{Folder, Gguf, array, refused, small_gguf, string, ty, views_are_sound};
use tranship_dtype::DType;
use tranship_weights::{Advice, Array, Checkpoint, Format, Value, View};

#[test]
fn reads_tensors_in_the_map() {
    for version in [2, 3] {
        let folder = Folder::new();
        let bytes = Gguf { version, ..small_gguf() }.build();
        let c = folder.open("m.gguf", &bytes).unwrap();
        assert_eq!(c.format(), Format::Gguf);
        assert_eq!(c.file_bytes(), bytes.len() as u64);
        assert_eq!(c.tensor_bytes(), 24 + 36);
        views_are_sound(&c);
        let seen: Vec<_> =
            c.tensors().map(|v| (v.name().to_owned(), v.dtype(), v.shape().to_vec())).collect();
        // The file's innermost-first [3, 2] is two rows of three.
        let wanted = [("a".to_owned(), DType::F32, vec![2, 3]), ("b".to_owned(), DType::Q4_0, vec![2, 32])];
        assert_eq!(seen, wanted);
        let a = c.get("a").unwrap();
        assert_eq!(a.elements(), 6);
        assert_eq!(a.bytes()[4..8], 1.0f32.to_le_bytes());
        let offset = a.source().offset as usize;
        assert!(offset.is_multiple_of(32));
        assert_eq!(&bytes[offset..offset + 24], a.bytes());
        assert!(c.get("c").is_none());
        assert!(c.require("c").unwrap_err().to_string().ends_with("m.gguf: tensor `c` is missing"));
        assert!(c.config().is_none());
    }
}

#[test]
fn a_view_outlives_its_checkpoint_and_crosses_threads() {
    fn check<T: Send + Sync + Clone + 'static>(_: &T) {}
    let folder = Folder::new();
    let c = folder.open("m.gguf", small_gguf().build()).unwrap();
    for advice in [Advice::WillNeed, Advice::Sequential, Advice::Random] {
        c.advise(advice);
    }
    let view: View = c.get("b").unwrap();
    view.advise(Advice::WillNeed);
    check(&view);
    let same = view.clone();
    assert_eq!(view.bytes().as_ptr(), same.bytes().as_ptr(), "a clone shares the map");
    drop(c);
    let sum = std::thread::spawn(move || view.bytes().iter().map(|&b| u32::from(b)).sum::<u32>()).join();
    assert_eq!(sum.unwrap(), (0..36).sum::<u32>());
}

#[test]
fn by_name_is_the_same_whatever_the_file_order() {
    let folder = Folder::new();
    let one =
        Gguf::default().tensor("z", &[1], 24, &[1]).tensor("B", &[1], 24, &[2]).tensor("b", &[1], 24, &[3]);
    let two =
        Gguf::default().tensor("b", &[1], 24, &[3]).tensor("z", &[1], 24, &[1]).tensor("B", &[1], 24, &[2]);
    let list = |c: &Checkpoint| -> Vec<(String, Vec<u8>)> {
        c.tensors_by_name().map(|v| (v.name().to_owned(), v.bytes().to_vec())).collect()
    };
    let one = folder.open("1.gguf", one.build()).unwrap();
    let two = folder.open("2.gguf", two.build()).unwrap();
    assert_eq!(list(&one), [("B".into(), vec![2]), ("b".into(), vec![3]), ("z".into(), vec![1])]);
    assert_eq!(list(&one), list(&two));
    assert_eq!(one.tensors().map(|v| v.name().to_owned()).collect::<Vec<_>>(), ["z", "B", "b"]);
}

#[test]
fn odd_but_legal() {
    let folder = Folder::new();
    let mut g =
        Gguf { alignment: 1, ..Gguf::default() }.key("general.alignment", ty::U32, 1u32.to_le_bytes());
    g = g.tensor("scalar", &[], 0, &[0; 4]).tensor("none", &[0, 5], 0, &[]).tensor("odd", &[3], 24, &[7; 3]);
    let c = folder.open("m.gguf", g.tensor("after", &[2], 1, &[0; 4]).build()).unwrap();
    views_are_sound(&c);
    assert_eq!(c.get("scalar").unwrap().shape(), [0usize; 0]);
    assert_eq!(c.get("none").unwrap().shape(), [5, 0]);
    assert!(c.get("none").unwrap().bytes().is_empty());
    // A vocabulary alone: no tensors, and no padding at the end.
    let vocabulary = Gguf::default().key("k", ty::U8, [1]).header();
    assert_eq!(folder.open("v.gguf", vocabulary).unwrap().tensors().len(), 0);
    // Another ending, the right magic.
    assert_eq!(folder.open("blob", small_gguf().build()).unwrap().format(), Format::Gguf);
}

#[test]
fn type_numbers() {
    let table = [
        (0, "f32"),
        (1, "f16"),
        (2, "q4_0"),
        (3, "q4_1"),
        (6, "q5_0"),
        (7, "q5_1"),
        (8, "q8_0"),
        (9, "q8_1"),
        (10, "q2_k"),
        (11, "q3_k"),
        (12, "q4_k"),
        (13, "q5_k"),
        (14, "q6_k"),
        (15, "q8_k"),
        (20, "iq4_nl"),
        (23, "iq4_xs"),
        (24, "i8"),
        (25, "i16"),
        (26, "i32"),
        (27, "i64"),
        (28, "f64"),
        (30, "bf16"),
        (39, "mxfp4"),
    ];
    let folder = Folder::new();
    for id in 0..64 {
        let known = table.iter().find(|(n, _)| *n == id).map(|(_, name)| name.parse::<DType>().unwrap());
        let bytes = known.map_or(0, |d| d.row_bytes(512).unwrap());
        let g = Gguf::default().tensor("t", &[256, 2], id, &vec![0; bytes]);
        let result = folder.open("m.gguf", g.build());
        match known {
            Some(dtype) => assert_eq!(result.unwrap().get("t").unwrap().dtype(), dtype),
            None => refused(&format!("type {id}"), result, "m.gguf", &format!("tensor type {id}")),
        }
    }
}

#[test]
fn metadata_is_typed() {
    let strings = [string("<s>"), string(""), string("ü")].concat();
    let file = Gguf::default()
        .key("u8", ty::U8, [200])
        .key("u16", ty::U16, 7u16.to_le_bytes())
        .key("negative", ty::I32, (-1i32).to_le_bytes())
        .key("f32", ty::F32, 1e-5f32.to_le_bytes())
        .key("f64", ty::F64, 0.1f64.to_le_bytes())
        .key("yes", ty::BOOL, [1])
        .key("name", ty::STR, string("llama"))
        .key("tokens", ty::ARRAY, array(ty::STR, 3, &strings))
        .key("heads", ty::ARRAY, array(ty::I32, 2, &[3, 0, 0, 0, 4, 0, 0, 0]))
        .key("flags", ty::ARRAY, array(ty::BOOL, 2, &[0, 1]))
        .key("scores", ty::ARRAY, array(ty::F32, 1, &2.5f32.to_le_bytes()))
        .key("empty", ty::ARRAY, array(ty::STR, 0, &[]));
    let folder = Folder::new();
    let c = folder.open("m.gguf", file.build()).unwrap();
    let m = c.metadata();
    assert_eq!(m.len(), 12);
    assert_eq!(m.iter().next(), Some(("u8", &Value::U8(200))));
    assert_eq!((m.get_u64("u8").unwrap(), m.get_u64("u16").unwrap()), (200, 7));
    assert_eq!(m.require::<i32>("negative").unwrap(), -1);
    assert_eq!(m.get_f32("f32").unwrap(), 1e-5);
    assert_eq!(m.require::<f64>("f64").unwrap(), 0.1);
    assert!(m.get_bool("yes").unwrap());
    assert_eq!(m.get_str("name").unwrap(), "llama");
    let tokens = m.get_strings("tokens").unwrap();
    assert_eq!(tokens.iter().collect::<Vec<_>>(), ["<s>", "", "ü"]);
    assert_eq!((tokens.len(), tokens.get(2), tokens.get(3)), (3, Some("ü"), None));
    assert_eq!(m.require::<Vec<u64>>("heads").unwrap(), [3, 4]);
    assert_eq!(m.require::<&[i32]>("heads").unwrap(), [3, 4]);
    assert_eq!(m.require::<&[bool]>("flags").unwrap(), [false, true]);
    assert_eq!(m.require::<&[f32]>("scores").unwrap(), [2.5]);
    assert_eq!(m.get_array("flags").unwrap(), &Array::Bool(vec![false, true]));
    assert!(m.get_strings("empty").unwrap().is_empty());
    assert_eq!(m.optional::<&str>("absent").unwrap(), None);

    let wrong = [
        (
            m.get_u64("absent").map(drop),
            "m.gguf: key `absent` is missing, wanted an integer that is not negative",
        ),
        (m.get_u64("negative").map(drop), "wanted an integer that is not negative, found i32 -1"),
        (m.get_u64("f32").map(drop), "wanted an integer that is not negative, found f32 0.00001"),
        (m.get_f32("f64").map(drop), "wanted an f32, found f64 0.1"),
        (m.get_bool("u8").map(drop), "wanted a bool, found u8 200"),
        (m.get_str("tokens").map(drop), "key `tokens`, byte "),
        (m.get_str("tokens").map(drop), "wanted a string, found [string; 3]"),
        (m.get_strings("heads").map(drop), "wanted an array of strings, found [i32; 2]"),
        (m.get_array("name").map(drop), "wanted an array, found string \"llama\""),
        (m.optional::<u32>("name").map(drop), "found string \"llama\""),
    ];
    for (result, wanted) in wrong {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(wanted), "wanted {wanted:?}, found {text:?}");
    }
}

/// A case: what is wrong, how the small file is made so, and what the refusal says.
type Case = (&'static str, fn(Gguf) -> Vec<u8>, &'static str);

const REFUSALS: &[Case] = &[
    ("empty", |_| Vec::new(), "the file is empty, byte 0"),
    (
        "three bytes",
        |_| b"GGU".to_vec(),
        "header, byte 0: truncated: the magic number takes 4 bytes, 3 remain",
    ),
    (
        "magic",
        |g| [b"GGML", &g.build()[4..]].concat(),
        "byte 0: wrong magic: wanted \"GGUF\", found \"GGML\"",
    ),
    (
        "version 1",
        |g| Gguf { version: 1, ..g }.build(),
        "byte 4: GGUF version 1 is not supported, wanted 2 or 3",
    ),
    ("version 4", |g| Gguf { version: 4, ..g }.build(), "GGUF version 4 is not supported"),
    ("version 0", |g| Gguf { version: 0, ..g }.build(), "GGUF version 0 is not supported"),
    (
        "big-endian",
        |g| Gguf { version: 3u32.swap_bytes(), ..g }.build(),
        "byte 4: big-endian GGUF (version 3)",
    ),
    (
        "ends in counts",
        |g| Gguf { tensor_count: Some(0), ..g }.build()[..20].to_vec(),
        "byte 16: truncated: keys takes 8 bytes, 4 remain",
    ),
    (
        "tensor count",
        |g| Gguf { tensor_count: Some(u64::MAX), ..g }.build(),
        "byte 8: 18446744073709551615 tensors, where",
    ),
    (
        "key count",
        |g| Gguf { key_count: Some(1 << 40), ..g }.build(),
        "byte 16: 1099511627776 keys, where there is room for at most",
    ),
    ("one tensor more", |g| Gguf { tensor_count: Some(3), ..g }.header(), "truncated: the name of a tensor"),
    ("value type", |g| g.key("k", 13, [0; 8]).build(), "key `k`, byte 158: unknown value type 13"),
    (
        "key length",
        |g| cut_string(g.key("long", ty::U8, [1]), "long"),
        "truncated: the name of a key takes 1099511627776 bytes",
    ),
    (
        "string length",
        |g| g.key("k", ty::STR, (1u64 << 63).to_le_bytes()).build(),
        "key `k`, byte 170: truncated: a string takes 9223372036854775808 bytes",
    ),
    (
        "key not UTF-8",
        |g| replace(&g.key("kXk", ty::U8, [1]).build(), b"kXk", b"k\xffk"),
        "byte 158: the name of a key is not valid UTF-8",
    ),
    (
        "string not UTF-8",
        |g| g.key("k", ty::STR, b"\x02\0\0\0\0\0\0\0a\xff").build(),
        "key `k`, byte 171: a string is not valid UTF-8",
    ),
    (
        "array count",
        |g| g.key("k", ty::ARRAY, array(ty::U32, u64::MAX, &[])).build(),
        "key `k`, byte 166: 18446744073709551615 array elements, where",
    ),
    (
        "array count overflows",
        |g| g.key("k", ty::ARRAY, array(ty::F64, 1 << 61, &[])).build(),
        "2305843009213693952 array elements",
    ),
    (
        "array of strings count",
        |g| g.key("k", ty::ARRAY, array(ty::STR, 1 << 32, &[])).build(),
        "4294967296 array elements",
    ),
    (
        "array of types",
        |g| g.key("k", ty::ARRAY, array(77, 1, &[0; 8])).build(),
        "key `k`, byte 162: unknown value type 77",
    ),
    (
        "nested array",
        |g| g.key("k", ty::ARRAY, array(ty::ARRAY, 1, &array(ty::U8, 1, &[1]))).build(),
        "key `k`, byte 162: an array of arrays",
    ),
    (
        "bool",
        |g| g.key("k", ty::BOOL, [2]).build(),
        "key `k`, byte 162: a truth value must be 0 or 1, found 2",
    ),
    (
        "bool in array",
        |g| g.key("k", ty::ARRAY, array(ty::BOOL, 3, &[0, 1, 9])).build(),
        "key `k`, byte 176: a truth value must be 0 or 1, found 9",
    ),
    (
        "duplicate key",
        |g| g.key("list", ty::U8, [1]).build(),
        "key `list`, byte 161: duplicate key, first at byte 114",
    ),
    ("alignment 0", |g| align(g, 0), "key `general.alignment`, byte 94: alignment 0 is not a power of two"),
    ("alignment 48", |g| align(g, 48), "alignment 48 is not a power of two"),
    (
        "alignment in another type",
        |mut g| {
            g.keys[1].1 = ty::F32;
            g.build()
        },
        "key `general.alignment`, byte 94: wanted an integer from 0",
    ),
    (
        "too many dims",
        |mut g| {
            g.tensors[0].dims = vec![1, 1, 2, 3, 1];
            g.build()
        },
        "tensor `a`, byte 158: 5 dimensions, the most accepted is 4",
    ),
    (
        "absurd dims",
        |g| replace(&g.build(), b"a\x02\0\0\0", b"a\xff\xff\xff\xff"),
        "tensor `a`, byte 158: 4294967295 dimensions",
    ),
    (
        "dims overflow",
        |mut g| {
            g.tensors[0].dims = vec![1 << 32, 1 << 32];
            g.build()
        },
        "tensor `a`, byte 158: the size of f32 [4294967296, 4294967296] overflows",
    ),
    (
        "bytes overflow",
        |mut g| {
            g.tensors[0].dims = vec![1 << 31, 1 << 32];
            g.build()
        },
        "the size of f32 [4294967296, 2147483648] overflows",
    ),
    (
        "overflow behind a zero",
        |mut g| {
            g.tensors[0].dims = vec![1 << 40, 1 << 40, 0];
            g.build()
        },
        "the size of f32 [0, 1099511627776, 1099511627776] overflows",
    ),
    (
        "unknown type",
        |mut g| {
            g.tensors[0].ty = 99;
            g.build()
        },
        "tensor `a`, byte 178: unknown tensor type 99",
    ),
    (
        "unsupported type",
        |mut g| {
            g.tensors[0].ty = 16;
            g.build()
        },
        "tensor `a`, byte 178: tensor type 16 (IQ2_XXS) is not supported",
    ),
    (
        "ternary type",
        |mut g| {
            g.tensors[0].ty = 34;
            g.build()
        },
        "tensor type 34 (TQ1_0) is not supported",
    ),
    (
        "removed type",
        |mut g| {
            g.tensors[0].ty = 31;
            g.build()
        },
        "tensor type 31 (Q4_0_4_4, removed from the format)",
    ),
    (
        "half a block",
        |mut g| {
            g.tensors[1].dims = vec![16, 4];
            g.build()
        },
        "tensor `b`, byte 199: rows of 16 elements are not whole q4_0 blocks of 32",
    ),
    (
        "misaligned",
        |mut g| {
            g.tensors[1].offset = 33;
            g.build()
        },
        "tensor `b`, byte 223: data offset 33 is not a multiple of the alignment 32",
    ),
    (
        "offset beyond",
        |mut g| {
            g.tensors[1].offset = 1 << 40;
            g.build()
        },
        "tensor `b`, byte 223: data at bytes 1099511628032 to 1099511628068, but the file has 324 bytes",
    ),
    (
        "offset overflows",
        |mut g| {
            g.tensors[1].offset = u64::MAX - 31;
            g.build()
        },
        "tensor `b`, byte 223: data at bytes 18446744073709551840 to",
    ),
    (
        "truncated data",
        |g| {
            let b = g.build();
            b[..b.len() - 1].to_vec()
        },
        "tensor `b`, byte 223: data at bytes 288 to 324, but the file has 323 bytes",
    ),
    ("no data", |g| g.header(), "tensor `a`, byte 182: data at bytes 256 to 280, but the file has 231 bytes"),
    (
        "overlap",
        |mut g| {
            g.tensors[1].offset = 0;
            g.build()
        },
        "overlaps that of `a`, which ends at 280",
    ),
    (
        "duplicate tensor",
        |mut g| {
            g.tensors[1].name = "a".into();
            g.build()
        },
        "tensor `a`, byte 190: duplicate tensor name, first in",
    ),
    (
        "name with a newline",
        |mut g| {
            g.tensors[0].name = "a\nb".into();
            g.tensors[0].ty = 99;
            g.build()
        },
        "tensor `a\\nb`",
    ),
    (
        "endless name",
        |mut g| {
            g.tensors[0].name = "n".repeat(500);
            g.tensors[0].ty = 99;
            g.build()
        },
        "n…`, byte",
    ),
];

#[test]
fn refusals() {
    let folder = Folder::new();
    for (case, mutate, wanted) in REFUSALS {
        refused(case, folder.open("bad.gguf", mutate(small_gguf())), "bad.gguf", wanted);
    }
    assert!(folder.open("good.gguf", small_gguf().build()).is_ok(), "the file before any mutation is legal");
}

fn align(mut g: Gguf, alignment: u32) -> Vec<u8> {
    g.keys[1].2 = alignment.to_le_bytes().to_vec();
    g.build()
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|w| w == from).expect("the bytes to replace");
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

/// Makes the length of a string 2^40.
fn cut_string(g: Gguf, s: &str) -> Vec<u8> {
    let long = [&(1u64 << 40).to_le_bytes()[..], s.as_bytes()].concat();
    replace(&g.build(), &string(s), &long)
}
