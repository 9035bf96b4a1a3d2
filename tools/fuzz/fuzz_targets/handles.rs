//! The target `handles` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
