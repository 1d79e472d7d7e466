//! Sequences that leave and come tensor by tensor: the same as at once, in memory that does not grow with the model, and
//! with the first layers installed before the last ones are sent.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tranship_backend::{Backend, Outputs, Reference};
use tranship_ctx::{ComputeCtx, Device};
use tranship_handoff::{Expect, Handoff, Opening};
use tranship_session::{Model, Options, Part, Sequence, Session, SessionError, argmax};

fn model(name: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
    Arc::new(Model::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

/// A session with a part for each layer.
fn layered(model: &Arc<Model>, ctx: u64) -> Session {
    let backend: Arc<dyn Backend> = Arc::new(Reference::new());
    let part = |layer| Part { backend: backend.clone(), layers: layer..layer + 1 };
    let parts = (0..model.spec().layers.len()).map(part).collect();
    let options = Options { ctx, max_rows: 7 };
    Session::split(model.clone(), parts, policy(), options).expect("it compiles")
}

fn whole(model: &Arc<Model>, ctx: u64) -> Session {
    Session::open(model.clone(), Arc::new(Reference::new()), policy(), Options::new(ctx))
        .expect("it compiles")
}

fn policy() -> ComputeCtx {
    ComputeCtx::parity(Device::of("reference"))
}

fn prompt() -> Vec<u32> {
    (0..19).map(|i| (i * 37 + 11) % 97).collect()
}

fn greedy(session: &mut Session, sequence: &mut Sequence, first: u32) -> Vec<u32> {
    let mut tokens = vec![first];
    for _ in 0..5 {
        let row = session.extend(sequence, &tokens[tokens.len() - 1..], Outputs::Last).expect("it runs");
        tokens.push(argmax(&row));
    }
    tokens
}

fn opening(bytes: &[u8]) -> Opening<&[u8]> {
    Opening::read(bytes).expect("a manifest")
}

const MODELS: [&str; 4] =
    ["models/llama_mha", "families/gemma3_text", "families/qwen3_next", "families/deepseek_v4"];

/// A file that is written tensor by tensor is the one that is written at once; a stream of a finished sequence and one
/// that leaves while the prompt runs are of the same seal; each is gone on from in another context.
#[test]
fn every_way_is_one_hand_off() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in MODELS {
        let model = model(name);
        let (mut here, mut there) = (layered(&model, 40), whole(&model, 32));
        let mut sequence = here.sequence().expect("memory");
        let logits = here.extend(&mut sequence, &prompt(), Outputs::Last).expect("it runs");
        let next = argmax(&logits);
        let wanted = here.suspend(&sequence, Some(next)).expect("it fits");
        let path = folder.path().join("state");
        let seal = here.write(&sequence, Some(next), &path).expect("it is written");
        assert_eq!(Some(seal.as_str()), wanted.seal(), "{name}");
        assert_eq!(std::fs::read(&path).expect("it is there"), wanted.to_bytes().expect("sealed"), "{name}");
        let (sent, seal) = here.send(&sequence, Some(next), Vec::new()).expect("it is sent");
        assert_eq!(Some(seal.as_str()), wanted.seal(), "{name}");

        let mut again = here.sequence().expect("memory");
        let prompt = prompt();
        let choose = |row: &[f32]| Ok::<_, SessionError>(Some(argmax(row)));
        let (row, early) = here
            .prefill_into((&mut again, &prompt), Outputs::Last, Vec::new(), choose)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(row, logits, "{name}");
        assert!(early == sent, "{name}");

        let text = greedy(&mut here, &mut sequence, next);
        let expect = Expect { tokens: Some(&prompt), ..Expect::default() };
        let file = std::fs::read(&path).expect("it is there");
        for (form, bytes) in [("a file", file), ("a stream", early)] {
            let (mut received, rest) = there.receive(opening(&bytes), &expect).expect("it fits");
            assert!(rest.is_empty(), "{name}, {form}");
            assert_eq!(received.position(), prompt.len());
            let same = there.suspend(&received, Some(next)).expect("it fits");
            let bytes = |h: &Handoff| h.state().iter().map(|t| t.bytes().to_vec()).collect::<Vec<_>>();
            assert!(bytes(&same) == bytes(&wanted), "{name}, {form}");
            assert_eq!(greedy(&mut there, &mut received, next), text, "{name}, {form}");
        }
    }
}

/// An output that lets a layer out only when the one before it has been received.
struct Gate {
    pipe: io::PipeWriter,
    /// Told of each tensor that was received.
    received: Receiver<usize>,
    /// Frames that have left: the opening, then layers.
    frames: usize,
}

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A layer's header starts its frame: the opening and a layer's last bytes are flushed before it.
        self.pipe.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.frames += 1;
        let late =
            |_| io::Error::other(format!("frame {} was not received before the next one", self.frames));
        self.received.recv_timeout(Duration::from_secs(60)).map_err(late)?;
        self.pipe.flush()
    }
}

/// Layer by layer, a receiver has what was sent before the sender goes on.
#[test]
fn installed_before_the_last_layer_comes() {
    let model = model("families/qwen3_next");
    let (mut here, there) = (layered(&model, 40), whole(&model, 40));
    let (input, pipe) = io::pipe().expect("a pipe");
    let (tell, received): (Sender<usize>, _) = channel();
    let contract = there.contract();
    let layers: Vec<u64> = contract.carried.iter().map(|c| c.layer).collect();
    let last_of_layer = |at: usize| layers.get(at + 1) != Some(&layers[at]);
    let prompt = prompt();
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let mut incoming = Opening::read(input)
                .expect("a manifest")
                .under(&contract, Expect::default())
                .expect("it fits");
            let mut order = Vec::new();
            while let Some((at, tensor)) = incoming.next_tensor().expect("it fits") {
                order.push(tensor.name);
                if last_of_layer(at) {
                    tell.send(at).expect("the sender waits");
                }
            }
            tell.send(usize::MAX).expect("the sender waits");
            incoming.finish().expect("it is whole");
            order
        });
        let gate = Gate { pipe, received, frames: 0 };
        let mut sequence = here.sequence().expect("memory");
        let choose = |row: &[f32]| Ok::<_, SessionError>(Some(argmax(row)));
        let sent = here.prefill_into((&mut sequence, &prompt), Outputs::Last, gate, choose);
        let (_, gate) = sent.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(gate.frames, model.spec().layers.len() + 1);
        let wanted: Vec<String> = contract.carried.iter().map(|c| c.name.clone()).collect();
        assert_eq!(receiving.join().expect("it received"), wanted);
    });
}

