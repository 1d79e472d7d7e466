//! A hand-off taken apart, to be changed and put together again. It is put together by the format's page, not by the
//! code under test: header and seal are computed here once more.

use serde_json::{Map, Value, json};
use std::path::Path;
use tranship_ctx::{ComputeCtx, Device};
use tranship_dtype::DType;
use tranship_handoff::{Contract, Handoff, HandoffTensor, Progress};
use tranship_model::ModelSpec;
use tranship_tensor::Tensor;

/// Tokens that the good hand-off covers.
pub const TOKENS: [u32; 5] = [7, 1, 0, 159, 42];

/// The context of the good hand-off's sender.
pub const CTX: u64 = 12;

/// Something that a weights' digest can be.
pub const WEIGHTS: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// A configuration among the fixtures.
pub fn config(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path);
    serde_json::from_slice(&std::fs::read(path).expect("the fixture is there")).expect("it is JSON")
}

/// The contract of `llama_base` (layers 2, key heads 3 of 16), with weights, at a context under a policy.
pub fn contract(ctx: u64, policy: &ComputeCtx) -> Contract {
    let spec = ModelSpec::from_config(&config("models/llama_base/config.json")).expect("a model");
    Contract::of(&spec, ctx, policy, Some(WEIGHTS.into())).expect("it has a contract")
}

/// All in F32.
pub fn parity() -> ComputeCtx {
    ComputeCtx::parity(Device::of("reference"))
}

/// A hand-off that a contract accepts: after [`TOKENS`], and its values all differ.
pub fn good(contract: &Contract) -> Handoff {
    let progress = Progress { next_token: Some(3), ..Progress::of(&TOKENS) };
    let tensor = |(i, carried): (usize, &tranship_handoff::Carried)| {
        let shape = carried.valid_shape(progress.position);
        let sizes: Vec<usize> = shape.iter().map(|&s| s as usize).collect();
        let count = sizes.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|at| (i * count + at) as f32 / 64.0 - 5.0).collect();
        let tensor = Tensor::from_f32(&sizes, &values).and_then(|t| t.cast(carried.dtype)).expect("a float");
        HandoffTensor::new(&carried.name, carried.dtype, shape, tensor.bytes().to_vec())
    };
    contract.take(progress, contract.carried.iter().enumerate().map(tensor).collect()).expect("it fits")
}

/// A tensor of a draft.
#[derive(Clone)]
pub struct Part {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

/// Which seal a draft gets.
#[derive(Clone)]
pub enum Sealing {
    Whole,
    Is(String),
    Absent,
}

/// A hand-off taken apart.
#[derive(Clone)]
pub struct Draft {
    pub manifest: Value,
    pub parts: Vec<Part>,
    pub sealing: Sealing,
}

impl Draft {
    /// Takes a hand-off apart.
    pub fn of(handoff: &Handoff) -> Draft {
        let bytes = handoff.to_bytes().expect("it is sealed");
        let len = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + len]).expect("JSON");
        let line = header["__metadata__"]["tranship"].as_str().expect("a manifest");
        let part = |(name, info): (&String, &Value)| {
            let at = |i: usize| 8 + len + info["data_offsets"][i].as_u64().expect("an offset") as usize;
            Part {
                name: name.clone(),
                dtype: own(info["dtype"].as_str().expect("a type")),
                shape: serde_json::from_value(info["shape"].clone()).expect("sizes"),
                bytes: bytes[at(0)..at(1)].to_vec(),
            }
        };
        let tensors = header.as_object().expect("a map").iter().filter(|(name, _)| *name != "__metadata__");
        Draft {
            manifest: serde_json::from_str(line).expect("JSON"),
            parts: tensors.map(part).collect(),
            sealing: Sealing::Whole,
        }
    }

    pub fn part(&mut self, name: &str) -> &mut Part {
        self.parts.iter_mut().find(|p| p.name == name).expect("it is there")
    }

    /// The manifest's entry of a tensor.
    pub fn carried(&mut self, name: &str) -> &mut Value {
        let carried = self.manifest["contract"]["carried"].as_array_mut().expect("a list");
        carried.iter_mut().find(|c| c["name"] == name).expect("it is listed")
    }

    /// Puts the first rows of every tensor alone.
    pub fn cut(&mut self, rows: u64) {
        for part in &mut self.parts {
            part.bytes.truncate(part.bytes.len() * rows as usize / part.shape[0] as usize);
            part.shape[0] = rows;
        }
    }

    /// The seal of the draft as it is.
    pub fn seal(&self) -> String {
        let mut text = format!("tranship handoff 1\n{}\n", self.manifest);
        let mut parts: Vec<&Part> = self.parts.iter().collect();
        parts.sort_by_key(|p| p.name.as_bytes());
        for p in parts {
            let sizes: Vec<String> = p.shape.iter().map(u64::to_string).collect();
            let digest = blake3::hash(&p.bytes).to_hex();
            text.push_str(&format!("{} {} [{}] {digest}\n", p.name, p.dtype, sizes.join(", ")));
        }
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut metadata = Map::new();
        metadata.insert("tranship".into(), self.manifest.to_string().into());
        match &self.sealing {
            Sealing::Whole => metadata.insert("seal".into(), self.seal().into()),
            Sealing::Is(seal) => metadata.insert("seal".into(), seal.clone().into()),
            Sealing::Absent => None,
        };
        let mut header = Map::new();
        header.insert("__metadata__".into(), metadata.into());
        let mut data = Vec::new();
        for part in &self.parts {
            let start = data.len();
            data.extend_from_slice(&part.bytes);
            let info = json!({ "dtype": theirs(part.dtype), "shape": part.shape, "data_offsets": [start, data.len()] });
            header.insert(part.name.clone(), info);
        }
        file(&Value::Object(header).to_string(), &data)
    }
}

/// A safetensors file of a header and data.
pub fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// The type that safetensors calls `name`.
fn own(name: &str) -> DType {
    name.replace('_', "").parse().expect("a type")
}

fn theirs(dtype: DType) -> String {
    match dtype {
        DType::F8E4M3 => "F8_E4M3".into(),
        DType::F8E5M2 => "F8_E5M2".into(),
        DType::F8E8M0 => "F8_E8M0".into(),
        other => other.name().to_uppercase(),
    }
}

/// A sentence with every digest as `#`.
pub fn shortened(text: &str) -> String {
    let mut short = String::new();
    let mut rest = text;
    while let Some(at) = rest.as_bytes().windows(64).position(|w| w.iter().all(u8::is_ascii_hexdigit)) {
        short.push_str(&rest[..at]);
        short.push('#');
        rest = &rest[at + 64..];
    }
    short + rest
}
