//! The programs that specs are written as: snapshots, and what holds for all of them.

use super::common::{config, configs};
use serde_json::json;
use tranship_model::{
    Attention, Cut, MAX_CTX, MAX_VOCAB, MAX_WIDTH, Mixer, ModelError, ModelSpec, Names, Part,
};
use tranship_program::ops::RopeStyle;
use tranship_program::{Program, same_state};

fn print(spec: &ModelSpec, cuts: &[Cut]) -> String {
    let text = |&cut| spec.program(cut).unwrap_or_else(|e| panic!("{cut}: {e}")).to_string();
    cuts.iter().map(text).collect::<Vec<_>>().join("\n")
}

#[test]
fn smollm2_reads_well() {
    let spec = ModelSpec::from_config(&config("configs/smollm2-135m.json")).unwrap();
    let (layer, ctx) = (3, 2048);
    let cuts = [Cut::Embed, Cut::PrefillLayer { layer, ctx }, Cut::DecodeLayer { layer, ctx }, Cut::Head];
    insta::assert_snapshot!(print(&spec, &cuts));
}

#[test]
fn biases_yarn_and_an_own_head_read_well() {
    let mut config = config("models/llama_untied_bias/config.json");
    config["rope_scaling"] =
        json!({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096});
    let spec = ModelSpec::from_config(&config).unwrap();
    insta::assert_snapshot!(print(&spec, &[Cut::DecodeLayer { layer: 0, ctx: 256 }, Cut::Head]));
}

/// Contexts of one position, of a fixture's, and longer than most windows.
const CONTEXTS: [u64; 3] = [1, 48, 4096];

/// The layers of a model of which each is another: where programs can differ in more than names.
fn distinct(spec: &ModelSpec) -> Vec<usize> {
    let layers = &spec.layers;
    (0..layers.len()).filter(|&layer| !layers[..layer].contains(&layers[layer])).collect()
}

