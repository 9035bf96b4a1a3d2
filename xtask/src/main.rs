//! Checks and benchmarks of mp.
fn main() {}
