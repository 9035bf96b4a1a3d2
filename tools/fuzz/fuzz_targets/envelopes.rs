//! The target `envelopes` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
