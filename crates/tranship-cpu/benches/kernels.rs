//! Speed of the kernels, in bytes and operations per second.
fn main() {}
