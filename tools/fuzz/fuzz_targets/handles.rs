//! libFuzzer program that runs the target `handles`.
#![no_main]

mp_fuzz::libfuzzer!();
