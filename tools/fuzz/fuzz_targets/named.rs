//! The target `named` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
