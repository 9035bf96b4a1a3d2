//! The target `lists` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
