//! The target `slots` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
