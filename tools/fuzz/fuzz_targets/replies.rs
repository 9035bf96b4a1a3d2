//! The target `replies` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
