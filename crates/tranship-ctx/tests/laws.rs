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
use tranship_program::{Action, Graph, Kind, Op, ValueId};

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
    let real = |id: &ValueId| given.value(*id).kind == Kind::Float;
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
            Action::Apply { op, args, out } => {
                let args: Vec<DType> = args.iter().filter(|a| real(a)).map(|a| typed.dtype(*a)).collect();
                apply(ctx, accepts, typed, i, (op, &args, typed.dtype(*out)))?;
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
    }
}

fn apply(
    ctx: &ComputeCtx,
    accepts: &Accepts,
    typed: &Typed,
    node: usize,
    (op, args, out): (&Op, &[DType], DType),
) -> Result<(), TestCaseError> {
    match op.precision() {
        Precision::Move => match op {
            Op::Cast(to) => {
                prop_assert_ne!(args[0], out, "a cast that changes nothing");
                prop_assert_eq!(out, *to);
            }
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
            let last = typed.graph().nodes[node].action.out() == Some(typed.graph().result);
            let logits = typed.graph().name == "head" && last;
            prop_assert_eq!(out, if logits { accum } else { ctx.compute });
            prop_assert!(logits || accepts.compute.has(out));
            let blocks = *op == Op::Linear && matches!(args[1], DType::Block(_));
            prop_assert!(args[0] != DType::Q8_1 || (blocks && ctx.activations == Activations::Blocks));
        }
    }
    prop_assert_eq!(typed.accum(node).is_some(), op.precision() == Precision::Accum);
    Ok(())
}
