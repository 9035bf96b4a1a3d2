//! The target `names` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
