//! Digests of what a state depends on: BLAKE3 in hexadecimal, each under a name of its own.

use blake3::Hasher;
use tranship_dtype::DType;

/// Bytes from which hashing is worth several threads.
const MANY: usize = 1 << 17;

/// Adds bytes to a digest, on several threads where that pays.
pub(crate) fn add(hasher: &mut Hasher, bytes: &[u8]) {
    if bytes.len() >= MANY {
        hasher.update_rayon(bytes);
    } else {
        hasher.update(bytes);
    }
}

/// A digest under a name.
pub(crate) fn named(name: &str) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.update(name.as_bytes());
    hasher.update(b"\n");
    hasher
}

/// How far a sequence has come: its tokens, by number and by digest.
///
/// The digest is a chain, so that a session that knows the digest alone can go on with it: it starts as
/// `BLAKE3("tranship tokens 1\n")`, and a token makes it `BLAKE3(digest ‖ token)`, the token as 4 bytes,
/// little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Tokens so far: the next step writes row `position`, counting from 0.
    pub position: u64,
    /// The digest of those tokens.
    pub digest: blake3::Hash,
    /// The token that follows them, where it is known.
    pub next_token: Option<u32>,
}

impl Progress {
    /// Before the first token.
    pub fn start() -> Progress {
        Progress { position: 0, digest: named("tranship tokens 1").finalize(), next_token: None }
    }

    /// After these tokens.
    pub fn of(tokens: &[u32]) -> Progress {
        let mut progress = Progress::start();
        progress.push(tokens);
        progress
    }

    /// Goes on by these tokens; what follows them is no longer known.
    pub fn push(&mut self, tokens: &[u32]) {
        for token in tokens {
            let mut link = [0; 36];
            link[..32].copy_from_slice(self.digest.as_bytes());
            link[32..].copy_from_slice(&token.to_le_bytes());
            self.digest = blake3::hash(&link);
        }
        self.position = self.position.saturating_add(tokens.len() as u64);
        self.next_token = None;
    }
}

/// The digest of a checkpoint's tensors, which the caller gives in the order of their names: over
/// `tranship weights 1`, a line feed, and for each tensor a line `name dtype [sizes]` and its bytes.
pub fn weights_digest<'a>(tensors: impl Iterator<Item = (&'a str, DType, &'a [usize], &'a [u8])>) -> String {
    let mut hasher = named("tranship weights 1");
    for (name, dtype, shape, bytes) in tensors {
        hasher.update(format!("{name} {dtype} {shape:?}\n").as_bytes());
        add(&mut hasher, bytes);
    }
    hasher.finalize().to_hex().to_string()
}
