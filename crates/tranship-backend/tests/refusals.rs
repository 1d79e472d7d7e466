//! What a chain and a batch are held to before anything runs, each fault by name.

mod common;

use common::{Weights, chain, compile, parity, run, try_compile};
use std::sync::Arc;
use tranship_backend::{Backend, BackendError, Chain, Input, MapWeights, Outputs, Reference, Segment, Step};
use tranship_backend::{Bytes, Weight, Weights as Source};
use tranship_dtype::DType;
use tranship_program::Program;
use tranship_tensor::Tensor;

const EMBED: &str = "program embed\n  tokens : index [n]\n  t : [9, 4] @ \"t\"\n  return gather(t, tokens)\n";
const CACHE: &str = "
program decode layer=0 ctx=6
  x   : [n, 4]
  pos : index
  k   : [6, 4]
  k[pos .. pos+n] = silu(x)
  return attend(x, k[.. pos+n], k[.. pos+n], heads: 1, kv_heads: 1, scale: 0.5)
";
const WIDE: &str = "program p\n  x : [n, 5]\n  return silu(x)\n";
const TWO: &str = "program p\n  x : [n, 4]\n  y : [n, 4]\n  return x + y\n";
const FROZEN: &str = "program p\n  x : [n, 4]\n  f : [3, 4]\n  return linear(x, f)\n";
const HASHED: &str = "
program decode layer=0
  x      : [n, 4]
  tokens : index [n]
  w      : [3, 4] @ \"w\"
  table  : [7, 2] @ \"table\"
  return route_by_table(x, w, table, tokens, top_k: 2, score: sigmoid)
";
const LINEAR: &str = "program p\n  x : [n, 4]\n  w : [3, 4] @ \"w\"\n  return linear(x, w)\n";

fn weights() -> Weights {
    let mut weights = Weights::random(1, &[("t", &[9, 4]), ("w", &[3, 4])]);
    weights.0.push(("table", table(&[0, 1, 2, 0, 1, 2, 1, 0, 2, 1, 0, 2, 0, 1])));
    weights
}

/// A table of two experts for each of 7 tokens, of whole numbers.
fn table(experts: &[i64]) -> Tensor {
    let bytes: Vec<u8> = experts.iter().flat_map(|e| e.to_le_bytes()).collect();
    Tensor::new(DType::I64, &[experts.len() / 2, 2], &bytes).unwrap()
}

#[test]
fn programs_that_do_not_fit_are_named() {
    let refused = |texts: &[&str]| chain(texts, &weights(), &parity()).check().unwrap_err().to_string();
    const WHY: &str = "the chain's programs do not fit: ";
    for (texts, wanted) in [
        (&[][..], "there are none"),
        (&[EMBED, WIDE], "program 1 (`p`) takes rows of 5, and gets rows of 4"),
        (&[CACHE, LINEAR, CACHE], "program 2 (`decode`) takes rows of 4, and gets rows of 3"),
        (&[TWO], "program 0 (`p`) takes other than one tensor of rows, or tokens at the start"),
        (&[FROZEN], "program 0 (`p`) reads `f`, which nothing writes or gives: it is no weight"),
        (&[EMBED, EMBED], "program 1 (`embed`) takes other than one tensor of rows, or tokens at the start"),
        (&[CACHE, TWO], "program 1 (`p`) takes other than one tensor of rows, or tokens at the start"),
    ] {
        assert_eq!(refused(texts), format!("{WHY}{wanted}"));
        let error = try_compile(texts, &weights(), &parity()).err().unwrap();
        assert_eq!(error.to_string(), format!("{WHY}{wanted}"), "compiling says the same");
    }
    chain(&[EMBED, CACHE, CACHE, LINEAR], &weights(), &parity()).check().unwrap();
    for texts in [&[EMBED, CACHE, HASHED][..], &[CACHE, HASHED], &[HASHED]] {
        chain(texts, &weights(), &parity()).check().unwrap();
    }
}

