//! libFuzzer program that runs the target `functions`.
#![no_main]

mp_fuzz::libfuzzer!();
