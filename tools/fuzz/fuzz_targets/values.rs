//! The target `values` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
