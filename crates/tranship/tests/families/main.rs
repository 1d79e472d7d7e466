//! Every family on every backend, against logits and greedy text of `transformers` in F32.

mod gguf;
mod golden;
mod released;
