//! The target `tokens` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
