//! The target `hellos` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
