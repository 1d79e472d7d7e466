//! What a step keeps and what it does not: memories, scratch, and the edge of a state.

mod common;

use common::{Weights, compile, parity, run};
use tranship_backend::{BackendError, CarriedSpec, Input, Outputs, RowState, Segment, State};
use tranship_dtype::DType;
use tranship_program::{Extent, ValueId};

const MEMORY: &str = "
program decode layer=1
  x : [n, 2]
  s : [key 2, value 2]
  g : [2] @ \"decay\"
  one : [2, 2] @ \"one\"
  y = linear(x, s[..])
  s[..] = s[..] * g + one
  return y + linear(x, s[..])
";

fn decay() -> Weights {
    Weights::of(&[("decay", &[2], &[0.5, 2.0]), ("one", &[2, 2], &[1.0, 2.0, 3.0, 4.0])])
}

#[test]
fn a_memory_advances_from_step_to_step_and_for_each_sequence_alone() {
    let mut step = compile(&[MEMORY], &decay(), &parity());
    let (mut a, mut b) = (step.new_state().unwrap(), step.new_state().unwrap());
    // s: 0, then one, then one·g + one, …: columns go 1, 1.5, 1.75 (from 1) and 2, 6, 14 (from 2).
    let x = [1.0, 0.0];
    let mut next = |state: &mut dyn State| run(step.as_mut(), state, 0, 1, Input::Rows(&x));
    assert_eq!(next(a.as_mut()), [1.0, 3.0]); // 0 + 1, 0 + 3
    assert_eq!(next(a.as_mut()), [1.0 + 1.5, 3.0 + 4.5]);
    assert_eq!(next(b.as_mut()), [1.0, 3.0], "another sequence starts anew");
    assert_eq!(next(a.as_mut()), [1.5 + 1.75, 4.5 + 5.25]);
    let floats = |bytes: Vec<u8>| -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    assert_eq!(floats(a.read(0, 0..2).unwrap()), [1.75, 14.0, 5.25, 28.0]);
    assert_eq!(floats(b.read(0, 0..2).unwrap()), [1.0, 2.0, 3.0, 4.0]);
    // What is written at the edge is what the next step starts from.
    b.write(0, 0, &a.read(0, 0..2).unwrap()).unwrap();
    assert_eq!(next(b.as_mut()), next(a.as_mut()));
}

#[test]
fn a_memory_is_kept_in_its_type() {
    let mut step = compile(&[MEMORY], &decay(), &parity().with_state(DType::F16));
    let mut state = step.new_state().unwrap();
    assert_eq!(state.memory_bytes(), 8);
    run(step.as_mut(), state.as_mut(), 0, 1, Input::Rows(&[1.0, 1.0]));
    let wanted: Vec<u8> =
        [1.0, 2.0, 3.0, 4.0].iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    assert_eq!(state.read(0, 0..2).unwrap(), wanted);
    // Its values saturate when they no longer fit, and stay finite: the second column doubles every step.
    for _ in 0..20 {
        run(step.as_mut(), state.as_mut(), 0, 1, Input::Rows(&[1.0, 1.0]));
    }
    let bytes = state.read(0, 0..1).unwrap();
    assert_eq!(half::f16::from_le_bytes([bytes[2], bytes[3]]), half::f16::MAX);
}

#[test]
fn scratch_does_not_outlive_a_step() {
    let text = "
program p ctx=4
  x   : [n, 2]
  pos : index
  t   : [4, 2]
  r   : [n, 2]
  t[pos .. pos+n] = silu(x)
  r[..] = x + x
  return t[pos .. pos+n] * r[..]
";
    let mut step = compile(&[text], &Weights(Vec::new()), &parity());
    let mut state = step.new_state().unwrap();
    assert_eq!(state.memory_bytes(), 0, "nothing is carried");
    let silu = |v: f32| v / (1.0 + (-v).exp());
    for position in [0, 2, 3] {
        let found = run(step.as_mut(), state.as_mut(), position, 1, Input::Rows(&[1.0, -2.0]));
        for (f, x) in found.iter().zip([1.0f32, -2.0]) {
            assert!((f - silu(x) * 2.0 * x).abs() < 1e-6, "at {position}: {f}");
        }
    }
    // Rows at the position end the context, although nothing is carried.
    let mut out = Vec::new();
    let segment = Segment { state: state.as_mut(), position: 4, rows: 1, outputs: Outputs::All };
    let error = step.run(&mut [segment], Input::Rows(&[1.0, 1.0]), &mut out).unwrap_err();
    assert_eq!(error, BackendError::Context { position: 4, rows: 1, ctx: 4 });
}

#[test]
fn rows_of_a_memory_are_read_at_the_position() {
    let text = "
program decode ctx=4
  x   : [n, 2]
  pos : index
  r   : [4, 2]
  w   : [4, 2] @ \"w\"
  r[..] = r[..] + w
  return x + r[pos .. pos+n]
";
    let weights = Weights::of(&[("w", &[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])]);
    let mut step = compile(&[text], &weights, &parity());
    let mut state = step.new_state().unwrap();
    let found = run(step.as_mut(), state.as_mut(), 1, 2, Input::Rows(&[0.0, 0.0, 100.0, 100.0]));
    assert_eq!(found, [3.0, 4.0, 105.0, 106.0]);
    let found = run(step.as_mut(), state.as_mut(), 3, 1, Input::Rows(&[0.0, 0.0]));
    assert_eq!(found, [14.0, 16.0]);
    let segment = Segment { state: state.as_mut(), position: 3, rows: 2, outputs: Outputs::All };
    let error = step.run(&mut [segment], Input::Rows(&[0.0; 4]), &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "position 3 and 2 more rows are past the context of 4");
}

