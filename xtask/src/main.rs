//! Automation: parity, tidy, fixtures, bench, fetch.

fn main() {}
