//! Checkpoints to specs, and specs to programs: one file for each step of the way.

mod checkpoints;
mod common;
mod configs;
mod families;
mod fitted;
mod gguf;
mod gguf_families;
mod memories;
mod programs;
mod sources;
