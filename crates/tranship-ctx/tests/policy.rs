//! The policy as a value: presets, overrides, what is refused, devices and sets of types.

use tranship_ctx::{
    Accepts, Activations, ComputeCtx, CtxError, DTypeSet, Device, LayerPolicy, PRESETS, Residency,
};
use tranship_dtype::DType;

#[test]
fn presets_are_what_they_say() {
    use DType::*;
    for (name, compute, kv, activations) in [
        ("parity", F32, F32, Activations::Float),
        ("ds4_parity", F32, F32, Activations::Float),
        ("serving", BF16, F32, Activations::Float),
        ("quantized", F32, F16, Activations::Blocks),
    ] {
        let preset = ComputeCtx::preset(name, Device::cpu()).unwrap();
        let wanted = ComputeCtx {
            compute,
            kv,
            accum: F32,
            state: F32,
            activations,
            residency: Residency::Auto,
            device: Device::cpu(),
            layers: Default::default(),
        };
        assert_eq!(preset, wanted, "{name}");
        preset.check().unwrap();
    }
    let new = ComputeCtx::new(BF16, Device::cpu());
    assert_eq!((new.compute, new.kv, new.accum, new.state), (BF16, BF16, F32, F32));
    assert_eq!(ComputeCtx::ds4_parity(Device::cpu()), ComputeCtx::parity(Device::cpu()));
}

#[test]
fn every_name_of_a_preset_is_read() {
    for name in PRESETS {
        assert!(ComputeCtx::preset(name, Device::cpu()).is_ok(), "{name}");
    }
    let error = ComputeCtx::preset("Parity", Device::cpu()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`Parity` is no policy; there are parity, ds4_parity, serving and quantized"
    );
}

#[test]
fn overrides_change_their_axis_alone() {
    let base = || ComputeCtx::parity(Device::cpu());
    let only = |changed: ComputeCtx, same: fn(&mut ComputeCtx)| {
        let mut back = changed.clone();
        assert_ne!(changed, base());
        same(&mut back);
        assert_eq!(back, base());
    };
    only(base().with_compute(DType::BF16), |c| c.compute = DType::F32);
    only(base().with_kv(DType::F16), |c| c.kv = DType::F32);
    only(base().with_accum(DType::F64), |c| c.accum = DType::F32);
    only(base().with_state(DType::BF16), |c| c.state = DType::F32);
    only(base().with_activations(Activations::Blocks), |c| c.activations = Activations::Float);
    only(base().with_residency(Residency::Mmap), |c| c.residency = Residency::Auto);
    only(base().with_device(Device::of("wgpu")), |c| c.device = Device::cpu());
    only(base().with_layer(1, LayerPolicy::default()), |c| c.layers.clear());
}

#[test]
fn a_layer_is_excepted_alone() {
    let own = LayerPolicy { kv: Some(DType::F16), state: None, activations: Some(Activations::Float) };
    let ctx = ComputeCtx::quantized(Device::cpu()).with_kv(DType::F32).with_layer(3, own);
    for layer in [None, Some(2), Some(4)] {
        assert_eq!(ctx.kv_of(layer), DType::F32);
        assert_eq!(ctx.activations_of(layer), Activations::Blocks);
    }
    assert_eq!((ctx.kv_of(Some(3)), ctx.state_of(Some(3))), (DType::F16, DType::F32));
    assert_eq!(ctx.activations_of(Some(3)), Activations::Float);
    assert_eq!(
        ctx.numerics(),
        "compute=f32 kv=f32 accum=f32 state=f32 activations=q8_1 layer.3.kv=f16 layer.3.activations=float"
    );
    let elsewhere = ctx.clone().with_device(Device::of("wgpu")).with_residency(Residency::Device);
    assert_eq!(elsewhere.numerics(), ctx.numerics(), "placement is no number");
}

