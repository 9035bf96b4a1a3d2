//! The target `places` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