/// An output that takes some bytes and no more.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or_else(|| io::Error::other("no room is left"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What stops a stream is what is said of it, wherever it happens; the sequence is whole only where its prompt ran to its
/// end.
#[test]
fn outputs_and_choices_that_fail() {
    let model = model("models/llama_mha");
    let mut here = layered(&model, 40);
    let (prompt, size) = (prompt(), {
        let mut sequence = here.sequence().expect("memory");
        here.extend(&mut sequence, &prompt(), Outputs::None).expect("it runs");
        here.send(&sequence, None, Vec::new()).expect("it is sent").0.len()
    });
    for room in [0, 10, size / 2, size - 1] {
        let mut sequence = here.sequence().expect("memory");
        let choose = |_: &[f32]| Ok::<_, SessionError>(None);
        let sent = here.prefill_into((&mut sequence, &prompt), Outputs::Last, Full(room), choose);
        let error = sent.err().unwrap_or_else(|| panic!("{room} of {size} bytes")).to_string();
        assert_eq!(error, "the hand-off: no room is left", "{room} of {size} bytes");
    }
    let mut sequence = here.sequence().expect("memory");
    let choose = |_: &[f32]| Err(SessionError::NoTokens);
    let sent = here.prefill_into((&mut sequence, &prompt), Outputs::Last, Vec::new(), choose);
    assert!(matches!(sent, Err(SessionError::NoTokens)));
    assert_eq!(sequence.position(), prompt.len());
    here.suspend(&sequence, None).expect("the prompt has run");
    // No room for a step after the prompt: nothing runs.
    let mut short = layered(&model, prompt.len() as u64);
    let mut sequence = short.sequence().expect("memory");
    let choose = |_: &[f32]| Ok::<_, SessionError>(None);
    let sent = short.prefill_into((&mut sequence, &prompt), Outputs::Last, Vec::new(), choose);
    let error = sent.expect_err("no row is left").to_string();
    assert_eq!(error, "position 19 leaves no row for the next step in a context of 19");
}

/// A hand-off of another model is refused by its manifest, before the state of any layer is read.
#[test]
fn refused_at_the_opening() {
    let (llama, other) = (model("models/llama_mha"), model("families/gemma3_text"));
    let mut here = layered(&llama, 40);
    let mut sequence = here.sequence().expect("memory");
    here.extend(&mut sequence, &prompt(), Outputs::None).expect("it runs");
    let (stream, _) = here.send(&sequence, None, Vec::new()).expect("it is sent");
    let first = 8 + u64::from_le_bytes(stream[..8].try_into().expect("8 bytes")) as usize;
    let there = whole(&other, 40);
    let error = there.receive(opening(&stream[..first]), &Expect::default()).err().expect("another model");
    let SessionError::Refused(refusal) = error else { panic!("{error}") };
    assert!(refusal.errors.len() > 2, "{refusal}");
    let there = whole(&llama, 40);
    let error =
        there.receive(opening(&stream[..first]), &Expect::default()).err().expect("it ends").to_string();
    assert_eq!(error, "the hand-off ends early: before its first layer");
}

/// A session runs and gives away sequences of its own weights alone: those of a model that was opened twice, and not those
/// of other weights in the same form, which a receiver could not tell from their own.
#[test]
fn weights_are_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/llama_mha");
    for file in ["config.json", "model.safetensors"] {
        let mut bytes = std::fs::read(from.join(file)).expect("it is there");
        if file == "model.safetensors" {
            let last = bytes.len() - 2;
            bytes[last] ^= 1;
        }
        std::fs::write(folder.path().join(file), bytes).expect("it is written");
    }
    let same = model("models/llama_mha");
    let other = Arc::new(Model::open(folder.path()).expect("a model"));
    let mut here = whole(&model("models/llama_mha"), 40);
    let mut sequence = here.sequence().expect("memory");
    here.extend(&mut sequence, &prompt(), Outputs::None).expect("it runs");
    let (mut alike, mut there) = (whole(&same, 40), whole(&other, 40));
    let of = |session: &Session, sequence: &Sequence| {
        session.suspend(sequence, None).map(|h| h.seal().map(String::from))
    };
    assert_eq!(of(&alike, &sequence).expect("the same model"), of(&here, &sequence).expect("its own"));
    alike.extend(&mut sequence, &[1], Outputs::None).expect("the same model");
    let why = "the sequence is of a session of another model, policy or context";
    assert_eq!(of(&there, &sequence).expect_err("other weights").to_string(), why);
    assert_eq!(there.send(&sequence, None, Vec::new()).expect_err("other weights").to_string(), why);
    let error = there.write(&sequence, None, &folder.path().join("state")).expect_err("other weights");
    assert_eq!(error.to_string(), why);
    let error = there.extend(&mut sequence, &[1], Outputs::None).expect_err("other weights").to_string();
    assert_eq!(error, "a segment's state was made for other programs");
    here.extend(&mut sequence, &[1], Outputs::None).expect("nothing has changed");
}
