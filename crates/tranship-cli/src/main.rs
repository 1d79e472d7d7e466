//! The `tranship` program.

fn main() {}
