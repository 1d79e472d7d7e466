//! The whole-model rule at its edges: exact fits, one byte too many, sums that overflow, and changes that must help.

use tranship_residency::{Change, Demand, Home, Kind, Ledger, PlanError, Pool, Residency, plan};

fn demands(weights: [u64; 2], carried: u64, scratch: u64) -> Vec<Demand> {
    vec![
        Demand::new(Kind::Weights, "a", weights[0]),
        Demand::new(Kind::Carried, "k", carried),
        Demand::new(Kind::Weights, "b", weights[1]),
        Demand::new(Kind::Scratch, "s", scratch),
    ]
}

#[test]
fn auto_is_device_when_it_fits() {
    use Residency::*;
    let cases = [
        (Auto, 10, 10, Device),
        (Auto, 10, 9, Mmap),
        (Auto, 0, 0, Device),
        (Auto, u64::MAX, u64::MAX, Device),
        (Device, 10, 0, Device),
        (Mmap, 0, 10, Mmap),
    ];
    for (wish, model, available, wanted) in cases {
        assert_eq!(wish.resolve(model, available), wanted, "{wish}: {model} bytes into {available}");
    }
    assert_eq!(Residency::default(), Auto);
}

#[test]
fn residencies_round_trip() {
    for residency in [Residency::Device, Residency::Mmap, Residency::Auto] {
        assert_eq!(residency.to_string().parse(), Ok(residency));
        assert_eq!(residency.to_string().to_uppercase().parse(), Ok(residency));
        assert_eq!(serde_json::to_value(residency).unwrap(), residency.name());
    }
    let error = "disk".parse::<Residency>().unwrap_err();
    assert_eq!(error.to_string(), "`disk` is not a residency (device, mmap or auto)");
}

/// What `plan` does with a pool of `capacity` and a reserve of 5: the residency and the headroom, or the change.
fn check(demands: &[Demand], capacity: u64, wish: Residency, wanted: Result<(Residency, u64), Change>) {
    let pool = Pool::new("cpu", capacity).with_reserve(5);
    let found = match plan(demands, &[pool], wish) {
        Ok(plan) => {
            let homes = plan.placements.iter().map(|p| p.home == Home::Mapped);
            assert!(homes.eq([plan.residency == Residency::Mmap; 2]), "{plan:?}");
            let on_device = if plan.residency == Residency::Device { 70 } else { 0 };
            assert_eq!(plan.ledgers[0].bytes_of(Kind::Weights), on_device);
            assert_eq!(plan.mapped_bytes, 70 - on_device);
            Ok((plan.residency, plan.ledgers[0].headroom_bytes()))
        }
        Err(PlanError::DoesNotFit { change, .. }) => Err(change),
        Err(other) => panic!("{other}"),
    };
    assert_eq!(found, wanted, "{capacity} bytes, {wish}");
}

#[test]
fn exact_fits_fit() {
    use Residency::*;
    // 70 of weights, 20 carried, 5 of scratch, and the pool's reserve of 5: 100 in all, 30 without the weights.
    let demands = demands([30, 40], 20, 5);
    check(&demands, 100, Auto, Ok((Device, 0)));
    check(&demands, 101, Auto, Ok((Device, 1)));
    check(&demands, 99, Auto, Ok((Mmap, 69)));
    check(&demands, 30, Auto, Ok((Mmap, 0)));
    check(&demands, 29, Auto, Err(Change::ShrinkCarried { bytes: 1 }));
    check(&demands, 10, Auto, Err(Change::ShrinkCarried { bytes: 20 }));
    check(&demands, 9, Auto, Err(Change::GrowPool { bytes: 21 }));
    check(&demands, 1000, Mmap, Ok((Mmap, 970)));
    check(&demands, 29, Mmap, Err(Change::ShrinkCarried { bytes: 1 }));
    check(&demands, 100, Device, Ok((Device, 0)));
    check(&demands, 99, Device, Err(Change::MapWeights));
    check(&demands, 30, Device, Err(Change::MapWeights));
    check(&demands, 29, Device, Err(Change::GrowPool { bytes: 71 }));
}