/// Holds every configuration to `check`, and fails with all that do not stand it.
fn every(check: impl Fn(&ModelSpec) -> Result<(), String>) {
    let fault = |(name, spec): (String, ModelSpec)| Some(format!("{name}: {}", check(&spec).err()?));
    let faults: Vec<String> = configs().into_iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{} models:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_program_lifts_and_prints_back() {
    every(|spec| {
        let layers = distinct(spec);
        let cuts = CONTEXTS.into_iter().flat_map(|ctx| {
            let layer = |&layer| [Cut::PrefillLayer { layer, ctx }, Cut::DecodeLayer { layer, ctx }];
            layers.iter().flat_map(layer).collect::<Vec<_>>()
        });
        for cut in cuts.chain([Cut::Embed, Cut::Head]) {
            let program = spec.program(cut).map_err(|e| e.to_string())?;
            let text = program.to_string();
            assert_eq!(Program::parse(&text).unwrap(), program, "{cut}");
            assert!(text.starts_with(&format!("program {cut}\n")), "{cut}\n{text}");
            program.lift().map_err(|e| format!("{cut}: {e}\n{text}"))?;
        }
        Ok(())
    });
}

#[test]
fn prefill_and_decode_carry_the_same_state() {
    every(|spec| {
        for (layer, ctx) in distinct(spec).into_iter().flat_map(|layer| CONTEXTS.map(|ctx| (layer, ctx))) {
            let lift = |cut| spec.program(cut).unwrap().lift().map_err(|e| format!("{cut}: {e}"));
            let prefill = lift(Cut::PrefillLayer { layer, ctx })?;
            let decode = lift(Cut::DecodeLayer { layer, ctx })?;
            same_state(&prefill, &decode).map_err(|e| e.to_string())?;
            if let Some(Mixer::Attention(attention)) = &spec.layers[layer].mixer {
                let rows = attention.window.unwrap_or(ctx).min(ctx);
                let caches = [format!("k{layer}"), format!("v{layer}")].map(|cache| (cache, rows));
                let carried: Vec<_> =
                    decode.roles().carried().map(|c| (c.name.clone(), c.axes[0].1)).collect();
                assert_eq!(carried, caches, "layer {layer}, ctx {ctx}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_hundred_layers_are_a_hundred_programs() {
    let mut config = config("configs/llama-3.1-8b.json");
    config["num_hidden_layers"] = json!(100);
    let spec = ModelSpec::from_config(&config).unwrap();
    assert_eq!(spec.cuts(1 << 17).count(), 202);
    for cut in spec.cuts(1 << 17) {
        spec.program(cut).unwrap().lift().unwrap();
    }
    assert_eq!(spec.required().unwrap().len(), 1 + 100 * 9 + 2);
}

/// The largest spec that a configuration can give is refused nowhere by the language.
#[test]
fn limits_agree_with_the_language() {
    let mut config = config("configs/llama-3.1-8b.json");
    for (key, value) in [
        ("hidden_size", MAX_WIDTH),
        ("intermediate_size", MAX_WIDTH),
        ("vocab_size", MAX_VOCAB),
        ("max_position_embeddings", MAX_CTX),
        ("num_attention_heads", 1 << 12),
        ("num_key_value_heads", 1 << 12),
        ("head_dim", 1 << 12),
    ] {
        config[key] = json!(value);
    }
    let spec = ModelSpec::from_config(&config).unwrap();
    for cut in [Cut::Embed, Cut::DecodeLayer { layer: 0, ctx: MAX_CTX }, Cut::Head] {
        spec.program(cut).unwrap().lift().unwrap();
    }
}

#[test]
fn required_tensors_are_each_named_once() {
    let spec = ModelSpec::from_config(&config("models/llama_untied_bias/config.json")).unwrap();
    let required = spec.required().unwrap();
    let find =
        |name: &str| required.iter().filter(|(n, _)| n == name).map(|(_, s)| s.clone()).collect::<Vec<_>>();
    assert_eq!(required.len(), 1 + 3 * (2 + 2 * 7) + 2);
    assert_eq!(find("model.layers.2.self_attn.k_proj.weight"), [[24, 48]]);
    assert_eq!(find("model.layers.0.mlp.down_proj.bias"), [[48]]);
    assert_eq!(find("lm_head.weight"), [[120, 48]]);
    let tied = ModelSpec { tied_head: true, ..spec };
    assert_eq!(tied.required().unwrap().len(), required.len() - 1);
}

#[test]
fn identity_is_of_what_is_computed() {
    let spec = ModelSpec::from_config(&config("models/llama_base/config.json")).unwrap();
    let text = spec.canonical_programs().unwrap();
    let of = |change: &dyn Fn(&mut ModelSpec)| {
        let mut other = spec.clone();
        change(&mut other);
        other.canonical_programs().unwrap()
    };
    let attention = |spec: &mut ModelSpec, change: &dyn Fn(&mut Attention)| {
        let Some(Mixer::Attention(attention)) = &mut spec.layers[1].mixer else { panic!() };
        change(attention);
    };
    // Names, the declared type and the trained length compute nothing.
    assert_eq!(of(&|s| s.names = Names::gguf()), text);
    assert_eq!(of(&|s| (s.dtype, s.max_positions) = (None, 7)), text);
    // All of these do.
    let others = [
        of(&|s| attention(s, &|a| a.rope.as_mut().unwrap().style = RopeStyle::Interleaved)),
        of(&|s| attention(s, &|a| a.rope.as_mut().unwrap().theta = 5e5)),
        of(&|s| attention(s, &|a| a.scale = 0.5)),
        of(&|s| s.norm_eps = 1e-6),
        of(&|s| s.layers.truncate(1)),
        of(&|s| s.vocab += 1),
    ];
    for (i, other) in others.iter().enumerate() {
        assert_ne!(*other, text, "change {i}");
    }
}

#[test]
fn cuts_that_a_model_lacks_are_refused() {
    let spec = ModelSpec::from_config(&config("models/llama_base/config.json")).unwrap();
    let refusal = |cut| spec.program(cut).unwrap_err().to_string();
    let layer = "layer 2: the model has 2 layers, counted from 0";
    assert_eq!(refusal(Cut::PrefillLayer { layer: 2, ctx: 8 }), layer);
    assert_eq!(refusal(Cut::DecodeLayer { layer: 0, ctx: 0 }), "ctx=0: wanted 1 to 2147483648 positions");
    let ctx = MAX_CTX + 1;
    assert!(matches!(spec.program(Cut::DecodeLayer { layer: 0, ctx }), Err(ModelError::Ctx { .. })));

    let mut divided = spec.clone();
    let Some(Mixer::Attention(attention)) = &mut divided.layers[0].mixer else { panic!() };
    attention.rope.as_mut().unwrap().divisors = true;
    let error = divided.program(Cut::PrefillLayer { layer: 0, ctx: 8 }).unwrap_err();
    assert!(matches!(error, ModelError::NoName { part: Part::RopeDivisors }), "{error}");
    assert_eq!(error.to_string(), "the checkpoint's names have none for RopeDivisors");

    let odd = ModelSpec { hidden: u64::MAX, ..spec };
    let error = odd.program(Cut::Head).unwrap_err().to_string();
    assert!(error.starts_with("program of head: line "), "{error}");
}
