//! libFuzzer program that runs the target `frames`.
#![no_main]

mp_fuzz::libfuzzer!();
