//! The target `devices` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
