//! The target `outcomes` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
