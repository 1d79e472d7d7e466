//! Split GGUF: parts that lie side by side, and each way that they can disagree.

mod common;

use common::{Folder, Gguf, refused, string, ty, views_are_sound};
use tranship_weights::Checkpoint;

/// Part `number` (from 0) of `count`, with one tensor of its own.
fn part(number: u16, count: u16, tensors: i32) -> Gguf {
    Gguf::default()
        .key("split.no", ty::U16, number.to_le_bytes())
        .key("split.count", ty::U16, count.to_le_bytes())
        .key("split.tensors.count", ty::I32, tensors.to_le_bytes())
        .tensor(&format!("t{number}"), &[2], 24, &[number as u8, 9])
}

fn part_name(number: usize) -> String {
    format!("m-{number:05}-of-00003.gguf")
}

#[test]
fn split_files_open_from_any_part() {
    let folder = Folder::new();
    folder.write(&part_name(1), part(0, 3, 3).key("general.name", ty::STR, string("n")).build());
    folder.write(&part_name(2), part(1, 3, 3).build());
    folder.write(&part_name(3), part(2, 3, 3).build());
    for opened in 1..=3 {
        let c = Checkpoint::open(&folder.path().join(part_name(opened))).unwrap();
        views_are_sound(&c);
        let names: Vec<_> = c.tensors().map(|v| v.name().to_owned()).collect();
        assert_eq!(names, ["t0", "t1", "t2"]);
        assert_eq!(c.get("t2").unwrap().bytes(), [2, 9]);
        assert_eq!(c.metadata().get_str("general.name").unwrap(), "n");
        assert_eq!(c.files().len(), 3);
        let sum: u64 = (1..=3).map(|n| folder.path().join(part_name(n)).metadata().unwrap().len()).sum();
        assert_eq!(c.file_bytes(), sum);
    }
}

#[test]
fn split_refusals() {
    type Parts = [Option<Gguf>; 3];
    let good = || -> Parts { [Some(part(0, 3, 3)), Some(part(1, 3, 3)), Some(part(2, 3, 3))] };
    let with = |at: usize, g: Option<Gguf>| -> Parts {
        let mut parts = good();
        parts[at] = g;
        parts
    };
    let plain = || Gguf::default().tensor("t9", &[1], 24, &[0]);
    let cases: Vec<(&str, Parts, &str, &str)> = vec![
        ("missing part", with(1, None), "m-00002-of-00003.gguf", "part 2 of 3 is missing"),
        (
            "another count",
            with(2, Some(part(2, 4, 3))),
            "m-00003-of-00003.gguf",
            "key `split.count`, byte 65: split mismatch: wanted 3, found 4",
        ),
        (
            "another number",
            with(1, Some(part(2, 3, 3))),
            "m-00002-of-00003.gguf",
            "key `split.no`, byte 40: split mismatch: wanted 1, found 2",
        ),
        ("not a part", with(1, Some(plain())), "m-00002-of-00003.gguf", "key `split.count` is missing"),
        (
            "too few tensors",
            with(2, Some(part(2, 3, 4))),
            "m-00003-of-00003.gguf",
            "key `split.tensors.count`, byte 98: split mismatch: wanted 3, found 4",
        ),
        (
            "duplicate across parts",
            with(2, Some(Gguf { tensors: part(0, 3, 3).tensors, ..part(2, 3, 3) })),
            "m-00003-of-00003.gguf",
            "duplicate tensor name, first in",
        ),
        (
            "a part cut short",
            with(1, Some(Gguf { tensor_count: Some(9), ..part(1, 3, 3) })),
            "m-00002-of-00003.gguf",
            "tensors",
        ),
    ];
    for (case, parts, file, wanted) in cases {
        let folder = Folder::new();
        for (i, part) in parts.iter().enumerate() {
            if let Some(part) = part {
                folder.write(&part_name(i + 1), part.build());
            }
        }
        let first = folder.path().join(part_name(1));
        refused(case, Checkpoint::open(&first), file, wanted);
    }
    let folder = Folder::new();
    refused(
        "renamed",
        folder.open("x.gguf", part(0, 3, 3).build()),
        "x.gguf",
        "is one of 3 parts, but its name does not end in",
    );
    let zero = "m-00000-of-00003.gguf";
    refused("part 0", folder.open(zero, part(0, 3, 3).build()), zero, "is one of 3 parts");
}
