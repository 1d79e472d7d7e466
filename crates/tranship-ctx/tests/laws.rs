//! Laws of the typing pass, over every accepted program of the language and random policies, files and devices:
//! what it gives obeys the rules of each class of operation, and what it cannot give it refuses with a typed error.

mod common;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config, TestRng, TestRunner};
use std::cell::Cell;
use std::collections::HashSet;
use std::path::Path;
use tranship_ctx::{Accepts, Activations, ComputeCtx, CtxError, DTypeSet, Device, Typed};
use tranship_dtype::DType;
use tranship_program::ops::Precision;
use tranship_program::{Action, Graph, Kind, Op, Origin, ValueId};

/// The programs that the language's own tests accept, and this crate's layer.
fn programs() -> Vec<Graph> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tranship-program/tests/accepted");
    let mut files: Vec<_> = std::fs::read_dir(folder).expect("programs").map(|e| e.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "tp"));
    files.sort();
    let text = |path: &std::path::PathBuf| std::fs::read_to_string(path).expect("a readable program");
    let mut graphs: Vec<Graph> =
        files.iter().map(|p| common::lift(text(p).split("---\n").next().unwrap_or_default())).collect();
    graphs.push(common::lift(common::LAYER));
    assert!(graphs.len() > 10);
    graphs
}

fn dtype() -> impl Strategy<Value = DType> {
    use DType::*;
    // Three of four are types that a policy may name.
    let good = select(vec![F8E4M3, F8E5M2, F16, BF16, F32, F32, F64]);
    prop_oneof![9 => good, 1 => select(DType::ALL.to_vec())]
}

fn policies() -> impl Strategy<Value = ComputeCtx> {
    let form = select(vec![Activations::Float, Activations::Blocks]);
    let accum = prop_oneof![select(vec![DType::F32, DType::F64]), dtype()];
    (dtype(), dtype(), accum, dtype(), form).prop_map(|(compute, kv, accum, state, form)| {
        let ctx = ComputeCtx::new(compute, Device::of("chip")).with_kv(kv).with_accum(accum);
        ctx.with_state(state).with_activations(form)
    })
}

fn devices() -> impl Strategy<Value = Accepts> {
    let some = |of: DTypeSet| {
        let all: Vec<DType> = of.iter().collect();
        let len = all.len();
        subsequence(all, len.saturating_sub(2)..=len).prop_map(|d| DTypeSet::of(&d))
    };
    let own = Accepts::default();
    let blocks = prop_oneof![Just(own.blocks), Just(DTypeSet::of(&[]))];
    let parts =
        (some(own.compute), some(own.kv), some(own.accum), some(own.state), some(own.weights), blocks);
    parts.prop_map(|(compute, kv, accum, state, weights, blocks)| Accepts {
        compute,
        kv,
        accum,
        state,
        weights,
        blocks,
    })
}

/// Weights stored in types drawn for each, by the place of their name's bytes in a list.
fn stored_in(types: &[DType], name: &str) -> DType {
    types[name.bytes().map(usize::from).sum::<usize>() % types.len()]
}

#[test]
fn no_f32_program_has_a_cast_under_parity() {
    for graph in programs() {
        let typed = common::policy("parity").typed(&graph, &|_| Some(DType::F32), &Accepts::default());
        let typed = typed.unwrap();
        assert!(typed.ledger().is_empty(), "{typed}");
        assert_eq!(typed.graph(), &graph);
    }
}

