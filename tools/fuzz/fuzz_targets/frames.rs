//! The target `frames` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
