//! The target `messages` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