#[test]
fn what_is_typed_obeys_the_rules() {
    let graphs = programs();
    let config = Config { cases: 2_000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let real = DType::ALL.into_iter().filter(|d| d.is_real()).collect::<Vec<_>>();
    let types = proptest::collection::vec(prop_oneof![20 => select(real), 1 => Just(DType::I32)], 1..4);
    let inputs = (0..graphs.len(), policies(), types, devices());
    let (good, bad) = (Cell::new(0), Cell::new(0));
    let run = TestRunner::new_with_rng(config, rng).run(&inputs, |(graph, ctx, types, accepts)| {
        let graph = &graphs[graph];
        match ctx.typed(graph, &|name| Some(stored_in(&types, name)), &accepts) {
            Ok(typed) => {
                good.set(good.get() + 1);
                obeys(graph, &ctx, &accepts, &typed)?;
            }
            Err(error) => {
                bad.set(bad.get() + 1);
                let named = matches!(
                    error,
                    CtxError::NotAPolicy { .. } | CtxError::Unsupported { .. } | CtxError::Operands { .. }
                );
                prop_assert!(named, "{error}");
            }
        }
        Ok(())
    });
    run.unwrap();
    assert!(good.get() > 200 && bad.get() > 200, "{} typed, {} refused", good.get(), bad.get());
}

fn obeys(graph: &Graph, ctx: &ComputeCtx, accepts: &Accepts, typed: &Typed) -> Result<(), TestCaseError> {
    let given = typed.graph();
    let mut there: HashSet<ValueId> = given.declared().map(|(id, _)| id).collect();
    let mut kept = Vec::new();
    for (i, node) in given.nodes.iter().enumerate() {
        for id in node.action.inputs() {
            prop_assert!(
                there.contains(&id),
                "`{}` is used before it is made\n{typed}",
                given.value(id).name
            );
        }
        there.extend(node.action.out());
        match &node.action {
            Action::Read { tensor, out, .. } => prop_assert_eq!(typed.dtype(*tensor), typed.dtype(*out)),
            Action::Write { tensor, value, .. } => prop_assert_eq!(typed.dtype(*tensor), typed.dtype(*value)),
            Action::Apply { op, args, out } => apply(ctx, accepts, typed, i, (op, args, *out))?,
            Action::Update { op, tensor, args, out } => {
                prop_assert_eq!(typed.dtype(*tensor), ctx.state, "a memory is of the state type");
                let all: Vec<ValueId> = [*tensor].into_iter().chain(args.iter().copied()).collect();
                apply(ctx, accepts, typed, i, (op, &all, *out))?;
            }
        }
        if !common::is_cast(&node.action) {
            kept.push(node.action.clone());
        }
    }
    let casts = given.nodes.iter().filter(|n| common::is_cast(&n.action)).count();
    prop_assert_eq!(casts, typed.ledger().len());
    for cast in typed.ledger().iter() {
        let action = &given.nodes[cast.node].action;
        let found = if let Action::Apply { op: Op::Cast(to), .. } = action { Some(*to) } else { None };
        prop_assert_eq!(found, Some(cast.to));
    }
    // But for the casts, the program is the one that was given.
    let (kept, all): (Vec<_>, Vec<_>) =
        (kept.iter().map(kind).collect(), graph.nodes.iter().map(|n| kind(&n.action)).collect());
    prop_assert_eq!(kept, all);
    Ok(())
}

/// What an action does and to which tensor, without its operands.
fn kind(action: &Action) -> String {
    match action {
        Action::Apply { op, out, .. } => format!("{op:?} {out:?}"),
        Action::Read { tensor, rows, out } => format!("read {tensor:?} {rows} {out:?}"),
        Action::Write { tensor, rows, .. } => format!("write {tensor:?} {rows}"),
        Action::Update { op, tensor, out, .. } => format!("{op:?} {out:?} {tensor:?}"),
    }
}

fn apply(
    ctx: &ComputeCtx,
    accepts: &Accepts,
    typed: &Typed,
    node: usize,
    (op, operands, result): (&Op, &[ValueId], ValueId),
) -> Result<(), TestCaseError> {
    let real = |(i, id): &(usize, &ValueId)| {
        let table = matches!(op, Op::RouteByTable(_)) && *i == 2;
        typed.graph().value(**id).kind == Kind::Float && !table
    };
    let args: Vec<DType> = operands.iter().enumerate().filter(real).map(|(_, id)| typed.dtype(*id)).collect();
    let out = typed.dtype(result);
    match op.precision() {
        Precision::Move => match op {
            Op::Cast(to) => {
                prop_assert_ne!(args[0], out, "a cast that changes nothing");
                prop_assert_eq!(out, *to);
            }
            Op::Join => prop_assert!(args.iter().all(|d| *d == out), "{args:?} gives {out}\n{typed}"),
            _ => prop_assert_eq!(out, args[0].decoded()),
        },
        Precision::Join => {
            prop_assert!(args.iter().all(|d| *d == out), "{op:?} of {args:?} gives {out}\n{typed}");
            prop_assert!(accepts.compute.has(out));
        }
        Precision::Accum => {
            let accum = typed.accum(node).ok_or_else(|| TestCaseError::fail("no accumulator"))?;
            prop_assert!(args.iter().all(|d| d.decoded().fits_in(accum)), "{op:?} of {args:?} in {accum}");
            prop_assert!(ctx.accum.fits_in(accum) && accepts.accum.has(accum));
            let logits = typed.graph().name == "head" && goes_to_the_result(typed, result);
            match op {
                Op::Choose(_) => prop_assert_eq!(out, DType::U32),
                _ => prop_assert_eq!(out, if logits { accum } else { ctx.compute }),
            }
            prop_assert!(logits || out == DType::U32 || accepts.compute.has(out));
            let encoded = |i: &usize| matches!(typed.dtype(operands[*i]), DType::Block(_));
            let matrices: &[usize] = match op {
                Op::Linear(_) => &[1],
                Op::Experts(experts) if experts.gated => &[2, 3],
                Op::Experts(_) => &[2],
                _ => &[],
            };
            let blocks = !matrices.is_empty() && matrices.iter().all(encoded);
            let met = blocks && ctx.activations == Activations::Blocks && accepts.blocks.has(DType::Q8_1);
            // A weight that is stored as such blocks is no activation.
            let weight = matches!(typed.graph().value(operands[0]).origin, Origin::Weight(_));
            prop_assert_eq!(args[0] == DType::Q8_1, met || (weight && args[0] == DType::Q8_1), "{}", typed);
        }
    }
    prop_assert_eq!(typed.accum(node).is_some(), op.precision() == Precision::Accum);
    Ok(())
}

/// Whether a value is the program's result, but for element-wise functions.
fn goes_to_the_result(typed: &Typed, value: ValueId) -> bool {
    let mut ends = HashSet::from([value]);
    for node in &typed.graph().nodes {
        if let Action::Apply { op: Op::Unary(_), args, out } = &node.action
            && ends.contains(&args[0])
        {
            ends.insert(*out);
        }
    }
    ends.contains(&typed.graph().result)
}
