//! Opening by path: folders, bare configurations, and the files beside a model.

mod common;

use common::{Folder, refused, safetensors, small_gguf};
use tranship_weights::{Checkpoint, Format, MAX_CONFIG_BYTES, MAX_SIDECAR_BYTES};

fn tensor(name: &str) -> Vec<u8> {
    safetensors(&format!(r#"{{"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#), &[1])
}

#[test]
fn a_folder_with_one_file_by_any_name() {
    for name in ["model.safetensors", "weights.safetensors"] {
        let folder = Folder::new();
        folder.write(name, tensor("t"));
        folder.write("config.json", r#"{"a": [1]}"#);
        for path in [folder.path().to_owned(), folder.path().join(name)] {
            let c = Checkpoint::open(&path).unwrap();
            assert_eq!((c.format(), c.tensors().len()), (Format::Safetensors, 1));
            assert_eq!(c.config().unwrap()["a"][0], 1);
            assert_eq!(c.path(), path);
        }
    }
}

#[test]
fn a_bare_configuration_has_no_tensors() {
    let folder = Folder::new();
    let path = folder.write("llama.json", r#"{"hidden_size": 2048}"#);
    let c = Checkpoint::open(&path).unwrap();
    assert_eq!((c.format(), c.tensors().len(), c.file_bytes()), (Format::ConfigOnly, 0, 0));
    assert_eq!(c.config().unwrap()["hidden_size"], 2048);
    assert_eq!(c.config_path(), Some(&*path));
    assert!(c.metadata().is_empty() && c.get("t").is_none());
    folder.write("config.json", "{}");
    assert_eq!(Checkpoint::open(folder.path()).unwrap().format(), Format::ConfigOnly);
}

/// Python writes words where JSON has no number; `transformers` has come to write them as objects.
#[test]
fn numbers_without_end_are_read() {
    let folder = Folder::new();
    let text = r#"{"a": [0.0, Infinity], "b": -Infinity, "c": NaN, "d": "\"Infinity, \\", "e": [Infinity], "é": "NaN"}"#;
    let newer = r#"{"a": [0.0, {"__float__": "Infinity"}], "b": {"__float__": "-Infinity"}, "c": {"__float__": "NaN"},
        "d": "\"Infinity, \\", "e": [{"__float__": "Infinity"}], "é": "NaN"}"#;
    let (older, newer) = (folder.open("a.json", text).unwrap(), folder.open("b.json", newer).unwrap());
    assert_eq!(older.config(), newer.config());
    assert_eq!(older.config().unwrap()["d"], "\"Infinity, \\");
    // What is wrong beside them is found where it is.
    let wrong = r#"{"a": Infinity, "b": Inf}"#;
    refused("no word of Python's", folder.open("c.json", wrong), "c.json", "header, byte 6: expected value");
}

#[test]
fn files_beside_the_model() {
    let folder = Folder::new();
    folder.write("tokenizer.json", "{\"t\":1}");
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    let c = folder.open("m.gguf", small_gguf().build()).unwrap();
    assert_eq!(c.sidecar("tokenizer.json").unwrap().unwrap(), b"{\"t\":1}");
    assert!(c.sidecar("chat_template.jinja").unwrap().is_none());
    let sparse = std::fs::File::create(folder.path().join("big.json")).unwrap();
    sparse.set_len(MAX_SIDECAR_BYTES + 1).unwrap();
    for (name, wanted) in [
        ("../x", "`../x` is not a plain file name"),
        ("/etc/hostname", "is not a plain file name"),
        ("sub/x", "is not a plain file name"),
        ("", "`` is not a plain file name"),
        ("..", "`..` is not a plain file name"),
        ("./tokenizer.json", "is not a plain file name"),
        ("a\0b", "is not a plain file name"),
        ("sub", "sub: not a regular file"),
        ("big.json", "268435457 bytes, the most accepted is 268435456"),
    ] {
        let text = c.sidecar(name).unwrap_err().to_string();
        assert!(text.contains(wanted), "{name:?}: wanted {wanted:?}, found {text:?}");
    }
}

#[test]
fn refusals() {
    let folder = Folder::new();
    let open = |name: &str| Checkpoint::open(&folder.path().join(name));
    refused("no such file", open("absent.gguf"), "absent.gguf", "No such file");
    refused("empty folder", Checkpoint::open(folder.path()), "", "no .safetensors file and no config.json");
    refused(
        "unknown ending",
        folder.open("m.bin", [1, 2, 3, 4, 5]),
        "m.bin",
        "wanted a .gguf or .safetensors file",
    );
    refused(
        "empty, unknown ending",
        folder.open("m.bin", []),
        "m.bin",
        "wanted a .gguf or .safetensors file",
    );
    refused(
        "configuration is no JSON",
        folder.open("a.json", "{\"a\":\n  x}"),
        "a.json",
        "header, byte 8: expected value",
    );
    refused("configuration is a list", folder.open("a.json", "[]"), "a.json", "header, byte 0: invalid type");
    refused("configuration is empty", folder.open("a.json", ""), "a.json", "byte 0: EOF");
    refused(
        "configuration is deep",
        folder.open("a.json", "{\"a\":".repeat(1000)),
        "a.json",
        "recursion limit",
    );
    let long = " ".repeat(MAX_CONFIG_BYTES as usize + 1);
    refused(
        "configuration is long",
        folder.open("a.json", long),
        "a.json",
        "4194305 bytes, the most accepted is 4194304",
    );
    folder.write("one.safetensors", tensor("a"));
    folder.write("two.safetensors", tensor("b"));
    refused("several, no index", Checkpoint::open(folder.path()), "", "several .safetensors files");
    folder.write("model.safetensors", tensor("c"));
    folder.write("config.json", "?");
    refused(
        "configuration beside",
        Checkpoint::open(folder.path()),
        "config.json",
        "header, byte 0: expected value",
    );
}