#[test]
fn types_that_cannot_do_it_are_refused_by_name() {
    let base = || ComputeCtx::parity(Device::cpu());
    let floats = [DType::F16, DType::BF16, DType::F32, DType::F64];
    let small = [DType::F8E4M3, DType::F8E5M2];
    for dtype in DType::ALL {
        let layer = LayerPolicy { kv: Some(dtype), ..LayerPolicy::default() };
        let own_state = LayerPolicy { state: Some(dtype), ..LayerPolicy::default() };
        for (purpose, ctx) in [
            ("compute", base().with_compute(dtype)),
            ("cache", base().with_kv(dtype)),
            ("accumulate", base().with_accum(dtype)),
            ("remember", base().with_state(dtype)),
            ("cache", base().with_layer(0, layer)),
            ("remember", base().with_layer(0, own_state)),
        ] {
            let can = floats.contains(&dtype) || (purpose != "accumulate" && small.contains(&dtype));
            let wanted = if can { Ok(()) } else { Err(CtxError::NotAPolicy { purpose, dtype }) };
            assert_eq!(ctx.check(), wanted, "{purpose} {dtype}");
        }
    }
    let message = |ctx: ComputeCtx| ctx.check().unwrap_err().to_string();
    assert_eq!(
        message(base().with_compute(DType::I32)),
        "a policy cannot compute in i32: wanted f8e4m3, f8e5m2, f16, bf16, f32 or f64"
    );
    assert_eq!(
        message(base().with_accum(DType::F8E4M3)),
        "a policy cannot accumulate in f8e4m3: wanted f16, bf16, f32 or f64"
    );
}

#[test]
fn devices_are_read_as_they_are_written() {
    for (text, backend, index, written) in [
        ("cpu", "cpu", 0, "cpu"),
        ("wgpu:1", "wgpu", 1, "wgpu:1"),
        ("cuda:0", "cuda", 0, "cuda"),
        ("my_chip:12", "my_chip", 12, "my_chip:12"),
    ] {
        let device: Device = text.parse().unwrap();
        assert_eq!(device, Device { backend: backend.into(), index });
        assert_eq!(device.to_string(), written);
        assert_eq!(written.parse::<Device>().unwrap(), device);
    }
    for text in ["", ":1", "cpu:", "cpu:x", "cpu:-1", "cpu:1:2", "a b", "cpu:4294967296", "cp/u"] {
        let error = text.parse::<Device>().unwrap_err();
        assert_eq!(error, CtxError::UnknownDevice(text.into()));
        assert!(error.to_string().contains(&format!("`{text}`")));
    }
}

#[test]
fn a_set_widens_to_the_least_type_that_holds_all() {
    use DType::*;
    for (set, dtype, wanted) in [
        (&[F16, F32, F64][..], F16, Some(F16)),
        (&[F16, F32, F64], BF16, Some(F32)),
        (&[F64, F32], BF16, Some(F32)),
        (&[F64], BF16, Some(F64)),
        (&[F16], BF16, None),
        (&[F16, BF16, F32], F8E4M3, Some(F16)),
        (&[BF16, F32], F8E4M3, Some(BF16)),
        (&[BF16, F32], F8E5M2, Some(F32)),
        (&[F8E4M3, F16], F4E2M1, Some(F8E4M3)),
        (&[F16, BF16], DType::Q4_0, None),
        (&[F16, BF16, F64, F32], DType::Q6_K, Some(F32)),
        (&[F32], I32, None),
        (&[F32], F64, None),
        (&[], F32, None),
    ] {
        assert_eq!(DTypeSet::of(set).widened(dtype), wanted, "{dtype} in {}", DTypeSet::of(set));
    }
    // Whatever the set, the answer is in it and holds every value, and no smaller type there does.
    for a in DType::ALL {
        for b in DType::ALL {
            for c in DType::ALL {
                let set = DTypeSet::of(&[a, b]);
                match set.widened(c) {
                    Some(d) => {
                        assert!(set.has(d) && c.fits_in(d));
                        assert!(set.iter().all(|other| other == d || !c.fits_in(other) || !other.fits_in(d)));
                    }
                    None => assert!(!c.fits_in(a) && !c.fits_in(b)),
                }
            }
        }
    }
}

#[test]
fn sets_hold_what_they_are_made_of() {
    let set = DTypeSet::of(&[DType::F32, DType::BF16]);
    assert_eq!(set.to_string(), "bf16, f32");
    assert_eq!(DTypeSet::of(&[]).to_string(), "none");
    let all = set.union(DTypeSet::blocks());
    for dtype in DType::ALL {
        let wanted = matches!(dtype, DType::Block(_) | DType::F32 | DType::BF16);
        assert_eq!(all.has(dtype), wanted, "{dtype}");
    }
    let accepts = Accepts::default();
    for dtype in DType::ALL {
        assert_eq!(accepts.weights.has(dtype), dtype.is_real(), "{dtype}");
    }
}