#[test]
fn the_change_that_an_error_names_is_enough_and_no_less_is() {
    for capacity in 0..110 {
        for wish in [Residency::Auto, Residency::Device, Residency::Mmap] {
            for carried in [20, 75] {
                let fits = |carried, capacity, wish| {
                    plan(&demands([30, 40], carried, 5), &[Pool::new("cpu", capacity)], wish).is_ok()
                };
                let pool = Pool::new("cpu", capacity);
                let Err(error) = plan(&demands([30, 40], carried, 5), &[pool], wish) else { continue };
                let PlanError::DoesNotFit { change, short_bytes, wanted_bytes, .. } = error else {
                    panic!("{error}")
                };
                assert_eq!(wanted_bytes - capacity, short_bytes);
                let (enough, less) = match change {
                    Change::MapWeights => (fits(carried, capacity, Residency::Mmap), false),
                    Change::ShrinkCarried { bytes } => {
                        (fits(carried - bytes, capacity, wish), fits(carried - bytes + 1, capacity, wish))
                    }
                    Change::GrowPool { bytes } => {
                        (fits(carried, capacity + bytes, wish), fits(carried, capacity + bytes - 1, wish))
                    }
                };
                assert!(enough && !less, "{capacity} bytes, {wish}, {carried} carried: {change:?}");
            }
        }
    }
}

#[test]
fn sums_that_overflow_are_refused() {
    let pool = Pool::new("cpu", u64::MAX);
    let two = demands([u64::MAX, 1], 0, 0);
    for wish in [Residency::Auto, Residency::Device, Residency::Mmap] {
        let error = plan(&two, std::slice::from_ref(&pool), wish).unwrap_err();
        assert_eq!(
            error,
            PlanError::Overflow { pool: "cpu".into(), kind: Kind::Weights, name: "b".into() },
            "{wish}"
        );
    }
    let mut ledger = Ledger::new(&pool.clone().with_reserve(u64::MAX - 1));
    ledger.add(&Demand::new(Kind::Scratch, "one", 1)).unwrap();
    let before = ledger.clone();
    let error = ledger.add(&Demand::new(Kind::Staging, "more", 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the staging demands, up to `more`, add up to more than 2^64 bytes on pool `cpu`"
    );
    assert_eq!(ledger, before);
    // Each half fits 64 bits, both together do not: mapped it is, or refused.
    let large = demands([u64::MAX - 1, 1], 2, 0);
    assert_eq!(
        plan(&large, std::slice::from_ref(&pool), Residency::Auto).unwrap().residency,
        Residency::Mmap
    );
    assert!(matches!(
        plan(&large, std::slice::from_ref(&pool), Residency::Device),
        Err(PlanError::Overflow { .. })
    ));
}

#[test]
fn pools_and_names_are_checked() {
    assert_eq!(plan(&[], &[], Residency::Auto), Err(PlanError::NoPool));
    let same = [Pool::new("cpu", 1), Pool::new("cpu", 2)];
    let error = plan(&[], &same, Residency::Auto).unwrap_err();
    assert_eq!(error.to_string(), "two pools are named `cpu`");
    let twice = [Demand::new(Kind::Weights, "w", 1), Demand::new(Kind::Weights, "w", 1)];
    let error = plan(&twice, &same[..1], Residency::Auto).unwrap_err();
    assert_eq!(error.to_string(), "two weights are named `w`");
    let pools = [Pool::new("cpu", 1), Pool::new("cuda:0", 2).with_reserve(3)];
    let error = plan(&[], &pools, Residency::Auto).unwrap_err();
    assert!(matches!(error, PlanError::DoesNotFit { pool, short_bytes: 1, .. } if pool == "cuda:0"));
    assert_eq!(plan(&[], &pools[..1], Residency::Auto).unwrap().residency, Residency::Device);
}

#[test]
fn plans_are_json() {
    let plan = plan(&demands([30, 40], 20, 5), &[Pool::new("cpu", 100).with_reserve(5)], Residency::Auto);
    let found = serde_json::to_value(plan.unwrap()).unwrap();
    let wanted = serde_json::json!({
        "residency": "device",
        "placements": [
            {"name": "a", "bytes": 30, "home": {"pool": "cpu"}},
            {"name": "b", "bytes": 40, "home": {"pool": "cpu"}},
        ],
        "mapped_bytes": 0,
        "ledgers": [{
            "pool": "cpu", "capacity_bytes": 100, "weights_bytes": 70, "carried_bytes": 20, "activations_bytes": 0,
            "scratch_bytes": 5, "staging_bytes": 0, "reserve_bytes": 5, "total_bytes": 100, "headroom_bytes": 0,
        }],
    });
    assert_eq!(found, wanted);
}
