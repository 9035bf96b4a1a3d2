//! The target `answers` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