#[test]
fn a_chain_knows_its_sizes() {
    let whole = chain(&[EMBED, CACHE, LINEAR], &weights(), &parity());
    assert_eq!(
        (whole.vocab(), whole.ctx(), whole.width_in(), whole.width_out()),
        (Some(9), Some(6), None, 3)
    );
    let hashed = chain(&[EMBED, CACHE, HASHED], &weights(), &parity());
    assert_eq!(
        (hashed.vocab(), hashed.limits().vocab),
        (Some(7), Some(7)),
        "every table has a row for a token"
    );
    let beside = chain(&[CACHE, HASHED], &weights(), &parity());
    assert_eq!((beside.vocab(), beside.width_in(), beside.width_out()), (Some(7), Some(4), 3));
    let rows = chain(&[LINEAR], &weights(), &parity());
    assert_eq!((rows.vocab(), rows.ctx(), rows.width_in(), rows.width_out()), (None, None, Some(4), 3));
    let other = CACHE.replace("ctx=6", "ctx=5").replace("[6, 4]", "[5, 4]");
    let two = chain(&[CACHE, &other], &weights(), &parity());
    assert_eq!(two.ctx(), Some(5), "the fewest rows of all");
    let carried = two.carried();
    let specs: Vec<_> = carried.iter().map(|c| (c.name.as_str(), c.part, c.rows, c.cols, c.dtype)).collect();
    assert_eq!(specs, [("k", 0, 6, 4, DType::F32), ("k", 1, 5, 4, DType::F32)]);
    assert!(!carried[0].same_tensor(&carried[1]));
    assert_eq!(Chain::new(Vec::new(), 0).max_rows, 1);
    let tables = "program embed\n  tokens : index [n]\n  t : [9, 4] @ \"t\"\n  u : [7, 4] @ \"u\"\n  return gather(t, tokens) + gather(u, tokens)\n";
    let weights = Weights::random(1, &[("t", &[9, 4]), ("u", &[7, 4])]);
    assert_eq!(chain(&[tables], &weights, &parity()).vocab(), Some(7), "a token is in every table");
}

/// Weights as they are given, whatever their shape says.
struct Raw(Option<Weight>);

impl Source for Raw {
    fn weight(&self, _: &str) -> Option<Weight> {
        self.0.clone()
    }
}

struct Buffer(Vec<u8>);

