//! Every byte of small valid files, changed and cut: never a panic, and whatever opens is sound.

mod common;

use ::safetensors::SafeTensors;
use common::{Folder, Random, safetensors, small_gguf, views_are_sound};
use tranship_weights::{Checkpoint, WeightsError};

const HEADER: &str = r#"{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}}"#;

/// What each byte is changed to: its eight neighbours by a bit, and the two extremes.
fn changes(byte: u8) -> impl Iterator<Item = u8> {
    (0..8).map(move |bit| byte ^ (1 << bit)).chain([0, 0xff]).filter(move |&b| b != byte)
}

/// Opens every one-byte change of the first `header` bytes; gives each to `check`, and the numbers (opened, refused).
fn change_all(
    name: &str,
    bytes: &[u8],
    header: usize,
    check: impl Fn(&[u8], Result<&Checkpoint, &WeightsError>),
) -> (usize, usize) {
    let folder = Folder::new();
    let mut counts = (0, 0);
    for at in 0..header {
        for to in changes(bytes[at]) {
            let mut changed = bytes.to_vec();
            changed[at] = to;
            let result = folder.open(name, &changed);
            match &result {
                Ok(c) => {
                    views_are_sound(c);
                    counts.0 += 1;
                }
                Err(e) => {
                    let text = e.to_string();
                    assert!(text.contains(name) && text.len() < 1000, "byte {at} to {to}: {text:?}");
                    counts.1 += 1;
                }
            }
            check(&changed, result.as_ref());
        }
    }
    counts
}

/// Every prefix of a file whose data reaches to its end must be refused.
fn cut_all(name: &str, bytes: &[u8]) {
    let folder = Folder::new();
    for len in 0..bytes.len() {
        assert!(folder.open(name, &bytes[..len]).is_err(), "the first {len} bytes of {} opened", bytes.len());
    }
    assert!(folder.open(name, bytes).is_ok());
}

#[test]
fn gguf() {
    let file = small_gguf();
    cut_all("m.gguf", &file.build());
    let (opened, refused) = change_all("m.gguf", &file.build(), file.header().len(), |_, _| {});
    // A changed letter of a name opens; a changed length, type, dimension or offset mostly does not.
    assert!(opened > 100 && refused > 500, "{opened} opened, {refused} refused");
}

/// What this crate accepts, the `safetensors` crate accepts, with the same tensors. The other way round it is
/// stricter only about what is listed here.
fn agrees(bytes: &[u8], ours: Result<&Checkpoint, &WeightsError>) {
    let theirs = SafeTensors::deserialize(bytes);
    match (ours, theirs) {
        (Ok(c), Ok(theirs)) => {
            assert_eq!(c.tensors().len(), theirs.len());
            for (name, tensor) in theirs.iter() {
                let view = c.get(name).unwrap();
                assert_eq!((view.shape(), view.bytes()), (tensor.shape(), tensor.data()), "{name}");
            }
        }
        (Ok(_), Err(e)) => {
            panic!("accepted {:?}, the other reader says: {e}", bytes.escape_ascii().to_string())
        }
        (Err(WeightsError::DuplicateTensor { .. } | WeightsError::ElementType { .. }), _) => {}
        (Err(WeightsError::TooManyDims { .. } | WeightsError::PartialBlock { .. }), _) => {}
        // An absurd axis beside one of size 0.
        (Err(WeightsError::Overflow { .. }), _) => {}
        (Err(e), Ok(_)) => panic!("refused {:?}: {e}", bytes.escape_ascii().to_string()),
        (Err(_), Err(_)) => {}
    }
}

#[test]
fn safetensors_and_agreement_with_the_other_reader() {
    let bytes = safetensors(HEADER, &[0; 11]);
    cut_all("m.safetensors", &bytes);
    let (opened, refused) = change_all("m.safetensors", &bytes, 8 + HEADER.len(), agrees);
    assert!(opened > 20 && refused > 500, "{opened} opened, {refused} refused");
}

#[test]
fn several_bytes_at_once() {
    let folder = Folder::new();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let interesting = [0, 1, 2, 0x7f, 0x80, 0xff, b'"', b'[', b'}', b'9'];
    for (name, bytes) in [("m.gguf", small_gguf().build()), ("m.safetensors", safetensors(HEADER, &[0; 11]))]
    {
        for _ in 0..5000 {
            let mut changed = bytes.clone();
            for _ in 0..=random.below(6) {
                let at = random.below(changed.len());
                match random.below(4) {
                    0 => changed[at] = random.below(256) as u8,
                    1 => changed[at] = interesting[random.below(interesting.len())],
                    2 => drop(changed.remove(at)),
                    _ => changed.insert(at, interesting[random.below(interesting.len())]),
                }
            }
            let result = folder.open(name, &changed);
            if let Ok(c) = &result {
                views_are_sound(c);
            }
            if name == "m.safetensors" {
                agrees(&changed, result.as_ref());
            }
        }
    }
}
