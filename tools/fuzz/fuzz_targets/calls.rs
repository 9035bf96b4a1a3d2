//! The target `calls` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