impl Bytes for Buffer {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn weights_are_held_to_their_program() {
    let chain = chain(&[LINEAR], &weights(), &parity());
    let refused = |weights: &dyn Source| Reference::new().compile(&chain, weights).err().unwrap();
    assert_eq!(refused(&MapWeights::default()), BackendError::NoWeight("w".into()));
    let raw = |dtype, shape: &[usize], bytes| {
        let data = Arc::new(Buffer(vec![0; bytes]));
        refused(&Raw(Some(Weight::whole(dtype, shape.to_vec(), data)))).to_string()
    };
    const WANTED: &str = "wanted f32 [3, 4] in 48 bytes";
    assert_eq!(raw(DType::F32, &[4, 3], 48), format!("weight \"w\" is f32 [4, 3] in 48 bytes, {WANTED}"));
    assert_eq!(raw(DType::F32, &[12], 48), format!("weight \"w\" is f32 [12] in 48 bytes, {WANTED}"));
    assert_eq!(raw(DType::F16, &[3, 4], 24), format!("weight \"w\" is f16 [3, 4] in 24 bytes, {WANTED}"));
    assert_eq!(raw(DType::F32, &[3, 4], 47), format!("weight \"w\" is f32 [3, 4] in 47 bytes, {WANTED}"));
    assert_eq!(raw(DType::F32, &[3, 4], 52), format!("weight \"w\" is f32 [3, 4] in 52 bytes, {WANTED}"));
    // Pieces are equal parts of the first axis.
    let pieces = |sizes: &[usize]| {
        let pieces = sizes.iter().map(|bytes| Arc::new(Buffer(vec![0; *bytes])) as Arc<dyn Bytes>).collect();
        refused(&Raw(Some(Weight { dtype: DType::F32, shape: vec![3, 4], pieces }))).to_string()
    };
    let found = |what: &str| format!("weight \"w\" is f32 [3, 4] in {what}, {WANTED}");
    assert_eq!(pieces(&[24, 24]), found("48 bytes in 2 pieces"));
    assert_eq!(pieces(&[16, 12, 20]), found("48 bytes in 3 pieces"));
    assert_eq!(pieces(&[16, 16, 12]), found("44 bytes in 3 pieces"));
    assert_eq!(pieces(&[]), found("0 bytes in 0 pieces"));
    // A row that is no whole number of blocks.
    let graph = Program::parse(LINEAR).unwrap().lift().unwrap();
    let odd = parity().typed(&graph, &|_| Some(DType::Q8_0), &Reference::new().caps().accepts).unwrap();
    let odd = Chain::new(vec![Arc::new(odd)], 1);
    let mut map = MapWeights::default();
    map.insert("w", Tensor::zeros(DType::F32, &[3, 4]).unwrap());
    let error = Reference::new().compile(&odd, &map).err().unwrap();
    assert_eq!(
        error.to_string(),
        "weight \"w\" is f32 [3, 4] in 48 bytes, wanted q8_0 [3, 4] in no whole number of bytes"
    );
}

/// The same weight in one piece, in pieces, and with axes of one is one weight.
#[test]
fn a_weight_is_the_same_in_pieces() {
    let chain = chain(&[LINEAR], &weights(), &parity());
    let whole = weights().map().weight("w").unwrap();
    let bytes = whole.joined().into_owned();
    let input = [1.0, -2.0, 0.5, 3.0];
    let outputs = |shape: &[usize], part: usize| {
        let pieces = bytes.chunks(part).map(|b| Arc::new(Buffer(b.to_vec())) as Arc<dyn Bytes>).collect();
        let weight = Weight { dtype: DType::F32, shape: shape.to_vec(), pieces };
        assert_eq!(weight.joined(), bytes);
        let mut step = Reference::new().compile(&chain, &Raw(Some(weight))).unwrap();
        let mut state = step.new_state().unwrap();
        run(step.as_mut(), state.as_mut(), 0, 1, Input::Rows(&input))
    };
    let wanted = outputs(&[3, 4], 48);
    assert!(wanted.iter().all(|y| *y != 0.0));
    assert_eq!(outputs(&[3, 4], 16), wanted);
    assert_eq!(outputs(&[3, 1, 4], 48), wanted);
    assert_eq!(outputs(&[1, 3, 4, 1], 16), wanted);
}

#[test]
fn a_table_lists_experts_that_there_are() {
    let refused = |table: Tensor| {
        let mut weights = weights();
        weights.0.retain(|(name, _)| *name != "table");
        weights.0.push(("table", table));
        try_compile(&[EMBED, HASHED], &weights, &parity()).err().map(|e| e.to_string())
    };
    let good = [0i64, 1, 2, 0, 1, 2, 1, 0, 2, 1, 0, 2, 0, 1];
    let with = |at: usize, expert: i64| {
        let mut listed = good;
        listed[at] = expert;
        table(&listed)
    };
    let message = |row: usize, found: &str| {
        Some(format!("weight \"table\" lists {found} in row {row}, wanted experts from 0 to 2"))
    };
    assert_eq!(refused(table(&good)), None);
    assert_eq!(refused(with(5, 3)), message(2, "3"));
    assert_eq!(refused(with(13, -1)), message(6, "-1"));
    assert_eq!(refused(with(0, 1 << 40)), message(0, "1099511627776"));
    let floats = |last: f32| {
        let mut values: Vec<f32> = good.iter().map(|e| *e as f32).collect();
        values[13] = last;
        Tensor::from_f32(&[7, 2], &values).unwrap()
    };
    assert_eq!(refused(floats(2.0)), None, "of a real type too");
    for (value, found) in [(3.0, "3"), (0.5, "0.5"), (-1.0, "-1"), (f32::NAN, "NaN")] {
        assert_eq!(refused(floats(value)), message(6, found));
    }
    assert_eq!(refused(floats(2.0).cast(DType::F16).unwrap()), None);
}

#[test]
fn rows_that_end_the_context() {
    let compressed = "
program decode ctx=14
  x   : [n, 2]
  pos : index
  c   : [3, 2]
  k   : [2, 2]
  s   : [1] @ \"s\"
  c[pos/4 .. (pos+n)/4] = silu(x)
  kk = join(k[pos-2 .. pos], x)
  k[pos+n-2 .. pos+n] = x
  return compressed_attend(x, kk, c[.. (pos+n)/4], s, heads: 1, scale: 1, window: 3, rate: 4)
";
    let weights = Weights::of(&[("s", &[1], &[0.0])]);
    // Three rows are full after 12 positions, and the fourth is not begun with before 15.
    let one = chain(&[compressed], &weights, &parity());
    assert_eq!(one.ctx(), Some(15));
    let extents: Vec<_> = one.carried().iter().map(|c| (c.name.clone(), c.extent.to_string())).collect();
    assert_eq!(extents, [("c".into(), "compressed 1:4".to_owned()), ("k".into(), "ring".to_owned())]);
    // A ring without rows for each position ends none, unless attention wants all of them.
    let ring = "
program decode ctx=6
  x   : [n, 2]
  pos : index
  k   : [5, 2]
  kk = join(k[pos-5 .. pos], x)
  k[pos+n-5 .. pos+n] = x
  return attend(x, kk, kk, heads: 1, kv_heads: 1, scale: 1WINDOW)
";
    let ctx = |window: &str| chain(&[&ring.replace("WINDOW", window)], &weights, &parity()).ctx();
    assert!(
        Program::parse(&ring.replace("WINDOW", "")).unwrap().lift().is_err(),
        "5 rows reach back 5, not 6"
    );
    let longer = ring.replace("[5, 2]", "[6, 2]").replace("-5 ..", "-6 ..");
    assert_eq!(chain(&[&longer.replace("WINDOW", "")], &weights, &parity()).ctx(), Some(7));
    assert_eq!(chain(&[&longer.replace("WINDOW", ", window: 7")], &weights, &parity()).ctx(), None);
    assert_eq!(ctx(", window: 6"), None);
}

fn batch(step: &mut dyn Step, segments: &[(usize, usize)], input: Input) -> Result<(), BackendError> {
    let mut states: Vec<_> = segments.iter().map(|_| step.new_state().unwrap()).collect();
    let mut batch: Vec<Segment> = states
        .iter_mut()
        .zip(segments)
        .map(|(state, (position, rows))| Segment {
            state: state.as_mut(),
            position: *position,
            rows: *rows,
            outputs: Outputs::All,
        })
        .collect();
    let mut out = Vec::new();
    let result = step.run(&mut batch, input, &mut out);
    assert!(result.is_ok() || out.is_empty(), "nothing is put out when a batch is refused");
    result
}

#[test]
fn batches_are_held_to_their_chain() {
    let mut model = compile(&[EMBED, CACHE], &weights(), &parity());
    let mut layer = compile(&[CACHE], &weights(), &parity());
    let mut free = compile(&[LINEAR], &weights(), &parity());
    let tokens = |step: &mut Box<dyn Step>, segments: &[(usize, usize)], tokens: &[u32]| {
        batch(step.as_mut(), segments, Input::Tokens(tokens)).map_err(|e| e.to_string())
    };
    let rows = |step: &mut Box<dyn Step>, segments: &[(usize, usize)], values: usize| {
        batch(step.as_mut(), segments, Input::Rows(&vec![0.0; values])).map_err(|e| e.to_string())
    };
    let refused = |what: &str| Err(what.to_owned());
    assert_eq!(tokens(&mut model, &[(0, 2), (5, 1)], &[0, 8, 3]), Ok(()));
    assert_eq!(tokens(&mut model, &[(0, 2)], &[0, 9]), refused("token 9 is outside the vocabulary of 9"));
    assert_eq!(tokens(&mut model, &[(0, 2)], &[0]), refused("wanted 2 tokens, found 1"));
    assert_eq!(tokens(&mut model, &[(0, 1), (0, 1)], &[0]), refused("wanted 2 tokens, found 1"));
    assert_eq!(rows(&mut model, &[(0, 1)], 4), refused("wanted tokens, found input rows"));
    assert_eq!(
        tokens(&mut model, &[(0, 1), (5, 2)], &[0, 0, 0]),
        refused("position 5 and 2 more rows are past the context of 6")
    );
    assert_eq!(
        tokens(&mut model, &[(usize::MAX, 2)], &[0, 0]),
        refused("position 18446744073709551615 and 2 more rows are past the context of 6")
    );
    assert_eq!(tokens(&mut model, &[(0, 1), (2, 0)], &[0]), refused("a segment of the batch has no rows"));
    assert_eq!(rows(&mut layer, &[(0, 2)], 8), Ok(()));
    assert_eq!(rows(&mut layer, &[(0, 2)], 7), refused("wanted 8 values of input rows, found 7"));
    assert_eq!(tokens(&mut layer, &[(0, 1)], &[0]), refused("wanted input rows, found tokens"));
    assert_eq!(
        rows(&mut layer, &[(6, 1)], 4),
        refused("position 6 and 1 more rows are past the context of 6")
    );
    assert_eq!(
        rows(&mut free, &[(usize::MAX, 2)], 8),
        refused("position 18446744073709551615 and 2 more rows are not countable")
    );
    assert_eq!(rows(&mut free, &[], 0), Ok(()));
    // Tokens beside rows: wanted where a program takes them, else not looked at but for their number.
    let mut hashed = compile(&[CACHE, HASHED], &weights(), &parity());
    let both = |step: &mut Box<dyn Step>, segments: &[(usize, usize)], values: usize, tokens: &[u32]| {
        let rows = vec![0.0; values];
        batch(step.as_mut(), segments, Input::RowsAndTokens(&rows, tokens)).map_err(|e| e.to_string())
    };
    assert_eq!(both(&mut hashed, &[(0, 2), (5, 1)], 12, &[0, 6, 3]), Ok(()));
    assert_eq!(both(&mut hashed, &[(0, 2)], 8, &[0]), refused("wanted 2 tokens, found 1"));
    assert_eq!(both(&mut hashed, &[(0, 2)], 7, &[0, 1]), refused("wanted 8 values of input rows, found 7"));
    assert_eq!(both(&mut hashed, &[(0, 1)], 4, &[7]), refused("token 7 is outside the vocabulary of 7"));
    assert_eq!(rows(&mut hashed, &[(0, 1)], 4), refused("wanted tokens beside the input rows, found none"));
    assert_eq!(tokens(&mut hashed, &[(0, 1)], &[0]), refused("wanted input rows, found tokens"));
    assert_eq!(both(&mut layer, &[(0, 1)], 4, &[u32::MAX]), Ok(()));
    assert_eq!(both(&mut layer, &[(0, 1)], 4, &[]), refused("wanted 1 tokens, found 0"));
    assert_eq!(both(&mut model, &[(0, 1)], 4, &[0]), refused("wanted tokens, found input rows"));
}

#[test]
fn a_state_of_other_programs_is_refused() {
    let mut layer = compile(&[CACHE], &weights(), &parity());
    let shorter = CACHE.replace("ctx=6", "ctx=5").replace("[6, 4]", "[5, 4]");
    let renamed = CACHE.replace('k', "c").replace("c_heads", "k_heads").replace("cv_heads", "kv_heads");
    for (what, other) in [
        ("other rows", compile(&[&shorter], &weights(), &parity())),
        ("another name", compile(&[&renamed], &weights(), &parity())),
        ("another type", compile(&[CACHE], &weights(), &parity().with_kv(DType::F16))),
        ("more tensors", compile(&[CACHE, CACHE], &weights(), &parity())),
        ("none", compile(&[LINEAR], &weights(), &parity())),
    ] {
        let mut state = other.new_state().unwrap();
        let segment = Segment { state: state.as_mut(), position: 0, rows: 1, outputs: Outputs::All };
        let error = layer.run(&mut [segment], Input::Rows(&[0.0; 4]), &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "a segment's state was made for other programs", "{what}");
    }
    let mut state = layer.new_state().unwrap();
    run(layer.as_mut(), state.as_mut(), 0, 1, Input::Rows(&[0.0; 4]));
}
