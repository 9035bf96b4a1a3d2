//! libFuzzer program that runs the target `envelopes`.
#![no_main]

mp_fuzz::libfuzzer!();