fn spec(rows: usize, cols: usize, dtype: DType) -> CarriedSpec {
    let (name, value, extent) = ("k".to_owned(), ValueId(0), Extent::Append);
    CarriedSpec { name, part: 0, value, rows, cols, dtype, extent }
}

#[test]
fn the_edge_of_a_state_takes_whole_rows_within_it() {
    let mut state = RowState::new(vec![spec(3, 2, DType::F16), spec(2, 32, DType::Q8_0)]).unwrap();
    assert_eq!(state.memory_bytes(), 12 + 68);
    assert_eq!(state.buffer(0), [0; 12]);
    for tensor in 0..2 {
        assert!(state.buffer(tensor).as_ptr().addr().is_multiple_of(64), "rows start a cache line");
    }
    state.write(0, 1, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert_eq!(state.read(0, 1..2).unwrap(), [1, 2, 3, 4]);
    assert_eq!(state.read(0, 0..3).unwrap(), [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(state.read(0, 3..3).unwrap(), []);
    state.write(0, 3, &[]).unwrap();
    state.write(1, 1, &[9; 34]).unwrap();
    assert_eq!(state.buffer(1)[34..], [9; 34]);
    state.buffer_mut(1)[0] = 7;
    assert_eq!(state.read(1, 0..1).unwrap()[0], 7);
    let before = state.buffer(0).to_vec();
    for (result, wanted) in [
        (state.read(0, 0..4).map(|_| ()), "carried tensor k: rows 0..4 of 3 are asked for"),
        (state.read(0, 4..4).map(|_| ()), "carried tensor k: rows 4..4 of 3 are asked for"),
        (state.read(2, 0..1).map(|_| ()), "carried tensor 2: there are only 2 carried tensors"),
        (state.write(0, 2, &[0; 8]), "carried tensor k: rows 2..4 of 3 are asked for"),
        (
            state.write(0, usize::MAX, &[0; 8]),
            "carried tensor k: rows 18446744073709551615..18446744073709551615 of 3 are asked for",
        ),
        (state.write(0, 0, &[0; 6]), "carried tensor k: 6 bytes are no whole number of rows of 4 bytes"),
        (state.write(1, 0, &[0; 33]), "carried tensor k: 33 bytes are no whole number of rows of 34 bytes"),
        (state.write(5, 0, &[]), "carried tensor 5: there are only 2 carried tensors"),
    ] {
        assert_eq!(result.unwrap_err().to_string(), wanted);
    }
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = state.read(0, 2..1);
    assert!(backwards.is_err());
    assert_eq!(state.buffer(0), before, "what is refused writes nothing");
}

#[test]
fn a_ring_is_addressed_by_positions() {
    for extent in [Extent::Ring, Extent::Frontier { rate: 4, keep: 0 }] {
        let mut state = RowState::new(vec![CarriedSpec { extent, ..spec(3, 1, DType::F16) }]).unwrap();
        state.write(0, 5, &[5, 5, 6, 6, 7, 7]).unwrap();
        assert_eq!(state.buffer(0), [6, 6, 7, 7, 5, 5], "position p in slot p % 3");
        assert_eq!(state.read(0, 5..8).unwrap(), [5, 5, 6, 6, 7, 7]);
        assert_eq!(state.read(0, 6..8).unwrap(), [6, 6, 7, 7]);
        state.write(0, 8, &[8, 8]).unwrap();
        assert_eq!(state.read(0, 6..9).unwrap(), [6, 6, 7, 7, 8, 8], "the oldest made room");
        assert_eq!(state.read(0, 100..100).unwrap(), []);
        let before = state.buffer(0).to_vec();
        for (result, wanted) in [
            (state.read(0, 5..9).map(|_| ()), "rows 5..9 of a ring of 3 are asked for"),
            (state.write(0, 1, &[0; 8]), "rows 1..5 of a ring of 3 are asked for"),
            (state.write(0, usize::MAX, &[0; 4]), "rows from 18446744073709551615 on are not countable"),
            (state.write(0, 1, &[0; 3]), "3 bytes are no whole number of rows of 2 bytes"),
        ] {
            assert_eq!(result.unwrap_err().to_string(), format!("carried tensor k: {wanted}"));
        }
        assert_eq!(state.buffer(0), before, "what is refused writes nothing");
    }
}

#[test]
fn a_state_that_cannot_be_is_refused() {
    for (rows, cols, dtype) in
        [(usize::MAX, 2, DType::F32), (1, 31, DType::Q8_0), (usize::MAX / 8, 4, DType::F16)]
    {
        let error = RowState::new(vec![spec(rows, cols, dtype)]).err().unwrap();
        assert_eq!(
            error.to_string(),
            format!("carried tensor k: no memory for {rows} rows of {cols} {dtype}")
        );
    }
}
